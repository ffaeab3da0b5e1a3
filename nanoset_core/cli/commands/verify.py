"""`nanoset verify`: is what was built whole, fresh, and right?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION, PATH


@click.command("verify")
@click.argument("prefix", type=PATH, required=False)
@CONFIG_OPTION
@click.option("--select", "-s", multiple=True, help="Only these: a corpus, nanoset, nanoset/split or webdataset; a*.")
@click.option("--deep", is_flag=True, help="Read every token, and compare every checksum.")
@click.option("--tokenizer", type=PATH, help="Of PREFIX: a tokenizer.json, for its vocabulary.")
@click.option("--eod", help="Of PREFIX: the token that must end every document.")
@JSON_OPTION
def command(
    prefix: Path | None,
    config: Path,
    select: tuple[str, ...],
    deep: bool,
    tokenizer: Path | None,
    eod: str | None,
    as_json: bool,
) -> None:
    """Check all that a project built, or one .bin/.idx pair at PREFIX; exit code 1 where there is an error.

    Counts, indices, pointers, vocabulary, end-of-document tokens, index caches, tars; documents tokenized again from
    their source lines. Without --deep big files are looked at in spread places.
    """
    from nanoset_core.cli import verify_tables

    if prefix is not None:
        if select:
            raise click.UsageError("--select is for projects, not for a PREFIX")
        from nanoset_core.verification.prefix import verify_prefix

        reports = iter([verify_prefix(prefix, tokenizer, eod, deep=deep)])
    else:
        if tokenizer is not None or eod is not None:
            raise click.UsageError("--tokenizer and --eod are for a PREFIX; a project names its own")
        from nanoset_core.pipeline.project import Project
        from nanoset_core.verification.verify import verify_project

        reports = verify_project(Project.open(config), select, deep)
    if not (verify_tables.print_json if as_json else verify_tables.print_table)(reports):
        sys.exit(1)
