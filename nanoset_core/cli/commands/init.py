"""`nanoset init`: a configuration to start from."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import FOLDER
from nanoset_core.errors import NanosetError, one_line


@click.command("init", short_help="Write a nanoset.yaml to start from.")
@click.argument("folder", type=FOLDER, default=Path())
@click.option("--schema", is_flag=True, help="Only print the JSON schema of nanoset.yaml.")
def command(folder: Path, schema: bool) -> None:
    """Write a nanoset.yaml to start from into FOLDER, naming the corpora that its raw folder holds.

    Its JSON schema is written beside it, so that editors complete keys and show mistakes.
    """
    from nanoset_core.config.template import schema_text, write_config
    from nanoset_core.pipeline.project import Project
    from nanoset_core.pipeline.tokenization import check_tokenizer
    from nanoset_core.serialization.text import format_bytes, format_count

    if schema:
        click.echo(schema_text(), nl=False)
        return
    start = write_config(folder)
    raw, found = start.path.parent / "raw", start.text
    for name, corpus in found.corpora.items():
        click.echo(f"found {name}: {format_count(len(corpus.texts), 'file')}, {format_bytes(corpus.size)}")
        for notice in corpus.notices():
            click.secho(f"notice: {name}: {notice.text}", fg="yellow")
    for name, what in found.aside.items():
        click.secho(f"not read: {name}: {what}", fg="yellow")
    empty = f", which names no corpus, since there is no text in {raw}: put a folder for each corpus there"
    first = ": read it" if found.corpora else f"{empty}, name them below nanosets"
    done = "wrote" if start.made else "there already:"
    click.echo(f"{done} {start.path}{first}, name your tokenizer, then run `nanoset build`")
    try:
        check_tokenizer(Project.open(start.path))
    except NanosetError as error:
        click.secho(f"notice: {one_line(error)}: {error.remedy}", fg="yellow")
