"""Verify that a `.pbin` has a correct index, and the documents and tokens of its dataset.

A `.pbin` is made from a dataset: a .bin of tokens, and a .idx of documents. The checks go from the
cheap to the expensive: size of the file, counts in the index, places of all documents, tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nanoset_core.errors import FormatError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_of
from nanoset_core.formats.pbin.layout import IndexFacts, PbinFile, open_pbin, scan_index
from nanoset_core.formats.pbin.pickle_codec import encode_index
from nanoset_core.formats.pbin.writing import entries_in_sequence
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import (
    check_files,
    check_freshness,
    current_manifest,
    remedy_for_bytes,
)
from nanoset_core.stages.dataset.differences import include_differences
from nanoset_core.stages.dataset.token_check import StoredArray, stored_tokens
from nanoset_core.stages.dataset.token_ranges import QUICK_TOKENS, spread_chunks
from nanoset_core.stages.report import (
    BUILD,
    PART_BYTES,
    CheckRunner,
    Report,
    run_here,
)
from nanoset_core.stages.source_comparison import TokenComparison, made_from
from nanoset_core.stages.stage import Key, Stage
from nanoset_core.storage.reading.mapped_files import MappedFile

_INDEX_ENTRY_BYTES = 20
"""Approximate size of a document's entry in the .idx of a dataset."""


def verify_pbin(
    project: Project, stage: Stage, key: Key, *, deep: bool, run: CheckRunner
) -> Report:
    """Check a `.pbin`, the file of tokens and their index from which the framework Modalities
    trains.

        its size                     that of the record
        its index and its tokens     those of the dataset that it was made from

    If that dataset was deleted, only the index is checked, and with `deep` the sha256 of the file.

    Args:
        project: The project.
        stage: The stage that made the file.
        key: The file.
        deep: Read all tokens, even if there are more than 16 Mi, instead of those at 256 places.
        run: Runs the parts of a deep check, here or on other machines.

    Returns:
        The report, with an error if the file differs from what was written.
    """
    report = Report(stage.report_name(key))
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, stage, key)
        report.copy_facts(manifest, ["documents", "tokens", "left_out"])
        # Check the size of the file. Its bytes are compared with the dataset below.
        check_files(report, manifest, deep=False)
        check_freshness(report, project, stage, key, manifest)
        if not report.passed:
            return report
        try:
            _check_content(report, project, manifest, deep=deep, run=run)
        except FormatError as error:
            # A build would keep the damaged file, so the user has to delete it first.
            error.remedy = remedy_for_bytes(manifest)
            report.add_exception(error)
    return report


def _check_content(
    report: Report, project: Project, manifest: Manifest, *, deep: bool, run: CheckRunner
) -> None:
    """Compare a file with the dataset that it was made from: its index, documents and tokens.

    The check stops at the first step that finds an error. If the dataset is missing, the bytes of
    the file are checked instead.

    Args:
        report: Report on the file.
        project: The project.
        manifest: Manifest of the file.
        deep: Whether to read all tokens.
        run: Runs the parts of a deep check, here or on other machines.

    Raises:
        FormatError: The file is damaged.
    """
    reads_copy = not deep and _has_copy(manifest)
    opened_file = _open_with_room(manifest, as_copy=reads_copy)
    file = open_pbin(manifest.folder / manifest.facts["file"], opened_file)
    index = scan_index(file)
    if not _check_index(report, manifest, file, index):
        return

    source = made_from(report, project, manifest)
    if source is None:
        check_files(report, manifest, deep=deep)
        return
    stream = stream_of(source.dataset)
    differences = Report(report.output)
    if not _check_documents(differences, manifest, file, source.dataset, stream):
        include_differences(report, differences, [source.manifest], deep=deep)
        return

    # Compare the tokens. A quick check takes less time than the start of worker processes.
    comparison = TokenComparison(
        copy=_tokens_of_file(manifest, file, opened_file.mark, as_copy=reads_copy),
        dataset=stored_tokens(source.dataset, as_copies=not deep),
        remedy=remedy_for_bytes(manifest),
        stream=stream,
    )
    ranges = _ranges_to_compare(index.tokens, file.token_bytes, deep=deep)
    run_check = run if deep else run_here
    run_check(report, comparison.of_ranges(ranges, source.manifest, deep=deep))


def _tokens_of_file(
    manifest: Manifest, file: PbinFile, mark: str | None, *, as_copy: bool
) -> StoredArray:
    """Return the tokens of a `.pbin` as an array that any process can read.

    Args:
        manifest: Manifest of the file.
        file: The file, opened. The tokens follow its header.
        mark: The version that was opened, so that no tokens of another one are read; None for a
            file on the disk.
        as_copy: Whether to read a copy on the disk, if the file is in a bucket.
    """
    store, name = manifest.access.stored_at(file.path, as_copy=as_copy)
    return StoredArray(store, name, file.dtype, file.layout.header_bytes, mark)


def _has_copy(manifest: Manifest) -> bool:
    """Return whether a complete copy of a file is on the disk, if the outputs are in a bucket.

    Args:
        manifest: Manifest of the `.pbin`.
    """
    name = manifest.facts["file"]
    path = manifest.folder / name
    size: int = manifest.files[name].size
    return bool(path.is_file() and path.stat().st_size == size)


def _open_with_room(manifest: Manifest, *, as_copy: bool) -> MappedFile:
    """Open the bytes of a `.pbin` file, and first make room on the disk for its check.

    If the file is in a bucket, the check downloads two indexes of documents as a whole: that at the
    end of the `.pbin`, and the .idx of the dataset that it was made from. Other downloads are
    deleted if there is too little space for them.

    Args:
        manifest: Manifest of the `.pbin`.
        as_copy: Whether the tokens are read from a copy on the disk.
    """
    manifest.access.make_room(_index_bytes(manifest), manifest.url())
    path = manifest.folder / manifest.facts["file"]
    return manifest.access.open_bytes(path, as_copy=as_copy)


def _index_bytes(manifest: Manifest) -> int:
    """Return about how many bytes the index of a `.pbin` and the .idx of its dataset have together.

    For example, a `.pbin` of 2,100 MB with tokens of 2,000 MB has an index of 100 MB. The .idx has
    some 20 bytes for each document.

    Args:
        manifest: Manifest of the `.pbin`.
    """
    facts = manifest.facts
    file_bytes = manifest.files[facts["file"]].size
    token_bytes = facts["tokens"] * facts["token_bytes"]
    idx_bytes = _INDEX_ENTRY_BYTES * facts["documents"]
    return int(file_bytes - token_bytes + idx_bytes)


def _ranges_to_compare(n_tokens: int, token_bytes: int, *, deep: bool) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) of tokens to compare: all, or evenly spread ones.

    Args:
        n_tokens: Tokens of the file.
        token_bytes: Bytes of a token.
        deep: Whether to compare all tokens, however many there are.
    """
    if deep or n_tokens <= QUICK_TOKENS:
        return _ranges(n_tokens, step=PART_BYTES // token_bytes)
    return list(spread_chunks(n_tokens))


def _ranges(n_tokens: int, *, step: int) -> list[tuple[int, int]]:
    """Divide tokens into consecutive ranges (start, stop).

    For example, 10 tokens with a step of 4 are (0, 4), (4, 8) and (8, 10).

    Args:
        n_tokens: Number of tokens.
        step: Tokens of a range, except for the last one.
    """
    return [(start, min(start + step, n_tokens)) for start in range(0, n_tokens, step)]


class _Property(NamedTuple):
    """A property of a `.pbin` that its check compares."""

    name: str
    found: object
    """Its value in the file."""
    expected: object
    """Its value when the file was written."""


def _check_index(report: Report, manifest: Manifest, file: PbinFile, index: IndexFacts) -> bool:
    """Check that the index of a file has the expected counts, and covers all tokens of the file.

        found: documents: 999, tokens: 249900
        expected: documents: 1000, tokens: 250000

    Args:
        report: Report on the file; gets an error that lists all differences.
        manifest: Manifest of the file, with the counts of what was written.
        file: The file, opened.
        index: Counts from a scan of the index, which has the start and length of each document.

    Returns:
        Whether the index is correct.
    """
    properties = _index_properties(manifest, file, index)
    differing = [prop for prop in properties if prop.found != prop.expected]
    if not differing:
        return True
    report.error(
        "the index does not cover the tokens as it did when it was written",
        where=f"{file.path}, byte {file.index_begin}",
        found=", ".join(f"{prop.name}: {prop.found}" for prop in differing),
        expected=", ".join(f"{prop.name}: {prop.expected}" for prop in differing),
        remedy=remedy_for_bytes(manifest),
    )
    return False


def _index_properties(manifest: Manifest, file: PbinFile, index: IndexFacts) -> list[_Property]:
    """Return what an index has, next to what it had when the file was written.

    Args:
        manifest: Manifest of the file, with the counts of what was written.
        file: The file, opened.
        index: Counts from a scan of the index, which has the start and length of each document.
    """
    facts = manifest.facts
    return [
        # Files of older versions of Modalities have other layouts. D is the newest.
        _Property("layout", file.layout.name, "D"),
        _Property("bytes a token", file.token_bytes, facts["token_bytes"]),
        _Property("documents", index.documents, facts["documents"]),
        _Property("tokens", index.tokens, facts["tokens"]),
        _Property("documents without tokens", index.empty_documents, 0),
        # Whether each document begins where the one before it ends
        _Property("back to back", index.is_contiguous, True),
        # A file that Modalities has merged from several ones may have wrong starts of documents.
        _Property("shifts by a merge", index.merge_faults, 0),
    ]


def _check_documents(
    report: Report,
    manifest: Manifest,
    file: PbinFile,
    dataset: MMapIndexedDataset,
    stream: Stream | None,
) -> bool:
    """Check that the index of a `.pbin` file lists the documents of its dataset.

    The index says where each document starts in the file, and how many bytes it has. For documents
    of 812 and 95 tokens of 2 bytes, the entries are (0, 1624) and (1624, 190).

    Args:
        report: Report on the file; gets an error at the first difference.
        manifest: Manifest of the file.
        file: The file, opened.
        dataset: The dataset.
        stream: Where its tokens are in its .bin; None if they are in order there.

    Returns:
        Whether the index has these documents.
    """
    # Compare the bytes of the index with those that it should have, in pieces to limit memory.
    start = file.index_begin  # offset of the next piece in the file
    for expected_piece in _expected_index(dataset, stream, file.token_bytes):
        stop = start + len(expected_piece)
        if bytes(file.view[start:stop]) != expected_piece:
            report.error(
                "documents begin elsewhere than in the dataset",
                where=f"{file.path}, byte {start} or later",
                expected=f"those of {dataset.prefix}.idx",
                remedy=remedy_for_bytes(manifest),
            )
            return False
        start = stop
    return True


def _expected_index(
    dataset: MMapIndexedDataset, stream: Stream | None, token_bytes: int
) -> Iterator[bytes]:
    """Yield the bytes of the index that the `.pbin` of a dataset should have, in pieces.

    The index has an entry for each document: its first byte, and its number of bytes. For documents
    of 3 and 5 tokens of 2 bytes:

        (0, 6), (6, 10)

    Args:
        dataset: The dataset.
        stream: Where its tokens are in its .bin; None if they are in order there.
        token_bytes: Bytes of a token in the `.pbin`.
    """
    # Compute the sizes of some documents at a time, to save memory: [6, 10]. Each document starts
    # where the one before it stops, so the sizes are enough for the entries.
    sizes = (counts * token_bytes for _, counts in document_spans(dataset, stream))
    yield from encode_index(entries_in_sequence(sizes))
