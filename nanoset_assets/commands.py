"""The command `nanoset build`, and the report that it prints.

The report is a table of all outputs with their sizes and states, notices such as "Made by other
settings than before: …", and what to do next: how to read samples, and how to start a trainer.

The core does not depend on Dagster, so this command is defined here and added to the others.
Importing Dagster takes seconds: the modules that need it are imported inside the functions.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_assets.build_report import BuildReport
from nanoset_assets.build_survey import OutputSurvey, survey_outputs
from nanoset_assets.complete_history import digest_of_outputs, known_outputs
from nanoset_assets.instance import HOME_VARIABLE, dagster_home, history_faults, open_instance
from nanoset_core.cli.echo import echo
from nanoset_core.cli.entry import message
from nanoset_core.cli.known_warnings import print_warnings
from nanoset_core.cli.options import CONFIG_OPTION, flag, option
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import print_json, print_rows
from nanoset_core.loading.layout import HANDOFF
from nanoset_core.outputs.root import Seen
from nanoset_core.project.disk import plan_line
from nanoset_core.project.graph import ANOTHER_IS_CURRENT, Graph, Step
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.handoff.start import START
from nanoset_core.text.notices import abbreviated
from nanoset_core.tokenizers.cache import cache_read_only
from nanoset_core.untrusted import shell_word

if TYPE_CHECKING:
    from nanoset_core.outputs.manifest import Manifest
    from nanoset_core.project.dry_run import DryRun, PlannedRow
    from nanoset_core.project.planned_views import PlannedView
    from nanoset_core.project.status import StatusRow

_MAX_NAMES = 3
"""How many outputs a line names at most."""
_MAX_DRY_RUN_ROWS = 100
"""How many outputs a dry run lists at most."""
_MAX_WARNINGS = 2
"""How many warnings a build that had nothing to do prints in full, to stay within ten lines."""
RowKey = tuple[str, str, str | None]
"""Kind, name and part of a row of `nanoset status`, such as ("nanoset", "pretrain", "train")."""


@click.command(short_help="Build what is missing or stale.")
@CONFIG_OPTION
@option("--corpus", "Build only this corpus, up to its dataset.", multiple=True)
@option(
    "--select -s",
    "Build only these and what they need: an asset, corpus, nanoset, nanoset/split, webdataset, "
    "pattern, or Dagster's selection syntax.",
    multiple=True,
)
@flag("--force", "Rebuild the selected assets even if they are up to date.")
@flag("--verbose -v", "Show Dagster's own log.")
@flag(
    "--dry-run",
    "Only show what would be built and why, from how much text, and the disk space that it needs. "
    "Nothing is written.",
)
@flag("--json as_json", "With --dry-run: print JSON.")
def build(
    config: Path,
    corpus: Sequence[str] = (),
    select: Sequence[str] = (),
    force: bool = False,
    verbose: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Build what is missing or stale: datasets, index mappings, blends, shuffled tars."""
    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run")
    project_config = load_config(config)
    if dry_run:
        _show_dry_run(project_config, select, corpus, force=force, as_json=as_json)
    else:
        _build_and_report(project_config, select, corpus, force=force, verbose=verbose)


def _build_and_report(
    config: ProjectConfig,
    select: Sequence[str],
    corpora: Sequence[str],
    *,
    force: bool,
    verbose: bool,
) -> None:
    """Build what is missing or stale, print a report, and exit with status 1 if a step failed.

    Args:
        config: The configuration of the project.
        select: The values of `--select`: names, patterns, or Dagster's selection syntax; empty:
            all.
        corpora: The values of `--corpus`: only these corpora are examined; empty: all.
        force: Whether selected outputs that are up to date are rebuilt, too.
        verbose: Whether Dagster's own log is printed.
    """
    # SQLAlchemy logs a traceback if Ctrl-C interrupts a query.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    seen = Seen()  # remembers outputs, so that the report need not look them up again
    with shown_progress() as progress:
        progress.step("starting")
        project = Project(config, progress, seen=seen)
        report = _build(project, select, corpora, force=force, verbose=verbose)
        progress.step("looking at the outputs")
        rows = _rows(report)

    show_report(Project(config, seen=seen), report, rows, is_selected=bool(select))
    _print_failures(report)
    if report.failed:
        sys.exit(1)


def _build(
    project: Project,
    select: Sequence[str],
    corpora: Sequence[str],
    *,
    force: bool,
    verbose: bool,
) -> BuildReport:
    """Build what is missing or stale, and return a report; without Dagster if that is nothing.

    Args:
        project: The project; its progress shows the steps.
        select: The values of `--select`.
        corpora: The values of `--corpus`.
        force: Whether selected outputs that are up to date are rebuilt, too.
        verbose: Whether Dagster's own log is printed.
    """
    started = time.monotonic()
    survey: OutputSurvey | None = None
    is_everything_requested = not select and not corpora and not force
    digests = known_outputs(dagster_home(project.config))  # of outputs that the history has
    if is_everything_requested and digests:
        survey = survey_outputs(project)
        digest = digest_of_outputs(project.config, survey.steps)
        if survey.is_up_to_date and digest in digests:
            seconds = time.monotonic() - started
            return BuildReport(survey.steps, survey.graph, survey.unread_entries, seconds=seconds)

    # Importing Dagster takes seconds on a busy machine.
    from nanoset_assets.build import build as run_build

    instance = open_instance(project.config)
    with history_faults(instance.root_directory):
        return run_build(
            project,
            instance,
            select=select,
            corpora=corpora,
            rebuild=force,
            verbose=verbose,
            survey=survey,
            say=project.progress.say,
        )


def _print_failures(report: BuildReport) -> None:
    """Print each step that failed with its error, and the steps that could not be made for it.

    Args:
        report: What the build did.
    """
    for label, error in report.failed.items():
        echo(f"failed: {label}", fg="red", bold=True, err=True)
        echo(message(error), err=True)
    if report.skipped:
        labels = ", ".join(report.skipped)
        echo(f"not made, since they need what failed: {labels}", err=True)


def _show_dry_run(
    config: ProjectConfig,
    select: Sequence[str],
    corpora: Sequence[str],
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Print what a build would make, without writing anything, not even the user's tokenizer cache.

    Args:
        config: The configuration of the project.
        select: The values of `--select`: names, patterns, or Dagster's selection syntax; empty:
            all.
        corpora: The values of `--corpus`: only these corpora are examined; empty: all.
        force: Whether selected outputs that are up to date are rebuilt, too.
        as_json: Whether JSON is printed instead of tables.
    """
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(shown_progress())
        progress.step("looking at text and outputs")
        from nanoset_assets.build import dry_run  # slow: it imports Dagster

        # Write nothing that would stay: neither to the cache of tokenizers, nor to the local copy
        # of the files of a bucket.
        stack.enter_context(cache_read_only())
        is_in_bucket = config.root_place is not None
        if is_in_bucket:
            copies = stack.enter_context(tempfile.TemporaryDirectory(prefix="nanoset-"))
            config = config.with_copies_in(Path(copies))

        project = Project(config, seen=Seen())  # `seen`: looks up each output only once
        plan = dry_run(project, select=select, corpora=corpora, force=force)
    if as_json:
        print_json(plan.to_json())
    elif not plan.rows:
        echo("Everything is up to date: a build would make nothing.")
    else:
        _print_dry_run(plan)


def _print_dry_run(plan: DryRun) -> None:
    """Print a table of the outputs that a build would make, and the disk space that they need.

    Args:
        plan: The outputs, with their sizes and the reasons why they would be made.
    """
    _print_planned_outputs(plan.rows)
    for name, view in plan.views.items():
        echo(_view_line(name, view))
    echo(plan_line(plan.step_count, plan.text_bytes))
    echo(_disk_line(plan))
    echo("Nothing was made: this was a dry run.")


def _print_planned_outputs(outputs: Sequence[PlannedRow]) -> None:
    """Print a table of the outputs that a build would make, each with the reason.

    Args:
        outputs: The outputs. Only the first _MAX_DRY_RUN_ROWS are printed, and the others counted.
    """
    rows: list[dict[str, object]] = []
    for output in outputs[:_MAX_DRY_RUN_ROWS]:
        row = {
            "output": output.label,
            "state": output.state,
            "steps": len(output.steps),
            "why": "; ".join(output.why),
        }
        rows.append(row)
    print_rows(rows, text=["state", "why"])
    n_more = len(outputs) - _MAX_DRY_RUN_ROWS
    if n_more > 0:
        echo(f"… and {n_more:,} outputs more (--json lists all)")


def _view_line(name: str, view: PlannedView) -> str:
    """Return what a view would choose, and where its rules `top` end.

    Args:
        name: Name of the view, which is a selection of a corpus's documents.
        view: What it would choose.
    """
    documents = format_count(view.documents, "document")
    tokens = format_count(view.tokens, "token")
    return "; ".join([f"view {name} would hold {documents}, {tokens}", *view.cuts])


def _disk_line(plan: DryRun) -> str:
    """Return how much disk space a build needs, by kind of file, and how much is free.

    Args:
        plan: What the build would make, and where.

    Returns:
        Such as "takes about 3.00 MB in out (shards 2.00 MB, datasets 1.00 MB); 80.0 GB are free".
    """
    total = format_bytes(sum(plan.disk_bytes.values()))
    line = f"takes about {total} in {plan.place}"
    sizes = [f"{kind} {format_bytes(n_bytes)}" for kind, n_bytes in plan.disk_bytes.items()]
    if sizes:
        line += f" ({', '.join(sizes)})"
    if plan.free_bytes is not None:
        line += f"; {format_bytes(plan.free_bytes)} are free"
    return line


def _rows(report: BuildReport) -> list[StatusRow]:
    """Return the rows that `nanoset status` would print on the outputs that a build examined.

    Args:
        report: What the build did. With `--corpus`, it examined only outputs of some corpora.
    """
    from nanoset_core.project.status import graph_status

    all_rows = list(graph_status(report.graph, report.unread_entries))
    if report.has_all_corpora:
        return all_rows

    # A row is identified by (kind, name, part). Several outputs may share a row.
    examined_rows = {step.node.row for step in report.steps}
    rows: list[StatusRow] = []
    for row in all_rows:
        if (row.kind, row.name, row.part) in examined_rows:
            rows.append(row)
    return rows


def show_report(
    project: Project,
    report: BuildReport,
    rows: Sequence[StatusRow] | None = None,
    *,
    is_selected: bool = False,
) -> None:
    """Print the outputs of a project after a build, how long it took, and what to do next.

    Args:
        project: The project that was built; its outputs and settings are read.
        report: What the build did.
        rows: The rows of `nanoset status` after the build; default: they are looked up.
        is_selected: Whether the user selected some outputs, and not all, to be built.
    """
    if rows is None:
        rows = _rows(report)

    # What was built.
    if _had_nothing_to_do(report, rows, is_selected):
        _print_nothing_to_do(project, report, rows)
    else:
        _print_tables(project, report, rows)

    # Old versions, if they take more space than the current ones. Their size is only known if the
    # rows are those of the whole project.
    if report.has_all_corpora:
        from nanoset_core.cli.commands.status import print_old_versions

        current_bytes = sum(row.figures.get("bytes", 0) for row in rows)
        print_old_versions(project, more_than=current_bytes)

    # What the user should know, and may do next.
    if report.made:
        for line in _notices_of_replaced_outputs(report):
            echo(line)
    for line in _next_steps(project.config, report.graph, _readable_splits(rows)):
        echo(line)


def _readable_splits(rows: Iterable[StatusRow]) -> list[_ReadableSplit]:
    """Return the splits of nanosets that are up to date and have samples.

    Args:
        rows: The rows of `nanoset status`. Only those of splits have a number of samples.
    """
    splits: list[_ReadableSplit] = []
    for row in rows:
        if row.state == "up to date" and row.figures.get("samples"):
            splits.append(_ReadableSplit(row.name, row.part or ""))
    return splits


def _print_tables(project: Project, report: BuildReport, rows: Sequence[StatusRow]) -> None:
    """Print the tables of `nanoset status`, with the time that each row took.

    Args:
        project: The project that was built; its settings are read.
        report: What the build did.
        rows: The rows to print.
    """
    from nanoset_core.cli.commands.status import print_tables

    # A row of a table is an output for the user. Several steps may make it: add up their times.
    seconds_by_row: dict[RowKey, float] = defaultdict(float)
    for step in report.steps:
        seconds_by_row[step.node.row] += report.seconds_of(step.node)
    print_tables(rows, seconds_by_row, project=project)

    n_rows_made = len(_rows_made(report))
    n_rows = len(seconds_by_row)  # also those that were up to date
    echo(f"Made {n_rows_made:,} of {n_rows:,} outputs in {report.seconds:.1f} s.")


def _rows_made(report: BuildReport) -> set[RowKey]:
    """Return the rows of `nanoset status` that count as made.

    These are the rows of which some steps were executed, and none has failed or was skipped.

    Args:
        report: What the build did.
    """
    made_nodes = [step.node for step in report.steps if report.was_made(step.node)]
    with_made_step: set[RowKey] = {node.row for node in made_nodes}
    with_missing_step: set[RowKey] = {node.row for node in report.nodes_given_up()}
    return with_made_step - with_missing_step


def _had_nothing_to_do(report: BuildReport, rows: Sequence[StatusRow], is_selected: bool) -> bool:
    """Return whether a build left everything as it was, so that tables would show nothing new.

    Args:
        report: What the build did.
        rows: The rows of `nanoset status` that the build examined.
        is_selected: Whether the user selected some outputs. Then others may be missing or stale.
    """
    from nanoset_core.cli.commands.status import DONE

    if report.made or report.failed or report.skipped:
        return False
    # The tables are worth showing if an output is not done. If the user has selected outputs, they
    # know that others may be missing or stale, but not that a check of one has found errors.
    states = {row.state for row in rows}
    if is_selected:
        return "failing" not in states
    return states.issubset(DONE)


def _print_nothing_to_do(project: Project, report: BuildReport, rows: Sequence[StatusRow]) -> None:
    """Print in a few lines that a build had nothing to do.

    Args:
        project: The project that was built, for warnings about its outputs.
        report: What the build did.
        rows: The rows of `nanoset status` that the build examined.
    """
    from nanoset_core.cli.commands.status import DONE, state_counts, warning_lines

    print_warnings(project, warning_lines(rows), at_most=_MAX_WARNINGS)
    is_all_done = all(row.state in DONE for row in rows)
    subject = "Everything" if is_all_done else "What was selected"
    counts = state_counts([row for row in rows if row.state != "not read"])
    echo(
        f"{subject} is up to date: nothing was made ({report.seconds:.1f} s). "
        f"{counts}: `nanoset status` prints the tables."
    )


def _notices_of_replaced_outputs(report: BuildReport) -> list[str]:
    """Return notices on outputs that replaced versions which may still be in use.

    Args:
        report: What the build did.

    Returns:
        Such as "Made by other settings than before: nanoset pretrain (seed: 7 → 8)."
    """
    steps_made = [step for step in report.steps if report.was_made(step.node)]
    notices: list[str] = []
    for changes, outputs in _outputs_by_changes(report, steps_made).items():
        names = abbreviated(outputs, _MAX_NAMES)
        notices.append(f"Made by other settings than before: {names} ({changes}).")
    # Such an output existed already, but another version of it had become the current one.
    if any(ANOTHER_IS_CURRENT in step.reasons for step in steps_made):
        notices.append(
            "If another nanoset.yaml uses the same root, these outputs are stale for it now: "
            "give it another root, or other names."
        )
    return notices


def _outputs_by_changes(report: BuildReport, steps: Sequence[Step]) -> Mapping[str, list[str]]:
    """Return which settings were changed, and the outputs that were built again because of it.

    For example, `{"seed: 7 → 8": ["nanoset pretrain", "nanoset tuning"]}` if both have a new seed.

    Args:
        report: What the build did, with the changes of settings.
        steps: The steps that were executed, each of which made one output.

    Returns:
        The changes of settings, joined by "; " → the outputs, such as `nanoset pretrain`.
    """
    outputs_by_changes: dict[str, list[str]] = defaultdict(list)
    for step in steps:
        settings = report.replaced_settings(step.node)
        if not settings:
            continue
        outputs = outputs_by_changes["; ".join(settings)]
        output = f"{step.node.stage.kind} {step.node.key.subject}"
        if output not in outputs:
            outputs.append(output)
    return outputs_by_changes


@dataclass(frozen=True, slots=True)
class _ReadableSplit:
    """A split of a nanoset that is up to date and has samples."""

    nanoset: str
    name: str
    """Name of the split, such as train."""


def _next_steps(
    config: ProjectConfig, graph: Graph, readable: Sequence[_ReadableSplit]
) -> list[str]:
    """Return lines that say what to do with the outputs of a build.

    Args:
        config: The configuration of the project.
        graph: The outputs of the project, with their current versions.
        readable: The splits (train, valid, test) that have samples.
    """
    manifest_by_name = _existing_outputs(graph)
    lines: list[str] = []
    if manifest_by_name:
        example = next(iter(manifest_by_name.values()))
        lines.append(_location_line(config, example))
    if readable:
        split = readable[0]
        lines.append(f"Read samples: python -c {shell_word(_reading_program(config, split))}")
        # The handoff is the output of a nanoset that a trainer starts with.
        handoff = manifest_by_name.get(f"{split.nanoset}/{HANDOFF}")
        if handoff is not None:
            lines.append(f"Train on it: {handoff.url(START)} says how to start.")
    lines.append(_server_line(config))
    return lines


def _existing_outputs(graph: Graph) -> dict[str, Manifest]:
    """Return the outputs that exist, in the order of the pipeline.

    Args:
        graph: The outputs of the project, with their current versions.

    Returns:
        Name of each output → its current manifest. If outputs of several stages share a name, it is
        that of the first.
    """
    manifest_by_name: dict[str, Manifest] = {}
    for node in graph.nodes():
        manifest = graph.current(node).manifest
        if manifest is not None:
            manifest_by_name.setdefault(manifest.name, manifest)
    return manifest_by_name


def _location_line(config: ProjectConfig, manifest: Manifest) -> str:
    """Return a line that says where the outputs are.

    Args:
        config: The configuration of the project.
        manifest: Manifest of any of the outputs.
    """
    pointer = _pointer_name(config, manifest)
    return f"Outputs are below {_root(config)}; `{pointer}` in each folder names the live version."


def _server_line(config: ProjectConfig) -> str:
    """Return a line with the command that shows the project in Dagster's UI."""
    home = shell_word(dagster_home(config))
    file = shell_word(config.file)
    return (
        f"Look at it: {HOME_VARIABLE}={home} NANOSET_CONFIG={file} "
        "dagster dev -m nanoset_assets.definitions"
    )


def _pointer_name(config: ProjectConfig, manifest: Manifest) -> str:
    """Return `current` or `current.json`: how this project names the live version of an output.

    The folder of an output has a folder for each version, and a symbolic link `current` to one of
    them. Buckets and some file systems have no symbolic links, so a file takes their place.

    Args:
        config: The configuration of the project, which says whether the outputs are in a bucket.
        manifest: Manifest of any output of the project.
    """
    is_in_bucket = config.root_place is not None
    if is_in_bucket:
        return "current.json"
    output_folder = manifest.folder.parent  # `manifest.folder` is that of the version
    has_link = (output_folder / "current").is_symlink()
    return "current" if has_link else "current.json"


def _root(config: ProjectConfig) -> str:
    """Return the path or URL of the folder that contains all outputs."""
    return str(config.root_folder) if config.root_place is None else config.root_place.url()


def _reading_program(config: ProjectConfig, split: _ReadableSplit) -> str:
    """Return a Python program that prints the first sample of a split.

    For example: from nanoset_core import load_nanoset; print(load_nanoset("outputs", "pretrain",
    "train")[0])

    Args:
        config: The configuration of the project, which says where the outputs are.
        split: The split to read.
    """
    imports = "load_nanoset"
    arguments = [_quoted(_root(config)), _quoted(split.nanoset), _quoted(split.name)]

    # A bucket that is not at AWS has an address of its own, the fourth argument.
    is_in_bucket = config.root_place is not None
    endpoint = config.storage.endpoint_url
    if is_in_bucket and endpoint is not None:
        imports = "StorageSpec, load_nanoset"
        arguments.append(f"StorageSpec({_quoted(endpoint)})")

    call = f"load_nanoset({', '.join(arguments)})"
    return f"from nanoset_core import {imports}; print({call}[0])"


def _quoted(text: str) -> str:
    """Return a text as a Python string in double quotes, around which a shell can put single ones.

    A JSON string is also a Python string.
    """
    return json.dumps(text, ensure_ascii=False)
