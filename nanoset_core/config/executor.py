"""Where the work of a build is done: what nanoset.yaml says of it, and what the environment says instead."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.settings import Between

ADDRESS_VARIABLE = "NANOSET_DASK_ADDRESS"
FILE_VARIABLE = "NANOSET_DASK_SCHEDULER_FILE"
WAIT_VARIABLE = "NANOSET_DASK_WAIT"
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_WAIT = 366 * 86_400
_SHORTEST_JOB = 120
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)?(M|G|T)i?B")
_KEYS = {
    "processes": (),
    "dask": ("address", "scheduler_file", "wait"),
    "slurm": ("wait", "jobs", "partition", "account", "time", "cpus", "memory", "directives"),
}
"""Kind → its keys."""


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """Who tokenizes, writes tars and verifies deeply; the same bytes from each."""

    kind: Literal["processes", "dask", "slurm"] = "processes"
    """Processes of this machine, the workers of a Dask cluster, or workers that the build starts as Slurm jobs."""
    address: str | None = None
    """Address of the Dask scheduler, such as tcp://scheduler:8786."""
    scheduler_file: str | None = None
    """Instead of the address: the file that `dask scheduler --scheduler-file` writes."""
    wait: str | float | None = None
    """How long a build waits for scheduler and workers: 24h, 30m, or seconds; absent = 60, for Slurm's queue 24h."""
    jobs: Annotated[int, Between(1, 10_000)] | None = None
    """Slurm: how many jobs there should be as long as the build runs."""
    partition: str | None = None
    """Slurm: where the jobs are queued; absent = the site's default."""
    account: str | None = None
    """Slurm: who is charged; absent = the user's default."""
    time: str | None = None
    """Slurm: time limit of a job, such as 4h, after which another one takes its place; absent = 1h."""
    cpus: Annotated[int, Between(1, 1_024)] | None = None
    """Slurm: processors of a job, and worker processes in it; absent = 1."""
    memory: str | None = None
    """Slurm: memory of a job, such as 8GB; absent = 2GB for each processor."""
    directives: tuple[str, ...] | None = None
    """Slurm: what else a job's #SBATCH lines say, such as "--constraint=ib"."""

    @property
    def wait_seconds(self) -> float:
        """The same in seconds."""
        seconds = None if self.wait is None else _seconds(self.wait)
        return seconds if seconds is not None else 86_400.0 if self.kind == "slurm" else 60.0

    @property
    def time_seconds(self) -> int:
        """The time limit of a Slurm job, in seconds."""
        return int(_seconds(self.time or "1h") or 0)


def chosen_executor(
    file: Path, spec: ExecutorSpec, environment: Mapping[str, str] = os.environ
) -> tuple[ExecutorSpec, str]:
    """The executor that is meant, and what names it: the environment, where that names a scheduler, else nanoset.yaml.

    Args:
        file: nanoset.yaml, for messages.
        spec: what it says.
        environment: NANOSET_DASK_ADDRESS or NANOSET_DASK_SCHEDULER_FILE (relative to the current folder) come before
            kind, address and scheduler_file, NANOSET_DASK_WAIT before wait; an empty one is as none.

    Raises:
        ConfigError: the environment names both, or what cannot be.
    """
    address, scheduler_file, wait = (
        environment.get(name) or None for name in (ADDRESS_VARIABLE, FILE_VARIABLE, WAIT_VARIABLE)
    )
    if address is None and scheduler_file is None:
        where = f"{file}: executor{_named_by(spec)}"
    else:
        where = f"{ADDRESS_VARIABLE if scheduler_file is None else FILE_VARIABLE} in the environment"
        path = None if scheduler_file is None else str(Path(scheduler_file).absolute())
        spec = ExecutorSpec("dask", address, path, spec.wait)
        _check_scheduler(spec, where)
    if wait is not None:
        spec = replace(spec, wait=wait)
        _check_wait(wait, f"{WAIT_VARIABLE} in the environment")
    return spec, where


def check_executor(file: Path, spec: ExecutorSpec) -> None:
    """Check that a kind has its keys and no others, and the environment's variables.

    Raises:
        ConfigError: one of them is missing, or cannot be.
    """
    for key in (field.name for field in fields(spec)):
        found = getattr(spec, key)
        if key != "kind" and key not in _KEYS[spec.kind] and found is not None:
            raise _no_such_key(f"{file}: executor.{key}", spec.kind, key, found)
    if spec.kind == "dask":
        _check_scheduler(spec, f"{file}: executor{_named_by(spec)}")
    if spec.kind == "slurm":
        _check_slurm(spec, f"{file}: executor")
    if spec.wait is not None:
        _check_wait(spec.wait, f"{file}: executor.wait")
    chosen_executor(file, spec)


def _named_by(spec: ExecutorSpec) -> str:
    """The key that names the workers; none where several do."""
    return "" if spec.kind != "dask" else ".address" if spec.scheduler_file is None else ".scheduler_file"


def _no_such_key(where: str, kind: str, key: str, found: object) -> ConfigError:
    of = " or ".join(other for other, keys in _KEYS.items() if key in keys)
    return ConfigError(
        f"{kind} have no {key}" if kind == "processes" else f"the executor {kind} has no {key}",
        where=where,
        found=repr(found),
        expected=f"{key} only where executor.kind is {of}",
        remedy=f"set executor.kind to {of}, or remove the key",
    )


def _check_scheduler(spec: ExecutorSpec, where: str) -> None:
    if spec.address is not None and spec.scheduler_file is not None:
        raise ConfigError(
            "the Dask scheduler is named twice",
            where=where,
            found=f"the address {spec.address}, and the file {spec.scheduler_file}",
            expected="one of them",
            remedy="remove the other one",
        )
    if spec.scheduler_file is None and (spec.address is None or not _ADDRESS.fullmatch(spec.address)):
        raise ConfigError(
            "this is not the address of a Dask scheduler",
            where=where,
            found=repr(spec.address),
            expected="tcp://host:port or tls://host:port, as the scheduler prints it when it starts",
            remedy="copy it from the scheduler's output, or name its scheduler_file, or set executor.kind to processes",
        )


def _check_slurm(spec: ExecutorSpec, where: str) -> None:
    if spec.jobs is None:
        raise ConfigError(
            "how many Slurm jobs is not said",
            where=f"{where}.jobs",
            expected="a whole number",
            remedy='add it: "jobs: 20"',
        )
    if spec.time is not None and not _SHORTEST_JOB <= (_seconds(spec.time) or 0) <= _LONGEST_WAIT:
        raise ConfigError(
            "this is no time limit for a Slurm job",
            where=f"{where}.time",
            found=repr(spec.time),
            expected="a number with m, h or d, from 2m to 366d",
            remedy="write 90m, 4h or 2d",
        )
    if spec.memory is not None and not _MEMORY.fullmatch(spec.memory):
        raise ConfigError(
            "this is no size of memory",
            where=f"{where}.memory",
            found=repr(spec.memory),
            expected="a number with MB, GB or TB",
            remedy="write 8GB",
        )


def _check_wait(wait: str | float, where: str) -> None:
    seconds = _seconds(wait)
    if seconds is None or not 0 <= seconds <= _LONGEST_WAIT:
        raise ConfigError(
            "this is no time to wait",
            where=where,
            found=repr(wait),
            expected="seconds, or a number with s, m, h or d, up to 366d",
            remedy="write 90, 30m or 24h",
        )


def _seconds(text: str | float) -> float | None:
    """The seconds that a duration stands for, such as 30m; None where it is none."""
    found = _DURATION.fullmatch(str(text))
    return None if found is None else float(found[1]) * _SECONDS[found[2]]
