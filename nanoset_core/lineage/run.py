"""Find the samples that a training step read, and the steps that read a document.

A trainer assigns the samples of a train split to steps, ranks and micro-batches by its settings:
batch sizes, number of ranks, and the steps at which the run was resumed. `run.yaml` lists these
settings, and the *handoffs*: folders with the files that the trainer was started or continued with.

`Run` computes which samples of which handoff each step read. `explain_step` then looks up the
documents in these samples, and `find_steps` searches in the other direction. For example, a run
reads 8 samples a step and was continued with a second handoff at sample 16. Then

    step    samples of the run    samples of the train split
       2               8 to 15    8 to 15 of the first handoff
       3              16 to 23    0 to 7 of the second one, if it is for a phase of the run
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from nanoset_core.loading.layout import HANDOFF, NANOSETS_FOLDER
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import open_version
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.run import RunSpec, read_run
from nanoset_core.stages.handoff.steps import Dealer, Steps, TrainingStep
from nanoset_core.stages.mappings.run_before import HANDOFF_FOLDER, handoff_and_splits
from nanoset_core.stages.mappings.settings import recorded_batch_size
from nanoset_core.wording import format_count

TRAIN = SPLITS[0]
"""The split that training reads."""
MAX_STEP = 10**12 - 1
"""The largest number that is accepted as a training step, as by `--step` of `nanoset explain`."""


@dataclass(frozen=True, slots=True)
class StepSample(SampleOrigin):
    """One sample of a step, with the rank that read it."""

    rank: int
    """Data-parallel rank, from 0."""
    micro_batch: int
    """Number of the micro-batch among those of the rank in this step, from 0."""

    @staticmethod
    def of(origin: SampleOrigin, rank: int, micro_batch: int) -> StepSample:
        """Add to the description of a sample which process has read it, and in which micro-batch.

        Args:
            origin: The description: where the tokens of the sample come from.
            rank: Number of the process (data-parallel rank).
            micro_batch: Number of the micro-batch.
        """
        return StepSample(
            name=origin.name,
            split=origin.split,
            sample=origin.sample,
            corpus=origin.corpus,
            corpus_sample=origin.corpus_sample,
            tokens=origin.tokens,
            pad_tokens=origin.pad_tokens,
            pieces=origin.pieces,
            rank=rank,
            micro_batch=micro_batch,
        )


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
    """A handoff, which is a trainer's files, and the range of a run's samples read from it."""

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
    """Number in the run after the last sample that was read from it; None if it is read until its
    data ends.
    """

    @property
    def name(self) -> str:
        """Name of the nanoset."""
        return self.manifest.name.removesuffix(f"/{HANDOFF}")

    @property
    def sample_range(self) -> str:
        """The samples of the run that were read from it, such as `100 to 199`, for messages."""
        last_sample = "…" if self.stop is None else f"{self.stop - 1:,}"
        return f"{self.start:,} to {last_sample}"

    @property
    def data_stop(self) -> int:
        """Number in the run after the last sample that the train split has."""
        return self.split_start + self.dealer.total

    def has_all_samples_of(self, step: TrainingStep) -> bool:
        """Return whether all samples of a training step were read from this handoff.

        Args:
            step: The step. Its samples are numbered from the start of the run, as `start` is.
        """
        if step.first_sample < self.start:
            return False
        return self.stop is None or step.first_sample + step.batch_size <= self.stop

    def starting_the_run(self) -> RunHandoff:
        """Return this handoff as the first and only one of a run: its first sample is sample 0."""
        split_start = self.split_start - self.start
        return self._replace(split_start=split_start, start=0, stop=None)


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

    def __init__(
        self,
        spec: RunSpec,
        handoffs: Sequence[RunHandoff],
        file: object,
        last_step: int = MAX_STEP,
    ) -> None:
        """Describe a run, and check that its handoffs, the trainer's files, follow one another.

        Args:
            spec: The settings of the run.
            handoffs: The handoffs, in the order in which the run read them.
            file: The run.yaml that names them, for messages.
            last_step: The last step that the run may have.

        Raises:
            ConfigError: A handoff does not begin at a step of the run, or not after the one before.
        """
        self.spec = spec
        self.handoffs = tuple(handoffs)
        self.file = file
        self.last_step = last_step
        with _naming_in_errors(file):
            self.steps = Steps(spec)
        self._check_begins()

    def _check_begins(self) -> None:
        """Check that each part of a training run begins with a step, and after the part before it.

        A run that was continued with other data consists of several parts. Each was started with
        its own folder of files, a handoff, which says from which sample of the run on it is used.
        With 8 samples a step, a step begins with the samples 0, 8, 16 and so on. So the parts may
        begin with these samples:

            0, 4,800      correct
            0, 4,803      wrong: step 601 has the samples 4,800 to 4,807
            0, 0          wrong: the second part begins where the first one does

        A wrong one means that run.yaml, which describes the run, has a mistake.

        Raises:
            ConfigError: One does not begin after the one before it, or begins in the middle of a
                step.
        """
        previous_start = -1
        for number, handoff in enumerate(self.handoffs):
            # First sample of the step to which the first sample of the part belongs: 4,800
            step_start = self._start_of_step_with(handoff.start)
            if handoff.start <= previous_start:
                raise self._wrong_start_error(number, f"one after sample {previous_start:,}")
            if handoff.start != step_start:
                raise self._wrong_start_error(number, f"sample {step_start:,}")
            previous_start = handoff.start

    def _start_of_step_with(self, sample: int) -> int:
        """Return the first sample of the step that reads a sample of the run.

        Args:
            sample: Number of the sample in the run.
        """
        steps = self.steps.that_read(np.array([sample]))  # (1,) number of the step
        return self.steps.step(int(steps[0])).first_sample

    def _wrong_start_error(self, number: int, expected: str) -> ConfigError:
        """Return the error that a part of the run begins in the middle of a training step.

        Args:
            number: Position of the data (a handoff) in the list of run.yaml.
            expected: The sample at which they should begin.
        """
        return ConfigError(
            "a handoff does not begin where a step of the run does",
            where=f"{self.file}: handoff[{number}]",
            found=f"sample {self.handoffs[number].start:,}",
            expected=expected,
            remedy="name the handoffs in the order of the run, and the batch sizes that it had",
        )

    @staticmethod
    def open(outputs: OutputRoot, file: Path) -> Run:
        """Read the description of a training run, and open the data that the run has read.

        Args:
            outputs: The outputs that contain the data.
            file: The run.yaml. It names the folders with which the trainer was started: a *handoff*
                for the start of the run, and one for each time that it continued with other data.

        Raises:
            MissingError: A file, or a version of an output, is missing.
            ConfigError: There are mistakes in run.yaml.
        """
        spec = read_run(file)
        with _naming_in_errors(file):
            handoffs = [_open_handoff(outputs, spec, folder) for folder in spec.handoffs]
        # The run has read the data of a handoff until it continued with the next one.
        return Run(spec, _with_stops(handoffs), file)

    @staticmethod
    def example(outputs: OutputRoot, manifest: Manifest, default_batch_size: int) -> Run:
        """Imagine a training run that reads some data, for a preview before any run exists.

        The imagined run has one process, and a fixed batch size. So it is known which samples each
        step reads: with 8 samples a step, step 1 reads the samples 0 to 7. If the data are for a
        later part of a run, and begin with sample 4,800 of that run, this is sample 0 here.

        Args:
            outputs: The outputs that contain the data.
            manifest: Describes the *handoff*: the folder with which the trainer will be started.
            default_batch_size: How many samples a step reads, if the handoff does not say so. It
                does if it was made for a certain number of steps.

        Raises:
            MissingError: The train split of the data was deleted.
            ConfigError: The size is not a possible batch size.
        """
        batch_size = _scheduled_batch_size(manifest) or default_batch_size
        handoff_path = manifest.folder.as_posix()
        spec = RunSpec(  # what a user would write into the run.yaml
            handoff=handoff_path,
            data_parallel_size=1,
            micro_batch_size=1,
            global_batch_size=batch_size,
        )
        handoff = _open_handoff(outputs, spec, handoff_path).starting_the_run()
        last_step = handoff.data_stop // batch_size
        return Run(spec, [handoff], manifest.url(), last_step)

    def samples(self, step: int) -> StepSamples:
        """Return which samples a training step reads, and which process (rank) reads each of them.

        For example, a step of 8 samples on 2 ranks, which read 2 samples at a time (a micro-batch):

            rank           0   0   0   0   1   1   1   1
            micro-batch    0   0   1   1   0   0   1   1
            sample         40  41  44  45  42  43  46  47

        Args:
            step: Number of the step, from 1.

        Returns:
            The rows of this table.

        Raises:
            SampleIndexError: The run has no such step, or its data do not have these samples.
        """
        self._check_step(step)
        training_step = self.steps.step(step)
        handoff = self._handoff_of(training_step)  # the data that the step has read
        with _naming_in_errors(self.file):
            dealt = handoff.dealer.deal(training_step, handoff.split_start)

        # Sort by rank, and the samples of a rank by micro-batch. `lexsort` takes the main key last.
        order = np.lexsort((dealt.micro_batches, dealt.ranks))
        return StepSamples(
            step=training_step,
            handoff=handoff,
            samples=dealt.samples[order],
            ranks=dealt.ranks[order],
            micro_batches=dealt.micro_batches[order],
        )

    def _check_step(self, step: int) -> None:
        """Check that a number may be that of a training step of the run.

        Args:
            step: The number, such as 7.

        Raises:
            SampleIndexError: It is below 1, or above that of the last step; or the run is imagined,
                and its data are not enough for a step.
        """
        if 1 <= step <= self.last_step:
            return
        batch_size = self.spec.global_batch_size
        if self.last_step == 0:
            raise SampleIndexError(
                "train has fewer samples than one step",
                where=self.file,
                found=format_count(self.handoffs[0].data_stop, "sample"),
                expected=f"{batch_size:,} or more",
                remedy="if your run reads fewer samples a step, describe it in a run.yaml",
            )
        expected = f"1 to {self.last_step:,}"
        remedy = "correct the step"
        if self.last_step < MAX_STEP:
            # The run is imagined. Its batch size may have been chosen by `example`.
            expected += f", with {batch_size:,} samples a step"
            remedy += "; if your run reads more or fewer samples a step, describe it in a run.yaml"
        raise SampleIndexError(
            "no such step", where=self.file, found=f"{step:,}", expected=expected, remedy=remedy
        )

    def _handoff_of(self, step: TrainingStep) -> RunHandoff:
        """Return the data that a training step has read.

        A run that was continued with other data has several handoffs, the folders with which the
        trainer was started.

        Args:
            step: The step.

        Raises:
            SampleIndexError: No handoff of the run has all samples of the step.
        """
        for handoff in self.handoffs:
            if handoff.has_all_samples_of(step):
                return handoff

        # Say which samples the step needs, and which the handoffs have.
        last_sample = step.first_sample + step.batch_size - 1
        ranges = ", or ".join(handoff.sample_range for handoff in self.handoffs)
        raise SampleIndexError(
            "no handoff of the run has the samples of this step",
            where=f"{self.file}: step {step.number:,}",
            found=f"samples {step.first_sample:,} to {last_sample:,}",
            expected=f"samples {ranges}",
            remedy="correct the step; or, if the run was continued with another handoff, add it to "
            "`handoff`",
        )

    def readings(self, handoff: RunHandoff, samples: NDArray[np.int64]) -> Iterator[Reading]:
        """Yield when some samples of a training run were read: step, process and micro-batch.

        A sample may be read several times: in several epochs, or again after the run was resumed.

        Args:
            handoff: The data that the samples belong to. A run that was continued with other data
                has several handoffs, and a sample number means another sample in each.
            samples: Numbers of the samples, int64, shape (n_samples,).

        Yields:
            One reading for each step and sample, in order.
        """
        # Look up what these steps have read, since some of them may not have read the samples.
        for step in self._steps_that_may_read(handoff, samples):
            try:
                step_samples = self.samples(step)
            except SampleIndexError:
                # The data ends within this step, so that the trainer does not train on it.
                continue
            # A step that has read other data may have read other samples with the same numbers.
            has_read_other_data = step_samples.handoff is not handoff
            if has_read_other_data:
                continue
            yield from self._readings_of_step(step_samples, samples)

    def _readings_of_step(
        self, step_samples: StepSamples, samples: NDArray[np.int64]
    ) -> Iterator[Reading]:
        """Yield which rank reads each of some samples in one step, and in which micro-batch.

        For example, of the samples 42 and 99, this step reads 42: on rank 1, in micro-batch 0.

        Args:
            step_samples: All samples that the step reads.
            samples: The samples to look for, int64, shape (n_samples,).
        """
        step = step_samples.step.number
        # Rows of those samples of the step that are looked for.
        rows = np.flatnonzero(np.isin(step_samples.samples, samples)).tolist()
        for row in rows:
            yield Reading(
                step=step,
                skipped=self.spec.is_skipped(step),
                rank=int(step_samples.ranks[row]),
                micro_batch=int(step_samples.micro_batches[row]),
                sample=int(step_samples.samples[row]),
            )

    def _steps_that_may_read(self, handoff: RunHandoff, samples: NDArray[np.int64]) -> list[int]:
        """Return the training steps that may have read some samples, ascending.

        With 8 samples a step, step 6 reads the positions 40 to 47 in the order of reading. So the
        sample at position 47 is read in step 6. But when a run is resumed, some data loaders read
        the last few samples, such as 2, a second time. From then on, every sample is read 2
        positions later (the delay): this one at position 49, in step 7. It is not known whether the
        run read it before or after it was resumed. So this returns both steps, 6 and 7.

        Args:
            handoff: The data that the samples belong to: files with which the trainer was started.
                A run may read several in sequence.
            samples: Numbers of samples, int64, shape (n_samples,).

        Returns:
            Numbers of steps, from 1. Some of them may not have read any of the samples.
        """
        # Positions of the samples in the order of reading. The dealer, which knows this order,
        # counts them from the start of these data, and the steps from the start of the run.
        with _naming_in_errors(self.file):
            positions_in_handoff = handoff.dealer.positions(np.unique(samples))
        positions = handoff.split_start + positions_in_handoff  # (n_unique_samples,): [47]

        delays = self._possible_delays(handoff)  # [0, 2]
        possible_positions = positions[:, None] + delays  # (n_unique_samples, n_delays): [[47, 49]]
        steps = self.steps.that_read(possible_positions.ravel())
        steps_once: list[int] = np.unique(steps).tolist()
        return steps_once

    def _possible_delays(self, handoff: RunHandoff) -> list[int]:
        """Return by how many samples a resumed training run may be late, ascending.

        Some data loaders give one sample to each process in turn. If 4 processes have read 10
        samples, the third turn (samples 8 to 11) is half done. A resumed loader begins with a whole
        turn: it reads the samples 8 and 9 again, and from then on, everything 2 samples later.

        Args:
            handoff: The data that were read, with the kind of the loader.

        Returns:
            Such as [0, 2] in the example: no delay before the run was resumed, and 2 samples after
            it; [0] for other loaders.
        """
        if handoff.dealer.kind != "interleaved":
            return [0]

        delays = {0}
        for stretch in self.steps.stretches:  # the parts of the run, from one start to the next
            n_read_before = max(stretch.consumed_at_start - handoff.split_start, 0)  # 10
            n_in_unfinished_turn = n_read_before % stretch.n_ranks  # 10 % 4 = 2
            delays.add(n_in_unfinished_turn)
        return sorted(delays)


def explain_step(
    project_or_root: Project | str | os.PathLike[str],
    run: Run | Path,
    step: int,
    rank: int | None = None,
    most: int | None = None,
) -> StepOrigin:
    """Return the samples that a step of a training run read, and the documents in them.

    For example, when the loss jumps at step 5,120, this shows what the model has read there. Raw
    text is not read again, because a step has many samples.

    Args:
        project_or_root: A project; or its output root alone, without whose settings no tokens are
            decoded.
        run: The run, or its run.yaml, the file that describes it.
        step: Number of the step, from 1, as trainers log it.
        rank: Return only the samples of this data-parallel rank; None for all ranks.
        most: How many samples to look up; None for all.

    Returns:
        The samples, ordered by rank and micro-batch, with the settings of the step.

    Raises:
        MissingError: A file, or a version of an output, is missing.
        ConfigError: There are mistakes in run.yaml, or there is no such rank.
        SampleIndexError: No handoff of the run has the samples of the step.
    """
    # Without the project's settings, no raw text is read.
    context = replace(InspectionContext.of(project_or_root), config=None)
    if not isinstance(run, Run):
        run = Run.open(context.outputs, run)

    # Look up the documents of the requested samples, which are some rows of the step's samples.
    step_samples = run.samples(step)
    rows = _rows_of_rank(step_samples, rank, f"{run.file}: step {step:,}")[:most]
    samples = tuple(_explain_rows(context, step_samples, rows))
    return _step_origin(step_samples, samples, skipped=run.spec.is_skipped(step))


def _step_origin(
    step_samples: StepSamples, samples: tuple[StepSample, ...], *, skipped: bool
) -> StepOrigin:
    """Return the description of a training step and of some samples that it read.

    Args:
        step_samples: All samples of the step, with the settings that the trainer had.
        samples: Those that are described, with the documents in them.
        skipped: Whether the trainer read the samples without training on them.
    """
    training_step = step_samples.step
    return StepOrigin(
        step=training_step.number,
        skipped=skipped,
        handoff=step_samples.handoff.manifest.url(),
        consumed_samples=training_step.first_sample,
        batch_size=training_step.batch_size,
        data_parallel_size=training_step.n_ranks,
        micro_batch_size=training_step.micro_batch_size,
        samples=samples,
    )


def _explain_rows(
    context: InspectionContext, step_samples: StepSamples, rows: NDArray[np.int64]
) -> Iterator[StepSample]:
    """Yield some samples of a training step, with the documents in them.

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        step_samples: All samples of the step, with the process (rank) that has read each.
        rows: Which of these samples to yield, such as the first and the third: 0 2; shape
            (n_rows,).
    """
    # Look up the documents of all samples together, which is faster than one by one.
    nanoset = step_samples.handoff.loaded  # the data that the step has read
    nanoset_name = step_samples.handoff.name
    numbers = step_samples.samples[rows].tolist()  # of the samples in the train split
    origins = explain_samples(context, nanoset, nanoset_name, TRAIN, numbers)

    for row, origin in zip(rows.tolist(), origins, strict=True):
        rank = int(step_samples.ranks[row])
        micro_batch = int(step_samples.micro_batches[row])
        yield StepSample.of(origin, rank, micro_batch)


def _rows_of_rank(step_samples: StepSamples, rank: int | None, where: str) -> NDArray[np.int64]:
    """Return which of the samples of a training step a rank reads.

    A rank is a process that trains on a part of the samples. For example, of 8 samples with the
    ranks 0 0 0 0 1 1 1 1, rank 1 reads those at the positions 4 to 7.

    Args:
        step_samples: The samples of the step, and their ranks.
        rank: Number of the rank; None for all ranks.
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
    """Return what several steps of a training run have read: samples, and the documents in them.

    For example, for the steps around a jump of the loss: 5,119, 5,120 and 5,121.

    Args:
        project_or_root: A project, or its output root alone.
        run_file: The run.yaml, the file that describes the run.
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
    """Return the steps of a training run that read a document.

    Args:
        project_or_root: A project, or its output root alone.
        run_file: The run.yaml, the file that describes the run. It names one or several *handoffs*:
            folders with which the trainer was started, and continued with other data.
        document: Names the document by the fields of `DocumentName`, such as `identity="a1"`, or
            `file="web/a.jsonl", line=5`.

    Returns:
        One entry for each handoff and each document with this name, in the order of the run.

    Raises:
        MissingError: A file, or a version of an output, is missing; or no handoff contains the
            document.
        ConfigError: There are mistakes in run.yaml, or the document is not named in exactly one
            way.
    """
    context = InspectionContext.of(project_or_root)
    run = Run.open(context.outputs, run_file)

    documents: list[DocumentSteps] = []
    errors: list[MissingError] = []
    for handoff in run.handoffs:
        try:
            split = Split.of(context, handoff.name, TRAIN, handoff.loaded)
            places = find_in(context, split, handoff.name, DocumentName(**document))
        except MissingError as error:
            errors.append(error)  # it is enough if another handoff contains the document
            continue
        documents += [_steps_of_document(run, handoff, place) for place in places]

    if not documents:
        raise errors[0]
    return documents


def _steps_of_document(run: Run, handoff: RunHandoff, places: DocumentPlaces) -> DocumentSteps:
    """Add the training steps that have read a document to the samples that contain it.

    Args:
        run: The training run.
        handoff: The data that the trainer was started with, which have these samples.
        places: The samples, such as 7 and 8.
    """
    samples = np.array([appearance.sample for appearance in places.appearances], np.int64)
    return DocumentSteps(
        origin=places.origin,
        appearances=places.appearances,
        tokens_seen=places.tokens_seen,
        reason=places.reason,
        handoff=handoff.manifest.url(),
        steps=tuple(run.readings(handoff, samples)),
    )


@contextmanager
def _naming_in_errors(file: object) -> Iterator[None]:
    """Let errors that the block raises name a file, in front of the place in it.

    Args:
        file: The file, usually a run.yaml.
    """
    try:
        yield
    except (ConfigError, SampleIndexError) as error:
        raise error.at(f"{file}: {error.where}") from error


def _with_stops(handoffs: Sequence[RunHandoff]) -> list[RunHandoff]:
    """Return the data of each part of a training run, with the sample at which the part stops.

    Args:
        handoffs: The data in the order of the run. The samples of each part are read until the next
            part starts, and those of the last part until the run ends, unless its stop is known
            already.
    """
    with_stops: list[RunHandoff] = []
    for number, handoff in enumerate(handoffs):
        is_last = number == len(handoffs) - 1
        if handoff.stop is not None:
            stop: int | None = handoff.stop
        elif is_last:
            # The data may have more samples, since index files are built for whole epochs.
            stop = handoff.loaded.config.train_split_samples
        else:
            stop = handoffs[number + 1].start
        with_stops.append(handoff._replace(stop=stop))
    return with_stops


def _open_handoff(outputs: OutputRoot, spec: RunSpec, handoff: str) -> RunHandoff:
    """Open the data that a trainer was started with, and find out which samples of the run it has.

    A *handoff* is a folder of files with which a trainer is started. It says which data are read,
    and in which order. This is to look back at a run, so two questions arise:

        which data were they?       The data may have been rebuilt since. The handoff's manifest
                                    names the version, and that version is opened.
        which samples were read?    A run may have several handoffs, one after another. From this
                                    one were, for example, the samples of the run from 4,800 on.

    Args:
        outputs: The outputs that contain it.
        spec: The settings of the run.
        handoff: Folder of the handoff. The run may have seen the outputs under another path.

    Returns:
        The handoff. Its `stop` is None if its samples end where the run does, or where the next
        handoff begins; the caller knows that.

    Raises:
        MissingError: The handoff, or its train split, is missing.
        ConfigError: This is not the folder of a handoff, or the settings contradict its schedule.
    """
    # The nanoset may have been rebuilt since: open the train split that the handoff was made from.
    name, digest = _name_and_digest(outputs, handoff)
    versions = handoff_and_splits(outputs, name, digest)  # "handoff", "train" and so on → manifest
    manifest = versions[HANDOFF]
    loaded = open_version(outputs, versions[TRAIN])

    # The dealer computes when each sample is read, and by which process, as the trainer's data
    # loader does.
    config = loaded.config
    dealer = Dealer.of(config.preset, spec.dataloader_type, len(loaded), config.random_seed)
    samples_read = _samples_read_from(manifest, spec, config.consumed_samples)
    return RunHandoff(
        manifest,
        loaded,
        dealer,
        split_start=samples_read.split_start,
        start=samples_read.start,
        stop=samples_read.stop,
    )


class _SampleRange(NamedTuple):
    """The samples of a run that were read from a handoff, numbered from the start of the run."""

    split_start: int
    """The sample that is sample 0 of the handoff's train split."""
    start: int
    """The first sample that was read from it. Earlier ones of the split were read before."""
    stop: int | None
    """The sample after the last one; None if that depends on the next handoff of the run."""


def _samples_read_from(manifest: Manifest, spec: RunSpec, consumed_samples: int) -> _SampleRange:
    """Return which samples of a training run were read from the data of one of its starts.

    Samples are counted from the start of the run. If a run is continued with other data, these may
    be for the whole run, or for certain steps alone (a phase):

        data of                          begin with    the run reads
        the whole run                    sample 0      from sample 4,800 on, since the trainer skips
                                                       the 4,800 samples that it has read before
        steps 10 to 14 of 8 samples      sample 80     80 to 119

    Args:
        manifest: Describes the data, a *handoff*.
        spec: The settings of the run.
        consumed_samples: How many samples the run had read when it was started with these data.

    Raises:
        ConfigError: The settings of the run contradict the schedule of the phase.
    """
    phase = manifest.recipe["options"].get("span")
    if phase is None:
        # How many are read is not known here, but follows from the next start of the run.
        return _SampleRange(split_start=0, start=consumed_samples, stop=None)

    first_step, stop_step = phase  # 10 and 15
    batch_size = _phase_batch_size(manifest, spec)  # 8
    first_sample = first_step * batch_size
    stop_sample = stop_step * batch_size
    return _SampleRange(split_start=first_sample, start=first_sample, stop=stop_sample)


def _name_and_digest(outputs: OutputRoot, handoff: str) -> tuple[str, str]:
    """Find out which nanoset and version the folder of a trainer's files belongs to.

        …/nanosets/pretrain/handoff/91fe…      "pretrain", "91fe…"
        …/nanosets/pretrain/handoff/current    "pretrain", and the digest of the current version

    Args:
        outputs: The outputs that contain the folder.
        handoff: The folder.

    Raises:
        MissingError: The nanoset has no current version of these files.
        ConfigError: This is another folder.
    """
    folder = HANDOFF_FOLDER.fullmatch(handoff)
    if folder is None:
        raise ConfigError(
            "not the folder of a handoff",
            where="handoff",
            found=handoff,
            expected=f"…/{NANOSETS_FOLDER}/NAME/{HANDOFF}/current, or a digest in its place",
            remedy="name the handoff of the run",
        )
    name, version = folder.groups()
    if version == "current":
        return name, _current_handoff(outputs, name).digest
    return name, version


def _scheduled_batch_size(manifest: Manifest) -> int | None:
    """Return how many samples a step reads according to a handoff; None if it does not say so.

    Args:
        manifest: Manifest of the handoff, the files for a trainer.
    """
    schedule = manifest.recipe["options"].get("schedule")
    return recorded_batch_size(schedule) if schedule else None


def _phase_batch_size(manifest: Manifest, spec: RunSpec) -> int:
    """Return how many samples a training step reads by plan, and check that the run keeps to it.

    This is for data that were made for certain steps of a run (a phase), such as 5 steps of 8
    samples. They only last for these steps if each step really reads 8 samples.

    Args:
        manifest: Describes the data, with the schedule that they were made for.
        spec: The settings of the run, from run.yaml.

    Raises:
        ConfigError: Some steps have another batch size.
    """
    options = manifest.recipe["options"]  # the settings that the data were made with
    batch_size = recorded_batch_size(options["schedule"])
    problems = _batch_size_problems(spec, batch_size)
    if problems:
        raise ConfigError(
            "in phases the batch size must stay what the schedule says",
            where="global_batch_size",
            found=", ".join(problems),
            expected=f"global_batch_size: {batch_size} alone",
            remedy="correct run.yaml",
        )
    return batch_size


def _batch_size_problems(spec: RunSpec, batch_size: int) -> list[str]:
    """Return the settings that make steps of a run read more or fewer samples than planned.

    Each must read `batch_size` samples, for example 32. Then these are problems:

        global_batch_size: 64
        resumes[0].global_batch_size: 64          after the run was resumed for the first time
        rampup_batch_size: [8, 8, 10000]          smaller at first
        decrease_batch_size_if_needed: true       may be smaller

    Args:
        spec: The settings of the run.
        batch_size: How many samples each step must read.
    """
    problems: list[str] = []
    if spec.global_batch_size is None:  # the run has a schedule of batch sizes instead
        problems.append("no global_batch_size")
    elif spec.global_batch_size != batch_size:
        problems.append(f"global_batch_size: {spec.global_batch_size}")
    problems += _other_sizes_of_resumes(spec, batch_size)
    if spec.rampup_batch_size is not None:
        problems.append(f"rampup_batch_size: {list(spec.rampup_batch_size)}")
    if spec.decrease_batch_size_if_needed:
        problems.append("decrease_batch_size_if_needed: true")
    return problems


def _other_sizes_of_resumes(spec: RunSpec, batch_size: int) -> list[str]:
    """Return the batch sizes of resumed parts of a run that are not the planned one.

    Args:
        spec: The settings of the run. A resume without a batch size keeps that of the run.
        batch_size: The planned batch size.

    Returns:
        Such as ["resumes[0].global_batch_size: 64"].
    """
    problems = []
    for number, resume in enumerate(spec.resumes):
        if resume.global_batch_size not in (None, batch_size):
            problems.append(f"resumes[{number}].global_batch_size: {resume.global_batch_size}")
    return problems


def _current_handoff(outputs: OutputRoot, name: str) -> Manifest:
    """Return the manifest of a nanoset's current handoff, the latest files for a trainer.

    Args:
        outputs: The outputs that contain it.
        name: Name of the nanoset.

    Raises:
        MissingError: There is none. The error lists the nanosets that have one.
    """
    try:
        return outputs.require(
            NANOSETS_FOLDER, f"{name}/{HANDOFF}", remedy="correct its name, or run `nanoset build`"
        )
    except MissingError as error:
        # The name may be misspelt: list those that exist.
        nanosets = outputs.names(NANOSETS_FOLDER)
        available = ", ".join(nanosets) or "none"
        remedy = f"{error.remedy}; available nanosets: {available}"
        raise error.at(error.where, remedy) from error
