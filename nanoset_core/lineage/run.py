"""Find the samples that a training step read, and the steps that read a document.

A trainer assigns the samples of a train split to steps, ranks and micro-batches by its settings:
batch sizes, number of ranks, and the steps at which the run was resumed. `run.yaml` lists these
settings, and the handoffs that the run was started with, one after another:

    handoff                      run                            step
    train split, sample 0, 1 …   sample base, base + 1, …       samples [start, start + batch_size)

`Run` computes which samples of which handoff each step read. `explain_step` then looks up the
documents in these samples, and `find_steps` searches in the other direction.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
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
from nanoset_core.loading.layout import HANDOFF, STAGE
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import open_version
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.run import RunSpec, read_run
from nanoset_core.stages.handoff.steps import Dealer, Steps, TrainingStep
from nanoset_core.stages.mappings.run_before import HANDOFF_FOLDER, handoff_and_splits

TRAIN = SPLITS[0]
"""The split that training reads."""


@dataclass(frozen=True, slots=True)
class StepSample(SampleOrigin):
    """One sample of a step, with the rank that read it."""

    rank: int
    """Data-parallel rank, from 0."""
    micro_batch: int
    """Number of the micro-batch among those of the rank in this step, from 0."""


@dataclass(frozen=True, slots=True)
class StepOrigin:
    """The samples that a step of a run read, and the documents in them."""

    step: int
    """Number of the step, from 1, as trainers log it."""
    skipped: bool
    """Whether its samples were consumed without training on them."""
    handoff: str
    """Folder or URL of the handoff that has these samples."""
    consumed_samples: int
    """How many samples the run had read before."""
    batch_size: int
    """How many samples the step read."""
    data_parallel_size: int
    """How many data-parallel ranks the step had."""
    micro_batch_size: int
    """How many samples a rank reads at once."""
    samples: tuple[StepSample, ...]
    """The samples, ordered by rank and micro-batch."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample that contains a document, and the step that reads it."""

    step: int
    """Number of the step, from 1."""
    skipped: bool
    """Whether the step's samples were consumed without training on them."""
    rank: int
    """Data-parallel rank, from 0."""
    micro_batch: int
    """Number of the micro-batch among those of the rank in this step, from 0."""
    sample: int
    """Number in the train split of the handoff's nanoset."""


@dataclass(frozen=True, slots=True)
class DocumentSteps(DocumentPlaces):
    """The samples of a handoff that contain a document, and the steps that read them."""

    handoff: str
    """Folder or URL of the handoff."""
    steps: tuple[Reading, ...]
    """The readings, ordered by step; none if the data ends before a step that would read it."""


class RunHandoff(NamedTuple):
    """A handoff, and the range of a run's samples that were read from it."""

    manifest: Manifest
    """Manifest of the handoff."""
    loaded: Nanoset | BlendedNanoset
    """Its train split, in the version that the run was started with."""
    dealer: Dealer
    """Assigns its samples to ranks."""
    split_start: int
    """Number in the run of the train split's sample 0."""
    start: int
    """Number in the run of the first sample that was read from it."""
    stop: int | None
    """Number in the run after the last sample that was read from it; None for the last handoff,
    which is read until its data ends.
    """

    @property
    def name(self) -> str:
        """Name of the nanoset."""
        return self.manifest.name.removesuffix(f"/{HANDOFF}")


class StepSamples(NamedTuple):
    """The samples of a step, ordered by rank and micro-batch."""

    step: TrainingStep
    """The step."""
    handoff: RunHandoff
    """The handoff that has the samples."""
    samples: NDArray[np.int64]
    """Number of each sample in the train split, shape (batch_size,)."""
    ranks: NDArray[np.int64]
    """Data-parallel rank that reads each sample, shape (batch_size,)."""
    micro_batches: NDArray[np.int64]
    """Micro-batch of the rank in which each sample is, shape (batch_size,)."""


class Run:
    """A training run, with the handoffs that it was started with."""

    def __init__(self, spec: RunSpec, handoffs: Sequence[RunHandoff], file: object) -> None:
        """Describe a run, and check that its handoffs follow one another.

        Args:
            spec: The settings of the run.
            handoffs: The handoffs, in the order in which the run read them.
            file: The run.yaml that names them, for messages.

        Raises:
            ConfigError: A handoff does not begin at a step of the run, or not after the one before.
        """
        self.spec = spec
        self.handoffs = tuple(handoffs)
        self.file = file
        with _naming(file):
            self.steps = Steps(spec)
        self._check_begins()

    def _check_begins(self) -> None:
        """Check that each handoff begins after the one before it, and where a step begins.

        Raises:
            ConfigError: A handoff does not.
        """
        previous_first_sample = -1
        for number, handoff in enumerate(self.handoffs):
            first_sample = handoff.start
            # The first sample of the step that reads the handoff's first sample.
            [step] = self.steps.that_read(np.array([first_sample]))
            first_sample_of_step = self.steps.step(int(step)).first_sample

            expected = None
            if first_sample <= previous_first_sample:
                expected = f"one after sample {previous_first_sample:,}"
            elif first_sample != first_sample_of_step:
                expected = f"sample {first_sample_of_step:,}"
            if expected is not None:
                raise ConfigError(
                    "a handoff does not begin where a step of the run does",
                    where=f"{self.file}: handoff[{number}]",
                    found=f"sample {first_sample:,}",
                    expected=expected,
                    remedy="name the handoffs in the order of the run, and the batch sizes that "
                    "it had",
                )
            previous_first_sample = first_sample

    @staticmethod
    def open(outputs: OutputRoot, file: Path) -> Run:
        """Read a run.yaml, and open the train splits of the handoffs that it lists.

        A *handoff* is a folder of files with which a trainer was started. A run that was continued
        with other data has several, one after another.

        Args:
            outputs: The outputs that contain the handoffs.
            file: The run.yaml.

        Raises:
            MissingError: A file, or a version of an output, is missing.
            ConfigError: There are mistakes in run.yaml.
        """
        spec = read_run(file)
        # `_naming` adds the path of run.yaml to errors.
        with _naming(file):
            handoffs = [_open_handoff(outputs, spec, folder) for folder in spec.handoffs]

        # A handoff for certain steps of the run already has a `stop`. Another one was read until
        # the next handoff began.
        for number in range(len(handoffs) - 1):
            if handoffs[number].stop is None:
                next_start = handoffs[number + 1].start
                handoffs[number] = handoffs[number]._replace(stop=next_start)
        # The last handoff may keep None: the run reads it until its data ends.
        return Run(spec, handoffs, file)

    @staticmethod
    def imagined(outputs: OutputRoot, manifest: Manifest, size: int) -> Run:
        """Return a run that reads one handoff from its start, on one rank, without being resumed.

        A *handoff* is the folder of files with which a trainer is started. The settings of the real
        run are unknown, so this one serves as an example of the steps that a trainer would make.

        Args:
            outputs: The outputs that contain the handoff.
            manifest: Manifest of the handoff.
            size: How many samples a step reads. If the handoff has a schedule, the batch size of
                the schedule is used instead.

        Raises:
            MissingError: The handoff's train split was deleted.
            ConfigError: The size is not a possible batch size.
        """
        batch_size = size
        schedule = manifest.recipe["options"].get("schedule")  # [number of steps, batch size, …]
        if schedule:
            batch_size = schedule[1]
        spec = RunSpec(
            handoff=manifest.folder.as_posix(),
            data_parallel_size=1,
            micro_batch_size=1,
            global_batch_size=batch_size,
        )
        handoff = _open_handoff(outputs, spec, spec.handoffs[0])

        # A handoff may continue an earlier one: its first sample may be sample 1,000 of the real
        # run. The imagined run reads nothing before, so this sample becomes its sample 0.
        samples_before = handoff.start
        handoff = handoff._replace(
            split_start=handoff.split_start - samples_before,
            start=0,
            stop=None,  # read until the data ends
        )
        return Run(spec, [handoff], manifest.url())

    def samples(self, step: int) -> StepSamples:
        """Return the samples of a step, and the ranks that read them.

        Args:
            step: Number of the step, from 1.

        Raises:
            SampleIndexError: No handoff of the run has them.
        """
        # The samples that the step reads, counted from the start of the run.
        step_settings = self.steps.step(step)
        first_sample = step_settings.first_sample
        stop_sample = first_sample + step_settings.batch_size

        # Find the handoff that has them. Its dealer says which rank reads which sample.
        for handoff in self.handoffs:
            begins_before = handoff.start <= first_sample
            ends_after = handoff.stop is None or stop_sample <= handoff.stop
            if begins_before and ends_after:
                with _naming(self.file):  # errors name the run.yaml
                    dealt = handoff.dealer.deal(step_settings, handoff.split_start)
                # Sort by rank, and the samples of a rank by micro-batch. `lexsort` takes the main
                # key last.
                order = np.lexsort((dealt.micro_batches, dealt.ranks))
                return StepSamples(
                    step=step_settings,
                    handoff=handoff,
                    samples=dealt.samples[order],
                    ranks=dealt.ranks[order],
                    micro_batches=dealt.micro_batches[order],
                )

        # No handoff has them: say which samples the handoffs have.
        ranges: list[str] = []
        for handoff in self.handoffs:
            last_sample = "…" if handoff.stop is None else f"{handoff.stop - 1:,}"
            ranges.append(f"{handoff.start:,} to {last_sample}")
        raise SampleIndexError(
            "no handoff of the run has the samples of this step",
            where=f"{self.file}: step {step:,}",
            found=f"samples {first_sample:,} to {stop_sample - 1:,}",
            expected=f"samples {', or '.join(ranges)}",
            remedy="add the handoff of that part of the run to `handoff`",
        )

    def readings(self, handoff: RunHandoff, samples: NDArray[np.int64]) -> Iterator[Reading]:
        """Yield the steps that read some samples of a handoff, in order.

        Args:
            handoff: The handoff.
            samples: Numbers in its train split, int64, shape (n_samples,).
        """
        for step in self._steps_that_may_read(handoff, samples):
            try:
                step_samples = self.samples(step)
            except SampleIndexError:
                # The data ends within this step, so that the trainer does not train on it.
                continue
            # The step may belong to another handoff.
            if step_samples.handoff is not handoff:
                continue
            for row in np.flatnonzero(np.isin(step_samples.samples, samples)).tolist():
                yield Reading(
                    step=step,
                    skipped=self.spec.is_skipped(step),
                    rank=int(step_samples.ranks[row]),
                    micro_batch=int(step_samples.micro_batches[row]),
                    sample=int(step_samples.samples[row]),
                )

    def _steps_that_may_read(
        self, handoff: RunHandoff, samples: NDArray[np.int64]
    ) -> Iterable[int]:
        """Return the steps that may read some samples of a handoff, ascending.

        They include all steps that do read them, and a few more. `Run.samples` returns what each of
        them reads.

        Args:
            handoff: The files with which a trainer was started.
            samples: Numbers of samples in its train split, int64, shape (n_samples,).
        """
        # (n_samples,) at which position a run that is never resumed reads each sample: how many
        # samples it has read before
        with _naming(self.file):  # errors name the run.yaml
            positions_in_split = handoff.dealer.positions(np.unique(samples))
        positions = positions_in_split + handoff.split_start

        # A resumed run may read each sample some positions later. This happens if the loader deals
        # samples to the ranks one by one: it starts again with a whole round of ranks. For example,
        # a run of 4 ranks that is resumed after 10 samples reads samples 8 and 9 again, so that
        # sample 10 is at position 12. The next resume counts all positions that were read, so its
        # delay replaces this one, and delays do not add up.
        delays = {0}
        if handoff.dealer.kind == "interleaved":
            for stretch in self.steps.stretches:
                n_read_before_start = max(stretch.consumed_at_start - handoff.split_start, 0)
                delays.add(n_read_before_start % stretch.n_ranks)

        # Try every delay for every sample, since it is not known which one applies.
        possible_positions = positions[:, None] + sorted(delays)  # (n_samples, n_delays)
        steps = np.unique(self.steps.that_read(possible_positions.ravel()))
        step_numbers: list[int] = steps.tolist()
        return step_numbers


def explain_step(
    project_or_root: Project | str | os.PathLike[str],
    run: Run | Path,
    step: int,
    rank: int | None = None,
    most: int | None = None,
) -> StepOrigin:
    """Return the samples that a step of a run read, and the documents in them.

    Raw text is not read again, because a step has many samples.

    Args:
        project_or_root: A project; or its output root alone, without whose settings no tokens are
            decoded.
        run: The run, or its run.yaml.
        step: Number of the step, from 1, as trainers log it.
        rank: Return only the samples of this data-parallel rank; None for all ranks.
        most: How many samples to look up; None for all.

    Raises:
        MissingError: A file, or a version of an output, is missing.
        ConfigError: There are mistakes in run.yaml, or there is no such rank.
        SampleIndexError: No handoff of the run has the samples of the step.
    """
    # Without the project's settings, no raw text is read.
    context = replace(InspectionContext.of(project_or_root), config=None)
    if not isinstance(run, Run):
        run = Run.open(context.outputs, run)

    # The samples of the step, and which of them the rank reads.
    step_samples = run.samples(step)
    handoff = step_samples.handoff
    training_step = step_samples.step
    rows = _rows_of_rank(step_samples, rank, f"{run.file}: step {step:,}")[:most]

    # The documents in these samples.
    samples: list[StepSample] = []
    numbers = step_samples.samples[rows].tolist()
    origins = explain_samples(context, handoff.loaded, handoff.name, TRAIN, numbers)
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
        handoff=handoff.manifest.url(),
        consumed_samples=training_step.first_sample,
        batch_size=training_step.batch_size,
        data_parallel_size=training_step.n_ranks,
        micro_batch_size=training_step.micro_batch_size,
        samples=tuple(samples),
    )


def _rows_of_rank(step_samples: StepSamples, rank: int | None, where: str) -> NDArray[np.int64]:
    """Return which of a step's samples a rank reads.

    Args:
        step_samples: The samples of the step.
        rank: Number of the data-parallel rank; None for all ranks.
        where: The step, for errors.

    Returns:
        Positions among the samples of the step, shape (n_rows,).

    Raises:
        ConfigError: There is no such rank.
    """
    # The number of ranks may change during a run: these are the numbers of this step.
    n_samples = step_samples.step.batch_size
    n_ranks = step_samples.step.n_ranks
    if rank is None:
        return np.arange(n_samples)
    if not 0 <= rank < n_ranks:
        raise ConfigError(
            "no such data-parallel rank",
            where=where,
            found=rank,
            expected=f"0 to {n_ranks - 1}",
            remedy="name one that the step has",
        )
    return np.flatnonzero(step_samples.ranks == rank)


def explain_steps(
    project_or_root: Project | str | os.PathLike[str],
    run_file: Path,
    steps: Sequence[int],
    rank: int | None = None,
    most: int | None = None,
) -> list[StepOrigin]:
    """Return the samples that several steps of a run read, and the documents in them.

    The run.yaml, and the handoffs that it names, are opened once.

    Args:
        project_or_root: A project, or its output root alone.
        run_file: The run.yaml.
        steps: Numbers of the steps, from 1, as trainers log them.
        rank: Return only the samples of this data-parallel rank; None for all ranks.
        most: How many samples of each step to look up; None for all.

    Returns:
        The steps, in the order of `steps`.

    Raises:
        MissingError: A file, or a version of an output, is missing.
        ConfigError: There are mistakes in run.yaml, or a step has no such rank.
        SampleIndexError: No handoff of the run has the samples of a step.
    """
    run = Run.open(InspectionContext.of(project_or_root).outputs, run_file)
    return [explain_step(project_or_root, run, step, rank, most) for step in steps]


def find_steps(
    project_or_root: Project | str | os.PathLike[str], run_file: Path, **document: Any
) -> list[DocumentSteps]:
    """Return the steps of a run that read a document, for each handoff that contains it.

    A *handoff* is a folder of files with which a trainer was started. A run has several if it was
    continued with other data.

    Args:
        project_or_root: A project, or its output root alone.
        run_file: The run.yaml.
        document: Names the document by the fields of `DocumentName`, such as `identity="a1"`, or
            `file="web/a.jsonl", line=5`.

    Raises:
        MissingError: A file, or a version of an output, is missing; or no handoff contains the
            document.
        ConfigError: There are mistakes in run.yaml, or the document is not named in exactly one
            way.
    """
    context = InspectionContext.of(project_or_root)
    run = Run.open(context.outputs, run_file)

    # Search the train split of each handoff. It is no error if only some contain the document.
    documents: list[DocumentSteps] = []
    errors: list[MissingError] = []
    for handoff in run.handoffs:
        try:
            split = Split.of(context, handoff.name, TRAIN, handoff.loaded)
            places = find_in(context, split, handoff.name, DocumentName(**document))
        except MissingError as error:
            errors.append(error)
            continue

        # For each document with this name: the samples that contain it, and the steps that read
        # one of these samples.
        for place in places:
            samples = np.array([appearance.sample for appearance in place.appearances], np.int64)
            readings = run.readings(handoff, samples)
            documents.append(
                DocumentSteps(
                    **_fields(place),
                    handoff=handoff.manifest.url(),
                    steps=tuple(readings),
                )
            )

    # A run has at least one handoff. If the search failed in all of them, report the first failure.
    if not documents:
        raise errors[0]
    return documents


def _fields(value: SampleOrigin | DocumentPlaces) -> dict[str, Any]:
    """Return the fields of a record, by which a record of a derived class can be made from it."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


@contextmanager
def _naming(file: object) -> Iterator[None]:
    """Let errors that the block raises name a file, in front of the place in it.

    Args:
        file: The file, usually a run.yaml.
    """
    try:
        yield
    except (ConfigError, SampleIndexError) as error:
        raise error.at(f"{file}: {error.where}") from error


def _open_handoff(outputs: OutputRoot, spec: RunSpec, handoff: str) -> RunHandoff:
    """Open a handoff of a run, and find out which samples of the run were read from it.

    Args:
        outputs: The outputs that contain it.
        spec: The settings of the run.
        handoff: Folder of the handoff. The part above the output root is ignored, because the run
            may have seen the root under another path.

    Raises:
        MissingError: The handoff, or its train split, is missing.
        ConfigError: This is not the folder of a handoff, or the settings contradict its schedule.
    """
    # The end of the path names a nanoset and a version of its handoff.
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

    # Open the train split that the handoff was made for.
    versions = handoff_and_splits(outputs, name, version)
    manifest = versions[HANDOFF]
    loaded = open_version(outputs, versions[TRAIN])
    config = loaded.config
    dealer = Dealer.of(config.preset, spec.dataloader_type, len(loaded), config.random_seed)

    # Without phases, the split has all samples of the run, from the run's first sample on.
    options = manifest.recipe["options"]
    phase = options.get("span")
    if phase is None:
        return RunHandoff(
            manifest, loaded, dealer, split_start=0, start=config.consumed_samples, stop=None
        )

    # A phase trains on the steps [first_step, stop_step), and its split has the samples of these.
    _, batch_size, *_ = options["schedule"]  # number of steps, samples of a step, …
    _check_phase_batch_size(spec, batch_size)
    first_step, stop_step = phase
    first_sample = first_step * batch_size
    stop_sample = stop_step * batch_size
    return RunHandoff(
        manifest, loaded, dealer, split_start=first_sample, start=first_sample, stop=stop_sample
    )


def _check_phase_batch_size(spec: RunSpec, batch_size: int) -> None:
    """Check that every step of a run in phases read as many samples as its schedule says.

    With phases, Megatron-LM assumes that every iteration reads `--global-batch-size` samples.

    Args:
        spec: The settings of the run.
        batch_size: Samples of a step according to the schedule of the handoff.

    Raises:
        ConfigError: The run was started, or resumed, with another batch size or without a fixed
            one; or a setting makes the batch size of some steps smaller.
    """
    problems: list[str] = []
    # A run without this setting has a schedule of batch sizes instead.
    if spec.global_batch_size is None:
        problems.append("no global_batch_size")
    elif spec.global_batch_size != batch_size:
        problems.append(f"global_batch_size: {spec.global_batch_size}")

    # A resume without this setting keeps the batch size that the run had.
    for number, resume in enumerate(spec.resumes):
        if resume.global_batch_size not in (None, batch_size):
            problems.append(f"resumes[{number}].global_batch_size: {resume.global_batch_size}")

    # These settings make the batches of some steps smaller than global_batch_size.
    if spec.rampup_batch_size is not None:
        problems.append(f"rampup_batch_size: {list(spec.rampup_batch_size)}")
    if spec.decrease_batch_size_if_needed:
        problems.append("decrease_batch_size_if_needed: true")

    if problems:
        raise ConfigError(
            "in phases the batch size must stay what the schedule says",
            where="global_batch_size",
            found=", ".join(problems),
            expected=f"global_batch_size: {batch_size} alone",
            remedy="correct run.yaml",
        )


def _current_handoff(outputs: OutputRoot, name: str) -> Manifest:
    """Return the manifest of the current handoff of a nanoset.

    Args:
        outputs: The outputs that contain it.
        name: Name of the nanoset.

    Raises:
        MissingError: There is none. The error lists the nanosets that have one.
    """
    try:
        return outputs.require(
            STAGE, f"{name}/{HANDOFF}", remedy="correct its name, or run `nanoset build`"
        )
    except MissingError as error:
        nanosets = sorted(outputs.access.names(outputs.folder / STAGE))
        available = ", ".join(nanosets) or "none"
        remedy = f"{error.remedy}; available nanosets: {available}"
        raise error.at(error.where, remedy) from error
