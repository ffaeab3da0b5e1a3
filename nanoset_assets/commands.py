"""Subcommands of `nanoset` that need Dagster."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_assets.asset_table import label_of
from nanoset_core.cli.echo import echo
from nanoset_core.cli.entry import message
from nanoset_core.cli.known_warnings import print_warnings
from nanoset_core.cli.options import CONFIG_OPTION, flag, option
from nanoset_core.cli.progress import progress_bars
from nanoset_core.cli.terminal import print_json, print_rows
from nanoset_core.execution.progress import STEP, Progress
from nanoset_core.loading.opening import HANDOFF
from nanoset_core.outputs.root import Seen
from nanoset_core.project.disk import plan_line
from nanoset_core.project.graph import REPLACED
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.records.text import format_bytes
from nanoset_core.stages.handoff.start import START
from nanoset_core.text.contents import some
from nanoset_core.tokenizers.knowledge import nothing_cached
from nanoset_core.untrusted import shell_word

if TYPE_CHECKING:
    from nanoset_assets.build import BuildReport
    from nanoset_core.project.graph import Graph
    from nanoset_core.project.status import StatusRow

_NAMED = 3
"""Corpora, nanosets and webdatasets that one line names."""
_DRY_ROWS = 100
"""Outputs that a dry run lists."""
_NEW_WARNINGS = 2
"""Warnings that a build with nothing to do prints in full, so that it prints ten lines at most."""
RowKey = tuple[str, str, str | None]
"""Kind, name and part of a row of `nanoset status`."""


@click.command(short_help="Build what is missing or stale.")
@CONFIG_OPTION
@option("--corpus", "Build only this corpus, up to its dataset.", multiple=True)
@option(
    "--select -s",
    "These and what they need: an asset, corpus, nanoset, nanoset/split, webdataset, pattern, or Dagster's syntax.",
    multiple=True,
)
@flag("--force", "Make the selected assets again even where they are up to date.")
@flag("--verbose -v", "Show Dagster's own log.")
@flag("--dry-run", "Only show what would be made and why, from how much text, on how much disk. Nothing is written.")
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
    """Build what is missing or stale: corpora, indexed datasets, index mappings, blends, shuffled tars."""
    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run")
    project_config = load_config(config)
    if dry_run:
        show_dry_run(project_config, select, corpus, force=force, as_json=as_json)
        return
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # it tells of a Ctrl-C with a traceback
    seen = Seen()
    with progress_bars() as (listener, say):
        listener(Progress(STEP, "starting", 0, 0))
        # Importing Dagster takes seconds on a busy machine.
        from nanoset_assets.build import build as run_build
        from nanoset_assets.instance import history_faults, open_instance

        instance = open_instance(project_config)
        with history_faults(instance.root_directory):
            report = run_build(
                Project(project_config, listener, seen=seen),
                instance,
                select=select,
                corpora=corpus,
                rebuild=force,
                verbose=verbose,
                say=say,
            )
            listener(Progress(STEP, "looking at the outputs", 0, 0))
            rows = _rows(report)
    show_report(Project(project_config, seen=seen), report, rows, is_selected=bool(select))
    for label, error in report.failed.items():
        echo(f"failed: {label}", fg="red", bold=True, err=True)
        echo(message(error), err=True)
    if report.skipped:
        echo(f"not made, since they need what failed: {', '.join(report.skipped)}", err=True)
    if report.failed:
        sys.exit(1)


def show_dry_run(
    config: ProjectConfig, select: Sequence[str], corpora: Sequence[str], *, force: bool, as_json: bool
) -> None:
    """Print what a build would make. Nothing is written, the user's cache of tokenizers included."""
    with contextlib.ExitStack() as held:
        listener, _ = held.enter_context(progress_bars())
        held.enter_context(nothing_cached())
        listener(Progress(STEP, "looking at text and outputs", 0, 0))
        from nanoset_assets.build import dry_run

        if config.root_place is not None:
            # Copies of manifests are not added to the mirror.
            copies = held.enter_context(tempfile.TemporaryDirectory(prefix="nanoset-"))
            config = config.with_copies_in(Path(copies))
        found = dry_run(Project(config, seen=Seen()), select=select, corpora=corpora, force=force)
    if as_json:
        print_json(found.to_json())
        return
    if not found.rows:
        echo("Everything is up to date: a build would make nothing.")
        return
    rows = [
        {
            "output": row.label,
            "state": row.state,
            "steps": len(row.steps),
            "why": "; ".join(row.why),
        }
        for row in found.rows[:_DRY_ROWS]
    ]
    print_rows(rows, text=["state", "why"])
    if len(found.rows) > _DRY_ROWS:
        echo(f"… and {len(found.rows) - _DRY_ROWS:,} outputs more (--json lists all)")
    echo(plan_line(found.step_count, found.text_bytes))
    parts = ", ".join(f"{what} {format_bytes(size)}" for what, size in found.disk_bytes.items())
    size = format_bytes(sum(found.disk_bytes.values()))
    free = "" if found.free_bytes is None else f"; {format_bytes(found.free_bytes)} are free"
    echo(f"takes about {size} in {found.place}" + (f" ({parts})" if parts else "") + free)
    echo("Nothing was made: this was a dry run.")


def _rows(report: BuildReport) -> list[StatusRow]:
    """Return the state of the outputs that a build looked at."""
    from nanoset_core.project.status import graph_status

    looked_at = {step.node.row for step in report.steps}
    rows = graph_status(report.graph, report.aside)
    return [row for row in rows if report.whole or (row.kind, row.name, row.part) in looked_at]


def show_report(
    project: Project, report: BuildReport, rows: Sequence[StatusRow] | None = None, *, is_selected: bool = False
) -> None:
    """Print what a project holds after a build, what the build took, and what to do next.

    A build that had nothing to do is reported in at most ten lines.

    Args:
        project: The project that was built.
        report: What the build did.
        rows: The state of the outputs, if it was looked up already.
        is_selected: Whether only some outputs were to be built.
    """
    from nanoset_core.cli.commands.status import print_old_versions, print_tables

    # Rows of the tables, each of which stands for one or several steps of the build.
    seconds_by_row: dict[RowKey, float] = defaultdict(float)
    for step in report.steps:
        seconds_by_row[step.node.row] += report.made.get(label_of(step.node), 0)
    if rows is None:
        rows = _rows(report)

    if _had_nothing_to_do(report, rows, is_selected):
        _print_nothing_to_do(project, report, rows)
    else:
        print_tables(rows, seconds_by_row, project=project)
        rows_made = {step.node.row for step in report.steps if label_of(step.node) in report.made}
        rows_not_made = {step.node.row for step in report.steps if label_of(step.node) in report.ended}
        n_made = len(rows_made - rows_not_made)
        echo(f"Made {n_made:,} of {len(seconds_by_row):,} outputs in {report.seconds:.1f} s.")
    if report.whole:
        print_old_versions(project, more_than=sum(row.figures.get("bytes", 0) for row in rows))

    readable = [(row.name, row.part or "") for row in rows if row.state == "up to date" and row.figures.get("samples")]
    for line in (*_replaced(report), *_next_steps(project.config, report.graph, readable)):
        echo(line)


def _had_nothing_to_do(report: BuildReport, rows: Sequence[StatusRow], is_selected: bool) -> bool:
    """Return whether all that a build was to make was there before it, so that no table is worth printing."""
    from nanoset_core.cli.commands.status import DONE

    if report.made or report.failed or report.skipped:
        return False
    if is_selected:
        return all(row.state != "failing" for row in rows)
    return all(row.state in DONE for row in rows)


def _print_nothing_to_do(project: Project, report: BuildReport, rows: Sequence[StatusRow]) -> None:
    from nanoset_core.cli.commands.status import DONE, state_counts, warning_lines

    print_warnings(project, warning_lines(rows), at_most=_NEW_WARNINGS)
    outputs = [row for row in rows if row.state != "not read"]
    what = "What was selected" if any(row.state not in DONE for row in rows) else "Everything"
    counts = f"{state_counts(outputs)}: `nanoset status` prints the tables"
    echo(f"{what} is up to date: nothing was made ({report.seconds:.1f} s). {counts}.")


def _replaced(report: BuildReport) -> Iterator[str]:
    """Yield what replaced outputs of other settings, which may still be in use."""
    told: dict[str, dict[str, None]] = defaultdict(dict)
    for step in report.steps:
        if label_of(step.node) in report.made and (settings := report.replaced.get(label_of(step.node))):
            told["; ".join(settings)][f"{step.node.stage.kind} {step.node.key.subject}"] = None
    for changes, names in told.items():
        yield f"Made by other settings than before: {some(list(names), _NAMED)} ({changes})."
    if any(REPLACED in step.reasons for step in report.steps if label_of(step.node) in report.made):
        yield "If another nanoset.yaml has this root, it finds these stale now: give it a root, or names, of its own."


def _next_steps(config: ProjectConfig, graph: Graph, readable: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield what to do with the result; `readable` are the (nanoset, split) that have samples."""
    from nanoset_assets.instance import HOME_VARIABLE, dagster_home

    place, endpoint = config.root_place, config.storage.endpoint_url
    root = str(config.root_folder) if place is None else place.url()
    manifests = [one for node in graph.nodes() if (one := graph.current(node).manifest) is not None]
    if (first := next(iter(manifests), None)) is not None:
        has_links = place is None and (first.folder.parent / "current").is_symlink()
        live = "current" if has_links else "current.json"
        yield f"Outputs are below {root}; `{live}` in each folder names the live version."
    for found in readable[:1]:
        # In double quotes, which a shell leaves alone within single ones.
        where, storage = json.dumps([root, *found], ensure_ascii=False)[1:-1], json.dumps(endpoint, ensure_ascii=False)
        has_endpoint = place is not None and endpoint is not None
        imports = "StorageSpec, load_nanoset" if has_endpoint else "load_nanoset"
        where += f", StorageSpec({storage})" if has_endpoint else ""
        program = f"from nanoset_core import {imports}; print(load_nanoset({where})[0])"
        yield f"Read samples: python -c {shell_word(program)}"
    for one in manifests:
        if readable and one.name == f"{readable[0][0]}/{HANDOFF}":
            yield f"Train on it: {one.url(START)} says how to start."
    home, file = (shell_word(path) for path in (dagster_home(config), config.file))
    yield f"Look at it: {HOME_VARIABLE}={home} NANOSET_CONFIG={file} dagster dev -m nanoset_assets.definitions"
