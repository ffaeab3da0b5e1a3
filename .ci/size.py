"""Print the size of each room beside its budget: `make size`.

A gauge, not a fence: it fails on nothing. Lines are counted as `ruff format` leaves them, nodes are those of the syntax
tree, which no formatting changes.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[1]
BUDGETS = {
    "nanoset_core/cli": 1850,
    "nanoset_core/config": 1130,
    "nanoset_core/execution": 900,
    "nanoset_core/handoff": 640,
    "nanoset_core/indexed": 1050,
    "nanoset_core/lineage": 1230,
    "nanoset_core/loading": 1080,
    "nanoset_core/mapping": 2750,
    "nanoset_core/outputs": 1000,
    "nanoset_core/packed": 1700,
    "nanoset_core/pipeline": 2800,
    "nanoset_core/raw": 2450,
    "nanoset_core/serialization": 270,
    "nanoset_core/shuffling": 3400,
    "nanoset_core/storage": 2580,
    "nanoset_core/tokenization": 6050,
    "nanoset_core/verification": 1850,
    "nanoset_core/versions": 950,
    "nanoset_core": 34000,
    "nanoset_assets": 3100,
    "tests": 37000,
}
"""Room → lines that it should not outgrow without a reason that is said."""
LARGEST = 2
ROW = "{:28} {:>5} {:>7} {:>7} {:>8} {:>5}  {}"


@dataclass(frozen=True)
class Size:
    """What one file holds."""

    path: Path
    lines: int
    nodes: int


def size_of(path: Path) -> Size:
    """Count the lines and nodes of one file."""
    text = path.read_text(encoding="utf-8")
    return Size(path, text.count("\n"), sum(1 for _ in ast.walk(ast.parse(text))))


def main() -> None:
    """Print the table."""
    write = sys.stdout.write
    write(ROW.format("room", "files", "lines", "budget", "nodes", "n/l", "largest files") + "\n")
    for room, budget in BUDGETS.items():
        sizes = sorted((size_of(path) for path in (TOP / room).rglob("*.py")), key=lambda size: -size.lines)
        lines, nodes = sum(size.lines for size in sizes), sum(size.nodes for size in sizes)
        largest = ", ".join(f"{size.path.relative_to(TOP / room)} {size.lines}" for size in sizes[:LARGEST])
        write(ROW.format(room, len(sizes), lines, budget, nodes, f"{nodes / lines:.1f}", largest) + "\n")


if __name__ == "__main__":
    main()
