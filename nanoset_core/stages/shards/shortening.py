"""Make a shard without some of its documents from the shard itself.

A purge replaces shards with erased documents in this way: nothing is tokenized, and no text is
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError
from nanoset_core.execution.progress import Amount
from nanoset_core.formats.indexed.layout import Index, read_idx, write_idx
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.stages.per_shard import PerShard, PerShardTask
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.document_table import copy_without
from nanoset_core.stages.shards.facts import ShardFacts, length_histogram
from nanoset_core.stages.shards.make import BIN, DOCUMENTS, REJECTS, TOKENS
from nanoset_core.storage.atomic import sha256_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortenTask(PerShardTask):
    """Makes a shard without some documents of another one.

    Its files are byte for byte those that tokenizing its range without the documents would give.
    """

    shard: Manifest
    """The shard with the documents."""
    files: Sequence[str]
    """Files of its range, in order."""
    rows: NDArray[np.int64]
    """Documents to leave out, ascending."""

    def write(self, folder: Path) -> Written:
        """Write the files of the shortened shard.

        Raises:
            MissingError, FormatError: A file of the other shard is missing or damaged.
        """
        return _write_shortened(self.root.rebase(self.shard), self, folder)


@dataclass(frozen=True, slots=True)
class ShortenedShards(PerShard[ShortenTask, None]):
    """Shards that are made from others; nothing of them is needed once they exist."""

    tasks: Sequence[ShortenTask]

    def shards(self) -> Iterable[ShortenTask]:
        """Return the task of each shard."""
        return self.tasks

    def recipe(self, shard: ShortenTask) -> Recipe:
        return shard.recipe

    def task(self, shard: ShortenTask, recipe: Recipe) -> ShortenTask:
        return shard

    def result(self, manifest: Manifest) -> None:
        """Keep nothing."""

    def amount(self, shard: ShortenTask, result: None) -> Amount:
        return Amount(1)


def _write_shortened(shard: Manifest, task: ShortenTask, folder: Path) -> Written:
    """Write a copy of a shard without some of its documents.

    Args:
        shard: The shard with all documents, as this process can reach its files.
        task: Says which documents to leave out.
        folder: An empty folder, in which the files of the copy are created.

    Returns:
        The counts of the copy, and the sha256 of each file.
    """
    index = read_idx(shard.path(f"{TOKENS}.idx"))
    sequence_counts = np.diff(index.document_indices)  # (n_documents,)
    is_kept = np.ones(len(sequence_counts), np.bool_)  # (n_documents,)
    is_kept[task.rows] = False
    is_kept_sequence = np.repeat(is_kept, sequence_counts)  # (n_sequences,)

    # The tokens.
    with (folder / BIN).open("wb") as file:
        for block in _bytes_of_sequences(shard, index, is_kept_sequence):
            file.write(block)

    # Their index: the length of each sequence, and the first sequence of each document.
    with (folder / f"{TOKENS}.idx").open("wb") as file:
        document_indices = np.append(0, np.cumsum(sequence_counts[is_kept]))
        write_idx(file, index.dtype, index.sequence_lengths[is_kept_sequence], document_indices)

    # The table of documents, and the rejected lines, which are the same.
    table = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    copy_without(table, task.rows, folder / DOCUMENTS, task.files)
    (folder / REJECTS).write_bytes(shard.path(REJECTS).read_bytes())

    facts = _shortened_facts(
        shard,
        removed_lengths=_lengths_of_removed(table, is_kept),
        n_sequences=int(is_kept_sequence.sum()),
    )
    digests = {}
    for name in (BIN, f"{TOKENS}.idx", DOCUMENTS, REJECTS):
        digests[name] = sha256_file(folder / name)
    return Written(facts, digests)


def _lengths_of_removed(table: DocumentRows, is_kept: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the tokens of each document that is left out, shape (n_removed,).

    Args:
        table: The table of all documents of a shard.
        is_kept: Whether each document is kept, shape (n_documents,).
    """
    removed_lengths = []
    for first_row, lengths in table.lengths():
        is_kept_in_group = is_kept[first_row : first_row + len(lengths)]
        removed_lengths.append(lengths[~is_kept_in_group])
    return np.concatenate(removed_lengths)


def _shortened_facts(
    shard: Manifest, removed_lengths: NDArray[np.int32], n_sequences: int
) -> dict[str, Any]:
    """Return the counts for the manifest of a shard without some documents.

    Args:
        shard: The shard with the documents.
        removed_lengths: Tokens of each document that is left out, shape (n_removed,).
        n_sequences: Sequences that remain.
    """
    before = ShardFacts.of(shard.facts)
    n_removed = len(removed_lengths)
    histogram = np.array(before.length_histogram) - length_histogram(removed_lengths)
    return {
        **shard.facts,  # also those that stay as they are, such as rejected lines
        "documents": before.documents - n_removed,
        "sequences": n_sequences,
        "tokens": before.tokens - int(removed_lengths.sum()),
        "length_histogram": histogram.tolist(),
        "purged": before.purged + n_removed,
    }


def _bytes_of_sequences(
    shard: Manifest, index: Index, is_kept: NDArray[np.bool_]
) -> Iterator[bytes]:
    """Yield the tokens of some sequences of a shard, as they are stored.

    Args:
        shard: The shard. Its tokens are a file, or a range of bytes in the .bin of a dataset.
        index: Its index, which says where each sequence starts.
        is_kept: Which sequences to yield, shape (n_sequences,).

    Raises:
        MissingError: The file with the tokens was deleted.
    """
    fact = shard.files[BIN]
    is_own_file = fact.within is None
    if is_own_file:
        shard.path(BIN)  # downloads it, if it is in a bucket only
    path, shard_start = shard.place(BIN)
    store, name = shard.access.stored_at(path, as_copy=True)
    stored = store.stat(name)
    if stored is None:
        raise MissingError(
            "the tokens of a shard were deleted", where=path, remedy="run `nanoset build`"
        )

    # Runs of consecutive sequences are read together. A run starts and stops where `is_kept`
    # changes; (n_runs, 2) first sequence of each run, and the one after its last.
    padded = np.concatenate([[False], is_kept, [False]])
    runs = np.flatnonzero(np.diff(padded)).reshape(-1, 2)

    byte_bounds = np.append(index.sequence_pointers, fact.size)  # (n_sequences + 1,)
    byte_ranges = byte_bounds[runs]  # (n_runs, 2) in the shard's tokens
    for start, stop in byte_ranges.tolist():
        yield from store.blocks(replace(stored, begin=shard_start + start, size=stop - start))
