"""Do sampled documents give the same tokens when their source lines are tokenized again?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.lineage.context import InspectionContext
from nanoset_core.lineage.documents import DocumentOrigin, Lineage
from nanoset_core.lineage.excerpts import Retokenizer, retokenizer
from nanoset_core.lineage.source_state import file_state
from nanoset_core.lineage.source_text import NotReadError, SourceLine, read_texts
from nanoset_core.pipeline.project import Project
from nanoset_core.verification.ranges import spread_rows
from nanoset_core.verification.report import Report, Severity

SAMPLED_DOCUMENTS = 64
_MOST_TOKENS = 1 << 20
_QUICK_SKIPPED_BYTES = 16 << 20


def check_round_trip(
    report: Report, project: Project, lineage: Lineage, dataset: MMapIndexedDataset, *, deep: bool
) -> None:
    """Tokenize the source lines of 64 evenly spread documents again, and compare.

    What lies deep in compressed files is left out unless `deep`; so are documents of more than a Mi tokens. A line that
    gives other tokens is an error, unless its file was changed since: that is a warning, and so is a file that is gone.
    """
    again = retokenizer(project.config.tokenizer_file, lineage.dataset.recipe["options"])
    if again is None:
        report.warn(
            "the tokenizer is not the one that made the tokens: documents were not compared with their source",
            where=project.config.tokenizer_file,
            remedy="run `nanoset build`: it tokenizes the corpus anew",
        )
        return
    documents = len(dataset.document_indices) - 1
    origins = lineage.origins(spread_rows(documents, SAMPLED_DOCUMENTS).tolist())
    comparison = _Comparison(project, lineage, dataset, again, None if deep else _QUICK_SKIPPED_BYTES)
    outcomes = comparison.compare(origins)
    report.figures["documents_sampled"] = len(origins)
    report.figures["documents_compared"] = len(origins) - outcomes.count("not read")
    for severity, note in (("error", report.error), ("warning", report.warn)):
        wrong = [outcome for outcome in outcomes if isinstance(outcome, _Difference) and outcome.severity == severity]
        if wrong:
            more = f" ({len(wrong):,} of {len(origins):,} sampled documents)" if len(wrong) > 1 else ""
            first = wrong[0]
            note(first.what + more, where=first.where, found=first.found, expected=first.expected, remedy=first.remedy)


@dataclass(frozen=True, slots=True)
class _Difference:
    """A document that does not come from its source line any more."""

    severity: Severity
    what: str
    where: str
    found: str
    expected: str | None
    remedy: str


_Outcome = _Difference | Literal["same", "not read"]


class _Comparison:
    """Compares documents of one dataset with their source lines."""

    def __init__(
        self,
        project: Project,
        lineage: Lineage,
        dataset: MMapIndexedDataset,
        again: Retokenizer,
        most_skipped_bytes: int | None,
    ) -> None:
        self._dataset, self._again, self._most = dataset, again, most_skipped_bytes
        self._folder = project.config.corpus_folder(lineage.corpus)
        self._root = project.outputs.folder
        self._text_key = lineage.dataset.recipe["options"]["text_key"]
        self._inventory = InspectionContext.of(project).inventory_of(lineage.dataset)

    def compare(self, origins: Sequence[DocumentOrigin]) -> list[_Outcome]:
        """Tokenize the lines of documents, given in their order, again."""
        read = [origin for origin in origins if origin.tokens <= _MOST_TOKENS]
        lines = [SourceLine(origin.file, origin.line, origin.byte_offset) for origin in read]
        self._bring(np.array([origin.document for origin in read], np.int64))
        texts = read_texts(self._folder, lines, self._text_key, most_skipped_bytes=self._most)
        too_long: list[_Outcome] = ["not read"] * (len(origins) - len(read))
        return [self._compare(origin, text) for origin, text in zip(read, texts, strict=True)] + too_long

    def _bring(self, documents: NDArray[np.int64]) -> None:
        """Let the tokens of documents come at once, where they lie in a bucket."""
        dataset = self._dataset
        first, end = dataset.document_indices[documents], dataset.document_indices[documents + 1]
        filled = end > first
        first, last = first[filled], end[filled] - 1
        widths = dataset.sequence_lengths[last].astype(np.int64) * dataset.dtype.itemsize
        dataset.tokens_for(dataset.sequence_pointers[first], dataset.sequence_pointers[last] + widths)

    def _compare(self, origin: DocumentOrigin, text: str | NanosetError) -> _Outcome:
        found = _tokens(self._dataset, origin.document)
        if isinstance(text, NotReadError):
            return "not read"
        if isinstance(text, NanosetError):
            return self._difference(origin, text.what, text.found or "nothing", None)
        expected, _ = self._again.encode(text)
        if np.array_equal(expected, found):
            return "same"
        what = "a document's source line gives other tokens"
        return self._difference(origin, what, _spelled(found), _spelled(expected))

    def _difference(self, origin: DocumentOrigin, what: str, found: str, expected: str | None) -> _Difference:
        state = file_state(self._inventory, self._root, self._folder, origin.file, max(origin.byte_offset, 0))
        where = f"{self._folder / origin.file}:{origin.line} (document {origin.document})"
        if state == "unchanged":
            return _Difference("error", what, where, found, expected, "run `nanoset build --force`")
        remedy = "run `nanoset build`: it reads the files anew"
        changed = {"changed": "the file was changed since", "gone": "the file is gone"}
        return _Difference("warning", what, where, changed.get(state, found), expected, remedy)


def _spelled(tokens: NDArray[Any]) -> str:
    return f"{', '.join(map(str, tokens[:8].tolist()))} …: {len(tokens):,} tokens"


def _tokens(dataset: MMapIndexedDataset, document: int) -> NDArray[Any]:
    begin, end = dataset.document_indices[document], dataset.document_indices[document + 1]
    return np.concatenate([np.empty(0, dataset.dtype), *(dataset[s] for s in range(int(begin), int(end)))])
