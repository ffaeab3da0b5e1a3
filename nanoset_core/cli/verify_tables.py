"""What `nanoset verify` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nanoset_core.cli import tables
from nanoset_core.verification.report import Figure, Report

if TYPE_CHECKING:
    from rich.table import Table

_SHARES = ("rejected_fraction", "duplicate_documents")


def print_json(reports: Iterable[Report]) -> bool:
    """Print all reports as one JSON list; → whether all passed."""
    made = list(reports)
    tables.print_json([report.to_json() for report in made])
    return all(report.passed for report in made)


def print_table(reports: Iterable[Report], *, verbose: bool = False) -> bool:
    """Print a table of the outputs, and below it every finding; → whether all passed."""
    console = tables.wide_console()
    made: list[Report] = []
    with console.status("verifying") as status:
        for report in reports:
            made.append(report)
            status.update(f"verified {report.output}")
    console.print(_table(made))
    for finding in [finding for report in made for finding in report.findings]:
        style = "bold red" if finding.severity == "error" else "yellow"
        head, _, rest = str(finding).partition("\n")
        tables.print_line(console, head, style)
        if rest:
            tables.print_line(console, rest)
    errors, warnings = sum(len(report.errors) for report in made), sum(len(report.warnings) for report in made)
    console.print(f"{len(made):,} outputs: {errors:,} errors, {warnings:,} warnings")
    return not errors


def _table(reports: list[Report]) -> Table:
    table = tables.make_table("output", "result", "figures", left=["result", "figures"])
    for report in reports:
        result = f"{len(report.errors):,} errors" if not report.passed else "passed"
        result += f", {len(report.warnings):,} warnings" if report.warnings else ""
        style = "red" if not report.passed else "yellow" if report.warnings else "green"
        figures = ", ".join(_format_figure(name, value) for name, value in report.figures.items())
        table.add_row(report.output, f"[{style}]{result}[/{style}]", figures)
    return table


def _format_figure(name: str, value: Figure) -> str:
    share = name in _SHARES or name.startswith("share_")
    text = f"{float(value):.2%}" if share else value if isinstance(value, str) else f"{value:,}"
    return f"{name.replace('_', ' ')} {text}"
