"""The settings of runs: executor, environment variables, automation, and names in Dagster.

The *executor* does long tasks in parallel: processes of this machine, or workers of a cluster. For
example, `executor: {kind: dask, address: tcp://scheduler:8786}` in nanoset.yaml names a Dask
cluster, and the environment variable NANOSET_DASK_ADDRESS overrides it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from nanoset_core.errors import ConfigError, combined
from nanoset_core.records.rules import Section
from nanoset_core.records.settings import Range
from nanoset_core.untrusted import visible

ADDRESS_VARIABLE = "NANOSET_DASK_ADDRESS"
FILE_VARIABLE = "NANOSET_DASK_SCHEDULER_FILE"
WAIT_VARIABLE = "NANOSET_DASK_WAIT"
RAY_ADDRESS_VARIABLE = "NANOSET_RAY_ADDRESS"
RAY_WAIT_VARIABLE = "NANOSET_RAY_WAIT"
_HOST_AND_PORT = r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]@]+):[0-9]{1,5}"
"""IPv6 addresses are in brackets."""
_DASK_ADDRESS = re.compile(f"(tcp|tls)://{_HOST_AND_PORT}")
"""Address of a Dask scheduler."""
_RAY_ADDRESS = re.compile(f"ray://{_HOST_AND_PORT}")
"""Address of the client server of a Ray cluster."""
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
_KEYS = {
    "processes": (),
    "dask": ("address", "scheduler_file", "wait"),
    "ray": ("address", "wait"),
    "slurm": ("wait", "jobs", "partition", "account", "time", "cpus", "memory", "directives"),
}
"""Kind of executor → the keys that it has."""


@dataclass(frozen=True, slots=True)
class ExecutorSpec(Section):
    """Who tokenizes, writes tars and verifies deeply; the bytes of outputs do not depend on it."""

    kind: Literal["processes", "dask", "ray", "slurm"] = "processes"
    """Processes of this machine, the workers of a Dask or Ray cluster, or workers that the build
    starts as Slurm jobs.
    """
    address: str | None = None
    """Address of the Dask scheduler, such as tcp://scheduler:8786, or of Ray's client server, such
    as ray://head:10001.
    """
    scheduler_file: str | None = None
    """Instead of the address: the file that `dask scheduler --scheduler-file` writes."""
    wait: str | float | None = None
    """How long a build waits for the cluster and its workers: 24h, 30m, or seconds; absent = 60,
    for Slurm's queue 24h.
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
        """How long a build waits for the cluster and its workers, in seconds."""
        if self.wait is not None:
            seconds = _seconds(self.wait)
            if seconds is not None:
                return seconds
        # Slurm's queue may be long; a cluster of Dask or Ray is usually running.
        return 86_400.0 if self.kind == "slurm" else 60.0

    @property
    def time_seconds(self) -> int:
        """The time limit of a Slurm job, in seconds; 0 if it is not a duration."""
        if self.time is None:
            return 3600
        return int(_seconds(self.time) or 0)

    def cluster_key(self, where: str) -> str:
        """Return which setting names the cluster on which tasks run, for messages. For example:

            kind: dask, address: tcp://a:8786           nanoset.yaml: executor.address
            kind: dask, scheduler_file: /home/s.json    nanoset.yaml: executor.scheduler_file
            kind: slurm                                 nanoset.yaml: executor

        Args:
            where: Place of these settings, such as "nanoset.yaml: executor".
        """
        if self.kind not in ("dask", "ray"):
            return where
        key = "address" if self.scheduler_file is None else "scheduler_file"
        return f"{where}.{key}"

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each mistake in the settings that say where tasks run.

        Tasks run in processes of this machine, or on a cluster of Dask, Ray or Slurm, which is the
        `kind`. For example, these are mistakes:

            kind: dask, partition: gpu      `partition` is a key for Slurm
            kind: dask, address: myhost     the address must be such as tcp://myhost:8786
            wait: soon                      not a duration

        Environment variables can override these settings, and are checked, too.

        Args:
            where: Place of the settings, such as "nanoset.yaml: executor".
        """
        yield from self._keys_of_other_kinds(where)
        yield from _cluster_errors(self, self.cluster_key(where))
        yield from _wait_errors(self.wait, f"{where}.wait")
        if self.kind == "slurm":
            yield from self._slurm_errors(where)

        try:
            chosen_executor(where, self)  # raises an error for mistakes in environment variables
        except ConfigError as error:
            yield error

    def _keys_of_other_kinds(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each setting that the chosen kind of cluster does not have.

        For example, with `kind: dask` and `partition: gpu`, the error says "the executor dask has
        no partition", and suggests kind slurm, which has.

        Args:
            where: Place of these settings, such as "nanoset.yaml: executor".
        """
        lacks = f"the executor {self.kind} has no"
        if self.kind == "processes":
            lacks = "processes have no"
        for key, value in asdict(self).items():
            if key == "kind" or key in _KEYS[self.kind] or value is None:
                continue
            kinds_with_key = " or ".join(kind for kind, keys in _KEYS.items() if key in keys)
            yield ConfigError(
                f"{lacks} {key}",
                where=f"{where}.{key}",
                found=repr(value),
                remedy=f"set executor.kind to {kinds_with_key}, or remove the key",
            )

    def _slurm_errors(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each setting that Slurm, which runs jobs on a cluster, cannot take.

        For example:

            time: soon          not a time limit: write 90m, 4h or 2d
            memory: 8           not a size: write 8GB
            partition: a;b      cannot be written into the script of a job

        Args:
            where: Place of these settings, such as "nanoset.yaml: executor".
        """
        if self.jobs is None:
            yield ConfigError(
                "the number of Slurm jobs is missing",
                where=f"{where}.jobs",
                remedy='add it: "jobs: 20"',
            )
        if not _SHORTEST_JOB <= self.time_seconds <= _LONGEST_WAIT:
            yield ConfigError(
                "this is not a time limit for a Slurm job",
                where=f"{where}.time",
                found=repr(self.time),
                expected="m, h or d, from 2m to 366d",
                remedy="write 90m, 4h or 2d",
            )
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            yield ConfigError(
                "this is not a size of memory",
                where=f"{where}.memory",
                found=self.memory,
                expected="a number with MB, GB or TB",
                remedy="write 8GB",
            )

        # What is written into the script of a job.
        yield from self._name_errors(where)
        yield from self._directive_errors(where)

    def _name_errors(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each name that must not be written into the script of a Slurm job.

        A shell runs the script. With the partition "gpu; rm -rf x", it would run a second command.

        Args:
            where: Place of these settings, such as "nanoset.yaml: executor".
        """
        for key, name in (("partition", self.partition), ("account", self.account)):
            if name is not None and not _SLURM_NAME.fullmatch(name):
                yield ConfigError(
                    "this cannot be written into a job's script",
                    where=f"{where}.{key}",
                    found=repr(name),
                    expected="letters, digits and . _ - , : @ % + = /",
                    remedy="write the name as `sinfo` or `sacctmgr` shows it",
                )

    def _directive_errors(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each option for Slurm that cannot be written into the script of a job.

        Users can add options of Slurm, each of which becomes a line of the script:

            directives: ["--constraint=ib"]      #SBATCH --constraint=ib
            directives: ["rm -rf x"]             an error: it does not begin with -

        Args:
            where: Place of these settings, such as "nanoset.yaml: executor".
        """
        for number, directive in enumerate(self.directives or ()):
            # `visible` escapes characters that nobody would see in the script.
            has_invisible_characters = visible(directive) != directive
            if has_invisible_characters or not _DIRECTIVE.fullmatch(directive):
                yield ConfigError(
                    "this cannot be a line of a job's script",
                    where=f"{where}.directives[{number}]",
                    found=repr(directive),
                    expected="one line that begins with - and that can be seen as it is",
                    remedy='write one option of sbatch for each entry, such as "--constraint=ib"',
                )


@dataclass(frozen=True, slots=True)
class AutomationSpec(Section):
    """When Dagster looks for new text, and builds what is missing or stale."""

    enabled: bool = True
    """Whether the sensors and the schedule that build outputs run unless switched off in the UI;
    false: none of them runs unless switched on there.
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

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each mistake in the settings of the nightly check.

        Usually, a build starts when somebody adds a file. In addition, everything is checked at
        certain times, which are set by a line as for the program cron, and a time zone:

            reconcile: 0 3 * * *        minute 0 of hour 3, every day
            timezone: Europe/Vienna

        Args:
            where: Place of these settings, such as "nanoset.yaml: automation".
        """
        if self.reconcile is not None and not _CRON.fullmatch(self.reconcile):
            yield not_a_cron_line(f"{where}.reconcile", self.reconcile)
        if not _is_time_zone(self.timezone):
            yield ConfigError(
                "this timezone is not known",
                where=f"{where}.timezone",
                found=repr(self.timezone),
                expected="a name of the IANA database, such as UTC or Europe/Vienna",
                remedy="look the name up there, or remove the key to get UTC",
            )


@dataclass(frozen=True, slots=True)
class DagsterSpec:
    """Prefixes of the project in Dagster, which tell it apart from other projects and assets."""

    key_prefix: tuple[str, ...] = ()
    """Before the key of every asset, and in the names of partitions, jobs, sensors and schedule."""
    group_prefix: str | None = None
    """Before the name of every group of assets; absent = made of key_prefix."""


class ChosenExecutor(NamedTuple):
    """The executor of a project, and what chose it."""

    spec: ExecutorSpec
    """Its settings."""
    chosen_by: str
    """The key of nanoset.yaml or the environment variable that chose it, for messages."""


def chosen_executor(
    where: str, spec: ExecutorSpec, environment: Mapping[str, str] = os.environ
) -> ChosenExecutor:
    """Return where tasks run: by the settings, or by environment variables that override them.

    For example, the settings name a Dask cluster, and on one machine, variables name another one:

        settings        kind: dask, address: tcp://a:8786, wait: 5m
        environment     NANOSET_DASK_ADDRESS=tcp://b:8786
        result          kind: dask, address: tcp://b:8786, wait: 5m

    NANOSET_DASK_SCHEDULER_FILE and NANOSET_RAY_ADDRESS do the same. How long to wait for the
    cluster is replaced by NANOSET_RAY_WAIT for Ray, and by NANOSET_DASK_WAIT for all other kinds.

    Args:
        where: Place of the settings in nanoset.yaml, for messages.
        spec: The settings.
        environment: The environment variables. Empty ones count as absent.

    Raises:
        ConfigError: A variable is invalid, or the variables name more than one cluster.
    """
    errors: list[ConfigError] = []
    chosen_by = spec.cluster_key(where)  # the key that names the cluster, for messages

    # Replace the cluster. The time to wait is set separately.
    environment_cluster = _cluster_of_environment(environment)
    if environment_cluster is not None:
        spec = replace(environment_cluster.spec, wait=spec.wait)
        chosen_by = environment_cluster.chosen_by
        errors += _cluster_errors(spec, chosen_by)

    # Replace the time to wait.
    wait_variable = RAY_WAIT_VARIABLE if spec.kind == "ray" else WAIT_VARIABLE
    wait = environment.get(wait_variable)
    if wait:
        errors += _wait_errors(wait, f"{wait_variable} in the environment")
        spec = replace(spec, wait=wait)

    if errors:
        raise combined(errors, "the environment")
    return ChosenExecutor(spec, chosen_by)


def _cluster_of_environment(environment: Mapping[str, str]) -> ChosenExecutor | None:
    """Return the cluster for running tasks that environment variables name, if they name one.

        NANOSET_DASK_ADDRESS=tcp://a:8786           a Dask cluster
        NANOSET_DASK_SCHEDULER_FILE=/home/s.json    a Dask cluster; the file has its address
        NANOSET_RAY_ADDRESS=ray://a:10001           a Ray cluster

    Args:
        environment: The environment variables. Empty ones count as absent.

    Returns:
        The cluster, with the variable that names it; or None.

    Raises:
        ConfigError: The variables name a Dask cluster and a Ray cluster.
    """
    dask_cluster = _dask_of_environment(environment)
    ray_address = environment.get(RAY_ADDRESS_VARIABLE)
    if not ray_address:
        return dask_cluster  # None if no variable names a Dask cluster either

    if dask_cluster is not None:
        if dask_cluster.spec.scheduler_file:
            dask_variable = FILE_VARIABLE
        else:
            dask_variable = ADDRESS_VARIABLE
        raise ConfigError(
            "two clusters are named",
            where=f"{RAY_ADDRESS_VARIABLE} in the environment",
            found=f"{RAY_ADDRESS_VARIABLE} and {dask_variable}",
            expected="one of them",
            remedy="unset the other one",
        )
    ray_spec = ExecutorSpec("ray", ray_address)
    return ChosenExecutor(ray_spec, f"{RAY_ADDRESS_VARIABLE} in the environment")


def _dask_of_environment(environment: Mapping[str, str]) -> ChosenExecutor | None:
    """Return the Dask cluster that environment variables name, if they name one.

    Dask's scheduler, which gives tasks to workers, is named by its address, or by a JSON file that
    contains the address:

        NANOSET_DASK_ADDRESS=tcp://a:8786
        NANOSET_DASK_SCHEDULER_FILE=/home/s.json

    Args:
        environment: The environment variables. Empty ones count as absent.

    Returns:
        The cluster, with the variable that names it; None if neither does. If both do, the result
        has both, which the caller reports as a mistake.
    """
    address = environment.get(ADDRESS_VARIABLE) or None
    scheduler_file = environment.get(FILE_VARIABLE) or None
    if address is None and scheduler_file is None:
        return None
    variable = ADDRESS_VARIABLE
    if scheduler_file is not None:
        variable = FILE_VARIABLE
        # A path in a variable is relative to the current folder, not to that of nanoset.yaml.
        scheduler_file = str(Path(scheduler_file).absolute())
    spec = ExecutorSpec("dask", address, scheduler_file)
    return ChosenExecutor(spec, f"{variable} in the environment")


def _cluster_errors(spec: ExecutorSpec, where: str) -> Iterator[ConfigError]:
    """Yield an error for each mistake in how a cluster of Dask or Ray is named.

    Args:
        spec: The settings; those of other kinds have no such mistakes.
        where: The key or environment variable that names the cluster.
    """
    if spec.kind == "dask":
        yield from _scheduler_errors(spec, where)
    if spec.kind == "ray":
        yield from _ray_address_errors(spec.address, where)


def _ray_address_errors(address: str | None, where: str) -> Iterator[ConfigError]:
    """Yield an error unless a setting is the address of a Ray cluster, such as ray://host:10001.

    Args:
        address: The value, or None.
        where: The key or environment variable that has it.
    """
    if address is None or not _RAY_ADDRESS.fullmatch(address):
        yield ConfigError(
            "this is not the address of a Ray cluster",
            where=where,
            found=repr(address),
            expected="ray://host:port, the address of Ray's client server",
            remedy="write the host of the cluster's head node, and the port that `ray start` has "
            "as --ray-client-server-port, by default ray://host:10001",
        )


def _scheduler_errors(spec: ExecutorSpec, where: str) -> Iterator[ConfigError]:
    """Yield an error unless the settings name a Dask cluster exactly once.

    Dask's scheduler, which gives tasks to workers, is named by its address or by a file:

        address: tcp://a:8786                           valid
        scheduler_file: /home/s.json                    valid: the file has the address
        both                                            named twice
        neither, or an address such as http://a:8786    not the address of a scheduler

    Args:
        spec: Settings of a Dask cluster.
        where: The key or environment variable that names it, for messages.
    """
    has_file = spec.scheduler_file is not None
    has_address = spec.address is not None
    if has_file and has_address:
        yield ConfigError(
            "the Dask scheduler is named twice",
            where=where,
            found=f"the address {spec.address}, and the file {spec.scheduler_file}",
            expected="one of them",
            remedy="remove the other one",
        )
    if has_file:
        return  # the address in the file is checked when it is read

    is_valid = spec.address is not None and _DASK_ADDRESS.fullmatch(spec.address) is not None
    if not is_valid:
        yield ConfigError(
            "this is not the address of a Dask scheduler",
            where=where,
            found=repr(spec.address),  # None if there is none
            expected=(
                "tcp://host:port or tls://host:port, as the scheduler prints it when it starts"
            ),
            remedy=(
                "copy it from the scheduler's output, or name its scheduler_file, "
                "or set executor.kind to processes"
            ),
        )


def _wait_errors(wait: str | float | None, where: str) -> Iterator[ConfigError]:
    """Yield an error if a setting is not a time to wait for a cluster.

        90, "90s", "30m", "24h"     valid
        "soon", "", "-5", "400d"    not valid

    Args:
        wait: The value; None stands for the default, which is valid.
        where: The key or environment variable that has the value.
    """
    if wait is None:
        return
    seconds = _seconds(wait)
    if seconds is None or not 0 <= seconds <= _LONGEST_WAIT:
        yield ConfigError(
            "this is not a time to wait",
            where=where,
            found=repr(wait),
            expected="seconds, or a number with s, m, h or d, up to 366d",
            remedy="write 90, 30m or 24h",
        )


def _seconds(duration: str | float) -> float | None:
    """Return the seconds of a duration, such as 1800 for "30m", or None if it is not a duration.

    Args:
        duration: A number of seconds, or a text: a number with the unit s, m, h or d, or without.
    """
    if not isinstance(duration, str):
        return duration
    match = _DURATION.fullmatch(duration)
    if match is None:
        return None
    number, unit = match.groups()
    return float(number) * _SECONDS[unit]


def _is_time_zone(name: str) -> bool:
    """Return whether a setting names a time zone: True for Europe/Vienna, False for Europe/Wien.

    Args:
        name: The value of the setting. UTC, the default, is always known, even on a machine without
            a database of time zones.
    """
    if name == "UTC":
        return True
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def not_a_cron_line(where: str, line: str) -> ConfigError:
    """Return the error for a setting that should say when something is done, but does not.

    It has the form of the program cron, such as "0 3 * * *": at minute 0 of hour 3, every day.

    Args:
        where: Place of the setting, such as "nanoset.yaml: automation.reconcile".
        line: Its value.
    """
    return ConfigError(
        "this is not a cron line",
        where=where,
        found=repr(line),
        expected=(
            'minute, hour, day, month and weekday, such as "0 3 * * *" for every night at three; '
            "or null"
        ),
        remedy='write five fields in quotes, such as "0 3 * * *"',
    )
