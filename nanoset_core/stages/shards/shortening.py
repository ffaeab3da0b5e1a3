"""Make a shard without some of its documents from the shard itself.

A purge replaces shards with erased documents in this way: nothing is tokenized, and no text is
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from nanoset_core.stages.shards.one_shard import BIN, DOCUMENTS, REJECTS, TOKENS
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.store import Store, Stored


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
    """Write a copy of a shard, the tokens of a part of a corpus, without some of its documents.

    If a user erases documents, this is much faster than tokenizing the text again:

        document      0      1      2
        tokens        5 9    7 2    8
        without 1     5 9           8

    Args:
        shard: The shard with all documents, as this process can reach its files.
        task: Says which documents to leave out.
        folder: An empty folder, in which the files of the copy are created.

    Returns:
        The counts of the copy, and the sha256 of each file.
    """
    n_documents = shard.facts["documents"]
    is_kept = _mask_without(task.rows, n_documents)
    n_sequences = _copy_tokens(shard, is_kept, folder)

    # From a bucket, the table is downloaded now: the disk may have no room for tokens and table.
    document_table = DocumentRows(shard.path(DOCUMENTS), n_documents)
    copy_without(document_table, task.rows, folder / DOCUMENTS, files=task.files)
    _copy_rejected_lines(shard, folder)

    removed_lengths = _lengths_of_removed(document_table, is_kept)
    facts = _shortened_facts(shard, removed_lengths, n_sequences)
    file_names = (BIN, f"{TOKENS}.idx", DOCUMENTS, REJECTS)
    return Written(facts, {name: sha256_file(folder / name) for name in file_names})


def _mask_without(removed: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    """Return an array that is True except at some indices.

    Of 3 documents without the index 1: [True, False, True].

    Args:
        removed: Indices of the False values, shape (n_removed,).
        size: Length of the array.

    Returns:
        bool, shape (size,).
    """
    mask = np.ones(size, np.bool_)
    mask[removed] = False
    return mask


def _copy_tokens(shard: Manifest, is_kept: NDArray[np.bool_], folder: Path) -> int:
    """Copy the tokens of some documents of a shard, with an index of their sequences.

    A document is stored as one or more sequences of tokens. To copy the documents 0 and 2:

        document          0    1    1    2
        sequence          0    1    2    3
        is copied         yes  no   no   yes

    Args:
        shard: The shard whose tokens are copied.
        is_kept: Whether each document is copied, shape (n_documents,): here [True, False, True].
        folder: The folder of the copies, tokens.bin and tokens.idx.

    Returns:
        The number of sequences that were copied: here 2.
    """
    index = read_idx(shard.path(f"{TOKENS}.idx"))
    sequences_per_document = np.diff(index.document_indices)  # (n_documents,) [1, 2, 1]
    is_kept_sequence = np.repeat(is_kept, sequences_per_document)  # (n_sequences,)

    with (folder / BIN).open("wb") as token_file:
        token_file.writelines(_bytes_of_sequences(shard, index, is_kept_sequence))

    kept_lengths = index.sequence_lengths[is_kept_sequence]
    kept_per_document = sequences_per_document[is_kept]  # [1, 1]
    first_sequences = np.append(0, np.cumsum(kept_per_document))  # [0, 1, 2]
    with (folder / f"{TOKENS}.idx").open("wb") as index_file:
        write_idx(index_file, index.dtype, kept_lengths, first_sequences)
    return len(kept_lengths)


def _copy_rejected_lines(shard: Manifest, folder: Path) -> None:
    """Copy the list of the lines of text that could not be tokenized when a shard was made."""
    (folder / REJECTS).write_bytes(shard.path(REJECTS).read_bytes())


def _lengths_of_removed(table: DocumentRows, is_kept: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the tokens of each document that is left out, shape (n_removed,).

    For documents of 50, 30 and 20 tokens, of which the second is left out: [30].

    Args:
        table: The table of all documents of a shard, with their lengths.
        is_kept: Whether each document is kept, shape (n_documents,): [True, False, True].
    """
    removed_lengths = []
    for first_row, lengths in table.lengths():
        is_kept_in_group = is_kept[first_row : first_row + len(lengths)]
        removed_lengths.append(lengths[~is_kept_in_group])
    return np.concatenate(removed_lengths)


def _shortened_facts(
    shard: Manifest, removed_lengths: NDArray[np.int32], n_sequences: int
) -> dict[str, Any]:
    """Return the counts for the manifest of a shard from which documents were removed.

    From 900 documents with 230,000 tokens, two of 100 and 150 tokens are removed:

        {"documents": 898, "tokens": 229750, "purged": 2, …}

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

    Consecutive sequences are read together. For example:

        sequence      0      1      2      3
        first byte    0    100    150    400        the last one ends at 500
        is kept     yes    yes     no    yes        the bytes 0 to 150, and 400 to 500, are read

    Args:
        shard: The shard whose tokens are read.
        index: Its index, which says where each sequence starts.
        is_kept: Which sequences to yield, shape (n_sequences,).

    Raises:
        MissingError: The file with the tokens was deleted.
    """
    tokens = _stored_tokens(shard)
    bounds = np.append(index.sequence_pointers, tokens.range.size)  # [0, 100, 150, 400, 500]
    for first, stop in _runs_of_true(is_kept):  # (0, 2) and (3, 4)
        yield from tokens.blocks(int(bounds[first]), int(bounds[stop]))


class _StoredTokens(NamedTuple):
    """Where the tokens of a shard are stored: in a file of their own, or in a part of another."""

    store: Store
    range: Stored
    """The range of bytes with the tokens, in a file of this store."""

    def blocks(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield some of the tokens as they are stored, block by block.

        Args:
            start: First byte to read, counted from the start of the shard's tokens.
            stop: End of the bytes to read, counted in the same way.
        """
        byte_range = replace(self.range, begin=self.range.begin + start, size=stop - start)
        yield from self.store.blocks(byte_range)


def _stored_tokens(shard: Manifest) -> _StoredTokens:
    """Find where the tokens of a shard are stored.

        a file of its own                  shards/web/3f9c…/tokens.bin
        or, to save space, a range of      datasets/web/77cd…/web.bin, bytes 4096 to 6000
        the .bin of a dataset

    Args:
        shard: Manifest of the shard, which has the tokens of a part of a corpus.

    Raises:
        MissingError: The file with the tokens was deleted.
    """
    _download_own_tokens(shard)
    path, first_byte = shard.place(BIN)  # such as datasets/web/77cd…/web.bin, and 4096
    store, name = shard.access.stored_at(path, as_copy=True)
    stored_file = store.stat(name)
    if stored_file is None:
        raise MissingError(
            "the tokens of a shard were deleted", where=path, remedy="run `nanoset build`"
        )
    byte_range = replace(stored_file, begin=first_byte, size=shard.files[BIN].size)
    return _StoredTokens(store, byte_range)


def _download_own_tokens(shard: Manifest) -> None:
    """Copy the tokens of a shard from a bucket to this machine, if they are a file of their own.

    This pays off because almost all of them are read. If they are a range of a dataset's file,
    which is much larger, nothing is copied.

    Args:
        shard: Manifest of the shard. If it is on this machine, nothing is done.
    """
    if not shard.files[BIN].is_in_other_output:
        shard.path(BIN)  # makes the copy


def _runs_of_true(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (start, stop) of each run of consecutive true values.

    For example, [True, True, False, True] has the runs (0, 2) and (3, 4).
    """
    # With a false value on both sides, the mask changes at the start and the stop of each run.
    padded = np.concatenate([[False], mask, [False]])
    changes = np.flatnonzero(np.diff(padded)).tolist()
    return list(zip(changes[::2], changes[1::2], strict=True))
