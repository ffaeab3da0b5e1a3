"""`nanoset init`: a configuration to start from."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def command(folder: Path) -> None:
    """Write a nanoset.yaml to start from into FOLDER, naming the corpora that its raw folder holds."""
    from nanoset_core.config.template import write_config

    path = write_config(folder)
    click.echo(f"wrote {path}: read it, name your tokenizer, then run `nanoset build`")
