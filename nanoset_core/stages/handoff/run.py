"""run.yaml: on how many ranks, and by which batch sizes, a run went through the samples of its handoffs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.records.parsing import Parser, Rule, broken, located, read_yaml, yaml_value
from nanoset_core.records.settings import Range

RUN = "run.yaml"
"""Name of the file in a handoff."""
_BEGUN = """\
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
_TEXTS = {
    "rampup": (
        "the ramp-up is none that Megatron-LM takes",
        "write [first batch size, increment, samples], as its option --rampup-batch-size",
        "an increment that leads from the first batch size to global_batch_size, which is larger, in whole steps",
    ),
    "one": ("two schedules of the batch size exclude each other", "give rampup_batch_size or step_batch_size_schedule"),
    "decrease": ("Megatron-LM refuses the two together", "remove decrease_batch_size_if_needed"),
    "size": ("the batch size is not given", "add global_batch_size, or step_batch_size_schedule"),
    "resumes": ("a run goes on at later and later iterations", "write them in order, each iteration once"),
    "skipped": ("no steps", "write a step, or [first, last], the last included"),
    "handoff": ("no handoff is named", "name the handoff's folder, or a list of them, one after another"),
}


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

    handoff: str | tuple[str, ...] = field(metadata={"example": "data/nanosets/pretrain/handoff/current"})
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
    """Batch sizes from numbers of samples on, such as 0:768 1M:1536; from numbers of tokens on, with seq_length."""
    seq_length: Annotated[int, Range(1)] | None = None
    """Tokens of a sample, where step_batch_size_schedule counts tokens, as Megatron-LM does."""
    decrease_batch_size_if_needed: bool = False
    """Whether a batch size that the ranks' micro-batches do not divide is rounded down."""
    dataloader_type: Literal["single", "cyclic"] = "single"
    """In order, or each epoch in a random order."""
    skipped_iterations: tuple[Annotated[int, Range(1)] | tuple[Annotated[int, Range(1)], ...], ...] = ()
    """Steps that were consumed and not trained on: a step each, or [first, last]."""
    resumes: tuple[ResumeSpec, ...] = ()
    """Where the run went on otherwise than before."""

    @property
    def handoffs(self) -> tuple[str, ...]:
        """The handoffs in their order."""
        return (self.handoff,) if isinstance(self.handoff, str) else self.handoff

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """Skipped steps as (first, last)."""
        return [(one, one) if isinstance(one, int) else (one[0], one[1]) for one in self.skipped_iterations]

    def is_skipped(self, step: int) -> bool:
        """Return whether a step's data was consumed and nothing trained."""
        return any(first <= step <= last for first, last in self.skipped)


def read_run(file: Path) -> RunSpec:
    """Read a run.yaml.

    Raises:
        MissingError: it cannot be read.
        ConfigError: all mistakes in it, by line.
    """
    try:
        value, text = read_yaml(file, remedy="correct the line; every handoff has a run.yaml to start from")
    except OSError as error:
        remedy = f"name the run.yaml of a run; the handoff has one to start from: {RUN}"
        raise MissingError(
            "the description of the run cannot be read", where=file, found=error, remedy=remedy
        ) from error
    return checked_run(value, text, file)


def checked_run(value: object, text: str, file: Path) -> RunSpec:
    """Return the run that the plain values of a YAML text describe; ConfigError for all mistakes in it, by line."""
    parser = Parser(file)
    run: RunSpec | None = parser.read(RunSpec, {} if value is None else value, "")
    errors = parser.errors or list(_errors(run, f"{file}: ") if run is not None else ())
    if errors or run is None:
        raise located(file, text, errors)
    return run


def _errors(run: RunSpec, where: str) -> Iterator[ConfigError]:
    ramp, size, iterations = run.rampup_batch_size, run.global_batch_size, [one.iteration for one in run.resumes]
    schedule = run.step_batch_size_schedule
    wrong_ramp = ramp is not None and not ramps_up(ramp, size or 0)
    rules: Sequence[Rule] = (
        (not run.handoffs, "handoff", "handoff", None),
        (size is None and schedule is None, "size", "global_batch_size", None),
        (wrong_ramp, "rampup", "rampup_batch_size", f"{ramp and list(ramp)}, global_batch_size {size}"),
        (ramp is not None and schedule is not None, "one", "step_batch_size_schedule", schedule),
        (schedule and run.decrease_batch_size_if_needed, "decrease", "decrease_batch_size_if_needed", True),
        (iterations != sorted(set(iterations)), "resumes", "resumes", iterations),
    )
    yield from broken(where, _TEXTS, *rules)
    for number, skipped in enumerate(run.skipped_iterations):
        wrong = not isinstance(skipped, int) and (len(skipped) != 2 or skipped[0] > skipped[1])
        yield from broken(where, _TEXTS, (wrong, "skipped", f"skipped_iterations[{number}]", skipped))


def ramps_up(ramp: Sequence[int], size: int) -> bool:
    """Return whether [first batch size, increment, samples] leads to a batch size in whole steps."""
    return len(ramp) == 3 and size > ramp[0] and (size - ramp[0]) % ramp[1] == 0


def run_text(handoff: str, global_batch_size: int | None) -> str:
    """Return run.yaml as a handoff begins it: what is not known before a run starts is for its user to fill in."""
    size = "#global_batch_size: 256" if global_batch_size is None else f"global_batch_size: {global_batch_size}"
    return _BEGUN.format(handoff=yaml_value(handoff), size=size)
