"""A project with outputs in a bucket: the same bytes as in a local folder, built by any machine."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import numpy as np
import pytest

from helpers.buckets import MEMORY, objects, upload_raw
from helpers.building import build_all, make_handoff, make_nanoset, make_pbin
from helpers.sample_project import outputs_of
from nanoset_assets.build.builder import build
from nanoset_core import StorageSpec, load_nanoset
from nanoset_core.errors import StorageError
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.storage.stores.s3.store import S3Store


@pytest.fixture
def storage(place: S3Store, tmp_path: Path) -> StorageSpec:
    """Settings to read the bucket, with working copies in a folder that does not exist yet."""
    return StorageSpec(endpoint_url=place.endpoint_url, mirror=str(tmp_path / "copies"))


# Builds


def test_outputs_in_a_bucket_have_the_bytes_of_those_in_a_local_folder(built_objects, local_build):
    digests: dict[str, str] = {}
    for name, content in built_objects.items():
        if MEMORY not in name:
            digests[name] = hashlib.sha256(content.data).hexdigest()

    assert digests == outputs_of(local_build)


def test_a_machine_rebuilds_nothing_that_another_one_has_built(remote_project, filled):
    objects_before = objects(filled)
    config = remote_project("another machine")

    with dg.DagsterInstance.ephemeral() as instance:
        report = build(Project.open(config), instance)

    assert not report.failed
    assert not report.made
    assert all(step.is_up_to_date for step in report.steps)
    assert objects(filled) == objects_before


def test_text_in_a_bucket_can_be_identified_by_its_etags(make_project, local_build, place):
    """The text is tokenized from the bucket, and its datasets are those of local text."""
    raw = upload_raw(local_build.parent / "raw", place)
    storage = f"storage: {{endpoint_url: {place.endpoint_url!r}, fingerprint: etag}}"
    settings = f"raw: {raw.url()}\npbin: [web, code]\n{storage}"
    config = make_project("remote", {"raw: raw": settings})
    shutil.rmtree(config.parent / "raw")

    build_all(config)

    for corpus in ("web", "code", "books"):
        for suffix in ("bin", "idx"):
            name = f"data/datasets/{corpus}/current/{corpus}_text_document.{suffix}"
            assert (config.parent / name).read_bytes() == (local_build.parent / name).read_bytes()


def test_text_and_outputs_can_both_be_in_a_bucket(local_build, remote_project, place):
    raw = upload_raw(local_build.parent / "raw", place)
    config = remote_project()
    config.write_text(config.read_text().replace("raw: raw", f"raw: {raw.url()}"))
    shutil.rmtree(config.parent / "raw")

    build_all(config)

    digests = objects(place)
    assert digests == outputs_of(local_build)
    assert any(name.endswith(".pbin") for name in digests)


def test_an_output_whose_rebuild_fails_has_no_manifest_until_it_is_complete(
    remote_project, filled, monkeypatch
):
    """Its files may be new ones, which the old manifest does not describe."""
    config = remote_project()
    objects_before = objects(filled)
    digest = Project.open(config).outputs.current("packed", "web").digest

    def fail(*_, **__):
        raise StorageError("no more", where="the wire", remedy="none")

    # The rebuild fails.
    with monkeypatch.context() as patch:
        patch.setattr("nanoset_core.stages.pbin.make.put_dataset_as_pbin", fail)
        with pytest.raises(StorageError):
            make_pbin(Project.open(config, rebuild=True), "web")
    removed_names = objects_before.keys() - objects(filled).keys()
    assert removed_names == {f"packed/web/{digest}/manifest.json"}

    # The next build completes the output.
    make_pbin(Project.open(config), "web")
    assert objects(filled) == objects_before


# The folders of index files that NeMo expects


def use_nemo(config: Path) -> None:
    """Let the nanoset pretrain be for NeMo."""
    settings = config.read_text()
    nemo_settings = "samples: {train: 100, valid: 10, test: 5}\n    preset: nemo"
    config.write_text(settings.replace("samples: {train: 400}", nemo_settings))


def test_a_nanoset_for_nemo_has_its_folders_of_index_files_in_the_bucket(
    local_copy, remote_project, filled, storage
):
    config = remote_project()
    for file in (local_copy, config):
        use_nemo(file)
        project = Project.open(file)
        make_nanoset(project, "pretrain")
        make_handoff(project, "pretrain")

    # The bucket has the index files of a local build.
    digests = objects(filled)
    assert digests == outputs_of(local_copy)
    assert any(re.search(r"cache/[0-9a-f]{20}/web_.*_indexmap_", name) for name in digests)

    # They are found without working copies.
    shutil.rmtree(config.parent / ".nanoset")
    storage = dataclasses.replace(storage, mirror=None)
    nanoset = load_nanoset(filled.url(), "pretrain", "train", storage)
    assert len(nanoset) >= 100
    reports = verify_project(Project.open(config), ["pretrain"])
    assert all(report.passed for report in reports)


# Samples


@pytest.mark.parametrize("name", ["pretrain", "plain"])
def test_samples_in_a_bucket_equal_those_in_a_local_folder(local_build, filled, storage, name):
    local = load_nanoset(local_build.parent / "data", name, "train")
    remote = load_nanoset(filled.url(), name, "train", storage)

    assert len(remote) == len(local)
    all_samples = np.arange(len(local))
    np.testing.assert_array_equal(remote.batch(all_samples), local.batch(all_samples))
    np.testing.assert_array_equal(remote[0]["tokens"], local[0]["tokens"])


@pytest.mark.parametrize("name", ["pretrain", "plain"])
def test_tokens_are_read_from_the_bucket_without_a_copy(filled, storage, name):
    nanoset = load_nanoset(filled.url(), name, "train", storage)

    nanoset.batch(np.arange(len(nanoset)))

    assert not list(Path(storage.mirror).rglob("*.bin"))


UNPICKLE = """\
import pickle, sys

for data in pickle.load(open(sys.argv[1], "rb")):
    dataset = pickle.loads(data)
    print(len(pickle.dumps(dataset[1])))
"""
"""Reads a sample of each pickled dataset of a file, and prints its pickled size."""


def test_a_spawned_process_reads_the_samples_of_a_pickled_dataset(filled, storage, tmp_path):
    blended = load_nanoset(filled.url(), "pretrain", "train", storage)
    plain = load_nanoset(filled.url(), "plain", "train", storage)
    datasets = (blended, plain, plain.dataset)
    # Each is pickled alone, so that it cannot rely on what another one brings along.
    pickles = [pickle.dumps(dataset) for dataset in datasets]
    (tmp_path / "pickles").write_bytes(pickle.dumps(pickles))

    process = subprocess.run(
        [sys.executable, "-c", UNPICKLE, tmp_path / "pickles"], capture_output=True, text=True
    )

    sample_sizes = [len(pickle.dumps(dataset[1])) for dataset in datasets]
    lines = [f"{size}\n" for size in sample_sizes]
    assert process.stdout == "".join(lines), process.stderr
