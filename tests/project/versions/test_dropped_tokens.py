"""`storage.shards: drop`: tokens are stored once, and all goes on as if they were not."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from helpers.building import make_dataset
from helpers.changing import build, change_web, rebuild
from helpers.inspecting import lineage_of, verify_at
from helpers.sample_project import jsonl, sentences, tree
from nanoset_core.errors import StorageError
from nanoset_core.outputs.manifest import read_manifest
from nanoset_core.project.garbage import Policy
from nanoset_core.project.gc import collect, folder_size, plan_gc
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.shards.shard_sets import current_shards

DROP = "storage: {shards: drop}\n"


def other_outputs(folder: Path) -> dict[str, str]:
    """All but the shards."""
    return {
        name: sha256
        for name, sha256 in tree(folder / "data").items()
        if not name.startswith("shards/")
    }


def own_tokens(folder: Path) -> list[Path]:
    return sorted((folder / "data/shards").rglob("tokens.bin"))


def fresh(folder: Path) -> dict[str, str]:
    """What a build of the same text with `keep` makes where nothing was built before."""
    other = shutil.copytree(
        folder, folder.with_name(f"{folder.name}-fresh"), ignore=shutil.ignore_patterns("data")
    )
    config = other / "nanoset.yaml"
    config.write_text(config.read_text().replace(DROP, ""))
    build(other)
    found = other_outputs(other)
    shutil.rmtree(other)
    return found


@pytest.fixture
def dropped(copy) -> Path:
    """The folder of a project whose shards have no tokens of their own."""
    folder = copy()
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text() + DROP)
    collect(Project.open(config))
    return folder


def passed(folder: Path) -> bool:
    return all(
        report.passed for report in verify_project(Project.open(folder / "nanoset.yaml"), deep=True)
    )


def test_gc_drops_what_datasets_hold_and_nothing_else(copy, dropped):
    kept, project = copy("kept"), Project.open(dropped / "nanoset.yaml")
    assert own_tokens(kept)
    assert not own_tokens(dropped)
    assert other_outputs(dropped) == other_outputs(kept)
    config = kept / "nanoset.yaml"
    assert plan_gc(Project.open(config)).garbage == ()
    config.write_text(config.read_text() + DROP)
    before = tree(kept)
    planned = plan_gc(Project.open(config))
    assert tree(kept) == before
    assert {item.kind for item in planned.garbage} == {"tokens"}
    assert planned.size == sum(path.stat().st_size for path in own_tokens(kept))
    assert sorted(item.path for item in collect(Project.open(config)).garbage) == sorted(
        item.path for item in planned.garbage
    )
    assert tree(kept / "data") == tree(dropped / "data")
    assert plan_gc(project).garbage == collect(project).garbage == ()
    assert passed(dropped)


def test_what_builds_and_readers_find_is_the_same(dropped):
    before = tree(dropped / "data")
    project = build(dropped)
    assert tree(dropped / "data") == before
    dataset = project.outputs.current("datasets", "web")
    assert lineage_of(project, dataset).origins([0])[0].id == "web-0"


@pytest.mark.parametrize("collected_between", [True, False])
def test_an_append_equals_a_build_from_nothing(dropped, collected_between):
    old = Project.open(dropped / "nanoset.yaml").outputs.current("datasets", "web")
    project = rebuild(dropped)
    web = [path for path in own_tokens(dropped) if path.parent.parent.name == "web"]
    assert len(web) == 1, "only the file that changed was read again"
    assert old.folder.is_dir(), "older shards are ranges of it"
    if collected_between:
        planned = plan_gc(project)
        assert {item.path for item in planned.garbage} >= {old.folder, *web}
        collect(project)
        assert not old.folder.exists()
        assert not own_tokens(dropped)
        assert other_outputs(dropped) == fresh(dropped)
    project = rebuild(dropped, "later")
    collect(project)
    assert other_outputs(dropped) == fresh(dropped)
    assert passed(dropped)


def test_older_versions_are_kept_with_the_dataset_that_holds_them(dropped):
    old = Project.open(dropped / "nanoset.yaml").outputs.current("datasets", "web")
    project = rebuild(dropped)
    collect(project, keep=1)
    tokenized = list(project.outputs.versions("tokenized", "web"))
    for one in tokenized:
        assert all(shard.damage() is None for shard in current_shards(project, one))
    assert old.folder.is_dir()
    config = dropped / "nanoset.yaml"
    config.write_text(config.read_text().replace("drop", "keep"))
    project = rebuild(dropped, "later")
    collect(project, **{name: getattr(Policy(), name) for name in ("keep", "unfinished")})
    assert passed(dropped), "what is still needed of an older dataset stayed"


@pytest.mark.parametrize("lost", ["the index", "nothing, but it is made again", "shards too"])
def test_a_dataset_is_made_again_from_itself(dropped, lost):
    before, config = other_outputs(dropped), dropped / "nanoset.yaml"
    dataset = Project.open(config).outputs.current("datasets", "web")
    if lost == "the index":
        (dataset.folder / "web_text_document.idx").unlink()
        build(dropped)
    elif lost == "shards too":
        shutil.rmtree(dataset.folder)  # its shards are ranges of it
        build(dropped)
    else:
        make_dataset(Project.open(config, rebuild=True), "web")
    assert other_outputs(dropped) == before
    collect(Project.open(config))
    assert not own_tokens(dropped)
    assert passed(dropped)


def test_damage_within_the_dataset_is_the_shards_too_and_is_not_copied_on(dropped):
    config = dropped / "nanoset.yaml"
    project = Project.open(config)
    dataset = project.outputs.current("datasets", "web")
    path = dataset.folder / "web_text_document.bin"
    with path.open("r+b") as file:
        file.seek(5)
        file.write(b"\xff")
    found = verify_at(project, "tokenized/web", deep=True)
    (wrong,) = (one for one in found.findings if "other bytes" in one.what)
    first = project.outputs.current("tokenized", "web").facts["shards"][0]
    assert first in wrong.remedy
    assert wrong.where == str(path)
    assert not verify_at(project, "datasets/web", deep=True).passed
    with pytest.raises(StorageError, match="tokens of shards are not those"):
        make_dataset(Project.open(config, rebuild=True), "web")
    assert not own_tokens(dropped)
    change_web(dropped)
    with pytest.raises(StorageError, match="tokens of shards are not those"):
        build(dropped)
    shutil.rmtree(project.outputs.folder / "shards/web" / first)
    build(dropped)
    collect(Project.open(config))
    assert other_outputs(dropped) == fresh(dropped)
    assert passed(dropped)


def test_other_bytes_of_a_dataset_drop_nothing(copy):
    folder = copy()
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text() + DROP)
    project = Project.open(config)
    with (project.outputs.current("datasets", "web").folder / "web_text_document.bin").open(
        "r+b"
    ) as file:
        file.write(b"\xff")
    found = collect(project)
    (left,) = (item for item in found.left_alone if "/shards/web/" in item.path.as_posix())
    assert "other bytes" in left.why
    assert left.path.is_file()
    assert own_tokens(folder) == [left.path]


def test_a_full_disk_keeps_tokens_and_is_cleared_of_the_rest(copy, monkeypatch):
    folder = copy()
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text() + DROP)
    old, project = Project.open(config).outputs.current("datasets", "web"), rebuild(folder)
    before = own_tokens(folder)

    def full(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("nanoset_core.storage.access.write_atomic", full)
        found = collect(project)
    assert not old.folder.exists()
    assert {item.path for item in found.left_alone if "No space left" in item.why} == set(
        before
    ) & set(own_tokens(folder))
    assert passed(folder)
    collect(project)
    assert not own_tokens(folder)


class Killer:
    """Ends this process before the `at`-th time that a file below a root is renamed or removed."""

    def __init__(self, at: int) -> None:
        self.left = at
        for name in ("replace", "rename", "unlink"):
            setattr(os, name, partial(self._call, getattr(os, name)))

    def _call(self, real, path, *args, **kwargs):
        place = os.fspath(path)
        self.left -= "data/" in place and ".in-use" not in place
        if self.left <= 0:
            os._exit(9)
        return real(path, *args, **kwargs)


def check_tokens(project: Project) -> None:
    """Every shard's tokens are where its manifest says, whole."""
    for corpus in ("web", "code", "books"):
        for shard in current_shards(project, project.outputs.current("tokenized", corpus)):
            (path, begin), fact = shard.place("tokens.bin"), shard.files["tokens.bin"]
            assert (
                project.outputs.access.store.sha256_of(shard.access.stored(path, begin, fact.size))
                == fact.sha256
            )


@pytest.mark.parametrize("work", ["gc", "gc after an append", "a dataset made of itself"])
def test_killed_at_any_step_nothing_is_lost(copy, dropped, work):
    if work == "gc":
        shutil.rmtree(dropped / "data")
        shutil.copytree(copy("whole") / "data", dropped / "data", symlinks=True)
    elif work == "gc after an append":
        rebuild(dropped)
    config, at, status = dropped / "nanoset.yaml", 0, 9
    while status:
        at += 1
        if (child := os.fork()) == 0:
            code = 1
            try:
                Killer(at)
                project = Project.open(config, rebuild=work.startswith("a dataset"))
                make_dataset(project, "web") if project.rebuild else collect(project)
                code = 0
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        check_tokens(Project.open(config))
    assert at > 5
    collect(Project.open(config))
    assert not own_tokens(dropped)


def test_a_root_holds_little_more_than_datasets_tars_and_tables(copy):
    """Of text as long as that of corpora, whose tokens outweigh what is written for each shard and
    document.
    """
    folder = copy()
    long = [
        {"id": str(number), "text": " ".join(row["text"] for row in sentences("web", 90))}
        for number in range(100)
    ]
    (folder / "raw/web/long.jsonl").write_bytes(jsonl(long))
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text().replace("range_mib: 0.02", "range_mib: 0.5") + DROP)
    collect(build(folder))
    data = folder / "data"
    needed = sum(
        folder_size(data / stage) for stage in ("datasets", "webdatasets", "packed", "nanosets")
    )
    needed += sum(path.stat().st_size for path in data.rglob("documents.parquet"))
    assert folder_size(data) <= 1.1 * needed
    assert read_manifest(next(data.glob("shards/web/*"))).files["tokens.bin"].within is not None
