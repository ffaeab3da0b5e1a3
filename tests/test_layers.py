"""Imports of the core flow one way: down the list of rooms, and never in a circle between two
files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from helpers.layers import LAYERS

CORE = Path(__file__).parents[1] / "nanoset_core"
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
NEIGHBOURS = {("stages", "project"), ("project", "stages")}
"""A stage works on a project, and a project consists of stages: their files import each other,
never in a circle.
"""
ABOVE_ALL = {"demo"}
"""May import every room; imported by its own command alone."""
ALIASES = {"config", "indexed", "shuffling"}
"""Deprecated names of modules, which nothing here imports."""


def room_of(module: str) -> str:
    """`nanoset_core.text.lines` → text."""
    return module.split(".")[1] if "." in module else ""


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module of the core) of every import of a file, those under TYPE_CHECKING and in
    functions included.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            if node.module == "nanoset_core":
                yield from ((node.lineno, f"nanoset_core.{alias.name}") for alias in node.names)
            elif (node.module or "").startswith("nanoset_core."):
                yield node.lineno, str(node.module)
        elif isinstance(node, ast.Import):
            yield from (
                (node.lineno, alias.name)
                for alias in node.names
                if alias.name.startswith("nanoset_core.")
            )


def is_allowed(path: Path, room: str, imported: str) -> bool:
    """Whether a file of one room may import another room."""
    if imported == room or (room, imported) in NEIGHBOURS:
        return True
    if imported in ABOVE_ALL:
        return room == "cli" and path.name == "demo.py"
    # Verifying compares outputs with the lines that they were made from, as `nanoset explain` does.
    if imported == "lineage":
        return room == "cli" or path.name == "verify.py" or path.parent.name == "project"
    return LEVEL[imported] < LEVEL[room]


def test_every_room_has_its_layer():
    rooms = {path.name for path in CORE.iterdir() if (path / "__init__.py").is_file()}
    files = {path.stem for path in CORE.glob("*.py")} - {"__init__"}
    assert rooms | files == LEVEL.keys() | ABOVE_ALL | ALIASES


@pytest.mark.parametrize("room", sorted(LEVEL))
def test_imports_flow_down(room):
    paths = sorted((CORE / room).rglob("*.py")) or [CORE / f"{room}.py"]
    wrong = [
        f"{path.relative_to(CORE)}:{line}: {room} imports {module}"
        for path in paths
        for line, module in imported_modules(path)
        if not is_allowed(path, room, room_of(module))
    ]
    assert wrong == []


def modules() -> dict[str, Path]:
    """Module → file of both packages; a package counts as its `__init__`."""
    files = [
        path
        for package in ("nanoset_core", "nanoset_assets")
        for path in (CORE.parent / package).rglob("*.py")
    ]
    parts = {path: path.relative_to(CORE.parent).with_suffix("").parts for path in files}
    return {
        ".".join(name[:-1] if name[-1] == "__init__" else name): path
        for path, name in parts.items()
    }


def imported_at_the_top(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of ours that a file imports outside of functions, those under TYPE_CHECKING too."""
    imported: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.ImportFrom):
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                imported |= {name if name in known else str(node.module) for name in names}
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting.append(node)
    return imported & known.keys()


def test_no_circle_between_files():
    known = modules()
    graph = {module: imported_at_the_top(path, known) - {module} for module, path in known.items()}
    TopologicalSorter(graph).prepare()  # CycleError names the files


TESTS = Path(__file__).parent
MAX_FOLDERS = 3
"""Folders of the product that one test file may import, in addition to the public names."""
HELP = (
    f"A test file imports at most {MAX_FOLDERS} folders of the product. Split the file into one for"
    " each folder that it tests, or use tests/helpers: `building` makes outputs, `inspecting` looks"
    " at them, `command` runs `nanoset`. Import public names from nanoset_core itself."
)


def imported_names(path: Path) -> Iterator[str]:
    """Full names of everything that a file imports, as `module.name`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def folder_of(name: str) -> str | None:
    """Return the folder of the product that a name is imported from, such as `stages/packs`.

    None is what every test may use: other packages, public names of nanoset_core, and its errors.
    """
    package, *inner = name.split(".")
    if package == "nanoset_assets":
        return package
    if package != "nanoset_core" or not inner or inner[0] == "errors":
        return None
    if inner[0] == "stages" and len(inner) > 1 and (CORE / "stages" / inner[1]).is_dir():
        return f"stages/{inner[1]}"
    is_public_name = not (CORE / inner[0]).is_dir() and not (CORE / f"{inner[0]}.py").is_file()
    return None if is_public_name else inner[0]


def test_each_test_file_imports_few_folders_of_the_product():
    crowded = {}
    for path in TESTS.rglob("test_*.py"):
        folders = {folder_of(name) for name in imported_names(path)} - {None}
        if len(folders) > MAX_FOLDERS:
            crowded[path.relative_to(TESTS).as_posix()] = sorted(folders)

    assert not crowded, HELP


def test_no_test_file_imports_another():
    importing = {
        path.relative_to(TESTS).as_posix(): name
        for path in TESTS.rglob("*.py")
        for name in imported_names(path)
        if any(part.startswith("test_") for part in name.split(".")[:-1])
    }

    assert not importing, "Move what test files share into tests/helpers."


def test_class_names_are_unique():
    files_by_class: dict[str, list[str]] = {}
    for package in (CORE, CORE.parent / "nanoset_assets"):
        for path in package.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    file = path.relative_to(CORE.parent).as_posix()
                    files_by_class.setdefault(node.name, []).append(file)

    repeated = {name: files for name, files in files_by_class.items() if len(files) > 1}

    assert not repeated, "Say in each name which one it is, such as `TextBatch` and `PackBatch`."
