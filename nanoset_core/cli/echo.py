"""The one function by which commands print text."""

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
    """Print a text on stdout as one line, made visible: what names, ids and servers say steers no
    terminal.

    Args:
        text: one line; text of several lines is passed as `Multiline`.
        err: print on stderr.
        nl: end with a line end.
        fg: a colour, on a terminal.
        bold: bold letters, on a terminal.
        file: where to, in place of stdout and stderr.
    """
    shown = visible(text)
    if fg is not None or bold is not None:
        shown = click.style(shown, fg=fg, bold=bold)
    click.echo(shown, err=err, nl=nl, file=file)
