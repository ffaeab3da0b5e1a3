"""`nanoset demo`: an example project, written and built."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import FOLDER, NumberRange, build_of, option


@click.command("demo", short_help="Write and build an example project.")
@click.argument("folder", type=FOLDER, default=Path("demo"))
@option(
    "--megabytes",
    "About how much text to take; 2 is about the minimum.",
    type=NumberRange(0, 10_000),
    default=24.0,
    show_default=True,
)
@click.pass_context
def command(context: click.Context, folder: Path, megabytes: float) -> None:
    """Write an example project of real text into FOLDER (default: demo) and build it."""
    from nanoset_core.demo.writing import write_demo
    from nanoset_core.records.parsing import CONFIG_FILE

    if not write_demo(folder, megabytes=megabytes, say=lambda line: echo(f"{line} …", err=True)):
        echo(f"{folder / CONFIG_FILE} exists already: building what is missing or stale", err=True)
    build_of(context, folder / CONFIG_FILE)()
