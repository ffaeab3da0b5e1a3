"""`nanoset build --dry-run`: what a build would make, found out without writing anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.command import invoke_nanoset
from helpers.sample_project import jsonl, sentences
from nanoset_assets.build import build, dry_run
from nanoset_core.errors import ConfigError
from nanoset_core.project.project import Project


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Path of everything in a folder → its size and time of change."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def run(config: Path, *words: str):
    return invoke_nanoset(
        ["build", "--dry-run", "--config", str(config), *words], catch_exceptions=False
    )


def steps_of(found) -> set[str]:
    return {step for row in found.rows for step in row.steps}


@pytest.fixture
def config(make_project) -> Path:
    return make_project()


def append(config: Path) -> None:
    file = config.parent / "raw/web/part-0/web-0.jsonl"
    file.write_bytes(file.read_bytes() + jsonl(sentences("late", 3)))


def test_nothing_is_written_before_the_first_build(config, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = state_of(tmp_path)
    result = run(config)
    assert result.exit_code == 0
    assert "Nothing was made: this was a dry run." in result.output
    assert state_of(tmp_path) == before


def test_a_dry_run_names_exactly_the_steps_that_the_build_then_makes(config, instance, tmp_path):
    fresh = dry_run(Project.open(config))
    assert steps_of(fresh) == set(build(Project.open(config), instance).made)
    assert {row.state for row in fresh.rows} == {"missing"}
    assert fresh.text_bytes.keys() == {"books", "code", "web"}
    assert fresh.disk_bytes["shards"] > 0

    assert not dry_run(Project.open(config)).rows
    append(config)
    before = state_of(tmp_path)
    stale = dry_run(Project.open(config))
    assert run(config).exit_code == 0
    assert state_of(tmp_path) == before
    assert stale.rows[0].why == ("1 file changed (part-0/web-0.jsonl)",)
    assert stale.text_bytes.keys() == {"web"}
    assert steps_of(stale) == set(build(Project.open(config), instance).made)


@pytest.mark.parametrize(
    "choice",
    [
        {"corpora": ["web"]},
        {"select": ["plain/train"]},
        {"select": ["+shuffled/shuffle_plan"]},
        {"select": ["books"], "corpora": ["books", "code"]},
    ],
    ids=["corpus", "split", "Dagster's syntax", "within corpora"],
)
def test_selections_are_those_of_a_build(config, instance, choice):
    found = dry_run(Project.open(config), **choice)
    assert steps_of(found) == set(build(Project.open(config), instance, **choice).made)


def test_what_is_forced_is_said_to_be(config, instance):
    build(Project.open(config), instance, corpora=["web"])
    assert not dry_run(Project.open(config), corpora=["web"]).rows
    (row,) = dry_run(Project.open(config), corpora=["web"], force=True).rows
    assert row.why == ("it is rebuilt, because of --force",)
    assert len(row.steps) == 3


def test_json_has_steps_text_and_disk(config):
    found = json.loads(run(config, "--json", "--corpus", "web").stdout)
    assert found["steps"] == 3
    assert found["text_bytes"] == found["corpora"]["web"] > 0
    assert found["disk_bytes"] == sum(found["disk"].values()) > 0
    assert found["outputs"][0]["steps"] == [
        "raw_jsonl [web]",
        "tokenized_shards [web]",
        "indexed_dataset [web]",
    ]
    assert found["free_bytes"] > 0
    assert found["root"] == str(config.parent / "data")


def test_what_cannot_be_read_is_named_with_what_it_holds_up(config):
    (config.parent / "raw/code/gone.jsonl").symlink_to(config.parent / "nowhere.jsonl")
    result = run(config, "--json")
    assert result.exit_code == 0
    rows = {(row["name"], row["part"]): row for row in json.loads(result.stdout)["outputs"]}
    assert rows["code", None]["state"] == "failing"
    assert "gone.jsonl" in rows["code", None]["why"][0]
    assert rows["pretrain", "train"]["steps"] == []
    assert rows["plain", "train"]["steps"]


@pytest.mark.parametrize("words", [["--select", "nothing-such"], ["--corpus", "nothing-such"]])
def test_wrong_names_are_refused_as_by_a_build(config, words):
    with pytest.raises(ConfigError):
        run(config, *words)


def test_json_is_for_dry_runs(config):
    result = invoke_nanoset(["build", "--json", "--config", str(config)])
    assert result.exit_code == 2
