"""What `nanoset explain` asks of a run, and how it prints samples, documents, steps and spikes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.records.text import format_count
from nanoset_core.untrusted import Multiline

Json = dict[str, Any]
_SAMPLE = "{name} {split} sample {sample:,}, which is sample {corpus_sample:,} of {corpus}"
_CONTEXT = (
    "{name} sample {key} (number {position:,} of all) in {tar}, context {context:,} before the shuffle, of {corpus}"
)
_PIECE = "tokens {sample_tokens[0]:,} to {sample_tokens[1]:,} of the sample"
_OF_DOCUMENT = "tokens {document_tokens[0]:,} to {document_tokens[1]:,} of the document"
OF_SAMPLE = f"{_PIECE} are {_OF_DOCUMENT}"
_STEP = (
    "step {step:,} read {batch_size:,} samples after {consumed_samples:,} consumed, on {ranks} in "
    "micro-batches of {micro_batch_size:,}, of {handoff}."
)
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
        raise click.UsageError("give NAME or --run: run.yaml names the nanosets of a run by their handoffs")
    named = any(document[name] is not None for name in ("identity", "file", "number"))
    if named + (asked["step"] is not None) + (asked["spike"] is not None) != 1:
        ways = "--step N, --step A..B, --spike FILE, --document ID, --file F --line N, --number N"
        raise click.UsageError(f"with --run give one of: {ways}")
    if asked["rank"] is not None and (asked["step"] is None or len(asked["step"]) > 1):
        raise click.UsageError("--rank is of a step: give --step")


def of_run(config: Path, run: Path, asked: Json, document: Json, show: int | None) -> tuple[Any, Iterator[str]]:
    """Return what is asked of a run, and its lines; `show` samples, None is all."""
    from nanoset_core.lineage.run import explain_step, find_steps
    from nanoset_core.lineage.spikes import COMPARED, read_losses, spike_report, spikes_in
    from nanoset_core.project.project import Project

    project, steps = Project.open(config), asked["step"]
    with project.outputs.access.named():
        if asked["spike"] is not None or (steps is not None and len(steps) > 1):
            report = asdict(spike_report(project, run, steps or spikes_in(asked["spike"])))
            if not steps:
                n_rows = len(read_losses(asked["spike"]))
                report |= {"rows": n_rows, "rows_examined": max(0, n_rows - COMPARED)}
            return report, _spike_lines(report, show or 0)
        if steps is not None:
            step = asdict(explain_step(project, run, steps[0], asked["rank"], show))
            return step, _step_lines(step)
        places = [asdict(place) for place in find_steps(project, run, **document)]
        return places, _reading_lines(places, show or 0)


def sample_lines(found: Json) -> Iterator[str]:
    """Yield a sample of a nanoset or webdataset, and the documents in it."""
    bos = ", {bos_tokens:,} BOS" if found.get("bos_tokens") else ""
    padding = ", {pad_tokens:,} of padding" if found["pad_tokens"] else ""
    headline = (_CONTEXT if "tar" in found else _SAMPLE) + f": {{tokens:,}} tokens{bos}{padding} from "
    yield headline.format_map(found) + format_count(len(found["pieces"]), "document")
    for piece in found["pieces"]:
        yield ""
        yield f"{OF_SAMPLE.format_map(piece)} {document_line(piece['origin'])}"
        if piece["text"] is not None:
            yield f"  tokens: {piece['text']!r}"
        if (source := piece["source"]) is not None:
            told = "{text!r}" if source["state"] == "unchanged" else "{text!r} ({note})"
            yield "  source: " + ("{state}: {note}" if source["text"] is None else told).format_map(source)


def document_line(origin: Json) -> str:
    """Return a document's place, id, length, and its number in the corpus and in the view that it was read through."""
    place = "{corpus}/{file}:{line}".format_map(origin)
    byte = f" (byte {origin['byte_offset']:,})" if origin["byte_offset"] >= 0 else " (row)"
    identity = f", id {origin['id']!r}" if origin["id"] is not None else ""

    # Tables of documents, columns and attributes are joined by the first of these numbers.
    number = "document {document:,} of corpus {corpus}".format_map(origin)
    if origin["view"] is not None:
        number += " (document {view_document:,} of view {view})".format_map(origin)
    return f"{place}{byte}{identity}: {number}, {origin['tokens']:,} tokens"


def step_line(found: Json) -> str:
    """Return in a sentence what a step is."""
    line = _STEP.format_map(found | {"ranks": format_count(found["data_parallel_size"], "rank")})
    return line + (" It was skipped: consumed, and not trained on." if found["skipped"] else "")


def _step_lines(found: Json) -> Iterator[str]:
    """Yield what a step read: each sample below its rank and micro-batch."""
    yield step_line(found)
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


def _spike_lines(found: Json, show: int) -> Iterator[str]:
    """Yield what stands out in some steps, at most `show` documents of each kind."""
    from nanoset_core.lineage.spikes import COMPARED

    # Without enough rows to compare with, "no loss is far above" would say more than was looked at.
    if found.get("rows_examined") == 0:
        yield (
            f"no row was examined: the file has {format_count(found['rows'], 'row')}, and {COMPARED} rows are needed "
            "before one is examined. Give a log with more rows, or name steps by --step A..B"
        )
        if not found["spikes"]:
            return
        yield "(losses that are no numbers are found in any row)"
    elif not found["spikes"]:
        yield "no loss is far above those of the rows before it"
        yield (
            f"({format_count(found['rows_examined'], 'row')} examined; the first {COMPARED} serve to compare with; "
            "--step A..B looks at steps that you name)"
        )
        return
    looked = f", of which {len(found['steps']):,} were looked at" if len(found["steps"]) < found["spikes"] else ""
    yield f"{format_count(found['spikes'], 'step')}{looked}: {_listed(found['steps'])}"
    for corpus in found["corpora"]:
        yield "  {corpus}: {samples:,} samples, {expected:,.1f} by its share of the blend (p {p:.2g})".format_map(
            corpus
        )
    others = f"in {len(found['others']):,} other steps: {{:,}}"
    yield ""
    of = f"of {found['documents']:,} documents, {len(found['again']):,} are in several samples"
    yield f"{of} ({others.format(found['again_in_others'])})"
    for document in found["again"][:show]:
        counts = "{samples:,} samples, {expected:.2g} expected (p {p:.2g})".format_map(document)
        yield f"  {_place(document['origin'])}: {counts}; steps {_listed(document['steps'])}"
    yield from _more(found["again"], show)
    yield ""
    groups = format_count(len(found["same"]), "group")
    yield f"documents with the same tokens as others: {groups} ({others.format(found['same_in_others'])})"
    for group in found["same"][:show]:
        yield f"  {len(group['documents']):,} of {group['tokens']:,} tokens, in steps {_listed(group['steps'])}"
        for origin in group["documents"][:show]:
            yield f"    {_place(origin)}"
        yield from _more(group["documents"], show)
    yield from _more(found["same"], show)


def _place(origin: Json) -> str:
    identity = f", id {origin['id']!r}" if origin["id"] is not None else ""
    return "{corpus}/{file}:{line}".format_map(origin) + identity


def _listed(steps: Sequence[int]) -> str:
    shown = ", ".join(f"{step:,}" for step in steps[:8])
    return f"{shown}, … {steps[-1]:,}" if len(steps) > 8 else shown or "none"


def _more(listed: Sequence[Any], show: int) -> Iterator[str]:
    if len(listed) > show:
        yield f"  … and {len(listed) - show:,} more (--show)"
