"""`nanoset init`: a configuration to start from."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import FOLDER


@click.command("init")
@click.argument("folder", type=FOLDER, default=Path())
def command(folder: Path) -> None:
    """Write a nanoset.yaml to start from into FOLDER, naming the corpora that its raw folder holds."""
    from nanoset_core.config.template import write_config

    path = write_config(folder)
    click.echo(f"wrote {path}: read it, name your tokenizer, then run `nanoset build`")
