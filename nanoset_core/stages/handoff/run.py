"""run.yaml: on how many ranks, and by which batch sizes, a run went through the samples of its
handoffs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.records.parsing import Parser
from nanoset_core.records.settings import Range
from nanoset_core.records.yaml_text import located, read_yaml, yaml_value

RUN = "run.yaml"
"""Name of the file in a handoff."""
_TEMPLATE = """\
# Copy this file, and complete it as the run is started (`nanoset explain --run COPY --from-log LOG` takes the rest from
# Megatron-LM's log); then `nanoset explain --run COPY --step N` shows what a step read.
handoff: {handoff}
#data_parallel_size: 8
#micro_batch_size: 4
{size}
#rampup_batch_size: [32, 32, 100000]
#skipped_iterations: [[1000, 1010]]
#resumes: [{{iteration: 5000, data_parallel_size: 16}}]
"""
"""Content of run.yaml in a handoff: what is not known before a run starts is commented out."""


@dataclass(frozen=True, slots=True)
class ResumeSpec:
    """How a run went on from a checkpoint; what is not given stayed as it was."""

    iteration: Annotated[int, Range(0, 1 << 40)] = field(metadata={"example": "5000"})
    """Iterations that were done at the checkpoint: the rest holds for the steps after it."""
    data_parallel_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Data-parallel ranks from there on."""
    micro_batch_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Samples of a micro-batch from there on."""
    global_batch_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Samples of a step from there on; with a ramp-up, of those after it."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """All of run.yaml; names and meanings are those of Megatron-LM's options."""

    handoff: str | tuple[str, ...] = field(
        metadata={"example": "data/nanosets/pretrain/handoff/current"}
    )
    """Folder of the handoff that the run was started with; of several, one after another, a list."""
    data_parallel_size: Annotated[int, Range(1, 1 << 24)] = field(metadata={"example": "8"})
    """Data-parallel ranks."""
    micro_batch_size: Annotated[int, Range(1, 1 << 24)] = field(metadata={"example": "4"})
    """Samples that a rank reads at once."""
    global_batch_size: Annotated[int, Range(1, 1 << 24)] | None = None
    """Samples of a step, over all ranks."""
    rampup_batch_size: tuple[Annotated[int, Range(1, 1 << 62)], ...] | None = None
    """First batch size, increment, and samples over which it grows to global_batch_size."""
    step_batch_size_schedule: str | None = None
    """Batch sizes from numbers of samples on, such as 0:768 1M:1536; from numbers of tokens on,
    with seq_length.
    """
    seq_length: Annotated[int, Range(1)] | None = None
    """Tokens of a sample, where step_batch_size_schedule counts tokens, as Megatron-LM does."""
    decrease_batch_size_if_needed: bool = False
    """Whether a batch size that the ranks' micro-batches do not divide is rounded down."""
    dataloader_type: Literal["single", "cyclic"] = "single"
    """In order, or each epoch in a random order."""
    skipped_iterations: tuple[
        Annotated[int, Range(1)] | tuple[Annotated[int, Range(1)], ...], ...
    ] = ()
    """Steps that were consumed and not trained on: a step each, or [first, last]."""
    resumes: tuple[ResumeSpec, ...] = ()
    """Where the run went on otherwise than before."""

    @property
    def handoffs(self) -> tuple[str, ...]:
        """The handoffs in their order."""
        return (self.handoff,) if isinstance(self.handoff, str) else self.handoff

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """Skipped steps as (first, last), both included."""
        ranges = []
        for entry in self.skipped_iterations:
            first, last = (entry, entry) if isinstance(entry, int) else entry
            ranges.append((first, last))
        return ranges

    def is_skipped(self, step: int) -> bool:
        """Return whether a step's data was consumed and nothing trained on it."""
        return any(first <= step <= last for first, last in self.skipped)


def read_run(file: Path) -> RunSpec:
    """Read a run.yaml.

    Raises:
        MissingError: It cannot be read.
        ConfigError: It has mistakes; all of them are listed, by line.
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
    """Return the run that the plain values of a YAML text describe.

    Args:
        value: The plain values.
        text: The YAML text, in which messages name lines.
        file: Where it was read.

    Raises:
        ConfigError: It has mistakes; all of them are listed, by line.
    """
    parser = Parser(file)
    run: RunSpec | None = parser.read(RunSpec, {} if value is None else value, "")
    errors = list(parser.errors)
    if run is not None and not errors:
        errors = list(_errors(run, file))
    if run is None or errors:
        raise located(file, text, errors)
    return run


def _errors(run: RunSpec, file: Path) -> Iterator[ConfigError]:
    """Yield an error for each setting of a run that contradicts others, or lacks one."""
    if not run.handoffs:
        yield ConfigError(
            "no handoff is named",
            where=f"{file}: handoff",
            remedy="name the handoff's folder, or a list of them, one after another",
        )
    yield from _batch_size_errors(run, file)
    iterations = [resume.iteration for resume in run.resumes]
    if iterations != sorted(set(iterations)):
        yield ConfigError(
            "a run goes on at later and later iterations",
            where=f"{file}: resumes",
            found=iterations,
            remedy="write them in order, each iteration once",
        )
    for number, skipped in enumerate(run.skipped_iterations):
        if isinstance(skipped, int):
            continue
        if len(skipped) != 2 or skipped[0] > skipped[1]:
            yield ConfigError(
                "no steps",
                where=f"{file}: skipped_iterations[{number}]",
                found=skipped,
                remedy="write a step, or [first, last], the last included",
            )


def _batch_size_errors(run: RunSpec, file: Path) -> Iterator[ConfigError]:
    """Yield errors of the batch size: a number, a ramp-up to that number, or a schedule."""
    size = run.global_batch_size
    ramp = run.rampup_batch_size
    schedule = run.step_batch_size_schedule
    if size is None and schedule is None:
        yield ConfigError(
            "the batch size is not given",
            where=f"{file}: global_batch_size",
            remedy="add global_batch_size, or step_batch_size_schedule",
        )
    if ramp is not None and not ramps_up(ramp, size or 0):
        yield ConfigError(
            "the ramp-up is none that Megatron-LM takes",
            where=f"{file}: rampup_batch_size",
            found=f"{list(ramp)}, global_batch_size {size}",
            expected="an increment that leads from the first batch size to global_batch_size, which is larger, in "
            "whole steps",
            remedy="write [first batch size, increment, samples], as its option --rampup-batch-size",
        )
    if ramp is not None and schedule is not None:
        yield ConfigError(
            "two schedules of the batch size exclude each other",
            where=f"{file}: step_batch_size_schedule",
            found=schedule,
            remedy="give rampup_batch_size or step_batch_size_schedule",
        )
    if schedule and run.decrease_batch_size_if_needed:
        yield ConfigError(
            "Megatron-LM refuses the two together",
            where=f"{file}: decrease_batch_size_if_needed",
            found=True,
            remedy="remove decrease_batch_size_if_needed",
        )


def ramps_up(ramp: Sequence[int], size: int) -> bool:
    """Return whether a ramp-up leads to a batch size in whole steps.

    Args:
        ramp: First batch size, increment, and samples over which it grows.
        size: The batch size that it grows to.
    """
    if len(ramp) != 3:
        return False
    first, increment, _ = ramp
    return size > first and (size - first) % increment == 0


def run_text(handoff: str, global_batch_size: int | None) -> str:
    """Return the run.yaml of a new handoff, which its user completes once the run has started."""
    size = "#global_batch_size: 256"
    if global_batch_size is not None:
        size = f"global_batch_size: {global_batch_size}"
    return _TEMPLATE.format(handoff=yaml_value(handoff), size=size)
