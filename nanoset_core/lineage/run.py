"""What was in a step of a run, and which steps read a document: by the run.yaml of the run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
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
from nanoset_core.lineage.find import DocumentName, find_in
from nanoset_core.lineage.positions import DocumentPlaces, Split
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
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
    """By step; none if no whole step reads it."""


class RunPart(NamedTuple):
    """A handoff, and the samples of a run that were read by it."""

    manifest: Manifest
    """Of the handoff."""
    loaded: Nanoset | BlendedNanoset
    """Its train split, as the run was started with it."""
    dealer: Dealer
    """Deals its samples to ranks."""
    base: int
    """The run's sample that is the first of the train split."""
    begin: int
    """The run's first sample that was read by it."""
    end: int | None
    """The run's sample after the last one that was read by it; None if only the data ends."""

    @property
    def name(self) -> str:
        """Name of the nanoset."""
        return self.manifest.name.removesuffix(f"/{HANDOFF}")


class StepSamples(NamedTuple):
    """The samples of a step, by number; each array has the shape (batch_size,), ordered by rank and
    micro-batch.
    """

    step: Stretch
    """The step alone."""
    part: RunPart
    """The handoff that has them."""
    samples: NDArray[np.int64]
    """Numbers in the train split."""
    ranks: NDArray[np.int64]
    """Data-parallel rank that reads each."""
    micro_batches: NDArray[np.int64]
    """Micro-batch of the rank that contains each."""


class Run:
    """A run, with the handoffs that it read."""

    def __init__(self, spec: RunSpec, parts: Sequence[RunPart], file: object) -> None:
        """Take the handoffs of a run in their order.

        Args:
            spec: The settings of the run.
            parts: The handoffs.
            file: The run.yaml that names them, for messages.

        Raises:
            ConfigError: The handoffs do not follow one another at steps of the run.
        """
        self.spec = spec
        self.parts = tuple(parts)
        self.file = file
        with _naming(file):
            self.steps = Steps(spec)

        # Each handoff must begin after the one before it, and with the first sample of a step.
        begins = np.array([part.begin for part in parts])  # (n_parts,)
        # (n_parts,) first sample of each one's first step
        step_begins, _ = self.steps.samples(self.steps.of(begins))
        is_in_order = np.diff(begins, prepend=-1) > 0
        wrong_parts = np.flatnonzero((step_begins != begins) | ~is_in_order)
        if len(wrong_parts):
            number = int(wrong_parts[0])
            expected = f"sample {step_begins[number]:,}"
            if not is_in_order[number]:
                expected = f"one after sample {begins[number - 1]:,}"
            raise ConfigError(
                "a handoff does not begin where a step of the run does",
                where=f"{file}: handoff[{number}]",
                found=f"sample {begins[number]:,}",
                expected=expected,
                remedy="name the handoffs in the order of the run, and the batch sizes that it had",
            )

    @staticmethod
    def open(outputs: OutputRoot, file: Path) -> Run:
        """Read a run.yaml, and open the train split of each of its handoffs, in the version that it
        was made from.

        Raises:
            MissingError: A file, or a version of an output, is missing.
            ConfigError: There are mistakes in run.yaml.
        """
        spec = read_run(file)
        with _naming(file):
            parts = [_open_part(outputs, spec, handoff) for handoff in spec.handoffs]

        # A handoff ends where the next one begins, unless it is a phase, whose end is known.
        closed_parts: list[RunPart] = []
        for part, next_part in pairwise(parts):
            closed_parts.append(part._replace(end=part.end or next_part.begin))
        return Run(spec, [*closed_parts, parts[-1]], file)

    @staticmethod
    def begun(outputs: OutputRoot, handoff: Manifest, size: int) -> Run:
        """Return a run that starts with a handoff, on one rank; errors are those of `open`.

        Args:
            outputs: The outputs that contain it.
            handoff: The handoff.
            size: Samples of a step, if the handoff has no schedule.
        """
        schedule = handoff.recipe["options"].get("schedule")
        if schedule:
            size = schedule[1]
        spec = RunSpec(handoff.folder.as_posix(), 1, 1, size)
        part = _open_part(outputs, spec, spec.handoffs[0])

        # Steps are counted from the start of the handoff, whatever the run had read before.
        part = part._replace(base=part.base - part.begin, begin=0, end=None)
        return Run(spec, [part], handoff.url())

    def samples(self, step: int) -> StepSamples:
        """Return the samples of a step.

        Raises:
            SampleIndexError: No handoff of the run has them.
        """
        stretch = self.steps.stretch(step)
        end = stretch.sample + stretch.batch
        for part in self.parts:
            if part.begin <= stretch.sample and (part.end is None or end <= part.end):
                with _naming(self.file):
                    samples, ranks, micro_batches = part.dealer.dealt(stretch, part.base)
                order = np.lexsort((micro_batches, ranks))
                return StepSamples(
                    stretch, part, samples[order], ranks[order], micro_batches[order]
                )

        ranges: list[str] = []
        for part in self.parts:
            last = "…" if part.end is None else f"{part.end - 1:,}"
            ranges.append(f"{part.begin:,} to {last}")
        raise SampleIndexError(
            "no handoff of the run has the samples of this step",
            where=f"{self.file}: step {step:,}",
            found=f"samples {stretch.sample:,} to {end - 1:,}",
            expected=f"samples {', or '.join(ranges)}",
            remedy="add the handoff of that part of the run to `handoff`",
        )

    def readings(self, part: RunPart, samples: NDArray[np.int64]) -> Iterator[Reading]:
        """Yield where samples of a handoff are read, by step.

        Args:
            part: The handoff.
            samples: Numbers in its train split, int64, shape (n_samples,).
        """
        for step in self._steps_that_may_read(part, samples):
            try:
                step_samples = self.samples(step)
            except SampleIndexError:
                continue  # the data ends within this step, so that it is not trained on
            if step_samples.part is not part:
                continue
            for row in np.flatnonzero(np.isin(step_samples.samples, samples)).tolist():
                yield Reading(
                    step=step,
                    skipped=self.spec.is_skipped(step),
                    rank=int(step_samples.ranks[row]),
                    micro_batch=int(step_samples.micro_batches[row]),
                    sample=int(step_samples.samples[row]),
                )

    def _steps_that_may_read(self, part: RunPart, samples: NDArray[np.int64]) -> Iterable[int]:
        """Return the steps that may read samples of a handoff, ascending."""
        with _naming(self.file):
            # (n_samples,) in the run
            positions = part.dealer.positions(np.unique(samples)) + part.base

        # If samples are dealt one by one, a resume deals the samples of an incomplete round again,
        # which delays all later ones.
        delays = {0}
        if part.dealer.kind == "interleaved":
            for stretch in self.steps.stretches:
                delays.add(max(stretch.resumed - part.base, 0) % stretch.ranks)
        delayed = positions[:, None] + sorted(delays)  # (n_samples, n_delays)
        steps: list[int] = np.unique(self.steps.of(delayed.ravel())).tolist()
        return steps


def explain_step(
    project_or_root: Project | str | os.PathLike[str],
    run: Run | Path,
    step: int,
    rank: int | None = None,
    most: int | None = None,
) -> StepOrigin:
    """Return the samples that a step of a run read, with the documents in them; raw text is not
    read again.

    Args:
        project_or_root: A project, or its output root alone; then nothing is decoded.
        run: The run, or its run.yaml.
        step: Number of the step, from 1, as trainers log it.
        rank: Only the samples of this data-parallel rank; None is all ranks.
        most: Samples to look up; None is all.

    Raises:
        MissingError: As `Run.open`.
        ConfigError: As `Run.open`; or there is no such rank.
        SampleIndexError: No handoff of the run has the samples of the step.
    """
    context = replace(InspectionContext.of(project_or_root), config=None)
    if not isinstance(run, Run):
        run = Run.open(context.outputs, run)
    step_samples = run.samples(step)
    part = step_samples.part
    stretch = step_samples.step

    rows = np.arange(stretch.batch)
    if rank is not None:
        if not 0 <= rank < stretch.ranks:
            raise ConfigError(
                "no such data-parallel rank",
                where=f"{run.file}: step {step:,}",
                found=rank,
                expected=f"0 to {stretch.ranks - 1}",
                remedy="name one that the step has",
            )
        rows = np.flatnonzero(step_samples.ranks == rank)
    rows = rows[:most]

    samples: list[StepSample] = []
    origins = explain_samples(
        context, part.loaded, part.name, TRAIN, step_samples.samples[rows].tolist()
    )
    for row, origin in zip(rows.tolist(), origins, strict=True):
        samples.append(
            StepSample(
                **_fields(origin),
                rank=int(step_samples.ranks[row]),
                micro_batch=int(step_samples.micro_batches[row]),
            )
        )
    return StepOrigin(
        step=step,
        skipped=run.spec.is_skipped(step),
        handoff=part.manifest.url(),
        consumed_samples=stretch.sample,
        batch_size=stretch.batch,
        data_parallel_size=stretch.ranks,
        micro_batch_size=stretch.micro_batch,
        samples=tuple(samples),
    )


def explain_steps(
    project_or_root: Project | str | os.PathLike[str],
    run_file: Path,
    steps: Sequence[int],
    rank: int | None = None,
    most: int | None = None,
) -> list[StepOrigin]:
    """Return the samples that several steps of a run read, as `explain_step` does for each;
    `run_file` is read once.
    """
    run = Run.open(InspectionContext.of(project_or_root).outputs, run_file)
    return [explain_step(project_or_root, run, step, rank, most) for step in steps]


def find_steps(
    project_or_root: Project | str | os.PathLike[str], run_file: Path, **document: Any
) -> list[DocumentSteps]:
    """Return where the handoffs of a run hold a document, and the steps that read it.

    Args:
        project_or_root: A project, or its output root alone.
        run_file: The run.yaml.
        document: Fields of `DocumentName`.

    Raises:
        MissingError: As `Run.open`; or no handoff holds the document.
        ConfigError: As `Run.open` and `find_document`.
    """
    context = InspectionContext.of(project_or_root)
    run = Run.open(context.outputs, run_file)
    documents: list[DocumentSteps] = []
    errors: list[MissingError] = []
    for part in run.parts:
        try:
            split = Split.of(context, part.name, TRAIN, part.loaded)
            places = find_in(context, split, part.name, DocumentName(**document))
        except MissingError as error:
            errors.append(error)
            continue
        for place in places:
            samples = np.array([appearance.sample for appearance in place.appearances], np.int64)
            steps = tuple(run.readings(part, samples))
            documents.append(
                DocumentSteps(**_fields(place), handoff=part.manifest.url(), steps=steps)
            )
    if not documents:
        raise errors[0]
    return documents


def _fields(value: SampleOrigin | DocumentPlaces) -> dict[str, Any]:
    """Return the fields of a dataclass, to make one that has more."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


@contextmanager
def _naming(file: object) -> Iterator[None]:
    """Put the name of a file in front of the place that errors name."""
    try:
        yield
    except (ConfigError, SampleIndexError) as error:
        raise error.at(f"{file}: {error.where}") from error


def _open_part(outputs: OutputRoot, spec: RunSpec, handoff: str) -> RunPart:
    """Open a handoff of a run.

    Args:
        outputs: The outputs that contain it.
        spec: The settings of the run.
        handoff: Folder of the handoff; only the part below the output root counts.

    Raises:
        MissingError: The handoff, or its train split, is missing.
        ConfigError: This is not the folder of a handoff, or it is one that the settings cannot be
            of.
    """
    folder = HANDOFF_FOLDER.fullmatch(handoff)
    if folder is None:
        raise ConfigError(
            "not the folder of a handoff",
            where="handoff",
            found=handoff,
            expected=f"…/{STAGE}/NAME/{HANDOFF}/current, or a digest in its place",
            remedy="name the handoff of the run",
        )
    name, version = folder.groups()
    if version == "current":
        version = _current_handoff(outputs, name).digest

    versions = versions_before(outputs, name, version)
    manifest = versions[HANDOFF]
    loaded = open_version(outputs, versions[TRAIN])
    config = loaded.config
    dealer = Dealer.of(config.preset, spec.dataloader_type, len(loaded), config.random_seed)
    options = manifest.recipe["options"]
    phase = options.get("span")
    if phase is None:
        return RunPart(manifest, loaded, dealer, base=0, begin=config.consumed_samples, end=None)

    # In phases Megatron-LM takes --global-batch-size for that of every iteration, and counts
    # samples of the phase.
    batch_size = options["schedule"][1]
    batch_sizes = {spec.global_batch_size or 0}
    for resume in spec.resumes:
        batch_sizes.add(resume.global_batch_size or batch_size)
    has_other_sizes = spec.rampup_batch_size is not None or spec.decrease_batch_size_if_needed
    if batch_sizes != {batch_size} or has_other_sizes:
        raise ConfigError(
            "in phases the batch size must stay what the schedule says",
            where="global_batch_size",
            found=sorted(batch_sizes),
            expected=f"global_batch_size: {batch_size} alone",
            remedy="correct run.yaml",
        )
    first_step, stop_step = phase
    first_sample = first_step * batch_size
    return RunPart(
        manifest, loaded, dealer, base=first_sample, begin=first_sample, end=stop_step * batch_size
    )


def _current_handoff(outputs: OutputRoot, name: str) -> Manifest:
    """Return the current handoff of a nanoset; the MissingError that says there is none lists the
    nanosets.
    """
    try:
        return outputs.require(
            STAGE, f"{name}/{HANDOFF}", remedy="correct its name, or run `nanoset build`"
        )
    except MissingError as error:
        nanosets = sorted(outputs.access.names(outputs.folder / STAGE))
        remedy = f"{error.remedy}; nanosets that are there: {', '.join(nanosets) or 'none'}"
        raise error.at(error.where, remedy) from error
