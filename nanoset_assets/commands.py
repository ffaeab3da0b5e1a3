"""Subcommands of `nanoset` that need Dagster."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.config import CONFIG_FILE, load_config
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline.project import Project
from nanoset_core.progress import Listener, Progress

if TYPE_CHECKING:
    from nanoset_assets.building import BuildReport

CONFIG_OPTION = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path(CONFIG_FILE),
    show_default=True,
    envvar="NANOSET_CONFIG",
    help="The project's nanoset.yaml.",
)


@click.command()
@CONFIG_OPTION
@click.option("--select", "-s", help="Build only these assets: Dagster's selection syntax, such as +pretrain/blend.")
@click.option("--force", is_flag=True, help="Make the selected assets again even where they are up to date.")
@click.option("--verbose", "-v", is_flag=True, help="Show Dagster's own log.")
def build(config: Path, select: str | None = None, force: bool = False, verbose: bool = False) -> None:
    """Build what is missing or stale: corpora, indexed datasets, index mappings, blends, shuffled tars."""
    project_config = load_config(config)
    from nanoset_assets.building import build as run_build
    from nanoset_assets.instance import open_instance

    with _progress_bars() as (listener, say):
        report = run_build(
            Project(project_config, listener),
            open_instance(project_config),
            select=select,
            rebuild=force,
            verbose=verbose,
            say=say,
        )
    _show(Project(project_config), report)
    for label, error in report.failed.items():
        click.secho(f"failed: {label}", fg="red", bold=True, err=True)
        known = isinstance(error, NanosetError)
        click.echo(str(error) if known else "".join(traceback.format_exception(error)), err=True)
    if report.skipped:
        click.echo(f"not made, since they need what failed: {', '.join(report.skipped)}", err=True)
    if report.failed:
        sys.exit(1)


@contextmanager
def _progress_bars() -> Iterator[tuple[Listener, object]]:
    """A bar for each long job on a terminal; elsewhere a line when a job starts and ends."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[tuple[str, str], tuple[object, float]] = {}

        def listen(progress: Progress) -> None:
            key = (progress.stage, progress.name)
            if key not in tasks:
                tasks[key] = (bars.add_task(f"{progress.stage} {progress.name}", total=1, rate=""), time.monotonic())
            task, started = tasks[key]
            bars.update(task, total=max(progress.total, 1), completed=progress.done, rate=_rate(progress, started))

        yield listen, lambda line: None if console.is_terminal else console.print(line, highlight=False, markup=False)


def _rate(progress: Progress, started: float) -> str:
    seconds = max(time.monotonic() - started, 1e-3)
    if progress.tokens:
        return f"{progress.tokens / 1e6:,.1f} M tokens, {progress.done / 1e6 / seconds:,.1f} MB/s"
    return (
        f"{progress.done / 1e6 / seconds:,.0f} MB/s" if progress.unit == "bytes" else f"{progress.done} {progress.unit}"
    )


def _show(project: Project, report: BuildReport) -> None:
    from rich.console import Console

    from nanoset_assets import tables

    console = Console()
    for table in tables.summary(project, report):
        console.print(table)
    if not report.made and not report.failed:
        console.print(f"Everything is up to date: nothing was made ({report.seconds:.1f} s).")
    else:
        made = len(report.made)
        console.print(f"Made {made} of {len(report.steps)} partitions of assets in {report.seconds:.1f} s.")
    for line in tables.next_steps(project):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
