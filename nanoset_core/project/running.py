"""The settings of runs: executor, environment variables, automation, and names in Dagster."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from nanoset_core.errors import ConfigError, combined, raised
from nanoset_core.records.parsing import SettingCheck, broken
from nanoset_core.records.settings import Range
from nanoset_core.untrusted import visible

ADDRESS_VARIABLE = "NANOSET_DASK_ADDRESS"
FILE_VARIABLE = "NANOSET_DASK_SCHEDULER_FILE"
WAIT_VARIABLE = "NANOSET_DASK_WAIT"
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]@]+):[0-9]{1,5}")
"""Address of a Dask scheduler; IPv6 addresses are in brackets."""
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
"""A number and a unit, such as 30m."""
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Unit of a duration → its seconds."""
_LONGEST_WAIT = 366 * 86_400
"""In seconds; also the longest time limit of a Slurm job."""
_SHORTEST_JOB = 120
"""The shortest time limit of a Slurm job, in seconds."""
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)?(M|G|T)i?B")
"""A size of memory, such as 8GB."""
_SLURM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@%+=/-]*")
"""A name that a shell reads as one word without special characters."""
_DIRECTIVE = re.compile(r"-\S(.*\S)?")
"""An option of sbatch."""
_CRON = re.compile(r"[0-9*/,-]+( +[0-9A-Za-z*/,#?-]+){4}")
"""The five fields of a cron line. The scheduler checks whether their numbers are possible."""
LEAST_SETTLE_SECONDS = 2
"""A file that was written less than this many seconds ago could change again, and still have the
same times.
"""
_TEXTS = {
    "twice": ("the Dask scheduler is named twice", "remove the other one", "one of them"),
    "address": (
        "this is not the address of a Dask scheduler",
        "copy it from the scheduler's output, or name its scheduler_file, "
        "or set executor.kind to processes",
        "tcp://host:port or tls://host:port, as the scheduler prints it when it starts",
    ),
    "wait": (
        "this is no time to wait",
        "write 90, 30m or 24h",
        "seconds, or a number with s, m, h or d, up to 366d",
    ),
    "jobs": ("the number of Slurm jobs is missing", 'add it: "jobs: 20"'),
    "time": (
        "this is no time limit for a Slurm job",
        "write 90m, 4h or 2d",
        "m, h or d, from 2m to 366d",
    ),
    "name": (
        "this cannot be written into a job's script",
        "write the name as `sinfo` or `sacctmgr` shows it",
        "letters, digits and . _ - , : @ % + = /",
    ),
    "directive": (
        "this cannot be a line of a job's script",
        'write one option of sbatch for each entry, such as "--constraint=ib"',
        "one line that begins with - and that can be seen as it is",
    ),
    "memory": ("this is no size of memory", "write 8GB", "a number with MB, GB or TB"),
    "cron": (
        "this is not a cron line",
        'write five fields in quotes, such as "0 3 * * *"',
        'minute, hour, day, month and weekday, such as "0 3 * * *" for every night at three; '
        "or null",
    ),
    "timezone": (
        "this timezone is not known",
        "look the name up there, or remove the key to get UTC",
        "a name of the IANA database, such as UTC or Europe/Vienna",
    ),
}
"""Name of a rule → what is wrong, the remedy, and what is expected; see `broken`."""
_KEYS = {
    "processes": (),
    "dask": ("address", "scheduler_file", "wait"),
    "slurm": ("wait", "jobs", "partition", "account", "time", "cpus", "memory", "directives"),
}
"""Kind of executor → the keys that it has."""


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """What tokenizes, writes tars and verifies deeply; the bytes do not depend on it."""

    kind: Literal["processes", "dask", "slurm"] = "processes"
    """Processes of this machine, the workers of a Dask cluster, or workers that the build starts as
    Slurm jobs.
    """
    address: str | None = None
    """Address of the Dask scheduler, such as tcp://scheduler:8786."""
    scheduler_file: str | None = None
    """Instead of the address: the file that `dask scheduler --scheduler-file` writes."""
    wait: str | float | None = None
    """How long a build waits for scheduler and workers: 24h, 30m, or seconds; absent = 60, for
    Slurm's queue 24h.
    """
    jobs: Annotated[int, Range(1, 10_000)] | None = None
    """Slurm: number of jobs while the build runs."""
    partition: str | None = None
    """Slurm: where the jobs are queued; absent = the site's default."""
    account: str | None = None
    """Slurm: account that is charged; absent = the user's default."""
    time: str | None = None
    """Slurm: time limit of a job, such as 4h, after which another one takes its place; absent =
    1h.
    """
    cpus: Annotated[int, Range(1, 1_024)] | None = None
    """Slurm: processors of a job, and worker processes in it; absent = 1."""
    memory: str | None = None
    """Slurm: memory of a job, such as 8GB; absent = 2GB for each processor."""
    directives: tuple[str, ...] | None = None
    """Slurm: what else a job's #SBATCH lines say, such as "--constraint=ib"."""

    @property
    def wait_seconds(self) -> float:
        """How long a build waits for scheduler and workers, in seconds."""
        if self.wait is not None:
            seconds = _seconds(self.wait)
            if seconds is not None:
                return seconds
        # Slurm's queue may be long; a scheduler and workers of Dask are usually running.
        return 86_400.0 if self.kind == "slurm" else 60.0

    @property
    def time_seconds(self) -> int:
        """The time limit of a Slurm job, in seconds."""
        return int(_seconds(self.time or "1h") or 0)


@dataclass(frozen=True, slots=True)
class AutomationSpec:
    """When new text is looked for, and what is missing or stale is built."""

    enabled: bool = True
    """Whether sensors and schedule run unless switched off in the UI; false: none runs unless
    switched on there.
    """
    sensor_seconds: Annotated[int, Range(1, 86_400)] = 30
    """Seconds between two looks at the raw folder, and between two at what is missing or stale."""
    settle_seconds: Annotated[float, Range(LEAST_SETTLE_SECONDS, 7 * 86_400)] = 30.0
    """Seconds for which a file must have been left alone before it is read, save in a build by
    hand.
    """
    reconcile: str | None = "0 3 * * *"
    """When everything is compared with what it should be: a cron line; null = never."""
    timezone: str = "UTC"
    """Time zone of the cron line, such as Europe/Vienna."""


@dataclass(frozen=True, slots=True)
class DagsterSpec:
    """Names of the project in Dagster, which set it apart from other projects and assets."""

    key_prefix: tuple[str, ...] = ()
    """Before the key of every asset, and in the names of partitions, jobs, sensors and schedule."""
    group_prefix: str | None = None
    """Before the name of every group of assets; absent = made of key_prefix."""


def chosen_executor(
    file: Path, spec: ExecutorSpec, environment: Mapping[str, str] = os.environ
) -> tuple[ExecutorSpec, str]:
    """Return the settings of the executor, after environment variables have overridden some.

    NANOSET_DASK_ADDRESS or NANOSET_DASK_SCHEDULER_FILE replaces kind, address and scheduler_file;
    NANOSET_DASK_WAIT replaces wait.

    Args:
        file: Path of nanoset.yaml, for messages.
        spec: Its section `executor`.
        environment: The environment variables.

    Returns:
        The settings, and the name of the setting that chose the executor, for messages.

    Raises:
        ConfigError: A variable is invalid, or both an address and a file are given.
    """
    # An empty variable counts as absent.
    address = environment.get(ADDRESS_VARIABLE) or None
    scheduler_file = environment.get(FILE_VARIABLE) or None
    wait = environment.get(WAIT_VARIABLE) or None

    where = f"{file}: executor{_named_by(spec)}"
    errors = list(broken(f"{WAIT_VARIABLE} in the environment", _TEXTS, _check_wait(wait, "")))
    if address is not None or scheduler_file is not None:
        # The file is relative to the current folder.
        variable = ADDRESS_VARIABLE if scheduler_file is None else FILE_VARIABLE
        where = f"{variable} in the environment"
        path = None if scheduler_file is None else str(Path(scheduler_file).absolute())
        spec = ExecutorSpec("dask", address, path, spec.wait)
        errors += broken(where, _TEXTS, *_check_scheduler(spec, ""))
    if errors:
        raise combined(errors, "the environment")
    return replace(spec, wait=wait or spec.wait), where


def executor_errors(file: Path, spec: ExecutorSpec) -> Iterator[ConfigError]:
    """Yield an error for each mistake in the section `executor` or in environment variables.

    Args:
        file: Path of nanoset.yaml, for messages.
        spec: The section.
    """
    # Keys of another kind of executor.
    where = f"{file}: executor"
    lacks = f"the executor {spec.kind} has no"
    if spec.kind == "processes":
        lacks = "processes have no"
    for key, value in asdict(spec).items():
        if key == "kind" or key in _KEYS[spec.kind] or value is None:
            continue
        kinds_with_key = " or ".join(kind for kind, keys in _KEYS.items() if key in keys)
        yield ConfigError(
            f"{lacks} {key}",
            where=f"{where}.{key}",
            found=repr(value),
            remedy=f"set executor.kind to {kinds_with_key}, or remove the key",
        )

    # Values that are not valid, in the order of the documentation.
    checks: list[SettingCheck] = []
    if spec.kind == "dask":
        checks += _check_scheduler(spec, _named_by(spec))
    if spec.kind == "slurm":
        checks += _check_slurm(spec)
    checks.append(_check_wait(spec.wait, ".wait"))
    if spec.kind == "slurm":
        checks += _check_job_script(spec)
    yield from broken(where, _TEXTS, *checks)

    # Environment variables that are not valid.
    yield from raised(chosen_executor, file, spec)


def _check_slurm(spec: ExecutorSpec) -> Iterator[SettingCheck]:
    """Check the number, the time limit and the memory of Slurm jobs.

    Args:
        spec: The settings of the executor.

    Yields:
        Whether each setting is valid, for `broken`, which turns failed checks into errors.
    """
    yield SettingCheck(spec.jobs is None, "jobs", ".jobs", None)

    seconds = _seconds(spec.time or "1h")
    is_time_limit = seconds is not None and _SHORTEST_JOB <= seconds <= _LONGEST_WAIT
    yield SettingCheck(not is_time_limit, "time", ".time", spec.time)

    is_size = _MEMORY.fullmatch(spec.memory or "2GB") is not None
    yield SettingCheck(not is_size, "memory", ".memory", spec.memory)


def _check_job_script(spec: ExecutorSpec) -> Iterator[SettingCheck]:
    """Check the texts that become part of a Slurm job's script, which a shell runs.

    Args:
        spec: The settings of the executor.

    Yields:
        Whether each text is safe, for `broken`, which turns failed checks into errors.
    """
    for key, value in (("partition", spec.partition), ("account", spec.account)):
        is_unsafe = value is not None and not _SLURM_NAME.fullmatch(value)
        yield SettingCheck(is_unsafe, "name", f".{key}", repr(value))

    # A directive with control characters would not be what people see.
    for number, directive in enumerate(spec.directives or ()):
        is_unsafe = not _DIRECTIVE.fullmatch(directive) or visible(directive) != directive
        yield SettingCheck(is_unsafe, "directive", f".directives[{number}]", repr(directive))


def _named_by(spec: ExecutorSpec) -> str:
    """Return the key that names the Dask scheduler, with a dot, as the end of a path for messages.

    It is empty for executors that have no scheduler.
    """
    if spec.kind != "dask":
        return ""
    return ".address" if spec.scheduler_file is None else ".scheduler_file"


def _check_scheduler(spec: ExecutorSpec, key: str) -> Iterator[SettingCheck]:
    """Check that a Dask scheduler is named once, by a valid address or by a file.

    Args:
        spec: The settings of the executor.
        key: The key that is to blame, such as ".address", or "" if no single key is.

    Yields:
        The results, for `broken`, which turns failed checks into errors.
    """
    address = spec.address
    file = spec.scheduler_file
    is_named_twice = address is not None and file is not None
    names = f"the address {address}, and the file {file}"
    yield SettingCheck(is_named_twice, "twice", key, names)

    # Without a file, there has to be an address.
    is_named = file is not None or _ADDRESS.fullmatch(address or "") is not None
    yield SettingCheck(not is_named, "address", key, repr(address))


def _check_wait(wait: str | float | None, key: str) -> SettingCheck:
    """Check that a time to wait is a duration of at most 366 days.

    Args:
        wait: The time, such as "30m" or a number of seconds; None if it is not set.
        key: The key, such as ".wait", or "" for an environment variable.
    """
    seconds = _seconds(wait or 0)
    is_duration = seconds is not None and 0 <= seconds <= _LONGEST_WAIT
    return SettingCheck(not is_duration, "wait", key, repr(wait))


def _seconds(text: str | float) -> float | None:
    """Return the seconds of a duration, such as 1800 for "30m", or None if it is not a duration.

    A number without a unit is in seconds.
    """
    match = _DURATION.fullmatch(str(text))
    if match is None:
        return None
    number, unit = match.groups()
    return float(number) * _SECONDS[unit]


def automation_errors(file: Path, spec: AutomationSpec) -> Iterator[ConfigError]:
    """Yield an error for an invalid cron line, and for an unknown time zone.

    Args:
        file: Path of nanoset.yaml, for messages.
        spec: Its section `automation`.
    """
    if spec.reconcile is not None and not _CRON.fullmatch(spec.reconcile):
        yield no_cron_line(file, spec.reconcile)
    if spec.timezone != "UTC":
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(spec.timezone)
        except (KeyError, ValueError, OSError):
            check = SettingCheck(True, "timezone", ".timezone", repr(spec.timezone))
            yield from broken(f"{file}: automation", _TEXTS, check)


def no_cron_line(file: Path, found: str) -> ConfigError:
    """Return the error for a `reconcile` that is not a cron line."""
    check = SettingCheck(True, "cron", ".reconcile", repr(found))
    return next(broken(f"{file}: automation", _TEXTS, check))
