"""Print how dense the code of each folder is: `make size`.

Code is read far more often than it is written, and dense lines are what makes it slow to read. Code
bases that readers find easy have 4.3 to 4.5 syntax-tree nodes on a line of code, about 10
comprehensions and 30 to 70 comments per 1,000 lines, and almost no assignments of tuples. The gauge
fails on nothing: it shows where to look.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

TOP = Path(__file__).parents[1]
HEAVY_NODES = 20
"""Nodes on one line from which on it has to be taken apart to be read."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
HEADINGS = (
    "folder",
    "files",
    "lines",
    "nodes/line",
    "heavy %",
    "tuples",
    "compr.",
    "nested",
    "cond.",
    "comments",
)
FORMAT = "{:32} {:>5} {:>7} {:>10} {:>8} {:>7} {:>7} {:>7} {:>6} {:>9}"


@dataclass(slots=True)
class Density:
    """Counts over the files of a folder."""

    files: int = 0
    lines: int = 0
    """All lines, blank ones and comments included."""
    code_lines: int = 0
    """Lines on which a node of the syntax tree starts."""
    nodes: int = 0
    heavy_lines: int = 0
    tuple_assignments: int = 0
    """Such as `a, b = x, y`."""
    comprehensions: int = 0
    nested_comprehensions: int = 0
    """With several `for`, or with another comprehension inside."""
    conditionals: int = 0
    comments: int = 0

    def add(self, other: Density) -> None:
        """Add the counts of another folder or file."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def row(self, folder: str) -> str:
        """Return a line of the table; from `tuples` on, counts are per 1,000 lines."""
        code_lines = max(self.code_lines, 1)
        thousands = max(self.lines, 1) / 1000
        per_thousand = [
            self.tuple_assignments / thousands,
            self.comprehensions / thousands,
            self.nested_comprehensions / thousands,
            self.conditionals / thousands,
            self.comments / thousands,
        ]
        return FORMAT.format(
            folder,
            self.files,
            f"{self.lines:,}",
            f"{self.nodes / code_lines:.2f}",
            f"{100 * self.heavy_lines / code_lines:.2f}",
            *[f"{value:.1f}" for value in per_thousand],
        )


def measure(path: Path) -> Density:
    """Count what is in one file."""
    text = path.read_text(encoding="utf-8")
    density = Density(files=1, lines=text.count("\n"))

    nodes_by_line: Counter[int] = Counter()
    for node in ast.walk(ast.parse(text)):
        if hasattr(node, "lineno"):
            nodes_by_line[node.lineno] += 1
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            density.tuple_assignments += isinstance(node.targets[0], ast.Tuple)
        if isinstance(node, ast.IfExp):
            density.conditionals += 1
        if isinstance(node, COMPREHENSIONS):
            density.comprehensions += 1
            density.nested_comprehensions += is_nested(node)
    density.code_lines = len(nodes_by_line)
    density.nodes = nodes_by_line.total()
    density.heavy_lines = sum(count >= HEAVY_NODES for count in nodes_by_line.values())

    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    density.comments = sum(token.type == tokenize.COMMENT for token in tokens)
    return density


def is_nested(node: ast.expr) -> bool:
    """Return whether a comprehension has several `for`, or another comprehension inside."""
    if len(node.generators) > 1:  # type: ignore[attr-defined]
        return True
    return any(isinstance(inner, COMPREHENSIONS) for inner in ast.walk(node) if inner is not node)


def folders() -> Iterator[tuple[str, Iterable[Path]]]:
    """Yield (name, files) of each folder that gets a row of its own."""
    for package in (TOP / "nanoset_core", TOP / "nanoset_assets"):
        yield f"{package.name}/*.py", package.glob("*.py")
        for folder in sorted(path for path in package.iterdir() if path.is_dir()):
            if folder.name == "stages":
                yield "nanoset_core/stages/*.py", folder.glob("*.py")
                for stage in sorted(path for path in folder.iterdir() if path.is_dir()):
                    yield str(stage.relative_to(TOP)), stage.rglob("*.py")
            else:
                yield str(folder.relative_to(TOP)), folder.rglob("*.py")


def main() -> None:
    """Print the table."""
    total = Density()
    lines = [FORMAT.format(*HEADINGS)]
    for name, paths in folders():
        density = Density()
        for path in paths:
            density.add(measure(path))
        if density.files:
            lines.append(density.row(name))
            total.add(density)
    lines.append(total.row("all"))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
