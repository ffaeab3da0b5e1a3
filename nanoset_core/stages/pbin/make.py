"""Make the `.pbin` of a dataset, in a task that can run in any process.

The file is written to a new folder of the outputs, or directly to their bucket, and its manifest
records the numbers of documents and tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from nanoset_core.execution.progress import Progress
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.stages.dataset.tokens import open_source
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.one_task import make_in_one_task
from nanoset_core.stages.pbin.conversion import model_vocab_size, put_dataset_as_pbin
from nanoset_core.stages.pbin.stage import PbinStage
from nanoset_core.stages.stage import Key


@dataclass(frozen=True, slots=True)
class PbinTask:
    """Everything that a worker needs to make a `.pbin`. It can be pickled."""

    recipe: Recipe
    """Recipe of the `.pbin`."""
    dataset: Manifest
    """The dataset whose documents the file holds."""
    vocab_size: int
    """Vocabulary size that Modalities' tokenizer reports, which decides the bytes of a token."""
    max_id: int
    """Greatest id of the tokenizer's vocabulary, including added tokens."""


@holding
def make_pbin(project: Project, name: str, stage: PbinStage) -> Manifest:
    """Write the tokens of a dataset as a `.pbin`, the single file from which Modalities trains.

    If the file exists for this version of the dataset, it is not written again. Meanwhile, `nanoset
    gc` deletes nothing that is needed (`holding`).

    Args:
        project: The project.
        name: Name of the dataset: a corpus, a view or packs.
        stage: The stage to which the file belongs.

    Returns:
        Manifest of the file: its size, checksum and counts. It is the current version now, which is
        handed to training runs.

    Raises:
        MissingError: The dataset has not been built.
    """
    dataset = current_dataset(project, name)
    task = PbinTask(
        recipe=stage.recipe(project, Key(name), {"dataset": dataset.digest}),
        dataset=dataset,
        # By this, each token takes 1, 2 or 4 bytes in the file.
        vocab_size=model_vocab_size(project.config.tokenizer_file),
        max_id=project.tokenizer.max_id,  # a greater id in the dataset is an error
    )
    # Call `_convert` in this process, or on a worker of a cluster.
    return make_in_one_task(project, partial(_convert, task=task))


def _convert(root: OutputRoot, *, task: PbinTask, progress: Progress) -> Manifest:
    """Write the `.pbin` of a dataset, from which Modalities trains, unless it exists.

    This runs in a worker process, possibly on another machine. The file is stored in a folder that
    is named by a digest of everything that it is made from, so an existing one is recognised:

        …/web/0a1b/web.pbin

    Args:
        root: The outputs of the project.
        task: The dataset, and how it is written.
        progress: Shows how far the work has come.

    Returns:
        The manifest of the file: its size and checksum, and the number of its documents and tokens.

    Raises:
        InputError: The dataset has no tokens, or tokens that are not in the vocabulary.
    """
    # Files that are downloaded for this task are deleted when the block ends.
    with root.in_task() as outputs:

        def write(folder: Path) -> Written:
            """Write the file to a folder, and return its counts and checksum."""
            return _write(outputs, task, folder, progress)

        # If a file of the same recipe exists, `commit` returns its manifest. Otherwise it calls
        # `write`, and stores the new file.
        return outputs.commit(task.recipe, write)


def _write(outputs: OutputRoot, task: PbinTask, folder: Path, progress: Progress) -> Written:
    """Write the tokens of a dataset as a `.pbin`, the file from which Modalities trains.

    If the outputs are in a bucket, it is written there directly, since it may be larger than the
    disk.

    Args:
        outputs: The outputs.
        task: The dataset, and how it is written.
        folder: A folder on this machine for the file. It stays empty if the outputs are in a
            bucket.
        progress: Shows how far the work has come.

    Returns:
        The numbers of documents and tokens, and the size and sha256 of the file.
    """
    file_name = f"{task.recipe.name}.pbin"
    # Where the file is written: in `folder`, or directly at its place in the bucket.
    store, stored_name = outputs.place_of_large_file(task.recipe, folder, file_name)
    pbin = put_dataset_as_pbin(
        open_source(outputs, task.dataset),
        store,
        stored_name,
        vocab_size=task.vocab_size,
        max_id=task.max_id,
        progress=progress,
    )
    return Written({"file": file_name, **asdict(pbin.counts)}, {file_name: pbin.file})
