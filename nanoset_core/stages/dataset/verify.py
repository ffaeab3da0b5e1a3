"""Is a .bin/.idx pair whole, and does it hold what was expected of it?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import CHUNK_SEQUENCES, bin_path, idx_path, scattered
from nanoset_core.formats.indexed.stream import is_back_to_back
from nanoset_core.outputs.recorded import read_record
from nanoset_core.stages.dataset import verify_ranges as ranges
from nanoset_core.stages.dataset.verify_ranges import AT_ONCE, REMEDY, Expected, TokenCheck, spread_ranges, token_ranges
from nanoset_core.stages.report import Parts, Report, Run, run_here
from nanoset_core.stages.shards.preprocess import MANIFEST_ENDING
from nanoset_core.stages.shards.repeats import MAX_DUPLICATE_FRACTION
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.store import PieceDigest
from nanoset_core.storage.working_copies import room_beside
from nanoset_core.tokenizers.files import TokenizerPath, tokenizer_path
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts


def verify_dataset(
    prefix: str | os.PathLike[str],
    *,
    expected: Expected | None = None,
    deep: bool = False,
    report: Report | None = None,
    access: FileAccess | None = None,
    pieces: Sequence[PieceDigest] = (),
    run: Run = run_here,
) -> Report:
    """Check a .bin/.idx pair, which lies at a prefix, below an output root with `access`.

    The .idx is read whole: header, lengths, pointers, documents. The .bin is read whole with `deep`, which compares the
    pieces that it was joined of, or when it has no more than 16 Mi tokens: once, where it is stored, in ranges that
    `run` looks at. Otherwise the sequences in 256 evenly spread places are read, of longer ones a part, and the
    ends of 256 sequences (in a bucket, of two). Memory is some 40 MiB for each of at most eight ranges, whatever the
    size, and 64 MiB for counting duplicates.
    """
    report, expected = report or Report(os.fspath(prefix)), expected or Expected()
    dataset: MMapIndexedDataset | None = None
    with report.catching(REMEDY):
        dataset = MMapIndexedDataset.below(access, os.fspath(prefix), validate=True)
    if dataset is None or not _check_index(report, dataset, expected):
        return report
    size, what = sum(piece.size for piece in pieces), "the pieces of a file are not all of it"
    if pieces and not report.compare(what, bin_path(prefix), size, dataset.bin_bytes, REMEDY):
        pieces = ()
    with report.catching(REMEDY):
        check = TokenCheck.of(dataset, expected, deep=deep)
        if deep or dataset.token_count <= ranges.QUICK_TOKENS:
            parts = token_ranges(dataset, pieces if deep else ())
            run(report, Parts(check.look, parts, check.conclude, at_once=AT_ONCE))
        elif len(dataset):
            run_here(report, Parts(check.look, [*spread_ranges(dataset)], check.conclude, at_once=AT_ONCE))
            if report.passed:
                check.check_ends(report, dataset)
    return report


def _check_index(report: Report, dataset: MMapIndexedDataset, expected: Expected) -> bool:
    """Check the .idx; return whether it says where the integers of each sequence lie."""
    idx, lengths, dtype = idx_path(dataset.prefix), dataset.sequence_lengths, dataset.dtype
    if dtype.itemsize * int(lengths.sum(dtype=np.int64)) == dataset.bin_bytes and not is_back_to_back(dataset):
        report.note_error(scattered(idx))
        return False
    chunks = (lengths[begin : begin + CHUNK_SEQUENCES] for begin in range(0, len(lengths), CHUNK_SEQUENCES))
    tokens = sum(int(chunk.sum(dtype=np.int64)) for chunk in chunks)
    counts = {"documents": len(dataset.document_indices) - 1, "sequences": len(dataset), "tokens": tokens}
    report.figures.update(counts)
    for name, count in counts.items():
        if (wanted := getattr(expected, name)) is not None:
            report.compare(f"the .idx has another number of {name} than its manifest", idx, count, wanted, REMEDY)
    what = "the tokens have another type than the tokenizer asks for"
    report.compare(what, f"{idx}, byte 17", dtype.name, expected.dtype or dtype.name, REMEDY)
    found, wish = f"{dataset.bin_bytes:,} bytes", f"{tokens * dtype.itemsize:,} bytes"
    # Sequences do not overlap, as was checked at opening: where they are all of the .bin, there is no gap either.
    if not report.compare("the .bin is not as long as its sequences", bin_path(dataset.prefix), found, wish, REMEDY):
        return False
    is_integer, what = dtype.kind in "iu", "the tokens are no integers"
    return is_integer or report.compare(what, idx, dtype.name, "an integer type", REMEDY)


def verify_prefix(
    prefix: Location, tokenizer: TokenizerPath | None = None, eod: str | None = None, *, deep: bool = False
) -> Report:
    """Check a pair by itself, with what <prefix>.manifest.json says where `nanoset tokenize` left one.

    Ids must be of the tokenizer's vocabulary, and the token `eod` end every sequence, where these are given. Of a pair
    in a bucket the .idx is fetched, and of the tokens what is read; `deep`: all, and checksums are compared.
    """
    report, remedy = Report(str(prefix)), "write the pair again"
    noted = read_record(prefix.with_name(prefix.name + MANIFEST_ENDING)) or {}
    noted = noted if noted.get("nanoset") == 1 and "facts" in noted else {}
    facts = noted.get("facts", {})
    expected = replace(Expected.of(noted.get("options", {}), facts), duplicates=MAX_DUPLICATE_FRACTION)
    if tokenizer is not None:
        file = tokenizer_path(tokenizer)
        after = expected.after if eod is None else (token_id(file, eod, "--eod"),)
        expected = replace(expected, max_id=tokenizer_facts(file).max_id, after=after)
    with report.catching(remedy), room_beside(prefix) as (here, access):
        verify_dataset(here, expected=expected, deep=deep, report=report, access=access)
        report.with_places(here, prefix)
    for name, fact in noted.get("files", {}).items() if deep else ():
        if (digest := store_of(prefix.parent).sha256(name)) is not None:
            what, path = "a file has other bytes than when it was written", prefix.with_name(name)
            report.compare(what, path, f"sha256 {digest}", f"sha256 {fact['sha256']}", remedy)
    if facts and facts["lines"] != facts["documents"] + facts["skipped"] + facts["rejected"]:
        report.error("lines are not accounted for", f"{prefix}{MANIFEST_ENDING}", None, None, remedy)
    return report
