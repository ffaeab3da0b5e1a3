"""Open DuckDB so that it reads the files of some folders, and can do nothing else.

DuckDB is a library that works inside this process. By default it can read and write any file, open
URLs, and download extensions. None of that is needed, so it is switched off, and the settings are
locked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from nanoset_core.storage.os_errors import explained

MEMORY_LIMIT = "1GB"
"""Memory that DuckDB may use. A query that needs more fails: none needs much, since documents are
read in batches.
"""
BATCH_DOCUMENTS = 1 << 16
"""Documents of one batch of results."""


@contextmanager
def explaining_memory() -> Iterator[None]:
    """Explain the errors of a block in which DuckDB, or its library, gets no memory.

    Raises:
        NanosetError: The system refuses memory, for example because of `ulimit -v`.
    """
    with explained(Path("DuckDB")):
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            first_line = str(error).partition("\n")[0]
            raise MemoryError(first_line) from error


def open_locked(readable_folders: Iterable[Path] = ()) -> Any:
    """Open a duckdb.DuckDBPyConnection, a context manager, that reads only some folders.

    It has one thread, since stages run one task on each processor. Results have the order of the
    rows in the files, so the same query gives the same result every time.

    Args:
        readable_folders: Contain all files that queries may read. DuckDB follows symbolic links
            before it compares paths, so these are paths without any.

    Raises:
        NanosetError: The system refuses memory.
    """
    with explaining_memory():
        return _open_locked(readable_folders)


def _open_locked(readable_folders: Iterable[Path]) -> Any:
    """Open a connection as `open_locked` does, with DuckDB's own errors."""
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": MEMORY_LIMIT,
        "preserve_insertion_order": True,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        # Texts of one batch may have more than 2 GB.
        "arrow_large_buffer_size": True,
        # A long list of values becomes a join. These would let DuckDB look up documents by values
        # if that is faster, and documents would have the order of the values.
        "disabled_optimizers": "build_side_probe_side,join_order",
        # An empty name means that DuckDB writes nothing.
        "temp_directory": "",
    }
    connection = duckdb.connect(":memory:", config=config)
    # Queries name files by `exact_path`, and DuckDB checks that text as well as the path.
    allowed = []
    for folder in readable_folders:
        allowed.append(text_literal(str(folder)))
        allowed.append(text_literal(exact_path(str(folder))))
    connection.execute(f"SET allowed_directories = [{', '.join(allowed)}]")
    # Afterwards, neither the folders nor another setting can be changed.
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


_MAX_SHARED = 4
"""Connections that `shared_connection` keeps open in a process."""


class _SharedConnection(NamedTuple):
    """A connection that is kept open."""

    process: int
    """Id of the process that opened it."""
    readable_folders: frozenset[Path]
    connection: Any


_shared_connections: list[_SharedConnection] = []
"""Connections that are kept open, the one that was opened first at the start."""
_shared_connections_lock = Lock()


def shared_connection(readable_folders: frozenset[Path]) -> Any:
    """Return a connection that reads only some folders, and that is kept for the next callers.

    Opening a connection takes 20 ms. DuckDB finds a document among 10^7 in this time. Callers must
    run each query with a new cursor, `connection.cursor()`, since others use the connection, too.

    Args:
        readable_folders: Contain all files that queries may read; without symbolic links.
    """
    process = os.getpid()
    with _shared_connections_lock:
        # A forked process can neither use nor free the connections of its parent: DuckDB's threads
        # do not exist in it. So it leaves them alone.
        own_connections = [shared for shared in _shared_connections if shared.process == process]
        for shared in own_connections:
            if shared.readable_folders == readable_folders:
                return shared.connection

        if len(own_connections) == _MAX_SHARED:
            # Callers that still use it hold a reference, so that it is not closed yet.
            _shared_connections.remove(own_connections[0])
        connection = open_locked(readable_folders)
        _shared_connections.append(_SharedConnection(process, readable_folders, connection))
        return connection


def text_literal(text: str) -> str:
    """Return a text as SQL writes it, in single quotes."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def exact_path(path: str) -> str:
    """Return a pattern that only this path matches: DuckDB takes every path for a pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
