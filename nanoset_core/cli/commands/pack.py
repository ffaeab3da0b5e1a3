"""`nanoset pack`: Modalities' .pbin files, written, joined, shuffled, filtered, repaired and described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import (
    ANY_FILE,
    OVERWRITE_OPTION,
    ManyValued,
    flag,
    option,
    option_for,
    options_for,
    text_options,
)
from nanoset_core.cli.progress import progress_bars
from nanoset_core.cli.terminal import print_made, print_notices, rejected_text, spread
from nanoset_core.records.text import format_count
from nanoset_core.stages.shards.settings import DocumentsSpec, TokenizationSpec

if TYPE_CHECKING:
    from nanoset_core.execution.progress import ProgressCallback
    from nanoset_core.stages.pbin.writing import PackedFacts
    from nanoset_core.storage.location import Location

    Files: TypeAlias = Sequence[Location]
    Settings: TypeAlias = Mapping[str, object]
    Work: TypeAlias = Callable[..., Any]

_WRITTEN = {
    "A": "written by Modalities before 2024-01-30",
    "B": "written by Modalities from 2024-01-30 to 2024-04-02",
    "C": "written by Modalities from 2024-04-03 to 2024-06-24",
    "D": "the present one",
}
_REPAIR = "`nanoset pack repair` writes it so that Modalities can"
_FAULT = (
    "the index has the fault of Modalities' merge in {}, after which documents begin a multiple of 12 bytes "
    "too early. It is read here as it was meant"
)
_OUTPUT = option("--output -o", "The file to write.", type=ANY_FILE, required=True)
_FILES = click.argument("files", nargs=-1, required=True, type=ANY_FILE)


class _Pack(click.Group):
    """A group that passes arguments without a subcommand's name to `write`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in context.help_option_names:
            args = ["write", *args]
        return super().parse_args(context, args)

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)  # in the order of this file


@click.group("pack", cls=_Pack, short_help="Write and work on Modalities' .pbin files.")
def command() -> None:
    """Write and work on the .pbin files that Modalities trains on.

    `nanoset pack INPUT... --output FILE` is short for `nanoset pack write`.
    """


@command.command(cls=ManyValued, short_help="Pack a .bin/.idx pair, or text.")
@click.argument("inputs", nargs=-1, required=True)
@_OUTPUT
@text_options("text needs one", own_vocab_size=True)
@option("--vocab-size", "Decides the bytes of a token; default: the tokenizer's.", type=click.IntRange(1))
@flag("--append-eod", "End a dataset's documents with the EOD token too; text always is.")
@option_for(DocumentsSpec, "text_key", "--json-key", param="key")
@options_for(TokenizationSpec, "workers", "engine")
def write(inputs: tuple[str, ...], output: Location, overwrite: bool, **options: object) -> None:
    """Pack INPUTS: the prefix of a .bin/.idx pair, or files, folders and patterns of text.

    Text is tokenized on the way, and gives the bytes of Modalities' own index and pack. Tokens get 1, 2 or 4 bytes by
    Modalities' rule over the tokenizer's vocabulary; without a tokenizer a pair's tokens keep their size.
    """
    from nanoset_core.stages.pbin.standalone import PackOptions, pack_once

    with progress_bars() as (listener, _):
        made, is_new = pack_once(inputs, output, PackOptions(**options), listener, overwrite=overwrite)  # type: ignore[arg-type]
    print_notices(made.notices)
    more = f", {rejected_text(made.rejected, made.faults)} ({made.rejects})" if made.rejects else ""
    _print_facts(output, asdict(made.facts), more, made.lost, is_new=is_new)


@command.command(short_help="Join FILES of any layout, with a sound index.")
@_FILES
@_OUTPUT
@OVERWRITE_OPTION
def merge(files: tuple[Location, ...], output: Location, overwrite: bool) -> None:
    """Join FILES of any layout, in the order given, with a sound index."""
    from nanoset_core.stages.pbin.selection import merge_packed

    _check_names(files)

    _make("pack merge", output, files, {}, merge_packed, overwrite)


@command.command(short_help="Shuffle the documents of files.")
@_FILES
@_OUTPUT
@option("--seed", "The same seed gives the same order.", type=int, required=True)
@option("--chunk", "Take this part of each file, from 0; needs --chunks.", type=click.IntRange(0))
@option("--chunks", "Into how many parts each file is cut; needs --chunk.", type=click.IntRange(1))
@OVERWRITE_OPTION
def shuffle(files: tuple[Location, ...], output: Location, overwrite: bool, **settings: Any) -> None:
    """Shuffle the documents of one FILE, or those of one chunk of several FILES, as Modalities would.

    Without --chunk the order is that of `shuffle_tokenized_data`, with it that of `create_shuffled_dataset_chunk`.
    """
    from nanoset_core.stages.pbin.selection import shuffle_packed, shuffle_packed_chunk

    in_chunks = settings["chunk"] is not None
    if in_chunks != (settings["chunks"] is not None):
        raise click.UsageError("--chunk and --chunks go together")
    if not in_chunks and len(files) > 1:
        raise click.UsageError("shuffle one file (see `nanoset pack merge`), or a chunk of several: --chunk, --chunks")

    _check_names(files)

    def run(here: Sequence[Path], target: Path, listener: ProgressCallback) -> PackedFacts:
        if in_chunks:
            return shuffle_packed_chunk(here, target, **settings, listener=listener)
        return shuffle_packed(here[0], target, seed=settings["seed"], listener=listener)

    _make("pack shuffle", output, files, settings, run, overwrite)


@command.command("filter", short_help="Keep the documents that meet all conditions.")
@click.argument("file", type=ANY_FILE)
@_OUTPUT
@option("--min-tokens", "Keep documents of at least so many tokens.", type=click.IntRange(1))
@option("--max-tokens", "Keep documents of at most so many tokens.", type=click.IntRange(1))
@option("--every", "Keep documents 0, N, 2N, …", type=click.IntRange(1, 1 << 62))
@option("--keep", "Keep the documents whose numbers this text file lists, from 0, one a line.", type=ANY_FILE)
@option("--drop", "Leave out the documents whose numbers this text file lists.", type=ANY_FILE)
@OVERWRITE_OPTION
def filter_documents(file: Location, output: Location, overwrite: bool, **conditions: Any) -> None:
    """Keep the documents of FILE that meet all conditions, in their order."""
    from nanoset_core.formats.pbin.dataset import PackedDataset
    from nanoset_core.stages.pbin.selection import DocumentFilter, filter_packed

    lists = {name: conditions[name] for name in ("keep", "drop") if conditions[name] is not None}
    settings = conditions | {name: str(path) for name, path in lists.items()}

    def run(here: Sequence[Path], target: Path, listener: ProgressCallback) -> PackedFacts:
        mask = DocumentFilter(**conditions | dict(zip(lists, here[1:], strict=True))).mask(PackedDataset(here[0]))
        echo(f"{file}: {mask.sum():,} of {len(mask):,} documents are kept")
        return filter_packed(here[0], target, mask, listener=listener)

    _make("pack filter", output, [file, *lists.values()], settings, run, overwrite)


@command.command(short_help="Write FILE again as Modalities can read it.")
@click.argument("file", type=ANY_FILE)
@option("--output -o", "The file to write; default: FILE itself, replaced once it is whole.", type=ANY_FILE)
@OVERWRITE_OPTION
def repair(file: Location, output: Location | None, overwrite: bool) -> None:
    """Write FILE again as Modalities can read it: the present layout, and without the fault of Modalities' merge."""
    from nanoset_core.formats.pbin.dataset import PackedDataset
    from nanoset_core.outputs.recorded import OutputPlace
    from nanoset_core.stages.pbin.selection import merge_packed
    from nanoset_core.storage.working_copies import downloaded

    def run(here: Sequence[Path], target: Path, listener: ProgressCallback) -> PackedFacts:
        found = PackedDataset(here[0])
        faults = format_count(found.index_facts.merge_faults, "fault")
        echo(f"{file} was of layout {found.layout}, with {faults} in its index")
        return merge_packed(here, target, listener=listener)

    if output is not None:
        _make("pack repair", output, [file], {}, run, overwrite)
        return
    place = OutputPlace(file.parent)
    with progress_bars() as (listener, _), downloaded([file]) as here, place.writing(), place.draft(file.name) as draft:
        facts = run(here, draft / file.name, listener)
        place.take(draft / file.name, file.name, sha256=None)
    _print_facts(file, asdict(facts))


@command.command("raw-index", short_help="Write the .idx beside a JSONL file.")
@click.argument("text", type=ANY_FILE)
@option("--output -o", "The index; default: TEXT's name, ending in .idx.", type=ANY_FILE)
@flag("--drop-faulty", "Leave out lines that are not JSON, instead of failing.")
@OVERWRITE_OPTION
def raw_index(text: Location, output: Location | None, drop_faulty: bool, overwrite: bool) -> None:
    """Write the .idx that Modalities keeps beside a plain JSONL file: where each line begins and ends."""
    from nanoset_core.formats.pbin.raw_index import create_raw_index

    def run(here: Sequence[Path], target: Path, listener: ProgressCallback) -> dict[str, Any]:
        facts = create_raw_index(here[0], target, on_fault="drop" if drop_faulty else "raise", listener=listener)
        return {"documents": facts.documents, "lines": facts.lines, "first_dropped": facts.first_dropped[:1]}

    index = text.with_name(f"{text.stem}.idx") if output is None else output
    facts, is_new = _made("pack raw-index", index, [text], {"drop_faulty": drop_faulty}, run, overwrite)
    dropped = facts["lines"] - facts["documents"]
    more = f", {dropped:,} dropped, the first in line {facts['first_dropped'][0]:,}" if dropped else ""
    print_made(f"{index}: {facts['documents']:,} of {facts['lines']:,} lines{more}", is_new=is_new)


@command.command(short_help="Say what FILES hold.")
@_FILES
def describe(files: tuple[Location, ...]) -> None:
    """Say what FILES hold: documents, tokens and their size, layout, and whether the index is sound."""
    from nanoset_core.formats.pbin.layout import load_index, open_packed
    from nanoset_core.storage.working_copies import room_beside

    for file in files:
        with room_beside(file) as (here, access):
            packed = open_packed(here, None if access is None else access.open_bytes(here))
            facts, _, lengths = load_index(packed)
            size = f"{len(packed.tokens):,} tokens of {format_count(packed.token_bytes, 'byte')}"
            echo(f"{file}: {facts.documents:,} documents, {size}")
            layout = packed.layout.name
            old = "" if layout == "D" else f"; Modalities' present reader cannot read it: {_REPAIR}"
            echo(f"layout {layout}, {_WRITTEN[layout]}{old}")
            if facts.merge_faults:
                echo(f"{_FAULT.format(format_count(facts.merge_faults, 'place'))}; {_REPAIR}")
            elif not facts.is_contiguous:
                held = f"its documents have {facts.tokens:,} of them"
                echo(f"the index does not go through the tokens from end to end: {held}")
            if len(lengths):
                empty = f"; {facts.empty_documents:,} have none" if facts.empty_documents else ""
                echo(f"a document has {spread(lengths)}{empty}")


def _check_names(files: Files) -> None:
    """Refuse a file that is named in two ways. Under one name twice it is meant to be, and is only noted."""
    from nanoset_core.stages.shards.inputs import check_different

    for file, times in Counter(files).items():
        if times > 1:
            print_notices([f"{file} is read {times:,} times, as it is named"])
    check_different(list(dict.fromkeys(files)))


def _make(command: str, output: Location, files: Files, settings: Settings, work: Work, overwrite: bool) -> None:
    """Make a .pbin unless it is there, and print what it holds."""
    facts, is_new = _made(command, output, files, settings, lambda *to, **how: asdict(work(*to, **how)), overwrite)
    _print_facts(output, facts, is_new=is_new)


def _made(
    command: str, output: Location, files: Files, settings: Settings, work: Work, overwrite: bool
) -> tuple[Mapping[str, Any], bool]:
    """Make an output unless it is there; return its facts, and whether it was made."""
    from nanoset_core.outputs.recorded import make_once
    from nanoset_core.storage.working_copies import downloaded

    def run(target: Path) -> dict[str, Any]:
        with progress_bars() as (listener, _), downloaded(files) as here:
            made: dict[str, Any] = work(here, target, listener=listener)
            return made

    return make_once(command, output, files, settings, run, overwrite=overwrite)


def _print_facts(
    path: Location, facts: Mapping[str, Any], more: str = "", lost: str = "", *, is_new: bool = True
) -> None:
    """Print the values of `PackedFacts`."""
    counts = "{documents:,} documents, {tokens:,} tokens of ".format_map(facts)
    counts += format_count(facts["token_bytes"], "byte")
    counts += f", {facts['left_out']:,} documents without tokens left out" if facts.get("left_out") else ""
    print_made(f"{path}: {counts}{more}", lost=lost, is_new=is_new)
