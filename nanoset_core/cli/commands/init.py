"""`nanoset init`: a configuration to start from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import FOLDER, flag, option
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.untrusted import Multiline


@click.command("init", short_help="Write a nanoset.yaml to start from.")
@click.argument("folder", type=FOLDER, default=Path())
@option("--text-key", "Key of the text, where the first lines do not tell it.")
@flag("--schema", "Only print the JSON schema of nanoset.yaml.")
def command(folder: Path, text_key: str | None, schema: bool) -> None:
    """Write a nanoset.yaml to start from into FOLDER, for the corpora that its raw folder holds and its tokenizer.

    The first lines of each corpus tell the keys of text and ids, names of files which of them are for validation and
    tests, the amount of text how long samples, splits and the run are. Each choice is said, also as a comment in the
    file; on a terminal you are asked what cannot be told.

    Its JSON schema is written beside it, so that editors complete keys and show mistakes.
    """
    from nanoset_core.config.first import write_config
    from nanoset_core.config.template import schema_text
    from nanoset_core.pipeline.project import Project
    from nanoset_core.pipeline.tokenization import check_tokenizer
    from nanoset_core.serialization.text import format_bytes, format_count

    if schema:
        echo(Multiline(schema_text()), nl=False)
        return
    start = write_config(folder, text_key=text_key, ask=_ask)
    raw, found = start.path.parent / "raw", start.text
    for name, corpus in found.corpora.items():
        echo(f"found {name}: {format_count(len(corpus.texts), 'file')}, {format_bytes(corpus.size)}")
        for notice in corpus.notices():
            echo(f"notice: {name}: {notice.text}", fg="yellow")
    for name, what in found.aside.items():
        echo(f"not read: {name}: {what}", fg="yellow")
    for line in start.chosen:
        echo(f"chose {line}")
    error = None
    try:
        check_tokenizer(Project.open(start.path))
    except NanosetError as problem:
        error = problem
    empty = f", which names no corpus, since there is no text in {raw}: put a folder for each corpus there"
    first = ": read it" if found.corpora else f"{empty}, name them below nanosets"
    done = "wrote" if start.made else "there already:"
    tokenizer = ", name your tokenizer" if ": tokenizer." in str(error and error.where) else ""
    echo(f"{done} {start.path}{first}{tokenizer}, then run `nanoset build`")
    if error is not None:
        echo(f"notice: {one_line(error)}: {error.remedy}", fg="yellow")


def _ask(question: str, answers: Sequence[str]) -> str | None:
    """Ask on a terminal; None where there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    answer: str = click.prompt(question, type=click.Choice(answers), default=answers[0])
    return answer
