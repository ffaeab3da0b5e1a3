"""`nanoset tokenize`: text into indexed datasets, with the peers' flags."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import FOLDER, OVERWRITE_OPTION, PATH, ManyValued, option_for
from nanoset_core.cli.terminal import emphasis, print_notices, progress_bars
from nanoset_core.config.tokenization import DocumentsSpec, TokenizationSpec


@click.command("tokenize", cls=ManyValued)
@click.option("--input", "inputs", multiple=True, required=True, help="Files, folders or patterns; several may follow.")
@click.option("--output-prefix", type=PATH, required=True, help="Names of the outputs begin so.")
@click.option(
    "--tokenizer",
    "--tokenizer-model",
    "--pretrained-model-name-or-path",
    "tokenizer",
    type=PATH,
    required=True,
    help="A tokenizer.json, or the folder that holds one.",
)
@click.option(
    "--json-keys", "--json-key", "keys", multiple=True, default=("text",), show_default=True,
    help="Keys of the text in each line's JSON object; each gives a pair.",
)  # fmt: skip
@option_for(
    TokenizationSpec, "preset", type=click.Choice(["megatron", "nanotron", "nemo"]),
    help="Whose preprocess_data is matched byte for byte.",
)  # fmt: skip
@option_for(TokenizationSpec, "append_eod", "--append-eod", "--append-eos", default=False)
@click.option("--eod", help="The EOD token; default: the one that tokenizer_config.json beside the tokenizer names.")
@click.option("--bos", help="A token to begin every document with.")
@option_for(TokenizationSpec, "workers")
@click.option("--partitions", type=click.IntRange(1), default=1, help="Order documents as if dealt to so many files.")
@click.option("--keep-sequential-samples", is_flag=True, help="Keep the input's order whatever the partitions.")
@click.option("--per-file", is_flag=True, help="One pair for each input file, named after it.")
@option_for(TokenizationSpec, "engine")
@option_for(DocumentsSpec, "on_reject")
@option_for(DocumentsSpec, "max_rejected_fraction")
@option_for(DocumentsSpec, "max_unreadable_fraction")
@click.option("--scratch", type=FOLDER, help="Where to make the folder for unfinished work.")
@OVERWRITE_OPTION
def command(
    inputs: tuple[str, ...],
    output_prefix: Path,
    tokenizer: Path,
    append_eod: bool,
    eod: str | None,
    per_file: bool,
    scratch: Path | None,
    overwrite: bool,
    **options: object,
) -> None:
    """Tokenize files into .bin/.idx pairs, byte for byte as Megatron-LM's, nanotron's or NeMo's tool."""
    from nanoset_core.execution.processes import available_processors, forked_workers
    from nanoset_core.tokenization.inputs import by_file, resolve_inputs
    from nanoset_core.tokenization.preprocess import (
        RANGE_BYTES,
        PreprocessOptions,
        end_token,
        own_rejects,
        preprocess,
        tokenizer_path,
    )
    from nanoset_core.tokenization.shards import engine_choice

    file = tokenizer_path(tokenizer)
    settings = PreprocessOptions(tokenizer=file, eod=end_token(file, eod) if append_eod else None, **options)  # type: ignore[arg-type]
    found = resolve_inputs(inputs, leave_out=lambda path: own_rejects(path, output_prefix))
    jobs = by_file(found, output_prefix) if per_file else [(found, output_prefix)]
    click.echo(f"engine {engine_choice(file, settings.engine)}", err=True)
    import pyarrow.parquet  # noqa: F401 - for all workers, once

    size = sum(file.size for file in found.files)
    workers = min(settings.workers or available_processors(), 1 + size // RANGE_BYTES)
    with forked_workers(workers) as executor, progress_bars() as (listener, _):
        results = [
            result
            for files, prefix in jobs
            for result in preprocess(
                files, prefix, settings, scratch=scratch, listener=listener, overwrite=overwrite, executor=executor
            )
        ]
    print_notices(found.notices)
    for result in results:
        facts = result.facts
        click.echo(
            f"{result.prefix}: {facts.documents:,} documents, {facts.tokens:,} tokens, "
            f"{facts.rejected + facts.faults:,} rejected"
            + (f" ({result.rejects})" if result.rejects else "")
            + ("" if result.made else " (there already)")
            + emphasis(result.lost)
        )
