"""Is a .pbin whole, and does it hold the documents of its dataset?"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, NanosetError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_of
from nanoset_core.formats.pbin.layout import IndexFacts, PackedFile, open_packed, scan_index
from nanoset_core.formats.pbin.pickle_codec import encode_index
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.dataset.token_check import AT_ONCE, StoredArray
from nanoset_core.stages.dataset.token_ranges import QUICK_TOKENS, spread_chunks
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.datasets import dataset_node
from nanoset_core.stages.pbin import stage as packed_stage
from nanoset_core.stages.pbin.writing import back_to_back
from nanoset_core.stages.report import BUILD, PART_BYTES, Parts, Report, Run, check_files, run_here
from nanoset_core.stages.stage import Key

_READ_TOKENS = 1 << 20


def verify_packed(project: Project, corpus: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check the current .pbin of a corpus.

    It is there, of the size written, in the present layout; its index, which is read whole, covers the tokens exactly,
    document after document, and the counts are those noted. Documents and tokens are those of the dataset that it was
    made from, unless that is gone (`deep`: then its sha256 is); all tokens are read with `deep`, or where there are no
    more than 16 Mi, else those at 256 places. `run` has all of them looked at.
    """

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        if report.passed:
            try:
                _check_content(report, project, manifest, deep, run)
            except FormatError as error:
                error.remedy = _remedy(manifest)
                report.note_error(error)

    stage = packed_stage.PACKED_VIEWS if corpus in project.config.derived else packed_stage.PACKED
    return check_current(project, stage, Key(corpus), look, "documents", "tokens", "left_out", deep=False)


def made_from(
    report: Report, project: Project, manifest: Manifest, *, is_sampled: bool = False
) -> tuple[Manifest, MMapIndexedDataset] | None:
    """Return the dataset that an output was made from, and open it; warn where it is gone or damaged: None."""
    of = manifest.facts.get("of", manifest.name)
    stage = dataset_node(project.config, of).stage.layout.folder
    place = project.outputs.folder / stage / of / manifest.recipe["parents"]["dataset"]
    with contextlib.suppress(NanosetError):  # which is a finding of the dataset
        if (dataset := project.outputs.manifest_at(place)) is not None:
            return dataset, open_dataset(dataset, is_sampled=is_sampled)
    report.warn("the dataset is gone or damaged: tokens were not compared with it", place, None, None, BUILD)
    return None


def _remedy(manifest: Manifest) -> str:
    return f"delete {manifest.url()}, and {BUILD}"


def _check_content(report: Report, project: Project, manifest: Manifest, deep: bool, run: Run) -> None:
    path, size = manifest.folder / manifest.facts["file"], manifest.files[manifest.facts["file"]].size
    as_copy = not deep and path.is_file() and path.stat().st_size == size
    indexes = size - manifest.facts["tokens"] * manifest.facts["token_bytes"] + 20 * manifest.facts["documents"]
    manifest.access.make_room(indexes, manifest.url())  # that of the .pbin is fetched, and then the .idx
    file = open_packed(path, manifest.access.open_bytes(path, as_copy=as_copy))
    index = scan_index(file)
    if not _check_index(report, manifest, file, index):
        return
    if (found := made_from(report, project, manifest)) is None:
        check_files(report, manifest, deep=deep)
        return
    dataset = found[1]
    stream = stream_of(dataset)
    if not _check_documents(report, manifest, file, dataset, stream):
        return
    store, name = manifest.access.stored_at(file.path, as_copy=as_copy)
    packed = StoredArray(store, name, file.dtype, file.layout.header_bytes)
    store, prefix = dataset.stored(as_copies=not deep)
    tokens = StoredArray(store, f"{prefix}.bin", dataset.dtype)
    check = PackedCheck(packed, tokens, _remedy(manifest), stream)
    parts = [*spread_chunks(index.tokens)]
    if deep or index.tokens <= QUICK_TOKENS:
        step = PART_BYTES // file.token_bytes
        parts = [(begin, min(begin + step, index.tokens)) for begin in range(0, index.tokens, step)]
    (run if deep else run_here)(report, Parts(check.look, parts, check.conclude, at_once=AT_ONCE))


def _check_index(report: Report, manifest: Manifest, file: PackedFile, index: IndexFacts) -> bool:
    """Check that layout, counts and index are those of the file that was written."""
    facts = manifest.facts
    values = {
        "layout": (file.layout.name, "D"),
        "bytes a token": (file.token_bytes, facts["token_bytes"]),
        "documents": (index.documents, facts["documents"]),
        "tokens": (index.tokens, facts["tokens"]),
        "documents without tokens": (index.empty_documents, 0),
        "back to back": (index.is_contiguous, True),
        "shifts by a merge": (index.merge_faults, 0),
    }
    wrong = [(name, *pair) for name, pair in values.items() if pair[0] != pair[1]]
    return report.compare(
        "the index does not cover the tokens as it did when it was written",
        f"{file.path}, byte {file.index_begin}",
        ", ".join(f"{name}: {found}" for name, found, _ in wrong),
        ", ".join(f"{name}: {expected}" for name, _, expected in wrong),
        _remedy(manifest),
    )


def _check_documents(
    report: Report, manifest: Manifest, file: PackedFile, dataset: MMapIndexedDataset, stream: Stream | None
) -> bool:
    """Check that the index is what the dataset's documents give."""
    begin = file.index_begin
    for piece in encode_index(
        back_to_back(lengths * file.token_bytes for _, lengths in document_spans(dataset, stream))
    ):
        if bytes(file.view[begin : begin + len(piece)]) != piece:
            what, where = "documents begin elsewhere than in the dataset", f"{file.path}, byte {begin} or later"
            report.error(what, where, None, f"those of {dataset.prefix}.idx", _remedy(manifest))
            return False
        begin += len(piece)
    return True


@dataclass(frozen=True, slots=True)
class PackedCheck:
    """Tokens of a .pbin, from one to another, are those of its dataset."""

    packed: StoredArray
    dataset: StoredArray
    remedy: str
    stream: Stream | None = None
    """Of a view: where its tokens lie in the .bin."""

    def _expected(self, begin: int, end: int) -> NDArray[np.integer[Any]]:
        if self.stream is None:
            return self.dataset.read(begin, end)
        begins, lengths = self.stream.ranges(np.array([begin]), np.array([end - begin]))
        pieces = zip(begins.tolist(), (begins + lengths).tolist(), strict=True)
        return np.concatenate([self.dataset.read(*piece) for piece in pieces])

    def look(self, part: tuple[int, int]) -> tuple[int, tuple[int, int, int] | None]:
        """Return how many tokens a part has, and the first wrong one: its number, its id, and that of the dataset."""
        for begin in range(*part, _READ_TOKENS):
            end = min(begin + _READ_TOKENS, part[1])
            tokens, expected = self.packed.read(begin, end), self._expected(begin, end)
            if (wrong := tokens != expected).any():
                at = int(np.argmax(wrong))
                return end - part[0], (begin + at, int(tokens[at]), int(expected[at]))
        return part[1] - part[0], None

    def conclude(self, report: Report, outcomes: Sequence[tuple[int, tuple[int, int, int] | None]]) -> None:
        """Note how many tokens were read, and the first wrong one."""
        report.figures["tokens_read"] = sum(read for read, _ in outcomes)
        for token, found, expected in [wrong for _, wrong in outcomes if wrong is not None][:1]:
            where = f"{self.packed.url}, byte {self.packed.byte(token)}"
            report.error("a token is not that of the dataset", where, f"id {found}", f"id {expected}", self.remedy)
