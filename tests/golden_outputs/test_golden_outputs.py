"""What every stage and every command writes is, byte for byte, what commit 2f92378 wrote.

A difference makes users' data stale, or their files others than before, which no change of the
code's form may do; see `golden_outputs/regenerate.py` for when one is meant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_outputs.commands import run_commands
from golden_outputs.projects import PROJECTS, make_project
from golden_outputs.record import FILE, is_comparable, record, writers

GOLDEN = json.loads(FILE.read_bytes())
SAME_WRITERS = GOLDEN["writers"]["writers"] == writers()
MOST_LINES = 12


def compare(name: str, found: dict[str, dict[str, Any]]) -> None:
    """Recipes first: where one differs, names of folders do too."""
    __tracebackhide__ = True
    for part in ("recipes", "files"):
        expected = GOLDEN[name][part]
        keys = sorted(
            key
            for key in expected.keys() | found[part].keys()
            if SAME_WRITERS or is_comparable(key)
        )
        different = [key for key in keys if expected.get(key) != found[part].get(key)]
        if different:
            lines = [
                f"{key}\n  was {expected.get(key)}\n  is  {found[part].get(key)}"
                for key in different[:MOST_LINES]
            ]
            pytest.fail(
                f"{len(different)} of {len(keys)} {part} of {name} differ:\n" + "\n".join(lines),
                pytrace=False,
            )


@pytest.mark.parametrize("name", PROJECTS)
def test_stages(name: str, tmp_path: Path) -> None:
    compare(name, record(make_project(name, tmp_path) / "data"))


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(tmp_path)
    compare("commands", record(tmp_path))


def test_every_stage_is_held() -> None:
    stages = {key.split("/")[0] for name in PROJECTS for key in GOLDEN[name]["recipes"]}
    corpus = {"inventory", "shards", "tokenized", "datasets", "packed"}
    assert stages == corpus | {"packs", "nanosets", "shuffle_plans", "webdatasets"}
    parts = {
        key.split("/")[-2] for key in GOLDEN["trainers"]["recipes"] if key.startswith("nanosets/")
    }
    assert parts == {"index_mappings", "blend", "handoff"}
