"""Imports of the core flow one way: down this list, and never in a circle between two rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

CORE = Path(__file__).parents[1] / "nanoset_core"
LAYERS = (
    ("untrusted",),
    ("errors",),
    ("serialization",),
    ("storage",),
    ("outputs",),
    ("execution",),
    ("indexed",),
    ("raw",),
    ("tokenization",),
    ("mapping", "views"),
    ("contamination", "packing"),
    ("loading",),
    ("config",),
    ("shuffling", "packed", "handoff", "exits"),
    ("pipeline",),
    ("lineage",),
    ("verification", "versions"),
    ("cli",),
)
"""Lowest first. A room may import itself and what lies below; rooms beside each other do not know each other."""
ABOVE_ALL = {"demo"}
"""May import every room; imported by its own command alone."""
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def room_of(module: str) -> str:
    """`nanoset_core.text.lines` → raw."""
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, imported module of the core) of every import statement, those under TYPE_CHECKING and in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            if node.module == "nanoset_core":
                yield from ((node.lineno, f"nanoset_core.{alias.name}") for alias in node.names)
            elif (node.module or "").startswith("nanoset_core."):
                yield node.lineno, str(node.module)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.startswith("nanoset_core."))


def test_every_room_has_its_layer():
    rooms = {path.name for path in CORE.iterdir() if (path / "__init__.py").is_file()}
    files = {path.stem for path in CORE.glob("*.py")} - {"__init__"}
    assert rooms | files == LEVEL.keys() | ABOVE_ALL


@pytest.mark.parametrize("room", sorted(LEVEL))
def test_imports_flow_down(room):
    paths = sorted((CORE / room).rglob("*.py")) or [CORE / f"{room}.py"]
    wrong = [
        f"{path.relative_to(CORE)}:{line}: {room} imports {module}"
        for path in paths
        for line, module in imports(path)
        if (other := room_of(module)) != room
        and LEVEL.get(other, len(LAYERS)) >= LEVEL[room]
        and not (room == "cli" and other == "demo" and path.name == "demo.py")
    ]
    assert wrong == []


def modules() -> dict[str, Path]:
    """Module → file of both packages; a package counts as its `__init__`."""
    files = [path for package in ("nanoset_core", "nanoset_assets") for path in (CORE.parent / package).rglob("*.py")]
    parts = {path: path.relative_to(CORE.parent).with_suffix("").parts for path in files}
    return {".".join(name[:-1] if name[-1] == "__init__" else name): path for path, name in parts.items()}


def imported_at_the_top(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of ours that a file imports outside of functions, those under TYPE_CHECKING too."""
    found, waiting = set(), [ast.parse(path.read_text())]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.ImportFrom):
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                found |= {name if name in known else node.module for name in names}
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.append(node)
    return found & known.keys()


def test_no_circle_between_files():
    known = modules()
    graph = {module: imported_at_the_top(path, known) - {module} for module, path in known.items()}
    TopologicalSorter(graph).prepare()  # CycleError names the files
