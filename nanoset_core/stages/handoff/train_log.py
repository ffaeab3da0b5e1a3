"""Complete run.yaml from what Megatron-LM printed: its arguments, where it loaded checkpoints, samples it had consumed.

Source: Megatron-LM core_v0.16.1 `training/arguments.py` (_print_args), `training/checkpointing.py` (load_checkpoint),
`training/training.py` (training_log).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.records.parsing import read_yaml
from nanoset_core.stages.handoff.run import RunSpec, checked_run
from nanoset_core.stages.handoff.steps import Steps

_BLOCK, _END = re.compile(r"-{5,} arguments -{5,}"), re.compile(r"-{5,} end of arguments -{5,}")
_ARGUMENT = re.compile(r"(\w+) \.{2,} (.*?)\s*$")
_LOADED = re.compile(r"successfully loaded checkpoint from .* at iteration +(\d+)")
_STEP = re.compile(r"iteration +(\d+)/ *\d+ \| consumed samples: +(\d+)")
_RESUMED = ("data_parallel_size", "micro_batch_size", "global_batch_size")
_OTHERS = ("rampup_batch_size", "step_batch_size_schedule", "decrease_batch_size_if_needed", "dataloader_type")


@dataclass
class TrainLog:
    """What a log says of a run."""

    starts: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Iterations that were done, and the arguments, each time that it was started; in order."""
    consumed: dict[int, int] = field(default_factory=dict)
    """Step → samples that were consumed after it; of the last time that it was trained."""

    @staticmethod
    def read(file: Path) -> TrainLog:
        """Read the log of one run, or of its parts behind one another; MissingError, FormatError where that fails."""
        log, remedy = TrainLog(), "name what Megatron-LM printed, with the block of its arguments"
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                log._read(lines)
        except OSError as error:
            raise MissingError("the log cannot be read", where=file, found=error, remedy=remedy) from error
        if not log.starts:
            raise FormatError("the log has no arguments", where=file, expected="---- arguments ----", remedy=remedy)
        return log

    def _read(self, lines: Iterable[str]) -> None:
        within, arguments = False, dict[str, Any]()
        for line in lines:
            if _BLOCK.search(line):
                within, arguments = True, {}
            elif _END.search(line):
                within = False
            elif within:
                if named := _ARGUMENT.search(line):
                    arguments[named[1]] = _value(named[2])
            elif loaded := _LOADED.search(line):
                arguments = self._start(int(loaded[1]), arguments)
            elif logged := _STEP.search(line):
                arguments = self._start(0, arguments)
                self.consumed[int(logged[1])] = int(logged[2])
        self._start(0, {} if self.starts else arguments)

    def _start(self, done: int, arguments: dict[str, Any]) -> dict[str, Any]:
        """Note a start with arguments, if there are any: what went beyond it before was trained again."""
        if arguments:
            self.starts = [start for start in self.starts if start[0] < done] + [(done, arguments)]
            self.consumed = {step: count for step, count in self.consumed.items() if step <= done}
        return {}

    def settings(self) -> dict[str, Any]:
        """Return keys of run.yaml."""
        (_, first), *later = self.starts
        if first.get("dataloader_type") == "cyclic" and first.get("data_sharding") is False:
            what, remedy = "the order of a cyclic loader with --no-data-sharding is not known", "it cannot be explained"
            raise ConfigError(what, where="data_sharding", found=False, expected=True, remedy=remedy)
        found = {name: first.get(name) for name in (*_RESUMED, *_OTHERS)}
        if found["step_batch_size_schedule"] is not None:
            found |= {"seq_length": first.get("seq_length"), "global_batch_size": None}
        found["skipped_iterations"] = list(self._skipped())
        found["resumes"] = [one for one in _changes(found, later) if len(one) > 1]
        return {name: value for name, value in found.items() if value not in (None, [], False)}

    def _skipped(self) -> Iterator[list[int]]:
        """Yield skipped steps as [first, last]; core 0.16.1 counts them from 0, main from 1, as its log does."""
        arguments = self.starts[-1][1]
        given = sorted({int(one) for _, start in self.starts for one in start.get("iterations_to_skip") or ()})
        every = arguments.get("log_interval") == 1
        from_one = every and any(one not in self.consumed and one + 1 in self.consumed for one in given)
        steps = np.array(given, np.int64) + (0 if from_one else 1)
        for run in np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1) if given else ():
            yield [int(run[0]), int(run[-1])]

    def differences(self, run: RunSpec) -> list[str]:
        """Return where the samples that the log says were consumed are not those that the numbers of a run give."""
        logged = np.array(sorted(self.consumed.items()), np.int64).reshape(-1, 2)
        first, batch = Steps(run).samples(logged[:, 0])
        wrong = np.flatnonzero(first + batch != logged[:, 1])
        if not wrong.size:
            return []
        step, said = logged[wrong[0]].tolist()
        counted = int((first + batch)[wrong[0]])
        return [
            f"{wrong.size:,} of {len(logged):,} steps in the log differ, the first is step {step:,}: the log says that "
            f"{said:,} samples were consumed, by these numbers it is {counted:,}"
        ]


def _changes(first: Mapping[str, Any], starts: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    now = {name: first[name] for name in _RESUMED}
    for done, arguments in starts:
        changed = {name: arguments[name] for name in now if arguments.get(name) not in (None, now[name])}
        yield {"iteration": done, **changed}
        now |= changed


def _value(text: str) -> Any:
    """Return an argument's value: numbers, lists of them, None, True; anything else as text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    if isinstance(value, list):
        return [int(one) if isinstance(one, str) and one.isdecimal() else one for one in value]
    return value


def completed(file: Path, log: Path) -> tuple[str, list[str]]:
    """Return the text of a run.yaml with what a log says, and where the log's own numbers differ from it.

    Raises:
        MissingError, FormatError: a file cannot be read.
        ConfigError: mistakes in what comes out of it, or the run's order is not known.
    """
    import yaml

    value, _ = read_yaml(file, remedy="correct the line")
    found = TrainLog.read(log)
    whole = {**(value if isinstance(value, dict) else {}), **found.settings()}
    text = yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=100)
    return text, found.differences(checked_run(whole, text, log))
