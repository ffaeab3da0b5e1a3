"""A whole project whose outputs live in a bucket: the same bytes as locally, from any machine,
whatever is lost.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
import subprocess
import sys

import dagster as dg
import numpy as np
import pytest

from helpers.building import build_all, make_handoff, make_nanoset, make_pbin
from helpers.s3_server import MEMORY, objects, upload_raw
from helpers.sample_project import outputs_of
from nanoset_assets.build import build
from nanoset_core import StorageSpec, load_nanoset
from nanoset_core.errors import StorageError
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project


def test_the_bucket_holds_what_a_local_root_would(stored, built_here):
    digests = {
        name: hashlib.sha256(kept.data).hexdigest()
        for name, kept in stored.items()
        if MEMORY not in name
    }
    assert digests == outputs_of(built_here)


def test_another_machine_finds_everything_and_makes_nothing(remote_project, filled):
    before = objects(filled)
    other = remote_project("other")
    with dg.DagsterInstance.ephemeral() as instance:
        report = build(Project.open(other), instance)
    assert not report.failed | report.made
    assert all(step.is_up_to_date for step in report.steps)
    assert objects(filled) == before


def test_the_folders_of_nemos_index_files_are_in_the_bucket(local_copy, remote_project, filled):
    config = remote_project()
    for file in (local_copy, config):
        nemo = "samples: {train: 100, valid: 10, test: 5}\n    preset: nemo"
        file.write_text(file.read_text().replace("samples: {train: 400}", nemo))
        project = Project.open(file)
        make_nanoset(project, "pretrain")
        make_handoff(project, "pretrain")
    assert objects(filled) == outputs_of(local_copy)
    assert any(re.search(r"cache/[0-9a-f]{20}/web_.*_indexmap_", name) for name in objects(filled))
    shutil.rmtree(config.parent / ".nanoset")
    assert (
        len(
            load_nanoset(
                filled.url(), "pretrain", "train", StorageSpec(endpoint_url=filled.endpoint_url)
            )
        )
        >= 100
    )
    assert all(report.passed for report in verify_project(Project.open(config), ["pretrain"]))


def test_samples_are_those_of_a_local_root(built_here, filled, tmp_path):
    storage = StorageSpec(endpoint_url=filled.endpoint_url, mirror=str(tmp_path / "elsewhere"))
    for name in ("pretrain", "plain"):
        ours, theirs = (
            load_nanoset(built_here.parent / "data", name, "train"),
            load_nanoset(filled.url(), name, "train", storage),
        )
        assert len(ours) == len(theirs)
        everything = np.arange(len(ours))
        np.testing.assert_array_equal(ours.batch(everything), theirs.batch(everything))
        np.testing.assert_array_equal(ours[0]["tokens"], theirs[0]["tokens"])
    assert not list((tmp_path / "elsewhere").rglob("*.bin")), "tokens were read where they are"


def test_processes_that_are_spawned_read_the_same_samples(filled, tmp_path):
    storage = StorageSpec(endpoint_url=filled.endpoint_url, mirror=str(tmp_path / "elsewhere"))
    blended, plain = (
        load_nanoset(filled.url(), name, "train", storage) for name in ("pretrain", "plain")
    )
    datasets = (blended, plain, plain.dataset)
    # Each by itself: what one of them needs in the other process, another must not bring along.
    (tmp_path / "pickled").write_bytes(pickle.dumps([pickle.dumps(opened) for opened in datasets]))
    code = (
        "import pickle, sys\n"
        "for opened in pickle.load(open(sys.argv[1], 'rb')): "
        "print(len(pickle.dumps(pickle.loads(opened)[1])))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "pickled"], capture_output=True, text=True
    )
    assert said.stdout == "".join(f"{len(pickle.dumps(opened[1]))}\n" for opened in datasets), (
        said.stderr
    )


def test_raw_text_that_is_known_by_its_etags_is_read_where_it_is(make_project, built_here, place):
    raw = upload_raw(built_here.parent / "raw", place)
    storage = (
        f"pbin: [web, code]\nstorage: {{endpoint_url: {place.endpoint_url!r}, fingerprint: etag}}"
    )
    config = make_project("remote", {"raw: raw": f"raw: {raw.url()}\n{storage}"})
    shutil.rmtree(config.parent / "raw")
    build_all(config)
    for corpus in ("web", "code", "books"):
        for end in ("bin", "idx"):
            name = f"data/datasets/{corpus}/current/{corpus}_text_document.{end}"
            assert (config.parent / name).read_bytes() == (built_here.parent / name).read_bytes()


def test_everything_in_a_bucket(built_here, remote_project, place):
    raw = upload_raw(built_here.parent / "raw", place)
    config = remote_project()
    config.write_text(config.read_text().replace("raw: raw", f"raw: {raw.url()}"))
    shutil.rmtree(config.parent / "raw")
    build_all(config)
    assert objects(place) == outputs_of(built_here)
    assert any(name.endswith(".pbin") for name in objects(place))
    for found in verify_project(Project.open(config), deep=True):
        assert not found.findings


def test_a_pack_made_again_but_not_to_its_end_has_no_manifest_of_before(
    remote_project, filled, monkeypatch
):
    config, before = remote_project(), objects(filled)
    digest = Project.open(config).outputs.current("packed", "web").digest

    def cut_short(*_, **__):
        raise StorageError("no more", where="the wire", remedy="none")

    with monkeypatch.context() as patch:
        patch.setattr("nanoset_core.stages.pbin.make.put_dataset_as_pbin", cut_short)
        with pytest.raises(StorageError):
            make_pbin(Project.open(config, rebuild=True), "web")
    assert before.keys() - objects(filled).keys() == {f"packed/web/{digest}/manifest.json"}
    make_pbin(Project.open(config), "web")
    assert objects(filled) == before


def test_another_machine_goes_on_where_one_left_off(local_copy, remote_project, filled):
    """It has no copies: what it needs of older outputs to make the new ones is brought."""
    for config in (local_copy, remote_project("second")):
        with (config.parent / "raw" / "web" / "part-0" / "web-0.jsonl").open("ab") as file:
            file.write(b'{"text": "one document more"}\n')
        build_all(config)
    assert objects(filled) == outputs_of(local_copy)
