"""Subcommands of `nanoset` that need Dagster."""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.failures import message
from nanoset_core.cli.options import CONFIG_OPTION
from nanoset_core.cli.tables import wide_console
from nanoset_core.cli.terminal import progress_bars
from nanoset_core.config.project import load_config
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

    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # it tells of a Ctrl-C with a traceback
    with progress_bars() as (listener, say):
        report = run_build(
            Project(project_config, listener),
            open_instance(project_config),
            select=select,
            rebuild=force,
            verbose=verbose,
            say=say,
        )
    show_report(Project(project_config), report)
    for label, error in report.failed.items():
        click.secho(f"failed: {label}", fg="red", bold=True, err=True)
        click.echo(message(error), err=True)
    if report.skipped:
        click.echo(f"not made, since they need what failed: {', '.join(report.skipped)}", err=True)
    if report.failed:
        sys.exit(1)


def show_report(project: Project, report: BuildReport) -> None:
    """Print what a project holds after a build, what the build took, and what to do next."""
    from nanoset_core.cli.status_tables import print_tables
    from nanoset_core.pipeline.graph import graph_over
    from nanoset_core.versions.status import graph_status

    spent: dict[tuple[str, str, str | None], float] = defaultdict(float)
    for step in report.steps:
        spent[step.node.row] += report.made.get(step.label, 0)
    is_as_before = not report.made and not report.failed
    print_tables(graph_status(report.graph if is_as_before else graph_over(project, report.inventories)), spent)
    console = wide_console()
    if is_as_before:
        console.print(f"Everything is up to date: nothing was made ({report.seconds:.1f} s).")
    else:
        made = len(report.made)
        console.print(f"Made {made} of {len(report.steps)} partitions of assets in {report.seconds:.1f} s.")
    for line in _next_steps(project):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _next_steps(project: Project) -> Iterator[str]:
    """What to do with the result."""
    config = project.config
    root = config.root_folder if config.root_place is None else config.root_place.url
    live = "`current`" if config.root_place is None else "`current.json`"
    yield f"Outputs are below {root}; {live} in each folder names the live version."
    for name in config.nanosets:
        endpoint = config.storage.endpoint_url
        imports, storage = "load_nanoset", ""
        if config.root_place is not None and endpoint is not None:
            imports, storage = "StorageSpec, load_nanoset", f", StorageSpec('{endpoint}')"
        yield (
            f'Read samples: python -c "from nanoset_core import {imports}; '
            f"print(load_nanoset('{root}', '{name}', 'train'{storage})[0])\""
        )
        break
    yield f"Look at it: NANOSET_CONFIG={project.config.file} dagster dev   (`make dev` for the demo)"
