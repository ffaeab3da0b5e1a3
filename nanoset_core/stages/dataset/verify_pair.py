"""Verify a .bin/.idx pair: check its index, and that its tokens have the expected properties.

The .bin contains the tokens of all sequences, and the .idx says where each sequence begins. For
example, if the .idx lists sequences of 3 and 5 tokens of 2 bytes, the .bin must have 16 bytes; and
with an end-of-document token, both must end with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.ids import check_all_ids
from nanoset_core.formats.indexed.layout import (
    CHUNK_SEQUENCES,
    bin_path,
    idx_path,
    not_back_to_back,
)
from nanoset_core.formats.indexed.stream import fills_bin, stream_of
from nanoset_core.outputs.manifest import StoredManifest
from nanoset_core.outputs.receipts import PAIR_RECEIPT_ENDING, read_command_receipt
from nanoset_core.stages.dataset.named_pair import view_manifest
from nanoset_core.stages.dataset.token_check import AT_ONCE, REMEDY, Expected, TokenCheck
from nanoset_core.stages.dataset.token_ranges import (
    QUICK_TOKENS,
    TokenRange,
    spread_ranges,
    token_ranges,
)
from nanoset_core.stages.report import CheckRunner, DividedCheck, Report, run_here
from nanoset_core.stages.shards.repeats import MAX_DUPLICATE_FRACTION
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.copies.temporary import path_and_access
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.store import PieceDigest
from nanoset_core.tokenizers.files import TokenizerPath, tokenizer_path
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts

_WRITE_AGAIN = "write the pair again"
"""What the user should do about a wrong pair that no build made."""


def verify_pair(
    prefix: str | os.PathLike[str],
    *,
    expected: Expected | None = None,
    deep: bool = False,
    report: Report | None = None,
    access: FileAccess | None = None,
    pieces: Sequence[PieceDigest] = (),
    run: CheckRunner = run_here,
    is_view: bool = False,
) -> Report:
    """Check a .bin/.idx pair: the index, and the tokens of all or of some sequences.

    All of the .idx is read. All of the .bin is read, in ranges, if it has at most 16 Mi tokens or
    the check is deep. Otherwise 256 evenly spread chunks are read, and the ends of 256 sequences
    (two in a bucket). The check takes about 40 MiB of memory for each of at most eight ranges,
    whatever their size, and 64 MiB to count duplicates.

    Args:
        prefix: Prefix of the pair: path of the .bin without its ending.
        expected: The properties that its tokens must have; None for no expectations.
        deep: Read all of the .bin where it is stored, and compare it with `pieces`.
        report: Report to add to; None for a new one.
        access: Reads the files if they are below an output root.
        pieces: Digests of the pieces that a bucket joined to the .bin, if it did.
        run: Has ranges checked, in this process or on other machines.
        is_view: Whether its sequences may be anywhere in the .bin. Then no ranges are checked, but
            each sequence on its own.

    Returns:
        The report.
    """
    if report is None:
        report = Report(os.fspath(prefix))
    if expected is None:
        expected = Expected()

    dataset = _open_checked(report, prefix, access)
    if dataset is None:
        return report
    if is_view:
        _check_view(report, dataset, expected, deep=deep)
    elif _check_index(report, dataset, expected):
        if pieces and not _check_piece_sizes(report, dataset, pieces):
            pieces = ()
        with report.catching(remedy=REMEDY):  # adds an exception to the report as an error
            _check_tokens(report, dataset, expected, deep=deep, pieces=pieces, run=run)
    return report


def _open_checked(
    report: Report, prefix: str | os.PathLike[str], access: FileAccess | None
) -> MMapIndexedDataset | None:
    """Check the .idx of a .bin/.idx pair, and open the pair.

    Args:
        report: Gets an error if the .idx is damaged, or a file cannot be read.
        prefix: Prefix of the pair: path of the .bin without its ending.
        access: Reads the files of a project's outputs, which may be in a bucket; None for other
            files, which are on a disk.

    Returns:
        The dataset; None if the report got an error.
    """
    with report.catching(remedy=REMEDY):  # an error goes to the report, and ends the block
        return MMapIndexedDataset.below(access, os.fspath(prefix), validate=True)
    return None


def _check_tokens(
    report: Report,
    dataset: MMapIndexedDataset,
    expected: Expected,
    *,
    deep: bool,
    pieces: Sequence[PieceDigest],
    run: CheckRunner,
) -> None:
    """Check all tokens of a pair, or samples if it is large and the check is not deep.

    Args:
        report: Report on the pair, to which errors are added.
        dataset: The pair, whose .idx is valid.
        expected: The properties that its tokens must have.
        deep: Read all tokens, and compare them with `pieces`.
        pieces: Digests of the pieces that a bucket joined to the .bin, if it did.
        run: Has ranges checked, in this process or on other machines.
    """
    check = TokenCheck.of(dataset, expected, deep=deep)
    if deep:
        run(report, _divided(check, token_ranges(dataset, pieces)))
    elif dataset.token_count <= QUICK_TOKENS:
        run(report, _divided(check, token_ranges(dataset)))
    elif len(dataset) > 0:
        _check_samples(report, dataset, check)


def _check_view(
    report: Report, dataset: MMapIndexedDataset, expected: Expected, *, deep: bool
) -> None:
    """Check the counts and the tokens of a view, which is a selection of a corpus's documents.

    Its .bin has the tokens of the whole corpus: it is a link to that of the corpus. The .idx says
    where the sequences of the selected documents are in it, such as those of document 3, and then
    those of document 1.

    Args:
        report: Report on the view, to which errors are added.
        dataset: The view. Its .idx has been validated on its own.
        expected: The properties that its tokens must have.
        deep: Check the ids of all tokens, even if the view has more than 16 Mi tokens.
    """
    n_tokens = _count_tokens(dataset)
    _check_counts(report, dataset, n_tokens, expected)
    _check_dtype(report, dataset, expected)
    if not _check_is_integer(report, dataset):
        return

    with report.catching(remedy=REMEDY):
        reads_all_tokens = deep or n_tokens <= QUICK_TOKENS
        if reads_all_tokens:
            _check_ids_of_view(dataset, expected.max_id)

        # Up to 256 sequences begin and end with the tokens that they should.
        if len(dataset):
            TokenCheck.of(dataset, expected, deep=deep).check_ends(report, dataset)


def _check_ids_of_view(dataset: MMapIndexedDataset, max_id: int | None) -> None:
    """Check that each token of a view is in the vocabulary.

    Args:
        dataset: The view, which has some of the tokens in its .bin.
        max_id: Greatest id of the vocabulary; None if it is not known.

    Raises:
        InputError: A token is not in the vocabulary, or is negative.
    """
    if max_id is None:
        max_id = int(np.iinfo(dataset.dtype).max)  # so that only negative ids are wrong
    order = stream_of(dataset)  # the tokens of the view, in the order of its .idx
    check_all_ids(dataset, order, max_id)


def _check_samples(report: Report, dataset: MMapIndexedDataset, check: TokenCheck) -> None:
    """Check the tokens of a large dataset in evenly spread samples: reading all takes too long.

    A sample may be in the middle of a long document. So the first and last tokens of some documents
    are checked, too.

    Args:
        report: Report on the dataset, to which errors are added.
        dataset: The dataset, with at least one sequence.
        check: Knows what the tokens should be.
    """
    samples = list(spread_ranges(dataset))
    run_here(report, _divided(check, samples))  # in this process: there is little to read
    if report.passed:
        check.check_ends(report, dataset)


def _check_piece_sizes(
    report: Report, dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest]
) -> bool:
    """Check that the recorded pieces of a token file have as many bytes as the file.

    A bucket may have joined the file from smaller objects, its pieces, whose digests are recorded.
    They can only be compared with the file if it has nothing else.

    Args:
        report: Report on the dataset, to which errors are added.
        dataset: The dataset.
        pieces: Size and digest of each piece.

    Returns:
        Whether the sizes are equal.
    """
    return report.compare(
        "the pieces of a file are not all of it",
        where=bin_path(dataset.prefix),
        found=sum(piece.size for piece in pieces),
        expected=dataset.bin_bytes,
        remedy=REMEDY,
    )


def _divided(check: TokenCheck, ranges: Sequence[TokenRange]) -> DividedCheck:
    """Return a check of tokens that several processes can share: each part is a range of the .bin.

    Args:
        check: Checks one range, and adds up the outcomes of all.
        ranges: The ranges.
    """
    return DividedCheck(
        parts=ranges, check_part=check.check_range, add_outcomes=check.conclude, at_once=AT_ONCE
    )


def _check_index(report: Report, dataset: MMapIndexedDataset, expected: Expected) -> bool:
    """Check that an index fits the token file, and has the expected counts and type of token.

    The index (.idx) says where each sequence is in the token file (.bin). Sequences must follow one
    another without gaps. For example, two sequences of 3 and 5 tokens of 2 bytes:

        bytes of the sequences      bytes of the .bin
        0 to 6, 6 to 16             16                     fine
        0 to 6, 6 to 16             20                     an error: 4 bytes too many
        0 to 6, 4 to 14             16                     an error: they overlap

    Args:
        report: Report on the dataset, to which errors are added.
        dataset: The dataset. Its .idx has been validated on its own.
        expected: The counts and the type of token that it must have.

    Returns:
        Whether the tokens of each sequence can be read.
    """
    n_tokens = _count_tokens(dataset)
    expected_bytes = n_tokens * dataset.dtype.itemsize
    has_expected_size = expected_bytes == dataset.bin_bytes
    if has_expected_size and not fills_bin(dataset):  # the third case of the table
        report.add_exception(not_back_to_back(idx_path(dataset.prefix)))
        return False

    _check_counts(report, dataset, n_tokens, expected)
    _check_dtype(report, dataset, expected)
    is_complete = _check_size(report, dataset, expected_bytes)
    return is_complete and _check_is_integer(report, dataset)


def _check_dtype(report: Report, dataset: MMapIndexedDataset, expected: Expected) -> None:
    """Check that the tokens of a dataset have the type that the tokenizer requires.

    50,257 tokens require integers of two bytes (uint16), and 100,000 tokens integers of four.

    Args:
        report: Report on the pair, to which errors are added.
        dataset: The pair.
        expected: Its `dtype` is the name of the type, such as "uint16"; None if any will do.
    """
    report.compare(
        "the tokens have another type than the tokenizer requires",
        # The header of an .idx has the code of the type there.
        where=f"{idx_path(dataset.prefix)}, byte 17",
        found=dataset.dtype.name,
        expected=expected.dtype or dataset.dtype.name,
        remedy=REMEDY,
    )


def _check_size(report: Report, dataset: MMapIndexedDataset, expected_bytes: int) -> bool:
    """Check that a token file has as many bytes as the index says, and return whether it has.

    A file that is too short was probably truncated when the disk was full.

    Args:
        report: Report on the pair, to which errors are added.
        dataset: The pair.
        expected_bytes: Bytes of all sequences together, by the index.
    """
    return report.compare(
        "the .bin is not as long as its sequences",
        where=bin_path(dataset.prefix),
        found=f"{dataset.bin_bytes:,} bytes",
        expected=f"{expected_bytes:,} bytes",
        remedy=REMEDY,
    )


def _check_is_integer(report: Report, dataset: MMapIndexedDataset) -> bool:
    """Check that tokens are integers, such as uint16, and return whether they are.

    The format of the index also has codes for floating-point numbers, which cannot be tokens.

    Args:
        report: Report on the pair, to which an error is added.
        dataset: The pair.
    """
    is_integer = dataset.dtype.kind in "iu"
    if not is_integer:
        report.error(
            "the tokens are not integers",
            where=idx_path(dataset.prefix),
            found=dataset.dtype.name,
            expected="an integer type",
            remedy=REMEDY,
        )
    return is_integer


def _check_counts(
    report: Report, dataset: MMapIndexedDataset, n_tokens: int, expected: Expected
) -> None:
    """Check that a dataset has as many documents, sequences and tokens as were recorded.

    The .idx has the length of each sequence, and the first sequence of each document: [5, 3, 4] and
    [0, 1, 3] are 2 documents, 3 sequences and 12 tokens.

    Args:
        report: Report on the pair; the counts are added to its figures.
        dataset: The pair.
        n_tokens: Sum of the lengths of its sequences.
        expected: The counts in the manifest; None for unknown ones.
    """
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
    for name, expected_count in expected_counts.items():
        if expected_count is None:
            continue
        report.compare(
            f"the .idx has another number of {name} than its manifest",
            where=idx_path(dataset.prefix),
            found=counts[name],
            expected=expected_count,
            remedy=REMEDY,
        )


def _count_tokens(dataset: MMapIndexedDataset) -> int:
    """Return the sum of the lengths of all sequences."""
    # In chunks, since numpy copies what it adds up: the arrays of an .idx are not aligned.
    n_tokens = 0
    for start in range(0, len(dataset), CHUNK_SEQUENCES):
        lengths = dataset.sequence_lengths[start : start + CHUNK_SEQUENCES]
        n_tokens += int(lengths.sum(dtype=np.int64))
    return n_tokens


def verify_prefix(
    prefix: Location,
    tokenizer: TokenizerPath | None = None,
    eod: str | None = None,
    *,
    deep: bool = False,
) -> Report:
    """Check a .bin and .idx that do not belong to a project, such as data/web.bin and data/web.idx.

    If `nanoset tokenize` made them, they are also compared with its receipt, a file next to them. A
    view is compared with the manifest in its folder.

    Args:
        prefix: Prefix of the pair: path or address of the .bin without its ending.
        tokenizer: Tokenizer whose vocabulary must contain all ids; None if it is unknown.
        eod: Token of this tokenizer that must end every sequence.
        deep: Read all tokens, and compare checksums.
    """
    report = Report(str(prefix))
    view: StoredManifest | None = None
    receipt: Mapping[str, Any] = {}
    with report.catching(remedy=_WRITE_AGAIN):
        view = view_manifest(prefix)
        receipt = _tokenize_receipt(prefix)  # empty if `nanoset tokenize` did not make the pair
    if view is None:
        expected = _expected_of_receipt(receipt)  # such as 250,000 tokens of type uint16
        sha256_by_name = _recorded_sha256s(receipt)
    else:
        expected = Expected.of({"dtype": view.facts["dtype"]}, view.facts)
        sha256_by_name = {name: fact.sha256 for name, fact in view.files.items()}
    if tokenizer is not None:
        expected = _with_tokenizer(expected, tokenizer_path(tokenizer), eod)

    _verify_where_stored(report, prefix, expected, deep=deep, is_view=view is not None)
    if deep:
        _check_recorded_files(report, prefix, sha256_by_name)
    _check_recorded_lines(report, prefix, receipt)
    return report


def _verify_where_stored(
    report: Report, prefix: Location, expected: Expected, *, deep: bool, is_view: bool
) -> None:
    """Check a pair that may be in a bucket.

    If it is, copies of its files on this machine are checked. In the report, the addresses of the
    files then replace the paths of the copies.

    Args:
        report: Report on the pair.
        prefix: Prefix of the pair: path or address of the .bin without its ending.
        expected: The properties that its tokens must have.
        deep: Read all tokens.
        is_view: Whether it is a view, whose sequences may be anywhere in the .bin.
    """
    with report.catching(remedy=_WRITE_AGAIN), path_and_access(prefix) as (local_prefix, access):
        verify_pair(
            local_prefix,
            expected=expected,
            deep=deep,
            report=report,
            access=access,
            is_view=is_view,
        )
        report.with_places(local_prefix, prefix)


def _check_recorded_lines(report: Report, prefix: Location, receipt: Mapping[str, Any]) -> None:
    """Check that each line of the text became a document, or was skipped or rejected.

    1,000 lines may be 990 documents, 7 empty texts that were skipped, and 3 lines that were
    rejected since they are no JSON.

    Args:
        report: Report on the pair, to which errors are added.
        prefix: Prefix of the pair.
        receipt: The receipt next to the pair, with these counts; it may be empty.
    """
    facts = receipt.get("facts", {})
    if not facts:
        return
    n_accounted = facts["documents"] + facts["skipped"] + facts["rejected"]
    if facts["lines"] != n_accounted:
        report.error(
            "lines are not accounted for",
            where=f"{prefix}{PAIR_RECEIPT_ENDING}",
            remedy=_WRITE_AGAIN,
        )


def _expected_of_receipt(receipt: Mapping[str, Any]) -> Expected:
    """Return what is expected of a .bin and .idx, by the receipt that `nanoset tokenize` left.

        {"options": {"dtype": "uint16", …}, "facts": {"documents": 1000, "tokens": 250000, …}}

    Args:
        receipt: The receipt. If it is empty, nothing is expected.
    """
    expected = Expected.of(receipt.get("options", {}), receipt.get("facts", {}))
    return replace(expected, duplicates=MAX_DUPLICATE_FRACTION)


def _with_tokenizer(expected: Expected, tokenizer: TokenizerPath, eod: str | None) -> Expected:
    """Add what is expected of tokens that a certain tokenizer has made.

    For GPT-2's tokenizer, ids are at most 50,256, and with `--eod <|endoftext|>`, each sequence
    ends with the id 50,256.

    Args:
        expected: What is expected already, such as a number of tokens.
        tokenizer: Tokenizer whose vocabulary must contain all ids.
        eod: Token of this tokenizer that must end every sequence; None if any may.
    """
    max_id = tokenizer_facts(tokenizer).max_id
    if eod is None:
        return replace(expected, max_id=max_id)
    end_id = token_id(tokenizer, eod, "--eod")
    return replace(expected, max_id=max_id, after=(end_id,))


def _recorded_sha256s(receipt: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the sha256 of each file that `nanoset tokenize` recorded.

    Args:
        receipt: The receipt of a pair, such as `{"files": {"web.bin": {"sha256": "77cd…"}, …}}`;
            it may be empty.
    """
    return {name: fact["sha256"] for name, fact in receipt.get("files", {}).items()}


def _check_recorded_files(
    report: Report, prefix: Location, sha256_by_name: Mapping[str, str | None]
) -> None:
    """Check that files have the sha256 that was recorded; missing ones are skipped.

    Args:
        report: Report on the pair, to which errors are added.
        prefix: Prefix of the pair.
        sha256_by_name: Name of each file next to the prefix → its recorded sha256, or None if it
            was not computed.
    """
    for name, recorded_sha256 in sha256_by_name.items():
        if recorded_sha256 is None:
            continue
        sha256 = store_of(prefix.parent).sha256(name)
        if sha256 is not None:
            report.compare(
                "a file has other bytes than when it was written",
                where=prefix.with_name(name),
                found=f"sha256 {sha256}",
                expected=f"sha256 {recorded_sha256}",
                remedy=_WRITE_AGAIN,
            )


def _tokenize_receipt(prefix: Location) -> Mapping[str, Any]:
    """Return the receipt that `nanoset tokenize` wrote next to a .bin and .idx.

    Args:
        prefix: Path of the two files without their endings.

    Returns:
        The receipt, such as `{"nanoset": 1, "facts": {"documents": 1000, …}, …}`; empty if another
        tool made the files.
    """
    receipt = read_command_receipt(prefix.with_name(prefix.name + PAIR_RECEIPT_ENDING)) or {}
    is_ours = receipt.get("nanoset") == 1 and "facts" in receipt
    return receipt if is_ours else {}
