"""`nanoset explain`: from a sample to the documents in it, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION
from nanoset_core.cli.tables import print_json
from nanoset_core.serialization.text import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.lineage.excerpts import SourceExcerpt
    from nanoset_core.lineage.explain import PieceOrigin, SampleOrigin
    from nanoset_core.lineage.find import DocumentPlaces


@click.command("explain")
@click.argument("nanoset")
@click.argument("split")
@click.argument("sample", type=int, required=False)
@CONFIG_OPTION
@click.option("--document", "identity", help="The other way: which samples hold the document of this id.")
@click.option("--file", help="The other way, by place, as explain prints it: corpus/file:line; or a file and --line.")
@click.option("--line", type=click.IntRange(1), help="Line of that file, from 1; of a table the row.")
@click.option("--number", type=click.IntRange(0), help="The other way: a document's number in its dataset.")
@click.option("--corpus", help="Look in this corpus only.")
@JSON_OPTION
@click.option("--show", type=click.IntRange(0), default=20, show_default=True, help="How many samples to list.")
def command(
    nanoset: str,
    split: str,
    sample: int | None,
    config: Path,
    identity: str | None,
    file: str | None,
    line: int | None,
    number: int | None,
    corpus: str | None,
    as_json: bool,
    show: int,
) -> None:
    """Show which documents SAMPLE of a NANOSET's SPLIT holds, with file, line and text; or where a document went."""
    from nanoset_core.lineage.explain import explain_sample
    from nanoset_core.lineage.find import find_document, find_place
    from nanoset_core.pipeline.project import Project

    project = Project.open(config)
    plain: object
    if sample is not None:
        if any(value is not None for value in (identity, file, line, number, corpus)):
            raise click.UsageError("give a SAMPLE, or a document to look for, not both")
        origin = explain_sample(project, nanoset, split, sample)
        lines, plain = _sample_lines(origin), origin.to_json()
    elif identity is None and file is None and number is None:
        raise click.UsageError("give a SAMPLE, or a document: --document ID, --file F --line N, or --number N")
    else:
        if file is not None and identity is None and number is None:
            places = find_place(project, nanoset, split, file, line, corpus)
        else:
            places = find_document(
                project, nanoset, split, identity=identity, file=file, line=line, number=number, corpus=corpus
            )
        lines, plain = _document_lines(places, split, show), [place.to_json() for place in places]
    if as_json:
        print_json(plain, ensure_ascii=False)
    else:
        for text in lines:
            click.echo(text)


def _sample_lines(origin: SampleOrigin) -> Iterator[str]:
    """A sample's documents."""
    yield _headline(origin)
    for piece in origin.pieces:
        yield ""
        yield from _piece(piece)


def _document_lines(places: list[DocumentPlaces], split: str, show: int) -> Iterator[str]:
    """The samples that hold a document, at most `show` of each."""
    for number, place in enumerate(places):
        yield "" if number else f"{format_count(len(places), 'document')} found"
        yield _format_origin(place.origin)
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
        f"{origin.tokens:,} tokens{pad} from {format_count(len(origin.pieces), 'document')}"
    )


def _piece(piece: PieceOrigin) -> Iterator[str]:
    first, last = piece.sample_tokens
    begin, end = piece.document_tokens
    yield f"tokens {first:,} to {last:,}: {_format_origin(piece.origin)}, its tokens {begin:,} to {end:,}"
    if piece.text is not None:
        yield f"  tokens: {piece.text!r}"
    if piece.source is not None:
        yield f"  source: {_source(piece.source)}"


def _format_origin(origin: DocumentOrigin) -> str:
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
