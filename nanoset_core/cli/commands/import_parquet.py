"""`nanoset import-parquet`: tables as JSON lines."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import OVERWRITE_OPTION, PATH, option
from nanoset_core.cli.terminal import print_made


@click.command("import-parquet", short_help="Write Parquet or Arrow tables as JSON lines.")
@click.argument("sources", nargs=-1, required=True, type=PATH)
@option("--output", "A .jsonl, .jsonl.gz or .jsonl.zst file.", type=PATH, required=True)
@option("--columns", "Keep only these, in this order: a,b,c.")
@OVERWRITE_OPTION
def command(sources: tuple[Path, ...], output: Path, columns: str | None, overwrite: bool) -> None:
    """Write the rows of Parquet or Arrow SOURCES (files, or folders such as Hugging Face data
    sets') as JSON lines.

    Corpora may hold .parquet and .arrow files as they are; this is for tools that want JSON lines.
    """
    from nanoset_core.text.importing import import_once

    facts, made = import_once(
        sources, output, columns=columns.split(",") if columns else None, overwrite=overwrite
    )
    counts = (
        f"{facts.rows:,} rows of {facts.files:,} files, {facts.written_bytes:,} bytes of JSON lines"
    )
    print_made(f"{output}: {counts}", is_new=made)
