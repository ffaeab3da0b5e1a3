"""Every stage and command writes the same bytes as at commit 2f92378.

If a byte differs, users have to rebuild their data, or their files differ from earlier ones. A
change in the form of the code must not cause this. The docstring of `golden_outputs/regenerate.py`
says what to do if a difference is intended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from golden_outputs.commands import run_commands
from golden_outputs.projects import PROJECTS, make_project
from golden_outputs.record import FILE, is_comparable, record, writers

GOLDEN = json.loads(FILE.read_bytes())
HAS_SAME_WRITERS = GOLDEN["writers"]["writers"] == writers()
"""Whether all files can be compared: the bytes of some depend on versions of libraries."""
MAX_LINES = 12
"""How many differences a message lists."""


def check_record(name: str, recorded: Mapping[str, Mapping[str, Any]]) -> None:
    """Fail if the record of a project or of the commands differs from the stored one.

    Recipes are compared first: if one differs, names of folders differ too.
    """
    __tracebackhide__ = True
    for part in ("recipes", "files"):
        check_entries(f"{part} of {name}", recorded[part], GOLDEN[name][part])


def check_entries(title: str, entries: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Fail with a list of the entries that differ from the expected ones."""
    __tracebackhide__ = True
    keys = sorted(expected.keys() | entries.keys())
    if not HAS_SAME_WRITERS:
        keys = [key for key in keys if is_comparable(key)]
    different_keys = [key for key in keys if entries.get(key) != expected.get(key)]
    if not different_keys:
        return

    lines = [f"{len(different_keys)} of {len(keys)} {title} differ:"]
    for key in different_keys[:MAX_LINES]:
        lines.append(f"{key}\n  was {expected.get(key)}\n  is  {entries.get(key)}")
    pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize("name", PROJECTS)
def test_stages_write_the_same_bytes(name: str, tmp_path: Path) -> None:
    project = make_project(name, tmp_path)

    check_record(name, record(project / "data"))


def test_commands_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    run_commands(tmp_path)

    check_record("commands", record(tmp_path))


def test_the_projects_have_outputs_of_every_stage() -> None:
    stages = set()
    for name in PROJECTS:
        for output_folder in GOLDEN[name]["recipes"]:
            stages.add(output_folder.split("/")[0])

    assert stages >= {
        "inventory",
        "shards",
        "tokenized",
        "datasets",
        "packed",
        "packs",
        "nanosets",
        "shuffle_plans",
        "webdatasets",
    }


def test_the_project_with_all_trainers_has_every_part_of_a_nanoset() -> None:
    parts = set()
    for output_folder in GOLDEN["trainers"]["recipes"]:
        if output_folder.startswith("nanosets/"):
            parts.add(output_folder.split("/")[-2])

    assert parts == {"index_mappings", "blend", "handoff"}
