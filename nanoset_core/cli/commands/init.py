"""`nanoset init`: a configuration to start from."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import FOLDER, PATH, flag, option
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.untrusted import Multiline, shell_line

_SHOWN = 3
"""Files outside of the raw folder that are named."""


@click.command("init", short_help="Write a nanoset.yaml to start from.")
@click.argument("folder", type=FOLDER, default=Path())
@option("--text-key", "Key of the text, where the first lines do not tell it.")
@option("--tokenizer", "Its file or folder; default: the one in FOLDER.", type=PATH)
@flag("--schema", "Only print the JSON schema of nanoset.yaml.")
def command(folder: Path, text_key: str | None, tokenizer: Path | None, schema: bool) -> None:
    """Write a nanoset.yaml to start from into FOLDER, for the corpora that its raw folder holds and
    its tokenizer.

    The first lines of each corpus tell the keys of text and ids, names of files which of them are
    for validation and tests, the amount of text how long samples, splits and the run are. Each
    choice is said, also as a comment in the file; on a terminal you are asked what cannot be told.

    Its JSON schema is written beside it, so that editors complete keys and show mistakes.
    """
    from nanoset_core.project.first_config import write_config
    from nanoset_core.project.project import Project
    from nanoset_core.project.template import schema_text
    from nanoset_core.records.text import format_bytes, format_count
    from nanoset_core.stages.shards.options import check_tokenizer
    from nanoset_core.text.notices import abbreviated

    if schema:
        echo(Multiline(schema_text()), nl=False)
        return
    start = write_config(folder, text_key=text_key, tokenizer=tokenizer, ask=_ask)
    raw, found = start.path.parent / "raw", start.text
    for name, corpus in found.corpora.items():
        echo(
            f"found {name}: {format_count(len(corpus.texts), 'file')}, {format_bytes(corpus.size)}"
        )
        for notice in corpus.notices():
            echo(f"notice: {name}: {notice.text}", fg="yellow")
    for name, what in found.aside.items():
        echo(f"not read: {name}: {what}", fg="yellow")
    if start.beside:
        files = format_count(len(start.beside), "file")
        remedy = f"to have it read, move it to {raw / 'NAME'}, a folder for each corpus"
        echo(
            f"not read: {files} of text outside of {raw}: {abbreviated(start.beside, _SHOWN)}: {remedy}",
            fg="yellow",
        )

    error = None
    try:
        check_tokenizer(Project.open(start.path))
    except NanosetError as problem:
        error = problem
    command_line = build_command(start.path)
    if start.made:
        for line in start.chosen:
            echo(f"chose {line}")
        empty = f", which names no corpus, since there is no text in {raw}: put a folder for each corpus there"
        first = ": read it" if found.corpora else f"{empty}, name them below nanosets"
        named = ", name your tokenizer" if ": tokenizer." in str(error and error.where) else ""
        echo(f"wrote {start.path}{first}{named}, then run `{command_line}`")
    else:
        echo(
            f"nothing was changed: {start.path} is there already, as it would be written now; run `{command_line}`"
        )
    if error is not None:
        echo(f"notice: {one_line(error)}: {error.remedy}", fg="yellow")


def build_command(config: Path) -> str:
    """Return the command that builds a project from the folder where the user is."""
    folder = config.parent
    is_here = folder.resolve() == Path.cwd() and not os.environ.get("NANOSET_CONFIG")
    if is_here:
        return "nanoset build"
    named = f"./{folder}" if str(folder).startswith("-") else str(folder)
    return shell_line("nanoset", "build", "-c", named)


def _ask(question: str, answers: Sequence[str]) -> str | None:
    """Ask on a terminal; None where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    answer: str = click.prompt(question, type=click.Choice(answers), default=answers[0])
    return answer
