"""`nanoset merge`: a folder's indexed datasets joined into one."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import PATH


@click.command("merge")
@click.option("--input", "folder", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
@click.option("--output-prefix", type=PATH, required=True, help="Of the merged pair.")
def command(folder: Path, output_prefix: Path) -> None:
    """Join all .bin/.idx pairs of a folder, sorted by name, into one, as Megatron-LM's merge_datasets does."""
    from nanoset_core.errors import MissingError
    from nanoset_core.indexed import MMapIndexedDataset, merge_indexed_datasets

    prefixes = sorted(path.with_suffix("") for path in folder.glob("*.idx"))
    if not prefixes:
        raise MissingError("no datasets to merge", where=folder, expected="pairs of .bin and .idx")
    merge_indexed_datasets(prefixes, output_prefix)
    dataset = MMapIndexedDataset(output_prefix)
    documents = len(dataset.document_indices) - 1
    click.echo(f"{output_prefix}: {len(prefixes):,} datasets, {documents:,} documents, {len(dataset.tokens):,} tokens")
