"""What was in a step of a run, and which steps read a document: by the run.yaml of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, MissingError, SampleIndexError
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.explain import SampleOrigin, explain_samples
from nanoset_core.lineage.find import Wanted, find_in
from nanoset_core.lineage.positions import DocumentPlaces, Split
from nanoset_core.loading.nanoset import BlendedNanoset, Nanoset
from nanoset_core.loading.opening import HANDOFF, STAGE, open_version
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.run import RunSpec, read_run
from nanoset_core.stages.handoff.steps import Dealer, Steps, Stretch
from nanoset_core.stages.mappings.run_before import HANDOFF_FOLDER, versions_before

TRAIN = SPLITS[0]


@dataclass(frozen=True, slots=True)
class StepSample(SampleOrigin):
    """One sample of a step, and who read it."""

    rank: int
    """Data-parallel rank, from 0."""
    micro_batch: int
    """Of the rank in this step, from 0."""


@dataclass(frozen=True, slots=True)
class StepOrigin:
    """What a step of a run read."""

    step: int
    """From 1, as trainers log it."""
    skipped: bool
    """Whether its samples were consumed and not trained on."""
    handoff: str
    """Whose samples they are."""
    consumed_samples: int
    """Samples that the run had read before."""
    batch_size: int
    """Samples of the step."""
    data_parallel_size: int
    """Data-parallel ranks."""
    micro_batch_size: int
    """Samples that a rank reads at once."""
    samples: tuple[StepSample, ...]
    """By rank and micro-batch."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample with a document, in the step that reads it."""

    step: int
    """From 1."""
    skipped: bool
    """Whether the step's samples were consumed and not trained on."""
    rank: int
    """Data-parallel rank, from 0."""
    micro_batch: int
    """Of the rank in this step, from 0."""
    sample: int
    """Number in the train split of the handoff's nanoset."""


@dataclass(frozen=True, slots=True)
class DocumentSteps(DocumentPlaces):
    """Where a document is in the train split of a handoff, and the steps that read it there."""

    handoff: str
    """Whose train split it is."""
    steps: tuple[Reading, ...]
    """By step; none where no whole step reads it."""


class Part(NamedTuple):
    """A handoff, and the samples of a run that were read by it."""

    manifest: Manifest
    """Of the handoff."""
    loaded: Nanoset | BlendedNanoset
    """Its train split, as the run was started with it."""
    dealer: Dealer
    """What deals its samples to ranks."""
    base: int
    """The run's sample that is its first."""
    begin: int
    """The run's first sample that was read by it."""
    end: int | None
    """The end of these, exclusive; None where only the data ends."""

    @property
    def name(self) -> str:
        """Name of the nanoset."""
        return self.manifest.name.removesuffix(f"/{HANDOFF}")


class StepSamples(NamedTuple):
    """The samples of a step, by number."""

    step: Stretch
    part: Part
    samples: NDArray[np.int64]
    """Numbers in the train split, shape (batch,), by rank and micro-batch."""
    ranks: NDArray[np.int64]
    micro_batches: NDArray[np.int64]


class Run:
    """A run, with the handoffs that it read."""

    def __init__(self, spec: RunSpec, parts: Sequence[Part], file: object) -> None:
        """Take handoffs in their order; ConfigError where they do not follow one another at steps of the run."""
        self.spec, self.parts, self.file = spec, tuple(parts), file
        with _in(file):
            self.steps = Steps(spec)
        begins = np.array([part.begin for part in parts])
        first, _ = self.steps.samples(self.steps.of(begins))
        in_order = np.diff(begins, prepend=-1) > 0
        if (wrong := np.flatnonzero((first != begins) | ~in_order)).size:
            at = int(wrong[0])
            what, found = "a handoff does not begin where a step of the run does", f"sample {begins[at]:,}"
            remedy = "name the handoffs in the order of the run, and the batch sizes that it had"
            expected = f"sample {first[at]:,}" if in_order[at] else f"one after sample {begins[at - 1]:,}"
            where = f"{file}: handoff[{at}]"
            raise ConfigError(what, where=where, found=found, expected=expected, remedy=remedy)

    @staticmethod
    def open(outputs: OutputRoot, file: Path) -> Run:
        """Read a run.yaml, and open the train split of each of its handoffs, in the version that it was made from.

        Raises:
            MissingError: a file, or a version of an output, is not there.
            ConfigError: mistakes in run.yaml.
        """
        spec = read_run(file)
        with _in(file):
            parts = [_part(outputs, spec, handoff) for handoff in spec.handoffs]
        ends = [after.begin for _, after in pairwise(parts)]
        cut = [part._replace(end=part.end or end) for part, end in zip(parts, [*ends, None], strict=True)]
        return Run(spec, cut, file)

    @staticmethod
    def begun(outputs: OutputRoot, handoff: Manifest, size: int) -> Run:
        """Return a run that starts with a handoff, on one rank; raises as `open`.

        Args:
            outputs: that have it.
            handoff: the handoff.
            size: samples of a step, where the handoff has no schedule.
        """
        _, size, *_ = handoff.recipe["options"].get("schedule") or (0, size)
        spec = RunSpec(handoff.folder.as_posix(), 1, 1, size)
        part = _part(outputs, spec, spec.handoffs[0])
        started = part._replace(base=part.base - part.begin, begin=0, end=None)  # the samples are those of any ranks
        return Run(spec, [started], handoff.url())

    def samples(self, step: int) -> StepSamples:
        """Return the samples of a step; SampleIndexError where no handoff of the run has them."""
        stretch = self.steps.stretch(step)
        end = stretch.sample + stretch.batch
        for part in self.parts:
            if part.begin <= stretch.sample and (part.end is None or end <= part.end):
                with _in(self.file):
                    samples, ranks, micro_batches = part.dealer.dealt(stretch, part.base)
                order = np.lexsort((micro_batches, ranks))
                return StepSamples(stretch, part, samples[order], ranks[order], micro_batches[order])
        what, remedy = "no handoff of the run has the samples of this step", "add the handoff of that part of the run"
        spans = [f"{part.begin:,} to {'…' if part.end is None else format(part.end - 1, ',')}" for part in self.parts]
        expected, found = f"samples {', or '.join(spans)}", f"samples {stretch.sample:,} to {end - 1:,}"
        raise SampleIndexError(
            what, where=f"{self.file}: step {step:,}", found=found, expected=expected, remedy=f"{remedy} to `handoff`"
        )

    def readings(self, part: Part, samples: NDArray[np.int64]) -> Iterator[Reading]:
        """Yield where samples of a handoff are read, by step."""
        dealer, base = part.dealer, part.base
        with _in(self.file):
            positions = dealer.positions(np.unique(samples)) + base
        late = {0}
        if dealer.kind == "interleaved":
            late |= {max(one.resumed - base, 0) % one.ranks for one in self.steps.stretches}
        for step in np.unique(self.steps.of((positions[:, None] + sorted(late)).ravel())).tolist():
            try:
                found = self.samples(step)
            except SampleIndexError:
                continue  # the data ends within it
            if found.part is part:
                for row in np.flatnonzero(np.isin(found.samples, samples)).tolist():
                    place = int(found.ranks[row]), int(found.micro_batches[row]), int(found.samples[row])
                    yield Reading(step, self.spec.is_skipped(step), *place)


def explain_step(
    project_or_root: Project | str | os.PathLike[str],
    run: Run | Path,
    step: int,
    rank: int | None = None,
    most: int | None = None,
) -> StepOrigin:
    """Return the samples that a step of a run read, with the documents in them; raw text is not read again.

    Args:
        project_or_root: a project, or its output root alone; then nothing is decoded.
        run: the run, or its run.yaml.
        step: from 1, as trainers log it.
        rank: a data-parallel rank alone.
        most: samples to look up; None is all.

    Raises:
        MissingError, ConfigError: as `Run.open`; or there is no such rank.
        SampleIndexError: no handoff of the run has the samples of the step.
    """
    context = replace(InspectionContext.of(project_or_root), config=None)
    run = run if isinstance(run, Run) else Run.open(context.outputs, run)
    found = run.samples(step)
    part, ranks = found.part, found.step.ranks
    if rank is not None and not 0 <= rank < ranks:
        what, where, remedy = "no such data-parallel rank", f"{run.file}: step {step:,}", "name one that the step has"
        raise ConfigError(what, where=where, found=rank, expected=f"0 to {ranks - 1}", remedy=remedy)
    rows = np.flatnonzero(found.ranks == rank) if rank is not None else np.arange(found.step.batch)
    rows = rows[:most]
    origins = explain_samples(context, part.loaded, part.name, TRAIN, found.samples[rows].tolist())
    places = zip(origins, found.ranks[rows].tolist(), found.micro_batches[rows].tolist(), strict=True)
    return StepOrigin(
        step=step,
        skipped=run.spec.is_skipped(step),
        handoff=part.manifest.url(),
        consumed_samples=found.step.sample,
        batch_size=found.step.batch,
        data_parallel_size=ranks,
        micro_batch_size=found.step.micro_batch,
        samples=tuple(StepSample(**_values(origin), rank=own, micro_batch=batch) for origin, own, batch in places),
    )


def explain_steps(
    project_or_root: Project | str | os.PathLike[str],
    run_file: Path,
    steps: Sequence[int],
    rank: int | None = None,
    most: int | None = None,
) -> list[StepOrigin]:
    """Return the samples that several steps of a run read, as `explain_step` does for each; `run_file` is read once."""
    run = Run.open(InspectionContext.of(project_or_root).outputs, run_file)
    return [explain_step(project_or_root, run, step, rank, most) for step in steps]


def find_steps(
    project_or_root: Project | str | os.PathLike[str], run_file: Path, **document: Any
) -> list[DocumentSteps]:
    """Return where the handoffs of a run hold a document, and the steps that read it; `document` as `find_document`.

    Raises:
        MissingError, ConfigError: as `Run.open` and `find_document`.
    """
    context = InspectionContext.of(project_or_root)
    run, found, missing = Run.open(context.outputs, run_file), list[DocumentSteps](), list[MissingError]()
    for part in run.parts:
        try:
            places = find_in(context, Split.of(context, part.name, TRAIN, part.loaded), part.name, Wanted(**document))
        except MissingError as error:
            missing.append(error)
            continue
        for place in places:
            samples = np.array([appearance.sample for appearance in place.appearances], np.int64)
            steps = tuple(run.readings(part, samples))
            found.append(DocumentSteps(**_values(place), handoff=part.manifest.url(), steps=steps))
    if not found:
        raise missing[0]
    return found


def _values(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


@contextmanager
def _in(file: object) -> Iterator[None]:
    """Name the file in errors that only name a place in it."""
    try:
        yield
    except (ConfigError, SampleIndexError) as error:
        raise error.at(f"{file}: {error.where}") from error


def _part(outputs: OutputRoot, spec: RunSpec, handoff: str) -> Part:
    if (named := HANDOFF_FOLDER.fullmatch(handoff)) is None:
        what, expected = "not the folder of a handoff", f"…/{STAGE}/NAME/{HANDOFF}/current, or a digest in its place"
        raise ConfigError(what, where="handoff", found=handoff, expected=expected, remedy="name the handoff of the run")
    name, version = named.groups()
    if version == "current":
        try:
            version = outputs.require(
                STAGE, f"{name}/{HANDOFF}", remedy="correct its name, or run `nanoset build`"
            ).digest
        except MissingError as error:
            nanosets = ", ".join(sorted(outputs.access.names(outputs.folder / STAGE))) or "none"
            raise error.at(error.where, f"{error.remedy}; nanosets that are there: {nanosets}") from error
    versions = versions_before(outputs, name, version)
    manifest, loaded = versions[HANDOFF], open_version(outputs, versions[TRAIN])
    config, options = loaded.config, manifest.recipe["options"]
    dealer = Dealer.of(config.preset, spec.dataloader_type, len(loaded), config.random_seed)
    if (span := options.get("span")) is None:
        return Part(manifest, loaded, dealer, 0, config.consumed_samples, None)
    # In phases Megatron-LM takes --global-batch-size for that of every iteration, and counts samples of the phase.
    size = options["schedule"][1]
    sizes = {spec.global_batch_size or 0, *(one.global_batch_size or size for one in spec.resumes)}
    if sizes != {size} or spec.rampup_batch_size is not None or spec.decrease_batch_size_if_needed:
        what, expected = "in phases the batch size must stay what the schedule says", f"global_batch_size: {size} alone"
        found = sorted(sizes)
        raise ConfigError(what, where="global_batch_size", found=found, expected=expected, remedy="correct run.yaml")
    return Part(manifest, loaded, dealer, span[0] * size, span[0] * size, span[1] * size)
