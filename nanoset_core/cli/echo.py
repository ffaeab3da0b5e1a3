"""The function with which all commands print text."""

from __future__ import annotations

from typing import TextIO

import click

from nanoset_core.untrusted import visible


def echo(
    text: object = "",
    *,
    err: bool = False,
    nl: bool = True,
    fg: str | None = None,
    bold: bool | None = None,
    file: TextIO | None = None,
) -> None:
    """Print a text, by default as one line on standard output.

    Ids, names of files and messages of servers come from strangers: characters that could control
    the terminal are escaped, and secrets are hidden.

    Args:
        text: One line; text of several lines is passed as `Multiline`.
        err: Whether to print to standard error.
        nl: Whether to end the line.
        fg: A colour, used on a terminal.
        bold: Whether to use bold letters on a terminal.
        file: Where to print, in place of the standard streams.
    """
    shown = visible(text)
    if fg is not None or bold is not None:
        shown = click.style(shown, fg=fg, bold=bold)
    click.echo(shown, err=err, nl=nl, file=file)
