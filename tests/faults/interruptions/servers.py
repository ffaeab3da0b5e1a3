"""A server that speaks S3, and the proxy before it, in a process of their own: one that forks has no threads.

Which server it is, S3_SERVER says: see chosen_server.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from chosen_server import CREDENTIALS, chosen_server
from faults.interruptions.proxy import Counts, FaultProxy, Plan


@dataclass(slots=True)
class Store:
    """A store that speaks S3."""

    endpoint: str
    """the server's own address"""
    spoiled: str
    """that of the proxy before it"""
    _pipe: Connection

    def follow(self, plan: Plan) -> Counts:
        """Tell the proxy what to do from now on; → what happened until now."""
        self._pipe.send(plan)
        return self._pipe.recv()


@contextmanager
def running_store(seed: int) -> Iterator[Store]:
    """Both, until the block ends. This process gets credentials for them."""
    os.environ.update(CREDENTIALS)
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs, seed))
    server.start()
    try:
        yield Store(*pipe.recv(), pipe)
    finally:
        with suppress(OSError):
            pipe.send(None)
        server.join(60)
        server.kill()


def _serve(pipe: Connection, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, chosen_server(Path(folder)) as address:
        upstream = urlsplit(address)
        with FaultProxy(str(upstream.hostname), upstream.port or 80, seed) as proxy:
            pipe.send((address, f"http://127.0.0.1:{proxy.port}"))
            with suppress(EOFError):
                while (plan := pipe.recv()) is not None:
                    pipe.send(proxy.follow(plan))
