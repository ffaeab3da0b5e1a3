"""`nanoset export`: one dataset as files of another reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import click

from nanoset_core.cli.options import ANY_PATH, OVERWRITE_OPTION, option
from nanoset_core.cli.progress import progress_bars
from nanoset_core.cli.terminal import print_made
from nanoset_core.cli.tokenizer_options import tokenizer_options
from nanoset_core.stages.exports.settings import FormatName

if TYPE_CHECKING:
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath

_FORMATS = click.Choice(get_args(FormatName))


@click.command(
    "export", short_help="Give a .bin/.idx pair to another reader, over the same tokens."
)
@click.argument("prefix", type=ANY_PATH)
@option("--format", "What reads it.", type=_FORMATS, required=True)
@option("--output -o folder", "The folder to write to.", type=ANY_PATH, required=True)
@option("--name", "Of the files; default: that of the pair.")
@tokenizer_options("of PREFIX, whose vocabulary is compared with the type of its tokens")
@option(
    "--tokenizer-name",
    "What datatrove's metadata call the tokenizer, such as HuggingFaceTB/SmolLM3-3B.",
)
@option(
    "--sequence-length",
    "Tokens of a sample: for mds and litdata, which need it.",
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
    """Write the .bin/.idx pair at PREFIX as files that another reader takes: its tokens are linked,
    not copied.

    Where a link is refused they are copied, and within a bucket the bucket copies them. PREFIX may
    be a view, whose tokens are written in its order. Each document must end with an end token, by
    which these readers part them.

    The formats mds and litdata have samples of one length, which are written, in files of 64 MiB
    with an index.json: give them a folder of their own.
    """
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
    with progress_bars() as (listener, _):
        exported = export_pair(prefix, folder, options, listener, overwrite=overwrite)

    facts = exported.facts
    counts = f"{facts['documents']:,} documents, {facts['tokens']:,} tokens"
    if facts["left_out"]:
        counts += f", {facts['left_out']:,} without tokens left out"
    if is_sampled:
        counts += f", {facts['samples']:,} samples"
    if facts.get("dropped"):
        counts += f"; its reader passes over the last {facts['dropped']:,} tokens"
    main_file = exported.files[-1] if is_sampled else exported.files[0]  # index.json, or the tokens
    print_made(f"{main_file}: {counts}; tokens: {facts['made_by']}", is_new=exported.is_new)
