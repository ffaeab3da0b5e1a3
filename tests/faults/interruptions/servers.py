"""A server that speaks S3, and the proxy before it, in processes of their own that end with this one.

    python -m faults.interruptions.servers

prints the server's address, and ends with its stdin. Which server it is, S3_SERVER says: see chosen_server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from chosen_server import CREDENTIALS, chosen_server
from faults.interruptions.proxy import Counts, Plan

_STOP_SECONDS = 60


@dataclass(slots=True)
class Store:
    """A store that speaks S3."""

    endpoint: str
    """the server's own address"""
    spoiled: str
    """that of the proxy before it"""
    _proxy: subprocess.Popen[str]

    def follow(self, plan: Plan) -> Counts:
        """Tell the proxy what to do from now on; → what happened until now."""
        stdin, stdout = self._proxy.stdin, self._proxy.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the proxy has no pipes")
        stdin.write(json.dumps(asdict(plan)) + "\n")
        stdin.flush()
        counts = json.loads(stdout.readline())
        return Counts(counts["requests"], Counter(counts["spoiled"]))


@contextmanager
def running_store(seed: int) -> Iterator[Store]:
    """Both, until the block ends. This process gets credentials for them."""
    os.environ.update(CREDENTIALS)
    with _running("faults.interruptions.servers") as server:
        endpoint = _first_line(server)
        address = urlsplit(endpoint)
        with _running("faults.interruptions.proxy", str(address.hostname), str(address.port), str(seed)) as proxy:
            yield Store(endpoint, f"http://127.0.0.1:{_first_line(proxy)}", proxy)


@contextmanager
def _running(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()  # so it ends, and what it has started
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _first_line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline().strip() if process.stdout else ""
    if not line:
        raise RuntimeError(f"a server did not start: {process.args}")
    return line


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chosen_server(Path(folder)) as address:
        print(address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
