"""Builds whose outputs are in a bucket, on machines with less room than these take, or from which
copies vanish.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.building import (
    build_all,
    make_dataset,
    make_inventory,
    make_mappings,
    make_shards,
    make_tars,
)
from helpers.dask_cluster import OWN_MOUNTS, can_hide
from helpers.inspecting import node_at, read_dataset
from helpers.progress import RecordingDisplay
from helpers.s3_server import objects
from helpers.sample_project import jsonl, outputs_of, sentences
from nanoset_core.errors import MissingError, StorageError
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import current_manifest
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import StorageSpec
from nanoset_core.storage.s3 import S3Store

SCRATCH_MIB = 4
BUILD_AND_VERIFY = r"""
import sys
from helpers.building import build_all
from nanoset_core.project.verify import verify_project
project = build_all(sys.argv[1])
reports = [report for deep in (False, True) for report in verify_project(project, deep=deep)]
sys.exit("\n".join(str(error) for report in reports for error in report.errors))
"""


def bounded(config: Path, mib: int = 1) -> Path:
    """The same project with so much room for copies."""
    config.write_text(config.read_text().replace("storage: {", f"storage: {{scratch_mib: {mib}, "))
    return config


def run_on_a_small_disk(code: str, config: Path, size: int) -> str:
    """Run code in a process for which copies and temporary files are on a disk of so many bytes; →
    its errors.
    """
    disk = config.parent / ".nanoset"
    disk.mkdir(exist_ok=True)
    mount = f'mount -t tmpfs -o size={size} none "{disk}" && mkdir "$TMPDIR" && exec "$0" "$@"'
    paths = os.pathsep.join(map(str, (Path(__file__).parents[1], *filter(None, sys.path))))
    environment = os.environ | {"TMPDIR": str(disk / "tmp"), "PYTHONPATH": paths}
    command = [*OWN_MOUNTS, mount, sys.executable, "-c", code, str(config)]
    return subprocess.run(command, capture_output=True, text=True, env=environment).stderr.strip()


def larger_corpus(config: Path, rows: list[dict[str, str]]) -> None:
    """Give the project a larger corpus, longer contexts, and two workers."""
    text = config.read_text().replace("range_mib: 0.02, workers: 1", "range_mib: 0.5, workers: 2")
    text = text.replace("groups: 3", "groups: 1").replace(", samples: {train: 400}", "")
    config.write_text(
        text.replace("sequence_length: 33", "sequence_length: 4097").replace(
            "shard: 128", "shard: 16"
        )
    )
    shutil.rmtree(config.parent / "raw" / "web")
    (config.parent / "raw" / "web").mkdir()
    for part in range(48):
        (config.parent / "raw" / "web" / f"{part}.jsonl").write_bytes(jsonl(rows[part::48]))


def test_a_build_and_its_verification_fit_a_disk_of_what_was_said(
    make_project, remote_project, place
):
    """The tokens of each stage take twice as much; files without names count, too."""
    if not can_hide():
        pytest.skip("no process may have file systems of its own here")
    local = make_project("large", {"nanosets:": "pbin: [web, code]\nnanosets:"})
    remote = bounded(remote_project("remote"), SCRATCH_MIB)
    rows = [row for number in range(160) for row in sentences(f"web{number}", 240)]
    for config in (local, remote):
        larger_corpus(config, rows)
    assert run_on_a_small_disk(BUILD_AND_VERIFY, remote, SCRATCH_MIB << 20) == ""
    build_all(local)
    wanted, stored = outputs_of(local), objects(place)
    assert wanted.keys() == stored.keys() - {
        name for name in stored if name.endswith(".bin.pieces")
    }
    other = {name for name in wanted if stored[name] != wanted[name]}
    assert {name.rpartition("/")[2] for name in other} <= {"manifest.json"}, (
        "a dataset's names the pieces of its .bin"
    )
    assert {name.split("/")[0] for name in other} <= {"datasets"}


@pytest.mark.parametrize("seed", range(2))
def test_copies_that_vanish_during_a_build(remote_project, place, built_here, monkeypatch, seed):
    """Somebody removes the whole folder of copies before some of the requests."""
    config, draw = remote_project(), random.Random(seed)
    mirror, left = config.parent / ".nanoset" / "mirror", 7

    def vanishing(method):
        def request(store, *arguments, **options):
            nonlocal left
            if left and draw.random() < 0.04:
                left -= 1
                shutil.rmtree(mirror, ignore_errors=True)
            return method(store, *arguments, **options)

        return request

    for name in ("put_file", "list", "fetch", "put"):
        monkeypatch.setattr(S3Store, name, vanishing(getattr(S3Store, name)))
    build_all(config)
    assert left == 0
    monkeypatch.undo()
    assert objects(place) == outputs_of(built_here)


def test_outputs_that_were_sent_take_no_room(remote_project, place):
    project = Project.open(bounded(remote_project()))
    make_inventory(project, "web")
    make_shards(project, "web")
    left = {path.name for path in project.outputs.folder.rglob("*") if path.is_file()}
    assert not {name for name in left if name.endswith((".bin", ".idx", ".parquet"))}


def test_older_copies_give_way_to_newer_ones_and_nothing_else_does(place, tmp_path):
    for name in ("a/one", "a/two", "a/three", "a/huge"):
        place.put(name, bytes(2 << 20 if name == "a/huge" else 200_000))
    access = FileAccess(tmp_path / "mirror", place, capacity=1 << 20)
    kept = access.folder / ".in-use" / "web"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(200_000))
    for name in ("one", "two", "three"):
        assert access.fetch(access.folder / "a" / name).is_file()
    assert sorted(path.name for path in (access.folder / "a").iterdir()) == ["three", "two"]
    assert kept.is_file()
    with pytest.raises(StorageError, match="larger than the room") as caught:
        access.fetch(access.folder / "a" / "huge")
    assert "storage.scratch_mib" in caught.value.remedy
    assert FileAccess(tmp_path / "mirror", place).fetch(access.folder / "a" / "huge").is_file()


def test_what_cannot_fit_is_refused_before_a_byte_of_it_is_written(remote_project, monkeypatch):
    """With the need, in a sentence that names the key."""
    project = build_all(remote_project())
    for room, make, what in (
        (10_000, lambda again: make_shards(again, "web"), "a shard is larger"),
        (2_000, lambda again: make_dataset(again, "web"), "the .idx of web"),
        (
            10_000,
            lambda again: make_mappings(again, "pretrain", "train"),
            "the index files of a dataset",
        ),
        (24_000, lambda again: make_tars(again, "shuffled", 0), "a tar of 128 samples"),
        (400, lambda again: read_dataset(again, "web"), "web_text_document.idx"),
    ):
        shutil.rmtree(project.outputs.folder)
        monkeypatch.setattr(StorageSpec, "capacity", room)
        again = Project.open(project.config.file, rebuild=True)
        with pytest.raises(StorageError, match="larger than the room for working copies") as caught:
            make(again)
        assert what in str(caught.value)
        assert "storage.scratch_mib" in caught.value.expected
        assert "set storage.scratch_mib to more" in caught.value.remedy
        monkeypatch.undo()


def test_fewer_workers_make_shards_where_room_is_scarce(remote_project, monkeypatch):
    config = remote_project()
    config.write_text(config.read_text().replace("workers: 1", "workers: 3"))
    shown = RecordingDisplay()
    monkeypatch.setattr(StorageSpec, "capacity", 100_000)
    project = Project.open(config, shown.progress)
    make_inventory(project, "web")
    make_shards(project, "web")
    assert any("of 3 workers: storage.scratch_mib" in note for note in shown.notes), shown.notes


def test_what_is_missing_from_the_start_is_told_once_it_is_known(remote_project, place):
    project = Project.open(remote_project())
    with pytest.raises(MissingError, match="has not been built") as caught:
        make_shards(project, "web")
    assert str(caught.value.where).startswith(place.url())
    dataset = node_at("datasets/web")
    with pytest.raises(MissingError, match="has not been built") as caught:
        current_manifest(project, dataset.stage, dataset.key)
    assert caught.value.where == place.url("datasets/web")
