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
    """Turn DuckDB's error about a lack of memory, within the block, into one that says what to do.

    Raises:
        NanosetError: The system refuses memory to DuckDB, for example because of `ulimit -v`.
    """
    # `explained` turns a MemoryError into a NanosetError, and names what needed the memory: usually
    # a file, and here "DuckDB". DuckDB has an error of its own, so make a MemoryError of it first.
    with explained(Path("DuckDB")):
        # Loading DuckDB's library may already need too much memory, so import it here.
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            first_line = str(error).partition("\n")[0]
            raise MemoryError(first_line) from error


@explaining_memory()
def open_locked(readable_folders: Iterable[Path] = ()) -> Any:
    """Open a connection to DuckDB that can read the files of some folders, and nothing else.

    Results have the order of the rows in the files, so the same query gives the same result every
    time.

    Args:
        readable_folders: Contain all files that queries may read. DuckDB follows symbolic links
            before it compares paths, so these are paths without any.

    Returns:
        A duckdb.DuckDBPyConnection, which is a context manager.

    Raises:
        NanosetError: The system refuses memory.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        # Stages run one task on each processor, so one thread is enough.
        "threads": 1,
        "memory_limit": MEMORY_LIMIT,
        # Write no temporary files: an empty name means no folder.
        "temp_directory": "",
        # Download and load no extensions.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        # Keep the order of rows. DuckDB turns a long list of values into a join of two tables.
        # These optimizers might swap them, and documents would come in the order of the values.
        "preserve_insertion_order": True,
        "disabled_optimizers": "build_side_probe_side,join_order",
        # Allow more than 2 GB of texts in one batch of results.
        "arrow_large_buffer_size": True,
    }
    connection = duckdb.connect(":memory:", config=config)

    # Let queries read the folders. `read_parquet` takes a pattern such as "/a[*]b" for the path
    # "/a*b", and DuckDB checks both, the pattern and the path. So both forms must be allowed.
    allowed = []
    for folder in readable_folders:
        allowed.append(text_literal(str(folder)))
        allowed.append(text_literal(exact_path(str(folder))))
    connection.execute(f"SET allowed_directories = [{', '.join(allowed)}]")

    # Forbid all other files, and any later change of the settings.
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
    """Return a connection to DuckDB, a database library, which is kept open for later callers.

    Opening a connection takes 20 ms, which is longer than many queries. Several threads may use the
    same connection, if each runs its queries with its own `connection.cursor()`.

    Args:
        readable_folders: Folders with all files that queries may read, as paths without symbolic
            links. The connection refuses to read any other file.
    """
    with _shared_connections_lock:
        usable = _connections_of_this_process()
        for shared in usable:
            if shared.readable_folders == readable_folders:
                return shared.connection

        if len(usable) == _MAX_SHARED:
            # Forget the oldest one. It is closed when no caller uses it any more.
            _shared_connections.remove(usable[0])
        connection = open_locked(readable_folders)
        _shared_connections.append(_SharedConnection(os.getpid(), readable_folders, connection))
        return connection


def _connections_of_this_process() -> list[_SharedConnection]:
    """Return the open connections that this process can use, oldest first.

    A forked process cannot use the connections of its parent: DuckDB's threads do not exist in it.
    """
    process = os.getpid()
    return [shared for shared in _shared_connections if shared.process == process]


def text_literal(text: str) -> str:
    """Return a text as SQL writes it, in single quotes.

    Args:
        text: Any text: `it's` gives `'it''s'`.
    """
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def exact_path(path: str) -> str:
    """Return a pattern that only one path matches, since DuckDB takes every path for a pattern.

    Args:
        path: The path: `/a*b` gives `/a[*]b`.
    """
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
