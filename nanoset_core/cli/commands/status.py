"""`nanoset status`: what is missing, stale or failing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION


@click.command("status", short_help="Show what is up to date, stale, missing or failing.")
@CONFIG_OPTION
@JSON_OPTION
def command(config: Path, as_json: bool) -> None:
    """Show what is up to date, stale (and why), missing or failing; exit code 1 unless everything is up to date.

    Nothing is built and no big file is read: files are known by size and time from the last build.
    """
    from nanoset_core.cli import status_tables
    from nanoset_core.cli.terminal import print_notices
    from nanoset_core.outputs.root import Seen
    from nanoset_core.pipeline.project import Project
    from nanoset_core.pipeline.tokenization import tokenizer_notices
    from nanoset_core.versions.status import project_status

    project = replace(Project.open(config), seen=Seen())
    is_up_to_date = (status_tables.print_json if as_json else status_tables.print_tables)(project_status(project))
    print_notices(tokenizer_notices(project))
    if not is_up_to_date:
        sys.exit(1)
