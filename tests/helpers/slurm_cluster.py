"""A Slurm cluster on this machine: munged, slurmctld and some slurmd, with all files in one folder.

On Debian and Ubuntu: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from helpers.child_processes import wait_until
from helpers.daemons import free_ports

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")
START_SECONDS = 60
CANCEL_SECONDS = 20
LOG_CHARACTERS = 1500
"""How much of the end of each log is shown after a failure."""
SETTINGS = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmdLogFile={folder}/slurmd.%n.log
# Without cgroups, which containers do not have: processes are found by their parents, and bound to no processor.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=100000
# Impatient: a dead node is noticed in 5 s, and what does not end in 5 s is killed.
SlurmdTimeout=5
KillWait=5
MessageTimeout=10
ReturnToService=2
NodeName=n[1-{n_nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs=16 RealMemory=64000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
"""


def search_path() -> str:
    """Return the folders in which programs are looked for; those of daemons are often not on PATH."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])


class Slurm:
    """A running Slurm cluster; commands find it by `environment`."""

    def __init__(self, folder: Path, n_nodes: int) -> None:
        """Describe a cluster whose daemons are not running yet.

        Args:
            folder: Contains all files of the cluster, and its slurm.conf.
            n_nodes: How many nodes it has.
        """
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, n_nodes + 1)]
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start the daemons that are not running, and wait until all nodes can run jobs."""
        for node in self.nodes:
            (self.folder / f"spool.{node}").mkdir(exist_ok=True)
        if not _is_running("munged", self._munge_pid_file):
            self._start_munge()
        if not _is_running("slurmctld", self._controller_pid_file):
            self.run("slurmctld")
        for node in self.nodes:
            if not _is_running("slurmd", self._node_pid_file(node)):
                self.run("slurmd", "-N", node)
        self.until(self._is_ready)

    def _start_munge(self) -> None:
        """Start the daemon by which the others recognise each other."""
        folder = self.folder / "munge"
        self.run(
            "munged",
            f"--key-file={folder / 'key'}",
            f"--socket={folder / 'socket'}",
            f"--seed-file={folder / 'seed'}",
            f"--log-file={folder / 'log'}",
            f"--pid-file={self._munge_pid_file}",
            "--num-threads=2",
            "--force",
        )

    def _is_ready(self) -> bool:
        """Return whether all nodes can run jobs."""
        states = self.run("sinfo", "-h", "-N", "-o", "%T").split()
        return set(states) <= {"idle", "mixed", "allocated"}

    @property
    def _munge_pid_file(self) -> Path:
        return self.folder / "munge" / "pid"

    @property
    def _controller_pid_file(self) -> Path:
        return self.folder / "slurmctld.pid"

    def _node_pid_file(self, node: str) -> Path:
        return self.folder / f"slurmd.{node}.pid"

    def run(self, *command: str, code: int = 0, **options: Any) -> str:
        """Run a command of Slurm, expect its exit code, and return what it prints."""
        program = shutil.which(command[0], path=search_path())
        assert program is not None, f"{command[0]} is not installed"
        options.setdefault("env", self.environment)
        options.setdefault("timeout", START_SECONDS)
        process = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        assert process.returncode == code, f"{command}: {process.stdout}{process.stderr}"
        return process.stdout.strip()

    def submit(
        self,
        script: Path,
        *arguments: str,
        sbatch_options: Iterable[str] = (),
        folder: Path | None = None,
    ) -> str:
        """Submit a script, and return the number of its job.

        Args:
            script: The script.
            arguments: Its arguments.
            sbatch_options: Options of `sbatch`.
            folder: The current folder of the job.
        """
        command = ["sbatch", "--parsable", *sbatch_options, str(script), *arguments]
        return self.run(*command, cwd=folder)

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING; "" if Slurm has forgotten it."""
        states = self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").split()
        return states[0] if states else ""

    def queue(self) -> str:
        """Return the jobs that have not ended, one a line."""
        return self.run("squeue", "-h")

    def cancel_all(self) -> None:
        """Cancel the jobs of this user, and wait until they have ended."""
        self.run("scancel", f"--user={getpass.getuser()}")
        self.until(lambda: not self.queue())

    def until(self, condition: Callable[[], object], seconds: float = START_SECONDS) -> None:
        """Wait until a condition holds; commands that fail meanwhile are ignored."""

        def holds() -> object:
            with suppress(AssertionError):
                return condition()
            return None

        assert wait_until(holds, seconds, pause=0.2), self._logs()

    def _logs(self) -> str:
        """Return the queue and the ends of all logs."""
        queue = subprocess.getoutput(f"SLURM_CONF={self.folder}/slurm.conf squeue")
        parts = ["a wait was too long", queue]
        for path in sorted(self.folder.glob("*.log")):
            parts.append(path.read_text(errors="replace")[-LOG_CHARACTERS:])
        return "\n".join(parts)

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node with everything that it runs, as a power failure does."""
        os.kill(_read_pid(self._node_pid_file(node)), signal.SIGKILL)
        jobs = self._processes_of_jobs(node)

        # The processes that supervise jobs come first, or they would report that their job failed.
        supervisors = set()
        for pid in jobs:
            supervisor = _supervisor_of(pid)
            if supervisor is not None and supervisor not in jobs:
                supervisors.add(supervisor)
        _kill([*supervisors, *jobs])

    def end(self) -> None:
        """Cancel the jobs and end the daemons."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", f"--user={getpass.getuser()}")
            self.until(lambda: not self.queue(), CANCEL_SECONDS)

        pid_files = [self._node_pid_file(node) for node in self.nodes]
        pid_files += [self._controller_pid_file, self._munge_pid_file]
        for pid_file in pid_files:
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):
                os.kill(_read_pid(pid_file), signal.SIGTERM)
        for node in self.nodes:
            _kill(self._processes_of_jobs(node))

    def _processes_of_jobs(self, node: str) -> list[int]:
        """Return the processes of a node's jobs, by the environment that Slurm gives them."""
        marks = {
            f"SLURM_CONF={self.folder / 'slurm.conf'}".encode(),
            f"SLURMD_NODENAME={node}".encode(),
        }
        pids = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended in the meantime, or is another user's
                if marks <= set(path.read_bytes().split(b"\0")):
                    pids.append(int(path.parent.name))
        return pids


def _kill(pids: Iterable[int]) -> None:
    """Kill processes, of which some may have ended in the meantime."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_running(name: str, pid_file: Path) -> bool:
    """Return whether the process that a file names is a running daemon of Slurm."""
    with suppress(OSError, ValueError):
        # A zombie has no executable.
        executable = Path(f"/proc/{_read_pid(pid_file)}/exe").readlink()
        return executable.name.startswith(name)
    return False


def _supervisor_of(pid: int) -> int | None:
    """Return the parent of a process if that is one of Slurm's; otherwise None."""
    with suppress(OSError):
        # The fields after the name of the program: the second is the parent.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        parent = int(fields[1])
        if Path(f"/proc/{parent}/exe").readlink().name.startswith("slurmstepd"):
            return parent
    return None


def _read_pid(file: Path) -> int:
    """Return the process id in a file."""
    return int(file.read_text())


@contextmanager
def slurm(folder: Path, nodes: int = 3) -> Iterator[Slurm]:
    """Run Slurm with nodes n1, n2, … of 16 processors each, as far as it knows, until the block ends.

    Args:
        folder: For its files.
        nodes: How many nodes it has.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool, path=search_path()) is None]
    if missing:
        names = ", ".join(missing)
        pytest.skip(f"no {names}: apt-get install slurmctld slurmd slurm-client munge")

    # Others must not write into these folders, nor read the key.
    for name in ("state", "munge"):
        (folder / name).mkdir(parents=True, mode=0o755)
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))

    controller_port, *node_ports = free_ports(nodes + 1)
    settings = SETTINGS.format(
        folder=folder,
        user=getpass.getuser(),
        host=socket.gethostname().partition(".")[0],
        n_nodes=nodes,
        controller_port=controller_port,
        node_ports=",".join(str(port) for port in node_ports),
    )
    (folder / "slurm.conf").write_text(settings)

    cluster = Slurm(folder, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
