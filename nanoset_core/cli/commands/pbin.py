"""`nanoset pbin`: write, join, shuffle, filter, repair and describe Modalities' .pbin files.

A .pbin has a header, the tokens of all documents, and an index that says where each document
begins. Each operation is a subcommand, such as `nanoset pbin merge a.pbin b.pbin --output c.pbin`.
A receipt next to the output says what it was made from, so that it is not made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from nanoset_core.cli.echo import echo, print_error
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
from nanoset_core.errors import NanosetError
from nanoset_core.stages.shards.settings import DocumentsSpec, TokenizationSpec
from nanoset_core.wording import format_count

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
    """The commands `nanoset pbin merge`, `nanoset pbin shuffle` and so on.

    The name of the most common one, `write`, may be left out. These are the same:

        nanoset pbin write corpus.jsonl --output corpus.pbin
        nanoset pbin       corpus.jsonl --output corpus.pbin
    """

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Insert the name `write` into the arguments, if the user has left it out.

            ["corpus.jsonl", "--output", …]   becomes   ["write", "corpus.jsonl", "--output", …]
            ["merge", "a.pbin", …]            stays: it begins with the name of a command
            ["--help"]                        stays: it asks for the help of the group

        Args:
            context: click's state of the group, which knows the options for help.
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
    ending. For text, give files, folders, or patterns such as corpus/*.jsonl. The command tokenizes
    text, and writes the same bytes as Modalities' own commands `index` and `pack`.

    In a .pbin, a token takes 1, 2 or 4 bytes, depending on the size of the tokenizer's vocabulary.
    If you pass no tokenizer, tokens have the same size as in the .bin.
    """
    from nanoset_core.stages.pbin.standalone import PbinOptions, make_pbin_once

    pbin_options = PbinOptions(**options)  # type: ignore[arg-type]
    with shown_progress() as progress:
        result, is_new = make_pbin_once(inputs, output, pbin_options, progress, overwrite=overwrite)
    print_notices(result.notices)

    # Lines that are no valid JSON, for example, are rejected, and listed in a file.
    rejected = ""
    if result.rejects is not None:
        rejected_counts = rejected_text(result.rejected, result.faults)  # "3 lines rejected"
        rejected = f", {rejected_counts} ({result.rejects})"
    _print_counts(output, asdict(result.counts), rejected, result.lost, is_new=is_new)


@command.command(short_help="Join FILES of any layout, with a correct index.")
@_FILES
@_OUTPUT
@OVERWRITE_OPTION
def merge(files: tuple[Location, ...], output: Location, overwrite: bool) -> None:
    """Join FILES of any layout, in the order given, with a correct index."""
    _check_joinable(files)
    _make_pbin("merge", output, files, settings={}, work=_merge_files, overwrite=overwrite)


def _merge_files(sources: Sequence[Path], target: Path, progress: Progress) -> Facts:
    """Join .pbin files into a single one: all documents of the first, then those of the second, ….

    Args:
        sources: The files, on this machine.
        target: The file to write.
        progress: Shows the user how much is done.

    Returns:
        Counts of the new file, such as {"documents": 7, "tokens": 51, "token_bytes": 2, …}.
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
    work: Work  # the function that writes the shuffled file
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

    _check_joinable(files)
    settings = {"seed": seed, "chunk": chunk, "chunks": chunks}
    _make_pbin("shuffle", output, files, settings, work, overwrite=overwrite)


def _shuffle_file(sources: Sequence[Path], target: Path, progress: Progress, *, seed: int) -> Facts:
    """Write the documents of a .pbin in a random order to a new one.

    Args:
        sources: The path of the .pbin, on this machine, as the only element.
        target: The file to write.
        progress: Shows the user how much is done.
        seed: Decides the order: the same seed always gives the same one.

    Returns:
        Counts of the new file, such as {"documents": 7, "tokens": 51, "token_bytes": 2, …}.
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
    """Take one chunk of each .pbin, and write the documents of these chunks in a random order.

    Data that is too large for one file can be shuffled like this, chunk by chunk. For example, of
    two files that are divided into 2 chunks each, chunk 0 is:

        a.pbin    documents 0 to 99 of 200     → taken
        b.pbin    documents 0 to 49 of 100     → taken; the new file has 150 documents

    Args:
        sources: The .pbin files, on this machine.
        target: The file to write.
        progress: Shows the user how much is done.
        seed: Decides the order: the same seed always gives the same one.
        chunk: Number of the chunk, from 0.
        chunks: How many chunks each file is divided into.

    Returns:
        Counts of the new file, such as {"documents": 150, "tokens": 90000, "token_bytes": 2, …}.
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
    """Keep the documents of FILE that meet all conditions, in the order of FILE.

    For example, `--min-tokens 16 --drop bad.txt` keeps the documents that have at least 16 tokens
    and whose numbers are not listed in bad.txt.
    """
    # --keep and --drop name text files. They may be in a bucket, so they are downloaded like FILE.
    list_files: dict[str, Location] = {}  # such as {"drop": Path("bad.txt")}
    for name in ("keep", "drop"):
        if conditions[name] is not None:
            list_files[name] = conditions[name]

    # A receipt next to the new file says how it was made. It names these text files as strings:
    # {"min_tokens": 16, "max_tokens": None, "every": None, "keep": None, "drop": "bad.txt"}
    settings = dict(conditions)
    for name, list_file in list_files.items():
        settings[name] = str(list_file)

    _make_pbin(
        "filter",
        output,
        files=[file, *list_files.values()],
        settings=settings,
        work=partial(
            _filter_file, shown_name=str(file), conditions=conditions, list_names=list(list_files)
        ),
        overwrite=overwrite,
    )


def _filter_file(
    sources: Sequence[Path],
    target: Path,
    progress: Progress,
    *,
    shown_name: str,
    conditions: Mapping[str, Any],
    list_names: Sequence[str],
) -> Facts:
    """Write the documents of a .pbin that meet all conditions, and print how many these are.

    For example, it prints: "web.pbin: 5 of 7 documents are kept".

    Args:
        sources: Paths on this machine: the .pbin, and then the text files that conditions name,
            such as [Path("web.pbin"), Path("bad.txt")].
        target: The file to write.
        progress: Shows the user how much is done.
        shown_name: The .pbin as the user named it, for the message.
        conditions: The conditions, such as {"min_tokens": 16, "drop": …}. Those that are not set
            are None.
        list_names: The conditions that name these text files, such as ["drop"].

    Returns:
        Counts of the new file, such as {"documents": 5, "tokens": 48, "token_bytes": 2, …}.
    """
    from nanoset_core.formats.pbin.dataset import PackedDataset
    from nanoset_core.stages.pbin.selection import DocumentFilter, filter_pbin

    pbin_path = sources[0]
    list_paths = dict(zip(list_names, sources[1:], strict=True))  # {"drop": Path("bad.txt")}
    document_filter = DocumentFilter(**{**conditions, **list_paths})

    is_kept = document_filter.mask(PackedDataset(pbin_path))  # (n_documents,)
    n_documents = format_count(len(is_kept), "document")
    echo(f"{shown_name}: {is_kept.sum():,} of {n_documents} are kept")
    return asdict(filter_pbin(pbin_path, target, is_kept, progress=progress))


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
    from nanoset_core.storage.copies.temporary import downloaded

    rewrite = partial(_rewrite, shown_name=str(file))
    if output is not None:
        _make_pbin("repair", output, [file], settings={}, work=rewrite, overwrite=overwrite)
        return

    # Replace FILE itself. Its new content is written to another file (`target`) first, so that
    # nothing is lost if the command is interrupted.
    with (
        shown_progress() as progress,
        downloaded([file]) as sources,
        replaced_file(file) as target,
    ):
        counts = rewrite(sources, target, progress)
    _print_counts(file, counts)


def _rewrite(
    sources: Sequence[Path], target: Path, progress: Progress, *, shown_name: str
) -> Facts:
    """Write a correct copy of a .pbin, and print what was wrong with the old one.

    For example, it prints: "web.pbin had layout C, with 3 faults in its index".

    Args:
        sources: The path of the .pbin, or of its copy on this machine, as the only element.
        target: The file to write.
        progress: Shows the user how much is done.
        shown_name: The .pbin as the user named it, for the message.

    Returns:
        Counts of the new file, such as {"documents": 7, "tokens": 51, "token_bytes": 2, …}.
    """
    from nanoset_core.formats.pbin.dataset import PackedDataset

    dataset = PackedDataset(sources[0])
    faults = format_count(dataset.index_facts.merge_faults, "fault")
    echo(f"{shown_name} had layout {dataset.layout}, with {faults} in its index")

    # Joining files gives the new one a correct index, even if it is only one file.
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
    index_path = output
    if index_path is None:
        index_path = text.with_name(f"{text.stem}.idx")  # web.idx for web.jsonl
    on_fault: Literal["drop", "raise"] = "drop" if drop_faulty else "raise"

    facts, is_new = _make_file(
        "raw-index",
        index_path,
        files=[text],
        settings={"drop_faulty": drop_faulty},
        work=partial(_write_raw_index, on_fault=on_fault),
        overwrite=overwrite,
    )

    # Print, for example: "t.idx: 2 of 3 lines, 1 dropped, the first in line 2".
    summary = f"{facts['documents']:,} of {format_count(facts['lines'], 'line')}"
    n_dropped = facts["lines"] - facts["documents"]
    if n_dropped:
        summary += f", {n_dropped:,} dropped, the first in line {facts['first_dropped'][0]:,}"
    print_made(f"{index_path}: {summary}", is_new=is_new)


def _write_raw_index(
    sources: Sequence[Path], target: Path, progress: Progress, *, on_fault: Literal["drop", "raise"]
) -> Facts:
    """Write the index of a JSONL file, which says where each of its lines begins and ends.

    Args:
        sources: The path of the JSONL file, on this machine, as the only element.
        target: The index to write.
        progress: Shows the user how much is done.
        on_fault: Whether to leave out lines that are not JSON ("drop"), or to fail ("raise").

    Returns:
        Counts, and the number of the first line that was dropped. For example, if the second of
        three lines is not JSON: {"documents": 2, "lines": 3, "first_dropped": [2]}. The list is
        empty if no line was dropped.
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
    """Print the documents, tokens and layout of FILES, and whether their index is correct.

    Files that cannot be read are reported, and the others are described. The exit code is then 1.
    """
    # If a file cannot be read, describe the others first. The last error ends the command.
    errors: list[NanosetError] = []
    for path in files:
        try:
            _describe(path)
        except NanosetError as error:
            errors.append(error)
    for earlier_error in errors[:-1]:
        print_error(str(earlier_error))
    if errors:
        raise errors[-1]


def _describe(path: Location) -> None:
    """Print the documents and tokens of a `.pbin`, a file of tokens for the trainer Modalities.

    Also print in which of its layouts the file is, and what is wrong with its index, which says
    where each document begins.

    Args:
        path: The file, on this machine or in a bucket.

    Raises:
        NanosetError: The file is missing, is not a `.pbin`, or is too damaged to be described.
    """
    from nanoset_core.formats.pbin.layout import load_index, open_pbin
    from nanoset_core.storage.copies.temporary import path_and_access

    # For a file in a bucket, `local_path` is in a temporary folder, and `access` downloads from the
    # bucket. For a file on this machine, `access` is None.
    with path_and_access(path) as (local_path, access):
        if access is None:
            file = open_pbin(local_path)
        else:
            # This downloads only the parts that are read: the header and the index.
            downloaded_when_read = access.open_bytes(local_path)
            file = open_pbin(local_path, downloaded_when_read)
        _print_description(path, file, load_index(file))


def _print_description(path: Location, file: PbinFile, index: PbinIndex) -> None:
    """Print what a .pbin contains, and what is wrong with it.

    For example, of a file that an earlier version of Modalities (a training program) has written:

        web.pbin: 7 documents, 51 tokens of 2 bytes
        layout C, written by Modalities 0.2.0; the current Modalities cannot read it: …
        a document has 1 to 20 tokens, median 4

    Args:
        path: Where the file is, for the output.
        file: The opened file.
        index: Its index, which says where each document begins. Wrong entries are corrected
            already. `index.facts` says what was wrong with them.
    """
    facts = index.facts
    token_size = format_count(file.token_bytes, "byte")
    n_documents = format_count(facts.documents, "document")
    n_tokens = format_count(len(file.tokens), "token")
    echo(f"{path}: {n_documents}, {n_tokens} of {token_size}")
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
    """Say which version of Modalities has written a .pbin, and whether the current one reads it.

    Modalities, a training program, has changed the layout of these files twice:

        A    layout A, written by Modalities 0.1.0; the current Modalities cannot read it: …
        C    layout C, written by Modalities 0.2.0; the current Modalities cannot read it: …
        D    layout D, the current one

    Args:
        layout: The letter of the layout.
    """
    text = f"layout {layout}, {_WRITTEN[layout]}"
    if layout != "D":
        text += f"; the current Modalities cannot read it: {_REPAIR}"
    return text


def _fault(index: IndexFacts) -> str:
    """Return what is wrong with the index of a .pbin, as a text for the user, or "".

    The index says where each document starts. A file begins with a header of 12 bytes. Two things
    can be wrong:

    - Modalities joined several files, and forgot their headers when it computed the starts. So the
      documents of the second file seem to start 12 bytes too early, those of the third 24 bytes, ….
    - The documents of the index do not cover all tokens of the file, without gaps or overlaps.

    Args:
        index: What was found out about the index when it was read.
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


def _check_joinable(files: Sequence[Location]) -> None:
    """Check that no file has two different names, and that all have tokens of one tokenizer.

        a.pbin b.pbin              correct
        a.pbin a.pbin              correct, but a notice says that it is read twice
        a.pbin link_to_a.pbin      an error, since this looks like a mistake

    Args:
        files: The files as the user named them.

    Raises:
        InputError: Two names lead to the same file.
        FormatError: The receipts next to two files name different tokenizers.
    """
    from nanoset_core.outputs.receipts import hidden_receipt_name
    from nanoset_core.outputs.recorded_tokenization import (
        common_tokenizer,
        recorded_tokenizations,
    )
    from nanoset_core.stages.shards.standalone.inputs import check_different

    for file, times in Counter(files).items():
        if times > 1:
            print_notices([f"{file} is read {times:,} times, since it is named that many times"])
    check_different(list(dict.fromkeys(files)))
    receipts = [file.with_name(hidden_receipt_name(file.name)) for file in files]
    common_tokenizer(recorded_tokenizations(receipts))


def _make_pbin(
    operation: str,
    output: Location,
    files: Sequence[Location],
    settings: Mapping[str, object],
    work: Work,
    overwrite: bool,
) -> None:
    """Write a .pbin from other files, unless that was done before, and print what it contains.

    For example, it prints "c.pbin: 7 documents, 51 tokens of 2 bytes".

    Args:
        operation: What is done, such as "merge". It is recorded next to the .pbin.
        output: The .pbin to write.
        files: The files that it is made from. Those in a bucket are downloaded.
        settings: Everything else that decides the content of the .pbin, such as {"seed": 7}.
        work: The function that writes the .pbin. It is called with the paths of the files on this
            machine, the path to write to, and the progress. It returns counts of the .pbin.
        overwrite: Whether to replace a .pbin that was made from other files or settings.
    """
    counts, is_new = _make_file(operation, output, files, settings, work, overwrite)
    _print_counts(output, counts, is_new=is_new)


def _make_file(
    operation: str,
    output: Location,
    files: Sequence[Location],
    settings: Mapping[str, object],
    work: Work,
    overwrite: bool,
) -> tuple[Facts, bool]:
    """Write a file from other files, unless the same command has written it before.

    Next to each output is a receipt of how it was made. For example, of these three commands, the
    first writes c.pbin and the receipt .c.pbin.made.json. The second finds that it has nothing to
    do. The third fails, since c.pbin is another output, which it must not replace:

        nanoset pbin merge a.pbin b.pbin --output c.pbin
        nanoset pbin merge a.pbin b.pbin --output c.pbin
        nanoset pbin merge a.pbin d.pbin --output c.pbin

    Args:
        operation: What is done, such as "merge".
        output: The file to write.
        files: The files that it is made from. Those in a bucket are downloaded.
        settings: Everything else that decides the content of the output, such as {"seed": 7}.
        work: The function that writes the output. It is called with the paths of the files on this
            machine, the path to write to, and the progress. It returns counts of the output.
        overwrite: Whether to replace an output that was made from other files or settings.

    Returns:
        The counts, and whether the output was written now. If it existed already, the counts are
        those in its receipt.
    """
    from nanoset_core.outputs.deliver import make_once
    from nanoset_core.storage.copies.temporary import downloaded

    def download_and_work(target: Path) -> Facts:
        """Download the files, and write the output to a path."""
        with shown_progress() as progress, downloaded(files) as local_files:
            return work(local_files, target, progress)

    # `nanoset pbin merge` was called `nanoset pack merge` in earlier versions. Receipts still say
    # so, so that the outputs of those versions are recognised.
    recorded_command = f"pack {operation}"
    return make_once(
        recorded_command, output, files, settings, make=download_and_work, overwrite=overwrite
    )


def _print_counts(
    path: Location, counts: Facts, rejected: str = "", lost: str = "", *, is_new: bool = True
) -> None:
    """Print what a .pbin contains, and which text it does not contain.

    For example: "web.pbin: 3 documents, 120 tokens of 2 bytes, 1 line rejected (rejects.jsonl)".

    Args:
        path: The file.
        counts: Its counts: {"documents": 3, "tokens": 120, "token_bytes": 2, "left_out": 0}.
            `left_out` counts documents without tokens, which are not in the file.
        rejected: Text on lines that could not be read, such as ", 1 line rejected (rejects.jsonl)",
            or "".
        lost: Text on files that could not be read to their end, printed in bold, or "".
        is_new: Whether this command has written the file. If not, "(already exists)" is added.
    """
    n_documents = format_count(counts["documents"], "document")
    n_tokens = format_count(counts["tokens"], "token")
    token_size = format_count(counts["token_bytes"], "byte")
    text = f"{path}: {n_documents}, {n_tokens} of {token_size}"
    if counts.get("left_out"):
        text += f", {format_count(counts['left_out'], 'document')} without tokens left out"
    text += rejected
    print_made(text, lost=lost, is_new=is_new)
