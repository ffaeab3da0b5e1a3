"""`nanoset shuffle`: text, pairs or tars into shuffled tars, with tokshuf-rust's flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli import terminal
from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import (
    ANY_FOLDER,
    PATH,
    ManyValued,
    flag,
    option,
    option_for,
    options_for,
)
from nanoset_core.cli.progress import progress_bars
from nanoset_core.cli.tokenizer_options import text_options
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.shards.settings import DocumentsSpec, TokenizationSpec
from nanoset_core.stages.webdataset.plan_rows import quality_rows, source_rows
from nanoset_core.stages.webdataset.settings import DEFAULT_LENGTH, WebdatasetSpec, engine_warning

if TYPE_CHECKING:
    from nanoset_core.stages.webdataset.standalone.inputs import ShuffleInputs
    from nanoset_core.stages.webdataset.standalone.preview import Preview
    from nanoset_core.stages.webdataset.standalone.shuffle import Shuffled
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath

_SOURCES_SHOWN = 50
_TOTALS = {
    "contexts": "{about}{contexts:,} of {sequence_length:,} tokens",
    "tars": "{about}{shards:,} of {shard_size:,} contexts{equal}",
    "tokens": "{about}{tokens:,}",
    "dropped tokens": "{about}{tokens_dropped:,} ({dropped:.4%})",
    "pad tokens": "{about}{pad_tokens:,} ({padded:.4%})",
    "contexts left out": "{about}{contexts_left_out:,}, the last of the order",
    "size of the tars": "{output}",
    "temporary files": "{about}{token_bytes} of tokens, {buckets} of buckets",
    "engine": "{engine.engine}: {engine.reason}",
    "memory": "{memory}",
    "inputs left out": "{inputs_left_out:,} (in no source of the sampling file, or in one of frequency 0)",
}
_RESULT = "{tars}, {contexts:,} contexts, {tokens:,} tokens ({tokens_dropped:,} dropped, {pad_tokens:,} of padding)"


@click.command(
    "shuffle", cls=ManyValued, short_help="Shuffle contexts into tars for webdataset and OpenLM."
)
@option(
    "--input inputs",
    "Text, .bin/.idx prefixes or tars; several may follow.",
    multiple=True,
    required=True,
)
@option(
    "--output",
    "Folder for the tars; it appears once all are written.",
    type=ANY_FOLDER,
    required=True,
)
@text_options("needed for text", "--local-cell-dir")
@option_for(
    WebdatasetSpec, "sequence_length", "--seqlen", default=None,
    help=f"Tokens in a context; default: {DEFAULT_LENGTH}, or that of the tars.",
)  # fmt: skip
@option_for(WebdatasetSpec, "samples_per_shard", "--wds-chunk-size")
@option_for(WebdatasetSpec, "seed")
@option("--ext extension", "Of folders, read only files with this ending.")
@flag("--shuffle-only", "The input is tars; shuffle their contexts, tokenize nothing.")
@options_for(WebdatasetSpec, "preset", "member", "tail")
@option_for(
    WebdatasetSpec,
    "even",
    help="Give every tar the same number of contexts; leave out the few that remain.",
)
@option("--bos", "A token to begin every document with.")
@option("--context-bos", "A token to begin every context with.")
@option("--pad", "Padding token, for --tail pad.")
@option_for(DocumentsSpec, "text_key", "--json-key")
@option("--data-key", "Read only members of the tars with this extension.")
@option("--sampling", "DCLM's YAML file of sources and sampling frequencies.", type=PATH)
@option("--input-json", "DCLM's exp_data JSON file to complete.", type=PATH)
@option("--output-json", "Where to write the completed one.", type=PATH)
@option_for(WebdatasetSpec, "engine")
@option_for(TokenizationSpec, "engine", "--tokenizer-engine", param="tokenizer_engine")
@option_for(
    WebdatasetSpec,
    "memory_mib",
    "--memory",
    default=None,
    help="Memory for writing the tars, in MiB.",
)
@option(
    "--workers --threads workers",
    "Processes; default: all processors.",
    type=click.IntRange(0, 4096),
)
@flag(
    "--plan plan_only",
    "Show what would be written, and the memory and disk it needs; write nothing.",
)
def command(
    inputs: tuple[str, ...],
    output: Location,
    tokenizer: TokenizerPath | None,
    extension: str | None,
    shuffle_only: bool,
    sampling: Path | None,
    input_json: Path | None,
    output_json: Path | None,
    memory_mib: int | None,
    workers: int | None,
    scratch: Path | None,
    plan_only: bool,
    overwrite: bool,
    eod: str | None,
    **options: object,
) -> None:
    """Shuffle contexts into tars for webdataset, OpenLM and wids: the same bytes for any machine
    and engine.
    """
    from nanoset_core.outputs.recorded import check_apart
    from nanoset_core.stages.webdataset.lists import complete_exp_data
    from nanoset_core.stages.webdataset.standalone.inputs import find_inputs
    from nanoset_core.stages.webdataset.standalone.options import ShuffleOptions
    from nanoset_core.stages.webdataset.standalone.preview import preview
    from nanoset_core.stages.webdataset.standalone.sampling import load_sampling
    from nanoset_core.stages.webdataset.standalone.shuffle import shuffle
    from nanoset_core.storage.paths import check_utf_8
    from nanoset_core.tokenizers.end_token import end_token
    from nanoset_core.tokenizers.files import tokenizer_files

    found = find_inputs(
        inputs,
        extension=extension,
        shuffle_only=shuffle_only,
        sampling=load_sampling(sampling) if sampling is not None else None,
        output=output,
    )
    # they are part of the order and the lists
    for name in (output.name, *(source.name for source in found.sources)):
        check_utf_8(name)
    if tokenizer is not None and found.kind == "text" and options["preset"] == "default":
        eod = end_token(tokenizer, eod)
    settings = ShuffleOptions(
        tokenizer=tokenizer,
        eod=eod,
        memory_bytes=memory_mib << 20 if memory_mib else None,
        workers=workers or None,
        **options,  # type: ignore[arg-type]
    )
    terminal.print_notices(found.notices)
    deprecated = engine_warning(settings.engine, "--engine")
    terminal.print_notices([deprecated] if deprecated is not None else [])
    if plan_only:
        _print_preview(preview(found, settings), found)
        return
    if output_json is not None:
        others = (path for path in (sampling, input_json) if path is not None)
        check_apart([output_json], [*found.files, *tokenizer_files(tokenizer), *others])
        complete_exp_data(output, input_json, output_json, overwrite=overwrite, only_check=True)
    with progress_bars() as (listener, _):
        result = shuffle(
            found, output, settings, scratch=scratch, listener=listener, overwrite=overwrite
        )
    if output_json is not None:
        complete_exp_data(output, input_json, output_json, overwrite=overwrite)
    _print_result(result)


def _print_preview(found: Preview, inputs: ShuffleInputs) -> None:
    """Print what would be written and what it takes, and the sources."""
    from nanoset_core.stages.webdataset.quality import shuffle_quality

    plan, engine, sources = found.plan, found.engine, len(found.plan.table.sources)
    values = plan.to_json() | {
        "about": "about " if found.estimated else "",
        "shard_size": plan.shard_size,
        "equal": ", all equal" if plan.settings.even else "",
        "dropped": plan.tokens_dropped
        / max(sum(source.tokens for source in plan.table.sources), 1),
        "padded": plan.pad_tokens / max(plan.contexts * plan.sequence_length, 1),
        "output": f"{'' if found.output_exact else 'about '}{format_bytes(found.output_bytes)}",
        "token_bytes": format_bytes(found.token_bytes),
        "buckets": format_bytes(engine.scratch_bytes),
        "memory": format_bytes(engine.memory_bytes),
        "engine": engine,
        "inputs_left_out": inputs.left_out,
    }
    said = {"contexts left out": plan.settings.even, "inputs left out": inputs.left_out}
    rows = [
        {"plan": what, "": much.format_map(values)}
        for what, much in _TOTALS.items()
        if said.get(what, True)
    ]
    quality = shuffle_quality(plan)
    terminal.print_rows(rows, text=[""])
    terminal.print_notices([found.passed_over] if found.passed_over else [])
    terminal.print_rows(
        quality_rows(quality), title=f"Shuffled evenly: {'yes' if quality['even'] else 'no'}"
    )
    terminal.print_rows(source_rows(plan, _SOURCES_SHOWN), title="Sources")
    if sources > _SOURCES_SHOWN:
        echo(f"… and {sources - _SOURCES_SHOWN:,} sources more")


def _print_result(result: Shuffled) -> None:
    terminal.print_notices([result.passed_over] if result.passed_over else [])
    plan, rejected = result.manifest.facts["plan"], result.manifest.facts["rejected"]
    counts = _RESULT + (", {contexts_left_out:,} contexts left out" if plan["even"] else "")
    more = (
        f", {terminal.rejected_text(rejected, result.faults)} (rejects.jsonl)" if rejected else ""
    )
    terminal.print_made(
        f"{result.folder}: {counts.format_map(plan | {'tars': format_count(plan['shards'], 'tar')})}{more}",
        lost="; ".join(result.lost),
        is_new=result.made,
    )
