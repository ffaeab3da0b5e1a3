"""`nanoset explain`: from a sample to the documents in it, and back."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION


@click.command("explain")
@click.argument("nanoset")
@click.argument("split")
@click.argument("sample", type=int, required=False)
@CONFIG_OPTION
@click.option("--document", "identity", help="The other way: which samples hold the document of this id.")
@click.option("--file", help="The other way, by place: a file, relative to its corpus's folder; needs --line.")
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
    from nanoset_core.cli import explain_tables
    from nanoset_core.pipeline.project import Project

    project = Project.open(config)
    if sample is not None:
        if any(value is not None for value in (identity, file, line, number, corpus)):
            raise click.UsageError("give a SAMPLE, or a document to look for, not both")
        lines = explain_tables.sample_lines(project, nanoset, split, sample, as_json=as_json)
    elif identity is None and file is None and number is None:
        raise click.UsageError("give a SAMPLE, or a document: --document ID, --file F --line N, or --number N")
    else:
        wanted = {"identity": identity, "file": file, "line": line, "number": number, "corpus": corpus}
        lines = explain_tables.document_lines(project, nanoset, split, wanted, as_json=as_json, show=show)
    for text in lines:
        click.echo(text)
