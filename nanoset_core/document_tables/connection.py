"""Open DuckDB so that it reads the files of some folders, and can do nothing else.

DuckDB is a library that works inside this process. By default it can read and write any file, open
URLs, and download extensions. None of that is needed, so it is switched off, and the settings are
locked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

MEMORY_LIMIT = "1GB"
"""Memory that DuckDB may use; beyond that it writes to the scratch folder, or fails."""
BATCH_DOCUMENTS = 1 << 16
"""Documents of one batch of results."""


def open_locked(readable_folders: Iterable[Path] = (), scratch: Path | None = None) -> Any:
    """Open a duckdb.DuckDBPyConnection, a context manager, that reads only some folders.

    It has one thread, since stages run one task on each processor. Results have the order of the
    rows in the files, so the same query gives the same result every time.

    Args:
        readable_folders: Contain all files that queries may read. DuckDB follows symbolic links
            before it compares paths, so these are paths without any.
        scratch: A folder for what exceeds the memory limit. Without it, nothing is written, and a
            query that needs more memory fails.
    """
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
        # An empty name means that nothing is written.
        "temp_directory": "" if scratch is None else str(scratch / "duckdb"),
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


def shared_connection(readable_folders: frozenset[Path]) -> Any:
    """Return a connection as `open_locked` opens it, which is kept for the next callers.

    Opening one takes 20 ms, in which DuckDB finds a document among 10^7. Each query needs a cursor
    of its own: `connection.cursor()`.

    Args:
        readable_folders: See `open_locked`.
    """
    return _connection_of_process(os.getpid(), readable_folders)


@lru_cache(maxsize=4)
def _connection_of_process(process: int, readable_folders: frozenset[Path]) -> Any:
    """Open a connection; a forked process must not use that of its parent."""
    return open_locked(readable_folders)


def text_literal(text: str) -> str:
    """Return a text as SQL writes it, in single quotes."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def exact_path(path: str) -> str:
    """Return a pattern that only this path matches: DuckDB takes every path for a pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
