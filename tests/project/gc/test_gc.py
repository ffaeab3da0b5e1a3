"""`nanoset gc` removes old versions that nothing needs any more, and nothing else."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
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
from helpers.changing import build, change_web, rebuild, tree_of_fresh_build
from helpers.child_processes import forking_context, wait_until
from helpers.command import invoke_nanoset
from helpers.inspecting import current_output, leased_by_a_build, lineage_of, node_at
from helpers.progress import RecordingDisplay, ShownWork
from helpers.sample_project import jsonl, sentences, tree
from nanoset_core import load_nanoset
from nanoset_core.errors import StorageError
from nanoset_core.project.gc import collect as gc_module
from nanoset_core.project.gc.collect import collect, plan_gc
from nanoset_core.project.gc.garbage import GarbageCollection, Policy
from nanoset_core.project.project import Project, leased_names
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.storage.atomic import published_folder
from nanoset_core.storage.removing.removals import withdraw_output

LONG_AGO = (1e9, 1e9)
"""Access and modification time of files that no process can be writing any more."""
DAY_SECONDS = 86_400


@pytest.fixture(scope="module")
def built_three_times(built_twice, tmp_path_factory) -> Path:
    """The folder of a project with three versions of the corpus web; not to be written to."""
    folder = tmp_path_factory.mktemp("thrice") / "project"
    shutil.copytree(built_twice, folder, symlinks=True)
    rebuild(folder, "later")
    return folder


@pytest.fixture
def three_versions(built_three_times, tmp_path) -> Path:
    """A copy of the project with three versions of the corpus web, to be changed."""
    return shutil.copytree(built_three_times, tmp_path / "project", symlinks=True)


def open_project(folder: Path) -> Project:
    """Open the project in a folder."""
    return Project.open(folder / "nanoset.yaml")


def restore_web(folder: Path) -> None:
    """Undo the changes of `change_web`."""
    (folder / "raw/web/part-1/web-3.jsonl").write_bytes(jsonl(sentences("web", 240)[180:]))


def reasons_to_leave_alone(collection: GarbageCollection, path: str) -> list[str]:
    """Return why a collection left alone what is at a path, of which a part is given."""
    return [item.why for item in collection.left_alone if path in item.path.as_posix()]


def output_names(collection: GarbageCollection) -> set[str]:
    """Return the outputs of which a collection removes something."""
    return {item.output for item in collection.garbage}


# What is removed


def test_a_project_without_old_versions_has_no_garbage(copy):
    folder = copy()
    data_before = tree(folder / "data")
    project = open_project(folder)

    assert plan_gc(project) == GarbageCollection()
    assert collect(project) == GarbageCollection()

    assert tree(folder / "data") == data_before


def test_a_plan_changes_nothing(built_three_times):
    data_before = tree(built_three_times / "data")

    plan_gc(open_project(built_three_times))

    assert tree(built_three_times / "data") == data_before


def test_a_plan_has_the_size_of_all_its_garbage(built_three_times):
    plan = plan_gc(open_project(built_three_times))

    size = 0
    for item in plan.garbage:
        files = [item.path] if item.path.is_file() else item.path.rglob("*")
        size += sum(file.stat().st_size for file in files if file.is_file())
    assert plan.size == size
    assert plan.size > 0


def test_only_outputs_made_from_the_corpus_that_changed_have_garbage(built_three_times):
    plan = plan_gc(open_project(built_three_times))

    assert not plan.left_alone
    assert output_names(plan) >= {
        "inventory/web",
        "shards/web",
        "tokenized/web",
        "datasets/web",
        "nanosets/pretrain/train/blend",
        "nanosets/pretrain/cache",
        "webdatasets/shuffled",
    }
    subjects = {item.leased_name for item in plan.garbage}
    assert not subjects & {"code", "books", "plain"}


def test_a_collection_leaves_exactly_what_a_fresh_build_makes(built, three_versions):
    folder = three_versions
    project = open_project(folder)
    plan = plan_gc(project)

    collection = collect(project)

    assert collection.garbage == plan.garbage
    assert tree(folder / "data") == tree_of_fresh_build(folder)
    assert collect(project).garbage == ()

    # If the text is again as it was at first, so are the outputs.
    restore_web(folder)
    collect(build(folder))
    assert tree(folder / "data") == tree(built / "data")


def test_collections_during_a_build_of_another_process_do_no_harm(changed):
    _, folder = changed
    change_web(folder, "later")
    process = forking_context().Process(target=build, args=(folder,))
    process.start()
    project = open_project(folder)

    def folders_of_versions() -> set[str]:
        # Not by rglob, which fails if a folder is removed meanwhile.
        folders = os.walk(project.outputs.folder)
        return {folder for folder, _, files in folders if "manifest.json" in files}

    def build_made_progress(seen: set[str]) -> bool:
        return not process.is_alive() or folders_of_versions() != seen

    # Collect whenever the build has finished something, or else after a short time: a build that
    # waits for locks waits longer each time.
    n_collections = 0
    n_removed = 0
    while process.is_alive():
        folders_before = folders_of_versions()
        collection = collect(project, Policy(unfinished=True))
        n_collections += 1
        n_removed += len(collection.garbage)
        wait_until(partial(build_made_progress, folders_before), 0.1, 0.02)

    assert process.exitcode == 0
    assert n_collections > 1
    assert n_removed > 0
    collect(project)
    assert tree(folder / "data") == tree_of_fresh_build(folder)


def random_policy(draw: random.Random) -> Policy:
    """Return a policy that keeps at most one old version."""
    return Policy(keep=draw.randrange(2), unfinished=draw.random() < 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_changes_builds_and_collections_in_any_order_end_as_a_fresh_build(copy, seed):
    folder = copy()
    draw = random.Random(seed)
    project = open_project(folder)
    actions = [
        lambda: change_web(folder, f"word{draw.random()}"),
        lambda: restore_web(folder),
        lambda: make_corpora(project, "web"),
        lambda: make_mappings(project, "pretrain", draw.choice(["train", "valid"])),
        lambda: make_shuffle_plan(project, "shuffled"),
        lambda: make_tars(project, "shuffled", draw.randrange(3)),
        lambda: collect(project, random_policy(draw)),
        lambda: collect(project),
    ]

    for _ in range(14):
        action = draw.choice(actions)
        action()
        # A nanoset that was not touched can be read at any time.
        load_nanoset(folder / "data", "plain", "train").batch(range(10))

    collection = collect(build(folder), Policy(unfinished=True))
    assert collection.left_alone == ()
    assert tree(folder / "data") == tree_of_fresh_build(folder)


# Old versions that are kept on request


def test_a_number_of_older_versions_is_kept_with_all_that_they_need(three_versions):
    project = open_project(three_versions)
    versions = three_versions / "data/datasets/web"
    newest, middle, oldest = [
        manifest.digest for manifest in project.outputs.versions("datasets", "web")
    ]
    for second, digest in enumerate([oldest, middle, newest]):
        os.utime(versions / digest / "manifest.json", (second, second))

    collect(project, Policy(keep=1))

    remaining = {
        path.name for path in versions.iterdir() if path.is_dir() and not path.is_symlink()
    }
    assert remaining == {newest, middle}

    # The documents of the older version can still be looked up.
    dataset = project.outputs.manifest_at(versions / middle)
    documents = lineage_of(project, dataset).origins(range(dataset.facts["documents"]))
    last_ids = [document.id for document in documents[-3:]]
    assert last_ids == ["late-0", "late-1", "late-2"]


@pytest.fixture
def two_days_old(changed) -> Project:
    """A project with two versions, all of whose files were written two days ago."""
    project, folder = changed
    two_days_ago = time.time() - 2 * DAY_SECONDS
    files = [path for path in (folder / "data").rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, (two_days_ago, two_days_ago))
    return project


def test_versions_that_were_just_replaced_are_kept_for_a_day(changed):
    project, _ = changed

    assert plan_gc(project, Policy(older_than_days=1)).garbage == ()


def test_an_old_version_that_was_just_replaced_is_kept_for_a_day(two_days_old):
    data = two_days_old.outputs.folder
    for path in data.rglob("current.json"):
        path.touch()

    assert plan_gc(two_days_old, Policy(older_than_days=1)).garbage == ()
    assert plan_gc(two_days_old).garbage != ()


# Also numbers of days that no timestamp can express.
@pytest.mark.parametrize("days", [3, 10.0**6, 1e300])
def test_versions_younger_than_a_number_of_days_are_kept(two_days_old, days):
    assert plan_gc(two_days_old, Policy(older_than_days=days)).garbage == ()


def test_versions_older_than_a_number_of_days_are_removed(two_days_old):
    garbage = plan_gc(two_days_old, Policy(older_than_days=1)).garbage

    assert garbage == plan_gc(two_days_old).garbage
    assert garbage != ()


# What is still needed


def test_what_a_stale_nanoset_needs_is_kept(copy):
    folder = copy()
    project = open_project(folder)
    old_dataset = project.outputs.current("datasets", "web")
    samples_before = load_nanoset(folder / "data", "pretrain", "train").batch(range(50))

    # The corpus is built again, but not the nanoset and the webdataset.
    change_web(folder)
    make_corpora(project, "web")
    assert project.outputs.current("datasets", "web").digest != old_dataset.digest
    assert collect(project).garbage == ()

    samples = load_nanoset(folder / "data", "pretrain", "train").batch(range(50))
    assert (samples == samples_before).all()
    assert lineage_of(project, old_dataset).origins([0])[0].id == "web-0"


def test_what_a_running_build_works_on_is_kept(changed):
    project, folder = changed
    data_before = tree(folder / "data")

    with leased_by_a_build(open_project(folder), "web"):
        collection = collect(project)

    (reason,) = reasons_to_leave_alone(collection, "shards/web")
    assert f"on {platform.node()}" in reason
    assert {item.leased_name for item in collection.garbage} == {"pretrain", "shuffled"}
    files_of_web = {name for name in data_before if "/web/" in name}
    assert files_of_web <= tree(folder / "data").keys()


@pytest.mark.parametrize(
    ("name", "corpora"),
    [
        pytest.param("pretrain", {"web", "code"}, id="nanoset"),
        pytest.param("shuffled", {"web", "code", "books"}, id="webdataset"),
        pytest.param("web", set(), id="corpus"),
    ],
)
def test_a_build_also_holds_the_corpora_of_what_it_builds(built, name, corpora):
    assert leased_names(open_project(built), name) == {name} | corpora


def test_shards_of_an_interrupted_build_are_removed_only_on_request(copy):
    folder = copy()
    for path in (folder / "data").rglob("current.json"):
        os.utime(path, LONG_AGO)
    change_web(folder)

    def interrupt_after_the_last_shard(work: ShownWork) -> None:
        if work.stage == "tokenized_shards" and work.done == work.total:
            raise KeyboardInterrupt

    display = RecordingDisplay(on_work=interrupt_after_the_last_shard)
    with pytest.raises(KeyboardInterrupt):
        make_corpora(Project.open(folder / "nanoset.yaml", display.progress), "web")
    project = open_project(folder)

    # They are kept, so that the next build needs not make them again.
    assert "shards/web" not in output_names(collect(project))

    removed = collect(project, Policy(unfinished=True)).garbage
    assert len([item for item in removed if item.output == "shards/web"]) == 1
    collect(build(folder))
    assert tree(folder / "data") == tree_of_fresh_build(folder)


def test_shards_of_a_corpus_that_was_never_finished_are_removed_only_on_request(copy):
    folder = copy()
    for output in (
        "tokenized/web",
        "datasets/web",
        "nanosets/pretrain",
        "shuffle_plans",
        "webdatasets",
    ):
        shutil.rmtree(folder / "data" / output)
    project = open_project(folder)

    assert plan_gc(project).garbage == ()
    assert output_names(plan_gc(project, Policy(unfinished=True))) == {"shards/web"}


def test_tars_that_are_being_written_are_kept(copy):
    folder = copy()
    change_web(folder)
    project = open_project(folder)
    make_corpora(project, "web")
    make_shuffle_plan(project, "shuffled")
    make_tars(project, "shuffled", 0)

    assert collect(project).garbage == ()
    assert shuffling.is_group_written(project, "shuffled", 0)

    # A run that was killed before its last step leaves an empty list of files. After another
    # version was built, nothing needs its tars.
    (notes,) = (folder / "data/webdatasets/shuffled").glob("*/.shards")
    unfinished = notes.parent
    (unfinished / "manifest.jsonl").write_bytes(b"")
    project = rebuild(folder, "later")
    collection = collect(project)
    removed = [item.path for item in collection.garbage if item.kind == "unfinished"]
    assert removed == [unfinished]
    assert tree(folder / "data") == tree_of_fresh_build(folder)


def test_temporary_folders_are_removed_unless_their_process_is_alive(copy):
    folder = copy()
    project = open_project(folder)
    shards = folder / "data/shards/web"
    abandoned = shards / ".tmp-0123-dead"

    with published_folder(shards / "0123") as being_written:
        abandoned.mkdir()
        (abandoned / "tokens.bin").write_bytes(b"x" * 100)
        os.utime(abandoned, LONG_AGO)

        assert set(plan_gc(project).unfinished) == {abandoned, being_written}
        assert collect(project).unfinished == (abandoned,)
        assert being_written.is_dir()

    assert not abandoned.exists()


# Versions are retracted before they are removed


def test_a_version_that_is_current_is_not_retracted(changed):
    project, folder = changed
    datasets = folder / "data/datasets/web"
    data_before = tree(datasets)
    access = project.outputs.access
    current = project.outputs.current("datasets", "web").folder

    # As if it had become current after the collection was planned.
    assert withdraw_output(access, current, "manifest.json", lambda: True) is None
    assert gc_module._hide_version(access, current) is None

    assert tree(datasets) == data_before


def test_a_version_that_a_killed_collection_retracted_is_removed_by_the_next_sweep(changed):
    project, _ = changed
    plan = plan_gc(project)
    old_version = next(item for item in plan.garbage if item.output == "datasets/web")

    (retracted,) = gc_module._hide_version(project.outputs.access, old_version.path)
    assert not old_version.path.exists()

    # Its name says which process retracted it: let that be one that has ended.
    ended = subprocess.Popen(["true"])
    ended.wait()
    name_of_ended = retracted.name.replace(f"-{os.getpid()}.", f"-{ended.pid}.")
    retracted = retracted.rename(retracted.with_name(name_of_ended))
    project.outputs.sweep()
    assert not retracted.exists()


def test_a_version_that_another_collection_just_removed_is_not_reported(changed, monkeypatch):
    project, _ = changed
    retract = gc_module._hide_version
    contested = plan_gc(project).garbage[0]

    def retract_after_another_collection(access, path):
        if path == contested.path:
            retract(access, path)
        return retract(access, path)

    monkeypatch.setattr(gc_module, "_hide_version", retract_after_another_collection)
    collection = collect(project)

    assert not [item for item in collection.left_alone if item.refused]
    assert not contested.path.exists()
    assert contested not in collection.garbage


def refuse_to_remove(*_: object) -> None:
    """Fail as a file system does if the folder belongs to another user."""
    raise PermissionError(13, "Permission denied")


def test_a_version_that_cannot_be_retracted_is_reported_by_the_command(changed, monkeypatch):
    _, folder = changed
    data_before = tree(folder / "data")
    monkeypatch.setattr(gc_module, "_hide_version", refuse_to_remove)
    monkeypatch.setattr(gc_module, "remove_file", refuse_to_remove)

    outcome = invoke_nanoset(["gc", "--yes", "--config", folder / "nanoset.yaml"])

    assert outcome.exit_code == 1
    assert "it cannot be removed: Permission denied" in outcome.output
    assert "removed: 0 versions" in outcome.output
    assert tree(folder / "data") == data_before


def test_a_version_whose_files_stay_is_reported(changed, monkeypatch):
    project, _ = changed
    monkeypatch.setattr(gc_module.shutil, "rmtree", lambda *_, **__: None)

    collection = collect(project)

    # Index files are removed one by one, not with their folder.
    assert {item.kind for item in collection.garbage} == {"cache file"}
    assert "it could not be removed" in reasons_to_leave_alone(collection, "datasets/web")[0]


# Damaged outputs


def test_an_old_version_with_a_damaged_manifest_is_left_alone(copy):
    folder = copy()
    old_version = open_project(folder).outputs.current("datasets", "web").folder
    project = rebuild(folder)
    (old_version / "manifest.json").write_text("{")
    os.utime(old_version / "manifest.json", (1, 1))

    # Whether it is to be kept is unknown if old versions are kept.
    with pytest.raises(StorageError, match="nothing is removed"):
        collect(project, Policy(keep=1))

    collection = collect(project)
    (reason, *_) = reasons_to_leave_alone(collection, f"datasets/web/{old_version.name}")
    assert "its manifest cannot be read" in reason
    assert (old_version / "web_text_document.bin").exists()
    assert "shards/web" in output_names(collection)


def overwrite_file(project: Project, stage: str, name: str, file: str, text: str = "{}") -> None:
    """Write other text into a file of the current version of an output."""
    folder = project.outputs.current(stage, name).folder.resolve()
    (folder / file).write_text(text)


def point_current_to(text: str) -> Callable[[Project], None]:
    """Return a function that replaces the file that names the current shards of the corpus web."""
    return partial(overwrite_file, stage="tokenized", name="web", file="../current.json", text=text)


def remove_current_shards(project: Project) -> None:
    """Remove the version of the corpus's shards that is current."""
    shutil.rmtree(project.outputs.current("tokenized", "web").folder)


def damage_shards_of_current_dataset(project: Project) -> None:
    """Damage the list of the shards of the current dataset, after other shards became current."""
    old_shards = project.outputs.current("tokenized", "web").folder
    change_web(project.config.file.parent, "later")
    make_inventory(project, "web")
    make_shards(project, "web")
    (old_shards / "manifest.json").write_text('{"trunc')
    os.utime(old_shards / "manifest.json", (1, 1))


@pytest.mark.parametrize(
    ("damage", "damaged_output"),
    [
        pytest.param(point_current_to("no JSON"), "tokenized/web", id="current is no JSON"),
        pytest.param(point_current_to("[]"), "tokenized/web", id="current is a list"),
        pytest.param(
            point_current_to('{"digest": "../../raw"}'),
            "tokenized/web",
            id="current is outside the root",
        ),
        pytest.param(point_current_to('{"digest": 5}'), "tokenized/web", id="current is a number"),
        pytest.param(remove_current_shards, "tokenized/web", id="current version is missing"),
        pytest.param(
            partial(
                overwrite_file,
                stage="nanosets",
                name="pretrain/train/index_mappings",
                file="manifest.json",
            ),
            "pretrain/train/index_mappings",
            id="manifest of index mappings",
        ),
        pytest.param(
            partial(
                overwrite_file, stage="nanosets", name="pretrain/train/blend", file="plan.json"
            ),
            "pretrain/train/blend",
            id="plan of a blend",
        ),
        pytest.param(
            damage_shards_of_current_dataset, "tokenized/web", id="shards of the current dataset"
        ),
    ],
)
def test_nothing_is_removed_if_it_is_unknown_what_is_needed(changed, damage, damaged_output):
    project, folder = changed
    assert plan_gc(project).garbage
    damage(project)
    data_before = tree(folder / "data")

    for collect_or_plan in (plan_gc, collect):
        with pytest.raises(StorageError, match="nothing is removed") as caught:
            collect_or_plan(project)
        assert damaged_output in f"{caught.value.where} {caught.value.found}"
    assert tree(folder / "data") == data_before
    outcome = invoke_nanoset(["gc", "--yes", "--config", folder / "nanoset.yaml"])
    assert outcome.exit_code == 1

    # A build repairs the damage.
    assert collect(build(folder)).garbage


# What nanoset did not write


def test_outputs_behind_symbolic_links_are_read_but_not_removed(changed):
    project, folder = changed
    datasets = folder.with_name("datasets-elsewhere")
    (folder / "data/datasets/web").rename(datasets)
    (folder / "data/datasets/web").symlink_to(datasets)
    nanosets = folder.with_name("nanosets-elsewhere")
    (folder / "data/nanosets").rename(nanosets)
    (folder / "data/nanosets").symlink_to(nanosets)
    shard = next(path for path in (folder / "data/shards/web").iterdir() if path.is_dir())
    datasets_before = tree(datasets)
    nanosets_before = tree(nanosets)

    collection = collect(project)

    assert tree(datasets) == datasets_before
    assert tree(nanosets) == nanosets_before
    assert reasons_to_leave_alone(collection, "datasets/web") == ["a symbolic link leads to it"]

    # The rest is collected, but not what the linked outputs need.
    stages_with_garbage = {output.split("/")[0] for output in output_names(collection)}
    assert stages_with_garbage <= {
        "inventory",
        "shards",
        "tokenized",
        "shuffle_plans",
        "webdatasets",
    }
    assert shard.exists() or shard in [item.path for item in collection.garbage]
    shards = node_at("tokenized/web")
    manifest = current_output(project, "tokenized/web")
    assert shards.stage.fault(project, shards.key, manifest) is None


def test_a_copy_that_was_made_through_the_link_is_reported_but_not_removed(changed):
    project, folder = changed
    link = folder / "data/datasets/web/current"
    version = link.resolve()
    link.unlink()
    shutil.copytree(version, link)

    collection = collect(project)

    [reason] = reasons_to_leave_alone(collection, "datasets/web/current")
    assert reason == "a folder, copied through the link `current`, that nothing needs"
    assert (link / "manifest.json").exists()


def add_a_file(version: Path) -> Path:
    """Write a file of somebody else into a version."""
    (version / "mine.txt").write_text("do not lose this")
    return version


def add_a_link(version: Path) -> Path:
    """Add a symbolic link to a version."""
    (version / "raw").symlink_to(version.parent)
    return version


def rename_version(version: Path) -> Path:
    """Give a version a digest that is not its own."""
    return version.rename(version.with_name("0" * 20))


def remove_manifest(version: Path) -> Path:
    """Remove the manifest of a version."""
    (version / "manifest.json").unlink()
    return version


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_a_file, "not of nanoset: mine.txt"),
        (add_a_link, "symbolic link: raw"),
        (rename_version, "its manifest is that of datasets/web/"),
        (remove_manifest, "it has no manifest"),
    ],
)
def test_old_versions_that_somebody_changed_are_left_alone(copy, change, reason):
    folder = copy()
    old_version = open_project(folder).outputs.current("datasets", "web").folder
    project = rebuild(folder)
    old_version = change(old_version)
    version_before = tree(old_version)

    collection = collect(project)

    assert reason in reasons_to_leave_alone(collection, str(old_version))[0]
    assert tree(old_version) == version_before


def test_outputs_that_are_not_configured_any_more_are_left_alone(copy):
    folder = copy()
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text().replace("  plain:\n", "  other:\n"))
    shutil.rmtree(folder / "raw/books")
    (folder / "raw/books").mkdir()
    shutil.rmtree(folder / "raw/code")

    plan = plan_gc(open_project(folder))

    assert plan.garbage == ()
    paths = [item.path.relative_to(folder / "data").as_posix() for item in plan.left_alone]
    assert paths == ["datasets/code", "nanosets/plain"]
    assert "no longer asks for it" in reasons_to_leave_alone(plan, "nanosets/plain")[0]


# Index files, which nanosets share in one folder with those of Megatron


FILES_WITHOUT_NOTE = (
    "a" * 32 + "-GPTDataset-train-sample_index.npy",
    "nanoset.json",
    "mine-nanoset.json",
    "sub/x",
)
"""Files in the folder of index files that no receipt of nanoset lists."""


@pytest.fixture
def shared_cache(changed) -> Path:
    """The folder of index files, with two files in a folder as NeMo writes them, and four others.

    The note in NeMo's folder lists the other file there. No note lists the four others.
    """
    _, folder = changed
    cache = folder / "data/nanosets/pretrain/cache"
    (cache / "sub").mkdir()
    (cache / "0123").mkdir()
    note = b'{"made_from": {}, "files": {"0123/x.npy": {}}}'
    content_by_name = {name: b"{}" for name in [*FILES_WITHOUT_NOTE, "0123/x.npy"]}
    content_by_name["0123/x-nanoset.json"] = note
    for name, content in content_by_name.items():
        (cache / name).write_bytes(content)
        os.utime(cache / name, LONG_AGO)
    return cache


def test_index_files_are_removed_with_their_note_and_others_are_left_alone(changed, shared_cache):
    project, _ = changed

    collection = collect(project)

    files = [path for path in shared_cache.rglob("*") if path.is_file()]
    names = {path.relative_to(shared_cache).as_posix() for path in files}
    assert names >= set(FILES_WITHOUT_NOTE)
    assert not [name for name in names if name.startswith("0123")]
    (reason, *_) = reasons_to_leave_alone(collection, "pretrain/cache")
    assert "4 files (8 bytes) that nanoset may not have written" in reason


def test_index_files_that_an_interrupted_collection_left_are_removed(copy):
    folder = copy()
    cache = folder / "data/nanosets/pretrain/cache"
    old_names = {path.name for path in cache.iterdir()}
    project = rebuild(folder)
    garbage = [item.path for item in plan_gc(project).garbage if item.kind == "cache file"]
    assert {path.name for path in garbage} <= old_names
    for path in garbage[:20]:
        path.unlink()

    collect(project)

    assert tree(folder / "data") == tree_of_fresh_build(folder)


# Logs of Slurm jobs

HOUR_SECONDS = 3600


@pytest.fixture
def slurm_folder(make_project) -> Path:
    """The folder of a project for Slurm, with a log of each kind, written an hour ago."""
    folder = open_project(make_project().parent).slurm_folder
    folder.mkdir(parents=True)
    for name in ("nanoset-1.out", "nanoset-1.err"):
        write_at(folder / name, time.time() - HOUR_SECONDS)
    return folder


def write_at(path: Path, written: float) -> None:
    """Write a file of one byte, as if at another time, in seconds since 1970."""
    path.write_bytes(b"x")
    os.utime(path, (written, written))


def start_cluster(slurm_folder: Path, started: float) -> None:
    """Make the folder that a build has while its cluster is running, as if at another time."""
    key_folder = slurm_folder / ".tmp-keys-another-1.1-1"
    key_folder.mkdir()
    os.utime(key_folder, (started, started))


def project_of(slurm_folder: Path) -> Project:
    """Open the project that a folder for Slurm belongs to."""
    return open_project(slurm_folder.parents[1])


def test_logs_of_slurm_jobs_that_have_ended_are_removed(slurm_folder):
    project = project_of(slurm_folder)
    plan = plan_gc(project)

    collection = collect(project)

    assert [item.path.name for item in collection.garbage] == ["nanoset-1.err", "nanoset-1.out"]
    assert collection == plan
    assert not list(slurm_folder.iterdir())


def test_logs_of_slurm_jobs_are_kept_for_a_number_of_days(slurm_folder):
    assert collect(project_of(slurm_folder), Policy(older_than_days=1)) == GarbageCollection()
    assert len(list(slurm_folder.iterdir())) == 2


def test_logs_that_jobs_of_a_running_build_may_be_writing_are_kept(slurm_folder):
    write_at(slurm_folder / "nanoset-2.out", time.time() - HOUR_SECONDS / 4)
    start_cluster(slurm_folder, time.time() - HOUR_SECONDS / 2)

    collection = collect(project_of(slurm_folder))

    assert [item.path.name for item in collection.garbage] == ["nanoset-1.err", "nanoset-1.out"]
    assert (slurm_folder / "nanoset-2.out").exists()


def test_the_error_of_a_version_that_cannot_be_retracted_is_reported_with_its_remedy(
    changed, monkeypatch
):
    """A version whose hidden folder cannot be renamed back is in danger: users have to know it."""

    def refuse(*_: object) -> None:
        raise StorageError("it cannot be renamed back", where="/data/.tmp-web", remedy="rename it")

    project, _folder = changed
    monkeypatch.setattr(gc_module, "_hide_version", refuse)

    collection = collect(project)

    reasons = {item.why for item in collection.left_alone if item.refused}
    assert reasons == {
        "it cannot be removed: it cannot be renamed back: /data/.tmp-web; remedy: rename it"
    }


def test_other_files_in_the_folder_of_the_logs_are_kept(slurm_folder):
    write_at(slurm_folder / "notes.out", 0)
    (slurm_folder / "nanoset-3.out").symlink_to(slurm_folder / "notes.out")

    collect(project_of(slurm_folder))

    assert {path.name for path in slurm_folder.iterdir()} == {"notes.out", "nanoset-3.out"}


def test_logs_that_cannot_be_removed_are_reported(slurm_folder, monkeypatch):
    def refuse(path: Path, *, missing_ok: bool) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)

    collection = collect(project_of(slurm_folder))

    assert collection.garbage == ()
    assert [item.why for item in collection.left_alone] == [
        "it cannot be removed: Permission denied"
    ] * 2


def test_the_command_counts_logs_of_slurm_jobs(slurm_folder):
    config = slurm_folder.parents[1] / "nanoset.yaml"

    outcome = invoke_nanoset(["gc", "--config", config])

    assert "logs of Slurm jobs" in outcome.output
    assert "2 versions and files, 2 B" in outcome.output


# The command


def test_the_command_lists_old_versions_and_removes_nothing(changed):
    _, folder = changed
    data_before = tree(folder / "data")

    outcome = invoke_nanoset(["gc", "--config", folder / "nanoset.yaml"])

    assert outcome.exit_code == 0, outcome.output
    assert "datasets/web" in outcome.output
    assert "nothing was removed yet: add --yes" in outcome.output
    assert tree(folder / "data") == data_before


def test_the_command_prints_its_plan_as_json(changed):
    _, folder = changed
    data_before = tree(folder / "data")

    outcome = invoke_nanoset(["gc", "--json", "--config", folder / "nanoset.yaml"])

    plan = json.loads(outcome.output)
    assert plan["removed"] is False
    assert plan["bytes"] == sum(item["bytes"] for item in plan["garbage"])
    assert plan["bytes"] > 0
    assert tree(folder / "data") == data_before


def test_the_command_removes_old_versions_with_yes(changed):
    _, folder = changed
    config = folder / "nanoset.yaml"

    outcome = invoke_nanoset(["gc", "--yes", "--config", config])

    assert "removed: " in outcome.output
    assert tree(folder / "data") == tree_of_fresh_build(folder)
    next_outcome = invoke_nanoset(["gc", "--config", config])
    assert "0 versions and files, 0 B" in next_outcome.output


def test_a_root_that_does_not_exist_has_no_garbage(make_project):
    config = make_project()

    assert invoke_nanoset(["gc", "--yes", "--config", config]).exit_code == 0

    assert not (config.parent / "data").exists()
