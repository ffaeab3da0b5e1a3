"""Every text file is UTF-8, in every locale.

A search in the source finds calls that would use the encoding of the locale.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.dagster_history import QUICK_COMMAND, quick_history  # noqa: F401 - of the command that builds
from helpers.locations import REPOSITORY
from helpers.sample_project import FEWER, ONLY_WEB, keep_only_web

FOLDERS = ("nanoset_core", "nanoset_assets", "benchmarks", "docs")
FUNCTIONS_OF_TEXT = ("read_text", "write_text", "TextIOWrapper")
"""Functions that always read or write text."""
FUNCTIONS_OF_PROCESSES = ("run", "Popen", "check_output", "check_call", "call")
"""Functions that start a process, and read text from it if an option says so."""
OTHER_OPENERS = ("os", "tarfile", "part", "file", "connection")
"""Names of values whose method `open` does not open a text; classes have such methods, too."""
BINARY_MODE = re.compile("[rwax+]*b[rwax+]*")
CALLED_NAME = re.compile(
    rf"\b(open|{'|'.join(FUNCTIONS_OF_TEXT)}|{'|'.join(FUNCTIONS_OF_PROCESSES)})\("
)
"""How the text of a module that calls one of these functions looks: others need not be parsed."""


def uses_locale(call: ast.Call) -> bool:
    """Return whether a call reads or writes text without saying how it is encoded."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    options = {keyword.arg for keyword in call.keywords}
    # A call with `**options` (None) may have an encoding. `begin` is an option of our own functions.
    if options & {"encoding", "begin", None}:
        return False
    if name == "read_text" and call.args:  # the first argument is the encoding
        return False
    if name in FUNCTIONS_OF_TEXT:
        return True
    if name in FUNCTIONS_OF_PROCESSES:
        return bool(options & {"text", "universal_newlines"})
    return name == "open" and not has_binary_mode(call) and opens_text_file(call)


def has_binary_mode(call: ast.Call) -> bool:
    """Return whether an argument of a call is a mode such as `rb`."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    constants = [value.value for value in values if isinstance(value, ast.Constant)]
    texts = [constant for constant in constants if isinstance(constant, str)]
    return any(BINARY_MODE.fullmatch(text) for text in texts)


def opens_text_file(call: ast.Call) -> bool:
    """Return whether a call is of the built-in `open` or of the method `open` of a path."""
    if isinstance(call.func, ast.Name):
        return True
    # The first argument of a path's method is a mode, which is written out.
    if call.args and not isinstance(call.args[0], ast.Constant):
        return False
    owner = getattr(call.func, "value", None)
    if not isinstance(owner, ast.Name):
        return True
    is_class = owner.id[0].isupper()
    return owner.id not in OTHER_OPENERS and not is_class


def calls_in(source: str) -> Iterator[ast.Call]:
    """Yield all calls in a module that may read or write text."""
    if not CALLED_NAME.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield node


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_is_opened_as_utf_8(folder):
    faulty_calls = []
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        for call in calls_in(path.read_text(encoding="utf-8")):
            if uses_locale(call):
                faulty_calls.append(f"{path.relative_to(REPOSITORY)}:{call.lineno}")

    assert faulty_calls == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("path.read_text()", True),
        ("path.read_text(encoding='utf-8')", False),
        ("path.write_text(text)", True),
        ("path.open()", True),
        ("path.open('w')", True),
        ("path.open('rb')", False),
        ("open(path)", True),
        ("open(path, 'w', encoding='utf-8')", False),
        ("Project.open(path)", False),
        ("self.datasets.open(manifest)", False),
        ("subprocess.run(command, text=True)", True),
        ("subprocess.run(command)", False),
    ],
)
def test_the_search_finds_calls_that_use_the_encoding_of_the_locale(source, expected):
    [call] = calls_in(source)

    assert uses_locale(call) is expected


@pytest.fixture
def run_in_locale_c() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """A function that runs `nanoset` in a locale that is not UTF-8."""

    def run(
        *arguments: object,
        program: tuple[str, ...] = ("-m", "nanoset_core.cli"),
        **environment: str,
    ) -> subprocess.CompletedProcess[bytes]:
        variables = {
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "LC_ALL": "C",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, *program, *map(str, arguments)]
        result = subprocess.run(
            command, env=os.environ | variables | environment, capture_output=True
        )
        stderr = result.stderr.decode()
        assert "Traceback" not in stderr, stderr
        assert "internal error" not in stderr, stderr
        return result

    return run


@pytest.fixture
def foreign_project(make_project) -> Path:
    """The nanoset.yaml of a project with letters that ASCII does not have in settings and text."""
    config = make_project("plain", FEWER | ONLY_WEB)
    keep_only_web(config)
    settings = config.read_text(encoding="utf-8")
    settings = settings.replace("raw: raw", "raw: raw  # größer, 数据")
    config.write_text(settings, encoding="utf-8")
    line = json.dumps({"text": "Größe и 数据", "id": "größe"}, ensure_ascii=False)
    raw_file = config.parent / "raw" / "web" / "part-0" / "web-9.jsonl"
    raw_file.write_text(line + "\n", encoding="utf-8")
    return config


@pytest.mark.slow
def test_a_project_is_built_and_read_if_the_locale_is_not_utf_8(
    foreign_project, run_in_locale_c, tmp_path
):
    home = str(tmp_path / "home")
    build = run_in_locale_c(
        "build", "--config", foreign_project, program=("-c", QUICK_COMMAND), DAGSTER_HOME=home
    )

    assert build.returncode == 0, build.stderr.decode()
    explain = ["explain", "pretrain", "train", "0", "--json", "--config", foreign_project]
    for encoding in ("ascii", "latin-1"):
        explained = run_in_locale_c(*explain, PYTHONIOENCODING=encoding)
        assert json.loads(explained.stdout), "JSON in every locale"


def test_status_reports_a_file_whose_name_the_locale_cannot_represent(
    make_project, run_in_locale_c
):
    config = make_project("plain")
    raw_file = config.parent / "raw" / "web" / "données.jsonl"
    raw_file.write_text('{"text": "one"}\n', encoding="utf-8")

    status = run_in_locale_c("status", "--config", config)

    assert b"this locale is not UTF-8" in status.stdout


def test_a_project_whose_path_the_locale_cannot_represent_is_refused_with_a_remedy(
    make_project, run_in_locale_c
):
    config = make_project("plain")
    folder = config.parent.rename(config.parent.with_name("größe"))

    status = run_in_locale_c("status", "--config", folder / config.name)

    assert status.returncode == 1
    assert b"PYTHONUTF8=1" in status.stderr
