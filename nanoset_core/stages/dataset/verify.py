"""Verify the dataset of a corpus: its files, and that it agrees with its shards and raw text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.formats.indexed.stream import token_starts
from nanoset_core.lineage.documents import DocumentOrigin, Lineage
from nanoset_core.lineage.excerpts import Retokenizer, retokenizer
from nanoset_core.lineage.texts import NotReadError, file_state, read_texts
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_freshness
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.token_check import Expected
from nanoset_core.stages.dataset.token_ranges import QUICK_TOKENS, spread_rows
from nanoset_core.stages.dataset.tokens import fetch_tokens, pieces_of_bin, readable_prefix
from nanoset_core.stages.dataset.verify_pair import verify_pair
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.inventory.make import fingerprint_memory, inventory_at
from nanoset_core.stages.report import (
    AGAIN,
    BUILD,
    Report,
    Run,
    Severity,
    check_files,
    live_manifest,
    run_here,
)
from nanoset_core.stages.shards.repeats import LIMIT_KEY
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.shards.verify import check_losses
from nanoset_core.stages.stage import Key
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.pieces import Inventory
from nanoset_core.tokenizers.engines.engine import EncodingError

SAMPLED_DOCUMENTS = 64
"""Number of documents that are tokenized again."""
MAX_DRIFT = 1.5
"""Factor by which the mean length of documents may change between versions without a warning."""
_MAX_COMPARED_TOKENS = 1 << 20
"""Length of the longest documents that are tokenized again."""
_QUICK_SKIPPED_BYTES = 16 << 20
"""Most bytes of a compressed file that a quick check decompresses to reach a document."""
_COUNTS = ("documents", "sequences", "tokens")
"""Facts that a dataset and its shards have in common."""


def verify_corpus_dataset(
    project: Project, corpus: str, deep: bool = False, run: Run = run_here
) -> Report:
    """Check the current dataset of a corpus.

    First, `verify_pair` checks its counts, .idx and tokens. Then the dataset is compared with the
    present shards and settings, and some documents are tokenized again and compared. At last, lost
    text is reported.

    Args:
        project: The project.
        corpus: Name of the corpus.
        deep: Read all tokens and compare checksums, and compare the length of every document with
            its shard.
        run: Has ranges of tokens checked, in this process or on other machines.
    """
    report = Report(f"{DATASET.layout.folder}/{corpus}")
    with report.catching(BUILD):
        dataset = live_manifest(project.outputs, DATASET.layout.folder, corpus)
        check_files(report, dataset, deep=deep)
        if not deep and dataset.facts["tokens"] <= QUICK_TOKENS:
            fetch_tokens(dataset)
        verify_pair(
            readable_prefix(dataset),
            expected=_expected(project, dataset),
            deep=deep,
            report=report,
            access=dataset.access,
            pieces=pieces_of_bin(dataset) if deep else (),
            run=run,
        )
        _check_drift(report, project.outputs, dataset)
        if report.passed:
            _check_shards(report, project, dataset)
            sampled = dataset_of(project.outputs, dataset, is_sampled=True)
            lineage = Lineage(sampled)
            if deep:
                _check_document_lengths(report, lineage, sampled.sequences)
            _check_round_trip(report, project, lineage, sampled.sequences, deep=deep)
        if report.passed:
            check_losses(report, project, shards_of(project.outputs, dataset))
    return report


def _expected(project: Project, dataset: Manifest) -> Expected:
    """Return the properties that the tokens of a dataset must have."""
    options = dataset.recipe["options"]

    # The vocabulary is only known if the tokenizer is the one that made the tokens.
    max_id = None
    if options["tokenizer"] == project.tokenizer.fingerprint:
        max_id = project.tokenizer.max_id
    return replace(
        Expected.of(options, dataset.facts, max_id),
        duplicates=project.config.documents.max_duplicate_fraction,
        duplicates_key=LIMIT_KEY,
    )


def _check_drift(report: Report, outputs: OutputRoot, dataset: Manifest) -> None:
    """Warn if documents are much longer or shorter than in the previous version."""
    previous = outputs.previous(dataset)
    if previous is None or not previous.facts["documents"] or not dataset.facts["documents"]:
        return
    length_before = previous.facts["tokens"] / previous.facts["documents"]
    length = dataset.facts["tokens"] / dataset.facts["documents"]
    report.figures["tokens_per_document"] = round(length, 1)
    report.figures["tokens_per_document_before"] = round(length_before, 1)
    if length_before and not 1 / MAX_DRIFT <= length / length_before <= MAX_DRIFT:
        report.warn(
            "documents have another length than in the previous version",
            dataset.folder,
            f"{length:,.1f} tokens a document, {length_before:,.1f} before ({previous.digest})",
            f"a change by less than a factor of {MAX_DRIFT:g}",
            f"look at the changes with `nanoset diff {dataset.name}`; if they are intended, ignore "
            "this warning",
        )


def _check_shards(report: Report, project: Project, dataset: Manifest) -> None:
    """Check that a dataset agrees with the present shards and settings."""
    try:
        tokenized = project.outputs.require(TOKENIZED.layout.folder, dataset.name, remedy=BUILD)
    except NanosetError as error:
        report.note_error(error, "warning")
        return
    is_fresh = check_freshness(report, project, DATASET, Key(dataset.name), dataset)
    if not is_fresh or tokenized.recipe["parents"] != dataset.recipe["parents"]:
        return
    for name in _COUNTS:
        what = f"the dataset has another number of {name} than the shards that it was merged from"
        report.compare(what, dataset.folder, dataset.facts[name], tokenized.facts[name], AGAIN)


def _check_document_lengths(report: Report, lineage: Lineage, dataset: MMapIndexedDataset) -> None:
    """Check the length of each document, which the tables of the shards also record.

    Only the first difference is reported.
    """
    for shard, table in lineage.tables(range(len(lineage.shards))):
        for first_row, expected_lengths in table.lengths():
            first_document = lineage.first_document(shard) + first_row
            n_documents = len(expected_lengths)
            first_sequences = dataset.document_indices[
                first_document : first_document + n_documents + 1
            ]
            lengths = np.diff(token_starts(dataset, first_sequences))
            is_wrong = lengths != expected_lengths
            if is_wrong.any():
                row = int(np.argmax(is_wrong))
                what = f"document {first_document + row} has another length than its shard says"
                report.compare(
                    what, dataset.prefix, int(lengths[row]), int(expected_lengths[row]), AGAIN
                )
                return


@dataclass(frozen=True, slots=True)
class _TextDifference:
    """A document whose text does not give its tokens; the fields are those of a finding."""

    severity: Severity
    what: str
    where: str
    found: str
    expected: str | None
    remedy: str


def _check_round_trip(
    report: Report, project: Project, lineage: Lineage, dataset: MMapIndexedDataset, *, deep: bool
) -> None:
    """Tokenize the source lines of 64 evenly spread documents again, and compare the tokens.

    Other tokens are an error, or a warning if the file has been changed or deleted since. Very long
    documents are left out. So are documents far inside compressed files, unless the check is deep.
    """
    options = lineage.dataset.recipe["options"]
    tokenizer_file = project.config.tokenizer_file
    tokenizer = retokenizer(tokenizer_file, options)
    if tokenizer is None:
        report.warn(
            "the tokenizer is not the one that made the tokens: documents were not compared with "
            "their source",
            where=tokenizer_file,
            remedy="run `nanoset build`: it tokenizes the corpus again",
        )
        return

    # The origins of the documents, their present text, and their tokens in the dataset.
    n_documents = len(dataset.document_indices) - 1
    sampled = lineage.origins(spread_rows(n_documents, SAMPLED_DOCUMENTS).tolist())
    origins = [origin for origin in sampled if origin.tokens <= _MAX_COMPARED_TOKENS]
    folder = project.config.corpus_folder(lineage.corpus)
    max_skipped_bytes = None if deep else _QUICK_SKIPPED_BYTES
    texts = read_texts(folder, origins, options["text_key"], most_skipped_bytes=max_skipped_bytes)
    stored_tokens = _tokens_of_documents(
        dataset, np.array([origin.document for origin in origins], np.int64)
    )

    n_compared = 0
    differences: list[_TextDifference] = []
    file_states = _FileStates(project, lineage)
    for origin, text, tokens in zip(origins, texts, stored_tokens, strict=True):
        if isinstance(text, NotReadError):
            continue
        n_compared += 1
        mismatch = _compare_text(tokenizer, text, tokens)
        if mismatch is not None:
            difference = file_states.difference(
                origin, mismatch.what, mismatch.found, mismatch.expected
            )
            differences.append(difference)

    report.figures["documents_sampled"] = len(sampled)
    report.figures["documents_compared"] = n_compared
    _report_differences(report, differences, len(sampled))


class _TextMismatch(NamedTuple):
    """How the text of a document differs from its tokens; the fields are those of a finding."""

    what: str
    found: str
    expected: str | None


def _compare_text(
    tokenizer: Retokenizer, text: str | NanosetError, tokens: Tokens
) -> _TextMismatch | None:
    """Tokenize the text of a document again, and compare the tokens.

    Args:
        tokenizer: The tokenizer that made the tokens.
        text: The text, or the error that was raised as it was read.
        tokens: Tokens of the document in the dataset, shape (n_tokens,).

    Returns:
        The mismatch, or None if the tokens are equal.
    """
    if isinstance(text, NanosetError):
        return _TextMismatch(text.what, text.found or "nothing", None)
    try:
        expected_tokens = tokenizer.locate(text).ids
    except EncodingError as error:
        return _TextMismatch(error.what, error.found or "", None)
    if np.array_equal(expected_tokens, tokens):
        return None
    return _TextMismatch(
        "a document's source line gives other tokens", _excerpt(tokens), _excerpt(expected_tokens)
    )


def _report_differences(
    report: Report, differences: Sequence[_TextDifference], n_sampled: int
) -> None:
    """Report the first error and the first warning, each with the number of similar documents."""
    severities: tuple[Severity, ...] = ("error", "warning")
    for severity in severities:
        alike = [difference for difference in differences if difference.severity == severity]
        if not alike:
            continue
        first = alike[0]
        what = first.what
        if len(alike) > 1:
            what += f" ({len(alike):,} of {n_sampled:,} sampled documents)"
        report.note(severity, what, first.where, first.found, first.expected, first.remedy)


class _FileStates:
    """Finds out whether a document differs because its file has changed.

    The inventory and the stored digests are read only if a document differs.
    """

    def __init__(self, project: Project, lineage: Lineage) -> None:
        self._project = project
        self._folder = project.config.corpus_folder(lineage.corpus)
        self._dataset = lineage.dataset

    @cached_property
    def _inventory(self) -> Inventory | None:
        digest = self._dataset.recipe["parents"]["inventory"]
        return inventory_at(self._project.outputs, self._dataset.name, digest)

    @cached_property
    def _memory(self) -> FingerprintMemory:
        return fingerprint_memory(self._project, self._folder)

    def difference(
        self, origin: DocumentOrigin, what: str, found: str, expected: str | None
    ) -> _TextDifference:
        """Describe a document whose text does not give its tokens."""
        where = f"{self._folder}/{origin.file}:{origin.line} (document {origin.document})"
        byte = max(origin.byte_offset, 0)  # -1 for a row of a table
        state = file_state(self._inventory, self._memory, self._folder, origin.file, byte)
        if state == "unchanged":
            return _TextDifference("error", what, where, found, expected, AGAIN)
        if state == "changed":
            found = "the file was changed since"
        elif state == "gone":
            found = "the file was deleted"
        return _TextDifference(
            "warning", what, where, found, expected, f"{BUILD}: it reads the files again"
        )


def _tokens_of_documents(
    dataset: MMapIndexedDataset, documents: NDArray[np.int64]
) -> Iterator[Tokens]:
    """Yield the tokens of each document; they may be freed when the next are requested."""
    itemsize = dataset.dtype.itemsize
    starts = token_starts(dataset, dataset.document_indices[documents])
    stops = token_starts(dataset, dataset.document_indices[documents + 1])
    for step in dataset.spans(len(documents), 1):
        tokens = dataset.tokens_for(starts[step] * itemsize, stops[step] * itemsize)
        for start, stop in zip(starts[step].tolist(), stops[step].tolist(), strict=True):
            yield tokens[start:stop]


def _excerpt(tokens: NDArray[Any]) -> str:
    """Return the first tokens of a document, and their number."""
    return f"{', '.join(map(str, tokens[:8].tolist()))} …: {len(tokens):,} tokens"
