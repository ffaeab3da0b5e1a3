"""`nanoset inspect`: what an indexed dataset holds."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("inspect")
@click.argument("prefix", type=click.Path(path_type=Path))
@click.option("--tokenizer", type=click.Path(path_type=Path, dir_okay=False), help="A tokenizer.json to decode with.")
@click.option("--sequences", default=3, show_default=True, help="How many sequences to show.")
def command(prefix: Path, tokenizer: Path | None, sequences: int) -> None:
    """Show what the indexed dataset at PREFIX (.bin/.idx) holds, and its first sequences."""
    from nanoset_core.cli.dataset_summary import describe_dataset

    for line in describe_dataset(prefix, tokenizer, sequences):
        click.echo(line)
