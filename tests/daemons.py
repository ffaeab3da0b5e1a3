"""Servers in processes of their own, on loopback, for tests: started, waited for, ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 90
STOP_SECONDS = 10


@contextlib.contextmanager
def daemon(folder: Path, *command: str) -> Iterator[None]:
    """Run a program until the block ends; what it says goes to <folder>/<its name>.out."""
    with (folder / f"{Path(command[0]).name}.out").open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(*command: str) -> None:
    """Run a program to its end, which must be a good one."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}"


def wait_for(address: str) -> None:
    """Wait until something answers."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            assert time.monotonic() < deadline, f"nothing answers at {address}"
            time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, below those that the system gives to outgoing connections."""
    ports: list[int] = []
    chosen = random.Random(os.getpid() ^ time.time_ns())
    while len(ports) < count:
        port = chosen.randrange(10_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports
