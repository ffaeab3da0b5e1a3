"""Run a campaign of trials as a program, and read the table that it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers.locations import REPOSITORY


def run_program(
    folder: Path, *words: str, code: int | None = 0
) -> tuple[list[dict[str, Any]], str]:
    """Run a campaign as a program.

    Args:
        folder: The current folder of the program.
        words: Its command line: the name of the campaign, and options.
        code: The exit code that it must end with; None: any.

    Returns:
        The rows of its table as dictionaries by heading, the last one that of all kinds; and what
        it printed to standard error.
    """
    import_path = os.pathsep.join([str(REPOSITORY / "tests"), str(REPOSITORY)])
    program = subprocess.run(
        [sys.executable, "-m", "campaigns", *words],
        env=os.environ | {"PYTHONPATH": import_path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert code in (None, program.returncode), program.stdout + program.stderr
    return rows_of(program.stdout), program.stderr


def rows_of(table: str) -> list[dict[str, Any]]:
    """Return the rows of a printed table, each as its values by heading.

    For example, this table gives `[{"kind": "cut", "trials": 1200}]`:

        | kind | trials |
        | ---- | ------ |
        | cut  | 1,200  |
    """
    headings, _line, *lines_of_cells = [cells_of(line) for line in table.splitlines()]
    rows: list[dict[str, Any]] = []
    for cells in lines_of_cells:
        values = [number_in(cell) for cell in cells]
        rows.append(dict(zip(headings, values, strict=True)))
    return rows


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def number_in(cell: str) -> int | str:
    """Return the number in a cell, or its text."""
    digits = cell.replace(",", "")
    return int(digits) if digits.isdigit() else cell
