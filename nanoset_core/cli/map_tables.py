"""What `nanoset map` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.tables import make_table, print_json, wide_console
from nanoset_core.mapping.coverage import MemberCoverage
from nanoset_core.mapping.epoch_limits import ExceededLimit
from nanoset_core.mapping.splits import SplitName

if TYPE_CHECKING:
    from rich.table import Table

Plans = Mapping[tuple[str, SplitName], Sequence[tuple[str, MemberCoverage]]]
"""(nanoset, split) → (corpus, what is taken of it) of each corpus."""


def print_plans_json(plans: Plans) -> None:
    """Print the plans as one JSON list."""
    print_json(
        [
            {"nanoset": name, "split": split, "members": [{"corpus": corpus, **row.to_json()} for corpus, row in found]}
            for (name, split), found in plans.items()
        ]
    )


def print_plans(plans: Plans) -> None:
    """Print a table for each split of a nanoset."""
    console = wide_console()
    for (name, split), found in plans.items():
        if found:
            console.print(plan_table(f"{name} {split}", found))
        else:
            console.print(f"{name} {split}: no data", highlight=False)


def print_exceeded(found: Iterable[ExceededLimit]) -> None:
    """Warn of what would have been read more often than it may be."""
    for one in found:
        text = f"{Path(one.prefix).name} would have been read {one.epochs:.2f} times in {one.split}"
        click.secho(f"{text}, above its limit of {one.limit:g}", fg="yellow", err=True)


_COLUMNS = ("corpus", "tokens", "asked", "given", "share", "epochs", "surplus", "never seen")


def plan_table(title: str, members: Sequence[tuple[str, MemberCoverage]]) -> Table:
    """A row for each (corpus, what is taken of it): tokens of an epoch, samples, share, epochs, tokens never seen."""
    table = make_table(*_COLUMNS, whole=["corpus"], title=title)
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
