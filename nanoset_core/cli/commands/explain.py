"""`nanoset explain`: from a sample of a nanoset or webdataset to the documents in it, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from nanoset_core.cli.options import CONFIG_OPTION, FILE, JSON_OPTION, option
from nanoset_core.cli.terminal import print_json
from nanoset_core.serialization.text import format_count

Json = dict[str, Any]
_SAMPLE = "{name} {split} sample {sample:,}, which is sample {corpus_sample:,} of {corpus}"
_CONTEXT = (
    "{name} sample {key} (number {position:,} of all) in {tar}, context {context:,} before the shuffle, of {corpus}"
)
_PIECE = "tokens {sample_tokens[0]:,} to {sample_tokens[1]:,} of the sample"
_OF_DOCUMENT = "tokens {document_tokens[0]:,} to {document_tokens[1]:,} of the document"
_OF_SAMPLE = f"{_PIECE} are {_OF_DOCUMENT}"
_STEP = (
    "step {step:,} read {batch_size:,} samples after {consumed_samples:,} consumed, on {data_parallel_size:,} ranks in "
    "micro-batches of {micro_batch_size:,}, of {handoff}."
)
_READING = "step {step:,}: sample {sample:,}, rank {rank}, micro-batch {micro_batch}"
_IN_SPLIT, _IN_TAR = "sample {sample:,}: ", "sample {key} (number {sample:,} of all) in {tar}: "


@click.command("explain", short_help="Show the documents of a sample or a step, or a document's samples and steps.")
@click.argument("nanoset", metavar="NAME", required=False)
@click.argument("split", required=False)
@click.argument("sample", type=int, required=False)
@CONFIG_OPTION
@option("--document identity", "The other way: list the samples that hold the document with this id.")
@option("--file", "The same by place: corpus/file:line, as explain prints it; or a file, with --line.")
@option("--line", "Line of --file, from 1; of a table the row.", type=click.IntRange(1))
@option("--number", "The same by the document's number in its dataset, from 0.", type=click.IntRange(0))
@option("--corpus", "Look in this corpus only.")
@option("--run", "Of a run in place of NAME: its run.yaml, as the handoff begins it.", type=FILE)
@option("--step", "With --run: show what a step read, from 1 as trainers log them.", type=click.IntRange(1))
@option("--rank", "With --step: of this data-parallel rank alone.", type=click.IntRange(0))
@option("--from-log", "With --run: print it, completed from Megatron-LM's log.", type=FILE)
@JSON_OPTION
@option("--show", "How many samples to list.", type=click.IntRange(0), default=20, show_default=True)
def command(
    nanoset: str | None, split: str | None, sample: int | None, config: Path, as_json: bool, show: int, **given: Any
) -> None:
    """Show which documents a sample of NAME holds, with file, line and text; or which samples hold a document.

    Of a nanoset give SPLIT and SAMPLE. Of a webdataset give, in place of SPLIT, a sample's key (00000003_00000017), a
    tar (shard-00000003.tar) with SAMPLE, its number in there, or a number over all tars.

    With --run no NAME is given: show what a step of that run read, or which steps read a document.
    """
    of_run = {name: given.pop(name) for name in ("run", "step", "rank", "from_log")}
    if of_run["run"] is not None and of_run["from_log"] is not None:
        _complete(of_run["run"], of_run["from_log"])
    elif of_run["run"] is not None:
        _check_run(nanoset, of_run["step"], of_run["rank"], given)
        _print(*_of_run(config, of_run, given, None if as_json else show), as_json=as_json)
    elif any(value is not None for value in of_run.values()):
        raise click.UsageError("--step, --rank and --from-log are of a run: name its run.yaml with --run")
    elif nanoset is None:
        raise click.UsageError("Missing argument 'NAME'")
    else:
        _print(*_of_nanoset(config, nanoset, split, sample, given, show), as_json=as_json)


def _print(found: Any, lines: Iterator[str], *, as_json: bool) -> None:
    if as_json:
        print_json(found, ensure_ascii=False)
        return
    for text in lines:
        click.echo(text)


def _complete(run: Path, log: Path) -> None:
    from nanoset_core.handoff.train_log import completed

    text, differences = completed(run, log)
    click.echo(text, nl=False)
    for difference in differences:
        click.echo(f"warning: {difference}", err=True)


def _check_run(nanoset: str | None, step: int | None, rank: int | None, document: Json) -> None:
    if nanoset is not None:
        raise click.UsageError("give NAME or --run: run.yaml names the nanosets of a run by their handoffs")
    named = any(document[name] is not None for name in ("identity", "file", "number"))
    if named == (step is not None):
        raise click.UsageError("with --run give one of: --step N, --document ID, --file F --line N, --number N")
    if step is None and rank is not None:
        raise click.UsageError("--rank is of a step: give --step")


def _of_run(config: Path, given: Json, document: Json, show: int | None) -> tuple[Any, Iterator[str]]:
    """Return what was asked of a run, and its lines; `show` samples, None is all."""
    from nanoset_core.lineage.run import explain_step, find_steps
    from nanoset_core.pipeline.project import Project

    project = Project.open(config)
    with project.outputs.access.named():
        if given["step"] is not None:
            step = asdict(explain_step(project, given["run"], given["step"], given["rank"], show))
            return step, _step_lines(step)
        places = [asdict(place) for place in find_steps(project, given["run"], **document)]
        return places, _reading_lines(places, show or 0)


def _of_nanoset(
    config: Path, nanoset: str, split: str | None, sample: int | None, document: Json, show: int
) -> tuple[Any, Iterator[str]]:
    """Return what was asked of a nanoset or webdataset, and its lines."""
    from nanoset_core.lineage import explain, find, webdataset
    from nanoset_core.mapping.splits import SPLITS
    from nanoset_core.pipeline.project import Project

    project = Project.open(config)
    # What nanoset.yaml no longer names is recognised by the split.
    in_tars = nanoset in project.config.webdatasets or (nanoset not in project.config.nanosets and split not in SPLITS)
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
            return found, _sample_lines(found)
        places = [asdict(one) for one in find.find_document(project, nanoset, None if in_tars else split, **document)]
        return places, _document_lines(places, "" if in_tars else f"{split} ", show)


def _step_lines(found: Json) -> Iterator[str]:
    """Yield what a step read: each sample below its rank and micro-batch."""
    yield _STEP.format_map(found) + (" It was skipped: consumed, and not trained on." if found["skipped"] else "")
    for sample in found["samples"]:
        yield ""
        first, *lines = _sample_lines(sample)
        yield f"rank {sample['rank']}, micro-batch {sample['micro_batch']}: {first}"
        yield from lines
    if len(found["samples"]) < found["batch_size"]:
        yield ""
        yield f"{len(found['samples']):,} of its {found['batch_size']:,} samples are shown (--rank, --show, --json)"


def _reading_lines(places: Sequence[Json], show: int) -> Iterator[str]:
    """Yield the steps that read each document, at most `show`."""
    for place in places:
        yield _document(place["origin"])
        reason = f"; {place['reason']}" if place["reason"] is not None else ""
        yield f"  {format_count(len(place['steps']), 'time')} in a step of {place['handoff']}{reason}"
        for reading in place["steps"][:show]:
            yield f"  {_READING.format_map(reading)}{', skipped' if reading['skipped'] else ''}"
        if len(place["steps"]) > show:
            yield f"  … and {len(place['steps']) - show:,} more (--show)"


def _sample_lines(found: Json) -> Iterator[str]:
    bos = ", {bos_tokens:,} BOS" if found.get("bos_tokens") else ""
    padding = ", {pad_tokens:,} of padding" if found["pad_tokens"] else ""
    headline = (_CONTEXT if "tar" in found else _SAMPLE) + f": {{tokens:,}} tokens{bos}{padding} from "
    yield headline.format_map(found) + format_count(len(found["pieces"]), "document")
    for piece in found["pieces"]:
        yield ""
        yield f"{_OF_SAMPLE.format_map(piece)} {_document(piece['origin'])}"
        if piece["text"] is not None:
            yield f"  tokens: {piece['text']!r}"
        if (source := piece["source"]) is not None:
            told = "{text!r}" if source["state"] == "unchanged" else "{text!r} ({note})"
            yield "  source: " + ("{state}: {note}" if source["text"] is None else told).format_map(source)


def _document_lines(places: Sequence[Json], split: str, show: int) -> Iterator[str]:
    """Yield the samples that hold each document, at most `show`; each line begins with `split`."""
    for number, place in enumerate(places):
        yield "" if number else f"{format_count(len(places), 'document')} found"
        yield _document(place["origin"])
        if place["reason"] is not None:
            yield f"  {place['reason']}"
        for appearance in place["appearances"][:show]:
            yield f"  {split}{((_IN_TAR if 'tar' in appearance else _IN_SPLIT) + _OF_SAMPLE).format_map(appearance)}"
        if len(place["appearances"]) > show:
            yield f"  … and {len(place['appearances']) - show:,} samples more (--show)"


def _document(origin: Json) -> str:
    byte = " (byte {byte_offset:,})" if origin["byte_offset"] >= 0 else " (row)"
    identity = ", id {id!r}" if origin["id"] is not None else ""
    place = f"{{corpus}}/{{file}}:{{line}}{byte}{identity}: number {{document:,}} of its corpus, {{tokens:,}} tokens"
    return place.format_map(origin)
