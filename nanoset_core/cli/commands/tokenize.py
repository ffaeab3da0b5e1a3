"""`nanoset tokenize`: text into indexed datasets, with the flags of the trainers' tools."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import ANY_PATH, ManyValued, flag, option, option_for, options_for
from nanoset_core.cli.progress import progress_bars
from nanoset_core.cli.terminal import print_made, print_notices
from nanoset_core.cli.tokenizer_options import text_options
from nanoset_core.errors import ConfigError
from nanoset_core.stages.shards.settings import TokenizationSpec

if TYPE_CHECKING:
    from nanoset_core.stages.shards.framing import SpecialTokens
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath


@click.command("tokenize", cls=ManyValued, short_help="Tokenize files into .bin/.idx pairs.")
@option(
    "--input inputs",
    "Files, folders or patterns; several may follow.",
    multiple=True,
    required=True,
)
@option(
    "--output-prefix",
    "Prefix of the outputs: PREFIX_text_document.bin and .idx.",
    type=ANY_PATH,
    required=True,
)
@text_options()
@option_for(TokenizationSpec, "special_tokens")
@option(
    "--tokenizer-hf-include-special-tokens/--tokenizer-hf-no-include-special-tokens hf_special",
    "The same as --special-tokens add, or none.",
    default=None,
)
@option(
    "--json-keys --json-key keys",
    "Keys of the text in each line's JSON object; one .bin/.idx pair each.",
    multiple=True,
    default=("text",),
    show_default=True,
)
@option_for(
    TokenizationSpec, "preset", type=click.Choice(["megatron", "nanotron", "nemo"]),
    help="Tool whose preprocess_data is matched byte for byte.",
)  # fmt: skip
@option_for(TokenizationSpec, "append_eod", "--append-eod", "--append-eos", default=False)
@option("--bos", "A token to begin every document with.")
@option(
    "--partitions",
    "Order of documents: that of Megatron-LM's tool with this many partitions.",
    type=click.IntRange(1, 1 << 31),
    default=1,
)
@flag("--keep-sequential-samples", "Keep the order of the input, with any number of partitions.")
@flag("--per-file", "One pair for each input file, named after it.")
@options_for(TokenizationSpec, "workers", "engine", "audit")
def command(
    inputs: tuple[str, ...],
    output_prefix: Location,
    tokenizer: TokenizerPath | None,
    hf_special: bool | None,
    append_eod: bool,
    per_file: bool,
    scratch: Path | None,
    overwrite: bool,
    **options: Any,
) -> None:
    """Tokenize files into .bin/.idx pairs, byte for byte as Megatron-LM's, nanotron's or NeMo's
    tool.
    """
    from nanoset_core.execution.processes import forked_workers
    from nanoset_core.execution.progress import progress_reported_to
    from nanoset_core.execution.resources import available_processors
    from nanoset_core.stages.shards.framing import special_tokens_notices
    from nanoset_core.stages.shards.inputs import by_file, resolve_inputs
    from nanoset_core.stages.shards.make import engine_choice
    from nanoset_core.stages.shards.preprocess import is_rejects_of_call, preprocess
    from nanoset_core.stages.shards.preprocess_options import PreprocessOptions
    from nanoset_core.stages.shards.preprocess_ranges import MIN_RANGE_BYTES
    from nanoset_core.tokenizers.encoders import describe_encoders
    from nanoset_core.tokenizers.end_token import chat_notice, end_token, named_end

    if tokenizer is None:
        raise click.UsageError("Missing option '--tokenizer' (or '--vocab-file', of a vocab.json).")
    same: SpecialTokens | None = None if hf_special is None else "add" if hf_special else "none"
    if same and options["special_tokens"] not in (None, same):
        both = f"{options['special_tokens']}, and --tokenizer-hf-{'' if hf_special else 'no-'}include-special-tokens"
        what, remedy = "two options say different things", "leave one of them out"
        raise ConfigError(what, where="--special-tokens", found=both, remedy=remedy)
    options["special_tokens"] = options["special_tokens"] or same
    end = named_end(tokenizer, end_token(tokenizer, options["eod"])) if append_eod else None
    options["eod"] = end and end.text
    settings = PreprocessOptions(tokenizer=tokenizer, **options)
    found = resolve_inputs(inputs, leave_out=lambda path: is_rejects_of_call(path, output_prefix))
    jobs = by_file(found, output_prefix) if per_file else [(found, output_prefix)]
    with progress_reported_to(lambda told: echo(told.name, err=True)):
        engine_choice(tokenizer, settings.engine)
    if end is not None:
        echo(f"documents end with {end}", err=True)
    size = sum(file.size for file in found.files)
    workers = min(settings.workers or available_processors(), 1 + size // MIN_RANGE_BYTES)
    with forked_workers(workers) as executor, progress_bars() as (listener, _):
        run = partial(
            preprocess, scratch=scratch, listener=listener, overwrite=overwrite, executor=executor
        )
        results = [result for files, prefix in jobs for result in run(files, prefix, settings)]
    added = special_tokens_notices(
        settings.preset, tokenizer, settings.special_tokens, bos=settings.bos, eod=settings.eod
    )
    of_chats = chat_notice(tokenizer, end, "--eod") if end else ""
    print_notices([*found.notices, *added, *filter(None, [of_chats])])
    if encoders := [encoder for result in results for encoder in result.encoders]:
        echo(describe_encoders(encoders), err=True)
    for result in results:
        facts, rejects = result.facts, f" ({result.rejects})" if result.rejects else ""
        counts = f"{facts.documents:,} documents, {facts.tokens:,} tokens, {facts.rejected + facts.faults:,} rejected"
        print_made(f"{result.prefix}: {counts}{rejects}", lost=result.lost, is_new=result.made)
