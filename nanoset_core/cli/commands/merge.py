"""`nanoset merge`: a folder's indexed datasets joined into one.

`nanoset merge --input parts --output-prefix all` writes all.bin and all.idx, with the documents of
all pairs in the folder `parts`, in the order of their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import ANY_PATH, OVERWRITE_OPTION, LocationType, option
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import print_made, print_notices
from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.storage.location import Location

_FOLDER = LocationType(file_okay=False, exists=True, anywhere=True)


@click.command("merge", short_help="Join the .bin/.idx pairs of a folder into one.")
@option("--input folder", "Folder of the pairs.", type=_FOLDER, required=True)
@option(
    "--output-prefix",
    "Prefix of the merged pair: its path without .bin or .idx.",
    type=ANY_PATH,
    required=True,
)
@OVERWRITE_OPTION
def command(folder: Location, output_prefix: Location, overwrite: bool) -> None:
    """Join all .bin/.idx pairs of a folder into one.

    The pairs are joined in the order of their names, as by Megatron-LM's merge_datasets. If
    OUTPUT_PREFIX is in the same folder and exists from an earlier call, it is not joined again.
    """
    from nanoset_core.stages.dataset.standalone import merge_folder

    with shown_progress() as progress:
        merged = merge_folder(folder, output_prefix, overwrite=overwrite, progress=progress)
    print_notices(merged.notices)
    for prefix, documents in merged.parts:
        echo(f"  {prefix}: {format_count(documents, 'document')}")
    n_datasets = format_count(len(merged.parts), "dataset")
    n_documents = format_count(merged.documents, "document")
    n_tokens = format_count(merged.tokens, "token")
    summary = f"{output_prefix}: {n_datasets}, {n_documents}, {n_tokens}"
    print_made(summary, is_new=merged.made)
