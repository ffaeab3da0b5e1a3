"""`nanoset gc`: what nothing needs goes, and nothing else."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.building import (
    make_corpora,
    make_inventory,
    make_mappings,
    make_shards,
    make_shuffle_plan,
    make_tars,
)
from helpers.changing import build, change_web, rebuild
from helpers.child_processes import wait_until
from helpers.command import invoke_nanoset
from helpers.inspecting import current_output, leased_by_a_build, lineage_of, node_at
from helpers.progress import RecordingDisplay
from helpers.sample_project import jsonl, sentences, tree
from nanoset_core import load_nanoset
from nanoset_core.errors import StorageError
from nanoset_core.project import gc as gc_module
from nanoset_core.project.garbage import Garbage, GarbageCollection
from nanoset_core.project.gc import collect, plan_gc
from nanoset_core.project.project import Project, names_of
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.storage.atomic import published_folder
from nanoset_core.storage.removals import withdraw_output


def fresh_tree(folder):
    """What a build of the same inputs makes where nothing was built before."""
    other = shutil.copytree(
        folder, folder.with_name(folder.name + "-fresh"), ignore=shutil.ignore_patterns("data")
    )
    build(other)
    found = tree(other / "data")
    shutil.rmtree(other)
    return found


def why(collection, path):
    return [item.why for item in collection.left_alone if path in item.path.as_posix()]


def test_after_several_versions_exactly_what_a_fresh_build_makes_is_left(copy):
    folder = copy()
    first, project = tree(folder / "data"), Project.open(folder / "nanoset.yaml")
    assert plan_gc(project) == collect(project) == GarbageCollection()
    assert tree(folder / "data") == first
    for word in ("late", "later"):
        project = rebuild(folder, word)
    before = tree(folder / "data")
    planned = plan_gc(project)
    assert tree(folder / "data") == before
    assert collect(project).garbage == planned.garbage
    assert (
        planned.size
        == sum(item.size for items in planned.by_output().values() for item in items)
        > 0
    )
    assert not planned.left_alone
    outputs = {item.output for item in planned.garbage}
    assert outputs >= {f"{stage}/web" for stage in ("inventory", "shards", "tokenized", "datasets")}
    assert outputs >= {
        "nanosets/pretrain/train/blend",
        "nanosets/pretrain/cache",
        "webdatasets/shuffled",
    }
    assert not [item for item in planned.garbage if item.subject in ("code", "books", "plain")]
    assert tree(folder / "data") == fresh_tree(folder)
    assert collect(project).garbage == ()
    (folder / "raw/web/part-1/web-3.jsonl").write_bytes(jsonl(sentences("web", 240)[180:]))
    collect(build(folder))
    assert tree(folder / "data") == first


def test_older_versions_are_kept_on_request_with_all_that_they_need(copy):
    folder = copy()
    digests = [Project.open(folder / "nanoset.yaml").outputs.current("datasets", "web").digest]
    for word in ("one", "two"):
        project = rebuild(folder, word)
        digests.append(project.outputs.current("datasets", "web").digest)
    for number, digest in enumerate(digests):
        os.utime(folder / "data/datasets/web" / digest / "manifest.json", (number, number))
    collect(project, keep=1)
    left = {
        path.name
        for path in (folder / "data/datasets/web").iterdir()
        if path.is_dir() and not path.is_symlink()
    }
    assert left == set(digests[1:])
    dataset = project.outputs.manifest_at(folder / "data/datasets/web" / digests[1])
    lineage = lineage_of(project, dataset)
    documents = lineage.origins(range(dataset.facts["documents"]))
    assert [document.id for document in documents[-3:]] == ["one-0", "one-1", "one-2"]


def test_young_versions_are_kept_on_request(changed):
    project, folder = changed
    assert plan_gc(project, older_than_days=1).garbage == ()
    long_ago = time.time() - 2 * 86400
    old = [path for path in (folder / "data").rglob("*") if path.is_file()]
    for path in old:
        os.utime(path, (long_ago, long_ago))
    assert plan_gc(project, older_than_days=3).garbage == ()
    assert plan_gc(project, older_than_days=1).garbage == plan_gc(project).garbage != ()
    for beyond_all in (10.0**6, 1e300):
        assert plan_gc(project, older_than_days=beyond_all).garbage == ()


def test_what_a_stale_nanoset_and_webdataset_need_stays(copy):
    folder = copy()
    project = Project.open(folder / "nanoset.yaml")
    old = project.outputs.current("datasets", "web")
    samples = load_nanoset(folder / "data", "pretrain", "train").batch(range(50))
    change_web(folder)
    make_corpora(project, "web")
    assert project.outputs.current("datasets", "web").digest != old.digest
    assert collect(project).garbage == ()
    assert (load_nanoset(folder / "data", "pretrain", "train").batch(range(50)) == samples).all()
    assert lineage_of(project, old).origins([0])[0].id == "web-0"


def test_what_a_running_build_works_on_stays(changed):
    project, folder = changed
    before = tree(folder / "data")
    with leased_by_a_build(Project.open(folder / "nanoset.yaml"), "web"):
        found = collect(project)
    (reason,) = why(found, "shards/web")
    assert f"on {platform.node()}" in reason
    assert {item.subject for item in found.garbage} == {"pretrain", "shuffled"}
    assert {name for name in before if "/web/" in name} <= tree(folder / "data").keys()


def test_builds_hold_their_corpora_too(copy):
    held = {"pretrain": {"web", "code"}, "shuffled": {"web", "code", "books"}, "web": set()}
    project = Project.open(copy() / "nanoset.yaml")
    assert all(names_of(project, name) == {name, *corpora} for name, corpora in held.items())


def _manifests(project):
    # Not by rglob, which fails over folders that come and go.
    return {
        folder for folder, _, files in os.walk(project.outputs.folder) if "manifest.json" in files
    }


def test_collections_during_a_build_of_another_process_do_no_harm(changed):
    _, folder = changed
    change_web(folder, "later")
    script = (
        "import sys; from pathlib import Path; from helpers.changing import build; "
        "build(Path(sys.argv[1]))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], env=environment)
    project = Project.open(folder / "nanoset.yaml")
    collections, removed = 0, 0
    while process.poll() is None:
        finished = _manifests(project)
        found = collect(project, unfinished=True)
        collections, removed = collections + 1, removed + len(found.garbage)
        # At once when the build has finished something, else soon: a build that waits for locks
        # waits longer each time.
        wait_until(
            lambda seen=finished: process.poll() is not None or _manifests(project) != seen,
            0.03,
            0.01,
        )
    assert process.returncode == 0
    assert collections > 3
    assert removed > 0
    collect(project)
    assert tree(folder / "data") == fresh_tree(folder)


def test_shards_of_a_build_that_was_cut_short_stay_unless_asked(copy):
    folder = copy()
    for path in (folder / "data").rglob("current.json"):
        os.utime(path, (1e9, 1e9))
    change_web(folder)

    def stop(work):
        if work.stage == "tokenized_shards" and work.done == work.total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        display = RecordingDisplay(on_work=stop)
        make_corpora(Project.open(folder / "nanoset.yaml", display.progress), "web")
    project = Project.open(folder / "nanoset.yaml")
    assert not [item for item in collect(project).garbage if item.output == "shards/web"]
    taken = [
        item for item in collect(project, unfinished=True).garbage if item.output == "shards/web"
    ]
    assert len(taken) == 1
    collect(build(folder))
    assert tree(folder / "data") == fresh_tree(folder)


def test_shards_of_a_corpus_that_was_never_finished_stay(copy):
    folder = copy()
    for place in (
        "tokenized/web",
        "datasets/web",
        "nanosets/pretrain",
        "shuffle_plans",
        "webdatasets",
    ):
        shutil.rmtree(folder / "data" / place)
    project = Project.open(folder / "nanoset.yaml")
    assert plan_gc(project).garbage == ()
    assert {item.output for item in plan_gc(project, unfinished=True).garbage} == {"shards/web"}


def test_a_version_that_became_current_meanwhile_is_put_back(changed):
    project, folder = changed
    place = folder / "data/datasets/web"
    before = tree(place)
    current = project.outputs.current("datasets", "web").folder
    access = project.outputs.access
    assert withdraw_output(access, current, "manifest.json", lambda: True) is None
    version = Garbage(current, "datasets/web", "web", "version", 0)
    assert gc_module._retract(access, version) is None
    assert tree(place) == before
    old = next(item for item in plan_gc(project).garbage if item.output == "datasets/web")
    (aside,) = gc_module._retract(access, old)
    assert not old.path.exists()
    gone = subprocess.Popen(["true"])
    gone.wait()
    aside = aside.rename(aside.with_name(aside.name.replace(f"-{os.getpid()}.", f"-{gone.pid}.")))
    project.outputs.sweep()
    assert not aside.exists(), (
        "a collection that is killed now leaves litter, which the next sweep takes"
    )


def test_unreadable_old_versions_are_left_alone_and_named(copy):
    folder = copy()
    old = Project.open(folder / "nanoset.yaml").outputs.current("datasets", "web").folder
    project = rebuild(folder)
    (old / "manifest.json").write_text("{")
    os.utime(old / "manifest.json", (1, 1))
    with pytest.raises(StorageError, match="nothing is removed"):
        collect(project, keep=1)
    found = collect(project)
    assert "its manifest cannot be read" in why(found, f"datasets/web/{old.name}")[0]
    assert (old / "web_text_document.bin").exists()
    assert "shards/web" in {item.output for item in found.garbage}


def torn(stage, name, file, text="{}"):
    return lambda project: (
        project.outputs.current(stage, name).folder.resolve() / file
    ).write_text(text)


def tear_shards_of_current_dataset(project):
    """The dataset stays current though other shards are; its own set of shards is an old version."""
    old = project.outputs.current("tokenized", "web").folder
    change_web(project.config.file.parent, "later")
    make_inventory(project, "web")
    make_shards(project, "web")
    (old / "manifest.json").write_text('{"trunc')
    os.utime(old / "manifest.json", (1, 1))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        *[
            (torn("tokenized", "web", "../current.json", text), "tokenized/web")
            for text in ("no JSON", "[]", '{"digest": "../../raw"}', '{"digest": 5}')
        ],
        (
            lambda project: shutil.rmtree(project.outputs.current("tokenized", "web").folder),
            "tokenized/web",
        ),
        (
            torn("nanosets", "pretrain/train/index_mappings", "manifest.json"),
            "pretrain/train/index_mappings",
        ),
        (torn("nanosets", "pretrain/train/blend", "plan.json"), "pretrain/train/blend"),
        (tear_shards_of_current_dataset, "tokenized/web"),
    ],
)
def test_nothing_is_removed_while_it_cannot_be_told_what_has_to_stay(changed, damage, named):
    project, folder = changed
    assert plan_gc(project).garbage
    damage(project)
    before = tree(folder / "data")
    for call in (plan_gc, collect):
        with pytest.raises(StorageError, match="nothing is removed") as caught:
            call(project, keep=0)
        assert named in f"{caught.value.where} {caught.value.found}"
    assert tree(folder / "data") == before
    outcome = invoke_nanoset(["gc", "--yes", "--config", str(folder / "nanoset.yaml")])
    assert outcome.exit_code == 1
    assert collect(build(folder)).garbage, "a build makes again what was damaged"


def test_links_are_read_and_never_followed_to_remove(changed):
    project, folder = changed
    away = folder.with_name("away")
    (folder / "data/datasets/web").rename(away)
    (folder / "data/datasets/web").symlink_to(away)
    nanosets = folder.with_name("nanosets-away")
    (folder / "data/nanosets").rename(nanosets)
    (folder / "data/nanosets").symlink_to(nanosets)
    old = next(path for path in (folder / "data/shards/web").iterdir() if path.is_dir())
    before = tree(away), tree(nanosets)
    found = collect(project)
    assert (tree(away), tree(nanosets)) == before
    ours = {"inventory", "shards", "tokenized", "shuffle_plans", "webdatasets"}
    assert {item.output.split("/")[0] for item in found.garbage} <= ours
    assert why(found, "datasets/web") == ["a symbolic link leads to it"]
    assert old.exists() or old in [item.path for item in found.garbage]
    shards = node_at("tokenized/web")
    assert shards.stage.fault(project, shards.key, current_output(project, "tokenized/web")) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda old: (old / "mine.txt").write_text("do not lose this"), "not of nanoset: mine.txt"),
        (lambda old: (old / "raw").symlink_to(old.parent), "symbolic link: raw"),
        (lambda old: old.rename(old.with_name("0" * 20)), "its manifest is that of datasets/web/"),
        (lambda old: (old / "manifest.json").unlink(), "it has no manifest"),
    ],
)
def test_folders_that_are_not_just_ours_are_left_alone(copy, change, expected):
    folder = copy()
    old = Project.open(folder / "nanoset.yaml").outputs.current("datasets", "web").folder
    project = rebuild(folder)
    changed = change(old)
    old = changed if isinstance(changed, Path) else old
    before = tree(old)
    assert expected in why(collect(project), str(old))[0]
    assert tree(old) == before


def test_tars_in_the_making_stay_and_abandoned_ones_go(copy):
    folder = copy()
    change_web(folder)
    project = Project.open(folder / "nanoset.yaml")
    make_corpora(project, "web")
    make_shuffle_plan(project, "shuffled")
    make_tars(project, "shuffled", 0)
    assert collect(project).garbage == ()
    assert shuffling.is_group_written(project, "shuffled", 0)
    unfinished = next(
        path.parent for path in (folder / "data/webdatasets/shuffled").glob("*/.shards")
    )
    # as a run leaves it that is killed before its last step
    (unfinished / "manifest.jsonl").write_bytes(b"")
    project = rebuild(folder, "later")
    found = collect(project)
    assert [item.path for item in found.garbage if item.kind == "unfinished"] == [unfinished]
    assert tree(folder / "data") == fresh_tree(folder)


def test_index_files_go_by_their_notes_and_foreign_ones_stay(changed):
    project, folder = changed
    cache = folder / "data/nanosets/pretrain/cache"
    foreign = {"a" * 32 + "-GPTDataset-train-sample_index.npy", "nanoset.json", "mine-nanoset.json"}
    noted = b'{"made_from": {}, "files": {"0123/x.npy": {}}}'
    (cache / "sub").mkdir()
    (cache / "0123").mkdir()  # as NeMo keeps them
    for name in (*foreign, "sub/x", "0123/x.npy", "0123/x-nanoset.json"):
        (cache / name).write_bytes(noted if name.startswith("0123/x-") else b"{}")
        os.utime(cache / name, (1e9, 1e9))
    found = collect(project)
    left = {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}
    assert left >= foreign | {"sub/x"}
    assert not [name for name in left if name.startswith("0123")], (
        "what a note lists goes, and the note"
    )
    assert "4 files (8 bytes) that no note of ours lists" in why(found, "pretrain/cache")[0]


def test_index_files_are_known_by_their_notes_after_a_collection_that_was_cut_short(copy):
    folder = copy()
    old = {path.name for path in (folder / "data/nanosets/pretrain/cache").iterdir()}
    project = rebuild(folder)
    garbage = [item.path for item in plan_gc(project).garbage if item.kind == "cache file"]
    assert {path.name for path in garbage} <= old
    for path in garbage[:20]:
        path.unlink()
    collect(project)
    assert tree(folder / "data") == fresh_tree(folder)


def test_unfinished_names_of_the_dead_go_and_of_the_living_stay(copy):
    folder = copy()
    project = Project.open(folder / "nanoset.yaml")
    dead = folder / "data/shards/web/.tmp-0123-dead"
    with published_folder(folder / "data/shards/web/0123") as alive:
        dead.mkdir()
        (dead / "tokens.bin").write_bytes(b"x" * 100)
        os.utime(dead, (1e9, 1e9))
        assert set(plan_gc(project).unfinished) == {dead, alive}
        assert collect(project).unfinished == (dead,)
        assert alive.is_dir()
    assert not dead.exists()


def test_outputs_of_what_is_not_configured_any_more_stay(copy):
    folder = copy()
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text().replace("  plain:\n", "  other:\n"))
    shutil.rmtree(folder / "raw/books")
    (folder / "raw/books").mkdir()
    shutil.rmtree(folder / "raw/code")
    found = plan_gc(Project.open(config))
    assert found.garbage == ()
    assert [item.path.relative_to(folder / "data").as_posix() for item in found.left_alone] == [
        "datasets/code",
        "nanosets/plain",
    ]
    assert "no longer asks for it" in why(found, "nanosets/plain")[0]


def test_what_cannot_be_removed_is_reported(changed, monkeypatch):
    project, folder = changed
    before = tree(folder / "data")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(gc_module, "_retract", refuse)
        outcome = invoke_nanoset(["gc", "--yes", "--config", str(folder / "nanoset.yaml")])
    assert outcome.exit_code == 1
    assert "it cannot be removed: Permission denied" in outcome.output
    assert "removed: 0 versions" in outcome.output
    assert tree(folder / "data") == before
    monkeypatch.setattr(gc_module.shutil, "rmtree", lambda *_, **__: None)
    found = collect(project)
    assert {item.kind for item in found.garbage} == {"cache file"}
    assert "it could not be removed" in why(found, "datasets/web")[0]


def test_what_another_collection_removed_meanwhile_is_gone(changed, monkeypatch):
    project, _ = changed
    retract = gc_module._retract
    raced = plan_gc(project).garbage[0]

    def race(access, item):
        if item == raced:
            retract(access, item)
        return retract(access, item)

    monkeypatch.setattr(gc_module, "_retract", race)
    found = collect(project)
    assert not [item for item in found.left_alone if item.refused]
    assert not raced.path.exists()
    assert raced not in found.garbage


def test_the_command_lists_first_and_removes_when_told(changed):
    _, folder = changed
    before = tree(folder / "data")
    config = ["--config", str(folder / "nanoset.yaml")]
    listed = invoke_nanoset(["gc", *config])
    assert listed.exit_code == 0, listed.output
    assert "datasets/web" in listed.output
    assert "nothing was removed yet: add --yes" in listed.output
    planned = json.loads(invoke_nanoset(["gc", "--json", *config]).output)
    assert planned["removed"] is False
    assert planned["bytes"] == sum(item["bytes"] for item in planned["garbage"]) > 0
    assert tree(folder / "data") == before
    assert "removed: " in invoke_nanoset(["gc", "--yes", *config]).output
    assert tree(folder / "data") == fresh_tree(folder)
    assert "0 versions and files, 0 B" in invoke_nanoset(["gc", *config]).output


def test_a_root_that_is_not_there_has_no_garbage(make_project):
    config = make_project()
    assert invoke_nanoset(["gc", "--yes", "--config", str(config)]).exit_code == 0
    assert not (config.parent / "data").exists()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_in_whatever_order_the_end_is_that_of_a_fresh_build(copy, seed):
    folder = copy()
    draw = random.Random(seed)
    project = Project.open(folder / "nanoset.yaml")
    stages = [
        lambda: change_web(folder, f"word{draw.random()}"),
        lambda: (folder / "raw/web/part-1/web-3.jsonl").write_bytes(
            jsonl(sentences("web", 240)[180:])
        ),
        lambda: make_corpora(project, "web"),
        lambda: make_mappings(project, "pretrain", draw.choice(["train", "valid"])),
        lambda: make_shuffle_plan(project, "shuffled"),
        lambda: make_tars(project, "shuffled", draw.randrange(3)),
        lambda: collect(project, keep=draw.randrange(2), unfinished=draw.random() < 0.5),
        lambda: collect(project),
    ]
    for _ in range(14):
        draw.choice(stages)()
        load_nanoset(folder / "data", "plain", "train").batch(range(10))
    found = collect(build(folder), unfinished=True)
    assert found.left_alone == ()
    assert tree(folder / "data") == fresh_tree(folder)
