"""`nanoset explain`: from a sample of a nanoset or webdataset to the documents in it, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.explained import (
    OF_SAMPLE,
    STEPS,
    check_asked,
    complete,
    document_line,
    of_run,
    sample_lines,
)
from nanoset_core.cli.options import CONFIG_OPTION, FILE, JSON_OPTION, option
from nanoset_core.cli.terminal import print_json
from nanoset_core.records.text import format_count

Json = dict[str, Any]
_IN_SPLIT, _IN_TAR = "sample {sample:,}: ", "sample {key} (number {sample:,} of all) in {tar}: "


@click.command(
    "explain",
    short_help="Show the documents of a sample or a step, or a document's samples and steps.",
)
@click.argument("nanoset", metavar="NAME", required=False)
@click.argument("split", required=False)
@click.argument("sample", type=int, required=False)
@CONFIG_OPTION
@option(
    "--document identity", "The other way: list the samples that hold the document with this id."
)
@option(
    "--file", "The same by place: corpus/file:line, as explain prints it; or a file, with --line."
)
@option("--line", "Line of --file, from 1; of a table the row.", type=click.IntRange(1))
@option(
    "--number",
    "The same by the document's number in its corpus, from 0, as explain prints it.",
    type=click.IntRange(0),
)
@option("--corpus", "Look in this corpus only.")
@option("--run", "Of a run in place of NAME: its run.yaml, as the handoff begins it.", type=FILE)
@option("--step", "With --run: a step, from 1 as trainers log them; or several, A..B.", type=STEPS)
@option("--rank", "With --step: of this data-parallel rank alone.", type=click.IntRange(0))
@option("--from-log", "With --run: print it, completed from Megatron-LM's log.", type=FILE)
@JSON_OPTION
@option(
    "--show", "How many samples to list.", type=click.IntRange(0), default=20, show_default=True
)
def command(
    nanoset: str | None,
    split: str | None,
    sample: int | None,
    config: Path,
    as_json: bool,
    show: int,
    **given: Any,
) -> None:
    """Show which documents a sample of NAME holds, with file, line and text; or which samples hold
    a document.

    Of a nanoset give SPLIT and SAMPLE. Of a webdataset give, in place of SPLIT, a sample's key
    (00000003_00000017), a tar (shard-00000003.tar) with SAMPLE, its number in there, or a number
    over all tars.

    With --run no NAME is given: show what a step of that run read, or which steps read a document.
    """
    run, asked = given.pop("run"), {name: given.pop(name) for name in ("step", "rank", "from_log")}
    if run is not None and asked["from_log"] is not None:
        complete(run, asked["from_log"])
    elif run is not None:
        check_asked(nanoset, asked, given)
        _print(*of_run(config, run, asked, given, None if as_json else show), as_json=as_json)
    elif any(value is not None for value in asked.values()):
        raise click.UsageError(
            "--step, --rank and --from-log are of a run: name its run.yaml with --run"
        )
    elif nanoset is None:
        raise click.UsageError("Missing argument 'NAME'")
    else:
        _print(*_of_nanoset(config, nanoset, split, sample, given, show), as_json=as_json)


def _print(found: Any, lines: Iterator[str], *, as_json: bool) -> None:
    if as_json:
        print_json(found, ensure_ascii=False)
        return
    for text in lines:
        echo(text)


def _of_nanoset(
    config: Path, nanoset: str, split: str | None, sample: int | None, document: Json, show: int
) -> tuple[Any, Iterator[str]]:
    """Return what was asked of a nanoset or webdataset, and its lines."""
    from nanoset_core.lineage import explain, find, webdataset
    from nanoset_core.project.project import Project
    from nanoset_core.sampling.splits import SPLITS

    project = Project.open(config)
    # What nanoset.yaml no longer names is recognised by the split.
    in_tars = nanoset in project.config.webdatasets or (
        nanoset not in project.config.nanosets and split not in SPLITS
    )
    if split is None and not in_tars:
        raise click.UsageError("Missing argument 'SPLIT': train, valid or test")
    has_sample = (split if in_tars else sample) is not None
    given = {name for name, value in document.items() if value is not None}
    if given if has_sample else given.isdisjoint(("identity", "file", "number")):
        either = "give a SAMPLE, or a document"
        ways = ": --document ID, --file F --line N, or --number N"
        raise click.UsageError(f"{either} to look for, not both" if has_sample else either + ways)
    with project.outputs.access.named():
        if has_sample:
            explained = webdataset.explain_context if in_tars else explain.explain_sample
            found = asdict(explained(project, nanoset, split or "", sample))  # type: ignore[arg-type]
            return found, sample_lines(found)
        places = [
            asdict(one)
            for one in find.find_document(project, nanoset, None if in_tars else split, **document)
        ]
        return places, _document_lines(places, "" if in_tars else f"{split} ", show)


def _document_lines(places: Sequence[Json], split: str, show: int) -> Iterator[str]:
    """Yield the samples that hold each document, at most `show`; each line begins with `split`."""
    for number, place in enumerate(places):
        yield "" if number else f"{format_count(len(places), 'document')} found"
        yield document_line(place["origin"])
        if place["reason"] is not None:
            yield f"  {place['reason']}"
        for appearance in place["appearances"][:show]:
            yield f"  {split}{((_IN_TAR if 'tar' in appearance else _IN_SPLIT) + OF_SAMPLE).format_map(appearance)}"
        if len(place["appearances"]) > show:
            yield f"  … and {len(place['appearances']) - show:,} samples more (--show)"
