"""`nanoset pbin`: write, join, shuffle, filter, repair and describe Modalities' .pbin files.

A .pbin has a header, the tokens of all documents, and an index that says where each document
begins. Each operation is a subcommand, such as `nanoset pbin merge a.pbin b.pbin --output c.pbin`.
A receipt next to the output says what it was made from, so that it is not made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from nanoset_core.formats.pbin.layout import IndexFacts
    from nanoset_core.formats.pbin.writing import PbinCounts
    from nanoset_core.stages.pbin.description import PbinDescription
    from nanoset_core.storage.location import Location

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
    _print_counts(output, result.counts, rejected, result.lost, is_new=is_new)


@command.command(short_help="Join FILES of any layout, with a correct index.")
@_FILES
@_OUTPUT
@OVERWRITE_OPTION
def merge(files: tuple[Location, ...], output: Location, overwrite: bool) -> None:
    """Join FILES of any layout, in the order given, with a correct index."""
    from nanoset_core.stages.pbin.operations import merge_pbin_once, notices_of_repeated_files

    print_notices(notices_of_repeated_files(files))
    with shown_progress() as progress:
        result = merge_pbin_once(files, output, progress, overwrite=overwrite)
    _print_counts(output, result.counts, is_new=result.is_made_now)


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
    from nanoset_core.stages.pbin.operations import (
        notices_of_repeated_files,
        shuffle_pbin_chunk_once,
        shuffle_pbin_once,
    )

    if (chunk is None) != (chunks is None):
        raise click.UsageError("--chunk needs --chunks, and --chunks needs --chunk")
    if chunk is None and len(files) > 1:
        raise click.UsageError(
            "shuffle one file (see `nanoset pbin merge`), or a chunk of several: --chunk, --chunks"
        )

    print_notices(notices_of_repeated_files(files))
    with shown_progress() as progress:
        if chunk is None or chunks is None:
            result = shuffle_pbin_once(files[0], output, seed, progress, overwrite=overwrite)
        else:
            result = shuffle_pbin_chunk_once(
                files, output, seed, chunk, chunks, progress, overwrite=overwrite
            )
    _print_counts(output, result.counts, is_new=result.is_made_now)


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
    from nanoset_core.stages.pbin.operations import filter_pbin_once
    from nanoset_core.stages.pbin.selection import DocumentFilter

    document_filter = DocumentFilter(**conditions)
    with shown_progress() as progress:
        result = filter_pbin_once(
            file, output, document_filter, progress, say=echo, overwrite=overwrite
        )
    _print_counts(output, result.counts, is_new=result.is_made_now)


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
    from nanoset_core.stages.pbin.operations import repair_pbin_in_place, repair_pbin_once

    if output is None:
        with shown_progress() as progress:
            counts = repair_pbin_in_place(file, progress, say=echo)
        _print_counts(file, counts)
        return

    with shown_progress() as progress:
        result = repair_pbin_once(file, output, progress, say=echo, overwrite=overwrite)
    _print_counts(output, result.counts, is_new=result.is_made_now)


@command.command("raw-index", short_help="Write the .idx next to a JSONL file.")
@click.argument("text", type=ANY_FILE)
@option("--output -o", "The index; default: TEXT's name, ending in .idx.", type=ANY_FILE)
@flag("--drop-faulty", "Leave out lines that are not JSON, instead of failing.")
@OVERWRITE_OPTION
def raw_index(text: Location, output: Location | None, drop_faulty: bool, overwrite: bool) -> None:
    """Write the .idx that Modalities needs next to an uncompressed JSONL file.

    The .idx says where each line of the JSONL file begins and ends.
    """
    from nanoset_core.stages.pbin.operations import make_raw_index_once

    index_path = output
    if index_path is None:
        index_path = text.with_name(f"{text.stem}.idx")  # web.idx for web.jsonl
    with shown_progress() as progress:
        result = make_raw_index_once(
            text, index_path, progress, drop_faulty=drop_faulty, overwrite=overwrite
        )

    # Print, for example: "t.idx: 2 of 3 lines, 1 dropped, the first in line 2".
    counts = result.counts
    summary = f"{counts.documents:,} of {format_count(counts.lines, 'line')}"
    if counts.n_dropped:
        summary += f", {counts.n_dropped:,} dropped, the first in line {counts.first_dropped[0]:,}"
    print_made(f"{index_path}: {summary}", is_new=result.is_made_now)


@command.command(short_help="Describe FILES.")
@_FILES
def describe(files: tuple[Location, ...]) -> None:
    """Print the documents, tokens and layout of FILES, and whether their index is correct.

    Files that cannot be read are reported, and the others are described. The exit code is then 1.
    """
    from nanoset_core.stages.pbin.description import describe_pbin

    # If a file cannot be read, describe the others first. The last error ends the command.
    errors: list[NanosetError] = []
    for path in files:
        try:
            _print_description(path, describe_pbin(path))
        except NanosetError as error:
            errors.append(error)
    for earlier_error in errors[:-1]:
        print_error(str(earlier_error))
    if errors:
        raise errors[-1]


def _print_description(path: Location, pbin: PbinDescription) -> None:
    """Print what a .pbin contains, and what is wrong with it.

    For example, of a file that an earlier version of Modalities (a training program) has written:

        web.pbin: 7 documents, 51 tokens of 2 bytes
        layout C, written by Modalities 0.2.0; the current Modalities cannot read it: …
        a document has 1 to 20 tokens, median 4

    Args:
        path: Where the file is, for the output.
        pbin: What the file contains.
    """
    index = pbin.index
    token_size = format_count(pbin.token_bytes, "byte")
    n_documents = format_count(index.documents, "document")
    n_tokens = format_count(pbin.n_tokens, "token")
    echo(f"{path}: {n_documents}, {n_tokens} of {token_size}")
    echo(_layout_text(pbin.layout))
    fault = _fault(index)
    if fault:
        echo(fault)

    if index.documents:
        lengths = f"a document has {describe_lengths(pbin.lengths)}"
        if index.empty_documents:
            lengths += f"; {index.empty_documents:,} have none"
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


def _print_counts(
    path: Location, counts: PbinCounts, rejected: str = "", lost: str = "", *, is_new: bool = True
) -> None:
    """Print what a .pbin contains, and which text it does not contain.

    For example: "web.pbin: 3 documents, 120 tokens of 2 bytes, 1 line rejected (rejects.jsonl)".

    Args:
        path: The file.
        counts: Its numbers of documents and tokens, and of documents without tokens, which are not
            in the file (`left_out`).
        rejected: Text on lines that could not be read, such as ", 1 line rejected (rejects.jsonl)",
            or "".
        lost: Text on files that could not be read to their end, printed in bold, or "".
        is_new: Whether this command has written the file. If not, "(already exists)" is added.
    """
    n_documents = format_count(counts.documents, "document")
    n_tokens = format_count(counts.tokens, "token")
    token_size = format_count(counts.token_bytes, "byte")
    text = f"{path}: {n_documents}, {n_tokens} of {token_size}"
    if counts.left_out:
        text += f", {format_count(counts.left_out, 'document')} without tokens left out"
    text += rejected
    print_made(text, lost=lost, is_new=is_new)
