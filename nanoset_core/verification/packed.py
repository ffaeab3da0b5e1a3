"""Is a .pbin whole, and does it hold the documents of its dataset?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, NanosetError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.packed.index import IndexFacts, document_entries, scan_index
from nanoset_core.packed.layout import PackedFile, open_packed
from nanoset_core.packed.packing import document_spans
from nanoset_core.packed.pickle_codec import rechunk
from nanoset_core.pipeline import indexed
from nanoset_core.pipeline import packed as packed_stage
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.verification.files import BUILD, check_files, check_freshness, live_manifest
from nanoset_core.verification.ranges import AT_ONCE, QUICK_TOKENS, StoredArray, spread_chunks
from nanoset_core.verification.report import Report
from nanoset_core.verification.tasks import PART_BYTES, DeepCheck, Run, run_here

_CHUNK_DOCUMENTS = 1 << 16
_READ_TOKENS = 1 << 20
_NO_ENTRIES = np.empty(0, np.int64), np.empty(0, np.int64)


def verify_packed(project: Project, corpus: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check the current .pbin of a corpus.

    It is there, of the size written (`deep`: sha256), in the present layout; its index, which is read whole, covers the
    tokens exactly, document after document, and the counts are those noted. Documents and tokens are those of the
    dataset that it was made from, or of the vocabulary where that dataset is gone; all tokens are read with `deep`, or
    where there are no more than 16 Mi, else those at 256 places. `run` has all of them looked at.
    """
    report = Report(f"{packed_stage.STAGE}/{corpus}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, packed_stage.STAGE, corpus)
        check_freshness(report, project, packed_stage.PACKED, Key(corpus), manifest)
        report.figures.update({name: manifest.facts[name] for name in ("documents", "tokens", "left_out")})
        report.include(check_files(manifest, report.output, deep=deep, remedy=BUILD))
        if report.passed:
            _check_content(report, project, manifest, deep, run)
    return report


def _check_content(report: Report, project: Project, manifest: Manifest, deep: bool, run: Run) -> None:
    remedy = f"delete {manifest.url()}, and {BUILD}"
    try:
        path, size = manifest.folder / manifest.facts["file"], manifest.files[manifest.facts["file"]].size
        as_copy = not deep and path.is_file() and path.stat().st_size == size
        file = open_packed(path, manifest.access.open_bytes(path, as_copy=as_copy))
        index = scan_index(file)
    except FormatError as error:
        error.remedy = remedy
        report.note_error(error)
        return
    dataset = _dataset_of(project, manifest)
    if _check_index(report, manifest.facts, file, index, remedy) and (
        dataset is None or _check_borders(report, file, index, dataset, remedy)
    ):
        store, name = manifest.access.stored_at(file.path, as_copy=as_copy)
        packed, other = StoredArray(store, name, file.dtype, file.layout.header_bytes), None
        if dataset is not None:
            store, prefix = dataset.stored(as_copies=as_copy)
            other = StoredArray(store, f"{prefix}.bin", dataset.dtype)
        check = PackedCheck(report.output, packed, other, project.tokenizer.max_id, remedy)
        parts = [*spread_chunks(index.tokens)]
        if deep or index.tokens <= QUICK_TOKENS:
            size = PART_BYTES // file.token_bytes
            parts = [(begin, min(begin + size, index.tokens)) for begin in range(0, index.tokens, size)]
        report.include((run if deep else run_here)(check, parts))


def _dataset_of(project: Project, manifest: Manifest) -> MMapIndexedDataset | None:
    """Open the dataset that a .pbin was made from; None where it is gone or damaged, which is its own finding."""
    folder = project.outputs.folder / indexed.STAGE / manifest.name / manifest.recipe["parents"]["dataset"]
    try:
        found = project.outputs.manifest_at(folder)
        return None if found is None else indexed.opened(found)
    except NanosetError:
        return None


def _check_index(report: Report, facts: Mapping[str, Any], file: PackedFile, index: IndexFacts, remedy: str) -> bool:
    """Check that layout, counts and index are those of the file that was written."""
    # what → (found, expected)
    values = {
        "layout": (file.layout.name, "D"),
        "bytes a token": (file.token_bytes, facts["token_bytes"]),
        "documents": (index.documents, facts["documents"]),
        "tokens": (index.tokens, facts["tokens"]),
        "documents without tokens": (index.empty_documents, 0),
        "back to back": (index.is_contiguous, True),
        "shifts by a merge": (index.merge_faults, 0),
    }
    wrong = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    if wrong:
        report.error(
            "the index does not cover the tokens as it did when it was written",
            where=f"{file.path}, byte {file.index_begin}",
            found=", ".join(f"{name}: {found}" for name, (found, _) in wrong.items()),
            expected=", ".join(f"{name}: {expected}" for name, (_, expected) in wrong.items()),
            remedy=remedy,
        )
    return not wrong


def _check_borders(
    report: Report, file: PackedFile, index: IndexFacts, dataset: MMapIndexedDataset, remedy: str
) -> bool:
    """Check that every document begins and ends where it does in the dataset."""
    ours = rechunk(document_entries(file, index), _CHUNK_DOCUMENTS)
    theirs = rechunk(document_spans(dataset), _CHUNK_DOCUMENTS)
    first = 0
    for (begins, lengths), (their_begins, their_lengths) in zip_longest(ours, theirs, fillvalue=_NO_ENTRIES):
        count = min(len(begins), len(their_begins))
        differs = np.ones(max(len(begins), len(their_begins)), bool)
        differs[:count] = begins[:count] != their_begins[:count] * file.token_bytes
        differs[:count] |= lengths[:count] != their_lengths[:count] * file.token_bytes
        if differs.any():
            at = int(np.argmax(differs))
            report.error(
                f"document {first + at} is not that of the dataset",
                where=f"{file.path}, entry {first + at} of the index at byte {file.index_begin}",
                found=_spelled(begins // file.token_bytes, lengths // file.token_bytes, at),
                expected=f"{_spelled(their_begins, their_lengths, at)}, as in {dataset.prefix}.idx",
                remedy=remedy,
            )
            return False
        first += count
    return True


def _spelled(begins: NDArray[np.int64], lengths: NDArray[np.int64], at: int) -> str:
    return f"{int(lengths[at]):,} tokens from token {int(begins[at])}" if at < len(begins) else "no such document"


class _Difference(NamedTuple):
    """A token that is not as it should be."""

    token: int
    """Its number."""
    found: int
    expected: str


@dataclass(frozen=True, slots=True)
class PackedCheck(DeepCheck[tuple[int, int], tuple[int, _Difference | None]]):
    """Tokens of a .pbin, from one to another, are those of its dataset, or of the vocabulary where that is gone."""

    output: str
    packed: StoredArray
    dataset: StoredArray | None
    limit: int
    """Greatest id of the vocabulary."""
    remedy: str
    at_once: ClassVar[int] = AT_ONCE

    def look(self, part: tuple[int, int]) -> tuple[int, _Difference | None]:
        for begin in range(*part, _READ_TOKENS):
            end = min(begin + _READ_TOKENS, part[1])
            tokens = self.packed.read(begin, end)
            expected = None if self.dataset is None else self.dataset.read(begin, end)
            wrong = tokens > self.limit if expected is None else tokens != expected
            if wrong.any():
                at = int(np.argmax(wrong))
                wish = f"0 to {self.limit}" if expected is None else f"id {int(expected[at])}"
                return end - part[0], _Difference(begin + at, int(tokens[at]), wish)
        return part[1] - part[0], None

    def conclude(self, outcomes: Sequence[tuple[int, _Difference | None]]) -> Report:
        report = Report(self.output)
        report.figures["tokens_read"] = sum(read for read, _ in outcomes)
        if first := next((found for _, found in outcomes if found is not None), None):
            report.error(
                f"a token is not {'in the vocabulary' if self.dataset is None else 'that of the dataset'}",
                where=f"{self.packed.store.url(self.packed.name)}, byte {self.packed.byte(first.token)}",
                found=f"id {first.found}",
                expected=first.expected,
                remedy=self.remedy,
            )
        return report
