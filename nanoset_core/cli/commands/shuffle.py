"""`nanoset shuffle`: write text, .bin/.idx pairs or tars as shuffled tars.

The command has the flags of tokshuf-rust, DCLM's tool for this. A *context* is a sample of fixed
length, as in that tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import (
    ANY_FOLDER,
    PATH,
    ManyValued,
    flag,
    many_valued_option,
    option,
    option_for,
    options_for,
)
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import print_made, print_notices, print_rows, rejected_text
from nanoset_core.cli.tokenizer_options import text_options
from nanoset_core.stages.shards.settings import DocumentsSpec, TokenizationSpec
from nanoset_core.stages.webdataset.plan_rows import quality_rows, source_rows
from nanoset_core.stages.webdataset.settings import DEFAULT_LENGTH, WebdatasetSpec, engine_warning
from nanoset_core.wording import format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.stages.webdataset.standalone.inputs import ShuffleInputs
    from nanoset_core.stages.webdataset.standalone.options import ShuffleOptions
    from nanoset_core.stages.webdataset.standalone.preview import Preview
    from nanoset_core.stages.webdataset.standalone.shuffle import Shuffled
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath

_MAX_SOURCES = 50
"""Largest number of sources that are listed."""


@click.command(
    "shuffle", cls=ManyValued, short_help="Shuffle contexts into tars for webdataset and OpenLM."
)
@many_valued_option(
    "--input inputs",
    "Text, prefixes of .bin/.idx pairs, or tars; several may follow.",
    required=True,
)
@option(
    "--output",
    "Folder for the tars; it appears when all of them are written.",
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
@option("--ext extension", "In folders, read only files with this ending.")
@flag("--shuffle-only", "The input is tars: shuffle their contexts, and tokenize nothing.")
@options_for(WebdatasetSpec, "preset", "member", "tail")
@option_for(
    WebdatasetSpec,
    "even",
    help="Give every tar the same number of contexts; leave out the few that remain.",
)
@option("--bos", "A token that begins every document.")
@option("--context-bos", "A token that begins every context.")
@option("--pad", "Padding token, for --tail pad.")
@option_for(DocumentsSpec, "text_key", "--json-key")
@option("--data-key", "Read only members of the tars with this extension.")
@option("--sampling", "DCLM's YAML file of sources and sampling frequencies.", type=PATH)
@option("--input-json", "DCLM's exp_data JSON file, which is completed.", type=PATH)
@option("--output-json", "Where to write the completed exp_data file.", type=PATH)
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
    """Shuffle contexts into tars for webdataset, OpenLM and wids.

    The bytes of the tars are the same on every machine and with every engine.
    """
    from nanoset_core.stages.webdataset.standalone.inputs import find_inputs
    from nanoset_core.stages.webdataset.standalone.options import ShuffleOptions
    from nanoset_core.stages.webdataset.standalone.sampling import load_sampling
    from nanoset_core.tokenizers.files import tokenizer_files

    shuffle_inputs = find_inputs(
        inputs,
        extension=extension,
        shuffle_only=shuffle_only,
        sampling=None if sampling is None else load_sampling(sampling),
        output=output,
    )
    _check_names(shuffle_inputs, output)
    settings = ShuffleOptions(
        tokenizer=tokenizer,
        eod=_end_of_document(tokenizer, eod, shuffle_inputs.kind, options["preset"]),
        memory_bytes=memory_mib << 20 if memory_mib else None,
        workers=workers or None,
        **options,  # type: ignore[arg-type]
    )
    print_notices([*shuffle_inputs.notices, *_deprecations(settings)])
    if plan_only:
        from nanoset_core.stages.webdataset.standalone.preview import preview

        _print_preview(preview(shuffle_inputs, settings), shuffle_inputs)
        return

    exp_data: _ExpData | None = None
    if output_json is not None:
        exp_data = _ExpData(output, input_json, output_json, overwrite)
        settings_files = [path for path in (sampling, input_json) if path is not None]
        # This is checked before the work, which may take hours.
        exp_data.check([*shuffle_inputs.files, *tokenizer_files(tokenizer), *settings_files])
    result = _write_tars(shuffle_inputs, output, settings, scratch=scratch, overwrite=overwrite)
    if exp_data is not None:
        exp_data.write()
    _print_result(result)


def _end_of_document(
    tokenizer: TokenizerPath | None, eod: str | None, input_kind: str, preset: object
) -> str | None:
    """Return the token that a shuffle puts after each document of text, such as "<|endoftext|>".

    If the user names no token by --eod, it depends on the inputs and on --preset:

        text, preset "default"      the end token that the tokenizer's files name
        text, preset "tokshuf"      None: this preset gives the same tars as the program
                                    tokshuf-rust, which has an end token of its own
        .bin/.idx files, tars       None: nothing is tokenized

    Args:
        tokenizer: The tokenizer, if one was given.
        eod: The token that the user names, or None.
        input_kind: What the inputs are: "text", or something that is tokenized already.
        preset: The value of --preset.
    """
    if tokenizer is None or input_kind != "text":
        return eod  # nothing is tokenized
    if preset != "default":
        return eod
    from nanoset_core.tokenizers.end_token import end_token

    return end_token(tokenizer, eod)


def _deprecations(settings: ShuffleOptions) -> list[str]:
    """Return a notice if the engine that the user chose will be removed."""
    deprecation = engine_warning(settings.engine, "--engine")
    return [] if deprecation is None else [deprecation]


def _write_tars(
    inputs: ShuffleInputs,
    output: Location,
    settings: ShuffleOptions,
    *,
    scratch: Path | None,
    overwrite: bool,
) -> Shuffled:
    """Shuffle training samples and write them as tars, while a progress bar is shown.

    Args:
        inputs: Text that is tokenized first; or datasets or tars that are tokenized already.
        output: The folder of the tars.
        settings: How long the samples (contexts) are, how they are shuffled, and so on.
        scratch: Folder for temporary files; None for that of the output.
        overwrite: Whether to replace tars that were made from other input or settings.

    Returns:
        What was written, and which text could not be taken over.
    """
    from nanoset_core.stages.webdataset.standalone.shuffle import shuffle

    with shown_progress() as progress:
        return shuffle(
            inputs,
            output,
            settings,
            scratch=scratch,
            progress=progress,
            overwrite=overwrite,
        )


def _check_names(inputs: ShuffleInputs, output: Location) -> None:
    """Check that the names of the inputs and of the output are valid UTF-8.

    The order of the samples is computed from these names, so that a repeated shuffle gives the same
    order. The names are also written into lists of files, which are encoded in UTF-8.

    Args:
        inputs: The inputs, divided into sources such as folders.
        output: The folder that will be written.

    Raises:
        ConfigError: A name is not valid UTF-8, as some of old systems are.
    """
    from nanoset_core.storage.paths import check_utf_8

    check_utf_8(output.name)
    for source in inputs.sources:
        check_utf_8(source.name)


@dataclass(frozen=True, slots=True)
class _ExpData:
    """DCLM's exp_data JSON file, which describes the tars to DCLM's training scripts.

    The user may give such a file about the text. It is *completed*: the address of the tars and
    their counts are added.
    """

    folder: Location
    """The folder of the tars."""
    input: Path | None
    """The file that is completed; None to write a new one."""
    output: Path
    """The file that is written."""
    overwrite: bool
    """Whether an existing file may be replaced."""

    def check(self, files_read: Sequence[Path | Location]) -> None:
        """Check that the JSON file about the tars can be written, before the tars are.

        Writing the tars may take hours. An error in the name of this file should be found before
        that.

        Args:
            files_read: The files that the command reads, none of which may be overwritten.

        Raises:
            ConfigError: The file would replace a file that the command reads, or another one that
                exists already.
            MissingError: The input does not exist.
            FormatError: The input is not a JSON object.
        """
        from nanoset_core.outputs.apart import check_apart
        from nanoset_core.stages.webdataset.lists import complete_exp_data

        check_apart([self.output], files_read)
        # This only reads the input, and writes nothing.
        complete_exp_data(
            self.folder,
            record_file=self.input,
            target=self.output,
            overwrite=self.overwrite,
            only_check=True,
        )

    def write(self) -> None:
        """Write the file, once the tars are written."""
        from nanoset_core.stages.webdataset.lists import complete_exp_data

        complete_exp_data(self.folder, self.input, self.output, overwrite=self.overwrite)


def _print_preview(preview: Preview, inputs: ShuffleInputs) -> None:
    """Print what a shuffle would write, what it needs, and how well it would mix the sources.

    This is for the option --plan, with which nothing is written.

    Args:
        preview: The plan of the shuffle.
        inputs: What would be shuffled: text, tokenized datasets or tars.
    """
    _print_plan(_plan_lines(preview, inputs))
    if preview.passed_over:
        print_notices([preview.passed_over])  # on members of tars that have no tokens
    _print_evenness(preview)
    _print_sources(preview)


def _print_plan(lines: Mapping[str, str]) -> None:
    """Print named lines as a table, which has the names in the first column.

        plan
        contexts    about 98,304 of 2,049 tokens
        tars        about 12 of 8,192 contexts

    Args:
        lines: Name → text. The column of the texts has no heading; long texts are wrapped.
    """
    print_rows([{"plan": name, "": text} for name, text in lines.items()], text=[""])


def _print_evenness(preview: Preview) -> None:
    """Print how evenly the samples of each source would be spread over the tars.

    If they were not, a trainer would read much of one source at the start, and little at the end.

    Args:
        preview: The plan of the shuffle.
    """
    from nanoset_core.stages.webdataset.quality import shuffle_quality

    quality = shuffle_quality(preview.plan)
    is_even = "yes" if quality["even"] else "no"
    print_rows(quality_rows(quality), title=f"Shuffled evenly: {is_even}")


def _print_sources(preview: Preview) -> None:
    """Print the sources, up to a number of them."""
    print_rows(source_rows(preview.plan, _MAX_SOURCES), title="Sources")
    n_unlisted = len(preview.plan.table.sources) - _MAX_SOURCES
    if n_unlisted > 0:
        echo(f"… and {format_count(n_unlisted, 'more source')}")


def _plan_lines(preview: Preview, inputs: ShuffleInputs) -> dict[str, str]:
    """Return what a shuffle would write, and the memory and disk that it needs, as named lines.

    For example: {"contexts": "about 98,304 of 2,049 tokens", "tars": "about 12 of 8,192 contexts",
    "memory": "1.1 GB", …}. A context is a training sample.

    Args:
        preview: The plan of the shuffle. Text is not tokenized for it, so its counts are estimates.
        inputs: The files that would be shuffled.
    """
    lines = {**_count_lines(preview), **_need_lines(preview)}
    # The user may give a file that says how often the text of each source is sampled.
    if inputs.left_out:
        lines["inputs left out"] = (
            f"{inputs.left_out:,} (in no source of the sampling file, or in one of frequency 0)"
        )
    return lines


def _count_lines(preview: Preview) -> dict[str, str]:
    """Return how many training samples (contexts), tars and tokens a shuffle would write, in words.

    For example: {"contexts": "about 98,304 of 2,049 tokens", "tars": "about 12 of 8,192 contexts",
    "tokens": "about 201,425,113", …}.

    Args:
        preview: The plan of the shuffle. Its counts may be estimates.
    """
    plan = preview.plan
    about = _about(preview)  # "about " if they are estimates
    lines = {
        "contexts": f"{about}{plan.contexts:,} of {plan.sequence_length:,} tokens",
        "tars": f"{about}{plan.shards:,} of {plan.shard_size:,} contexts",
        **_token_lines(preview),
    }
    if plan.settings.even:
        # All tars have the same number of contexts. For that, some have to be left out.
        lines["tars"] += ", all equal"
        lines["contexts left out"] = f"{about}{plan.contexts_left_out:,}, the last of the order"
    return lines


def _token_lines(preview: Preview) -> dict[str, str]:
    """Describe how many tokens a shuffle would write, drop, and add as padding.

    All samples have the same length. If the text of a source does not fill its last sample, that
    text is dropped, or padding is added to it, as the user wants:

        tokens            about 201,425,113
        dropped tokens    about 1,024 (0.0005%)
        pad tokens        about 0 (0.0000%)

    Args:
        preview: The plan of the shuffle. Its counts may be estimates.

    Returns:
        Name of each line → its text.
    """
    plan = preview.plan
    about = _about(preview)
    source_tokens = sum(source.tokens for source in plan.table.sources)
    context_tokens = plan.contexts * plan.sequence_length
    dropped_share = plan.tokens_dropped / max(source_tokens, 1)
    padding_share = plan.pad_tokens / max(context_tokens, 1)
    return {
        "tokens": f"{about}{plan.tokens:,}",
        "dropped tokens": f"{about}{plan.tokens_dropped:,} ({dropped_share:.4%})",
        "pad tokens": f"{about}{plan.pad_tokens:,} ({padding_share:.4%})",
    }


def _need_lines(preview: Preview) -> dict[str, str]:
    """Return how much disk space and memory a shuffle needs, in words.

    Args:
        preview: The plan of the shuffle, and the way to shuffle that was chosen for it.

    Returns:
        Name of each line → its text.
    """
    tars = format_bytes(preview.output_bytes)
    if not preview.output_exact:
        tars = f"about {tars}"
    # Text is tokenized into temporary files. If the memory is too small to shuffle all tokens at
    # once, they are divided into buckets, which are files, too.
    tokens = format_bytes(preview.token_bytes)
    buckets = format_bytes(preview.engine.scratch_bytes)
    return {
        "size of the tars": tars,  # about 390 MB
        "temporary files": f"{_about(preview)}{tokens} of tokens, {buckets} of buckets",
        "engine": f"{preview.engine.engine}: {preview.engine.reason}",
        "memory": format_bytes(preview.engine.memory_bytes),  # 1.1 GB
    }


def _about(preview: Preview) -> str:
    """Return the word before the counts of a plan: "about " if they are estimates, or "" if exact.

    Args:
        preview: The plan of a shuffle. Its counts are estimates if text is not tokenized yet.
    """
    return "about " if preview.estimated else ""


def _print_result(result: Shuffled) -> None:
    """Print what was written, and which text could not be taken over."""
    if result.passed_over:
        print_notices([result.passed_over])
    print_made(
        f"{result.folder}: {_counts_text(result)}",
        lost="; ".join(result.lost),
        is_new=result.made,
    )


def _counts_text(result: Shuffled) -> str:
    """Say how much was written, and what was left out, after a shuffle.

        12 tars, 98,304 contexts, 201,425,113 tokens (1,024 dropped, 0 of padding), 7 contexts left
        out, 3 lines rejected (rejects.jsonl)

    A context is a training sample of fixed length. The tokens at the end that do not fill one are
    dropped, or filled up with padding. If all tars shall have the same number of contexts ("even"),
    some contexts may be left out. Lines of text that cannot be read are rejected, and listed in a
    file.

    Args:
        result: The record of the tars, and the number of files that could not be read to their end,
            which count as rejected lines.
    """
    facts = result.manifest.facts  # what is recorded in the folder of the tars
    plan = facts["plan"]  # the counts that were planned, and then written; a shard is a tar
    text = (
        f"{format_count(plan['shards'], 'tar')}, {format_count(plan['contexts'], 'context')}, "
        f"{format_count(plan['tokens'], 'token')} "
        f"({plan['tokens_dropped']:,} dropped, {plan['pad_tokens']:,} of padding)"
    )
    if plan["even"]:
        text += f", {format_count(plan['contexts_left_out'], 'context')} left out"
    if facts["rejected"]:
        text += f", {rejected_text(facts['rejected'], result.faults)} (rejects.jsonl)"
    return text
