"""`nanoset tokenize`: text into indexed datasets, with the flags of the trainers' tools.

The command takes the place of Megatron-LM's preprocess_data.py, and of those of nanotron and NeMo:
`nanoset tokenize --input web.jsonl --output-prefix web --tokenizer-model /models/llama`. It needs
no project, and writes the same bytes as these tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import (
    ANY_PATH,
    ManyValued,
    flag,
    many_valued_option,
    option,
    option_for,
    options_for,
)
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import print_made, print_notices
from nanoset_core.cli.tokenizer_options import text_options
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.stages.shards.settings import TokenizationSpec
from nanoset_core.wording import abbreviated, format_count

if TYPE_CHECKING:
    from nanoset_core.execution.progress import TaskReport
    from nanoset_core.stages.shards.facts import ShardFacts
    from nanoset_core.stages.shards.framing import SpecialTokens
    from nanoset_core.stages.shards.standalone.inputs import InputFiles
    from nanoset_core.stages.shards.standalone.options import Preprocessed, PreprocessOptions
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.encoders import Encoder
    from nanoset_core.tokenizers.end_token import EndToken
    from nanoset_core.tokenizers.files import TokenizerPath


@click.command("tokenize", cls=ManyValued, short_help="Tokenize files into .bin/.idx pairs.")
@many_valued_option(
    "--input inputs",
    "Files, folders or patterns; several may follow.",
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
@many_valued_option(
    "--json-keys --json-key keys",
    "Keys of the text in each line's JSON object; one .bin/.idx pair each.",
    default=("text",),
    show_default=True,
)
@option_for(
    TokenizationSpec, "preset", type=click.Choice(["megatron", "nanotron", "nemo"]),
    help="Tool whose preprocess_data is matched byte for byte.",
)  # fmt: skip
@option_for(TokenizationSpec, "append_eod", "--append-eod", "--append-eos", default=False)
@option("--bos", "A token that begins every document.")
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
    """Tokenize files into .bin/.idx pairs.

    The pairs are byte for byte those of the tool that --preset names: the preprocess_data of
    Megatron-LM, nanotron or NeMo.
    """
    from nanoset_core.execution.progress import progress_reported_to
    from nanoset_core.stages.shards.one_shard import engine_choice
    from nanoset_core.stages.shards.standalone.inputs import by_file, resolve_inputs
    from nanoset_core.stages.shards.standalone.options import PreprocessOptions
    from nanoset_core.stages.shards.standalone.preprocess import is_rejects_of_call
    from nanoset_core.tokenizers.tokenizer import token_id

    if tokenizer is None:
        raise click.UsageError("Missing option '--tokenizer' (or '--vocab-file', of a vocab.json).")
    options["special_tokens"] = _special_tokens(options["special_tokens"], hf_special)
    unused_eod_notices = _unused_eod_notices(options["eod"], append_eod=append_eod)
    end = _end_of_document(tokenizer, options["eod"]) if append_eod else None
    options["eod"] = None if end is None else end.text
    settings = PreprocessOptions(tokenizer=tokenizer, **options)

    # Leave out lists of rejected lines that an earlier call wrote into a folder of the input.
    input_files = resolve_inputs(
        inputs, leave_out=lambda path: is_rejects_of_call(path, output_prefix)
    )
    # Each job makes the pairs of one prefix.
    jobs = by_file(input_files, output_prefix) if per_file else [(input_files, output_prefix)]

    # Choose the engine now, and print which one and why, before there are progress bars.
    with progress_reported_to(_print_note):
        engine_choice(tokenizer, settings.engine)
    if settings.bos is not None:
        bos_id = token_id(tokenizer, settings.bos, "--bos")
        echo(f"documents begin with {settings.bos} (id {bos_id}, by --bos)", err=True)
    if end is not None:
        echo(f"documents end with {end}", err=True)

    workers = _worker_count(input_files, settings)
    outputs = _tokenize_all(jobs, settings, workers, scratch=scratch, overwrite=overwrite)
    notices = [*input_files.notices, *unused_eod_notices, *_tokenizer_notices(settings, end)]
    if outputs.files_without_pair:
        files = abbreviated(outputs.files_without_pair)
        notices.append(f"{input_files.folder}: no pair for files without documents: {files}")
    print_notices(notices)
    _print_results(outputs.pairs)


def _end_of_document(tokenizer: TokenizerPath, eod: str | None) -> EndToken:
    """Return the token that ends each document, such as "<|endoftext|>", and where it was named.

    Args:
        tokenizer: The tokenizer's file. Files next to it often name this token.
        eod: The token that the user named; None to take the tokenizer's.
    """
    from nanoset_core.tokenizers.end_token import end_token, named_end

    return named_end(tokenizer, end_token(tokenizer, eod))


def _unused_eod_notices(eod: str | None, *, append_eod: bool) -> list[str]:
    """Return a notice if the user names a token to end documents, and no document ends with it.

    Args:
        eod: The token after --eod, or None.
        append_eod: Whether --append-eod is given, which ends documents with the token.
    """
    if eod is None or append_eod:
        return []
    return [
        f"--eod {eod!r} has no effect without --append-eod: "
        "add it to end each document with this token"
    ]


def _worker_count(input_files: InputFiles, settings: PreprocessOptions) -> int:
    """Return how many processes shall tokenize.

    Each of them tokenizes a range of a file at a time, of 4 MiB or more. More processes than there
    are ranges would have nothing to do, so a small file gets a single one.

    Args:
        input_files: The files, whose sizes limit the number of ranges.
        settings: Its `workers` is the number that the user requested; 0 for all processors.
    """
    from nanoset_core.execution.resources import available_processors
    from nanoset_core.stages.shards.standalone.ranges import MIN_RANGE_BYTES

    input_bytes = sum(file.size for file in input_files.files)
    max_ranges = 1 + input_bytes // MIN_RANGE_BYTES
    n_requested = settings.workers or available_processors()
    return min(n_requested, max_ranges)


class _Outputs(NamedTuple):
    """What a call has made."""

    pairs: list[Preprocessed]
    """The counts of each dataset, and the text that was rejected."""
    files_without_pair: list[str]
    """Input files that contain no documents, of several that get a pair each."""


def _tokenize_all(
    jobs: Sequence[tuple[InputFiles, Location]],
    settings: PreprocessOptions,
    n_workers: int,
    *,
    scratch: Path | None,
    overwrite: bool,
) -> _Outputs:
    """Tokenize files into datasets, with several processes, while progress bars are shown.

    Args:
        jobs: What to do: files, and the path of the datasets (.bin and .idx) that are made from
            them.
        settings: How the text is tokenized.
        n_workers: Number of processes.
        scratch: Folder for temporary files.
        overwrite: Whether existing datasets may be replaced.

    Raises:
        InputError: There are no documents in any file.
    """
    from nanoset_core.execution.processes import forked_workers
    from nanoset_core.stages.shards.standalone.preprocess import preprocess

    # If each file gets a dataset, an empty one must not stop the others.
    may_be_empty = len(jobs) > 1
    outputs = _Outputs([], [])
    with forked_workers(n_workers) as executor, shown_progress() as progress:
        for files, prefix in jobs:
            pairs = preprocess(
                files,
                prefix,
                settings,
                scratch=scratch,
                progress=progress,
                overwrite=overwrite,
                executor=executor,
                may_be_empty=may_be_empty,
            )
            outputs.pairs.extend(pairs)
            if not pairs:
                outputs.files_without_pair.extend(file.path for file in files.files)

    if not outputs.pairs:
        raise InputError(
            "none of the files holds documents",
            where=jobs[0][0].folder,
            found=abbreviated(outputs.files_without_pair),
            expected="at least one file with documents",
            remedy="name files with documents",
        )
    return outputs


def _print_note(report: TaskReport) -> None:
    """Print a message from the code that tokenizes; other reports of it, on progress, are ignored.

    Args:
        report: Any report, for example on which tokenizer library was chosen.
    """
    from nanoset_core.execution.progress import TaskNote

    if isinstance(report, TaskNote):
        echo(report.text, err=True)


def _special_tokens(chosen: SpecialTokens | None, hf_special: bool | None) -> SpecialTokens | None:
    """Return whether special tokens are added to each text, as one of several options says.

    Megatron-LM has other names for the same option. These are equal:

        --special-tokens add     --tokenizer-hf-include-special-tokens       (True)
        --special-tokens none    --tokenizer-hf-no-include-special-tokens    (False)

    Args:
        chosen: The value of --special-tokens; None if it was not given.
        hf_special: True or False if a flag of Megatron-LM was given; None if not.

    Returns:
        "add" or "none", or another value of --special-tokens. None if nothing was given.

    Raises:
        ConfigError: The options contradict each other.
    """
    if hf_special is None:
        return chosen
    by_flag: SpecialTokens
    if hf_special:
        by_flag = "add"
        flag_name = "--tokenizer-hf-include-special-tokens"
    else:
        by_flag = "none"
        flag_name = "--tokenizer-hf-no-include-special-tokens"
    if chosen not in (None, by_flag):
        raise ConfigError(
            "two options contradict each other",
            where="--special-tokens",
            found=f"{chosen}, and {flag_name}",
            remedy="leave one of them out",
        )
    return by_flag


def _tokenizer_notices(settings: PreprocessOptions, end: EndToken | None) -> Iterator[str]:
    """Yield notices if the tokens that a command puts around documents are unusual.

    For example, a tokenizer for chats may name a token that ends a message, and not a document.

    Args:
        settings: How the text is tokenized.
        end: The token that ends documents, and where it is named; None if they have none.
    """
    from nanoset_core.stages.shards.framing import special_tokens_notices
    from nanoset_core.tokenizers.end_token import chat_notice

    # Tokens that the tokenizer itself adds to each text, such as "<s>".
    yield from special_tokens_notices(
        settings.preset,
        settings.tokenizer,
        settings.special_tokens,
        bos=settings.bos,
        eod=settings.eod,
    )
    # The token that ends documents.
    if end is not None:
        notice = chat_notice(settings.tokenizer, end, "--eod")
        if notice:
            yield notice


def _print_results(results: Sequence[Preprocessed]) -> None:
    """Print with which library the text was tokenized, and what each dataset contains.

    Args:
        results: The datasets that were made, each with the libraries that tokenized its text.
    """
    from nanoset_core.tokenizers.encoders import describe_encoders

    # All pairs are usually made by the same engine: describe the engines once.
    encoders: list[Encoder] = []
    for result in results:
        encoders += result.encoders
    if encoders:
        echo(describe_encoders(encoders), err=True)
    for result in results:
        print_made(_pair_text(result), lost=result.lost, is_new=result.made)


def _without_tokens(facts: ShardFacts) -> str:
    """Say how many documents have no tokens, in parentheses; "" if all have some.

    Tools differ in what they do with such documents: Megatron-LM's writes them without a sequence,
    and NeMo's leaves them out.
    """
    n_without_sequence = facts.documents - facts.sequences
    if n_without_sequence > 0:
        return f" ({n_without_sequence:,} of them without tokens)"
    if facts.skipped > 0:
        verb = "is" if facts.skipped == 1 else "are"
        return f" ({facts.skipped:,} more without tokens {verb} left out)"
    return ""


def _pair_text(result: Preprocessed) -> str:
    """Say what a dataset contains, such as "web: 1,200 documents, 61,000 tokens, 3 rejected".

    Args:
        result: The dataset, which is a pair of files, .bin and .idx. Lines that could not be read
            are rejected, and listed in a file.
    """
    facts = result.facts
    text = (
        f"{result.prefix}: {format_count(facts.documents, 'document')}{_without_tokens(facts)}, "
        f"{format_count(facts.tokens, 'token')}, "
        f"{result.n_rejected:,} rejected"
    )
    if result.rejects:
        text += f" ({result.rejects})"
    return text
