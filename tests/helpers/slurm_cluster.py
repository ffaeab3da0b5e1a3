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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from helpers.child_processes import wait_until
from helpers.daemons import free_ports

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")
START_SECONDS = 60
_SETTINGS = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
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
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] CPUs=16 RealMemory=64000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
"""


class Slurm:
    """A running Slurm cluster; commands find it by `environment`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.nodes = folder, [f"n{number}" for number in range(1, nodes + 1)]
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self._path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])

    def start(self) -> None:
        """Start the daemons that are not running."""
        for node in self.nodes:
            (self.folder / f"spool.{node}").mkdir(exist_ok=True)
        munge = self.folder / "munge"
        options = {
            "key-file": "key",
            "socket": "socket",
            "seed-file": "seed",
            "log-file": "log",
            "pid-file": "pid",
        }
        if not self._lives("munged", munge / "pid"):
            names = [f"--{option}={munge / name}" for option, name in options.items()]
            self.run("munged", *names, "--num-threads=2", "--force")
        if not self._lives("slurmctld", self.folder / "slurmctld.pid"):
            self.run("slurmctld")
        for node in self.nodes:
            if not self._lives("slurmd", self.folder / f"slurmd.{node}.pid"):
                self.run("slurmd", "-N", node)
        self.until(
            lambda: (
                set(self.run("sinfo", "-h", "-N", "-o", "%T").split())
                <= {"idle", "mixed", "allocated"}
            )
        )

    def run(self, *command: str, code: int = 0, **options: object) -> str:
        """Run a command of Slurm, expect its exit code, and return what it prints."""
        program = shutil.which(command[0], path=self._path)
        given = {
            "env": self.environment,
            "capture_output": True,
            "text": True,
            "timeout": START_SECONDS,
        } | options
        done = subprocess.run([program, *command[1:]], check=False, **given)
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(
        self, script: Path, *arguments: str, options: tuple[str, ...] = (), **given: object
    ) -> str:
        """Submit a script, and return the number of its job."""
        return self.run("sbatch", "--parsable", *options, str(script), *arguments, **given)

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING; "" if Slurm has forgotten it."""
        shown = self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").split()
        return shown[0] if shown else ""

    def until(self, condition: Callable[[], object], seconds: float = START_SECONDS) -> None:
        """Wait until a condition holds; commands that fail meanwhile are ignored."""

        def holds() -> object:
            with suppress(AssertionError):
                return condition()

        assert wait_until(holds, seconds, pause=0.2), self.said()

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node with everything that it runs, as a power failure does."""
        os.kill(_pid(self.folder / f"slurmd.{node}.pid"), signal.SIGKILL)
        jobs = self._descendants(node)
        # What watches over a job comes first, or it would report that the job failed.
        for pid in [
            *{parent for pid in jobs if (parent := _parent(pid)) not in (0, 1, *jobs)},
            *jobs,
        ]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def said(self) -> str:
        """Return the queue and the ends of all logs."""
        logs = [
            path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join(
            [
                "a wait was too long",
                subprocess.getoutput(f"SLURM_CONF={self.folder}/slurm.conf squeue"),
                *logs,
            ]
        )

    def end(self) -> None:
        """Cancel the jobs and end the daemons."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", f"--user={getpass.getuser()}")
            self.until(lambda: not self.run("squeue", "-h"), 20)
        pids = [self.folder / f"slurmd.{node}.pid" for node in self.nodes]
        for pid_file in [*pids, self.folder / "slurmctld.pid", self.folder / "munge" / "pid"]:
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):
                os.kill(_pid(pid_file), signal.SIGTERM)
        for node in self.nodes:
            for pid in self._descendants(node):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _descendants(self, node: str) -> list[int]:
        """Processes of a node's jobs, by the environment that Slurm gives them."""
        marks = {
            f"SLURM_CONF={self.folder / 'slurm.conf'}".encode(),
            f"SLURMD_NODENAME={node}".encode(),
        }
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if marks <= set(path.read_bytes().split(b"\0")):
                    found.append(int(path.parent.name))
        return found

    def _lives(self, name: str, pid_file: Path) -> bool:
        with suppress(OSError, ValueError):
            exe = Path(f"/proc/{_pid(pid_file)}/exe").readlink()  # which a zombie does not have
            return exe.name.startswith(name)
        return False


def _parent(pid: int) -> int:
    """The parent of a process, where that is one of Slurm's; else 0."""
    with suppress(OSError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if Path(f"/proc/{parent}/exe").readlink().name.startswith("slurmstepd"):
            return parent
    return 0


def _pid(file: Path) -> int:
    return int(file.read_text())


@contextmanager
def slurm(folder: Path, nodes: int = 3) -> Iterator[Slurm]:
    """Slurm with nodes n1, n2, … of 16 processors each, as far as it knows, until the block ends."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=path) is None]:
        pytest.skip(f"no {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge")
    for name in ("state", "munge"):
        (folder / name).mkdir(parents=True, mode=0o755)
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    first = free_ports(nodes + 1)
    ports = {"controller": first[0], "ports": ",".join(str(port) for port in first[1:])}
    user, host = getpass.getuser(), socket.gethostname().partition(".")[0]
    settings = _SETTINGS.format(folder=folder, user=user, host=host, nodes=nodes, **ports)
    (folder / "slurm.conf").write_text(settings)
    running = Slurm(folder, nodes)
    try:
        running.start()
        yield running
    finally:
        running.end()
