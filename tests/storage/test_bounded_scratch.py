"""Builds whose outputs are in a bucket, on machines with less room than these take, or from which copies vanish."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dask_cluster import OWN_MOUNTS, can_hide
from s3_server import objects
from sample_project import build_all, jsonl, outputs_of, sentences

from nanoset_core.errors import MissingError, StorageError
from nanoset_core.pipeline import raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.s3 import S3Store
from nanoset_core.verification.report import live_manifest

STAGES = """
[(raw.make_inventory(p, c), tokenization.tokenize(p, c), indexed.index(p, c)) for c in raw.corpora(p)]
[packed.pack(p, c) for c in p.config.packed]
shuffling.make_plan(p, 'shuffled'), shuffling.write_group(p, 'shuffled', 0), shuffling.finish(p, 'shuffled')"""


def bounded(config: Path, mib: int = 1) -> Path:
    """The same project with so much room for copies."""
    config.write_text(config.read_text().replace("storage: {", f"storage: {{scratch_mib: {mib}, "))
    return config


def run_on_a_small_disk(code: str, config: Path, size: int) -> None:
    """Run stages of a project in a process for which the folder of copies is a disk of so many bytes."""
    mirror = config.parent / ".nanoset" / "mirror"
    mirror.mkdir(parents=True, exist_ok=True)
    imports = "import sys, pathlib\nfrom nanoset_core.pipeline import indexed, packed, raw, shuffling, tokenization\n"
    project = "from nanoset_core.pipeline.project import Project\np = Project.open(sys.argv[1])\n"
    command = [sys.executable, "-c", imports + project + code, str(config)]
    mount = f'mount -t tmpfs -o size={size} none "{mirror}" && exec "$0" "$@"'
    done = subprocess.run([*OWN_MOUNTS, mount, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_corpus_ten_times_larger_than_the_scratch_disk(make_project, remote_project, place):
    """Of shards, dataset, tars and packs never more than a little is there."""
    if not can_hide():
        pytest.skip("no process may have file systems of its own here")
    local, remote, size = make_project("large"), bounded(remote_project("remote")), 2 << 20
    rows = [row for number in range(200) for row in sentences(f"web{number}", 240)]
    for config in (local, remote):
        text = config.read_text().replace("range_mib: 0.02", "range_mib: 0.5").replace("groups: 3", "groups: 1")
        text = text.replace("sequence_length: 33", "sequence_length: 4097").replace("shard: 128", "shard: 16")
        config.write_text(text if config == remote else text.replace("nanosets:", "packed: [web, code]\nnanosets:"))
        shutil.rmtree(config.parent / "raw" / "web")
        (config.parent / "raw" / "web").mkdir()
        for part in range(60):
            (config.parent / "raw" / "web" / f"{part}.jsonl").write_bytes(jsonl(rows[part::60]))
    run_on_a_small_disk(STAGES, remote, size)
    build_all(local)
    assert sum(file.stat().st_size for file in (remote.parent / "raw" / "web").iterdir()) > 10 << 20
    wanted, stored = outputs_of(local), objects(place)
    stages = ("tokenized", "shards", "datasets", "packed", "webdatasets")
    assert {name.split("/")[0] for name in stored} >= set(stages)
    wanted = {name: sha for name, sha in wanted.items() if name.startswith(stages)}
    other = {name for name in wanted if stored.get(name) != wanted[name]}
    assert {name.rpartition("/")[2] for name in other} <= {"manifest.json"}, "a dataset's names the pieces of its .bin"
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
    raw.make_inventory(project, "web")
    tokenization.tokenize(project, "web")
    left = {path.name for path in project.outputs.folder.rglob("*") if path.is_file()}
    assert not {name for name in left if name.endswith((".bin", ".idx", ".parquet"))}


def test_older_copies_give_way_to_newer_ones_and_nothing_else_does(place, tmp_path):
    for name in ("a/one", "a/two", "a/three", "a/huge"):
        place.put(name, bytes(2 << 20 if name == "a/huge" else 400_000))
    access = FileAccess(tmp_path / "mirror", place, capacity=1 << 20)
    kept = access.folder / ".in-use" / "web"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(500_000))
    for name in ("one", "two", "three"):
        assert access.fetch(access.folder / "a" / name).is_file()
    assert sorted(path.name for path in (access.folder / "a").iterdir()) == ["three", "two"]
    assert kept.is_file()
    with pytest.raises(StorageError, match="larger than the room") as caught:
        access.fetch(access.folder / "a" / "huge")
    assert "storage.scratch_mib" in caught.value.remedy
    assert FileAccess(tmp_path / "mirror", place).fetch(access.folder / "a" / "huge").is_file()


def test_what_is_missing_from_the_start_is_told_once_it_is_known(remote_project, place):
    project = Project.open(remote_project())
    with pytest.raises(MissingError, match="has not been built") as caught:
        tokenization.tokenize(project, "web")
    assert str(caught.value.where).startswith(place.url())
    with pytest.raises(MissingError, match="has not been built") as caught:
        live_manifest(project.outputs, "datasets", "web")
    assert caught.value.where == place.url("datasets/web")
