"""Fixtures for tests of raw text: files and tables, an executor, and a measurement of memory."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.table_files import encode_table
from nanoset_core.text.inventory.pieces import Piece

WritePiece = Callable[[str, bytes], Piece]
WriteTable = Callable[..., Piece]
"""Takes a table and the arguments of `encode_table`."""


@pytest.fixture
def write_piece(tmp_path: Path) -> WritePiece:
    """A function that writes a file and returns the piece that is all of it, as an inventory does."""

    def write(name: str, data: bytes) -> Piece:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return Piece(name, 0, len(data), 1, hashlib.sha256(data).hexdigest())

    return write


@pytest.fixture
def write_table(write_piece: WritePiece) -> WriteTable:
    """A function that writes a table to a file and returns the piece that is all of it."""

    def write(table: Any, kind: str, **options: Any) -> Piece:
        name, data = encode_table(table, kind, **options)
        return write_piece(name, data)

    return write


class ReversingExecutor:
    """An executor that returns results in reverse order, and records its tasks."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def run(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number and result of each task, from the last to the first."""
        self.tasks = list(tasks)
        results = [(number, work(task)) for number, task in enumerate(self.tasks)]
        yield from reversed(results)


@pytest.fixture
def executor() -> ReversingExecutor:
    """An executor that finishes tasks in an order that no code may rely on."""
    return ReversingExecutor()


MEASURING_CODE = """
import resource, sys
from pathlib import Path
import isal.isal_zlib, pyarrow.compute, pyarrow.parquet, zstandard
from nanoset_core.text.documents import read_documents
from nanoset_core.text.importing import import_parquet
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.text.inventory.take import take_inventory
folder = Path(sys.argv[1])
source = SourceRange(take_inventory(folder, "web").pieces)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(eval(sys.argv[2]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
"""Code of the measuring process; libraries are imported before memory is measured."""


class Measurement(NamedTuple):
    """An evaluated expression."""

    value: str
    """As it is printed."""
    mib: int
    """By how many MiB the process grew at most during the evaluation."""


@pytest.fixture
def measure_memory(tmp_path: Path) -> Callable[[str], Measurement]:
    """A function that evaluates an expression in another process, and measures its memory.

    The expression may use `folder`, which is tmp_path, and `source`, all its files.
    """

    def measure(expression: str) -> Measurement:
        command = [sys.executable, "-c", MEASURING_CODE, str(tmp_path), expression]
        process = subprocess.run(command, capture_output=True, text=True, check=True)
        value, mib = process.stdout.splitlines()
        return Measurement(value, int(mib))

    return measure
