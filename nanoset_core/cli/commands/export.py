"""`nanoset export`: one dataset as files of another reader.

A dataset is a pair of files, .bin and .idx, with tokens and their index. Readers such as datatrove
and MosaicML streaming expect other files. Where they store tokens in the same way, a hard link to
the .bin is enough, so that an export takes no space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import click

from nanoset_core.cli.options import ANY_PATH, OVERWRITE_OPTION, option
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import print_made, print_notices
from nanoset_core.cli.tokenizer_options import tokenizer_options
from nanoset_core.stages.exports.settings import FormatName
from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath

_FORMATS = click.Choice(get_args(FormatName))


@click.command("export", short_help="Write a .bin/.idx pair as files of another reader.")
@click.argument("prefix", type=ANY_PATH)
@option("--format", "What reads it.", type=_FORMATS, required=True)
@option("--output -o folder", "The folder to write to.", type=ANY_PATH, required=True)
@option("--name", "Name of the files; default: that of the pair.")
@tokenizer_options("of PREFIX, whose vocabulary is compared with the type of its tokens")
@option(
    "--tokenizer-name",
    "What the metadata of datatrove call the tokenizer, such as HuggingFaceTB/SmolLM3-3B.",
)
@option(
    "--sequence-length",
    "Tokens of a sample; required for mds and litdata.",
    type=click.IntRange(1, 1 << 24),
)
@OVERWRITE_OPTION
def command(
    prefix: Location,
    format: str,
    folder: Location,
    name: str | None,
    tokenizer: TokenizerPath | None,
    tokenizer_name: str | None,
    sequence_length: int | None,
    overwrite: bool,
) -> None:
    """Write a .bin/.idx pair as files that another reader takes.

    PREFIX is the path of the pair of files without .bin or .idx, or of one of the two files.

    With the formats datatrove and olmo-core, the export is a hard link to the .bin file, so it
    needs no space for tokens. If hard links are not possible, the tokens are copied. If PREFIX is a
    view, its tokens are written in the order of the view.

    The readers of datatrove and olmo-core recognize the end of a document by the end-of-document
    token, so each document must end with one.

    The formats mds and litdata have samples of one length. They are written as files of 64 MiB with
    an index.json, so give them a folder that contains nothing else.
    """
    import numpy as np

    from nanoset_core.formats.indexed.pairs import prefix_of
    from nanoset_core.stages.exports.formats import FORMATS
    from nanoset_core.stages.exports.settings import IN_SAMPLES
    from nanoset_core.stages.exports.standalone import ExportOptions, export_pair

    is_sampled = format in IN_SAMPLES
    if is_sampled and sequence_length is None:
        raise click.UsageError(f"--format {format} needs --sequence-length")
    if not is_sampled and sequence_length is not None:
        raise click.UsageError(f"--format {format} takes no --sequence-length")

    options = ExportOptions(
        format=format,
        name=name,
        tokenizer=tokenizer,
        tokenizer_name=tokenizer_name,
        sequence_length=sequence_length,
    )
    with shown_progress() as progress:
        exported = export_pair(prefix_of(prefix), folder, options, progress, overwrite=overwrite)

    # The last file is the index.json of samples, and the first one has the tokens.
    main_file = exported.files[-1] if is_sampled else exported.files[0]
    summary = f"{main_file}: {_counts_text(exported.facts)}; tokens: {exported.facts['made_by']}"
    print_made(summary, is_new=exported.is_new)
    if tokenizer is None:
        unchecked = FORMATS[format].unchecked(np.dtype(exported.facts["dtype"]))
        if unchecked is not None:
            print_notices([unchecked])


def _counts_text(facts: Mapping[str, Any]) -> str:
    """Say what the files of an export contain, and what is missing from them.

    For example: "1,200 documents, 61,000 tokens, 118 samples; its reader skips the last 584
    tokens".

    Args:
        facts: Counts that were recorded with the files: {"documents": 1200, "tokens": 61000, …}.
            Only some formats have samples.
    """
    n_documents = format_count(facts["documents"], "document")
    n_tokens = format_count(facts["tokens"], "token")
    text = f"{n_documents}, {n_tokens}"
    if facts["left_out"]:
        text += f", {facts['left_out']:,} without tokens left out"
    if "samples" in facts:
        text += f", {format_count(facts['samples'], 'sample')}"
    if facts.get("dropped"):
        text += f"; its reader skips the last {format_count(facts['dropped'], 'token')}"
    return text
