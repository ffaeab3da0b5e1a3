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
from typing import TypeVar

from helpers.child_processes import wait_until

START_SECONDS = 90
_MARK = "NANOSET_LIVE_TEST"
Found = TypeVar("Found")
Process = tuple[int, int]
"""Process id and time of start, since ids are used again."""


def until(look: Callable[[], Found], seconds: float, problem: Callable[[], str]) -> Found:
    """Call `look` until it returns something true, and return that.

    Raises:
        TimeoutError: It did not within some seconds; the message is that of `problem`.
    """
    if not (found := wait_until(look, seconds, pause=0.1)):
        raise TimeoutError(problem())
    return found


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
    named = os.environ | dict(environment or {}) | {_MARK: mark}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=named,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process, f"{_MARK}={mark}".encode(), patience)


def _end(process: subprocess.Popen[bytes], mark: bytes, patience: float) -> None:
    """End a child and everything that it started: first politely, then by force."""
    seen = set[Process]()
    for number in (signal.SIGTERM, signal.SIGKILL):
        told, deadline = set[Process](), time.monotonic() + patience
        while True:
            everything = _processes()
            seen |= {
                one
                for one, session in everything.items()
                if session == process.pid or _bears(one, mark)
            }
            living = seen & everything.keys()  # one about to be gone has no environment any more
            if not living or time.monotonic() > deadline:
                break
            for pid, _ in living - told:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            told |= living
            process.poll()
            time.sleep(0.05)
    process.wait(timeout=10)
    if left := seen & _processes().keys():
        raise RuntimeError(f"these processes would not end: {sorted(left)}")


def _processes() -> dict[Process, int]:
    """Return the session of each living process."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                found[int(place.name), int(fields[19])] = int(fields[3])
    return found


def _bears(process: Process, mark: bytes) -> bool:
    with suppress(OSError):  # gone meanwhile, or another user's
        return mark in Path(f"/proc/{process[0]}/environ").read_bytes().split(b"\0")
    return False


def run(*command: str) -> None:
    """Run a program, and expect success."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}"


def wait_for(address: str) -> None:
    """Wait until a server answers at an address."""

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
    chosen = random.Random(os.getpid() ^ time.time_ns())
    while len(ports) < count:
        port = chosen.randrange(10_000, 32_000)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports
