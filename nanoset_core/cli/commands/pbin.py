"""`nanoset pbin`: write, join, shuffle, filter, repair and describe Modalities' .pbin files.

A .pbin has a header, the tokens of all documents, and an index that says where each document
begins. Each operation is a subcommand, such as `nanoset pbin merge a.pbin b.pbin --output c.pbin`.
A record next to the output says what it was made from, so that it is not made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.lengths import describe_lengths
from nanoset_core.cli.options import (
    ANY_FILE,
    OVERWRITE_OPTION,
    ManyValued,
    flag,
    option,
    option_for,
    options_for,
)
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import print_made, print_notices, rejected_text
from nanoset_core.cli.tokenizer_options import text_options
from nanoset_core.records.text import format_count
from nanoset_core.stages.shards.settings import DocumentsSpec, TokenizationSpec

if TYPE_CHECKING:
    from nanoset_core.execution.progress import Progress
    from nanoset_core.formats.pbin.layout import IndexFacts, PbinFile, PbinIndex
    from nanoset_core.storage.location import Location

    Facts: TypeAlias = Mapping[str, Any]
    Work: TypeAlias = Callable[[Sequence[Path], Path, Progress], Facts]
    """Writes a file: (local paths of the sources, the file, progress) → facts about it, as plain
    values.
    """

_WRITTEN = {
    "A": "written by Modalities 0.1.0",
    "C": "written by Modalities 0.2.0",
    "D": "the current one",
}
"""Layout → which version of Modalities writes it."""
_REPAIR = "`nanoset pbin repair` rewrites it so that Modalities can"
"""What a user can do about a file that Modalities cannot read; follows a sentence that says so."""
_OUTPUT = option("--output -o", "The file to write.", type=ANY_FILE, required=True)
_FILES = click.argument("files", nargs=-1, required=True, type=ANY_FILE)


class PbinGroup(click.Group):
    """A group of commands in which the name `write` may be left out.

    Arguments that do not begin with the name of a command go to `write`.
    """

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Insert `write` unless the arguments begin with a command or ask for help.

        Args:
            context: The context of the group, which knows the options for help.
            args: The arguments after `nanoset pbin`.

        Returns:
            The arguments that are left after parsing, as click's method returns them.
        """
        if args and args[0] not in self.commands and args[0] not in context.help_option_names:
            args = ["write", *args]
        return super().parse_args(context, args)

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the commands in the order of this file, as --help lists them."""
        return list(self.commands)


@click.group("pbin", cls=PbinGroup, short_help="Write and work on Modalities' .pbin files.")
def command() -> None:
    """Write and work on the .pbin files that Modalities trains on.

    `nanoset pbin INPUT... --output FILE` is short for `nanoset pbin write`.
    """


@command.command(cls=ManyValued, short_help="Write a .bin/.idx pair, or text, as a .pbin.")
@click.argument("inputs", nargs=-1, required=True)
@_OUTPUT
@text_options("text needs one", has_vocab_size_option=True)
@option(
    "--vocab-size",
    "Size of the vocabulary, which decides the bytes of a token; default: the tokenizer's.",
    type=click.IntRange(1),
)
@flag(
    "--append-eod",
    "Also end the documents of a .bin/.idx pair with the EOD token; those of text always are.",
)
@option_for(DocumentsSpec, "text_key", "--json-key", param="key")
@options_for(TokenizationSpec, "workers", "engine")
def write(inputs: tuple[str, ...], output: Location, overwrite: bool, **options: object) -> None:
    """Write a .bin/.idx pair, or text, as a .pbin.

    INPUTS are either tokens or text. For tokens, give the path of a .bin and .idx without the
    ending. For text, give files, folders, or patterns such as corpus/*.jsonl. Text is tokenized,
    and the result has the same bytes as that of Modalities' own commands `index` and `pack`.

    A token takes 1, 2 or 4 bytes: Modalities decides this by the size of the tokenizer's
    vocabulary. Without a tokenizer, the tokens of a pair keep their size.
    """
    from nanoset_core.stages.pbin.standalone import PbinOptions, make_pbin_once

    pbin_options = PbinOptions(**options)  # type: ignore[arg-type]
    with shown_progress() as progress:
        result, is_new = make_pbin_once(inputs, output, pbin_options, progress, overwrite=overwrite)
    print_notices(result.notices)
    rejected = ""
    if result.rejects is not None:
        rejected = f", {rejected_text(result.rejected, result.faults)} ({result.rejects})"
    _print_counts(output, asdict(result.counts), rejected, result.lost, is_new=is_new)


@command.command(short_help="Join FILES of any layout, with a correct index.")
@_FILES
@_OUTPUT
@OVERWRITE_OPTION
def merge(files: tuple[Location, ...], output: Location, overwrite: bool) -> None:
    """Join FILES of any layout, in the order given, with a correct index."""
    _check_names(files)
    _make_pbin("merge", output, files, settings={}, work=_merge_files, overwrite=overwrite)


def _merge_files(sources: Sequence[Path], target: Path, progress: Progress) -> Facts:
    """Join local copies of files into one, and return its counts.

    Args:
        sources: The files, in order.
        target: The file to write.
        progress: Shows how much is done.

    Returns:
        The number of documents and tokens, and other fields of `PbinCounts`.
    """
    from nanoset_core.stages.pbin.selection import merge_pbin

    return asdict(merge_pbin(sources, target, progress=progress))


@command.command(short_help="Shuffle the documents of files.")
@_FILES
@_OUTPUT
@option("--seed", "The same seed gives the same order.", type=int, required=True)
@option(
    "--chunk", "Take only this part of each file, from 0; needs --chunks.", type=click.IntRange(0)
)
@option(
    "--chunks", "How many parts each file is divided into; needs --chunk.", type=click.IntRange(1)
)
@OVERWRITE_OPTION
def shuffle(
    files: tuple[Location, ...],
    output: Location,
    seed: int,
    chunk: int | None,
    chunks: int | None,
    overwrite: bool,
) -> None:
    """Shuffle the documents of one file, or of one chunk of several FILES, as Modalities does.

    Without --chunk, documents have the order that Modalities' `shuffle_tokenized_data` gives them.
    With --chunk, they have the order of its `create_shuffled_dataset_chunk`.
    """
    work: Work
    if chunk is None and chunks is None:
        if len(files) > 1:
            raise click.UsageError(
                "shuffle one file (see `nanoset pbin merge`), or a chunk of several: "
                "--chunk, --chunks"
            )
        work = partial(_shuffle_file, seed=seed)
    elif chunk is None or chunks is None:
        raise click.UsageError("--chunk needs --chunks, and --chunks needs --chunk")
    else:
        work = partial(_shuffle_chunk, seed=seed, chunk=chunk, chunks=chunks)

    _check_names(files)
    settings = {"seed": seed, "chunk": chunk, "chunks": chunks}
    _make_pbin("shuffle", output, files, settings, work, overwrite=overwrite)


def _shuffle_file(sources: Sequence[Path], target: Path, progress: Progress, *, seed: int) -> Facts:
    """Shuffle all documents of a file, and return the counts of the new file.

    Args:
        sources: A local copy of the only file.
        target: The file to write.
        progress: Shows how much is done.
        seed: Decides the order.

    Returns:
        The fields of `PbinCounts`, such as `documents` and `tokens`.
    """
    from nanoset_core.stages.pbin.selection import shuffle_pbin

    return asdict(shuffle_pbin(sources[0], target, seed=seed, progress=progress))


def _shuffle_chunk(
    sources: Sequence[Path],
    target: Path,
    progress: Progress,
    *,
    seed: int,
    chunk: int,
    chunks: int,
) -> Facts:
    """Shuffle the documents of one chunk of each file, and return the counts of the new file.

    Args:
        sources: Local copies of the files.
        target: The file to write.
        progress: Shows how much is done.
        seed: Decides the order.
        chunk: Number of the chunk, from 0.
        chunks: How many chunks each file is divided into.

    Returns:
        The fields of `PbinCounts`, such as `documents` and `tokens`.
    """
    from nanoset_core.stages.pbin.selection import shuffle_pbin_chunk

    counts = shuffle_pbin_chunk(
        sources, target, chunk=chunk, chunks=chunks, seed=seed, progress=progress
    )
    return asdict(counts)


@command.command("filter", short_help="Keep the documents that meet all conditions.")
@click.argument("file", type=ANY_FILE)
@_OUTPUT
@option("--min-tokens", "Keep documents with at least this many tokens.", type=click.IntRange(1))
@option("--max-tokens", "Keep documents with at most this many tokens.", type=click.IntRange(1))
@option("--every", "Keep documents 0, N, 2N, …", type=click.IntRange(1, 1 << 62))
@option(
    "--keep",
    "Keep the documents whose numbers this text file lists, from 0, one on each line.",
    type=ANY_FILE,
)
@option("--drop", "Leave out the documents whose numbers this text file lists.", type=ANY_FILE)
@OVERWRITE_OPTION
def filter_documents(file: Location, output: Location, overwrite: bool, **conditions: Any) -> None:
    """Keep the documents of FILE that meet all conditions, in the order of FILE."""
    # Two conditions name text files, which are downloaded if they are in a bucket, as FILE is.
    list_conditions = [name for name in ("keep", "drop") if conditions[name] is not None]
    list_files = [conditions[name] for name in list_conditions]

    # Record all conditions with the new file, as text and numbers.
    settings = dict(conditions)
    for name in list_conditions:
        settings[name] = str(conditions[name])

    _make_pbin(
        "filter",
        output,
        files=[file, *list_files],
        settings=settings,
        work=partial(_filter_file, file, conditions, list_conditions),
        overwrite=overwrite,
    )


def _filter_file(
    file: Location,
    conditions: Mapping[str, Any],
    list_conditions: Sequence[str],
    local_files: Sequence[Path],
    target: Path,
    progress: Progress,
) -> Facts:
    """Write the documents that meet all conditions, and print their number.

    Args:
        file: The .pbin as the user named it, for the message.
        conditions: The fields of `DocumentFilter`, such as `{"min_tokens": 16, …}`.
        list_conditions: Those of them that name text files.
        local_files: Local copies of the .pbin, and of these text files in the same order.
        target: The file to write.
        progress: Shows how much is done.

    Returns:
        The counts of the new file.
    """
    from nanoset_core.formats.pbin.dataset import PackedDataset
    from nanoset_core.stages.pbin.selection import DocumentFilter, filter_pbin

    source, *local_list_files = local_files
    local_lists = dict(zip(list_conditions, local_list_files, strict=True))
    document_filter = DocumentFilter(**{**conditions, **local_lists})
    is_kept = document_filter.mask(PackedDataset(source))  # (n_documents,)
    echo(f"{file}: {is_kept.sum():,} of {len(is_kept):,} documents are kept")
    return asdict(filter_pbin(source, target, is_kept, progress=progress))


@command.command(short_help="Rewrite FILE so that Modalities can read it.")
@click.argument("file", type=ANY_FILE)
@option(
    "--output -o",
    "The file to write; default: FILE itself, which is replaced when the new one is complete.",
    type=ANY_FILE,
)
@OVERWRITE_OPTION
def repair(file: Location, output: Location | None, overwrite: bool) -> None:
    """Rewrite FILE so that Modalities can read it.

    The repaired file has the current layout. Modalities' own command for merging files writes a
    wrong index, which is corrected, too.
    """
    from nanoset_core.outputs.deliver import replaced_file
    from nanoset_core.storage.working_copies import downloaded

    rewrite = partial(_rewrite, file)
    if output is not None:
        _make_pbin("repair", output, [file], settings={}, work=rewrite, overwrite=overwrite)
        return
    with (
        shown_progress() as progress,
        downloaded([file]) as sources,
        replaced_file(file) as target,
    ):
        counts = rewrite(sources, target, progress)
    _print_counts(file, counts)


def _rewrite(file: Location, sources: Sequence[Path], target: Path, progress: Progress) -> Facts:
    """Write a correct copy of a .pbin, print what was wrong with it, and return its counts.

    Args:
        file: The .pbin as the user named it, for the message.
        sources: A local copy of it.
        target: The file to write.
        progress: Shows how much is done.

    Returns:
        The fields of `PbinCounts`, such as `documents` and `tokens`.
    """
    from nanoset_core.formats.pbin.dataset import PackedDataset

    dataset = PackedDataset(sources[0])
    faults = format_count(dataset.index_facts.merge_faults, "fault")
    echo(f"{file} had layout {dataset.layout}, with {faults} in its index")
    # A merge of one file copies it, with a correct index.
    return _merge_files(sources, target, progress)


@command.command("raw-index", short_help="Write the .idx next to a JSONL file.")
@click.argument("text", type=ANY_FILE)
@option("--output -o", "The index; default: TEXT's name, ending in .idx.", type=ANY_FILE)
@flag("--drop-faulty", "Leave out lines that are not JSON, instead of failing.")
@OVERWRITE_OPTION
def raw_index(text: Location, output: Location | None, drop_faulty: bool, overwrite: bool) -> None:
    """Write the .idx that Modalities needs next to an uncompressed JSONL file.

    The .idx says where each line of the JSONL file begins and ends.
    """
    index_path = text.with_name(f"{text.stem}.idx") if output is None else output
    facts, is_new = _make_from_copies(
        "raw-index",
        index_path,
        files=[text],
        settings={"drop_faulty": drop_faulty},
        work=partial(_write_raw_index, on_fault="drop" if drop_faulty else "raise"),
        overwrite=overwrite,
    )

    # Every line is a document, except those that were dropped.
    summary = f"{facts['documents']:,} of {facts['lines']:,} lines"
    n_dropped = facts["lines"] - facts["documents"]
    if n_dropped:
        summary += f", {n_dropped:,} dropped, the first in line {facts['first_dropped'][0]:,}"
    print_made(f"{index_path}: {summary}", is_new=is_new)


def _write_raw_index(
    sources: Sequence[Path], target: Path, progress: Progress, *, on_fault: Literal["drop", "raise"]
) -> Facts:
    """Write the index of a JSONL file, which says where each of its lines begins and ends.

    Args:
        sources: A local copy of the only file.
        target: The index to write.
        progress: Shows how much is done.
        on_fault: Whether to leave out lines that are not JSON, or to fail.

    Returns:
        The number of documents and of lines, and the first line that was dropped.
    """
    from nanoset_core.formats.pbin.raw_index import create_raw_index

    counts = create_raw_index(sources[0], target, on_fault=on_fault, progress=progress)
    return {
        "documents": counts.documents,
        "lines": counts.lines,
        "first_dropped": counts.first_dropped[:1],
    }


@command.command(short_help="Describe FILES.")
@_FILES
def describe(files: tuple[Location, ...]) -> None:
    """Print the documents, tokens and layout of FILES, and whether their index is correct."""
    from nanoset_core.formats.pbin.layout import load_index, open_pbin
    from nanoset_core.storage.working_copies import path_and_access

    for path in files:
        with path_and_access(path) as (local_path, access):
            mapped = None if access is None else access.open_bytes(local_path)
            file = open_pbin(local_path, mapped)
            index = load_index(file)
            _print_description(path, file, index)


def _print_description(path: Location, file: PbinFile, index: PbinIndex) -> None:
    """Print what a .pbin contains, and what is wrong with it.

    Args:
        path: Where the file is, for the output.
        file: The opened file.
        index: Its index, which lists the documents. `index.facts` names faults that it had in the
            file.
    """
    facts = index.facts
    token_size = format_count(file.token_bytes, "byte")
    echo(f"{path}: {facts.documents:,} documents, {len(file.tokens):,} tokens of {token_size}")
    echo(_layout_text(file.layout.name))
    fault = _fault(facts)
    if fault:
        echo(fault)

    if facts.documents:
        lengths = f"a document has {describe_lengths(index.lengths)}"
        if facts.empty_documents:
            lengths += f"; {facts.empty_documents:,} have none"
        echo(lengths)


def _layout_text(layout: str) -> str:
    """Return which version of Modalities writes a layout, and whether the current one reads it.

    Args:
        layout: Name of the layout of the bytes: A, C, or D, the current one.
    """
    text = f"layout {layout}, {_WRITTEN[layout]}"
    if layout != "D":
        text += f"; the current Modalities cannot read it: {_REPAIR}"
    return text


def _fault(index: IndexFacts) -> str:
    """Return what is wrong with the index of a .pbin, or an empty text.

    The index says where each document starts, in bytes. When Modalities merges files, it forgets
    their headers of 12 bytes each, so the starts of later documents are too small.

    Args:
        index: What was found out about the index when it was read.

    Returns:
        A sentence without its full stop.
    """
    if index.merge_faults:
        places = format_count(index.merge_faults, "place")
        return (
            f"the index has the fault of Modalities' merge in {places}: from there on, documents "
            "begin a multiple of 12 bytes too early. nanoset corrects this when it reads; "
            f"{_REPAIR}"
        )
    has_gaps = not index.is_contiguous
    if has_gaps:
        return f"the index does not cover all tokens: its documents have {index.tokens:,} of them"
    return ""


def _check_names(files: Sequence[Location]) -> None:
    """Check that no file is given under two different names; print a notice on repeated names.

    Args:
        files: The files as the user named them.

    Raises:
        InputError: Two names lead to the same file.
    """
    from nanoset_core.stages.shards.inputs import check_different

    for file, times in Counter(files).items():
        if times > 1:
            print_notices([f"{file} is read {times:,} times, since it is named that many times"])
    check_different(list(dict.fromkeys(files)))


def _make_pbin(
    operation: str,
    output: Location,
    files: Sequence[Location],
    settings: Mapping[str, object],
    work: Work,
    overwrite: bool,
) -> None:
    """Make a .pbin from local copies of its sources, unless it exists already; print its counts.

    Args:
        operation: Name of the command, for the record next to the .pbin.
        output: The .pbin.
        files: The sources, which are downloaded if they are in a bucket.
        settings: Everything else that decides the content of the .pbin.
        work: Writes the .pbin: called with the local sources, the path to write to and the
            progress; returns the counts.
        overwrite: Whether to replace a .pbin that was made from other sources or settings.
    """
    counts, is_new = _make_from_copies(operation, output, files, settings, work, overwrite)
    _print_counts(output, counts, is_new=is_new)


def _make_from_copies(
    operation: str,
    output: Location,
    files: Sequence[Location],
    settings: Mapping[str, object],
    work: Work,
    overwrite: bool,
) -> tuple[Facts, bool]:
    """Make an output from local copies of its sources, unless it exists already.

    Args:
        operation: Name of the command, for the record next to the output.
        output: The file to write.
        files: The sources, which are downloaded if they are in a bucket.
        settings: Everything else that decides the content of the output.
        work: Writes the file, given the local sources, the path to write to, and the progress to
            report to; returns facts about the output.
        overwrite: Whether to replace an output that was made from other sources or settings.

    Returns:
        Facts about the output, and whether it was made now.
    """
    from nanoset_core.outputs.deliver import make_once
    from nanoset_core.storage.working_copies import downloaded

    def make(target: Path) -> Facts:
        """Download the sources, and write the output to a path."""
        with shown_progress() as progress, downloaded(files) as sources:
            return work(sources, target, progress)

    # `nanoset pbin` was called `nanoset pack` before. Records next to outputs still say so, so that
    # outputs of earlier versions are recognised.
    recorded_command = f"pack {operation}"
    return make_once(recorded_command, output, files, settings, make, overwrite=overwrite)


def _print_counts(
    path: Location, counts: Facts, rejected: str = "", lost: str = "", *, is_new: bool = True
) -> None:
    """Print what a .pbin contains, and which text it does not contain.

    For example: "web.pbin: 3 documents, 120 tokens of 2 bytes, 1 line rejected".

    Args:
        path: The file.
        counts: The fields of `PbinCounts`.
        rejected: Text on rejected lines, such as ", 1 line rejected", or "".
        lost: Text on files that could not be read to their end, printed in bold, or "".
        is_new: Whether this command made the file; if not, it existed already.
    """
    n_documents = f"{counts['documents']:,}"
    n_tokens = f"{counts['tokens']:,}"
    token_size = format_count(counts["token_bytes"], "byte")
    text = f"{path}: {n_documents} documents, {n_tokens} tokens of {token_size}"
    if counts.get("left_out"):
        text += f", {counts['left_out']:,} documents without tokens left out"
    text += rejected
    print_made(text, lost=lost, is_new=is_new)
