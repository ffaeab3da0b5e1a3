"""Is a .bin/.idx pair whole, and does it hold what was promised?"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import CHUNK_SEQUENCES, HEADER, Tokens, bin_path, idx_path, pointer_chunks
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.pieces import PieceDigest
from nanoset_core.verification.parts import Runner, done_here
from nanoset_core.verification.report import Report
from nanoset_core.verification.tokens import (
    REMEDY,
    ByteCheck,
    Promise,
    Stranger,
    TokenCheck,
    Unframed,
    byte_ranges,
    first_stranger,
    report_stranger,
    report_unframed,
    token_ranges,
)

QUICK_TOKENS = 1 << 24
"""Datasets of no more tokens are always read whole."""
QUICK_SEQUENCES = 1 << 16
_QUICK_PIECES = 256


def verify_dataset(
    prefix: str | os.PathLike[str],
    *,
    promise: Promise | None = None,
    deep: bool = False,
    output: str | None = None,
    access: FileAccess | None = None,
    pieces: Sequence[PieceDigest] = (),
    run: Runner = done_here,
) -> Report:
    """Check a .bin/.idx pair.

    The .idx is read whole: header, lengths, pointers (each where the sequence before it ends), documents. The .bin is
    read whole with `deep`, or when it has no more than 16 Mi tokens: once, where it is stored, in ranges that are
    looked at side by side. Otherwise it is read at 256 places and at the ends of 65,536 sequences, spread evenly; where
    it does not lie on this machine, at those of the sequences within the 256 places. Memory is some 40 MiB for each of
    at most eight ranges, whatever the size, and 64 MiB for documents that are looked for twice.

    Args:
        prefix: path without .bin and .idx.
        promise: what the dataset must hold.
        deep: read every token.
        output: how the report names it; default the prefix.
        access: how its files are reached, where it lies below an output root.
        pieces: digests of what the .bin was joined of, which `deep` compares.
        run: has the ranges looked at.
    """
    report, promise = Report(output or os.fspath(prefix)), promise or Promise()
    dataset: MMapIndexedDataset | None = None
    with report.catching(REMEDY):
        dataset = MMapIndexedDataset.below(access, os.fspath(prefix), validate=True)
    if dataset is None or not _check_index(report, dataset, promise):
        if deep and pieces and access is not None:
            report.include(verify_pieces(prefix, pieces, report.output, access, run))
        return report
    if pieces and (total := sum(piece.size for piece in pieces)) != dataset.bin_bytes:
        report.error(
            "the pieces of a file are not all of it",
            where=bin_path(prefix),
            found=f"{total:,} bytes",
            expected=f"{dataset.bin_bytes:,} bytes",
            remedy=REMEDY,
        )
        pieces = ()
    if deep or dataset.token_count <= QUICK_TOKENS:
        with report.catching(REMEDY):
            tokens = TokenCheck.of(dataset, promise, report.output, as_copies=not deep)
            report.include(run(tokens, token_ranges(dataset, pieces if deep else ())))
    else:
        _check_places(report, dataset, promise)
    return report


def verify_pieces(
    prefix: str | os.PathLike[str], pieces: Sequence[PieceDigest], output: str, access: FileAccess, run: Runner
) -> Report:
    """Compare a .bin with the digests of what it was joined of, whatever its index says; arguments as above."""
    report = Report(output)
    with report.catching(REMEDY):
        report.include(run(ByteCheck(output, *access.stored_at(bin_path(prefix))), byte_ranges(pieces)))
    return report


def _check_index(report: Report, dataset: MMapIndexedDataset, promise: Promise) -> bool:
    """Whether the index tells where the tokens of each sequence lie."""
    _check_counts(report, dataset, promise)
    if not _check_pointers(report, dataset):
        return False
    if dataset.dtype.kind not in "iu":
        where = idx_path(dataset.prefix)
        report.error("the tokens are no integers", where=where, found=dataset.dtype.name, expected="an integer type")
        return False
    return True


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
                remedy=REMEDY,
            )
    if promise.dtype not in (None, dataset.dtype.name):
        report.error(
            "the tokens have another type than the tokenizer asks for",
            where=f"{idx_path(dataset.prefix)}, byte 17",
            found=dataset.dtype.name,
            expected=promise.dtype,
            remedy=REMEDY,
        )
    size = dataset.bin_bytes
    if size != tokens * dataset.dtype.itemsize:
        report.error(
            "the .bin is not as long as its sequences",
            where=bin_path(dataset.prefix),
            found=f"{size:,} bytes",
            expected=f"{tokens * dataset.dtype.itemsize:,} bytes, for {tokens:,} tokens of {dataset.dtype.name}",
            remedy=REMEDY,
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
                remedy=REMEDY,
            )
            return False
    return True


def spread_chunks(total: int) -> Iterator[tuple[int, int]]:
    """(begin, end excl) of evenly spread pieces of more than 16 Mi tokens, the first and the last among them."""
    size = QUICK_TOKENS // _QUICK_PIECES
    for piece in range(_QUICK_PIECES):
        begin = (total - size) * piece // (_QUICK_PIECES - 1)
        yield begin, begin + size


def _check_places(report: Report, dataset: MMapIndexedDataset, promise: Promise) -> None:
    """Look at evenly spread tokens of a large dataset."""
    size = dataset.dtype.itemsize
    places = np.array(list(spread_chunks(dataset.token_count)), np.int64)
    tokens = dataset.tokens_for(*(places.T * size))
    greatest, read = -1, 0
    for begin, end in places.tolist():
        part = tokens[begin:end]
        read += len(part)
        low, high = int(part.min()), int(part.max())
        greatest = max(greatest, high)
        if (at := first_stranger(part, low, high, promise.max_id)) is not None:
            stranger = Stranger((begin + at) * size, sequence_of(dataset, begin + at), int(part[at]))
            report_stranger(report, os.fspath(bin_path(dataset.prefix)), stranger, promise)
            break
    report.figures["tokens_read"] = read
    report.figures["greatest_id"] = greatest
    _check_framing(report, dataset, tokens, places, promise)


def sequence_of(dataset: MMapIndexedDataset, token: int) -> int:
    """Which sequence holds a token of the .bin."""
    return bisect_right(dataset.sequence_pointers, token * dataset.dtype.itemsize) - 1


def spread_rows(count: int, wanted: int) -> NDArray[np.int64]:
    """At most `wanted` of `count` rows, evenly spread, the first and the last among them."""
    if count <= wanted:
        return np.arange(count, dtype=np.int64)
    return np.arange(wanted, dtype=np.int64) * (count - 1) // max(wanted - 1, 1)


def _check_framing(
    report: Report, dataset: MMapIndexedDataset, tokens: Tokens, places: NDArray[np.int64], promise: Promise
) -> None:
    extra = len(promise.before) + len(promise.after)
    for rows in _framed_rows(dataset, places) if extra else ():
        lengths = dataset.sequence_lengths[rows].astype(np.int64)
        starts = dataset.sequence_pointers[rows] // dataset.dtype.itemsize
        wrong = lengths < extra
        if not wrong.any():
            for place, token in enumerate(promise.before):
                wrong |= tokens[starts + place] != token
            for place, token in enumerate(promise.after):
                wrong |= tokens[starts + lengths - len(promise.after) + place] != token
        if wrong.any():
            first = int(rows[np.argmax(wrong)])
            found = dataset[first]
            ends = f"{found[: len(promise.before)].tolist()} … {found[len(found) - len(promise.after) :].tolist()}"
            place = int(dataset.sequence_pointers[first])
            unframed = Unframed(place, first, ends, int(wrong.sum()))
            report_unframed(report, os.fspath(bin_path(dataset.prefix)), unframed, promise)
            return


def _framed_rows(dataset: MMapIndexedDataset, places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Sequences whose ends are looked at, some at a time."""
    if dataset.is_here:
        yield spread_rows(len(dataset), QUICK_SEQUENCES)
        return
    for begin, end in places.tolist():
        # The last one that begins in the place may end behind it.
        size = dataset.dtype.itemsize
        first, last = (bisect_left(dataset.sequence_pointers, token * size) for token in (begin, end))
        yield np.arange(first, last - 1, dtype=np.int64)
