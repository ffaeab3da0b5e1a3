"""Is a .pbin whole, and does it hold the documents of its dataset?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, NanosetError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.packed.index import IndexFacts, document_entries, scan_index
from nanoset_core.packed.layout import PackedFile, open_packed
from nanoset_core.packed.packing import document_spans
from nanoset_core.packed.pickle_codec import rechunk
from nanoset_core.pipeline import indexed, packed
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.verification.dataset import QUICK_TOKENS, spread_chunks
from nanoset_core.verification.files import check_file, check_freshness, live_manifest
from nanoset_core.verification.report import Report

_BUILD = "run `nanoset build`"
_CHUNK_DOCUMENTS = 1 << 16
_NO_ENTRIES = np.empty(0, np.int64), np.empty(0, np.int64)


def verify_packed(project: Project, corpus: str, deep: bool = False) -> Report:
    """Check the current .pbin of a corpus.

    It is there, of the size written (`deep`: sha256), in the present layout; its index, which is read whole, covers the
    tokens exactly, document after document, and the counts are those noted. Documents and tokens are those of the
    dataset that it was made from, or of the vocabulary where that dataset is gone; all tokens are read with `deep`, or
    where there are no more than 16 Mi, else those at 256 places.
    """
    report = Report(f"{packed.STAGE}/{corpus}")
    with report.catching(_BUILD):
        manifest = live_manifest(project.outputs, packed.STAGE, corpus, _BUILD)
        check_freshness(report, project, packed.PACKED, Key(corpus), manifest)
        report.figures.update({name: manifest.facts[name] for name in ("documents", "tokens", "left_out")})
        whole = [
            check_file(report, manifest, file, fact.size, fact.sha256 if deep else None, _BUILD)
            for file, fact in manifest.files.items()
        ]
        if all(whole):
            _check_content(report, project, manifest, deep)
    return report


def _check_content(report: Report, project: Project, manifest: Manifest, deep: bool) -> None:
    remedy = f"delete {manifest.url()}, and {_BUILD}"
    try:
        file = open_packed(manifest.path(manifest.facts["file"]))
        index = scan_index(file)
    except FormatError as error:
        report.error(error.what, where=error.where, found=error.found, expected=error.expected, remedy=remedy)
        return
    dataset = _dataset_of(project, manifest)
    if _check_index(report, manifest.facts, file, index, remedy) and (
        dataset is None or _check_borders(report, file, index, dataset, remedy)
    ):
        _check_tokens(report, file, dataset, project.tokenizer.max_id, deep, remedy)


def _dataset_of(project: Project, manifest: Manifest) -> MMapIndexedDataset | None:
    """The dataset that a .pbin was made from; None where it is gone, or damaged: a finding of its own."""
    folder = project.outputs.folder / indexed.STAGE / manifest.name / manifest.recipe["parents"]["dataset"]
    try:
        found = project.outputs.manifest_at(folder)
        return None if found is None else MMapIndexedDataset(found.path(found.facts["prefix"]))
    except NanosetError:
        return None


def _check_index(report: Report, facts: Mapping[str, Any], file: PackedFile, index: IndexFacts, remedy: str) -> bool:
    """Whether layout, counts and index are those of the file that was written."""
    expected = {
        "layout": "D",
        "bytes a token": facts["token_bytes"],
        "documents": facts["documents"],
        "tokens": facts["tokens"],
        "documents without tokens": 0,
        "back to back": True,
        "shifts by a merge": 0,
    }
    found = dict(
        zip(
            expected,
            (
                file.layout.name,
                file.token_bytes,
                index.documents,
                index.tokens,
                index.empty_documents,
                index.is_contiguous,
                index.merge_faults,
            ),
            strict=True,
        )
    )
    wrong = [name for name in expected if found[name] != expected[name]]
    if wrong:
        report.error(
            "the index does not cover the tokens as it did when it was written",
            where=f"{file.path}, byte {file.index_begin}",
            found=", ".join(f"{name}: {found[name]}" for name in wrong),
            expected=", ".join(f"{name}: {expected[name]}" for name in wrong),
            remedy=remedy,
        )
    return not wrong


def _check_borders(
    report: Report, file: PackedFile, index: IndexFacts, dataset: MMapIndexedDataset, remedy: str
) -> bool:
    """Whether every document begins and ends where it does in the dataset."""
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


def _check_tokens(
    report: Report, file: PackedFile, dataset: MMapIndexedDataset | None, limit: int, deep: bool, remedy: str
) -> None:
    tokens, read = file.tokens, 0
    for begin, end in spread_chunks(len(tokens), deep or len(tokens) <= QUICK_TOKENS):
        part = tokens[begin:end]
        read += len(part)
        wrong = part > limit if dataset is None else part != dataset.tokens[begin:end]
        if wrong.any():
            at = int(np.argmax(wrong))
            if dataset is None:
                what, expected = "a token is not in the vocabulary", f"0 to {limit}"
            else:
                what, expected = "a token is not that of the dataset", f"id {int(dataset.tokens[begin + at])}"
            report.error(
                what,
                where=f"{file.path}, byte {file.layout.header_bytes + (begin + at) * file.token_bytes}",
                found=f"id {int(part[at])}",
                expected=expected,
                remedy=remedy,
            )
            break
    report.figures["tokens_read"] = read
