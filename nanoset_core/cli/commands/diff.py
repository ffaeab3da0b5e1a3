"""`nanoset diff`: two versions of a dataset."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import CONFIG_OPTION


@click.command("diff")
@click.argument("first", metavar="CORPUS|A")
@click.argument("second", metavar="[B]", required=False)
@CONFIG_OPTION
@click.option("--show", default=20, show_default=True, help="How many files to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all files.")
def command(first: str, second: str | None, config: Path, show: int, as_json: bool) -> None:
    """Compare two versions of a dataset, A and B (digests or their first digits); of a CORPUS, its last two.

    Documents and tokens in and out by source file, settings that differ, and which outputs survive the change.
    """
    from nanoset_core.cli.diff_tables import print_tables
    from nanoset_core.cli.tables import print_json
    from nanoset_core.pipeline.project import Project
    from nanoset_core.versions.diff import diff_datasets

    found = diff_datasets(Project.open(config), first, second)
    if as_json:
        print_json(found.to_json(), ensure_ascii=False)
    else:
        print_tables(found, show)
