"""What `nanoset explain` asks of a run, and how it prints samples, documents and steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.lineage.sentences import step_sentence
from nanoset_core.records.text import format_count
from nanoset_core.untrusted import Multiline

Json = dict[str, Any]
_SAMPLE = "{name} {split} sample {sample:,}, which is sample {corpus_sample:,} of {corpus}"
_CONTEXT = "{name} sample {key} (number {position:,} of all) in {tar}, context {context:,} before the shuffle, of {corpus}"
_PIECE = "tokens {sample_tokens[0]:,} to {sample_tokens[1]:,} of the sample"
_OF_DOCUMENT = "tokens {document_tokens[0]:,} to {document_tokens[1]:,} of the document"
OF_SAMPLE = f"{_PIECE} are {_OF_DOCUMENT}"
_READING = "step {step:,}: sample {sample:,}, rank {rank}, micro-batch {micro_batch}"


class StepsType(click.ParamType):  # type: ignore[type-arg]
    """A step as a number, or several as A..B, the last included."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = re.fullmatch(r"([1-9][0-9]{0,11})(?:\.\.([1-9][0-9]{0,11}))?", value)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            self.fail(f"{value!r} is neither a step from 1 on, nor A..B.", param, ctx)
        return range(int(found[1]), int(found[2] or found[1]) + 1)


STEPS = StepsType()


def complete(run: Path, log: Path) -> None:
    """Print a run.yaml with what a log says; warn where the log's own numbers are others."""
    from nanoset_core.stages.handoff.train_log import completed

    text, differences = completed(run, log)
    echo(Multiline(text), nl=False)
    for difference in differences:
        echo(f"warning: {difference}", err=True)


def check_asked(nanoset: str | None, asked: Json, document: Json) -> None:
    """Raise UsageError where not one thing is asked of a run."""
    if nanoset is not None:
        raise click.UsageError(
            "give NAME or --run: run.yaml names the nanosets of a run by their handoffs"
        )
    named = any(document[name] is not None for name in ("identity", "file", "number"))
    if named + (asked["step"] is not None) != 1:
        ways = "--step N, --step A..B, --document ID, --file F --line N, --number N"
        raise click.UsageError(f"with --run give one of: {ways}")
    if asked["rank"] is not None and asked["step"] is None:
        raise click.UsageError("--rank is of a step: give --step")


def of_run(
    config: Path, run: Path, asked: Json, document: Json, show: int | None
) -> tuple[Any, Iterator[str]]:
    """Return what is asked of a run, and its lines; `show` samples, None is all."""
    from nanoset_core.lineage.run import explain_steps, find_steps
    from nanoset_core.project.project import Project

    project = Project.open(config)
    numbers = asked["step"]
    with project.outputs.access.named():
        if numbers is not None:
            steps = [
                asdict(step) for step in explain_steps(project, run, numbers, asked["rank"], show)
            ]
            # A single step is an object, as programs expect it; of A..B there is a list.
            return steps if len(numbers) > 1 else steps[0], _steps_lines(steps)
        places = [asdict(place) for place in find_steps(project, run, **document)]
        return places, _reading_lines(places, show or 0)


def sample_lines(found: Json) -> Iterator[str]:
    """Yield a sample of a nanoset or webdataset, and the documents in it."""
    bos = ", {bos_tokens:,} BOS" if found.get("bos_tokens") else ""
    padding = ", {pad_tokens:,} of padding" if found["pad_tokens"] else ""
    headline = (
        _CONTEXT if "tar" in found else _SAMPLE
    ) + f": {{tokens:,}} tokens{bos}{padding} from "
    yield headline.format_map(found) + format_count(len(found["pieces"]), "document")
    for piece in found["pieces"]:
        yield ""
        yield f"{OF_SAMPLE.format_map(piece)} {document_line(piece['origin'])}"
        if piece["text"] is not None:
            yield f"  tokens: {piece['text']!r}"
        if (source := piece["source"]) is not None:
            told = "{text!r}" if source["state"] == "unchanged" else "{text!r} ({note})"
            yield "  source: " + ("{state}: {note}" if source["text"] is None else told).format_map(
                source
            )


def document_line(origin: Json) -> str:
    """Return a document's place, id, length, and its number in the corpus and in the view that it
    was read through.
    """
    place = "{corpus}/{file}:{line}".format_map(origin)
    byte = f" (byte {origin['byte_offset']:,})" if origin["byte_offset"] >= 0 else " (row)"
    identity = f", id {origin['id']!r}" if origin["id"] is not None else ""

    # Tables of documents, columns and attributes are joined by the first of these numbers.
    number = "document {document:,} of corpus {corpus}".format_map(origin)
    if origin["view"] is not None:
        number += " (document {view_document:,} of view {view})".format_map(origin)
    return f"{place}{byte}{identity}: {number}, {origin['tokens']:,} tokens"


def _steps_lines(steps: Sequence[Json]) -> Iterator[str]:
    """Yield what steps read, with an empty line between them."""
    for number, step in enumerate(steps):
        if number:
            yield ""
        yield from _step_lines(step)


def _step_lines(found: Json) -> Iterator[str]:
    """Yield what a step read: each sample below its rank and micro-batch."""
    yield step_sentence(found)
    for sample in found["samples"]:
        yield ""
        first, *lines = sample_lines(sample)
        yield f"rank {sample['rank']}, micro-batch {sample['micro_batch']}: {first}"
        yield from lines
    if len(found["samples"]) < found["batch_size"]:
        yield ""
        yield f"{len(found['samples']):,} of its {found['batch_size']:,} samples are shown (--rank, --show, --json)"


def _reading_lines(places: Sequence[Json], show: int) -> Iterator[str]:
    """Yield the steps that read each document, at most `show`."""
    for place in places:
        yield document_line(place["origin"])
        reason = f"; {place['reason']}" if place["reason"] is not None else ""
        yield f"  {format_count(len(place['steps']), 'time')} in a step of {place['handoff']}{reason}"
        for reading in place["steps"][:show]:
            yield f"  {_READING.format_map(reading)}{', skipped' if reading['skipped'] else ''}"
        yield from _more(place["steps"], show)


def _more(listed: Sequence[Any], show: int) -> Iterator[str]:
    if len(listed) > show:
        yield f"  … and {len(listed) - show:,} more (--show)"
