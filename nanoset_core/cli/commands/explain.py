"""`nanoset explain`: from a sample of a nanoset or webdataset to the documents in it, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION
from nanoset_core.cli.rows import place_of
from nanoset_core.cli.tables import print_json
from nanoset_core.serialization.text import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.lineage.excerpts import SourceExcerpt
    from nanoset_core.lineage.explain import SampleOrigin
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
    from nanoset_core.mapping.splits import SPLITS
    from nanoset_core.pipeline.project import Project

    project = Project.open(config)
    specs = project.config
    # What nanoset.yaml no longer names is recognised by the split.
    in_tars = nanoset in specs.webdatasets or (nanoset not in specs.nanosets and split not in SPLITS)
    if split is None and not in_tars:
        raise click.UsageError("Missing argument 'SPLIT': train, valid or test")
    document = {"identity": identity, "file": file, "line": line, "number": number}
    has_sample = (split if in_tars else sample) is not None
    _check(has_sample, **document, corpus=corpus)
    plain: object
    if has_sample:
        origin = _origin(project, nanoset, split or "", sample, in_tars)
        lines, plain = _sample_lines(origin), origin.to_json()
    else:
        places = _places(project, nanoset, None if in_tars else split, document, corpus)
        lines = _document_lines(places, "" if in_tars else f"{split} ", show)
        plain = [place.to_json() for place in places]
    if as_json:
        print_json(plain, ensure_ascii=False)
    else:
        for text in lines:
            click.echo(text)


def _check(has_sample: bool, **document: object) -> None:
    """Refuse a sample together with a document, and neither."""
    if has_sample and any(value is not None for value in document.values()):
        raise click.UsageError("give a SAMPLE, or a document to look for, not both")
    if not has_sample and all(document[name] is None for name in ("identity", "file", "number")):
        raise click.UsageError("give a SAMPLE, or a document: --document ID, --file F --line N, or --number N")


def _origin(project: Project, name: str, split: str, sample: int | None, in_tars: bool) -> SampleOrigin | ContextOrigin:
    from nanoset_core.lineage.explain import explain_sample
    from nanoset_core.lineage.webdataset import explain_context

    if in_tars:
        return explain_context(project, name, split, sample)
    return explain_sample(project, name, split, sample or 0)


def _places(
    project: Project, name: str, split: str | None, document: Mapping[str, Any], corpus: str | None
) -> list[DocumentPlaces]:
    """Where a document went, in a split of a nanoset or, where that is None, in tars."""
    from nanoset_core.lineage.find import find_document, find_place
    from nanoset_core.lineage.webdataset import find_in_tars, find_place_in_tars

    if document["identity"] is None and document["number"] is None:  # a place alone names it
        file, line = document["file"], document["line"]
        if split is None:
            return find_place_in_tars(project, name, file, line, corpus)
        return find_place(project, name, split, file, line, corpus)
    if split is None:
        return find_in_tars(project, name, **document, corpus=corpus)
    return find_document(project, name, split, **document, corpus=corpus)


def _sample_lines(origin: SampleOrigin | ContextOrigin) -> Iterator[str]:
    """A sample's documents."""
    yield _headline(origin)
    for piece in origin.pieces:
        (first, last), (begin, end) = piece.sample_tokens, piece.document_tokens
        yield ""
        yield f"tokens {first:,} to {last:,}: {_format_origin(piece.origin)}, its tokens {begin:,} to {end:,}"
        if piece.text is not None:
            yield f"  tokens: {piece.text!r}"
        if piece.source is not None:
            yield f"  source: {_source(piece.source)}"


def _headline(origin: SampleOrigin | ContextOrigin) -> str:
    from nanoset_core.lineage.explain import SampleOrigin

    padding = f", {origin.pad_tokens:,} of padding" if origin.pad_tokens else ""
    documents = format_count(len(origin.pieces), "document")
    if isinstance(origin, SampleOrigin):
        return (
            f"{origin.name} {origin.split} sample {origin.sample:,}: sample {origin.corpus_sample:,} of "
            f"{origin.corpus}, {origin.tokens:,} tokens{padding} from {documents}"
        )
    bos = f", {origin.bos_tokens:,} BOS" if origin.bos_tokens else ""
    return (
        f"{origin.name} sample {origin.key} ({origin.position:,} of all tars) in {origin.tar}: "
        f"context {origin.context:,} before the shuffle, of {origin.corpus}, "
        f"{origin.tokens:,} tokens{bos}{padding} from {documents}"
    )


def _document_lines(places: list[DocumentPlaces], split: str, show: int) -> Iterator[str]:
    """The samples that hold each document, at most `show`; each line begins with `split`."""
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
    from nanoset_core.lineage.webdataset import TarAppearance

    if isinstance(appearance, TarAppearance):
        return f"sample {appearance.key} ({appearance.sample:,} of all tars) in {appearance.tar}"
    return f"sample {appearance.sample:,}"


def _format_origin(origin: DocumentOrigin) -> str:
    byte = f" (byte {origin.byte_offset:,})" if origin.byte_offset >= 0 else " (row)"
    identity = f", id {origin.id!r}" if origin.id is not None else ""
    return f"{place_of(origin)}{byte}{identity}, document {origin.document:,} of {origin.tokens:,} tokens"


def _source(source: SourceExcerpt) -> str:
    if source.text is None:
        return f"{source.state}: {source.note}"
    return f"{source.text!r}" + ("" if source.state == "unchanged" else f" ({source.note})")
