"""The folders of the core import each other in one direction, and tests import few of them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.layers import LAYERS

REPOSITORY = Path(__file__).parents[1]
CORE = REPOSITORY / "nanoset_core"
PACKAGES = (CORE, REPOSITORY / "nanoset_assets")
NEIGHBOURS = {("stages", "project"), ("project", "stages")}
"""A stage works on a project, and a project consists of stages: their files import each other, but
never in a circle.
"""
ABOVE_ALL = {"demo"}
"""May import every folder; only its own command imports it."""
ALIASES = {"config", "indexed", "shuffling"}
"""Deprecated names of modules, which nothing in the repository imports."""


def level_by_folder() -> dict[str, int]:
    """Return the level of each folder of the core; it may import those of lower levels."""
    levels = {}
    for level, folders in enumerate(LAYERS):
        for folder in folders:
            levels[folder] = level
    return levels


LEVELS = level_by_folder()


class Import(NamedTuple):
    """An import of a module of the core."""

    line: int
    module: str

    @property
    def folder(self) -> str:
        """The folder of the module, such as `text` of `nanoset_core.text.lines`."""
        parts = self.module.split(".")
        return parts[1] if len(parts) > 1 else ""


class ModuleFacts(NamedTuple):
    """What the tests of this file ask about a module."""

    imports_of_core: Sequence[Import]
    """All imports of the core, also those under TYPE_CHECKING and in functions."""
    names_at_the_top: Sequence[tuple[str, str]]
    """Module and name of each import outside of functions, such as ("json", "loads")."""
    class_names: Sequence[str]
    lines_about_locations: Sequence[int]
    """Lines that ask whether a location is on a disk or in a bucket."""


@cache
def facts_of(path: Path) -> ModuleFacts:
    """Return what the tests ask about a module, which is parsed once for all of them."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    return ModuleFacts(
        imports_of_core=list(imports_of_core(nodes)),
        names_at_the_top=list(names_imported_at_the_top(tree)),
        class_names=[node.name for node in nodes if isinstance(node, ast.ClassDef)],
        lines_about_locations=list(lines_that_ask_for_the_kind_of_a_location(nodes)),
    )


def imports_of_core(nodes: Sequence[ast.AST]) -> Iterator[Import]:
    """Yield all imports of the core among the nodes of a module."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            module = node.module or ""
            if module == "nanoset_core":
                for alias in node.names:
                    yield Import(node.lineno, f"nanoset_core.{alias.name}")
            elif module.startswith("nanoset_core."):
                yield Import(node.lineno, module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("nanoset_core."):
                    yield Import(node.lineno, alias.name)


def is_allowed(path: Path, folder: str, imported: str) -> bool:
    """Return whether a file may import a folder of the core.

    Args:
        path: The file.
        folder: The folder of the core that the file is in.
        imported: The folder that it imports.
    """
    if imported == folder or (folder, imported) in NEIGHBOURS:
        return True
    if imported in ABOVE_ALL:
        return folder == "cli" and path.name == "demo.py"
    # Verifying compares outputs with the lines that they were made from, as `nanoset explain` does.
    if imported == "lineage":
        return folder in ("cli", "project") or path.name == "verify.py"
    return LEVELS[imported] < LEVELS[folder]


# Imports of the core


def test_every_folder_of_the_core_has_a_level():
    folders = {path.name for path in CORE.iterdir() if (path / "__init__.py").is_file()}
    modules = {path.stem for path in CORE.glob("*.py")} - {"__init__"}

    assert folders | modules == LEVELS.keys() | ABOVE_ALL | ALIASES


@pytest.mark.parametrize("folder", sorted(LEVELS))
def test_a_folder_imports_only_folders_of_lower_levels(folder):
    paths = sorted((CORE / folder).rglob("*.py")) or [CORE / f"{folder}.py"]

    messages = []
    for path in paths:
        for imported in facts_of(path).imports_of_core:
            if not is_allowed(path, folder, imported.folder):
                file = path.relative_to(CORE)
                messages.append(f"{file}:{imported.line}: {folder} imports {imported.module}")

    assert messages == []


def module_paths() -> dict[str, Path]:
    """Return the file of each module of both packages; a package is its `__init__`."""
    path_by_module = {}
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            names = list(path.relative_to(REPOSITORY).with_suffix("").parts)
            if names[-1] == "__init__":
                names.pop()
            path_by_module[".".join(names)] = path
    return path_by_module


def statements(tree: ast.Module, *, in_functions: bool) -> Iterator[ast.stmt]:
    """Yield all statements of a module, also those in classes and blocks.

    Args:
        tree: The module.
        in_functions: Whether to yield the statements in functions, too.
    """
    remaining_nodes: list[ast.AST] = [tree]
    while remaining_nodes:
        node = remaining_nodes.pop()
        if isinstance(node, ast.stmt):
            yield node
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if in_functions or not is_function:
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                remaining_nodes += getattr(node, field, ())


def names_imported_at_the_top(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import outside of functions, or under TYPE_CHECKING."""
    for node in statements(tree, in_functions=False):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield str(node.module), alias.name


def modules_imported_at_the_top(path: Path, known_modules: Collection[str]) -> set[str]:
    """Return which known modules a file imports outside of functions, or under TYPE_CHECKING."""
    modules: set[str] = set()
    for module, name in facts_of(path).names_at_the_top:
        # Either a module of a package, or something in a module.
        full_name = f"{module}.{name}"
        modules.add(full_name if full_name in known_modules else module)
    return modules & set(known_modules)


def test_no_files_import_each_other_in_a_circle():
    path_by_module = module_paths()
    graph = {}
    for module, path in path_by_module.items():
        graph[module] = modules_imported_at_the_top(path, path_by_module.keys()) - {module}

    TopologicalSorter(graph).prepare()  # raises a CycleError that names the modules


# What only storage knows

LOCATION_CLASSES = {"Path", "RemotePath"}
FIELDS_OF_ACCESS = {"origin", "capacity"}


def lines_that_ask_for_the_kind_of_a_location(nodes: Sequence[ast.AST]) -> Iterator[int]:
    """Yield the lines that compare the class of a location, or read where an access gets files."""
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            if names & LOCATION_CLASSES:
                yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr in FIELDS_OF_ACCESS:
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if owner.endswith("access"):
                yield node.lineno


def test_only_storage_tells_disks_from_buckets():
    places = []
    for path in module_paths().values():
        if not path.is_relative_to(CORE / "storage"):
            file = path.relative_to(REPOSITORY)
            places += [f"{file}:{line}" for line in facts_of(path).lines_about_locations]

    assert not places, (
        "Ask what you need to know: see FileAccess in nanoset_core/storage/access.py for outputs, "
        "and nanoset_core/storage/places.py for other files."
    )


# Imports of tests

TESTS = Path(__file__).parent
MAX_FOLDERS = 3
"""Folders of the product that one test file may import, in addition to the public names."""
HELP = (
    f"A test file imports at most {MAX_FOLDERS} folders of the product. Split the file into one for"
    " each folder that it tests, or use tests/helpers: `building` makes outputs, `inspecting` looks"
    " at them, `command` runs `nanoset`. Import public names from nanoset_core itself."
)


@cache
def imported_names(path: Path) -> Sequence[str]:
    """Return the full names of everything that a file imports, as `module.name`.

    Two tests need them, and parsing all files of the tests takes seconds.
    """
    names = []
    for node in statements(ast.parse(path.read_text()), in_functions=True):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


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
    crowded_files = {}
    for path in TESTS.rglob("test_*.py"):
        folders = {folder_of(name) for name in imported_names(path)} - {None}
        if len(folders) > MAX_FOLDERS:
            crowded_files[path.relative_to(TESTS).as_posix()] = sorted(folders)

    assert not crowded_files, HELP


def is_in_test_module(name: str) -> bool:
    """Return whether an imported name is one of a test module, such as `test_packs.LENGTH`."""
    modules = name.split(".")[:-1]
    return any(module.startswith("test_") for module in modules)


def test_no_test_file_imports_another():
    name_by_file = {}
    for path in TESTS.rglob("*.py"):
        for name in imported_names(path):
            if is_in_test_module(name):
                name_by_file[path.relative_to(TESTS).as_posix()] = name

    assert not name_by_file, "Move what test files share into tests/helpers."


# Names of classes


def files_by_class(paths: Iterable[Path]) -> Mapping[str, list[str]]:
    """Return the files that define each class, by the name of the class."""
    files: dict[str, list[str]] = {}
    for path in paths:
        file = path.relative_to(REPOSITORY).as_posix()
        for name in facts_of(path).class_names:
            files.setdefault(name, []).append(file)
    return files


def test_class_names_are_unique():
    files = files_by_class(module_paths().values())

    files_of_repeated_names = {name: paths for name, paths in files.items() if len(paths) > 1}

    assert not files_of_repeated_names, (
        "Say in each name which one it is, such as `TextBatch` and `PackBatch`."
    )
