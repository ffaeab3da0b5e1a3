"""The plan of a nanoset's split as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nanoset_core.mapping.coverage import MemberCoverage

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("corpus", "tokens", "asked", "given", "share", "epochs", "surplus", "never seen")


def plan_table(title: str, members: Sequence[tuple[str, MemberCoverage]]) -> Table:
    """A row for each (corpus, what is taken of it): tokens of an epoch, samples, share, epochs, tokens never seen."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="right" if number else "left", no_wrap=number == 0)
    for corpus, row in members:
        table.add_row(corpus, *_cells(row))
    if len(members) > 1:
        rows = [row for _, row in members]
        counts = (
            sum(row.tokens for row in rows), sum(row.samples_asked for row in rows),
            sum(row.samples_given for row in rows),
        )  # fmt: skip
        table.add_section()
        table.add_row("all", *(f"{count:,}" for count in counts), "", "", "", "")
    return table


def _cells(row: MemberCoverage) -> list[str]:
    given = "" if abs(row.share - row.weight) < 5e-5 else f" of {row.weight:.2%} asked"
    limit = "" if row.max_epochs is None else f" (limit {row.max_epochs:g})"
    unseen = "by chance" if row.tokens_unseen is None else f"{row.tokens_unseen:,}"
    counts = [f"{row.tokens:,}", f"{row.samples_asked:,}", f"{row.samples_given:,}"]
    return [*counts, f"{row.share:.2%}{given}", f"{row.epochs:.2f}{limit}", f"{row.surplus:,}", unseen]
