"""A whole project whose outputs live in a bucket: the same bytes as locally, from any machine, whatever is lost."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from s3_server import objects
from sample_project import build_all, tree

from nanoset_assets.build import build
from nanoset_core import load_nanoset
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.location import S3Place, StorageSpec
from nanoset_core.storage.s3 import S3Store
from nanoset_core.verification.verify import verify_project

HIDDEN = (".in-use", ".fingerprints.json", "/current")


def data_of(root: Path) -> dict[str, str]:
    """A local root's files that belong to its outputs."""
    return {name: sha for name, sha in tree(root).items() if ".in-use" not in name and not name.endswith("/current")}


def upload_raw(folder: Path, place: S3Place) -> S3Place:
    """Raw text in the bucket, beside the outputs' prefix; → its place."""
    raw = S3Place(place.bucket, "raw text", place.endpoint_url)
    for path in folder.rglob("*"):
        if path.is_file():
            S3Store(raw).put_file(path.relative_to(folder).as_posix(), path)
    return raw


def forget_copies(config: Path) -> None:
    shutil.rmtree(config.parent / ".nanoset")


def test_the_bucket_holds_what_a_local_root_would(make_project, remote_project, place):
    local = make_project("local")
    build_all(local)
    build_all(remote_project())
    assert objects(place) == data_of(local.parent / "data")


def test_another_machine_finds_everything_and_makes_nothing(remote_project, place):
    build_all(remote_project())
    before = objects(place)
    other = remote_project("other")
    with dg.DagsterInstance.ephemeral() as instance:
        report = build(Project.open(other), instance)
    assert not report.failed
    assert all(step.done for step in report.steps if step.asset != ("raw_jsonl",))
    assert objects(place) == before


def test_the_folders_of_nemos_index_files_are_in_the_bucket(make_project, remote_project, place):
    local, config = make_project("local"), remote_project()
    for file in (local, config):
        nemo = "samples: {train: 100, valid: 10, test: 5}\n    preset: nemo"
        file.write_text(file.read_text().replace("samples: {train: 400}", nemo))
        build_all(file)
    assert objects(place) == data_of(local.parent / "data")
    assert any(re.search(r"cache/[0-9a-f]{20}/web_.*_indexmap_", name) for name in objects(place))
    forget_copies(config)
    assert len(load_nanoset(place.url, "pretrain", "train", StorageSpec(endpoint_url=place.endpoint_url))) >= 100
    assert all(report.passed for report in verify_project(Project.open(config), ["pretrain"]))


def test_samples_are_those_of_a_local_root(make_project, remote_project, place):
    local = make_project("local")
    build_all(local)
    config = remote_project()
    build_all(config)
    forget_copies(config)
    storage = StorageSpec(endpoint_url=place.endpoint_url, mirror=str(config.parent / "elsewhere"))
    for name in ("pretrain", "plain"):
        ours, theirs = (
            load_nanoset(local.parent / "data", name, "train"),
            load_nanoset(place.url, name, "train", storage),
        )
        assert len(ours) == len(theirs)
        everything = np.arange(len(ours))
        np.testing.assert_array_equal(ours.batch(everything), theirs.batch(everything))
        np.testing.assert_array_equal(ours[0]["tokens"], theirs[0]["tokens"])
    assert not list((config.parent / "elsewhere").rglob("*.bin")), "tokens were read where they are"


def test_processes_that_are_spawned_read_the_same_samples(remote_project, place, tmp_path):
    build_all(remote_project())
    storage = StorageSpec(endpoint_url=place.endpoint_url, mirror=str(tmp_path / "elsewhere"))
    blended, plain = (load_nanoset(place.url, name, "train", storage) for name in ("pretrain", "plain"))
    for opened in (blended, plain, plain.dataset):
        (tmp_path / "pickled").write_bytes(pickle.dumps(opened))
        code = "import pickle, sys; print(len(pickle.dumps(pickle.load(open(sys.argv[1], 'rb'))[1])))"
        said = subprocess.run([sys.executable, "-c", code, tmp_path / "pickled"], capture_output=True, text=True)
        assert said.stdout == f"{len(pickle.dumps(opened[1]))}\n", said.stderr


@pytest.mark.parametrize("fingerprint", ["content", "etag"])
def test_raw_text_is_read_where_it_is(make_project, place, fingerprint):
    local = make_project("local")
    build_all(local)
    raw = upload_raw(local.parent / "raw", place)
    storage = f"storage: {{endpoint_url: {place.endpoint_url!r}, fingerprint: {fingerprint}}}"
    config = make_project("remote", {"raw: raw": f"raw: {raw.url}\n{storage}"})
    shutil.rmtree(config.parent / "raw")
    build_all(config)
    if fingerprint == "content":
        assert data_of(config.parent / "data") == data_of(local.parent / "data")
    else:
        for end in ("bin", "idx"):
            for corpus in ("web", "code", "books"):
                name = f"datasets/{corpus}/current/{corpus}_text_document.{end}"
                assert (config.parent / "data" / name).read_bytes() == (local.parent / "data" / name).read_bytes()


def test_everything_in_a_bucket(make_project, remote_project, place):
    local = make_project("local")
    local.write_text(local.read_text() + "packed: [web, code]\n")
    with dg.DagsterInstance.ephemeral() as instance:
        assert not build(Project.open(local), instance).failed
    raw = upload_raw(local.parent / "raw", place)
    config = remote_project()
    config.write_text(config.read_text().replace("raw: raw", f"raw: {raw.url}") + "packed: [web, code]\n")
    shutil.rmtree(config.parent / "raw")
    with dg.DagsterInstance.ephemeral() as instance:
        report = build(Project.open(config), instance)
        assert not report.failed
        assert not build(Project.open(config), instance).made
    assert objects(place) == data_of(local.parent / "data")
    assert any(name.endswith(".pbin") for name in objects(place))
    for found in verify_project(Project.open(config), deep=True):
        assert not found.findings


def test_another_machine_goes_on_where_one_left_off(make_project, remote_project, place):
    """It has no copies: what it needs of older outputs to make the new ones is brought."""
    text = b'{"text": "one document more"}\n'
    local, first, second = make_project("local"), remote_project("first"), remote_project("second")
    build_all(local)
    build_all(first)
    for config in (local, second):
        with (config.parent / "raw" / "web" / "part-0" / "web-0.jsonl").open("ab") as file:
            file.write(text)
        build_all(config)
    stored, wanted = objects(place), data_of(local.parent / "data")
    assert stored == wanted
