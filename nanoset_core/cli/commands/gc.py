"""`nanoset gc`: remove old versions that nothing needs."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION


@click.command("gc")
@CONFIG_OPTION
@click.option("--yes", is_flag=True, help="Remove it; without this, it is only listed.")
@click.option("--keep", type=click.IntRange(0), default=0, show_default=True, help="Older versions of each that stay.")
@click.option("--older-than", type=click.FloatRange(0), metavar="DAYS", help="Only what was made before that.")
@click.option("--unfinished", is_flag=True, help="Also what a build that was cut short had finished.")
@click.option("--no-locks", is_flag=True, help="Nothing is built meanwhile; for file systems without locks.")
@click.option("--copies", is_flag=True, help="Instead: this machine's copies of outputs in a bucket.")
@JSON_OPTION
def command(
    config: Path,
    yes: bool,
    keep: int,
    older_than: float | None,
    unfinished: bool,
    no_locks: bool,
    copies: bool,
    as_json: bool,
) -> None:
    """List, or with --yes remove, old versions of outputs and index files that nothing needs any more.

    Kept are the current version of every output and all that it was made from or points at, what a running build
    works on, and whatever is not recognised as made by nanoset. What is removed can be built again.
    """
    from nanoset_core.cli.gc_tables import print_collection, print_copies, print_json
    from nanoset_core.pipeline.project import Project
    from nanoset_core.versions.copies import find_copies, remove_copies
    from nanoset_core.versions.gc import collect, plan_gc

    project = Project.open(config)
    if copies:
        print_copies(remove_copies(project) if yes else find_copies(project), done=yes, as_json=as_json)
        return
    if yes:
        found = collect(project, keep=keep, older_than_days=older_than, unfinished=unfinished, locks=not no_locks)
    else:
        found = plan_gc(project, keep=keep, older_than_days=older_than, unfinished=unfinished)
    (print_json if as_json else print_collection)(found, done=yes)
