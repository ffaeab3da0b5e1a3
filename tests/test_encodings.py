"""Every text file is UTF-8, whatever the locale says: calls that would ask the locale are found in
the source.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.dagster_history import QUICK_COMMAND, quick_history  # noqa: F401 - of the command that builds
from helpers.sample_project import FEWER

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("nanoset_core", "nanoset_assets", "benchmarks", "docs")
ASKING = ("read_text", "write_text", "TextIOWrapper")
STARTERS = ("run", "Popen", "check_output", "check_call", "call")
OWNERS = ("os", "tarfile", "part", "file", "connection")
"""Names of what has an `open` of its own, as all that begins with a capital letter has."""


def asks_the_locale(call: ast.Call) -> bool:
    """Whether a call opens a text, or a process with texts, without saying how it is encoded."""
    name, owner = (
        getattr(call.func, "attr", getattr(call.func, "id", "")),
        getattr(call.func, "value", None),
    )
    given = {keyword.arg for keyword in call.keywords}
    if given & {"encoding", "begin", None} or (name == "read_text" and call.args):
        return False
    if name != "open":
        return name in ASKING or (name in STARTERS and bool(given & {"text", "universal_newlines"}))
    words = [
        value.value
        for value in (*call.args, *(word.value for word in call.keywords))
        if hasattr(value, "value")
    ]
    is_binary = any(
        isinstance(word, str) and re.fullmatch("[rwax+]*b[rwax+]*", word) for word in words
    )
    is_own_method = (
        owner is not None and bool(call.args) and not isinstance(call.args[0], ast.Constant)
    )
    has_its_own = isinstance(owner, ast.Name) and (owner.id in OWNERS or owner.id[0].isupper())
    return not (is_binary or is_own_method or has_its_own)


def calls(source: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_is_opened_as_utf_8(folder):
    found = [
        f"{path.relative_to(REPOSITORY)}:{call.lineno}"
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for call in calls(path.read_text(encoding="utf-8"))
        if asks_the_locale(call)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "asks"),
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
def test_the_search_finds_what_it_should(source, asks):
    assert [asks_the_locale(call) for call in calls(source)] == [asks]


@pytest.fixture
def run():
    """Runs `nanoset` in a locale that is not of UTF-8; → what it printed, as bytes."""

    def run(*arguments, program=("-m", "nanoset_core.cli"), **environment):
        told = {
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "LC_ALL": "C",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, *program, *map(str, arguments)]
        done = subprocess.run(command, env=os.environ | told | environment, capture_output=True)
        assert not any(words in done.stderr for words in (b"Traceback", b"internal error")), (
            done.stderr.decode()
        )
        return done

    return run


def test_a_project_is_built_and_read_where_the_locale_is_not_utf_8(make_project, run, tmp_path):
    config = make_project("plain", FEWER)
    text = config.read_text(encoding="utf-8").replace("raw: raw", "raw: raw  # größer, 数据")
    config.write_text(text, encoding="utf-8")
    line = json.dumps({"text": "Größe и 数据", "id": "größe"}, ensure_ascii=False)
    (config.parent / "raw/web/part-0/web-9.jsonl").write_text(line + "\n", encoding="utf-8")
    built = run(
        "build",
        "--config",
        config,
        program=("-c", QUICK_COMMAND),
        DAGSTER_HOME=str(tmp_path / "home"),
    )
    assert built.returncode == 0, built.stderr.decode()
    for encoding in ("ascii", "latin-1"):
        explained = run(
            "explain",
            "pretrain",
            "train",
            "0",
            "--json",
            "--config",
            config,
            PYTHONIOENCODING=encoding,
        )
        assert json.loads(explained.stdout), "JSON in every locale"
    assert run("status", "--config", config).returncode == 0


def test_names_that_the_locale_cannot_tell_are_refused_with_what_to_set(make_project, run):
    config = make_project("plain")
    (config.parent / "raw/web/données.jsonl").write_text('{"text": "one"}\n', encoding="utf-8")
    status = run("status", "--config", config)
    assert b"this locale is not UTF-8" in status.stdout
    moved = config.parent.rename(config.parent.with_name("größe"))
    refused = run("status", "--config", moved / config.name)
    assert refused.returncode == 1
    assert b"PYTHONUTF8=1" in refused.stderr
