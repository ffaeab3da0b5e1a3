"""Read and write run.yaml, which describes a run: its handoffs, ranks and batch sizes.

A run is one training of a model, which may be stopped and resumed. Its run.yaml names the folder
that the trainer was started with (the handoff), and settings such as `data_parallel_size: 8` and
`global_batch_size: 256`. With it, `nanoset explain` computes which samples each step read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.records.parsing import parse_or_errors
from nanoset_core.records.rules import Section, rule_errors
from nanoset_core.records.settings import Range
from nanoset_core.records.yaml_text import located, read_yaml, yaml_value

RUN = "run.yaml"
"""Name of the file in a handoff."""
_TEMPLATE = """\
# Copy this file, and complete it when the run is started: by hand, or from Megatron-LM's log with
# `nanoset explain --run COPY --from-log LOG`.
# Then `nanoset explain --run COPY --step N` shows what a step read.
handoff: {handoff}
#data_parallel_size: 8
#micro_batch_size: 4
{size}
#rampup_batch_size: [32, 32, 100000]
#skipped_iterations: [[1000, 1010]]
#resumes: [{{iteration: 5000, data_parallel_size: 16}}]
"""
"""Content of run.yaml in a handoff. Settings that are unknown before a run are commented out."""


@dataclass(frozen=True, slots=True)
class ResumeSpec:
    """How a run was resumed from a checkpoint; settings that are left out did not change."""

    iteration: Annotated[int, Range(0, 1 << 40)] = field(metadata={"example": "5000"})
    """Number of iterations at the checkpoint. The other settings apply to the steps after it."""
    data_parallel_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Number of data-parallel ranks after the checkpoint."""
    micro_batch_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Samples of a micro-batch after the checkpoint."""
    global_batch_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Samples of a step after the checkpoint; with a ramp-up, of a step after the ramp-up."""


@dataclass(frozen=True, slots=True)
class RunSpec(Section):
    """The settings of run.yaml, with the names and meanings of Megatron-LM's options."""

    handoff: str | tuple[str, ...] = field(
        metadata={"example": "data/nanosets/pretrain/handoff/current"}
    )
    """Folder of the handoff that the run was started with; a list if it used several in turn."""
    data_parallel_size: Annotated[int, Range(1, 1 << 24)] = field(metadata={"example": "8"})
    """Number of data-parallel ranks."""
    micro_batch_size: Annotated[int, Range(1, 1 << 24)] = field(metadata={"example": "4"})
    """Samples that a rank reads at once."""
    global_batch_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Samples of a step, of all ranks together."""
    rampup_batch_size: tuple[Annotated[int, Range(1, 1 << 62)], ...] | None = None
    """First batch size, increment, and samples over which it grows to global_batch_size."""
    step_batch_size_schedule: str | None = None
    """Numbers of samples, each with the batch size from there on, such as 0:768 1M:1536.

    With seq_length, the numbers count tokens instead of samples.
    """
    seq_length: Annotated[int, Range(1)] | None = None
    """Tokens of a sample, if step_batch_size_schedule counts tokens, as Megatron-LM does."""
    decrease_batch_size_if_needed: bool = False
    """Whether batch sizes are rounded down to whole micro-batches of all ranks."""
    dataloader_type: Literal["single", "cyclic"] = "single"
    """Whether samples are read in order, or each epoch in a random order."""
    skipped_iterations: tuple[
        Annotated[int, Range(1)] | tuple[Annotated[int, Range(1)], ...], ...
    ] = ()
    """Steps whose data was read but not trained on: numbers of steps, or ranges [first, last]."""
    resumes: tuple[ResumeSpec, ...] = ()
    """Checkpoints from which the run was resumed with other settings."""

    @property
    def handoffs(self) -> tuple[str, ...]:
        """The folders of the handoffs that the run was started with, in order."""
        return (self.handoff,) if isinstance(self.handoff, str) else self.handoff

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """Ranges of skipped steps as (first, last), both included."""
        ranges = []
        for entry in self.skipped_iterations:
            first, last = (entry, entry) if isinstance(entry, int) else entry
            ranges.append((first, last))
        return ranges

    def is_skipped(self, step: int) -> bool:
        """Return whether the data of a step was read but not trained on.

        Args:
            step: Number of the step, from 1 on.

        Returns:
            True if one of the skipped ranges contains the step.
        """
        return any(first <= step <= last for first, last in self.skipped)

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield the mistakes in a run.yaml, the file in which a user describes a training run.

            handoff: /data/nanosets/pretrain/handoff/0a1b    a folder that names the data of the run
            global_batch_size: 256                           or `step_batch_size_schedule`

        Without these keys, it cannot be computed which samples a step has read. Other settings may
        contradict each other.

        Args:
            where: The run.yaml, for messages.

        Yields:
            Errors that name the key, such as "run.yaml: global_batch_size".
        """
        if not self.handoffs:
            yield ConfigError(
                "no handoff is named",
                where=f"{where}: handoff",
                remedy="name the folder of the handoff, or list the folders of several in order",
            )
        if self.global_batch_size is None and self.step_batch_size_schedule is None:
            yield ConfigError(
                "the batch size is not given",
                where=f"{where}: global_batch_size",
                remedy="add global_batch_size, or step_batch_size_schedule",
            )
        yield from self._ramp_up_errors(where)
        yield from self._schedule_errors(where)
        yield from self._iteration_errors(where)

    def _ramp_up_errors(self, where: str) -> Iterator[ConfigError]:
        """Yield an error if the batch size of a training run cannot grow as its settings say.

        For example, `rampup_batch_size: [32, 32, 100000]` begins with 32 samples, and adds 32 again
        and again. In this way, it reaches a global_batch_size of 256, but not one of 250.

        Args:
            where: The run.yaml, for messages.

        Yields:
            One error, or none.
        """
        ramp = self.rampup_batch_size
        if ramp is None:
            return
        size = self.global_batch_size
        if size is not None and ramps_up(ramp, size):
            return
        yield ConfigError(
            "Megatron-LM does not accept this ramp-up",
            where=f"{where}: rampup_batch_size",
            found=f"{list(ramp)}, global_batch_size {size}",
            expected="an increment that leads from the first batch size to global_batch_size, "
            "which is larger, in whole steps",
            remedy="write [first batch size, increment, samples], as for --rampup-batch-size",
        )

    def _schedule_errors(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each setting that cannot be used with a schedule of batch sizes.

        Such a schedule, "0:768 1M:1536", says how many samples a step reads, and from when on. So
        it excludes rampup_batch_size, which says the same in another way.

        Args:
            where: The run.yaml, for messages.

        Yields:
            Up to two errors.
        """
        schedule = self.step_batch_size_schedule
        if schedule is not None and self.rampup_batch_size is not None:
            yield ConfigError(
                "two schedules of the batch size exclude each other",
                where=f"{where}: step_batch_size_schedule",
                found=schedule,
                remedy="give rampup_batch_size or step_batch_size_schedule",
            )
        if schedule and self.decrease_batch_size_if_needed:
            yield ConfigError(
                "Megatron-LM refuses this option together with step_batch_size_schedule",
                where=f"{where}: decrease_batch_size_if_needed",
                found=True,
                remedy="remove decrease_batch_size_if_needed",
            )

    def _iteration_errors(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each list of training steps that has no meaning.

            resumes: at 5000, at 3000            not in order
            skipped_iterations: [3, [8, 5]]      8 to 5 is not a range

        Args:
            where: The run.yaml, for messages.
        """
        iterations = [resume.iteration for resume in self.resumes]
        if iterations != sorted(set(iterations)):
            yield ConfigError(
                "the iterations of resumes are not in ascending order",
                where=f"{where}: resumes",
                found=iterations,
                remedy="write them in order, each iteration once",
            )
        for index, entry in enumerate(self.skipped_iterations):
            if isinstance(entry, int):  # a single step
                continue
            if len(entry) != 2 or entry[0] > entry[1]:
                yield ConfigError(
                    "this is not a range of steps",
                    where=f"{where}: skipped_iterations[{index}]",
                    found=entry,
                    remedy=(
                        "write the number of a step, or [first, last] with the last step included"
                    ),
                )


def read_run(file: Path) -> RunSpec:
    """Read a run.yaml, in which a user describes how a training run was started and resumed.

    From this follows which samples each step has read. For example:

        handoff: data/nanosets/pretrain/handoff/current
        data_parallel_size: 8
        micro_batch_size: 4
        global_batch_size: 256

    Args:
        file: The run.yaml.

    Returns:
        The settings, which agree with each other.

    Raises:
        MissingError: The file cannot be read.
        ConfigError: The file is not YAML, or has mistakes. The error lists all of them with their
            lines.
    """
    try:
        value, text = read_yaml(
            file, remedy="correct the line; every handoff has a run.yaml to start from"
        )
    except OSError as error:
        raise MissingError(
            "the description of the run cannot be read",
            where=file,
            found=error,
            remedy=f"name the run.yaml of a run; the handoff has one to start from: {RUN}",
        ) from error
    return checked_run(value, text, file)


def checked_run(value: object, text: str, file: Path) -> RunSpec:
    """Check the values of a run.yaml, the file in which a user describes a training run.

    With these settings it is computed which samples each step of the run has read:

        handoff: /data/nanosets/pretrain/handoff/0a1b      the data that the run reads
        global_batch_size: 256

    Args:
        value: The parsed values: a mapping, or None for an empty file.
        text: The YAML text, to find the lines of mistakes.
        file: The file, for messages.

    Raises:
        ConfigError: There are mistakes. The error lists all of them with their lines.
    """
    values = {} if value is None else value
    run: RunSpec
    run, errors = parse_or_errors(RunSpec, values, "", file)
    if not errors:
        errors = list(rule_errors(RunSpec, run, file))
    if errors:
        raise located(file, text, errors)
    return run


def ramps_up(ramp: Sequence[int], size: int) -> bool:
    """Return whether a batch size that grows step by step reaches its final size exactly.

        first    increment    final size
        32       32           256            yes: 32, 64, 96, … 256
        32       50           256            no: 32, 82, … 232, 282
        32       32           32             no: it does not grow

    Args:
        ramp: First batch size, increment, and samples over which the batch size grows.
        size: The final batch size.

    Returns:
        False also if the ramp-up does not have three numbers.
    """
    if len(ramp) != 3:
        return False
    first, increment, _ = ramp
    return size > first and (size - first) % increment == 0


def run_text(handoff: str, global_batch_size: int | None) -> str:
    """Return a template of run.yaml, in which the user describes a run once it has started.

    What is known is filled in, and the rest is a comment:

        handoff: /data/nanosets/pretrain/handoff/91fe…
        global_batch_size: 64           or: #global_batch_size: 256

    Args:
        handoff: The folder that the trainer is started with, which contains the run.yaml.
        global_batch_size: Samples of a step, if they are known.
    """
    size = "#global_batch_size: 256"
    if global_batch_size is not None:
        size = f"global_batch_size: {global_batch_size}"
    return _TEMPLATE.format(handoff=yaml_value(handoff), size=size)
