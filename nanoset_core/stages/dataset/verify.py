"""Verify the dataset of a corpus: its files, and that it agrees with its shards and raw text.

A dataset was merged from shards, which were tokenized from raw files. So it must have the counts of
the shards, and each document must have the tokens that its line of text gives today. Some documents
are tokenized again to check that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from nanoset_core.lineage.texts import NotReadError, SourceState, file_state, read_texts
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_files, check_freshness, current_manifest
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.token_check import Expected
from nanoset_core.stages.dataset.token_ranges import QUICK_TOKENS, spread_rows
from nanoset_core.stages.dataset.tokens import fetch_tokens, pieces_of_bin, readable_prefix
from nanoset_core.stages.dataset.verify_pair import verify_pair
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.inventory.make import fingerprint_memory, inventory_of
from nanoset_core.stages.report import BUILD, FORCE_BUILD, CheckRunner, Report, Severity
from nanoset_core.stages.shards.repeats import LIMIT_KEY
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.shards.verify import check_losses
from nanoset_core.stages.stage import Key, require
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.pieces import Inventory
from nanoset_core.tokenizers.engines.engine import EncodingError

SAMPLED_DOCUMENTS = 64
"""Number of documents that are tokenized again."""
MAX_DRIFT = 1.5
"""Factor by which the mean length of documents may change between versions without a warning."""
_MAX_COMPARED_TOKENS = 1 << 20
"""Documents with more tokens are not tokenized again, since this would take too long."""
_QUICK_SKIPPED_BYTES = 16 << 20
"""Most bytes of a compressed file that a quick check decompresses to reach a document."""
_EXCERPT_TOKENS = 8
"""Number of tokens that messages quote of a document."""
_COUNTS = ("documents", "sequences", "tokens")
"""Counts that the manifests of a dataset and of its shards both have."""
_FILE_CHANGES = {"changed": "the file was changed since", "gone": "the file was deleted"}
"""State of a raw file → what a message says about it."""


def verify_corpus_dataset(project: Project, corpus: str, *, deep: bool, run: CheckRunner) -> Report:
    """Check the current dataset of a corpus: a file with the tokens of its documents, and an index.

    It is compared with three things:

        itself                      the index fits the tokens, and ids are in the vocabulary
        what it was merged from     as many documents and tokens
        the raw text                some documents are tokenized again

    Args:
        project: Its outputs have the dataset and the shards. Its raw text is read, too.
        corpus: Name of the corpus.
        deep: Read all tokens and compare checksums, and compare the length of every document with
            its shard.
        run: Has ranges of tokens checked, in this process or on other machines.
    """
    key = Key(corpus)
    report = Report(DATASET.report_name(key))
    with report.catching(remedy=BUILD):  # adds an exception to the report as an error
        dataset = current_manifest(project, DATASET, key)
        if not check_files(report, dataset, deep=deep):
            return report  # a missing file is reported, and cannot be opened
        _check_pair(report, project, dataset, deep=deep, run=run)
        _check_drift(report, project.outputs, dataset)
        if report.passed:
            _check_origin(report, project, dataset, deep=deep)
        if report.passed:
            check_losses(report, project, shards_of(project.outputs, dataset))
    return report


def _check_pair(
    report: Report, project: Project, dataset: Manifest, *, deep: bool, run: CheckRunner
) -> None:
    """Check the token file and the index of a dataset, without what they were made from.

    For example, each id must be in the vocabulary, and each document must end with the end token.

    Args:
        report: Report on the dataset, to which errors are added.
        project: Its tokenizer says which ids tokens may have.
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
        deep: Read all tokens, also of a large dataset, and compare recorded digests.
        run: Function that has ranges of tokens checked, in this process or on other machines.
    """
    if deep:
        pieces = pieces_of_bin(dataset)
    else:
        pieces = ()  # only samples are read, so digests cannot be compared
        _fetch_few_tokens(dataset)
    verify_pair(
        readable_prefix(dataset),
        expected=_expected_tokens(project, dataset),
        deep=deep,
        report=report,
        access=dataset.access,
        pieces=pieces,
        run=run,
    )


def _fetch_few_tokens(dataset: Manifest) -> None:
    """Download the tokens of a dataset in a bucket if a quick check reads all of them.

    That takes fewer requests than to read them in blocks. Of a large dataset, a quick check reads
    only samples. A deep check may read the tokens on several machines, each from the bucket.

    Args:
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
    """
    if dataset.facts["tokens"] <= QUICK_TOKENS:
        fetch_tokens(dataset)


def _check_origin(report: Report, project: Project, dataset: Manifest, *, deep: bool) -> None:
    """Compare a dataset with what it was made from: the shards of its corpus, and the raw text.

        raw text  →  shards: the tokens of parts of the text  →  dataset: all tokens in one file

    Args:
        report: Report on the dataset, to which errors are added.
        project: Its outputs have the shards. Its raw text is read, too.
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
        deep: Compare the length of every document with its shard.
    """
    _check_shards(report, project, dataset)
    # From a bucket, only small blocks are downloaded, since little of the dataset is read.
    opened = dataset_of(project.outputs, dataset, is_sampled=True)
    lineage = Lineage(opened)  # finds the line of raw text that each document is from
    if deep:
        _check_document_lengths(report, lineage, opened.sequences)
    _check_round_trip(report, project, lineage, opened.sequences, deep=deep)


def _expected_tokens(project: Project, dataset: Manifest) -> Expected:
    """Return what is expected of the tokens of a dataset, to check them.

        what is expected                       where that is known from
        ids up to 50,256                       the tokenizer, if it has not changed
        uint16; 50,256 ends each document      the settings, which are in the dataset's recipe
        250,000 tokens in all                  the facts in the dataset's manifest
        at most 20 % repeated documents        the present nanoset.yaml

    Args:
        project: The project, whose tokenizer may have changed since the dataset was made.
        dataset: Manifest of the dataset, a file that describes it.
    """
    settings = dataset.recipe["options"]  # with which the dataset was made
    counts = dataset.facts
    tokenizer = project.tokenizer
    has_same_tokenizer = settings["tokenizer"] == tokenizer.fingerprint
    max_id = tokenizer.max_id if has_same_tokenizer else None  # None: it is not known
    expected = Expected.of(settings, counts, max_id)

    # The share of documents that may repeat others, and the key that sets it, for messages:
    # "documents.max_duplicate_fraction".
    max_duplicates = project.config.documents.max_duplicate_fraction
    return replace(expected, duplicates=max_duplicates, duplicates_key=LIMIT_KEY)


def _check_drift(report: Report, outputs: OutputRoot, dataset: Manifest) -> None:
    """Warn if documents are much longer or shorter than in the previous version of a dataset.

    Such a change often means that the raw text was exported in another way by mistake. For example,
    if documents had 800 tokens on average, and now have 300.

    Args:
        report: Report on the dataset, to which errors are added.
        outputs: The output root of the project, which has all versions of outputs.
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
    """
    previous = outputs.previous(dataset)
    if previous is None or not previous.facts["documents"] or not dataset.facts["documents"]:
        return
    mean_length_before = previous.facts["tokens"] / previous.facts["documents"]
    mean_length = dataset.facts["tokens"] / dataset.facts["documents"]
    report.figures["tokens_per_document"] = round(mean_length, 1)
    report.figures["tokens_per_document_before"] = round(mean_length_before, 1)
    if _has_drifted(mean_length, mean_length_before):
        report.warn(
            "documents have another length than in the previous version",
            where=dataset.folder,
            found=f"{mean_length:,.1f} tokens a document, {mean_length_before:,.1f} before "
            f"({previous.digest})",
            expected=f"a change by less than a factor of {MAX_DRIFT:g}",
            remedy=f"look at the changes with `nanoset diff {dataset.name}`; if they are intended, "
            "ignore this warning",
        )


def _has_drifted(mean_length: float, mean_length_before: float) -> bool:
    """Return whether the mean length of documents has changed by more than a factor of 1.5.

    Args:
        mean_length: Tokens of a document, on average.
        mean_length_before: The same in the previous version; 0 if all its documents were empty.
    """
    if not mean_length_before:
        return False
    return not 1 / MAX_DRIFT <= mean_length / mean_length_before <= MAX_DRIFT


def _check_shards(report: Report, project: Project, dataset: Manifest) -> None:
    """Check that a dataset is up to date, and has as many tokens as the shards it was merged from.

    A corpus is tokenized in parts, the shards, and their tokens are merged to the dataset.

    Args:
        report: Report on the dataset, to which errors are added.
        project: Its outputs have the shards.
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
    """
    key = Key(dataset.name)
    try:
        tokenized = require(project, TOKENIZED, key, remedy=BUILD)
    except NanosetError as error:
        # Only a warning: a dataset whose shards are missing can still be used.
        report.add_exception(error, severity="warning")
        return

    is_up_to_date = check_freshness(report, project, DATASET, key, dataset)
    is_of_same_text = tokenized.recipe["parents"] == dataset.recipe["parents"]
    is_made_from_these_shards = is_up_to_date and is_of_same_text
    if is_made_from_these_shards:
        _compare_counts(report, dataset, tokenized)


def _compare_counts(report: Report, dataset: Manifest, tokenized: Manifest) -> None:
    """Check that a dataset has the counts of the shards that it was merged from.

    Args:
        report: Report on the dataset, to which errors are added.
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
        tokenized: Manifest of the shards.
    """
    for name in _COUNTS:
        report.compare(
            f"the dataset has another number of {name} than the shards that it was merged from",
            where=dataset.folder,
            found=dataset.facts[name],
            expected=tokenized.facts[name],
            remedy=FORCE_BUILD,
        )


def _check_document_lengths(report: Report, lineage: Lineage, dataset: MMapIndexedDataset) -> None:
    """Check that each document has as many tokens as were counted when it was tokenized.

    The corpus was tokenized in parts, the shards. Each has a table of its documents with their
    lengths:

        document of the dataset        0     1     2     3
        shard, and row of its table    0, 0  0, 1  1, 0  1, 1
        length in the table            50    30    20    40

    Args:
        report: Report on the dataset; gets an error for the first document that differs.
        lineage: Finds the rows of the dataset's documents in the tables of its shards.
        dataset: The dataset, with its .bin and .idx opened.
    """
    for first_document, expected_lengths in _recorded_lengths(lineage):
        stop_document = first_document + len(expected_lengths)
        lengths = _document_lengths(dataset, range(first_document, stop_document))
        wrong_rows = np.flatnonzero(lengths != expected_lengths)
        if len(wrong_rows) > 0:
            row = int(wrong_rows[0])
            report.compare(
                f"document {first_document + row} has another length than its shard says",
                where=dataset.prefix,
                found=int(lengths[row]),
                expected=int(expected_lengths[row]),
                remedy=FORCE_BUILD,
            )
            return


def _recorded_lengths(lineage: Lineage) -> Iterator[tuple[int, NDArray[np.integer[Any]]]]:
    """Yield the lengths of all documents that were recorded when they were tokenized.

    Args:
        lineage: Finds the rows of the dataset's documents in the tables of its shards.

    Yields:
        (number of a document, tokens of this and the next documents, shape (n_documents,)).
    """
    for shard, table in lineage.tables(range(len(lineage.shards))):
        for first_row, lengths in table.lengths():
            yield lineage.first_document(shard) + first_row, lengths


def _document_lengths(dataset: MMapIndexedDataset, documents: range) -> NDArray[np.int64]:
    """Return the number of tokens of consecutive documents, int64, shape (n_documents,).

    A document may consist of several sequences: the result is the sum of their lengths.

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        documents: Numbers of the documents.
    """
    # (n_documents + 1,) the first sequence of each document, and of the one after them
    first_sequences = dataset.document_indices[documents.start : documents.stop + 1]
    return np.diff(token_starts(dataset, first_sequences))


def _check_round_trip(
    report: Report, project: Project, lineage: Lineage, dataset: MMapIndexedDataset, *, deep: bool
) -> None:
    """Tokenize the source lines of 64 evenly spread documents again, and compare the tokens.

    Other tokens are an error, or a warning if the file has been changed or deleted since. Very long
    documents are left out. So are documents far inside compressed files, unless the check is deep.

    Args:
        report: Report on the dataset, to which errors are added.
        project: Its tokenizer is used, and its raw text is read.
        lineage: Finds the source lines of the dataset's documents.
        dataset: The dataset, with its .bin and .idx opened.
        deep: Decompress files up to a document, however far inside it is.
    """
    tokenizer_file = project.config.tokenizer_file
    tokenizer = retokenizer(tokenizer_file, lineage.dataset.recipe["options"])
    if tokenizer is None:
        report.warn(
            "the tokenizer is not the one that made the tokens: documents were not compared with "
            "their source",
            where=tokenizer_file,
            remedy="run `nanoset build`: it tokenizes the corpus again",
        )
        return

    n_documents = len(dataset.document_indices) - 1
    sampled = lineage.origins(spread_rows(n_documents, SAMPLED_DOCUMENTS).tolist())
    sources = _sources_of(sampled, project, lineage, dataset, deep=deep)
    classifier = _MismatchClassifier(project, lineage)
    results = list(_compare_sources(sources, tokenizer, classifier))

    report.figures["documents_sampled"] = len(sampled)
    report.figures["documents_compared"] = len(results)
    mismatches = [result for result in results if result is not None]
    _report_mismatches(report, mismatches, n_sampled=len(sampled))


class _SourceOfDocument(NamedTuple):
    """A document of a dataset, and the text that it was made from."""

    origin: DocumentOrigin
    """Where the document is in the raw text."""
    text: str | NanosetError
    """Its present text, or why that cannot be read."""
    tokens: Tokens
    """Its tokens in the dataset."""


def _sources_of(
    sampled: Sequence[DocumentOrigin],
    project: Project,
    lineage: Lineage,
    dataset: MMapIndexedDataset,
    *,
    deep: bool,
) -> Iterator[_SourceOfDocument]:
    """Yield the present text and the tokens of documents, except for very long ones.

    The text is what the raw file has now, which may have changed since the tokens were made:

        document 17: a.jsonl, line 18      "the cat"                  5 9
        document 18: a.jsonl, line 19      an error: it was deleted   8 2

    Args:
        sampled: Where the documents are in the raw text.
        project: It names the folder of the raw text.
        lineage: Knows the corpus of the dataset, and how it was read.
        dataset: The dataset, with its .bin and .idx opened.
        deep: Decompress files up to a document, however far inside it is.
    """
    origins = [origin for origin in sampled if origin.tokens <= _MAX_COMPARED_TOKENS]
    texts = read_texts(
        project.config.corpus_folder(lineage.corpus),
        origins,
        lineage.dataset.recipe["options"]["text_key"],
        most_skipped_bytes=None if deep else _QUICK_SKIPPED_BYTES,
    )
    documents = np.array([origin.document for origin in origins], np.int64)
    stored_tokens = _tokens_of_documents(dataset, documents)
    for origin, text, tokens in zip(origins, texts, stored_tokens, strict=True):
        yield _SourceOfDocument(origin, text, tokens)


class _TextDifference(NamedTuple):
    """How the present text of a document differs from its tokens in the dataset."""

    what: str
    """What is wrong, in a few words."""
    found: str
    """An excerpt of the tokens, or why there is no text to compare them with."""
    expected: str | None
    """An excerpt of the tokens of the text, if there is a text."""


def _compare_text(
    tokenizer: Retokenizer, text: str | NanosetError, tokens: Tokens
) -> _TextDifference | None:
    """Tokenize the text of a document again, and compare the tokens.

    If the file or the tokenizer has not changed, they are equal. If they differ, the first tokens
    of both are returned, such as "5, 9, 7 …: 250 tokens" and "5, 8, 7 …: 251 tokens".

    Args:
        tokenizer: The tokenizer that made the tokens.
        text: The text, or the exception that was raised as it was read.
        tokens: Tokens of the document in the dataset, shape (n_tokens,).

    Returns:
        The difference, or None if the tokens are equal.
    """
    if isinstance(text, NanosetError):
        return _TextDifference(text.what, text.found or "nothing", expected=None)
    try:
        expected_tokens = tokenizer.locate(text).ids
    except EncodingError as error:
        return _TextDifference(error.what, error.found or "", expected=None)
    if np.array_equal(expected_tokens, tokens):
        return None
    return _TextDifference(
        what="a document's source line gives other tokens",
        found=_excerpt(tokens),
        expected=_excerpt(expected_tokens),
    )


@dataclass(frozen=True, slots=True)
class _TextMismatch:
    """A document whose present text does not give its tokens, as a finding to report."""

    severity: Severity
    """A warning if the raw file was changed or deleted, otherwise an error."""
    what: str
    """What is wrong, in a few words."""
    where: str
    """File and line, and the number of the document."""
    found: str
    """An excerpt of the tokens, or what happened to the file."""
    expected: str | None
    """An excerpt of the tokens of the present text, if there is a text."""
    remedy: str
    """What the user should do."""


class _MismatchClassifier:
    """Decides whether a document differs from its tokens because its raw file has changed.

    The inventory, which has the sha256 of pieces of the raw files, and the remembered sha256 of
    present files are read only if a document differs.

    Args:
        project: The project.
        lineage: The dataset and its shards.
    """

    def __init__(self, project: Project, lineage: Lineage) -> None:
        self._project = project
        self._folder = project.config.corpus_folder(lineage.corpus)
        self._dataset = lineage.dataset

    @cached_property
    def _inventory(self) -> Inventory | None:
        """The inventory that the dataset was made from; None if it was deleted."""
        return inventory_of(self._project.outputs, self._dataset)

    @cached_property
    def _memory(self) -> FingerprintMemory:
        """The sha256 of files in the raw folder that have been hashed before."""
        return fingerprint_memory(self._project, self._folder)

    def classify(self, origin: DocumentOrigin, difference: _TextDifference) -> _TextMismatch:
        """Decide whether a document that gives other tokens now is an error or a warning.

            its file is as it was in the build    an error: the dataset is wrong
            its file was changed or deleted       a warning: the next build reads it again

        Args:
            origin: File and line of the document.
            difference: How its present text differs from its tokens.
        """
        where = f"{self._folder}/{origin.file}:{origin.line} (document {origin.document})"
        state = self._state_of_file(origin)  # "unchanged", "changed", "gone", …
        if state == "unchanged":
            return _TextMismatch(
                severity="error",
                what=difference.what,
                where=where,
                found=difference.found,
                expected=difference.expected,
                remedy=FORCE_BUILD,
            )

        return _TextMismatch(
            severity="warning",
            what=difference.what,
            where=where,
            found=_FILE_CHANGES.get(state, difference.found),  # such as "the file was deleted"
            expected=difference.expected,
            remedy=f"{BUILD}: it reads the files again",
        )

    def _state_of_file(self, origin: DocumentOrigin) -> SourceState:
        """Return whether the file of a document was changed or deleted since the build.

        A file may have terabytes. So only the piece of it that has the document is hashed again,
        and compared with the sha256 that this piece had in the build.

        Args:
            origin: File and line of the document.
        """
        # A document in a table has no first byte (-1). A table is a single piece, which byte 0 is
        # in, too.
        byte = max(origin.byte_offset, 0)
        return file_state(self._inventory, self._memory, self._folder, origin.file, byte)


def _compare_sources(
    sources: Iterable[_SourceOfDocument], tokenizer: Retokenizer, classifier: _MismatchClassifier
) -> Iterator[_TextMismatch | None]:
    """Tokenize the texts of documents again, and yield how each differs from its tokens.

    Documents whose texts were not read, since they are too far inside a compressed file, are left
    out.

    Args:
        sources: The documents.
        tokenizer: The tokenizer that made the tokens.
        classifier: Decides whether a difference is an error or a warning.

    Yields:
        For each document, the difference, or None if the tokens are equal.
    """
    for source in sources:
        if isinstance(source.text, NotReadError):
            continue
        difference = _compare_text(tokenizer, source.text, source.tokens)
        yield None if difference is None else classifier.classify(source.origin, difference)


def _report_mismatches(
    report: Report, mismatches: Sequence[_TextMismatch], *, n_sampled: int
) -> None:
    """Report documents whose text gives other tokens now, similar ones by a single message.

    If 5 of 64 documents differ, the message ends with "(5 of 64 sampled documents)", and shows the
    first of them. Errors and warnings are reported separately: a document whose file was changed
    since the build is only a warning.

    Args:
        report: Report on the dataset.
        mismatches: The documents that differ, in their order.
        n_sampled: Number of documents in the sample.
    """
    severities: tuple[Severity, ...] = ("error", "warning")
    for severity in severities:
        similar = [mismatch for mismatch in mismatches if mismatch.severity == severity]
        if not similar:
            continue
        first = similar[0]
        message = first.what
        if len(similar) > 1:
            message += f" ({len(similar):,} of {n_sampled:,} sampled documents)"
        report.add(
            message,
            severity=severity,
            where=first.where,
            found=first.found,
            expected=first.expected,
            remedy=first.remedy,
        )


def _tokens_of_documents(
    dataset: MMapIndexedDataset, documents: NDArray[np.int64]
) -> Iterator[Tokens]:
    """Yield the tokens of each document, such as 5 9 7 for the first one, and then 8 2.

    From a bucket, the tokens of all documents are downloaded at once, which takes the fewest
    requests, or those of one document after the other if there is little disk space. The tokens of
    a document are valid until the next ones are requested: then their memory may be freed.

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        documents: Numbers of the documents, shape (n_documents,).
    """
    # (n_documents,) each: the position of a document in the file, in tokens
    starts = token_starts(dataset, dataset.document_indices[documents])
    stops = token_starts(dataset, dataset.document_indices[documents + 1])
    for part in dataset.spans(len(documents), at_once=1):  # slice(0, n), or slice(0, 1), …
        yield from _tokens_of_ranges(dataset, starts[part], stops[part])


def _tokens_of_ranges(
    dataset: MMapIndexedDataset, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> Iterator[Tokens]:
    """Yield the tokens of each of some ranges of a dataset's file, which are downloaded together.

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        starts: First token of each range, counted from the start of the file, shape (n_ranges,).
        stops: End of each range, shape (n_ranges,).
    """
    itemsize = dataset.dtype.itemsize
    # All tokens of the file, of which only those of the ranges can be read.
    file_tokens = dataset.tokens_for(starts * itemsize, stops * itemsize)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield file_tokens[start:stop]


def _excerpt(tokens: NDArray[Any]) -> str:
    """Return the first tokens of a document and their total number: "5, 9, 7 …: 250 tokens"."""
    first_tokens = ", ".join(map(str, tokens[:_EXCERPT_TOKENS].tolist()))
    return f"{first_tokens} …: {len(tokens):,} tokens"
