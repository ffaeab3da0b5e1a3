"""Subcommands of `nanoset` that need Dagster."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.options import CONFIG_OPTION
from nanoset_core.cli.tables import wide_console
from nanoset_core.cli.terminal import progress_bars
from nanoset_core.config.project import load_config
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline.project import Project

if TYPE_CHECKING:
    from nanoset_assets.build import BuildReport


@click.command()
@CONFIG_OPTION
@click.option("--select", "-s", help="Build only these assets: Dagster's selection syntax, such as +pretrain/blend.")
@click.option("--force", is_flag=True, help="Make the selected assets again even where they are up to date.")
@click.option("--verbose", "-v", is_flag=True, help="Show Dagster's own log.")
def build(config: Path, select: str | None = None, force: bool = False, verbose: bool = False) -> None:
    """Build what is missing or stale: corpora, indexed datasets, index mappings, blends, shuffled tars."""
    project_config = load_config(config)
    from nanoset_assets.build import build as run_build
    from nanoset_assets.instance import open_instance

    with progress_bars() as (listener, say):
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


def _show(project: Project, report: BuildReport) -> None:
    from nanoset_assets.ui import tables

    console = wide_console()
    for table in tables.summary(project, report):
        console.print(table)
    if not report.made and not report.failed:
        console.print(f"Everything is up to date: nothing was made ({report.seconds:.1f} s).")
    else:
        made = len(report.made)
        console.print(f"Made {made} of {len(report.steps)} partitions of assets in {report.seconds:.1f} s.")
    for line in tables.next_steps(project):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
