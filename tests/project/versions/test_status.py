"""`nanoset status` says what a build would do, and why."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import time
from pathlib import Path

import pytest

from helpers.building import (
    build_all,
    make_blend,
    make_dataset,
    make_handoff,
    make_inventory,
    make_mappings,
    make_shards,
    make_shuffle_plan,
    make_tars,
)
from helpers.changing import build, change_web
from helpers.command import invoke_nanoset
from helpers.inspecting import graph_of, leased_by_a_build
from helpers.sample_project import SPLITS, jsonl, sentences, tree
from nanoset_core.errors import NanosetError
from nanoset_core.project import survey as survey_module
from nanoset_core.project.gc import collect, old_versions, plan_gc
from nanoset_core.project.graph import ANOTHER_IS_CURRENT
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status


def status(folder):
    return {row.label: row for row in project_status(Project.open(folder / "nanoset.yaml"))}


def states(folder):
    return {label: row.state for label, row in status(folder).items() if row.state != "up to date"}


def why(folder, label):
    return list(status(folder)[label].why)


def set_config(folder, old, new):
    config = folder / "nanoset.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))


def test_all_is_up_to_date_after_a_build(copy):
    folder = copy()
    before = tree(folder / "data")
    found = status(folder)
    assert {row.state for row in found.values()} == {"up to date"}
    assert not any(row.why for row in found.values())
    parts = [
        f"nanoset {name} {part}" for name in ("pretrain", "plain") for part in (*SPLITS, "handoff")
    ]
    assert list(found) == [
        "corpus books",
        "corpus code",
        "corpus web",
        *parts,
        "webdataset shuffled",
        "packed books",
    ]
    assert tree(folder / "data") == before
    dataset = Project.open(folder / "nanoset.yaml").outputs.current("datasets", "web")
    figures = found["corpus web"].figures
    assert figures["files"] == 4
    assert (figures["documents"], figures["tokens"]) == (240, dataset.facts["tokens"])
    assert figures["bytes"] == sum(os.path.getsize(path) for path in dataset.folder.glob("web_*"))
    assert found["corpus web"].made_at == pytest.approx(
        (dataset.folder / "manifest.json").stat().st_mtime
    )
    assert found["nanoset pretrain train"].figures["samples"] == 400
    assert found["nanoset pretrain train"].figures["tokens"] == 400 * 32


def test_all_is_missing_before_a_build(copy):
    folder = copy()
    shutil.rmtree(folder / "data")
    found = status(folder)
    assert {row.state for row in found.values()} == {"missing"}
    assert found["corpus web"].why == ("not built yet",)
    assert found["nanoset pretrain train"].why == (
        "web is not up to date",
        "code is not up to date",
    )
    assert not (folder / "data").exists()


def test_many_corpora_without_outputs_are_named_once(copy, monkeypatch):
    folder = copy()
    for stage in ("inventory", "tokenized", "datasets"):
        shutil.rmtree(folder / "data" / stage / "books")
    command = ["status", "--config", str(folder / "nanoset.yaml")]
    said = invoke_nanoset(command).output
    assert "│ books " in said.partition("packed")[0]
    assert "not built yet, named below" not in said
    monkeypatch.setattr("nanoset_core.cli.commands.status._MAX_UNBUILT", 0)
    said = invoke_nanoset(command).output
    assert "corpus: 1 of 3 not built yet, named below" in said
    assert "missing: corpus books: not built yet" in said
    assert "│ books " not in said.partition("packed")[0]
    assert "│ web " in said


@pytest.mark.parametrize("kind", ["added", "removed", "changed", "grown"])
def test_changed_files_are_named_with_all_that_is_made_of_them(copy, kind):
    folder = copy()
    file = folder / "raw/web/part-1/web-3.jsonl"
    if kind == "added":
        (file.parent / "web-4.jsonl").write_bytes(jsonl(sentences("new", 2)))
    elif kind == "removed":
        file.unlink()
    elif kind == "changed":
        file.write_bytes(file.read_bytes().replace(b"the", b"eht"))
    else:
        change_web(folder)
    expected = {
        "added": "1 file added (part-1/web-4.jsonl)",
        "removed": "1 file removed (part-1/web-3.jsonl)",
        "changed": "1 file changed (part-1/web-3.jsonl)",
        "grown": "1 file changed (part-1/web-3.jsonl)",
    }
    assert why(folder, "corpus web") == [expected[kind]]
    found = states(folder)
    assert set(found) == {
        "corpus web",
        *(f"nanoset pretrain {part}" for part in ("train", "valid", "test", "handoff")),
        "webdataset shuffled",
    }
    assert set(found.values()) == {"stale"}
    build(folder)
    assert states(folder) == {}


def test_a_file_that_was_only_touched_is_read_where_it_is_small(copy, monkeypatch):
    folder = copy()
    file = folder / "raw/web/part-1/web-3.jsonl"
    # what was written a moment ago is not remembered
    for path in (folder / "raw/web").rglob("*.jsonl*"):
        os.utime(path, (time.time() - 100, time.time() - 100))
    assert states(folder) == {}
    make_inventory(Project.open(folder / "nanoset.yaml"), "web")
    os.utime(file, (time.time() - 99, time.time() - 99))
    monkeypatch.setattr(survey_module, "READ_BYTES", 10)
    assert why(folder, "corpus web") == [
        "1 file copied or written again, which the next build reads to compare (part-1/web-3.jsonl)"
    ]
    assert "web is not up to date" in why(folder, "webdataset shuffled")


def test_a_copied_project_is_told_as_such_and_settles_with_a_build_that_has_nothing_to_do(
    copy, monkeypatch, tmp_path
):
    """As `cp -r` makes it: all times and inodes are new."""
    folder = tmp_path / "copied"
    shutil.copytree(copy(), folder, symlinks=True, copy_function=shutil.copyfile)
    for number, path in enumerate(sorted((folder / "raw").rglob("*.jsonl*"))):
        os.utime(path, (1e9 + number, 1e9 + number))
    files = [
        path.relative_to(folder / "raw/web") for path in (folder / "raw/web").rglob("*.jsonl*")
    ]
    some = min(path.stat().st_size for path in (folder / "raw").rglob("*.jsonl*")) + 1
    monkeypatch.setattr(survey_module, "READ_BYTES", some)
    assert len(files) > 1
    assert why(folder, "corpus web")[0].startswith(f"{len(files)} files copied or written again"), (
        "all of them, not some"
    )
    before = tree(folder / "data")
    build(folder)
    assert states(folder) == {}
    changed = {name for name, digest in tree(folder / "data").items() if before.get(name) != digest}
    assert all(
        name.endswith(".fingerprints.json") or name.startswith(".in-use") for name in changed
    )


def test_known_files_are_not_read(copy, monkeypatch):
    folder = copy()
    for path in (folder / "raw").rglob("*.jsonl*"):
        os.utime(path, (1e9, 1e9))
    for corpus in ("web", "code", "books"):
        make_inventory(Project.open(folder / "nanoset.yaml"), corpus)

    def read(*_):
        raise AssertionError("a file was read")

    monkeypatch.setattr(survey_module, "fingerprint", read)
    assert states(folder) == {}


def test_changed_settings_are_named(copy):
    folder = copy()
    set_config(folder, "append_eod: true", "append_eod: false")
    set_config(folder, "seed: 7", "seed: 8")
    set_config(folder, "member: npy", "member: json.gz")
    assert [reason.partition(":")[0] for reason in why(folder, "corpus web")] == [
        "token ids after each document (EOD)"
    ]
    assert "seed: 7 → 8" in why(folder, "nanoset pretrain valid")
    assert "web changed" in why(folder, "nanoset pretrain valid")
    assert "member: npy → json.gz" in why(folder, "webdataset shuffled")
    assert why(folder, "packed books") == ["dataset changed"]


def test_two_configurations_of_one_root_are_told_who_replaced_what(copy):
    folder = copy()
    other = folder / "other.yaml"
    other.write_text((folder / "nanoset.yaml").read_text().replace("seed: 7", "seed: 8"))
    parts = {f"nanoset pretrain {part}" for part in ("train", "valid", "test", "handoff")}
    assert {
        row.label: row.state
        for row in project_status(Project.open(other))
        if row.state != "up to date"
    } == (dict.fromkeys(parts, "stale")), "a setting of one nanoset makes nothing else stale"
    build_all(other)
    assert why(folder, "nanoset pretrain train") == ["seed: 8 → 7", ANOTHER_IS_CURRENT]
    assert why(folder, "nanoset pretrain handoff") == [
        "train changed",
        "valid changed",
        "test changed",
    ]
    assert set(states(folder)) == parts


@pytest.mark.parametrize(
    ("pattern", "label", "reason"),
    [
        ("datasets/web/*/*.bin", "corpus web", "damaged: web_text_document.bin is missing"),
        ("shards/web/*/tokens.idx", "corpus web", "a shard is missing or damaged"),
        ("tokenized/web/*/manifest.json", "corpus web", "manifest.json is missing"),
        ("inventory/web/*/inventory.json", "corpus web", "damaged: inventory.json is missing"),
        (
            "nanosets/pretrain/cache/*-train-sample_index.npy",
            "nanoset pretrain train",
            "an index file is missing",
        ),
        (
            "nanosets/plain/valid/index_mappings/*/plan.json",
            "nanoset plain valid",
            "damaged: plan.json is missing",
        ),
        (
            "nanosets/plain/handoff/*/START.md",
            "nanoset plain handoff",
            "damaged: START.md is missing",
        ),
        (
            "webdatasets/shuffled/*/shard-00000002.tar",
            "webdataset shuffled",
            "damaged: shard-00000002.tar is missing",
        ),
        (
            "shuffle_plans/shuffled/*/plan.json",
            "webdataset shuffled",
            "damaged: plan.json is missing",
        ),
        ("packed/books/*/books.pbin", "packed books", "damaged: books.pbin is missing"),
    ],
)
def test_lost_files_are_named(copy, pattern, label, reason):
    folder = copy()
    next((folder / "data").glob(pattern)).unlink()
    found = status(folder)
    assert found[label].state == "stale"
    assert any(reason in text for text in found[label].why), found[label].why


@pytest.mark.parametrize(
    "place", ["tokenized/web", "nanosets/pretrain/train/blend", "webdatasets/shuffled"]
)
@pytest.mark.parametrize("file", ["current.json", "manifest.json"])
def test_unreadable_state_is_damage_not_a_crash(copy, place, file):
    folder = copy()
    path = folder / "data" / place / ("current/" * (file == "manifest.json") + file)
    path.write_text("{]")
    rows = [row for row in status(folder).values() if row.state != "up to date"]
    assert {row.state for row in rows} <= {"stale", "missing"}
    assert any(
        "does not name a version" in text or "not a manifest" in text
        for row in rows
        for text in row.why
    )


def test_corpora_that_cannot_be_read_are_failing_and_the_rest_is_told(copy):
    folder = copy()
    shutil.rmtree(folder / "raw/code")
    (folder / "raw/books/dangling.jsonl").symlink_to(folder / "nowhere")
    found = status(folder)
    assert found["corpus code"].state == "failing"
    assert "no folder of raw text" in found["corpus code"].why[0]
    assert found["corpus books"].state == "failing"
    assert "a file is missing" in found["corpus books"].why[0]
    assert found["corpus web"].state == "up to date"
    assert found["nanoset pretrain train"].why == ("code is not up to date",)
    assert found["packed books"].why == ("books is not up to date",)


def test_a_corpus_with_too_many_rejects_is_failing_and_they_are_pointed_at(copy):
    folder = copy()
    file = folder / "raw/web/part-0/web-0.jsonl"
    file.write_bytes(file.read_bytes() + b"no json\n" * 3)
    build(folder)
    found = status(folder)
    assert found["corpus web"].state == "up to date"
    assert found["corpus web"].figures["rejected"] == 3
    lines = [
        line for path in found["corpus web"].rejects for line in Path(path).read_text().splitlines()
    ]
    assert len(lines) == 3
    printed = invoke_nanoset(["status", "--config", str(folder / "nanoset.yaml")])
    assert printed.exit_code == 0
    assert f"rejected lines of web: {found['corpus web'].rejects[0]}" in printed.output

    set_config(folder, "max_rejected_fraction: 0.2", "max_rejected_fraction: 0.001")
    assert states(folder)["corpus web"] == "failing"
    assert "3 of 243 lines rejected, 1.23% (invalid_json 3)" in why(folder, "corpus web")[0]
    assert "documents.max_rejected_fraction" in why(folder, "corpus web")[0]

    file.write_bytes(file.read_bytes() + b"no json\n")
    assert states(folder)["corpus web"] == "stale", "its shards are not there to tell"
    project = Project.open(folder / "nanoset.yaml")
    make_inventory(project, "web")
    with pytest.raises(NanosetError):
        make_shards(project, "web")
    assert states(folder)["corpus web"] == "failing"
    assert "4 of 244 lines rejected" in why(folder, "corpus web")[0]


def test_a_split_that_cannot_be_built_is_failing(copy):
    folder = copy()
    set_config(folder, "samples: {train: 400}", "samples: {train: 4000000}\n    max_epochs: 2")
    found = status(folder)
    assert found["nanoset pretrain train"].state == "failing"
    assert "more often" in found["nanoset pretrain train"].why[0]


def test_tars_are_counted_while_they_are_made(copy, monkeypatch):
    folder, asked = copy(), []
    with monkeypatch.context() as patch:
        patch.setattr(
            "nanoset_core.stages.webdataset.make.is_group_written",
            lambda project, name, group: asked.append(group) or True,
        )
        assert not why(folder, "webdataset shuffled")
    assert not asked, "groups of a webdataset that is up to date are not looked at"
    set_config(folder, "seed: 5", "seed: 6")
    assert why(folder, "webdataset shuffled") == ["seed: 5 → 6"]
    project = Project.open(folder / "nanoset.yaml")
    plan = make_shuffle_plan(project, "shuffled")
    make_tars(project, "shuffled", 1)
    assert why(folder, "webdataset shuffled") == ["plan changed", "1 of 3 groups of tars written"]
    (plan.folder / "plan.json").write_bytes(b"x" * plan.files["plan.json"].size)
    assert "this file is not as it was written" in why(folder, "webdataset shuffled")


def test_bytes_are_told_as_soon_as_there_are_some(copy):
    folder = copy()
    shutil.rmtree(folder / "data/nanosets/pretrain/train/blend")
    row = status(folder)["nanoset pretrain train"]
    assert row.state == "missing"
    assert row.to_json()["bytes"] > 0


def test_what_is_being_built_is_marked(copy):
    folder = copy()
    with leased_by_a_build(Project.open(folder / "nanoset.yaml"), "web"):
        assert {label for label, row in status(folder).items() if row.busy} == {"corpus web"}
        assert states(folder) == {}
        change_web(folder)
        config = ["--config", str(folder / "nanoset.yaml")]
        said = invoke_nanoset(["status", *config])
        rows = json.loads(invoke_nanoset(["status", "--json", *config]).output)
    host = platform.node()
    assert said.exit_code == 1
    assert f"being built: corpus web: on {host}" in said.output
    (web,) = [row for row in rows if (row["kind"], row["name"]) == ("corpus", "web")]
    assert {name: web[name] for name in ("state", "why", "building", "host", "share")} == {
        "state": "being built", "why": [f"on {host}"], "building": True, "host": host, "share": None,
    }  # fmt: skip
    assert states(folder)["corpus web"] == "stale"


def test_a_project_that_moved_says_so_in_words(copy):
    folder = copy()
    set_config(folder, "    trainer_path: /lustre/data\n", "")
    said = "where trainers find the outputs (trainer_path, or else their location): /lustre/data → "
    assert any(reason.startswith(said) for reason in why(folder, "nanoset pretrain train"))


@pytest.mark.parametrize("seed", range(3))
def test_it_says_up_to_date_just_where_a_build_has_nothing_to_do(copy, seed):
    folder = copy()
    draw = random.Random(seed)
    project = Project.open(folder / "nanoset.yaml")
    events = [
        lambda: change_web(folder, f"word{draw.random()}"),
        lambda: make_inventory(project, "web"),
        lambda: make_shards(project, "web"),
        lambda: make_dataset(project, "web"),
        lambda: make_mappings(project, "pretrain", draw.choice(SPLITS)),
        lambda: make_blend(project, "pretrain", draw.choice(SPLITS)),
        lambda: make_handoff(project, "pretrain"),
        lambda: make_shuffle_plan(project, "shuffled"),
        lambda: draw.choice(sorted((folder / "data").glob("*/*/*/*.*"))).unlink(),
        lambda: draw.choice(sorted((folder / "data/nanosets").glob("*/cache/*.npy"))).unlink(),
        lambda: build(folder),
    ]
    for _ in range(12):
        try:
            draw.choice(events)()
        except NanosetError:
            continue
        assert_as_build(folder)


def assert_as_build(folder):
    project = Project.open(folder / "nanoset.yaml")
    steps = graph_of(project).steps()
    undone = [
        (step.node.stage.layout.folder, step.node.name) for step in steps if not step.is_up_to_date
    ]
    expected = {" ".join(filter(None, step.node.row)) for step in steps if not step.is_up_to_date}
    assert {
        label for label, row in status(folder).items() if row.state != "up to date"
    } == expected, undone


def test_the_command_prints_tables_or_json_and_exits_by_state(copy):
    folder = copy()
    config = ["--config", str(folder / "nanoset.yaml")]
    done = invoke_nanoset(["status", *config])
    assert done.exit_code == 0, done.output
    assert "13 up to date" in done.output
    change_web(folder)
    stale = invoke_nanoset(["status", *config])
    assert stale.exit_code == 1
    assert "stale: corpus web: 1 file changed (part-1/web-3.jsonl)" in stale.output
    rows = invoke_nanoset(["status", "--json", *config])
    assert rows.exit_code == 1
    found = {(row["kind"], row["name"], row["part"]): row for row in json.loads(rows.output)}
    assert found["corpus", "web", None]["state"] == "stale"
    assert found["corpus", "code", None]["documents"] == 120


def test_what_lies_among_the_files_is_told_and_not_built(copy):
    folder = copy()
    (folder / "raw/web/notes.txt").write_text("not read")
    (folder / "raw/web/part-0/b.jsonl.gz.part").write_text("not all of it")
    (folder / "raw/c4").mkdir()
    (folder / "raw/c4/a.json.bz2").write_bytes(b"BZh")
    found = status(folder)
    assert [notice.kind for notice in found["corpus web"].notices] == ["not_read", "unfinished"]
    assert found["corpus books"].notices == ()
    assert found.pop("folder c4").state == "not read"
    assert {row.state for row in found.values()} == {"up to date"}
    config = str(folder / "nanoset.yaml")
    shown = invoke_nanoset(["status", "-c", config])
    assert shown.exit_code == 0
    assert "notice: corpus web: 1 file is not read: 1 .txt (notes.txt)" in shown.output
    assert (
        "not read: folder c4: a folder in which nothing is read: 1 file is not read: 1 .json.bz2"
        in shown.output
    )
    rows = json.loads(invoke_nanoset(["status", "-c", config, "--json"]).stdout)
    assert rows[0] | {"why": []} == {
        "kind": "folder", "name": "c4", "part": None, "state": "not read", "why": [], "made_at": None,
        "building": False, "rejects": [], "warnings": [], "notices": [],
    }  # fmt: skip
    (web,) = [row for row in rows if row["name"] == "web"]
    assert web["notices"][0] == {
        "kind": "not_read",
        "files": 1,
        "text": "1 file is not read: 1 .txt (notes.txt)",
    }


def test_a_file_that_shrank_is_told_before_and_after_the_build(copy):
    folder = copy()
    path = folder / "raw/web/part-0/web-0.jsonl"
    size = path.stat().st_size
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:30]))
    sizes = f"{size:,} → {path.stat().st_size:,} bytes"
    said = f"1 file is smaller than in the previous version: part-0/web-0.jsonl ({sizes})"
    assert [notice.text for notice in status(folder)["corpus web"].notices] == [said]
    build(folder)
    assert [notice.text for notice in status(folder)["corpus web"].notices] == [said]
    path.write_bytes(b"".join(lines))
    assert status(folder)["corpus web"].notices == ()
    build(folder)
    assert status(folder)["corpus web"].notices == ()


def printed_status(folder):
    config = str(folder / "nanoset.yaml")
    return invoke_nanoset(["status", "--config", config]).stdout


def test_a_project_without_old_versions_names_none(copy):
    assert "nanoset gc" not in printed_status(copy())


def test_old_versions_are_named_with_their_size_and_the_command_that_removes_them(copy):
    folder = copy()
    project = Project.open(folder / "nanoset.yaml")
    change_web(folder)
    build(folder)

    count, size = old_versions(project)
    found = plan_gc(project)

    assert (count, size) == (len(found.garbage), found.size)
    line = next(line for line in printed_status(folder).splitlines() if "nanoset gc" in line)
    assert line.startswith(f"{count:,} old versions and index files, ")
    collect(project)
    assert old_versions(project) == (0, 0)
    assert "nanoset gc" not in printed_status(folder)
