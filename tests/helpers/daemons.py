"""Programs that run next to a test, and are ended with everything that they started."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from helpers.child_processes import wait_until

START_SECONDS = 90
"""How long a program may take to run, or to start."""
MARK_VARIABLE = "NANOSET_LIVE_TEST"
"""Environment variable by which the processes of a program are recognised."""
Value = TypeVar("Value")


class ProcessKey(NamedTuple):
    """Identifies a process: its id alone may be used again by another one."""

    pid: int
    started_at: int


def until(look: Callable[[], Value], seconds: float, problem: Callable[[], str]) -> Value:
    """Call `look` until it returns something true, and return that.

    Args:
        look: Is called ten times a second.
        seconds: How long to wait.
        problem: Returns the message of the error.

    Raises:
        TimeoutError: `look` returned nothing true in time.
    """
    value = wait_until(look, seconds, pause=0.1)
    if not value:
        raise TimeoutError(problem())
    return value


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    patience: float = 5.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends; then end it with everything that it started.

    Its processes are recognised by their session, and by a mark in their environment.

    Args:
        command: The program with its arguments.
        log: The file that its output is appended to.
        folder: Its current folder.
        environment: Variables in addition to those of this process.
        patience: Seconds in which the processes may end by themselves before they are killed.
    """
    mark = uuid.uuid4().hex
    variables = dict(os.environ)
    variables.update(environment or {})
    variables[MARK_VARIABLE] = mark
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process, f"{MARK_VARIABLE}={mark}".encode(), patience)


def _end(process: subprocess.Popen[bytes], mark: bytes, patience: float) -> None:
    """End a child and everything that it started: first by SIGTERM, then by SIGKILL.

    Args:
        process: The child, which leads a session.
        mark: The variable that the child and its descendants have in their environment.
        patience: Seconds to wait after each of the two signals.

    Raises:
        RuntimeError: A process has not ended.
    """
    # A process that is about to end has no environment any more, so remember those that had the
    # mark once.
    marked: set[ProcessKey] = set()
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        signalled: set[ProcessKey] = set()
        deadline = time.monotonic() + patience
        while True:
            session_by_process = _living_processes()
            for key, session in session_by_process.items():
                if session == process.pid or _has_variable(key, mark):
                    marked.add(key)
            living = marked & session_by_process.keys()
            if not living or time.monotonic() > deadline:
                break
            for key in living - signalled:
                with suppress(ProcessLookupError):
                    os.kill(key.pid, signal_number)
            signalled |= living
            process.poll()  # otherwise the child would remain as a zombie
            time.sleep(0.05)

    process.wait(timeout=10)
    remaining = marked & _living_processes().keys()
    if remaining:
        raise RuntimeError(f"these processes would not end: {sorted(remaining)}")


def _living_processes() -> dict[ProcessKey, int]:
    """Return the session of each process that is not a zombie."""
    session_by_process = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended in the meantime
            # The fields after the name of the program, which may contain spaces and parentheses:
            # the first is the state, the fourth the session, and the twentieth the time of start.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                key = ProcessKey(int(folder.name), int(fields[19]))
                session_by_process[key] = int(fields[3])
    return session_by_process


def _has_variable(process: ProcessKey, variable: bytes) -> bool:
    """Return whether a process has a variable, as NAME=VALUE, in its environment."""
    with suppress(OSError):  # it has ended in the meantime, or is another user's
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        return variable in environment.split(b"\0")
    return False


def run(*command: str) -> None:
    """Run a program, and expect success."""
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    output = process.stderr or process.stdout
    assert process.returncode == 0, f"{' '.join(command)}: {output[-2000:]}"


def wait_for(address: str) -> None:
    """Wait until a server answers at an address, even if it answers with an error."""

    def answers() -> bool:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    until(answers, START_SECONDS, lambda: f"nothing answers at {address}")


def free_ports(count: int) -> list[int]:
    """Return ports at which nothing listens, below those that outgoing connections take."""
    ports: list[int] = []
    # Several processes that look for ports at the same time should look at different ones.
    rng = random.Random(os.getpid() ^ time.time_ns())
    while len(ports) < count:
        port = rng.randrange(10_000, 32_000)
        if port in ports:
            continue
        with socket.socket() as server, suppress(OSError):
            server.bind(("127.0.0.1", port))
            ports.append(port)
    return ports
