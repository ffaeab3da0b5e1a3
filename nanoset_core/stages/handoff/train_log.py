"""Complete run.yaml from the log of Megatron-LM.

The log contains its arguments, the checkpoints that it loaded, and the samples that were consumed
after each step:

    ------------------------ arguments ------------------------
      data_parallel_size ............................ 8
    -------------------- end of arguments ---------------------
      successfully loaded checkpoint from /checkpoints at iteration 5000
     iteration     5001/   10000 | consumed samples:      1280256 | …

Sources:
    Megatron-LM core_v0.16.1 `training/arguments.py` (_print_args), `training/checkpointing.py`
    (load_checkpoint), `training/training.py` (training_log).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.records.yaml_text import read_yaml
from nanoset_core.stages.handoff.run import RunSpec, checked_run
from nanoset_core.stages.handoff.steps import Steps

_BLOCK = re.compile(r"-{5,} arguments -{5,}")
_BLOCK_END = re.compile(r"-{5,} end of arguments -{5,}")
_ARGUMENT = re.compile(r"(\w+) \.{2,} (.*?)\s*$")
_LOADED = re.compile(r"successfully loaded checkpoint from .* at iteration +(\d+)")
_STEP = re.compile(r"iteration +(\d+)/ *\d+ \| consumed samples: +(\d+)")
_RESUMED = ("data_parallel_size", "micro_batch_size", "global_batch_size")
"""Arguments that may change as a run resumes, which become keys of `resumes`."""
_CONSTANT = (
    "rampup_batch_size",
    "step_batch_size_schedule",
    "decrease_batch_size_if_needed",
    "dataloader_type",
)
"""The other arguments that become keys of run.yaml."""


@dataclass(frozen=True, slots=True)
class TrainerRestart:
    """A start of the trainer, from the beginning or from a checkpoint."""

    iteration: int
    """Number of iterations that were done before."""
    arguments: Mapping[str, Any]
    """Name of each argument → its value."""


@dataclass
class TrainLog:
    """The parts of a log that run.yaml needs."""

    starts: list[TrainerRestart] = field(default_factory=list)
    """The starts of the trainer, in order."""
    consumed: dict[int, int] = field(default_factory=dict)
    """Step → number of samples consumed after it. A step that was repeated has its last value."""

    @staticmethod
    def read(file: Path) -> TrainLog:
        """Read the log of a training run with Megatron-LM, for the settings that run.yaml needs.

        A run that was resumed may have several logs, which the user has concatenated. The log shows
        with which arguments the trainer was started each time, and how many samples each step has
        read.

        Args:
            file: The log: what Megatron-LM printed.

        Raises:
            MissingError: The log cannot be read.
            FormatError: The log contains no arguments.
        """
        remedy = "name what Megatron-LM printed, with the block of its arguments"
        log = TrainLog()
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                log._read(lines)
        except OSError as error:
            raise MissingError(
                "the log cannot be read", where=file, found=error, remedy=remedy
            ) from error
        if not log.starts:
            raise FormatError(
                "the log has no arguments",
                where=file,
                expected="---- arguments ----",
                remedy=remedy,
            )
        return log

    def _read(self, lines: Iterable[str]) -> None:
        """Record from a trainer's log when it was started, and how many samples each step has read.

        Each time that it is started, Megatron-LM prints its arguments, then the checkpoint that it
        loads (if any), and then a line for each step:

            -------------------- arguments --------------------
            global_batch_size ............................... 64
            -------------------- end of arguments --------------------
            successfully loaded checkpoint from … at iteration 1000
            iteration 1001/ 5000 | consumed samples: 64064 | …

        Args:
            lines: The lines of the log.
        """
        arguments: dict[str, Any] = {}  # of a start that is not recorded yet
        is_in_arguments = False
        for line in lines:
            if _BLOCK.search(line):
                is_in_arguments = True
                arguments = {}
            elif _BLOCK_END.search(line):
                is_in_arguments = False
            elif is_in_arguments:
                arguments.update(_read_argument(line))
            elif loaded := _LOADED.search(line):
                if arguments:
                    self._record_start(int(loaded[1]), arguments)  # the step of the checkpoint
                    arguments = {}
            elif step := _STEP.search(line):
                if arguments:
                    self._record_start(0, arguments)  # no checkpoint was loaded
                    arguments = {}
                self.consumed[int(step[1])] = int(step[2])

        # The run has not ended its first step.
        if arguments and not self.starts:
            self._record_start(0, arguments)

    def _record_start(self, iteration: int, arguments: Mapping[str, Any]) -> None:
        """Record that the trainer was started or resumed, as its log shows.

        Suppose that it was stopped at step 1,200, and resumed from a checkpoint of step 1,000. The
        steps 1,001 to 1,200 are done again, so what was recorded about them is removed.

        Args:
            iteration: Number of steps that were done before the start; 0 without a checkpoint.
            arguments: Arguments of the start.
        """
        # An earlier start at this step or a later one does not count any more.
        self.starts = [start for start in self.starts if start.iteration < iteration]
        self.starts.append(TrainerRestart(iteration, arguments))
        self.consumed = {step: count for step, count in self.consumed.items() if step <= iteration}

    def settings(self) -> dict[str, Any]:
        """Return the settings of a training run that the trainer's log shows.

        Megatron-LM prints all of its arguments at each start, such as `micro_batch_size ... 4`. The
        result has those that decide which samples each step has read: {"micro_batch_size": 4, …}.
        They can be written into a run.yaml, a file that describes a run.

        Returns:
            Key → value. Keys whose option was not set are left out.

        Raises:
            ConfigError: The order in which the trainer read samples cannot be computed.
        """
        arguments = self.starts[0].arguments  # of the first start
        _check_order_is_known(arguments)
        settings = {name: arguments.get(name) for name in (*_RESUMED, *_CONSTANT)}
        if settings["step_batch_size_schedule"] is not None:
            # It replaces a fixed batch size. It may be in tokens, so the length of samples counts.
            settings["seq_length"] = arguments.get("seq_length")
            settings["global_batch_size"] = None

        settings["skipped_iterations"] = self._skipped()
        settings["resumes"] = _resumes(settings, self.starts[1:])  # changes at later starts
        return {name: value for name, value in settings.items() if not _is_unset(value)}

    def _skipped(self) -> list[list[int]]:
        """Return the training steps that a trainer skipped, because the user told it so.

        A user may skip steps that have made the loss jump, by the option iterations_to_skip. In
        some versions of Megatron-LM, this option counts steps from 0. The result counts from 1, as
        the log.

        Returns:
            Ranges of consecutive steps, each as [first, last], with both included: the steps 3, 4
            and 8 are [3, 4] and [8, 8].
        """
        numbers: set[int] = set()
        for start in self.starts:  # of the trainer: it may have been resumed with other options
            skipped_numbers = start.arguments.get("iterations_to_skip") or []
            numbers.update(int(number) for number in skipped_numbers)
        if not numbers:
            return []

        steps = np.array(sorted(numbers), np.int64)  # (n_skipped,)
        if not self._skips_count_from_one(numbers):
            steps += 1  # the numbers 2 and 3 mean the third and the fourth step
        return _ranges(steps)

    def _skips_count_from_one(self, numbers: Iterable[int]) -> bool:
        """Return whether the option iterations_to_skip counts steps from 1, as the log does.

        Some versions of Megatron-LM count from 1 in this option, and some from 0. The log shows
        which, since steps that were skipped have no line. If the option names the number 5, for
        example:

            steps in the log    4 . 6 7    step 5 was skipped, so the option counts from 1
            steps in the log    4 5 . 7    step 6 was skipped, so the option counts from 0

        Args:
            numbers: The numbers that the option names.

        Returns:
            False also if the log does not show it: core 0.16.1 counts from 0.
        """
        # If only every tenth step has a line, for example, missing lines mean nothing.
        logs_every_step = self.starts[-1].arguments.get("log_interval") == 1
        if not logs_every_step:
            return False

        steps_in_log = self.consumed.keys()
        for number in numbers:
            was_skipped = number not in steps_in_log  # if the option counts from 1
            next_was_skipped = number + 1 not in steps_in_log  # if it counts from 0
            if was_skipped and not next_was_skipped:
                return True
        return False

    def differences(self, run: RunSpec) -> list[str]:
        """Compare a trainer's log with a run.yaml, by how many samples each step has read.

        A difference shows that a setting in run.yaml is wrong. For example: "12 of 100 steps in the
        log differ, the first is step 89: by the log 2,848 samples were consumed, by these settings
        2,880".

        Args:
            run: The settings of run.yaml.

        Returns:
            Such a sentence; none if all agree.
        """
        # Samples that were consumed after each step: shape (n_logged,) each.
        steps = np.array(sorted(self.consumed), np.int64)
        by_log = np.array([self.consumed[step] for step in steps.tolist()], np.int64)
        computed = Steps(run).samples(steps)
        by_settings = computed.first_samples + computed.batch_sizes

        differing = np.flatnonzero(by_settings != by_log)  # indices of steps
        if not differing.size:
            return []
        first = differing[0]
        return [
            f"{differing.size:,} of {len(steps):,} steps in the log differ, the first is "
            f"step {steps[first]:,}: by the log {by_log[first]:,} samples were "
            f"consumed, by these settings {by_settings[first]:,}"
        ]


def _resumes(
    settings: Mapping[str, Any], restarts: Sequence[TrainerRestart]
) -> list[dict[str, Any]]:
    """Return the restarts of a training run at which a setting changed, for run.yaml.

    In Megatron-LM, a run that is resumed takes its settings from the new command line. For example,
    a run was resumed after step 5,000 with 16 ranks instead of 8, and after step 7,000 without a
    change:

        [{"iteration": 5000, "data_parallel_size": 16}]

    Args:
        settings: The settings with which the trainer was first started.
        restarts: All later starts, in order.
    """
    current = {name: settings[name] for name in _RESUMED}
    resumes = []
    for restart in restarts:
        changes = _changes(current, restart.arguments)
        if changes:
            resumes.append({"iteration": restart.iteration, **changes})
        current |= changes
    return resumes


def _changes(settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a restart of the trainer has changed.

        before the restart     {"data_parallel_size": 8, "micro_batch_size": 4}
        arguments of it        {"data_parallel_size": 16, "micro_batch_size": 4, "lr": …}
        changes                {"data_parallel_size": 16}

    Args:
        settings: The settings before the restart.
        arguments: The arguments of the restart; a setting may be missing or None.
    """
    changes: dict[str, Any] = {}
    for name, present_value in settings.items():
        value = arguments.get(name)
        if value is not None and value != present_value:
            changes[name] = value
    return changes


def _check_order_is_known(arguments: Mapping[str, Any]) -> None:
    """Check that the order in which a trainer reads samples can be computed.

    It cannot for Megatron-LM's cyclic data loader without data sharding, in which all ranks
    (processes) share one shuffled order.

    Args:
        arguments: The arguments of Megatron-LM, from its log.

    Raises:
        ConfigError: It cannot, because of these arguments.
    """
    is_cyclic = arguments.get("dataloader_type") == "cyclic"
    if is_cyclic and arguments.get("data_sharding") is False:
        raise ConfigError(
            "the order of a cyclic loader with --no-data-sharding is not known",
            where="data_sharding",
            found=False,
            expected=True,
            remedy="the steps of this run cannot be explained",
        )


def _is_unset(value: Any) -> bool:
    """Return whether a setting has the value of a missing key, which run.yaml leaves out.

    That is no value, an empty list, or False. An option that is off may also be 0.
    """
    unset_values: tuple[Any, ...] = (None, [], False)
    return value in unset_values  # 0 equals False


def _ranges(steps: NDArray[np.int64]) -> list[list[int]]:
    """Return [first, last] of each run of consecutive steps: [3, 4], [8, 8] for 3, 4 and 8.

    Args:
        steps: Ascending, without duplicates; shape (n_steps,).
    """
    first_indices = np.flatnonzero(np.diff(steps) > 1) + 1  # of all ranges but the first
    return [[int(run[0]), int(run[-1])] for run in np.split(steps, first_indices)]


def _read_argument(line: str) -> dict[str, Any]:
    """Return the argument in a line of a log, in which Megatron-LM prints its arguments.

    Args:
        line: Such as "global_batch_size ............................... 64".

    Returns:
        Name → value, `{"global_batch_size": 64}`; empty if the line has no argument.
    """
    argument = _ARGUMENT.search(line)
    if argument is None:
        return {}
    return {argument[1]: _parse_value(argument[2])}


def _parse_value(text: str) -> Any:
    """Return the value of an argument that a trainer's log shows, as a Python value.

        text in the log    value
        64                 64
        None               None
        ['3', '8']         [3, 8]
        bf16               "bf16"

    Args:
        text: The value as Megatron-LM prints it.

    Returns:
        A number, a list, True, False, None or text.
    """
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    if not isinstance(value, list):
        return value
    items = []
    for item in value:
        is_number = isinstance(item, str) and item.isdecimal()
        items.append(int(item) if is_number else item)
    return items


class CompletedRun(NamedTuple):
    """A run.yaml that was completed from a log."""

    text: str
    """The completed text, in YAML."""
    differences: list[str]
    """Sentences for the user if the run has consumed other numbers of samples, as the log shows,
    than follow from these settings.
    """


def complete_run_yaml(file: Path, log: Path) -> CompletedRun:
    """Complete a run.yaml, the description of a training run, from the trainer's log.

    A user would have to write down batch sizes, ranks, and when the run was resumed. Megatron-LM
    prints all of this. Settings in the log take precedence over those in the file.

    Args:
        file: The run.yaml. It is not changed.
        log: Log of Megatron-LM.

    Returns:
        The completed text of run.yaml, and differences between the log and these settings.

    Raises:
        OSError: The run.yaml cannot be read.
        MissingError: The log cannot be read.
        FormatError: The log contains no arguments.
        ConfigError: The run.yaml is not YAML, the result has mistakes, or the order of the samples
            cannot be computed.
    """
    import yaml

    value, _ = read_yaml(file, remedy="correct the line")
    train_log = TrainLog.read(log)

    # The settings in the log take precedence over those in the file.
    settings = dict(value) if isinstance(value, dict) else {}
    settings |= train_log.settings()
    text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=100)
    run = checked_run(settings, text, log)
    return CompletedRun(text, train_log.differences(run))
