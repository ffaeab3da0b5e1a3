"""`nanoset verify`: check that outputs are complete, current and correct."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli import terminal
from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import ANY_PATH, CONFIG_OPTION, JSON_OPTION, ManyValued, flag, option
from nanoset_core.cli.progress import Lines
from nanoset_core.cli.tokenizer_options import tokenizer_options
from nanoset_core.records.text import format_count
from nanoset_core.untrusted import Multiline, visible

if TYPE_CHECKING:
    from nanoset_core.stages.report import Figure, Report
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath

_SHARES = ("rejected_fraction", "unreadable_fraction", "duplicate_documents")
"""Figures that are shares, besides those named share_…"""
_WORDS = {
    "faults": "unreadable files",
    "greatest_id": "highest token id",
    "rank_correlation": "rank correlation of the order before and after",
    "skipped": "without tokens",
}
"""Figure → what to call it, where its name does not say."""


@click.command(
    "verify", cls=ManyValued, short_help="Check what a project built, or one .bin/.idx pair."
)
@click.argument("prefix", type=ANY_PATH, required=False)
@CONFIG_OPTION
@option(
    "--select -s",
    "Only these: corpus, corpus/packed, view, packs, export, nanoset, nanoset/split or /handoff, webdataset; pattern.",
    multiple=True,
)
@flag("--deep", "Read every token, and compare every checksum.")
@tokenizer_options("of PREFIX, for its vocabulary")
@option("--eod", "Of PREFIX: the token that must end every document.")
@JSON_OPTION
def command(
    prefix: Location | None,
    config: Path,
    select: tuple[str, ...],
    deep: bool,
    tokenizer: TokenizerPath | None,
    eod: str | None,
    as_json: bool,
) -> None:
    """Check all that a project built, or the .bin/.idx pair at PREFIX, or those of a folder; exit
    code 1 where there is an error.

    Counts, indices, pointers, vocabulary, end-of-document tokens, index caches, tars; documents
    tokenized again from their source lines. Without --deep only samples of big files are read.
    """
    reports: Iterable[Report]
    if prefix is not None:
        if select:
            raise click.UsageError("--select is for projects, not for a PREFIX")
        if eod is not None and tokenizer is None:
            raise click.UsageError("--eod needs a --tokenizer, which has the token's id")
        from nanoset_core.formats.indexed.folder import pairs_at
        from nanoset_core.stages.dataset.verify_pair import verify_prefix

        reports = (verify_prefix(pair, tokenizer, eod, deep=deep) for pair in pairs_at(prefix))
    else:
        if tokenizer is not None or eod is not None:
            raise click.UsageError(
                "--tokenizer and --eod are for a PREFIX; a project names its own"
            )
        from nanoset_core.project.project import Project
        from nanoset_core.project.verify import verify_project
        from nanoset_core.stages.shards.options import check_tokenizer

        project = Project.open(config, Lines().listen)
        check_tokenizer(project)
        reports = verify_project(project, select, deep)
    from rich.text import Text

    found: list[Report] = []
    with terminal.wide_console().status("verifying") as status:
        for report in reports:
            found.append(report)
            status.update(Text(visible(f"verified {report.output}")))  # no markup of a name
    if as_json:
        terminal.print_json([report.to_json() for report in found])
    else:
        _print_tables(found)
    if not all(report.passed for report in found):
        sys.exit(1)


def _print_tables(reports: list[Report]) -> None:
    """Print a table of the outputs, and below it every finding."""
    terminal.print_rows([_row(report) for report in reports], text=["result", "figures"])
    for finding in [finding for report in reports for finding in report.findings]:
        head, _, rest = str(finding).partition("\n")  # each part of a finding is visible
        is_error = finding.severity == "error"
        echo(head, fg="red" if is_error else "yellow", bold=is_error)
        if rest:
            echo(Multiline(rest))
    errors, warnings = (
        sum(len(report.errors) for report in reports),
        sum(len(report.warnings) for report in reports),
    )
    counts = format_count(errors, "error"), format_count(warnings, "warning")
    echo(f"{format_count(len(reports), 'output')}: {', '.join(counts)}")


def _row(report: Report) -> terminal.Row:
    result = "passed" if report.passed else format_count(len(report.errors), "error")
    result += f", {format_count(len(report.warnings), 'warning')}" if report.warnings else ""
    style = "red" if not report.passed else "yellow" if report.warnings else "green"
    words = _WORDS | (terminal.WEBDATASET_WORDS if report.output.startswith("webdatasets/") else {})
    figures = ", ".join(
        _format_figure(name, value, words) for name, value in report.figures.items()
    )
    return {"output": report.output, "result": (result, style), "figures": figures}


def _format_figure(name: str, value: Figure, words: Mapping[str, str]) -> str:
    share = name in _SHARES or name.startswith("share_")
    text = f"{float(value):.2%}" if share else value if isinstance(value, str) else f"{value:,}"
    return f"{words.get(name, name.replace('_', ' '))} {text}"
