"""How a build is connected to a Dask cluster, whose workers may be Slurm jobs that it starts, until
it ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from nanoset_core.errors import ConfigError, joined_lines
from nanoset_core.execution.interruption import handlers_kept, ignore_sigint, undisturbed
from nanoset_core.execution.progress import Progress, ProgressCallback, Waiting
from nanoset_core.records.text import format_age
from nanoset_core.storage.atomic import claim_scratch
from nanoset_core.untrusted import shell_line, shell_word

Client: TypeAlias = Any
"""distributed.Client; the package has no types."""
Told: TypeAlias = Progress | str
"""What a task tells on a worker: how it comes on, or a warning."""

CONNECT_SECONDS = 8.0
"""After which an attempt to reach a scheduler is given up."""
_PAUSE_SECONDS = 0.5
"""Between two attempts."""
_ATTEMPTS = 10
_CLOSE_SECONDS = 30.0
"""In which jobs are cancelled; where Slurm does not answer, their workers end by themselves."""
TOPIC = "nanoset"
"""Under which workers tell how their tasks come on: of all runs, since a scheduler keeps topics for
good.
"""
_MARGIN_SECONDS = 300
"""At most so long before Slurm would end a job, its workers end by themselves, and others take
their tasks.
"""


@dataclass(frozen=True, slots=True)
class DaskScheduler:
    """A Dask scheduler that runs elsewhere, and its workers."""

    address: str | None = None
    """Such as tcp://scheduler:8786; None where a file holds it."""
    file: Path | None = None
    """What `dask scheduler --scheduler-file` writes."""
    wait_seconds: float = 60.0
    """How long it is waited for, and then its workers."""
    where: str = "executor.address"
    """What names it, for messages."""

    @property
    def name(self) -> str:
        """Its address or its file."""
        return self.address or str(self.file)

    @property
    def start_workers(self) -> str:
        """The command that starts workers."""
        scheduler = (self.address,) if self.address is not None else ("--scheduler-file", self.file)
        return f"start some with `{shell_line('dask', 'worker', *scheduler, '--nthreads', 1)}`"

    def connect(self, stack: ExitStack, listener: ProgressCallback, wait_seconds: float) -> Client:
        """Connect to it, as soon as it is there; ConfigError where that takes too long, or it
        refuses this client.
        """
        from distributed.comm import core as untyped

        fatal: Any = untyped.FatalCommClosedError  # a refusal by TLS, which waiting does not change
        waiting = Waiting(listener, f"for the Dask scheduler {self.name}", wait_seconds)
        while True:
            try:
                address = self._address()
                # In a thread, since this one may run an event loop, as notebooks do.
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(asyncio.run, _greet(address, CONNECT_SECONDS)).result()
                client = open_client(address)
                waiting.end()
                return client
            except (
                OSError,
                ValueError,
                TypeError,
                RuntimeError,
            ) as error:  # TimeoutError is an OSError
                if (
                    not isinstance(error, OSError)
                    or isinstance(error, fatal)
                    or not waiting.goes_on()
                ):
                    raise self._unreachable(error) from error
            time.sleep(_PAUSE_SECONDS)

    def _address(self) -> str:
        """Return the address; a file is read each time, since a scheduler that is started again
        writes it again.
        """
        if self.file is None:
            return self.address or ""
        text = self.file.read_text(encoding="utf-8")
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(text)["address"])
        raise FileNotFoundError(f"no address in the {len(text):,} characters of {self.file}")

    def _unreachable(self, error: Exception) -> ConfigError:
        found = str(error) or "it accepts connections, and does not greet"
        if self.file is not None and isinstance(error, FileNotFoundError):
            what = "no Dask scheduler has written its file"
            expected = f"the file within {format_age(self.wait_seconds)}"
            found = f"{error.strerror}: {self.file}" if error.strerror else found
            command = shell_line("dask", "scheduler", "--scheduler-file", self.file)
            remedy = f"start it with `{command}`, or set executor.wait to more"
        else:
            what, found = "no Dask scheduler answers at this address", f"{self.name}: {found}"
            expected = f"an answer within {format_age(max(self.wait_seconds, CONNECT_SECONDS))}"
            remedy = "start it with `dask scheduler`, or correct the address; one of tls:// takes a client that Dask's "
            remedy += "configuration gives a certificate of the same authority"
        return ConfigError(what, where=self.where, found=found, expected=expected, remedy=remedy)


@dataclass(frozen=True, slots=True)
class SlurmJobs:
    """Jobs that Slurm is asked for, and asked for again where one ends before the build."""

    jobs: int
    """How many at a time."""
    cpus: int
    """Of each job; as many worker processes."""
    memory: str
    """Of each job, such as 2GB."""
    seconds: int
    """Time limit of each job."""
    folder: Path
    """On a file system that the nodes see: logs, and keys while the cluster runs."""
    partition: str | None = None
    """None for the site's default."""
    account: str | None = None
    """The same."""
    directives: tuple[str, ...] = ()
    """What else `#SBATCH` says."""
    wait_seconds: float = 86_400.0
    """How long a queue may take."""
    where: str = "executor"
    """What names it, for messages."""

    @property
    def name(self) -> str:
        """What was asked for."""
        return f"{self.jobs} Slurm jobs" if self.jobs > 1 else "a Slurm job"

    @property
    def start_workers(self) -> str:
        """Where Slurm says why there are no workers."""
        return f"see by `squeue --me --start` what the jobs wait for, and in {self.folder} what those said that ended"

    def connect(self, stack: ExitStack, listener: ProgressCallback, wait_seconds: float) -> Client:
        """Start a scheduler in this process, and submit the jobs, which are cancelled when the
        stack is closed.

        ConfigError where dask-jobqueue or Slurm is not installed, or Slurm refuses such a job.
        """
        if shutil.which("sbatch") is None:
            remedy = "build on a machine from which jobs are submitted, or set executor.kind to processes or dask"
            raise ConfigError(
                "there is no Slurm here", where=self.where, found="no command sbatch", remedy=remedy
            )
        if shell_word(self.folder) != str(self.folder):
            what, found = (
                "dask-jobqueue cannot write this path into a job's script",
                repr(str(self.folder)),
            )
            remedy = "move the project to a path without spaces and characters that are special to a shell"
            raise ConfigError(what, where=self.where, found=found, remedy=remedy)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keys = stack.enter_context(claim_scratch(self.folder / "keys"))
        with ignore_sigint():  # or Ctrl-C in a terminal ends an sbatch whose job is not known yet
            cluster = self._cluster(keys)
        stack.callback(_close, cluster)
        self._check_job(cluster.job_script())
        # `scale` would not replace a job that ended
        cluster.adapt(minimum_jobs=self.jobs, maximum_jobs=self.jobs)
        return open_client(cluster)

    def _cluster(self, keys: Path) -> Any:
        """Return the cluster; to join it takes a new TLS certificate, which lies in the folder
        `keys`.
        """
        try:
            with handlers_kept():  # the package sets a handler of SIGINT that exits with 0
                import dask_jobqueue as untyped_jobs
        except ImportError as error:
            what, remedy = (
                "the package `dask-jobqueue` is not installed",
                "pip install 'nanoset-platform[slurm]'",
            )
            raise ConfigError(what, where=self.where, found=str(error), remedy=remedy) from error
        import dask as untyped

        config: Any = untyped.config
        dask_jobqueue: Any = untyped_jobs
        lifetime = self.seconds - min(_MARGIN_SECONDS, self.seconds // 10)
        more = config.get("jobqueue.slurm.worker-extra-args", None) or []
        options = config.get("jobqueue.slurm.scheduler-options", None) or {}
        return dask_jobqueue.SLURMCluster(
            queue=self.partition,
            account=self.account,
            cores=self.cpus,
            processes=self.cpus,
            memory=self.memory,
            walltime=f"{self.seconds // 60}:{self.seconds % 60:02}",
            job_name="nanoset",
            job_extra_directives=list(self.directives),
            log_directory=str(self.folder),
            python=shell_word(sys.executable),
            security=_new_security(keys),
            protocol="tls://",
            worker_extra_args=[*more, "--no-dashboard", "--lifetime", f"{lifetime}s"],
            scheduler_options={"dashboard_address": "127.0.0.1:0", **options},
        )

    def _check_job(self, script: str) -> None:
        """Ask Slurm whether it would take such a job; a cluster that adapts only logs that it does
        not.
        """
        command = ["sbatch", "--test-only"]
        asked = subprocess.run(
            command, input=script, capture_output=True, encoding="utf-8", errors="replace"
        )
        if asked.returncode != 0:
            remedy = "correct partition, account, time, cpus, memory or directives; `sinfo` lists what there is"
            found = joined_lines(asked.stderr)
            raise ConfigError(
                "Slurm refuses the jobs", where=self.where, found=found, remedy=remedy
            )


DaskCluster: TypeAlias = DaskScheduler | SlurmJobs
"""What can be connected to; equal ones are the same."""


def _new_security(folder: Path) -> Any:
    """Return a new certificate for all parts of a cluster, in files that only this user reads."""
    from distributed import Security as untyped

    security: Any = untyped
    made = security.temporary().get_tls_config_for_role("worker")
    files = {}
    for name in ("ca_file", "cert", "key"):
        files[name] = str(folder / name)
        with open(files[name], "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            file.write(made[name])
    parts = {
        f"tls_{role}_{name}": files[name]
        for role in ("scheduler", "worker", "client")
        for name in ("cert", "key")
    }
    return security(require_encryption=True, tls_ca_file=files["ca_file"], **parts)


def _close(cluster: Any) -> None:
    """Cancel the jobs, however often somebody presses Ctrl-C; no job outlives its scheduler for
    long in any case.
    """
    with undisturbed(), suppress(TimeoutError):
        cluster.close(timeout=_CLOSE_SECONDS)


async def _greet(address: str, seconds: float) -> None:
    """Connect to an address and disconnect; TimeoutError where it accepts connections and does not
    greet.

    `distributed` bounds how long it connects, but waits for the greeting without end.
    """
    from distributed import Security
    from distributed import comm as untyped

    connect: Any = untyped.core.connect
    security: Any = Security()  # type: ignore[no-untyped-call, unused-ignore]
    encryption = security.get_connection_args("client")
    comm = await asyncio.wait_for(connect(address, timeout=seconds, **encryption), seconds + 1)
    await comm.close()


def open_client(scheduler: Any) -> Client:
    """Return a client of a scheduler at an address, or of a cluster of this process.

    `distributed` asserts that nothing comes with the scheduler's greeting, where also a worker's
    joining may come.
    """
    import distributed as untyped

    distributed: Any = untyped
    for _ in range(_ATTEMPTS):
        with suppress(AssertionError):
            return distributed.Client(
                scheduler, timeout=CONNECT_SECONDS, set_as_default=False, name="nanoset"
            )
        time.sleep(_PAUSE_SECONDS)
    raise TimeoutError(
        f"workers were joining each time that this process wanted to, {_ATTEMPTS} times"
    )


class Connection:
    """A client of a cluster, and how long this process still waits for that cluster."""

    def __init__(self, cluster: DaskCluster) -> None:
        self.cluster = cluster
        self.wait_seconds = cluster.wait_seconds
        """Nothing once workers were waited for in vain: hundreds of outputs may be to come."""
        self.hearers: dict[str, Callable[[Told], None]] = {}
        """Place of a run → takes what its tasks tell on workers."""
        self._failure: ConfigError | None = None
        self._client: Client | None = None
        self._stack = ExitStack()

    def open(self, listener: ProgressCallback) -> Client:
        """Return the client; a new one where there is none, or where the former has lost its
        scheduler.

        ConfigError where `distributed` is not installed, or as `connect`; what failed is not tried
        again.
        """
        if self._failure is not None:
            raise self._failure
        try:
            import distributed as _  # noqa: F401
        except ImportError as error:
            what, remedy = (
                "the package `distributed` is not installed",
                "pip install 'nanoset-platform[dask]'",
            )
            raise ConfigError(
                what, where=self.cluster.where, found=str(error), remedy=remedy
            ) from error
        if self._client is None or self._client.status != "running":
            self.close()
            try:
                connecting = self.cluster.connect(self._stack, listener, self.cluster.wait_seconds)
                self._client = self._stack.enter_context(connecting)
                self._client.subscribe_topic(TOPIC, self._hear)
            except ConfigError as error:
                self._failure = error
                raise
            self.wait_seconds = self.cluster.wait_seconds
        return self._client

    def _hear(self, event: tuple[float, list[Any]]) -> None:
        place, *told = event[1]
        if place in self.hearers:
            self.hearers[place](told[0] if len(told) == 1 else Progress(*told))

    def close(self) -> None:
        """Disconnect."""
        self._client = None
        self._stack.close()


_kept: list[dict[DaskCluster, Connection]] = []
"""The connections of a block of `connections_kept`; at most one."""


@contextmanager
def connections_kept() -> Iterator[None]:
    """Connect to a cluster once within this block, and not once for every call of
    `DaskExecutor.run`.
    """
    if _kept:
        yield
        return
    kept: dict[DaskCluster, Connection] = {}
    _kept.append(kept)
    try:
        yield
    finally:
        _kept.remove(kept)
        for connection in kept.values():
            connection.close()


@contextmanager
def connected(cluster: DaskCluster) -> Iterator[Connection]:
    """Yield a connection to a cluster: that of the block of `connections_kept`, or one for this
    block.
    """
    with connections_kept():
        yield _kept[0].setdefault(cluster, Connection(cluster))
