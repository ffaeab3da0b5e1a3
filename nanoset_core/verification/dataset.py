"""Is a .bin/.idx pair whole, and does it hold what was promised?"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import CHUNK_SEQUENCES, HEADER, Tokens, bin_path, idx_path, pointer_chunks
from nanoset_core.storage.access import FileAccess
from nanoset_core.verification.duplicates import duplicate_share
from nanoset_core.verification.report import Report

CHUNK_TOKENS = 1 << 20
QUICK_TOKENS = 1 << 24
"""Datasets of no more tokens are always read whole."""
QUICK_SEQUENCES = 1 << 16
_QUICK_PIECES = 256
_REMEDY = "write the dataset again (`nanoset build`, or `nanoset tokenize`)"


@dataclass(frozen=True, slots=True)
class Promise:
    """What is known of a dataset's tokens beforehand; None where nothing is."""

    max_id: int | None = None
    """Greatest id of the vocabulary."""
    dtype: str | None = None
    """Of the .bin."""
    before: tuple[int, ...] = ()
    """Ids at the beginning of every sequence."""
    after: tuple[int, ...] = ()
    """Ids at the end of every sequence, such as the end-of-document token."""
    documents: int | None = None
    sequences: int | None = None
    tokens: int | None = None


def verify_dataset(
    prefix: str | os.PathLike[str],
    *,
    promise: Promise | None = None,
    deep: bool = False,
    output: str | None = None,
    access: FileAccess | None = None,
) -> Report:
    """Check a .bin/.idx pair.

    The .idx is read whole: header, lengths, pointers (each where the sequence before it ends), documents. The .bin is
    read whole with `deep`, or when it has no more than 16 Mi tokens; otherwise at 256 places and at the ends of 65,536
    sequences, spread evenly; where it does not lie on this machine, at those of the sequences within the 256 places.
    Memory is a few MiB whatever the size.

    Args:
        prefix: path without .bin and .idx.
        promise: what the dataset must hold.
        deep: read every token.
        output: how the report names it; default the prefix.
        access: how its files are reached, where it lies below an output root.
    """
    report, promise = Report(output or os.fspath(prefix)), promise or Promise()
    dataset: MMapIndexedDataset | None = None
    with report.catching(_REMEDY):
        dataset = MMapIndexedDataset.below(access, os.fspath(prefix), validate=True)
    if dataset is None:
        return report
    _check_counts(report, dataset, promise)
    if not _check_pointers(report, dataset):
        return report
    if dataset.dtype.kind not in "iu":
        report.error(
            "the tokens are no integers", where=idx_path(prefix), found=dataset.dtype.name, expected="an integer type"
        )
        return report
    whole = deep or dataset.token_count <= QUICK_TOKENS
    _fetch(dataset, whole)
    _check_ids(report, dataset, promise, whole)
    _check_framing(report, dataset, promise, whole)
    if whole:
        report.figures["duplicate_documents"] = round(duplicate_share(dataset), 6)
    return report


def _check_counts(report: Report, dataset: MMapIndexedDataset, promise: Promise) -> None:
    lengths = dataset.sequence_lengths
    tokens = sum(
        int(lengths[begin : begin + CHUNK_SEQUENCES].sum(dtype=np.int64))
        for begin in range(0, len(lengths), CHUNK_SEQUENCES)
    )
    counts = {"documents": len(dataset.document_indices) - 1, "sequences": len(dataset), "tokens": tokens}
    report.figures.update(counts)
    for name, count in counts.items():
        if (expected := getattr(promise, name)) not in (None, count):
            report.error(
                f"the .idx has another number of {name} than its manifest",
                where=idx_path(dataset.prefix),
                found=f"{count:,}",
                expected=f"{expected:,}",
                remedy=_REMEDY,
            )
    if promise.dtype not in (None, dataset.dtype.name):
        report.error(
            "the tokens have another type than the tokenizer asks for",
            where=f"{idx_path(dataset.prefix)}, byte 17",
            found=dataset.dtype.name,
            expected=promise.dtype,
            remedy=_REMEDY,
        )
    size = dataset.bin_bytes
    if size != tokens * dataset.dtype.itemsize:
        report.error(
            "the .bin is not as long as its sequences",
            where=bin_path(dataset.prefix),
            found=f"{size:,} bytes",
            expected=f"{tokens * dataset.dtype.itemsize:,} bytes, for {tokens:,} tokens of {dataset.dtype.name}",
            remedy=_REMEDY,
        )


def _check_pointers(report: Report, dataset: MMapIndexedDataset) -> bool:
    """Whether every sequence begins where the one before it ends."""
    pointers = dataset.sequence_pointers
    for begin, expected in pointer_chunks(dataset.sequence_lengths, dataset.dtype.itemsize):
        wrong = pointers[begin : begin + len(expected)] != expected
        if wrong.any():
            at = int(np.argmax(wrong))
            report.error(
                f"sequence {begin + at} does not begin where the one before it ends",
                where=f"{idx_path(dataset.prefix)}, byte {HEADER.size + 4 * len(pointers) + 8 * (begin + at)}",
                found=f"byte {int(pointers[begin + at])} of the .bin",
                expected=f"byte {int(expected[at])}",
                remedy=_REMEDY,
            )
            return False
    return True


def spread_chunks(total: int, whole: bool) -> Iterator[tuple[int, int]]:
    """(begin, end excl) of token ranges to read: all, or evenly spread pieces with the first and last tokens."""
    if whole:
        yield from ((begin, min(begin + CHUNK_TOKENS, total)) for begin in range(0, total, CHUNK_TOKENS))
        return
    size = QUICK_TOKENS // _QUICK_PIECES
    for piece in range(_QUICK_PIECES):
        begin = (total - size) * piece // (_QUICK_PIECES - 1)
        yield begin, begin + size


def _fetch(dataset: MMapIndexedDataset, whole: bool) -> None:
    """See to it that all that is looked at below can be read."""
    pieces = np.array(list(spread_chunks(dataset.token_count, whole)), np.int64).reshape(-1, 2)
    dataset.tokens_for(*(pieces.T * dataset.dtype.itemsize))


def _check_ids(report: Report, dataset: MMapIndexedDataset, promise: Promise, whole: bool) -> None:
    read, greatest = 0, -1
    limit, tokens = promise.max_id, _fetched(dataset)
    for begin, end in spread_chunks(len(tokens), whole):
        part = tokens[begin:end]
        low, high = int(part.min()), int(part.max())
        read, greatest = read + len(part), max(greatest, high)
        if low < 0 or (limit is not None and high > limit):
            wrong = (part < 0) | (part > (high if limit is None else limit))
            at = begin + int(np.argmax(wrong))
            report.error(
                "a token is not in the vocabulary",
                where=f"{bin_path(dataset.prefix)}, byte {at * dataset.dtype.itemsize} "
                f"(sequence {sequence_of(dataset, at)})",
                found=f"id {int(tokens[at])}",
                expected="0 or more" if limit is None else f"0 to {limit}",
                remedy="build again with the tokenizer that made the data, or " + _REMEDY,
            )
            break
    report.figures["tokens_read"] = read
    report.figures["greatest_id"] = greatest


def sequence_of(dataset: MMapIndexedDataset, token: int) -> int:
    """Which sequence holds a token of the .bin."""
    return bisect_right(dataset.sequence_pointers, token * dataset.dtype.itemsize) - 1


def spread_rows(count: int, wanted: int) -> NDArray[np.int64]:
    """At most `wanted` of `count` rows, evenly spread, the first and the last among them."""
    if count <= wanted:
        return np.arange(count, dtype=np.int64)
    return np.arange(wanted, dtype=np.int64) * (count - 1) // max(wanted - 1, 1)


def _check_framing(report: Report, dataset: MMapIndexedDataset, promise: Promise, whole: bool) -> None:
    extra = len(promise.before) + len(promise.after)
    if not extra:
        return
    tokens = _fetched(dataset)
    for chunk in _framed_rows(dataset, whole):
        lengths = dataset.sequence_lengths[chunk].astype(np.int64)
        starts = dataset.sequence_pointers[chunk] // dataset.dtype.itemsize
        wrong = lengths < extra
        if not wrong.any():
            for place, token in enumerate(promise.before):
                wrong |= tokens[starts + place] != token
            for place, token in enumerate(promise.after):
                wrong |= tokens[starts + lengths - len(promise.after) + place] != token
        if wrong.any():
            _report_framing(report, dataset, promise, int(chunk[np.argmax(wrong)]), int(wrong.sum()))
            return


def _framed_rows(dataset: MMapIndexedDataset, whole: bool) -> Iterator[NDArray[np.int64]]:
    """Sequences whose ends are looked at, some at a time."""
    if whole:
        for begin in range(0, len(dataset), CHUNK_SEQUENCES):
            yield np.arange(begin, min(begin + CHUNK_SEQUENCES, len(dataset)), dtype=np.int64)
    elif dataset.is_here:
        yield spread_rows(len(dataset), QUICK_SEQUENCES)
    else:
        for begin, end in spread_chunks(dataset.token_count, whole):
            # The last one that begins in the piece may end behind it.
            first, last = np.searchsorted(dataset.sequence_pointers, np.array([begin, end]) * dataset.dtype.itemsize)
            yield np.arange(first, last - 1, dtype=np.int64)


def _fetched(dataset: MMapIndexedDataset) -> Tokens:
    """The tokens, of which those can be read that were fetched."""
    return dataset.tokens_for(np.empty(0, np.int64), np.empty(0, np.int64))


def _report_framing(report: Report, dataset: MMapIndexedDataset, promise: Promise, sequence: int, count: int) -> None:
    tokens = dataset[sequence]
    ends = f"{tokens[: len(promise.before)].tolist()} … {tokens[len(tokens) - len(promise.after) :].tolist()}"
    more = f", and {count - 1:,} more" if count > 1 else ""
    place = int(dataset.sequence_pointers[sequence])
    report.error(
        "a sequence does not begin and end with the tokens that it should",
        where=f"{bin_path(dataset.prefix)}, byte {place} (sequence {sequence}{more})",
        found=ends,
        expected=f"{list(promise.before)} … {list(promise.after)}",
        remedy=_REMEDY + ", with the end-of-document token (append_eod)",
    )
