"""Verify a .bin/.idx pair: check its index, and that its tokens have the expected properties."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import (
    CHUNK_SEQUENCES,
    bin_path,
    idx_path,
    not_back_to_back,
)
from nanoset_core.formats.indexed.stream import fills_bin
from nanoset_core.outputs.recorded import read_record
from nanoset_core.stages.dataset.token_check import AT_ONCE, REMEDY, Expected, TokenCheck
from nanoset_core.stages.dataset.token_ranges import QUICK_TOKENS, spread_ranges, token_ranges
from nanoset_core.stages.report import Parts, Report, Run, run_here
from nanoset_core.stages.shards.preprocess_options import RECORD_ENDING
from nanoset_core.stages.shards.repeats import MAX_DUPLICATE_FRACTION
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.store import PieceDigest
from nanoset_core.storage.working_copies import room_beside
from nanoset_core.tokenizers.files import TokenizerPath, tokenizer_path
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts


def verify_pair(
    prefix: str | os.PathLike[str],
    *,
    expected: Expected | None = None,
    deep: bool = False,
    report: Report | None = None,
    access: FileAccess | None = None,
    pieces: Sequence[PieceDigest] = (),
    run: Run = run_here,
) -> Report:
    """Check a .bin/.idx pair.

    All of the .idx is read. All of the .bin is read, in ranges, if it has at most 16 Mi tokens or
    the check is deep. Otherwise 256 evenly spread chunks are read, and the ends of 256 sequences
    (two in a bucket). The check takes about 40 MiB of memory for each of at most eight ranges,
    whatever their size, and 64 MiB to count duplicates.

    Args:
        prefix: Prefix of the pair.
        expected: The properties that its tokens must have.
        deep: Read all of the .bin where it is stored, and compare it with `pieces`.
        report: Report to add to; None for a new one.
        access: Reaches the files if they are below an output root.
        pieces: Digests of the pieces that the .bin was joined from, if it was.
        run: Has ranges checked, in this process or on other machines.
    """
    if report is None:
        report = Report(os.fspath(prefix))
    if expected is None:
        expected = Expected()
    dataset: MMapIndexedDataset | None = None
    with report.catching(REMEDY):
        dataset = MMapIndexedDataset.below(access, os.fspath(prefix), validate=True)
    if dataset is None or not _check_index(report, dataset, expected):
        return report

    if pieces:
        is_whole = report.compare(
            "the pieces of a file are not all of it",
            bin_path(prefix),
            sum(piece.size for piece in pieces),
            dataset.bin_bytes,
            REMEDY,
        )
        if not is_whole:
            pieces = ()

    with report.catching(REMEDY):
        check = TokenCheck.of(dataset, expected, deep=deep)
        if deep or dataset.token_count <= QUICK_TOKENS:
            ranges = token_ranges(dataset, pieces if deep else ())
            run(report, Parts(check.look, ranges, check.conclude, at_once=AT_ONCE))
        elif len(dataset):
            ranges = list(spread_ranges(dataset))
            run_here(report, Parts(check.look, ranges, check.conclude, at_once=AT_ONCE))
            if report.passed:
                check.check_ends(report, dataset)
    return report


def _check_index(report: Report, dataset: MMapIndexedDataset, expected: Expected) -> bool:
    """Check the .idx, and that the .bin fits it.

    Returns:
        Whether the tokens of each sequence can be read.
    """
    index_path = idx_path(dataset.prefix)
    dtype = dataset.dtype
    n_tokens = 0
    for start in range(0, len(dataset), CHUNK_SEQUENCES):
        # In chunks, since numpy copies what it adds up: an .idx is not aligned.
        n_tokens += int(
            dataset.sequence_lengths[start : start + CHUNK_SEQUENCES].sum(dtype=np.int64)
        )
    if n_tokens * dtype.itemsize == dataset.bin_bytes and not fills_bin(dataset):
        report.note_error(not_back_to_back(index_path))
        return False

    counts = {
        "documents": len(dataset.document_indices) - 1,
        "sequences": len(dataset),
        "tokens": n_tokens,
    }
    report.figures.update(counts)
    expected_counts = {
        "documents": expected.documents,
        "sequences": expected.sequences,
        "tokens": expected.tokens,
    }
    for name, count in counts.items():
        expected_count = expected_counts[name]
        if expected_count is not None:
            what = f"the .idx has another number of {name} than its manifest"
            report.compare(what, index_path, count, expected_count, REMEDY)

    report.compare(
        "the tokens have another type than the tokenizer requires",
        f"{index_path}, byte 17",
        dtype.name,
        expected.dtype or dtype.name,
        REMEDY,
    )
    # Sequences do not overlap, which was checked when the dataset was opened. So if they are as
    # long as the .bin, there are no gaps either.
    is_filled = report.compare(
        "the .bin is not as long as its sequences",
        bin_path(dataset.prefix),
        f"{dataset.bin_bytes:,} bytes",
        f"{n_tokens * dtype.itemsize:,} bytes",
        REMEDY,
    )
    if not is_filled:
        return False
    if dtype.kind not in "iu":
        report.error(
            "the tokens are not integers", index_path, dtype.name, "an integer type", REMEDY
        )
        return False
    return True


def verify_prefix(
    prefix: Location,
    tokenizer: TokenizerPath | None = None,
    eod: str | None = None,
    *,
    deep: bool = False,
) -> Report:
    """Check a pair that is not an output of a project.

    If `nanoset tokenize` made the pair, it is also compared with `<prefix>.manifest.json`. Of a
    pair in a bucket, the .idx is downloaded, and the tokens that are read.

    Args:
        prefix: Prefix of the pair.
        tokenizer: Tokenizer whose vocabulary must contain all ids.
        eod: Token of this tokenizer that must end every sequence.
        deep: Read all tokens, and compare checksums.
    """
    remedy = "write the pair again"
    report = Report(str(prefix))
    record = _tokenize_record(prefix)
    facts = record.get("facts", {})
    expected = replace(
        Expected.of(record.get("options", {}), facts), duplicates=MAX_DUPLICATE_FRACTION
    )
    if tokenizer is not None:
        file = tokenizer_path(tokenizer)
        expected = replace(expected, max_id=tokenizer_facts(file).max_id)
        if eod is not None:
            expected = replace(expected, after=(token_id(file, eod, "--eod"),))

    with report.catching(remedy), room_beside(prefix) as (local_prefix, access):
        verify_pair(local_prefix, expected=expected, deep=deep, report=report, access=access)
        report.with_places(local_prefix, prefix)

    if deep:
        for name, fact in record.get("files", {}).items():
            sha256 = store_of(prefix.parent).sha256(name)
            if sha256 is not None:
                report.compare(
                    "a file has other bytes than when it was written",
                    prefix.with_name(name),
                    f"sha256 {sha256}",
                    f"sha256 {fact['sha256']}",
                    remedy,
                )
    if facts and facts["lines"] != facts["documents"] + facts["skipped"] + facts["rejected"]:
        report.error("lines are not accounted for", where=f"{prefix}{RECORD_ENDING}", remedy=remedy)
    return report


def _tokenize_record(prefix: Location) -> Mapping[str, Any]:
    """Return the record that `nanoset tokenize` wrote next to a pair.

    It is empty if another tool made the pair.
    """
    record = read_record(prefix.with_name(prefix.name + RECORD_ENDING)) or {}
    is_ours = record.get("nanoset") == 1 and "facts" in record
    return record if is_ours else {}
