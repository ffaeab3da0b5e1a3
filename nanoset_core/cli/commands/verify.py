"""`nanoset verify`: check that outputs are complete, current and correct.

For example, the check of a dataset compares its sizes and checksums with those that were recorded,
and tokenizes some documents again. The command prints a table with a row for each output, and below
it each finding with its remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import (
    ANY_PATH,
    JSON_OPTION,
    ManyValued,
    config_option,
    find_config,
    flag,
    option,
)
from nanoset_core.cli.progress import Lines, shown_spinner
from nanoset_core.cli.purge_warnings import print_interrupted_purges
from nanoset_core.cli.terminal import (
    WEBDATASET_WORDS,
    Row,
    StyledText,
    print_json,
    print_rows,
)
from nanoset_core.cli.tokenizer_options import tokenizer_options
from nanoset_core.errors import NanosetError
from nanoset_core.records.parsing import config_file
from nanoset_core.storage.places import is_here, with_ending
from nanoset_core.untrusted import Multiline
from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.project.project import Project
    from nanoset_core.stages.report import Figure, Finding, Report
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath

_SHARES = ("rejected_fraction", "unreadable_fraction", "duplicate_documents")
"""Figures that are shares of 1, in addition to those named share_…"""
_WORDS = {
    "faults": "unreadable files",
    "greatest_id": "highest token id",
    "rank_correlation": "rank correlation of the order before and after",
    "skipped": "without tokens",
}
"""Figures whose names need an explanation → what to call them."""


def _find_config(context: click.Context, parameter: click.Parameter, value: Path) -> Path:
    """Return the path of the project's settings file, nanoset.yaml.

    With a PREFIX, no folder above is searched for it: those files belong to no project.

    Args:
        context: click's state of the command, with the value of PREFIX.
        parameter: The option --config.
        value: The value of the option; by default "nanoset.yaml".
    """
    if context.params.get("prefix") is not None:
        return config_file(value)
    return find_config(context, parameter, value)


@click.command(
    "verify", cls=ManyValued, short_help="Check what a project built, or one .bin/.idx pair."
)
@click.argument("prefix", type=ANY_PATH, required=False)
@config_option(_find_config)
@option(
    "--select -s",
    "Check only these outputs: corpus, view, packed dataset, export, nanoset, nanoset/split, "
    "nanoset/handoff or webdataset, or one kind of output of these, such as web/packed, by name or "
    "pattern.",
    multiple=True,
)
@flag("--deep", "Read every token, and compare every checksum.")
@tokenizer_options("of PREFIX, for its vocabulary")
@option("--eod", "For PREFIX: the token that must end every document.")
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
    """Check everything that a project built, or the .bin/.idx pairs at PREFIX.

    Without PREFIX, `nanoset verify` checks all outputs of the project. To check another dataset,
    give PREFIX: the path of its .bin and .idx without the ending, or a folder of datasets. The exit
    code is 1 if there is an error. A view is compared with the manifest.json in its folder.

    For example, `nanoset verify` finds token ids outside of the vocabulary, missing end-of-document
    tokens, and damaged index files and tars. It also tokenizes some documents of your text again,
    and compares the tokens. Without --deep, it reads only samples of large files.
    """
    # Check the outputs of a project, or files without a project.
    project: Project | None = None
    if prefix is None:
        if tokenizer is not None or eod is not None:
            raise click.UsageError(
                "--tokenizer and --eod are for a PREFIX, and none was given. Write PREFIX before "
                "these options, or after the word `--`. A project names its own in nanoset.yaml."
            )
        project = _open_project(config)
        reports = _verify_project(project, select, deep=deep)
    else:
        if select:
            raise click.UsageError("--select is for projects, not for a PREFIX")
        if eod is not None and tokenizer is None:
            raise click.UsageError("--eod needs a --tokenizer, which has the token's id")
        _check_not_an_output(prefix, config)
        reports = _verify_pairs(prefix, tokenizer, eod, deep=deep)

    # Each report is made while this list is built.
    finished = _with_status(reports)
    if as_json:
        print_json([report.to_json() for report in finished])
    else:
        _print_reports(finished)
    if project is not None:
        print_interrupted_purges(project, err=as_json)
    if not all(report.passed for report in finished):
        sys.exit(1)


def _open_project(config: Path) -> Project:
    """Return a project that prints a line for each step of its work.

    Args:
        config: The project's settings file, nanoset.yaml.
    """
    from nanoset_core.project.project import Project

    return Project.open(config, Lines().progress)


def _verify_project(project: Project, select: tuple[str, ...], *, deep: bool) -> Iterable[Report]:
    """Check the outputs of a project, and report on each.

    Nothing is checked yet when this function returns: each report is made when it is iterated over.

    Args:
        project: The project.
        select: Names or patterns of the outputs to check, such as "corpus*"; empty for all.
        deep: Whether to read every byte, and not only samples of large files.
    """
    from nanoset_core.project.verify import verify_project
    from nanoset_core.stages.shards.options import check_tokenizer

    check_tokenizer(project)
    return verify_project(project, select, deep)


def _check_not_an_output(prefix: Location, config: Path) -> None:
    """Check that a PREFIX without files is not the name of an output of the project.

    Commands such as `nanoset diff web` take a name, so users also try `nanoset verify web`.

    Args:
        prefix: The PREFIX that the user gave.
        config: The project's settings file, which need not exist.

    Raises:
        UsageError: There is such an output.
    """
    from nanoset_core.formats.indexed.pairs import PAIR_ENDINGS, pairs_at
    from nanoset_core.project.project import Project
    from nanoset_core.project.verify import targets

    if not is_here(prefix):
        return
    try:
        # `pairs_at` returns the path itself if there is nothing at it.
        is_one_pair = any(with_ending(prefix, ending).is_file() for ending in PAIR_ENDINGS)
        if is_one_pair or prefix.exists() or pairs_at(prefix) != [prefix]:
            return
        targets(Project.open(config), [str(prefix)])
    except NanosetError:
        return  # there is no project, or no output of this name
    raise click.UsageError(
        f"{prefix} is an output of {config}, and PREFIX is the path of a .bin and .idx: "
        f"run `nanoset verify --select {prefix}`"
    )


def _verify_pairs(
    prefix: Location, tokenizer: TokenizerPath | None, eod: str | None, *, deep: bool
) -> Iterable[Report]:
    """Check tokenized datasets that belong to no project, and yield a report on each.

        web     checks web.bin and web.idx, the two files of a dataset
        data    checks all such pairs in the folder `data`

    Args:
        prefix: Path of the dataset without .bin or .idx, or of the folder.
        tokenizer: The tokenizer with which the dataset was made. Each token has to be in its
            vocabulary. None to leave out this check.
        eod: The token that must end every document; None to leave out this check.
        deep: Whether to read every byte, and not only samples of large files.
    """
    from nanoset_core.formats.indexed.pairs import pairs_at
    from nanoset_core.stages.dataset.verify_pair import verify_prefix

    for pair in pairs_at(prefix):
        yield verify_prefix(pair, tokenizer, eod, deep=deep)


def _with_status(reports: Iterable[Report]) -> list[Report]:
    """Make all reports, and show on a terminal which output was verified last.

    Args:
        reports: The reports. Each is made when it is requested, which may take minutes.

    Returns:
        The same reports as a list, in order.
    """
    finished: list[Report] = []
    with shown_spinner("verifying") as show:
        for report in reports:
            finished.append(report)
            show(f"verified {report.output}")
    return finished


def _print_reports(reports: list[Report]) -> None:
    """Print whether each output is correct as a table, and every fault below it.

        output         result     figures
        corpora/web    passed     documents 1,200, tokens 61,000
        corpora/code   1 error    documents 300, tokens 15,000

        …
        2 outputs: 1 error, 0 warnings

    Args:
        reports: What was checked of each output, and the faults (findings).
    """
    print_rows([_row(report) for report in reports], text=["result", "figures"])
    for report in reports:
        for finding in report.findings:
            _print_finding(finding)
    outputs = format_count(len(reports), "output")
    errors = format_count(sum(len(report.errors) for report in reports), "error")
    warnings = format_count(sum(len(report.warnings) for report in reports), "warning")
    echo(f"{outputs}: {errors}, {warnings}")


def _print_finding(finding: Finding) -> None:
    """Print a fault of an output, and what to do about it. The first line is in colour.

    Args:
        finding: The fault: an error, which is printed in red, or a warning, in yellow.
    """
    headline, _, details = str(finding).partition("\n")
    if finding.severity == "error":
        echo(headline, fg="red", bold=True)
    else:
        echo(headline, fg="yellow", bold=False)
    if details:
        # Several lines are safe here: control characters in the parts of a finding are escaped.
        echo(Multiline(details))


def _row(report: Report) -> Row:
    """Return the row of a table for one output: whether it is correct, and its counts.

    For example: {"output": "corpora/web", "result": "passed" in green, "figures": "documents 1,200,
    tokens 61,000"}.

    Args:
        report: What `nanoset verify` found out about the output.
    """
    # What the counts are called for users. In a webdataset, "shards" are tars, for example.
    words = dict(_WORDS)
    if report.output.startswith("webdatasets/"):
        words.update(WEBDATASET_WORDS)
    figures: list[str] = []
    for name, value in report.figures.items():
        word = words.get(name, name.replace("_", " "))
        figures.append(f"{word} {_format_figure(name, value)}")
    return {
        "output": report.output,
        "result": _result_cell(report),
        "figures": ", ".join(figures),
    }


def _result_cell(report: Report) -> StyledText:
    """Return the result of a check in its colour.

        passed                    green
        passed, 2 warnings        yellow
        1 error, 2 warnings       red

    Args:
        report: The errors and warnings that were found in an output.
    """
    if not report.passed:
        result = format_count(len(report.errors), "error")
        style = "red"
    elif report.warnings:
        result = "passed"
        style = "yellow"
    else:
        result = "passed"
        style = "green"

    if report.warnings:
        result += f", {format_count(len(report.warnings), 'warning')}"
    return StyledText(result, style)


def _format_figure(name: str, value: Figure) -> str:
    """Return the value of a figure as text.

        documents                1200    "1,200"
        rejected_fraction        0.25    "25.00%": the name shows that it is a share
        dtype                    "uint16"

    Args:
        name: Name of the figure.
        value: Its value.
    """
    if name in _SHARES or name.startswith("share_"):
        return f"{float(value):.2%}"
    if isinstance(value, str):
        return value
    return f"{value:,}"
