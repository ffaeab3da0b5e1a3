"""`nanoset explain`: from a sample of a nanoset or webdataset to the documents in it, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION
from nanoset_core.cli.rows import place_of
from nanoset_core.cli.tables import print_json
from nanoset_core.serialization.text import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.lineage.excerpts import SourceExcerpt
    from nanoset_core.lineage.explain import PieceOrigin, SampleOrigin
    from nanoset_core.lineage.find import Appearance, DocumentPlaces
    from nanoset_core.lineage.webdataset import ContextOrigin
    from nanoset_core.pipeline.project import Project


@click.command("explain", short_help="Show the documents of a sample, or a document's samples.")
@click.argument("nanoset", metavar="NAME")
@click.argument("split", required=False)
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
    split: str | None,
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
    """Show which documents a sample of NAME holds, with file, line and text; or where a document went.

    Of a nanoset give SPLIT and SAMPLE. Of a webdataset give, in place of SPLIT, a sample's key (00000003_00000017), a
    tar (shard-00000003.tar) with SAMPLE, its number in there, or a number over all tars.
    """
    from nanoset_core.pipeline.project import Project

    project = Project.open(config)
    document = _Document(identity, file, line, number, corpus)
    if _is_webdataset(project, nanoset, split):
        lines, plain = _of_webdataset(project, nanoset, split, sample, document, show)
    else:
        if split is None:
            raise click.UsageError("Missing argument 'SPLIT': train, valid or test")
        lines, plain = _of_nanoset(project, nanoset, split, sample, document, show)
    if as_json:
        print_json(plain, ensure_ascii=False)
    else:
        for text in lines:
            click.echo(text)


@dataclass(frozen=True)
class _Document:
    """The options that name a document."""

    identity: str | None
    file: str | None
    line: int | None
    number: int | None
    corpus: str | None

    def check(self, has_sample: bool) -> None:
        """There must be a sample, or a document."""
        if has_sample and self != _Document(None, None, None, None, None):
            raise click.UsageError("give a SAMPLE, or a document to look for, not both")
        if not has_sample and self.identity is None and self.file is None and self.number is None:
            raise click.UsageError("give a SAMPLE, or a document: --document ID, --file F --line N, or --number N")

    @property
    def place(self) -> str | None:
        """The file, where a place alone names the document."""
        return self.file if self.identity is None and self.number is None else None


def _is_webdataset(project: Project, name: str, split: str | None) -> bool:
    """What is in neither list, but was built once, is told by the split."""
    from nanoset_core.mapping.splits import SPLITS

    config = project.config
    return name in config.webdatasets or (name not in config.nanosets and split not in SPLITS)


def _of_nanoset(
    project: Project, name: str, split: str, sample: int | None, document: _Document, show: int
) -> tuple[Iterator[str], object]:
    from nanoset_core.lineage.explain import explain_sample
    from nanoset_core.lineage.find import find_document, find_place

    document.check(sample is not None)
    if sample is not None:
        origin = explain_sample(project, name, split, sample)
        return _sample_lines(_headline(origin), origin.pieces), origin.to_json()
    if document.place is not None:
        places = find_place(project, name, split, document.place, document.line, document.corpus)
    else:
        places = find_document(project, name, split, **asdict(document))
    return _document_lines(places, f"{split} ", show), [place.to_json() for place in places]


def _of_webdataset(
    project: Project, name: str, place: str | None, sample: int | None, document: _Document, show: int
) -> tuple[Iterator[str], object]:
    from nanoset_core.lineage.find_context import find_in_tars, find_place_in_tars
    from nanoset_core.lineage.webdataset import explain_context

    document.check(place is not None)
    if place is not None:
        origin = explain_context(project, name, place, sample)
        return _sample_lines(_context_headline(origin), origin.pieces), origin.to_json()
    if document.place is not None:
        places = find_place_in_tars(project, name, document.place, document.line, document.corpus)
    else:
        places = find_in_tars(project, name, **asdict(document))
    return _document_lines(places, "", show), [place.to_json() for place in places]


def _sample_lines(headline: str, pieces: Iterable[PieceOrigin]) -> Iterator[str]:
    """A sample's documents."""
    yield headline
    for piece in pieces:
        yield ""
        yield from _piece(piece)


def _document_lines(places: list[DocumentPlaces], split: str, show: int) -> Iterator[str]:
    """The samples that hold a document, at most `show` of each; `split` stands in front of each."""
    for number, place in enumerate(places):
        yield "" if number else f"{format_count(len(places), 'document')} found"
        yield _format_origin(place.origin)
        if place.reason is not None:
            yield f"  {place.reason}"
        for appearance in place.appearances[:show]:
            (begin, end), (first, last) = appearance.document_tokens, appearance.sample_tokens
            yield (
                f"  {split}{_sample(appearance)}: its tokens {begin:,} to {end:,} "
                f"are tokens {first:,} to {last:,} of the sample"
            )
        if len(place.appearances) > show:
            yield f"  … and {len(place.appearances) - show:,} samples more (--show)"


def _sample(appearance: Appearance) -> str:
    from nanoset_core.lineage.find_context import TarAppearance

    if isinstance(appearance, TarAppearance):
        return f"sample {appearance.key} ({appearance.sample:,} of all tars) in {appearance.tar}"
    return f"sample {appearance.sample:,}"


def _context_headline(origin: ContextOrigin) -> str:
    extra = f", {origin.bos_tokens:,} BOS" if origin.bos_tokens else ""
    extra += f", {origin.pad_tokens:,} of padding" if origin.pad_tokens else ""
    return (
        f"{origin.name} sample {origin.key} ({origin.position:,} of all tars) in {origin.tar}: "
        f"context {origin.context:,} before the shuffle, of {origin.corpus}, "
        f"{origin.tokens:,} tokens{extra} from {format_count(len(origin.pieces), 'document')}"
    )


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
    return f"{place_of(origin)}{byte}{identity}, document {origin.document:,} of {origin.tokens:,} tokens"


def _source(source: SourceExcerpt) -> str:
    if source.text is None:
        return f"{source.state}: {source.note}"
    return f"{source.text!r}" + ("" if source.state == "unchanged" else f" ({source.note})")
