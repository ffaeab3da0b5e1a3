"""`nanoset import-parquet`: tables as JSON lines."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import OVERWRITE_OPTION, PATH, option
from nanoset_core.cli.terminal import print_made


@click.command("import-parquet", short_help="Write Parquet or Arrow tables as JSON lines.")
@click.argument("sources", nargs=-1, required=True, type=PATH)
@option("--output", "A .jsonl, .jsonl.gz or .jsonl.zst file.", type=PATH, required=True)
@option("--columns", "Keep only these columns, in this order: a,b,c.")
@OVERWRITE_OPTION
def command(sources: tuple[Path, ...], output: Path, columns: str | None, overwrite: bool) -> None:
    """Write the rows of Parquet or Arrow tables as JSON lines, for tools that need these.

    SOURCES are files, or folders such as those of datasets on the Hugging Face Hub. You do not need
    this command to build a corpus, because a corpus may contain .parquet and .arrow files.
    """
    from nanoset_core.text.importing import import_once

    kept_columns = columns.split(",") if columns else None
    facts, is_new = import_once(sources, output, columns=kept_columns, overwrite=overwrite)
    n_bytes = f"{facts.written_bytes:,} bytes of JSON lines"
    print_made(f"{output}: {facts.rows:,} rows of {facts.files:,} files, {n_bytes}", is_new=is_new)
