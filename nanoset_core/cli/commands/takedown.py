"""`nanoset takedown`: leave documents out of the views of a project."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.copies import print_copies
from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, FILE, IDS_FILE_OPTION, build_of, flag, option
from nanoset_core.cli.terminal import print_notices, print_rows
from nanoset_core.errors import ConfigError

if TYPE_CHECKING:
    from nanoset_core.project.settings import ProjectConfig


@click.command("takedown", short_help="Leave documents out of views.")
@click.argument("ids", nargs=-1)
@CONFIG_OPTION
@option("--reason", "Why; it goes into the list, with the day.", required=True)
@IDS_FILE_OPTION
@option(
    "--list listed", "The list to add them to; default: the one file that views exclude.", type=FILE
)
@flag("--no-build", "Add and show them only; do not build.")
@click.pass_context
def command(
    context: click.Context,
    ids: tuple[str, ...],
    config: Path,
    reason: str,
    ids_file: Sequence[str],
    listed: Path | None,
    no_build: bool,
) -> None:
    """Add the documents of these IDS to a list that views exclude, show what holds them now, and
    build what changed.

    Their tokens stay in the corpus; a view hides them.
    """
    from nanoset_core.lineage.takedown import add_ids, holdings
    from nanoset_core.project.project import Project
    from nanoset_core.storage.leases import builds_under_way

    project = Project.open(config)
    wanted = [*ids, *ids_file]
    if not wanted:
        raise click.UsageError("Missing argument 'IDS...'.", context)
    build = None if no_build else build_of(context, config)
    for under_way in builds_under_way(project.outputs.access):
        then = (
            "this command waits for it, and builds again"
            if build
            else "run `nanoset build` once it has ended"
        )
        print_notices(
            [f"a build is under way, which may still take these documents: {under_way}; {then}"]
        )
    file = listed if listed is not None else _only_list(project.config)
    new = add_ids(file, wanted, reason, datetime.date.today().isoformat())
    echo(f"{file}: {len(new):,} ids added, {len(set(wanted)) - len(new):,} were there")
    rows = [
        {
            "held by": one.output,
            "documents": one.documents,
            "samples": "" if one.samples is None else f"{one.samples[0]:,} to {one.samples[1]:,}",
            "steps": "" if one.steps is None else f"{one.steps[0]:,} to {one.steps[1]:,}",
        }
        for one in holdings(project, wanted)
    ]
    print_rows(rows)
    already_listed = file.read_text(encoding="utf-8").splitlines()
    print_copies(project, wanted, fate="not taken down", ignored_ids=already_listed)
    if build is not None:
        build()


def _only_list(config: ProjectConfig) -> Path:
    """Return the one file of this machine that views exclude by its name; ConfigError where there
    is not just one.
    """
    found = sorted({path for path in _lists(config) if not any(sign in path for sign in "*?[")})
    if len(found) != 1 or "://" in found[0]:
        what, expected = "it is not clear which list to add to", "one local file that views exclude"
        remedy = "name it with --list, and in a view's `exclude`"
        where, names = f"{config.file}: views", ", ".join(found) or "none"
        raise ConfigError(what, where=where, found=names, expected=expected, remedy=remedy)
    return config.local(found[0], "views.exclude")


def _lists(config: ProjectConfig) -> Iterator[str]:
    for view in config.views.values():
        yield from view.files("exclude") or ()
