"""`nanoset shuffle`: text, pairs or tars into shuffled tars, with tokshuf-rust's flags."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.cli.options import ManyValued

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("shuffle", cls=ManyValued)
@click.option(
    "--input", "inputs", multiple=True, required=True, help="Text, .bin/.idx prefixes or tars; several may follow."
)
@click.option("--output", type=FOLDER, required=True, help="Folder of the tars; it appears when it is whole.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json, or its folder; needed for text.")
@click.option("--seqlen", "sequence_length", type=click.IntRange(1), help="Tokens in a context.  [default: 2049]")
@click.option("--wds-chunk-size", "samples_per_shard", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=1234, show_default=True)
@click.option("--ext", "extension", help="Take the files of folders that end so.")
@click.option("--shuffle-only", is_flag=True, help="The input is tars, whose contexts stay as they are.")
@click.option("--preset", type=click.Choice(["default", "tokshuf"]), default="default", show_default=True)
@click.option("--member", type=click.Choice(["json.gz", "npy"]), default="json.gz", show_default=True)
@click.option("--tail", type=click.Choice(["drop", "pad", "carry"]), default="drop", help="The last, short context.")
@click.option("--even", is_flag=True, help="Equal shards; a few contexts are left out.")
@click.option("--eod", help="The token that ends documents; default: the one of tokenizer_config.json.")
@click.option("--bos", help="A token to begin every document with.")
@click.option("--context-bos", help="A token to begin every context with.")
@click.option("--pad", help="The token of --tail pad.")
@click.option("--json-key", "text_key", default="text", show_default=True)
@click.option("--data-key", help="Extension of the members to take from tars.")
@click.option("--sampling", type=click.Path(path_type=Path), help="DCLM's YAML of sources, markers and frequencies.")
@click.option("--input-json", type=click.Path(path_type=Path), help="A record of the data (exp_data) to complete.")
@click.option("--output-json", type=click.Path(path_type=Path), help="Where to write it.")
@click.option("--engine", type=click.Choice(["auto", "mmap", "tiled", "buckets"]), default="auto", show_default=True)
@click.option("--tokenizer-engine", type=click.Choice(["auto", "numpy", "tokenizers", "gigatoken"]), default="auto")
@click.option("--memory", "memory_mib", type=click.IntRange(16), help="MiB for writing the shards.")
@click.option("--workers", "--threads", "workers", type=click.IntRange(0), help="Processes; default: all processors.")
@click.option("--on-reject", type=click.Choice(["quarantine", "fail"]), default="quarantine", show_default=True)
@click.option("--max-rejected-fraction", type=click.FloatRange(0, 1), default=0.01, show_default=True)
@click.option("--scratch", "--local-cell-dir", "scratch", type=FOLDER, help="Where tokens and buckets lie meanwhile.")
@click.option("--plan", "plan_only", is_flag=True, help="Say what would be written and what it takes; write nothing.")
def command(
    inputs: tuple[str, ...],
    output: Path,
    tokenizer: Path | None,
    extension: str | None,
    shuffle_only: bool,
    sampling: Path | None,
    input_json: Path | None,
    output_json: Path | None,
    memory_mib: int | None,
    workers: int | None,
    scratch: Path | None,
    plan_only: bool,
    eod: str | None,
    **options: object,
) -> None:
    """Shuffle contexts into tars for webdataset, OpenLM and wids: the same bytes for any machine and engine."""
    from nanoset_core.cli.shuffle_tables import print_preview, result_line
    from nanoset_core.cli.terminal import progress_bars
    from nanoset_core.shuffling.dclm import load_sampling
    from nanoset_core.shuffling.inputs import find_inputs
    from nanoset_core.shuffling.preview import preview, resolve_tokenizer
    from nanoset_core.shuffling.settings import ShuffleOptions
    from nanoset_core.shuffling.standalone import shuffle
    from nanoset_core.shuffling.webdataset import complete_exp_data
    from nanoset_core.tokenization.preprocess import end_token

    found = find_inputs(
        inputs,
        extension=extension,
        shuffle_only=shuffle_only,
        sampling=load_sampling(sampling) if sampling is not None else None,
    )
    file = resolve_tokenizer(tokenizer)
    if file is not None and found.kind == "text" and options["preset"] == "default":
        eod = end_token(file, eod)
    settings = ShuffleOptions(
        tokenizer=file,
        eod=eod,
        memory_bytes=memory_mib << 20 if memory_mib else None,
        workers=workers or None,
        **options,  # type: ignore[arg-type]
    )
    if plan_only:
        print_preview(preview(found, settings), found)
        return
    with progress_bars() as (listener, _):
        result = shuffle(found, output, settings, scratch=scratch, listener=listener)
    if output_json is not None:
        complete_exp_data(output, input_json, output_json)
    click.echo(result_line(result))
