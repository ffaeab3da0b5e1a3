"""Code that readers have to take apart is refused, with what to write instead.

CONTRIBUTING.md, "Write for readers", says why. Only what a syntax tree shows is held here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[1]
FOLDERS = (
    "nanoset_core",
    "nanoset_assets",
    "benchmarks",
    "campaigns",
    "deploy",
    "docs",
    "tests",
)
GOLDEN = REPOSITORY / "tests" / "golden"
"""Its scripts remain as they were when they made the files next to them."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
VAGUE_NAMES = {
    "asked",
    "begun",
    "both",
    "given",
    "held",
    "here",
    "kept",
    "made",
    "one",
    "own",
    "said",
    "some",
    "spent",
    "taken",
    "there",
    "told",
    "upto",
    "wanted",
    "who",
    "whole",
}
"""Names that say how a value came about, or that it exists, but not what it is."""
PUBLIC_PARAMETERS = {("nanoset_core/loading/nanoset.py", "asked")}
"""(file, name) of parameters that users of the package may pass by name."""


class Fault(NamedTuple):
    """A place in a module that a reader has to take apart."""

    line: int
    text: str
    """What it is, and what to write instead."""
    name: str = ""
    """The vague name, if that is the fault."""


def faults_of(text: str) -> list[Fault]:
    """Return the faults of a module, by line."""
    # All nodes, which take most of the time to find.
    nodes = list(ast.walk(ast.parse(text)))
    return sorted([*tuple_assignments(nodes), *nested_comprehensions(nodes), *vague_names(nodes)])


def tuple_assignments(nodes: Sequence[ast.AST]) -> Iterator[Fault]:
    """Yield each assignment of several values to several names, except where values are swapped."""
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        target = node.targets[-1]
        if isinstance(target, ast.Tuple) and not is_swap(target, node.value):
            yield Fault(node.lineno, "a tuple is assigned: write one assignment on each line")


def is_swap(target: ast.Tuple, value: ast.Tuple) -> bool:
    """Return whether an assignment gives the same places other values, as in `a, b = b, a`."""
    target_places = sorted(ast.unparse(element) for element in target.elts)
    value_places = sorted(ast.unparse(element) for element in value.elts)
    return target_places == value_places


def nested_comprehensions(nodes: Sequence[ast.AST]) -> Iterator[Fault]:
    """Yield each comprehension with several `for`, or with another comprehension inside."""
    for node in nodes:
        if not isinstance(node, COMPREHENSIONS):
            continue
        inner_nodes = [inner for inner in ast.walk(node) if inner is not node]
        has_inner_one = any(isinstance(inner, COMPREHENSIONS) for inner in inner_nodes)
        if has_inner_one or len(node.generators) > 1:
            yield Fault(
                node.lineno,
                "a comprehension is nested: write a loop, name the inner one in its own statement, "
                "or use itertools.chain",
            )


def vague_names(nodes: Sequence[ast.AST]) -> Iterator[Fault]:
    """Yield each variable or parameter with a vague name.

    Fields of classes are left out: many of them are names in stored files, which must not change.
    """
    fields = {id(target) for target in annotated_fields(nodes)}
    for node in nodes:
        name = None
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name is not None and name.strip("_") in VAGUE_NAMES and id(node) not in fields:
            yield Fault(
                node.lineno,
                f"`{name}` does not say what the value is: name it in the field's words, such as "
                "`manifest`, `missing_ids` or `n_documents`",
                name,
            )


def annotated_fields(nodes: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """Yield the targets of the annotated fields of all classes."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign):
                    yield statement.target


def modules() -> Sequence[Path]:
    """Return the modules of this repository that people read."""
    paths: list[Path] = []
    for folder in FOLDERS:
        paths.extend((REPOSITORY / folder).rglob("*.py"))
    return sorted(path for path in paths if not path.is_relative_to(GOLDEN))


def test_code_can_be_read_line_by_line() -> None:
    messages: list[str] = []
    for path in modules():
        file = path.relative_to(REPOSITORY).as_posix()
        for fault in faults_of(path.read_text(encoding="utf-8")):
            if (file, fault.name) not in PUBLIC_PARAMETERS:
                messages.append(f"{file}:{fault.line}: {fault.text}")

    assert not messages, "see CONTRIBUTING.md, Write for readers:\n" + "\n".join(messages)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("a, b = x, y", "one assignment on each line"),
        ("tokens = [token for row in rows for token in row]", "write a loop"),
        ("rows = [[cell for cell in row] for row in table]", "write a loop"),
        ("names = sorted(n for n in names if any(s in n for s in signs))", "write a loop"),
        ("for one in documents: pass", "name it in the field's words"),
        ("def take(given): pass", "name it in the field's words"),
    ],
)
def test_a_fault_is_named_by_its_line_with_what_to_write_instead(code: str, advice: str) -> None:
    [fault] = faults_of(f"\n{code}\n")

    assert fault.line == 2
    assert advice in fault.text


@pytest.mark.parametrize(
    "code",
    [
        "first, second = pair",
        "order[k], order[n] = order[n], order[k]",
        "names = sorted(name for name in names if name)",
        "class Facts:\n    taken: int = 0",
        "manifest.made = None",
    ],
)
def test_what_a_reader_sees_at_once_is_allowed(code: str) -> None:
    assert faults_of(code) == []
