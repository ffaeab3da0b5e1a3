"""What `nanoset verify` prints."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.terminal import wide_console
from nanoset_core.verification.report import Figure, Report

if TYPE_CHECKING:
    from rich.table import Table

_SHARES = ("rejected_fraction", "duplicate_documents")


def print_json(reports: Iterable[Report]) -> bool:
    """Print all reports as one JSON list; → whether all passed."""
    made = list(reports)
    click.echo(json.dumps([report.to_json() for report in made], indent=1))
    return all(report.passed for report in made)


def print_table(reports: Iterable[Report], *, verbose: bool = False) -> bool:
    """Print a table of the outputs, and below it every finding; → whether all passed."""
    console = wide_console()
    made: list[Report] = []
    with console.status("verifying") as status:
        for report in reports:
            made.append(report)
            status.update(f"verified {report.output}")
    console.print(_table(made))
    for finding in [finding for report in made for finding in report.findings]:
        style = "bold red" if finding.severity == "error" else "yellow"
        head, _, rest = str(finding).partition("\n")
        console.print(head, style=style, markup=False, highlight=False, soft_wrap=True)
        if rest:
            console.print(rest, markup=False, highlight=False, soft_wrap=True)
    errors, warnings = (sum(len(part) for part in parts) for parts in _counts(made))
    console.print(f"{len(made):,} outputs: {errors:,} errors, {warnings:,} warnings")
    return not errors


def _counts(reports: list[Report]) -> tuple[list[list[object]], list[list[object]]]:
    return [list(report.errors) for report in reports], [list(report.warnings) for report in reports]


def _table(reports: list[Report]) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("output", "result", "figures"):
        table.add_column(column, overflow="fold")
    for report in reports:
        result = f"{len(report.errors):,} errors" if not report.passed else "passed"
        result += f", {len(report.warnings):,} warnings" if report.warnings else ""
        style = "red" if not report.passed else "yellow" if report.warnings else "green"
        figures = ", ".join(_spelled(name, value) for name, value in report.figures.items())
        table.add_row(report.output, f"[{style}]{result}[/{style}]", figures)
    return table


def _spelled(name: str, value: Figure) -> str:
    share = name in _SHARES or name.startswith("share_")
    text = f"{float(value):.2%}" if share else value if isinstance(value, str) else f"{value:,}"
    return f"{name.replace('_', ' ')} {text}"
