"""What `nanoset explain` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.lineage.excerpts import SourceExcerpt
from nanoset_core.lineage.explain import PieceOrigin, SampleOrigin, explain_sample
from nanoset_core.pipeline.project import Project


def sample_lines(project: Project, name: str, split: str, sample: int, *, as_json: bool) -> Iterator[str]:
    """A sample's documents."""
    origin = explain_sample(project, name, split, sample)
    if as_json:
        yield json.dumps(origin.to_json(), indent=1, ensure_ascii=False)
        return
    yield _headline(origin)
    for piece in origin.pieces:
        yield ""
        yield from _piece(piece)


def document_lines(
    project: Project, name: str, split: str, wanted: Mapping[str, Any], *, as_json: bool, show: int
) -> Iterator[str]:
    """The samples that hold a document."""
    from nanoset_core.lineage.find import find_document

    places = find_document(project, name, split, **wanted)
    if as_json:
        yield json.dumps([place.to_json() for place in places], indent=1, ensure_ascii=False)
        return
    for number, place in enumerate(places):
        yield "" if number else f"{len(places):,} document{'s' * (len(places) != 1)} found"
        yield _spelled(place.origin)
        if place.reason is not None:
            yield f"  {place.reason}"
        for appearance in place.appearances[:show]:
            (begin, end), (first, last) = appearance.document_tokens, appearance.sample_tokens
            yield (
                f"  {split} sample {appearance.sample:,}: its tokens {begin:,} to {end:,} "
                f"are tokens {first:,} to {last:,} of the sample"
            )
        if len(place.appearances) > show:
            yield f"  … and {len(place.appearances) - show:,} samples more (--show)"


def _headline(origin: SampleOrigin) -> str:
    pad = f", {origin.pad_tokens:,} of padding" if origin.pad_tokens else ""
    return (
        f"{origin.name} {origin.split} sample {origin.sample:,}: sample {origin.corpus_sample:,} of {origin.corpus}, "
        f"{origin.tokens:,} tokens{pad} from {len(origin.pieces):,} document{'s' * (len(origin.pieces) != 1)}"
    )


def _piece(piece: PieceOrigin) -> Iterator[str]:
    first, last = piece.sample_tokens
    begin, end = piece.document_tokens
    yield f"tokens {first:,} to {last:,}: {_spelled(piece.origin)}, its tokens {begin:,} to {end:,}"
    if piece.text is not None:
        yield f"  tokens: {piece.text!r}"
    if piece.source is not None:
        yield f"  source: {_source(piece.source)}"


def _spelled(origin: DocumentOrigin) -> str:
    byte = f" (byte {origin.byte_offset:,})" if origin.byte_offset >= 0 else " (row)"
    identity = f", id {origin.id!r}" if origin.id is not None else ""
    return (
        f"{origin.corpus}/{origin.file}:{origin.line}{byte}{identity}, "
        f"document {origin.document:,} of {origin.tokens:,} tokens"
    )


def _source(source: SourceExcerpt) -> str:
    if source.text is None:
        return f"{source.state}: {source.note}"
    return f"{source.text!r}" + ("" if source.state == "unchanged" else f" ({source.note})")
