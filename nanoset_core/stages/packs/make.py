"""Make packs of the current documents of a corpus or view, or plan them before they are built."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.execution.progress import Progress
from nanoset_core.formats.indexed.layout import idx_path
from nanoset_core.formats.indexed.stream import Hashed
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.json_records import to_plain
from nanoset_core.sampling.packing.assignment import document_lengths
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.stages.dataset.dataset import corpus_of
from nanoset_core.stages.dataset.tokens import open_dataset, open_source, write_tokens
from nanoset_core.stages.one_task import make_in_one_task
from nanoset_core.stages.packs.pieces import PIECES_FILE
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.packs.writing import (
    PackCounts,
    PackingRules,
    PackWriter,
    plan_counts,
    write_pack_idx,
)
from nanoset_core.stages.shards.framing import pair_name
from nanoset_core.stages.stage import Key, require
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.stage import unpacked_node


@holding
def make_packs(project: Project, name: str) -> Manifest:
    """Fill samples of one length, called packs, with the documents of a corpus.

    If packs of the same documents and settings exist, they are not made again. The result becomes
    the current version, which trainers read.

    Args:
        project: The project.
        name: Name of the packs, such as "web-packs-2048".

    Returns:
        Manifest of the packs: a record of their settings and counts.

    Raises:
        MissingError: The documents have not been tokenized yet.
    """
    # A task says which documents are packed, and how. `_pack_if_missing` carries it out, in this
    # process or on a worker of a cluster. Meanwhile, `holding` keeps `nanoset gc` from deleting the
    # documents.
    task = _PackTask.of(project, name)
    return make_in_one_task(project, partial(_pack_if_missing, task=task))


@dataclass(frozen=True, slots=True)
class _PackTask:
    """Everything that a worker needs to make packs; it pickles."""

    recipe: Recipe
    """Recipe of the packs."""
    dataset: Manifest
    """Manifest of the dataset whose documents are packed: that of a corpus or view."""
    prefix: str
    """File name of the packs, without an ending."""

    @staticmethod
    def of(project: Project, name: str) -> _PackTask:
        """Look up which documents are packed, and how, so that a worker can do it.

        Packs are samples of one length, filled with the documents of a corpus, or of a view, which
        is a selection of a corpus's documents. The worker does not read the settings of the
        project.

        Args:
            project: The project.
            name: Name of the packs, such as "web-packs-2048".

        Raises:
            MissingError: The documents have not been tokenized yet.
        """
        config = project.config
        source = unpacked_node(config, config.packs[name].of)
        dataset = require(project, source.stage, source.key)  # its current version
        corpus = base_of(config.derived, name)  # also if the packs are of a view of it
        return _PackTask(
            recipe=PACKS.recipe(project, Key(corpus, name), {"dataset": dataset.digest}),
            dataset=dataset,
            prefix=_file_prefix(config, name, corpus),
        )

    @property
    def rules(self) -> PackingRules:
        """How documents are packed."""
        return PackingRules.of(self.recipe.options)

    def facts(self, counts: PackCounts) -> dict[str, Any]:
        """Return what is recorded about packs (samples of one length, filled with documents).

        For example, `{"packs": 31, "length": 2048, "tokens": 63488, "padding": 120, …}`. Commands
        show these numbers, and stages that read the packs need them.

        Args:
            counts: What the packs contain.
        """
        length = self.recipe.options["length"]
        return {
            "prefix": self.prefix,  # of the names of the files
            "corpus": corpus_of(self.dataset),  # from which the documents are
            "of": self.recipe.options["of"],  # the corpus, or a selection of its documents
            "length": length,
            "sequences": counts.packs,  # each pack is stored as a sequence of tokens
            "tokens": counts.packs * length,
            "dtype": self.dataset.facts["dtype"],
            **asdict(counts),  # documents, packs, pieces, padding and so on
        }


def _file_prefix(config: ProjectConfig, name: str, corpus: str) -> str:
    """Return how the files of packs are named, without an ending.

    Trainers expect names such as "web-packs-2048_text_document", where `text` is the key under
    which the raw documents have their text.

    Args:
        config: The settings of the project.
        name: Name of the packs, such as "web-packs-2048".
        corpus: The corpus that the documents are from.
    """
    text_key = config.documents_of(corpus).text_key
    return pair_name(config.tokenization.preset, name, text_key)


def _pack_if_missing(root: OutputRoot, task: _PackTask, progress: Progress) -> Manifest:
    """Write packs (samples of one length, filled with documents), in this process or on a worker.

    Args:
        root: Where the outputs of the project are stored.
        task: Which documents are packed, and how.
        progress: Shows how far the work is.

    Returns:
        A record of the packs. The caller makes them the current version.
    """
    # The dataset may be in a bucket. On a worker, its files are copied to a temporary folder, which
    # is deleted when this block ends.
    with root.in_task() as outputs:

        def write(folder: Path) -> Written:
            """Write the files of the packs into a folder, and return their counts and checksums."""
            return _write_files(outputs, task, folder, progress)

        # If packs with this recipe exist, `commit` returns them. Otherwise it calls `write` with a
        # temporary folder, and renames the folder when it is complete.
        return outputs.commit(task.recipe, write)


def _write_files(outputs: OutputRoot, task: _PackTask, folder: Path, progress: Progress) -> Written:
    """Write the three files of packs, which are samples of one length, filled with documents.

        .bin      the tokens of all packs
        .idx      where each pack starts
        pieces    a table which says from which documents each pack comes

    Args:
        outputs: Where the outputs of the project are stored.
        task: Which documents are packed, and how.
        folder: The folder. If the outputs are in a bucket, the .bin is uploaded instead.
        progress: Shows how far the work is.

    Returns:
        What the packs contain, and the checksum of the .bin.
    """
    dataset = open_source(outputs, task.dataset)
    writer = PackWriter(dataset, task.rules, task.recipe.name, progress)

    # `blocks` yields the tokens. While it does, it also writes the table of pieces, and counts.
    blocks = Hashed(writer.blocks(folder / PIECES_FILE))
    files = write_tokens(outputs, task.recipe, folder, f"{task.prefix}.bin", blocks)

    counts = writer.counts
    index = idx_path(folder / task.prefix)
    write_pack_idx(index, dataset.dtype, counts.packs, task.rules.pieces.length)
    return Written(task.facts(counts), files)


def planned_packs(project: Project, name: str, reader: LengthReader) -> Manifest:
    """Return what will be recorded about packs, before they are built, to plan a training run.

    Packs are samples of one length, filled with documents. How many there will be follows from the
    lengths of the documents. So a user can see how long the run will be.

    Args:
        project: The project.
        name: Name of the packs.
        reader: Gets the lengths of samples for the rest of the plan. It is given those of the
            packs, which it could not read yet.

    Returns:
        The record, a manifest. Facts that are not known before the packs are built are None. If the
        packs exist, it is their actual record.

    Raises:
        MissingError: The documents have not been tokenized yet.
    """
    task = _PackTask.of(project, name)
    existing = project.outputs.find(task.recipe)
    if existing is not None:
        return existing

    manifest = _planned_manifest(project, task)
    _suppose_lengths(reader, task, manifest)
    return manifest


def _suppose_lengths(reader: LengthReader, task: _PackTask, manifest: Manifest) -> None:
    """Give a reader the lengths of packs whose index file, which has them, is not written yet.

    Args:
        reader: Gets the lengths, by the path that the index file will have.
        task: Which documents will be packed, and how.
        manifest: Manifest of the packs, with planned counts.
    """
    path_without_ending = str(manifest.folder / task.prefix)
    tokens_per_pack = task.rules.pieces.length
    # [2048, 2048, 2048]: all packs have one length, so this takes the memory of a single number.
    pack_lengths = np.broadcast_to(np.int32(tokens_per_pack), manifest.facts["packs"])
    reader.suppose(path_without_ending, pack_lengths)


def _planned_manifest(project: Project, task: _PackTask) -> Manifest:
    """Return the manifest that packs will have: a record of settings and planned counts.

    Args:
        project: The project. Its outputs say in which folder the packs will be.
        task: Which documents are packed, and how.
    """
    facts = _planned_facts(task)
    return Manifest(
        folder=project.outputs.place(task.recipe),
        recipe=to_plain(task.recipe),
        digest=task.recipe.digest,
        facts=dict(sorted(facts.items())),  # the order in which a stored manifest is read
        files={},
        access=project.outputs.access,
    )


def _planned_facts(task: _PackTask) -> dict[str, Any]:
    """Return what packs will contain, computed from the lengths of the documents alone.

    For example, `{"packs": 31, "padding": 120, "pieces": 140, …}`. Packs are samples of one length,
    filled with documents or pieces of them.

    With `tail: carry`, a pack with room at its end is filled up with the start of a document of the
    next pack. So how many documents are cut in pieces depends on which pack is the next one. The
    packs are only shuffled when they are built, so these counts are None here.

    Args:
        task: Which documents are packed, and how.
    """
    dataset = open_dataset(task.dataset, is_sampled=True)  # only the lengths are read
    lengths = document_lengths(dataset.sequence_lengths, dataset.document_indices)
    planned = plan_counts(lengths, task.rules)
    facts = task.facts(planned.counts)
    if task.rules.tail == "carry":
        facts["pieces"] = None
        facts["cut_documents"] = None
        facts["cut_tokens"] = None
    return facts
