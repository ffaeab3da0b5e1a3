"""Help that lists commands with their whole summaries."""

from __future__ import annotations

import re

import click


class WholeSummaries(click.Group):
    """A group whose help shows the first sentence of each command, however long, and not as much as fits on a line."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and their summaries."""
        found = [(name, self.get_command(context, name)) for name in self.list_commands(context)]
        rows = [(name, first_sentence(command.help or "")) for name, command in found if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def first_sentence(text: str) -> str:
    """A help's first sentence, on one line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]
