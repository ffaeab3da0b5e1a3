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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_assets.build.report import BuildReport
from nanoset_assets.build.survey import OutputSurvey, survey_outputs
from nanoset_assets.history.complete_history import digest_of_outputs, known_outputs
from nanoset_assets.history.instance import (
    HOME_VARIABLE,
    dagster_home,
    history_faults,
    open_instance,
)
from nanoset_core.cli.echo import echo
from nanoset_core.cli.entry import message
from nanoset_core.cli.known_warnings import print_warnings
from nanoset_core.cli.options import CONFIG_OPTION, flag, option
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.purge_warnings import print_interrupted_purges
from nanoset_core.cli.terminal import print_json, print_rows
from nanoset_core.loading.layout import HANDOFF
from nanoset_core.outputs.root import CURRENT, CURRENT_LINK, Seen
from nanoset_core.project.dry_run.disk import plan_line, room_warning
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.reasons_to_build import ANOTHER_IS_CURRENT
from nanoset_core.project.graph.step import Step
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.start import START
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.tokenizers.cache import cache_read_only
from nanoset_core.untrusted import shell_word
from nanoset_core.wording import abbreviated, format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.outputs.manifest import Manifest
    from nanoset_core.project.dry_run.plan import DryRun, PlannedRow
    from nanoset_core.project.dry_run.views import PlannedView
    from nanoset_core.project.status import StatusRow
    from nanoset_core.stages.stage import Node, RowName

_MAX_NAMES = 3
"""How many outputs a line names at most."""
_MAX_STEPS = 20
"""How many steps a line names at most that failed for one reason, or that were skipped."""
_MAX_DRY_RUN_ROWS = 100
"""How many outputs a dry run lists at most."""
_MAX_WARNINGS = 2
"""How many warnings a build that had nothing to do prints in full, to stay within ten lines."""


@click.command(short_help="Build what is missing or stale.")
@CONFIG_OPTION
@option("--corpus", "Build only this corpus, up to its dataset.", multiple=True)
@option(
    "--select -s",
    "Build only these and what they need: an asset, corpus, nanoset, nanoset/split, webdataset, "
    "pattern, or Dagster's selection syntax.",
    multiple=True,
)
@flag(
    "--force",
    "Rebuild the selected assets even if they are up to date, and read their files even if they "
    "look unchanged.",
)
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

    This is `nanoset build` without `--dry-run`. Outputs of a project are datasets, data mixtures
    for training and so on; one is stale if its text or settings have changed since it was made.

    Args:
        config: The settings of nanoset.yaml.
        select: The values of `--select`, such as ["pretrain"]: names, patterns, or Dagster's
            selection syntax. Empty: build everything.
        corpora: The values of `--corpus`, such as ["web"]: only these collections of texts are
            examined. Empty: examine all.
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
        rows = _examined_rows(report)

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
    """Build what is missing or stale, and return what was done; without Dagster if that is nothing.

    Dagster executes the work and records its history: which outputs were made, when and by which
    run. Importing it takes seconds, which a user should not wait for if there is nothing to do. Two
    things must be known for that:

    - Every output is up to date: its folder was made from the present text and settings.
    - The history lacks none of these outputs. An earlier build remembered this: it stored a digest
      (a hash) of all outputs that it found in the history.

    Args:
        project: The project; its progress shows the steps.
        select: The values of `--select`; empty: everything.
        corpora: The values of `--corpus`; empty: all collections of texts.
        force: Whether selected outputs that are up to date are rebuilt, too.
        verbose: Whether Dagster's own log is printed.
    """
    started = time.monotonic()
    survey: OutputSurvey | None = None
    is_everything_requested = not select and not corpora and not force
    # Digests of outputs that the history is known to have; none if it has changed since.
    digests = known_outputs(dagster_home(project.config))
    if is_everything_requested and digests:
        survey = survey_outputs(project)
        digest = digest_of_outputs(project.config, survey.steps)
        if survey.is_up_to_date and digest in digests:
            seconds = time.monotonic() - started
            return BuildReport(survey.steps, survey.graph, survey.unread_entries, seconds=seconds)

    # Importing Dagster takes seconds on a busy machine.
    from nanoset_assets.build.builder import build as run_build

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
    """Print each step that failed with its error, and the steps that were skipped because of it.

    A step makes one output. For example, if the text of the collection `web` cannot be tokenized:

        failed: tokenized_shards [web]
        (the error, where it occurred, and how to fix it)
        not made, since they need what failed: indexed_dataset [web]

    Steps that failed for the same reason, such as a cluster that cannot be reached, are printed
    together. Of many steps, only the first are named.

    Args:
        report: What the build did.
    """
    labels_by_message: dict[str, list[str]] = defaultdict(list)
    for label, error in report.failed.items():
        labels_by_message[message(error)].append(label)
    for text, labels in labels_by_message.items():
        echo(f"failed: {abbreviated(labels, _MAX_STEPS)}", fg="red", bold=True, err=True)
        echo(text, err=True)
    if report.skipped:
        skipped_labels = abbreviated(report.skipped, _MAX_STEPS)
        echo(f"not made, since they need what failed: {skipped_labels}", err=True)


def _show_dry_run(
    config: ProjectConfig,
    select: Sequence[str],
    corpora: Sequence[str],
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Print what a build would make and why, without writing any file: `nanoset build --dry-run`.

    To say what would be made, the text, settings and existing outputs have to be looked at. In a
    build, this would also fill two caches, which a dry run must leave alone:

    - the user's cache of tokenizers, with what has been computed about each tokenizer;
    - the local copy of files that are stored in a bucket, such as one of S3. A dry run copies them
      to a temporary folder, which is deleted at the end.

    Args:
        config: The settings of nanoset.yaml.
        select: The values of `--select`, such as ["pretrain"]: names, patterns, or Dagster's
            selection syntax. Empty: everything.
        corpora: The values of `--corpus`, such as ["web"]: only these collections of texts are
            examined. Empty: all.
        force: Whether selected outputs that are up to date would be rebuilt, too.
        as_json: Whether JSON is printed instead of tables.
    """
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(shown_progress())
        progress.step("looking at text and outputs")
        from nanoset_assets.build.builder import dry_run  # slow: it imports Dagster

        # Leave both caches as they are until the end of the block.
        stack.enter_context(cache_read_only())
        is_in_bucket = config.root_place is not None
        if is_in_bucket:
            copies = stack.enter_context(tempfile.TemporaryDirectory(prefix="nanoset-"))
            config = config.with_copies_in(Path(copies))

        project = Project(config, seen=Seen())  # `seen`: looks up each output only once
        plan = dry_run(project, select=select, corpora=corpora, rebuild=force)
    if as_json:
        print_json(plan.to_json())
    elif not plan.rows:
        echo("Everything is up to date: a build would make nothing.")
    else:
        _print_dry_run(plan)
    print_interrupted_purges(project, err=as_json)
    if plan.would_fail:
        echo("this build would fail, as shown above", fg="red", bold=True, err=True)
        sys.exit(1)


def _print_dry_run(plan: DryRun) -> None:
    """Print a table of the outputs that a build would make, and the disk space that they need.

    Below the table, there are lines such as these:

        view web_clean would hold 120,000 documents, 90,000,000 tokens
        plan: 12 steps, from 3.2 GB of text in 2 corpora
        takes about 3.00 MB in out (shards 2.00 MB, datasets 1.00 MB); 80.0 GB are free
        Nothing was made: this was a dry run.

    Args:
        plan: The outputs, with their sizes and the reasons why they would be made.
    """
    _print_planned_outputs(plan.rows)
    for name, view in plan.views.items():
        echo(_view_line(name, view))
    echo(plan_line(plan.step_count, plan.text_bytes))
    echo(_disk_line(plan))
    warning = room_warning(sum(plan.disk_bytes.values()), plan.free_bytes)
    if warning is not None:
        echo(f"warning: {warning}")
    for failure in plan.failures:
        echo(failure, fg="red")
    for warning in plan.warnings:
        echo(f"warning: {warning}", fg="yellow")
    echo("Nothing was made: this was a dry run.")


def _print_planned_outputs(outputs: Sequence[PlannedRow]) -> None:
    """Print a table of the outputs that a build would make, each with the reason.

    For example:

        output                   state    steps  why
        corpus web               missing      3  not built yet
        nanoset pretrain train   missing      2  not built yet

    Args:
        outputs: The outputs. A project may have thousands: only _MAX_DRY_RUN_ROWS (100) are
            printed, and the others are counted.
    """
    printed_outputs = _most_important(outputs, _MAX_DRY_RUN_ROWS)
    rows: list[dict[str, object]] = []
    for output in printed_outputs:
        row = {
            "output": output.label,
            "state": output.state,
            "steps": len(output.steps),
            "why": "; ".join(output.why),
        }
        rows.append(row)
    print_rows(rows, text=["state", "why"])
    n_more = len(outputs) - len(printed_outputs)
    if n_more > 0:
        echo(f"… and {n_more:,} outputs more (--json lists all)")


def _most_important(outputs: Sequence[PlannedRow], n_rows: int) -> list[PlannedRow]:
    """Return a number of outputs in their order; if there are more, leave out views first.

    A mixture by a column has a view for each value, and for each scale. They come before the
    nanosets, which users want to see.

    Args:
        outputs: The outputs, in the order of the build.
        n_rows: How many are returned at most.
    """
    n_others = sum(output.kind != VIEW.kind for output in outputs)
    n_views_left = max(n_rows - n_others, 0)
    important_outputs = []
    for output in outputs:
        if output.kind == VIEW.kind:
            if n_views_left == 0:
                continue
            n_views_left -= 1
        important_outputs.append(output)
    return important_outputs[:n_rows]


def _view_line(name: str, view: PlannedView) -> str:
    """Return how many documents a view would choose: a selection of a corpus's documents.

    For example:

        view best would hold 10 documents, 900 tokens; top 10 documents by quality: the cut is at
        quality = 4. …

    Args:
        name: Name of the view, such as `best`.
        view: What it would choose. Its `cuts` are sentences on rules such as "the 10 documents with
            the best quality": which quality the last of these documents has.
    """
    documents = format_count(view.documents, "document")
    tokens = format_count(view.tokens, "token")
    size = f"view {name} would hold {documents}, {tokens}"
    return "; ".join([size, *view.cuts])


def _disk_line(plan: DryRun) -> str:
    """Return how much disk space a build needs, by kind of file, and how much is free.

    The space of outputs that are usually small is not estimated, and the line says of which. For
    example: "takes about 3.00 MB in out (shards 2.00 MB, datasets 1.00 MB), not counting: view;
    80.0 GB are free". The free space of a bucket is not known, so the last part is left out there.

    Args:
        plan: What the build would make, and where.
    """
    other_kinds = ", ".join(plan.not_estimated)
    sizes = [f"{kind} {format_bytes(n_bytes)}" for kind, n_bytes in plan.disk_bytes.items()]
    if other_kinds and not sizes:
        line = f"the disk space in {plan.place} is not estimated for: {other_kinds}"
    else:
        total = format_bytes(sum(plan.disk_bytes.values()))
        line = f"takes about {total} in {plan.place}"
        if sizes:
            line += f" ({', '.join(sizes)})"
        if other_kinds:
            line += f", not counting: {other_kinds}"
    if plan.free_bytes is not None:
        line += f"; {format_bytes(plan.free_bytes)} are free"
    return line


def _examined_rows(report: BuildReport) -> list[StatusRow]:
    """Return the rows of `nanoset status` on the outputs that a build has examined.

    A row is what a user thinks of as one output, such as the text collection `web`. It stands for
    several steps of the build: the list of its files, its tokens and its dataset.

    Args:
        report: What the build did, and which outputs it examined.
    """
    from nanoset_core.project.status import graph_status

    all_rows = list(graph_status(report.graph, report.unread_entries))
    if report.has_all_corpora:
        return all_rows

    # After `nanoset build --corpus web`, nothing is known of other text collections. Outputs that
    # are made from `web`, but were not requested, would seem to be missing.
    examined = report.examined_rows()  # such as {("corpus", "web", None)}
    return [row for row in all_rows if (row.kind, row.name, row.part) in examined]


def show_report(
    project: Project,
    report: BuildReport,
    rows: Sequence[StatusRow] | None = None,
    *,
    is_selected: bool = False,
) -> None:
    """Print the outputs of a project after a build, how long it took, and what to do next.

    There are three parts:

    - The outputs, as tables with sizes, states and times; or two or three lines instead if the
      build had nothing to do.
    - How much space old versions of outputs take, if that is more than the current ones take.
    - Notices and next steps, such as "Made by other settings than before: nanoset pretrain (seed: 7
      → 8)." and a command that reads samples.

    Args:
        project: The project that was built; its outputs and settings are read.
        report: What the build did.
        rows: The rows of `nanoset status` after the build; default: they are looked up.
        is_selected: Whether the user selected some outputs to be built, and not all.
    """
    if rows is None:
        rows = _examined_rows(report)

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
        for line in _notices_of_changed_text(project, report):
            echo(line)
    for line in _next_steps(project.config, report.graph, _readable_splits(rows)):
        echo(line)
    print_interrupted_purges(project)


def _readable_splits(rows: Iterable[StatusRow]) -> list[_ReadableSplit]:
    """Return the splits from which samples can be read now, for the advice after a build.

    A nanoset is a data mixture for training, with the splits train, valid and test. A split can be
    read if it is up to date and has samples: a small one may be too short for a single sample.

    Args:
        rows: The rows of `nanoset status`. Only those of splits have a number of samples.
    """
    splits: list[_ReadableSplit] = []
    for row in rows:
        if row.state == "up to date" and row.figures.get("samples"):
            splits.append(_ReadableSplit(row.name, row.part or ""))
    return splits


def _print_tables(project: Project, report: BuildReport, rows: Sequence[StatusRow]) -> None:
    """Print the tables of `nanoset status` with times, and how many outputs were made.

    A row, such as that of the text collection `web`, stands for several steps of the build, such as
    making its tokens and its dataset. The time of a row is that of all its steps.

    Args:
        project: The project that was built; its settings are read.
        report: What the build did, with the time of each step.
        rows: The rows to print.
    """
    from nanoset_core.cli.commands.status import print_tables

    seconds_by_row: dict[RowName, float] = defaultdict(float)  # {("corpus", "web", None): 4.2}
    for step in report.steps:  # all steps, also those that were not executed: 0 seconds
        seconds_by_row[step.node.row] += report.seconds_of(step.node)
    print_tables(rows, seconds_by_row, project=project)

    n_rows_made = len(_rows_made(report))  # with at least one step that was executed
    n_rows = sum(row.state != "not read" for row in rows)
    echo(f"Made {n_rows_made:,} of {n_rows:,} outputs in {report.seconds:.1f} s.")


def _rows_made(report: BuildReport) -> set[RowName]:
    """Return the rows of `nanoset status` that a build has made, to count them.

    A row is what a user sees as one output; several steps may make it. For example, the row `corpus
    web` has three steps. It counts as made if the build executed at least one of them (the others
    may have been up to date), but not if one of them failed or was skipped:

        steps of the row                       counts as made
        up to date, executed, executed         yes
        up to date, up to date, up to date     no
        executed, failed, skipped              no

    Args:
        report: What the build did.
    """
    made_nodes = [step.node for step in report.steps if report.was_made(step.node)]
    rows_with_made_step: set[RowName] = {node.row for node in made_nodes}
    rows_with_failed_step: set[RowName] = {node.row for node in report.nodes_given_up()}
    return rows_with_made_step - rows_with_failed_step


def _had_nothing_to_do(report: BuildReport, rows: Sequence[StatusRow], is_selected: bool) -> bool:
    """Return whether a build left everything as it was, so that tables would show nothing new.

    Args:
        report: What the build did.
        rows: The rows of `nanoset status` that the build examined, each with the state of an
            output.
        is_selected: Whether the user selected some outputs.
    """
    if report.made or report.failed or report.skipped:
        return False
    if is_selected:
        # The user chose not to build the other outputs, so it is no news that some are stale. But
        # it may be that a check has found errors in one.
        return all(row.state != "failing" for row in rows)
    return all(row.is_done for row in rows)


def _print_nothing_to_do(project: Project, report: BuildReport, rows: Sequence[StatusRow]) -> None:
    """Print in a few lines that a build had nothing to do, instead of tables that show nothing new.

    For example:

        Everything is up to date: nothing was made (0.4 s). 3 up to date: `nanoset status` …

    Args:
        project: The project that was built, for warnings about its outputs.
        report: What the build did.
        rows: The rows of `nanoset status` that the build examined.
    """
    from nanoset_core.cli.commands.status import state_counts, warning_lines

    print_warnings(project, warning_lines(rows), at_most=_MAX_WARNINGS)
    is_all_done = all(row.is_done for row in rows)
    subject = "Everything" if is_all_done else "What was selected"
    counts = state_counts([row for row in rows if row.state != "not read"])
    echo(
        f"{subject} is up to date: nothing was made ({report.seconds:.1f} s). "
        f"{counts}: `nanoset status` prints the tables."
    )


def _notices_of_replaced_outputs(report: BuildReport) -> list[str]:
    """Return notices on outputs that were made anew because of other settings.

    Somebody may be training on the earlier version, or may not have meant to change a setting. For
    example: "Made by other settings than before: nanoset pretrain (seed: 7 → 8)."

    Args:
        report: What the build did.
    """
    notices: list[str] = []
    for changes, outputs in _outputs_by_changes(report).items():
        names = abbreviated(outputs, _MAX_NAMES)  # such as "nanoset pretrain"
        notices.append(f"Made by other settings than before: {names} ({changes}).")
    if _has_replaced_another_project(report):
        notices.append(
            "If another nanoset.yaml uses the same root, these outputs are stale for it now: "
            "give it another root, or other names. If machines have different versions of nanoset, "
            "install the same one everywhere."
        )
    return notices


def _has_replaced_another_project(report: BuildReport) -> bool:
    """Return whether a build may have replaced outputs that another project will replace again.

    It has made an output whose present version existed already, but another version was current.
    Then two projects may use the same folder, or two versions of nanoset build this project, and
    each replaces what the other has made.

    Args:
        report: What the build did.
    """
    steps_made = [step for step in report.steps if report.was_made(step.node)]
    return any(ANOTHER_IS_CURRENT in step.reasons for step in steps_made)


def _notices_of_changed_text(project: Project, report: BuildReport) -> list[str]:
    """Return a notice if text was added, changed or removed while the build ran.

    The build has not read it. For example: "Text has changed since this build listed it: corpus web
    (1 file added (c.jsonl)). The next `nanoset build` reads it."

    Args:
        project: The project that was built; its raw text is listed.
        report: What the build did.
    """
    from nanoset_core.project.survey import text_changes

    # The corpora whose text the build has read, or had no need to read.
    corpora: list[str] = []
    for step in report.steps:
        is_current = report.was_made(step.node) or step.is_up_to_date
        if step.node.stage is INVENTORY and is_current:
            corpora.append(step.node.key.subject)

    changes = text_changes(project, corpora)
    if not changes:
        return []
    names = [f"corpus {corpus} ({change})" for corpus, change in changes.items()]
    return [
        f"Text has changed since this build listed it: {abbreviated(names, _MAX_NAMES)}. "
        "The next `nanoset build` reads it."
    ]


def _outputs_by_changes(report: BuildReport) -> Mapping[str, list[str]]:
    """Return which changes of settings were found in a build, and the outputs that each concerns.

    Several outputs often have the same change. It is told to the user once, with all their names:

        output               changes
        nanoset pretrain     ["seed: 7 → 8"]
        nanoset tuning       ["seed: 7 → 8"]
        view web clean       []              (the view `clean` of the corpus `web`)

        result: {"seed: 7 → 8": ["nanoset pretrain", "nanoset tuning"]}

    Args:
        report: What the build did, with the changes of settings.

    Returns:
        The changes, joined by "; " → the outputs.
    """
    # A nanoset (data mixture) has several steps, but is named only once.
    steps_by_output: dict[str, list[Step]] = defaultdict(list)
    for step in report.steps:
        steps_by_output[_name_in_notices(step.node)].append(step)

    outputs_by_changes: dict[str, list[str]] = defaultdict(list)
    for output, steps in steps_by_output.items():
        changes = _changes_of_output(report, steps)
        if changes:
            outputs_by_changes["; ".join(changes)].append(output)
    return outputs_by_changes


def _name_in_notices(node: Node) -> str:
    """Return how notices about changed settings call what an output belongs to.

        a split of the nanoset (data mixture) `pretrain`               "nanoset pretrain"
        the view `clean`, a selection of the documents of `web`        "view web clean"

    Args:
        node: The output.
    """
    if node.stage.layout.is_named_by_part:  # a text collection may have several views
        return node.row.label
    return f"{node.stage.kind} {node.key.subject}"


def _changes_of_output(report: BuildReport, steps: Sequence[Step]) -> list[str]:
    """Return the changes of settings of one output, each once, such as ["seed: 7 → 8"].

    A nanoset has a step for each split. If a change concerns only some of them, they are named:
    "samples: 160 → 192 for train".

    Args:
        report: What the build did, with the changes of settings.
        steps: All steps of the output, executed or not.
    """
    steps_by_change: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        if report.was_made(step.node):
            for change in report.replaced_settings(step.node):
                steps_by_change[change].append(step)

    changes: list[str] = []
    for change, changed_steps in steps_by_change.items():
        splits = _splits(changed_steps)
        if splits and splits != _splits(steps):
            changes.append(f"{change} for {' and '.join(splits)}")
        else:
            changes.append(change)
    return changes


def _splits(steps: Iterable[Step]) -> list[str]:
    """Return the splits that some steps of a build are for, such as ["train", "valid"].

    Args:
        steps: The steps. Those that make a dataset or a handoff, for example, are for no split.
    """
    parts = {step.node.key.part for step in steps}
    return [split for split in SPLITS if split in parts]


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

    For example, after a build of the data mixture (nanoset) `pretrain`:

        Outputs are below /data/out; `current` in each folder names the current version.
        Read samples: python -c 'from nanoset_core import load_nanoset; print(load_nanoset(…)[0])'
        Train on it: /data/out/nanosets/pretrain/handoff/…/START.md says how to start.
        Look at it: DAGSTER_HOME=… NANOSET_CONFIG=… dg dev -m nanoset_assets.definitions

    Args:
        config: The settings of nanoset.yaml.
        graph: The outputs of the project, with their current versions.
        readable: The splits (train, valid, test) that have samples. Without any, the lines on
            reading and training are left out.
    """
    manifests = _existing_outputs(graph)
    lines: list[str] = []
    if manifests:
        lines.append(_location_line(config, manifests[0]))  # any output is an example
    if readable:
        split = readable[0]
        lines.append(f"Read samples: python -c {shell_word(_reading_program(config, split))}")
        lines += _training_lines(manifests, split.nanoset)
    lines.append(_server_line(config))
    return lines


def _training_lines(manifests: Iterable[Manifest], nanoset: str) -> list[str]:
    """Return a line that names the file with instructions for training on a data mixture.

    The files that start a trainer are an output of their own, called the handoff.

    Args:
        manifests: The records of all outputs that exist.
        nanoset: Name of the data mixture (nanoset).

    Returns:
        The line; empty if there is no handoff.
    """
    lines: list[str] = []
    for manifest in manifests:
        if manifest.name == f"{nanoset}/{HANDOFF}":
            lines.append(f"Train on it: {manifest.url(START)} says how to start.")
    return lines


def _existing_outputs(graph: Graph) -> list[Manifest]:
    """Return the records of all outputs that exist, in the order in which they are made.

    Args:
        graph: The outputs of the project, with their current versions.

    Returns:
        The manifests, each of which lists the files in the folder of an output.
    """
    manifests: list[Manifest] = []
    for node in graph.nodes():
        manifest = graph.versions.of(node).manifest
        if manifest is not None:
            manifests.append(manifest)
    return manifests


def _location_line(config: ProjectConfig, manifest: Manifest) -> str:
    """Return where the outputs are, and how to find the current version of each.

    For example: "Outputs are below /data/out; `current` in each folder names the current version."

    Args:
        config: The settings of nanoset.yaml, which say where outputs are stored.
        manifest: Manifest of any of the outputs: the file that lists what is in the output's
            folder.
    """
    pointer = _pointer_name(config, manifest)
    place = _location_of_outputs(config)
    return f"Outputs are below {place}; `{pointer}` in each folder names the current version."


def _server_line(config: ProjectConfig) -> str:
    """Return a line with the command that starts Dagster's web server, to look at the project.

    Dagster finds its history and the project by two environment variables: "DAGSTER_HOME=/data/home
    NANOSET_CONFIG=/data/nanoset.yaml dg dev -m nanoset_assets.definitions".

    If the history is not that of the project itself, it is probably the history of a Dagster that
    the user already has, and that has loaded the project with other assets. The command would load
    the project a second time, so the line mentions that Dagster first.

    Args:
        config: The settings of nanoset.yaml.
    """
    home = dagster_home(config)
    home_word = shell_word(home)
    file_word = shell_word(config.file)
    # `dagster dev` is always installed, but prints a warning that `dg dev` supersedes it.
    has_dg = find_spec("dagster_dg_cli") is not None
    program = "dg" if has_dg else "dagster"
    command = (
        f"{HOME_VARIABLE}={home_word} NANOSET_CONFIG={file_word} "
        f"{program} dev -m nanoset_assets.definitions"
    )
    is_own_history = home == config.history_folder.resolve()
    if is_own_history:
        return f"Look at it: {command}"
    return f"Look at it in the Dagster of {home_word}. If it does not show this project: {command}"


def _pointer_name(config: ProjectConfig, manifest: Manifest) -> str:
    """Return `current` or `current.json`: how this project marks the current version of an output.

    The folder of an output has a folder for each version, and a symbolic link to the current one:

        datasets/web/3f9a…/     the version before
        datasets/web/81c2…/     the current version
        datasets/web/current →  81c2…

    Buckets and some file systems have no symbolic links: a file `current.json` takes its place.

    Args:
        config: The settings of nanoset.yaml, which say whether the outputs are in a bucket.
        manifest: Manifest of any version of an output; its folder is that of the version.
    """
    is_in_bucket = config.root_place is not None
    if is_in_bucket:
        return CURRENT
    output_folder = manifest.folder.parent  # `manifest.folder` is that of the version
    has_link = (output_folder / CURRENT_LINK).is_symlink()
    return CURRENT_LINK if has_link else CURRENT


def _location_of_outputs(config: ProjectConfig) -> str:
    """Return where all outputs are: a folder such as /data/out, or a URL such as s3://bucket/out.

    Args:
        config: The settings of nanoset.yaml.
    """
    if config.root_place is not None:  # it is only set if the outputs are in a bucket
        return config.root_place.url()
    return str(config.root_folder)


def _reading_program(config: ProjectConfig, split: _ReadableSplit) -> str:
    """Return a Python program that prints the first sample of a split.

    It is printed after a build, so that the user can try at once what was built. For the split
    `train` of the data mixture (nanoset) `pretrain`, if all outputs are in the folder `out`:

        from nanoset_core import load_nanoset; print(load_nanoset("out", "pretrain", "train")[0])

    If the outputs are in a bucket that is not one of AWS, the program has to know the address of
    its server. It is a fourth argument: StorageSpec("https://storage.example.org").

    Args:
        config: The settings of nanoset.yaml, which say where the outputs are.
        split: The split to read.
    """
    imports = "load_nanoset"
    arguments = [_quoted(_location_of_outputs(config)), _quoted(split.nanoset), _quoted(split.name)]
    is_in_bucket = config.root_place is not None
    endpoint = config.storage.endpoint_url
    if is_in_bucket and endpoint is not None:
        imports = "StorageSpec, load_nanoset"
        arguments.append(f"StorageSpec({_quoted(endpoint)})")

    call = f"load_nanoset({', '.join(arguments)})"
    return f"from nanoset_core import {imports}; print({call}[{_first_sample(config, split)}])"


def _first_sample(config: ProjectConfig, split: _ReadableSplit) -> int:
    """Return the number of the first sample of a split that can be read, usually 0.

    A training run may continue another one, which has read the first samples of train already. They
    are not part of what the run reads.

    Args:
        config: The settings of nanoset.yaml.
        split: The split.
    """
    continue_from = config.nanosets[split.nanoset].continue_from
    if split.name == "train" and continue_from is not None:
        return continue_from.consumed_samples
    return 0


def _quoted(text: str) -> str:
    """Return a text as a Python string in double quotes: web → "web".

    The user passes the program to `python -c '…'` in a shell, in single quotes: so there must be no
    others in it. A JSON string is in double quotes, and Python reads it as the same text.

    Args:
        text: Such as a name or a path.
    """
    return json.dumps(text, ensure_ascii=False)
