"""Document → members of tars: where a document went in a webdataset, or why it is nowhere; no tar is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from nanoset_core.lineage.context import InspectionContext
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.lineage.find import Appearance, DocumentPlaces, WantedDocument, covered, find_at, find_origins
from nanoset_core.lineage.webdataset import Tars
from nanoset_core.pipeline.project import Project
from nanoset_core.shuffling.order import ranks_of

_TAIL = "they lie in a tail that does not fill a context"


@dataclass(frozen=True, slots=True)
class TarAppearance(Appearance):
    """Tokens of a document in one context; `sample` is its number over all tars."""

    tar: str
    """Name of the tar that holds it."""
    key: str
    """Its `__key__`."""


def find_in_tars(
    project_or_root: Project | str | os.PathLike[str],
    name: str,
    *,
    identity: str | None = None,
    file: str | None = None,
    line: int | None = None,
    number: int | None = None,
    corpus: str | None = None,
) -> list[DocumentPlaces]:
    """Which contexts of a webdataset's tars hold a document; its appearances are `TarAppearance`s.

    name: of a webdataset, whose live version counts. Other arguments and errors as for `find_document`.
    """
    wanted = WantedDocument(identity, file, line, number)
    context = InspectionContext.of(project_or_root)
    tars = Tars.of(context.outputs, name)
    return [
        _places(tars, source, origin) for source, origin in find_origins(context, tars.datasets, wanted, corpus, name)
    ]


def find_place_in_tars(
    project: Project, name: str, place: str, line: int | None = None, corpus: str | None = None
) -> list[DocumentPlaces]:
    """As `find_in_tars` by file and line; arguments and errors as for `find_place`."""
    find = partial(find_in_tars, project, name)
    return find_at(project, project.webdataset(name).names, find, place, line, corpus)


def _places(tars: Tars, source: int, origin: DocumentOrigin) -> DocumentPlaces:
    plan, dataset = tars.plan, tars.opened[source]
    sequences = dataset.document_indices[origin.document : origin.document + 2].tolist()
    lengths = dataset.sequence_lengths[sequences[0] : sequences[1]]
    if not lengths.any():
        return DocumentPlaces(origin, (), 0, "never seen: it has no tokens")
    begin = int(dataset.sequence_pointers[sequences[0]]) // dataset.dtype.itemsize
    contexts = plan.table.holding(source, begin, begin + int(lengths.sum()))
    positions = ranks_of(contexts, plan.table.contexts, plan.settings.seed)
    found = [
        (position, sample_tokens, document_tokens)
        for position, context in zip(positions.tolist(), contexts.tolist(), strict=True)
        for sample_tokens, document_tokens in _overlaps(tars, context, source, begin, begin + int(lengths.sum()))
    ]
    appearances = tuple(
        TarAppearance(position, into, tokens, tars.tar(position), tars.key(position))
        for position, into, tokens in sorted(found)
        if position < plan.contexts
    )
    seen = covered([appearance.document_tokens for appearance in appearances])
    planned = covered([tokens for _, _, tokens in found])
    return DocumentPlaces(origin, appearances, seen, _reason(tars, source, origin.tokens, planned, seen))


def _overlaps(
    tars: Tars, context: int, source: int, begin: int, end: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(tokens of the context, tokens of the document) that are a document's, which is [begin, end excl) of a source."""
    overlaps = []
    position = tars.bos
    for number, first, last in tars.spans(context):
        low, high = max(first, begin), min(last, end)
        if number == source and low < high:
            into = position + low - first
            overlaps.append(((into, into + high - low), (low - begin, high - begin)))
        position += last - first
    return overlaps


def _reason(tars: Tars, source: int, tokens: int, planned: int, seen: int) -> str | None:
    """Why tokens of a document are in no tar; None where all are."""
    if seen == tokens:
        return None
    part = "never seen" if seen == 0 else f"{tokens - seen:,} of its {tokens:,} tokens are never seen"
    if seen < planned:
        return f"{part}, because they lie in contexts that are left out so that all tars are equal (even)"
    if tars.plan.table.sources[source].frequency < 1:
        return f"{part}, because not all contexts of this corpus are taken, or {_TAIL}"
    return f"{part}, because {_TAIL}"
