"""Do sampled documents give the same tokens when their source lines are tokenized again?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.lineage.context import InspectionContext
from nanoset_core.lineage.documents import DocumentOrigin, Lineage
from nanoset_core.lineage.excerpts import retokenizer
from nanoset_core.lineage.source_state import file_state
from nanoset_core.lineage.source_text import NotReadError, SourceLine, read_texts
from nanoset_core.pipeline.project import Project
from nanoset_core.verification.files import AGAIN, BUILD
from nanoset_core.verification.ranges import spread_rows
from nanoset_core.verification.report import Report

SAMPLED_DOCUMENTS = 64
_MOST_TOKENS = 1 << 20
_QUICK_SKIPPED_BYTES = 16 << 20


class _Difference(NamedTuple):
    """A document whose source line does not give its tokens."""

    origin: DocumentOrigin
    what: str
    found: str
    expected: str | None


def check_round_trip(
    report: Report, project: Project, lineage: Lineage, dataset: MMapIndexedDataset, *, deep: bool
) -> None:
    """Tokenize the source lines of 64 evenly spread documents again, and compare.

    What lies deep in compressed files is left out unless `deep`; so are documents of more than a Mi tokens. A line that
    gives other tokens is an error, unless its file was changed since: that is a warning, and so is a file that is gone.
    """
    options, folder = lineage.dataset.recipe["options"], project.config.corpus_folder(lineage.corpus)
    again = retokenizer(project.config.tokenizer_file, options)
    if again is None:
        report.warn(
            "the tokenizer is not the one that made the tokens: documents were not compared with their source",
            where=project.config.tokenizer_file,
            remedy="run `nanoset build`: it tokenizes the corpus anew",
        )
        return
    origins = lineage.origins(spread_rows(len(dataset.document_indices) - 1, SAMPLED_DOCUMENTS).tolist())
    short = [origin for origin in origins if origin.tokens <= _MOST_TOKENS]
    _fetch(dataset, np.array([origin.document for origin in short], np.int64))
    lines = [SourceLine(origin.file, origin.line, origin.byte_offset) for origin in short]
    texts = read_texts(folder, lines, options["text_key"], most_skipped_bytes=None if deep else _QUICK_SKIPPED_BYTES)
    compared, differences = 0, list[_Difference]()
    for origin, text in zip(short, texts, strict=True):
        if isinstance(text, NotReadError):
            continue
        compared += 1
        if isinstance(text, NanosetError):
            differences.append(_Difference(origin, text.what, text.found or "nothing", None))
            continue
        found, (expected, _) = _tokens(dataset, origin.document), again.encode(text)
        if not np.array_equal(expected, found):
            what = "a document's source line gives other tokens"
            differences.append(_Difference(origin, what, _spelled(found), _spelled(expected)))
    report.figures |= {"documents_sampled": len(origins), "documents_compared": compared}
    if not differences:
        return
    inventory = InspectionContext.of(project).inventory_of(lineage.dataset)

    def state(origin: DocumentOrigin) -> str:
        return file_state(inventory, project.outputs.folder, folder, origin.file, max(origin.byte_offset, 0))

    states = [state(difference.origin) for difference in differences]
    for is_error, note in ((True, report.error), (False, report.warn)):
        wrong = [
            (one, state) for one, state in zip(differences, states, strict=True) if (state == "unchanged") == is_error
        ]
        _note_first(note, wrong, len(origins), str(folder))


def _note_first(note: Callable[..., None], wrong: Sequence[tuple[_Difference, str]], sampled: int, folder: str) -> None:
    """Note the first of some differences, and how many there are."""
    if not wrong:
        return
    (origin, what, found, expected), state = wrong[0]
    note(
        what + (f" ({len(wrong):,} of {sampled:,} sampled documents)" if len(wrong) > 1 else ""),
        where=f"{folder}/{origin.file}:{origin.line} (document {origin.document})",
        found={"changed": "the file was changed since", "gone": "the file is gone"}.get(state, found),
        expected=expected,
        remedy=AGAIN if state == "unchanged" else f"{BUILD}: it reads the files anew",
    )


def _fetch(dataset: MMapIndexedDataset, documents: NDArray[np.int64]) -> None:
    """Fetch the tokens of documents at once, where they lie in a bucket."""
    first, end = dataset.document_indices[documents], dataset.document_indices[documents + 1]
    filled = end > first
    first, last = first[filled], end[filled] - 1
    widths = dataset.sequence_lengths[last].astype(np.int64) * dataset.dtype.itemsize
    dataset.tokens_for(dataset.sequence_pointers[first], dataset.sequence_pointers[last] + widths)


def _spelled(tokens: NDArray[Any]) -> str:
    return f"{', '.join(map(str, tokens[:8].tolist()))} …: {len(tokens):,} tokens"


def _tokens(dataset: MMapIndexedDataset, document: int) -> NDArray[Any]:
    begin, end = dataset.document_indices[document], dataset.document_indices[document + 1]
    return np.concatenate([np.empty(0, dataset.dtype), *(dataset[s] for s in range(int(begin), int(end)))])
