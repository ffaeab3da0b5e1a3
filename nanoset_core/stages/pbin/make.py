"""Make the `.pbin` of a dataset, in a task that can run in any process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from nanoset_core.execution.progress import Progress
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.pbin.conversion import put_dataset_as_pbin
from nanoset_core.storage.local import LocalStore


@dataclass(frozen=True, slots=True)
class PbinTask:
    """Everything that a worker needs to make a `.pbin`. It can be pickled."""

    recipe: Recipe
    dataset: Manifest
    """The dataset whose documents the file holds."""
    vocab_size: int
    """Vocabulary size that Modalities' tokenizer reports, which decides the bytes of a token."""
    max_id: int
    """Greatest id of the tokenizer's vocabulary, including added tokens."""


def make_pbin(root: OutputRoot, *, task: PbinTask, progress: Progress) -> Manifest:
    """Write the `.pbin` of a task, unless it exists already.

    Args:
        root: The outputs.
        task: The dataset, and how it is written.
        progress: Shows how far the work has come.

    Returns:
        The manifest of the `.pbin`.

    Raises:
        InputError: The dataset has no tokens, or tokens that are not in the vocabulary.
    """
    with root.in_task() as outputs:

        def write(folder: Path) -> Written:
            if outputs.access.has_copies:
                return _write_to_bucket(outputs, task, progress)
            return _write_to_folder(outputs, task, folder, progress)

        return outputs.commit(task.recipe, write)


def _write_to_folder(
    outputs: OutputRoot, task: PbinTask, folder: Path, progress: Progress
) -> Written:
    """Write the file to a folder on this machine."""
    name = _file_name(task)
    dataset = MMapIndexedDataset.below(outputs.access, _prefix(outputs, task))
    counts, file = put_dataset_as_pbin(
        dataset,
        LocalStore(folder),
        name,
        vocab_size=task.vocab_size,
        max_id=task.max_id,
        progress=progress,
    )
    facts = {"file": name, **asdict(counts)}
    return Written(facts, {name: str(file.sha256)})


def _write_to_bucket(outputs: OutputRoot, task: PbinTask, progress: Progress) -> Written:
    """Write the file directly to the bucket of the outputs, without a copy on this machine."""
    name = _file_name(task)
    outputs.invalidate(task.recipe)
    dataset = MMapIndexedDataset.below(outputs.access, _prefix(outputs, task), validate=False)
    counts, file = put_dataset_as_pbin(
        dataset,
        outputs.access.store,
        outputs.access.name(outputs.place(task.recipe) / name),
        vocab_size=task.vocab_size,
        max_id=task.max_id,
        progress=progress,
    )
    facts = {"file": name, **asdict(counts)}
    return Written(facts, {name: file})


def _file_name(task: PbinTask) -> str:
    """Return the file name of the `.pbin`."""
    return f"{task.recipe.name}.pbin"


def _prefix(outputs: OutputRoot, task: PbinTask) -> str:
    """Return the path of the dataset's .bin and .idx, without the ending."""
    dataset = outputs.rebase(task.dataset)
    return str(dataset.folder / dataset.facts["prefix"])
