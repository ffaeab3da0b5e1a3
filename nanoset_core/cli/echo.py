"""The functions with which all commands print text."""

from __future__ import annotations

from typing import TextIO

import click

from nanoset_core.untrusted import Multiline, escaped, visible


def echo(
    text: object = "",
    *,
    err: bool = False,
    nl: bool = True,
    fg: str | None = None,
    bold: bool | None = None,
    file: TextIO | None = None,
) -> None:
    """Print a text, by default as one line on standard output. All commands print through this
    function.

    Much of the text comes from strangers, such as ids of documents and names of files. So
    characters that could control the terminal are escaped. In messages, which go to standard error,
    secrets such as passwords in addresses are hidden, too. Results are printed in full.

    Args:
        text: One line. Text of several lines has to be passed as `Multiline`.
        err: Whether this is a message, which goes to standard error unless `file` is another place.
        nl: Whether to end the line.
        fg: A colour, such as "yellow"; only used on a terminal.
        bold: Whether to use bold letters on a terminal.
        file: Where to print, in place of the standard streams.
    """
    shown = visible(text) if err else escaped(text)
    if fg is not None or bold is not None:
        shown = click.style(shown, fg=fg, bold=bold)
    click.echo(shown, err=err, nl=nl, file=file)


def print_error(text: str) -> None:
    """Print an error to standard error: what is wrong, and in further lines where and what to do.

    Args:
        text: The error, such as that of an exception. Control characters in it are escaped already.
    """
    echo("error: ", fg="red", bold=True, err=True, nl=False)
    echo(Multiline(text), err=True)
