"""With `storage.shards: drop`, datasets store the tokens that shards have, and no output differs."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from helpers.building import make_dataset
from helpers.changing import build, change_web, rebuild, tree_of_fresh_build
from helpers.inspecting import lineage_of, verify_at
from helpers.sample_project import jsonl, sentences, tree
from nanoset_core.errors import StorageError
from nanoset_core.outputs.manifest import read_manifest
from nanoset_core.project.gc.collect import bytes_freed_by_removing, collect, plan_gc
from nanoset_core.project.gc.garbage import Policy
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.shards.shard_sets import current_shards

DROP = "storage: {shards: drop}\n"
"""The setting that is specified here, as lines of nanoset.yaml."""


def open_project(folder: Path) -> Project:
    """Open the project in a folder."""
    return Project.open(folder / "nanoset.yaml")


def request_drop(folder: Path) -> Path:
    """Add the setting to a project, without a collection; return the project's folder."""
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text() + DROP)
    return folder


@pytest.fixture(scope="module")
def shared_dropped(built, tmp_path_factory) -> Path:
    """The folder of a built project whose shards have no tokens; tests must not write to it."""
    folder = tmp_path_factory.mktemp("dropped") / "project"
    shutil.copytree(built, folder, symlinks=True)
    request_drop(folder)
    collect(open_project(folder))
    return folder


@pytest.fixture
def dropped(shared_dropped, tmp_path) -> Path:
    """The folder of a built project whose shards have no tokens, to be changed."""
    return shutil.copytree(shared_dropped, tmp_path / "dropped", symlinks=True)


def outputs_except_shards(digest_by_file: dict[str, str]) -> dict[str, str]:
    """Return the files of a `tree` of outputs that are not of shards."""
    return {
        name: digest for name, digest in digest_by_file.items() if not name.startswith("shards/")
    }


def stored_outputs(folder: Path) -> dict[str, str]:
    """Return the sha256 of each output of a project, except shards."""
    return outputs_except_shards(tree(folder / "data"))


def outputs_of_fresh_build(folder: Path) -> dict[str, str]:
    """Return what `stored_outputs` is after a fresh build without the setting."""
    return outputs_except_shards(tree_of_fresh_build(folder, without=DROP))


def token_files(folder: Path) -> list[Path]:
    """Return the files in which shards store tokens themselves."""
    return sorted((folder / "data/shards").rglob("tokens.bin"))


def passes_verification(folder: Path) -> bool:
    """Return whether `nanoset verify --deep` finds no fault in a project."""
    return all(report.passed for report in verify_project(open_project(folder), deep=True))


# Collections


def test_without_the_setting_shards_keep_their_tokens(built):
    assert token_files(built)
    assert plan_gc(open_project(built)).garbage == ()


def test_a_collection_removes_the_tokens_of_shards(shared_dropped):
    assert not token_files(shared_dropped)


def test_a_collection_changes_no_other_output(built, shared_dropped):
    assert stored_outputs(shared_dropped) == stored_outputs(built)


def test_outputs_without_tokens_of_shards_pass_verification(shared_dropped):
    assert passes_verification(shared_dropped)


def test_a_second_collection_finds_nothing(dropped):
    project = open_project(dropped)

    assert plan_gc(project).garbage == ()
    assert collect(project).garbage == ()


def test_a_plan_names_the_tokens_and_changes_nothing(copy):
    folder = request_drop(copy())
    tree_before = tree(folder)

    plan = plan_gc(open_project(folder))

    assert tree(folder) == tree_before
    assert {item.kind for item in plan.garbage} == {"tokens"}
    assert plan.size == sum(path.stat().st_size for path in token_files(folder))


def test_a_collection_removes_what_its_plan_names(copy, shared_dropped):
    folder = request_drop(copy())
    plan = plan_gc(open_project(folder))

    collection = collect(open_project(folder))

    planned_paths = sorted(item.path for item in plan.garbage)
    assert sorted(item.path for item in collection.garbage) == planned_paths
    assert tree(folder / "data") == tree(shared_dropped / "data")


def test_tokens_are_kept_if_the_dataset_has_other_bytes(copy):
    folder = request_drop(copy())
    project = open_project(folder)
    dataset = project.outputs.current("datasets", "web")
    with (dataset.folder / "web_text_document.bin").open("r+b") as file:
        file.write(b"\xff")

    collection = collect(project)

    (kept_tokens,) = [
        item for item in collection.left_alone if "/shards/web/" in item.path.as_posix()
    ]
    assert "other bytes" in kept_tokens.why
    assert kept_tokens.path.is_file()
    assert token_files(folder) == [kept_tokens.path]


def test_tokens_are_kept_if_the_disk_is_full_and_old_versions_are_removed(copy, monkeypatch):
    folder = request_drop(copy())
    old_dataset = open_project(folder).outputs.current("datasets", "web")
    project = rebuild(folder)
    tokens_before = token_files(folder)

    def write_to_full_disk(path: Path, data: bytes) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("nanoset_core.storage.access.write_atomic", write_to_full_disk)
        collection = collect(project)

    assert not old_dataset.folder.exists()
    kept_tokens = {item.path for item in collection.left_alone if "No space left" in item.why}
    assert kept_tokens == set(tokens_before) & set(token_files(folder))
    assert passes_verification(folder)

    # With space again, the next collection removes them.
    collect(project)
    assert not token_files(folder)


def test_a_root_is_hardly_larger_than_its_datasets_tars_and_tables(copy):
    folder = copy()
    # Text as long as that of real corpora, whose tokens outweigh what is written for each shard
    # and document.
    long_rows = []
    for number in range(100):
        texts = [row["text"] for row in sentences("web", 90)]
        long_rows.append({"id": str(number), "text": " ".join(texts)})
    (folder / "raw/web/long.jsonl").write_bytes(jsonl(long_rows))
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text().replace("range_mib: 0.02", "range_mib: 0.5"))
    request_drop(folder)

    collect(build(folder))

    data = folder / "data"
    stages = ("datasets", "webdatasets", "packed", "nanosets")
    needed_bytes = bytes_freed_by_removing(data / stage for stage in stages)
    needed_bytes += sum(path.stat().st_size for path in data.rglob("documents.parquet"))
    assert bytes_freed_by_removing([data]) <= 1.1 * needed_bytes
    shard = read_manifest(next(data.glob("shards/web/*")))
    assert shard.files["tokens.bin"].within is not None


# Builds


def test_a_build_has_nothing_to_do_after_tokens_were_dropped(dropped):
    data_before = tree(dropped / "data")

    build(dropped)

    assert tree(dropped / "data") == data_before


def test_documents_can_be_looked_up_after_tokens_were_dropped(shared_dropped):
    project = open_project(shared_dropped)
    dataset = project.outputs.current("datasets", "web")

    assert lineage_of(project, dataset).origins([0])[0].id == "web-0"


def test_appends_with_collections_between_equal_fresh_builds(dropped):
    old_dataset = open_project(dropped).outputs.current("datasets", "web")

    project = rebuild(dropped)

    # One new shard with tokens; the tokens of the older shards are ranges of the old dataset.
    new_tokens = [path for path in token_files(dropped) if path.parent.parent.name == "web"]
    assert len(new_tokens) == 1
    assert old_dataset.folder.is_dir()

    # A collection removes the tokens, and the old dataset.
    plan = plan_gc(project)
    assert {item.path for item in plan.garbage} >= {old_dataset.folder, *new_tokens}
    collect(project)
    assert not old_dataset.folder.exists()
    assert not token_files(dropped)
    assert stored_outputs(dropped) == outputs_of_fresh_build(dropped)

    # And so after the next append.
    collect(rebuild(dropped, "later"))
    assert stored_outputs(dropped) == outputs_of_fresh_build(dropped)
    assert passes_verification(dropped)


def test_two_appends_without_a_collection_equal_a_fresh_build(dropped):
    rebuild(dropped)
    project = rebuild(dropped, "later")

    collect(project)

    assert stored_outputs(dropped) == outputs_of_fresh_build(dropped)
    assert passes_verification(dropped)


def test_older_versions_are_kept_with_the_dataset_that_holds_their_tokens(dropped):
    old_dataset = open_project(dropped).outputs.current("datasets", "web")
    project = rebuild(dropped)

    collect(project, Policy(keep=1))

    assert old_dataset.folder.is_dir()
    for shard_set in project.outputs.versions("tokenized", "web"):
        for shard in current_shards(project, shard_set):
            assert shard.damage() is None

    # Without the setting, the shards that need an older dataset keep it.
    config = dropped / "nanoset.yaml"
    config.write_text(config.read_text().replace("drop", "keep"))
    collect(rebuild(dropped, "later"))
    assert passes_verification(dropped)


def lose_the_index(dropped: Path) -> None:
    """Remove the index of the dataset, and build."""
    dataset = open_project(dropped).outputs.current("datasets", "web")
    (dataset.folder / "web_text_document.idx").unlink()
    build(dropped)


def lose_the_dataset(dropped: Path) -> None:
    """Remove the dataset, and with it the tokens of its shards, and build."""
    dataset = open_project(dropped).outputs.current("datasets", "web")
    shutil.rmtree(dataset.folder)
    build(dropped)


def request_a_rebuild(dropped: Path) -> None:
    """Rebuild the dataset although it is up to date."""
    make_dataset(Project.open(dropped / "nanoset.yaml", rebuild=True), "web")


@pytest.mark.parametrize("remake", [lose_the_index, lose_the_dataset, request_a_rebuild])
def test_a_dataset_can_be_rebuilt_although_shards_have_no_tokens(dropped, remake):
    outputs_before = stored_outputs(dropped)

    remake(dropped)

    assert stored_outputs(dropped) == outputs_before
    collect(open_project(dropped))
    assert not token_files(dropped)
    assert passes_verification(dropped)


# Damage


@pytest.fixture
def damaged_tokens(dropped) -> Path:
    """The file of a dataset's tokens, in which a byte of the first shard is another one."""
    dataset = open_project(dropped).outputs.current("datasets", "web")
    path = dataset.folder / "web_text_document.bin"
    with path.open("r+b") as file:
        file.seek(5)
        file.write(b"\xff")
    return path


def test_damage_in_a_dataset_is_reported_of_the_shard_whose_tokens_it_holds(
    dropped, damaged_tokens
):
    project = open_project(dropped)

    report = verify_at(project, "tokenized/web", deep=True)

    (finding,) = [finding for finding in report.findings if "other bytes" in finding.what]
    first_shard = project.outputs.current("tokenized", "web").facts["shards"][0]
    assert first_shard in finding.remedy
    assert finding.where == str(damaged_tokens)
    assert not verify_at(project, "datasets/web", deep=True).passed


def test_damaged_tokens_are_not_copied_into_the_next_dataset(dropped, damaged_tokens):
    config = dropped / "nanoset.yaml"
    project = Project.open(config)
    first_shard = project.outputs.current("tokenized", "web").facts["shards"][0]

    with pytest.raises(StorageError, match="tokens of shards are not those"):
        make_dataset(Project.open(config, rebuild=True), "web")
    assert not token_files(dropped)
    change_web(dropped)
    with pytest.raises(StorageError, match="tokens of shards are not those"):
        build(dropped)

    # The remedy: without the shard, the next build makes it from the text.
    shutil.rmtree(project.outputs.folder / "shards/web" / first_shard)
    build(dropped)
    collect(open_project(dropped))
    assert stored_outputs(dropped) == outputs_of_fresh_build(dropped)
    assert passes_verification(dropped)


# Killed processes


class Killer:
    """Ends this process before a file below the root is renamed or removed.

    Args:
        step: Number of that renaming or removal, from 1.
    """

    def __init__(self, step: int) -> None:
        self._steps_left = step
        for name in ("replace", "rename", "unlink"):
            setattr(os, name, partial(self._call, getattr(os, name)))

    def _call(
        self, original: Callable[..., Any], path: Any, *arguments: Any, **options: Any
    ) -> Any:
        """Call a function of `os`, or end this process instead."""
        place = os.fspath(path)
        if "data/" in place and ".in-use" not in place:
            self._steps_left -= 1
        if self._steps_left <= 0:
            os._exit(9)
        return original(path, *arguments, **options)


def exit_code_if_killed(step: int, action: Callable[[], object]) -> int:
    """Run an action in a process that is killed at a step, and return its exit code.

    Returns:
        9 if the process was killed, 0 if the action ended before that step, 1 if it failed.
    """
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            Killer(step)
            action()
            exit_code = 0
        finally:
            os._exit(exit_code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def check_tokens(project: Project) -> None:
    """Check that the tokens of each shard are where its manifest says, and complete."""
    store = project.outputs.access.store
    for corpus in ("web", "code", "books"):
        shard_set = project.outputs.current("tokenized", corpus)
        for shard in current_shards(project, shard_set):
            path, start = shard.place("tokens.bin")
            fact = shard.files["tokens.bin"]
            stored = shard.access.stored(path, start, fact.size)
            assert store.sha256_of(stored) == fact.sha256


def check_killed_at_each_step(folder: Path, action: Callable[[], object]) -> None:
    """Check that an action that is killed loses no tokens, whatever its last step was.

    Args:
        folder: The folder of the project.
        action: Is killed at its first step, then called again and killed at its second one, and so
            on until it ends.
    """
    step = 0
    exit_code = 9
    while exit_code == 9:
        step += 1
        exit_code = exit_code_if_killed(step, action)
        check_tokens(open_project(folder))

    assert exit_code == 0
    assert step > 5
    collect(open_project(folder))
    assert not token_files(folder)


def test_a_killed_collection_loses_no_tokens(copy):
    folder = request_drop(copy())

    check_killed_at_each_step(folder, lambda: collect(open_project(folder)))


def test_a_killed_collection_after_an_append_loses_no_tokens(dropped):
    rebuild(dropped)

    check_killed_at_each_step(dropped, lambda: collect(open_project(dropped)))


def test_a_killed_rebuild_of_a_dataset_loses_no_tokens(dropped):
    check_killed_at_each_step(dropped, partial(request_a_rebuild, dropped))
