"""Workers of a cluster that share nothing but the bucket with the process that gives them work, nor with each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dask_cluster import Cluster, can_hide, running
from s3_server import objects, restore, upload_raw
from sample_project import build_all, outputs_of

from nanoset_core.pipeline import raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.location import S3Place
from nanoset_core.verification.verify import targets, verify_project


@pytest.fixture(scope="module")
def cluster(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    if not can_hide():
        pytest.skip("no process may have file systems of its own here")
    with running(tmp_path_factory.mktemp("cluster")) as started:
        started.staff(2, hidden=tmp_path_factory.getbasetemp())
        yield started


@pytest.fixture
def project(
    remote_project: Callable[..., Path], cluster: Cluster, place: S3Place, tmp_path_factory: pytest.TempPathFactory
) -> Project:
    """All in the bucket, but settings and tokenizer, which lie in a folder that no worker sees."""
    cluster.staff(2, hidden=tmp_path_factory.getbasetemp())
    config = remote_project("project")
    raw_text = upload_raw(config.parent / "raw", place)
    shutil.rmtree(config.parent / "raw")
    text = config.read_text().replace("raw: raw", f"raw: {raw_text.url}")
    config.write_text(f"{text}executor: {{kind: dask, address: '{cluster.address}'}}\n")
    return Project.open(config)


def left_by_workers(cluster: Cluster, hidden: Path) -> list[str]:
    """Names of files in the workers' own scratch folders, as they see them."""
    folders = [Path(f"/proc/{worker.pid}/root{hidden}/scratch") for worker in cluster.workers]
    return [path.name for folder in folders for path in folder.rglob("nanoset/**/*") if path.is_file()]


def test_a_whole_build_has_the_bytes_of_a_local_one(project, cluster, place, built_here, tmp_path_factory):
    build_all(project.config.file)
    assert objects(place) == outputs_of(built_here)
    assert set(left_by_workers(cluster, tmp_path_factory.getbasetemp())) == {"tokenizer.json"}


def test_this_process_moves_no_tokens(project):
    for corpus in ("web", "code"):
        raw.make_inventory(project, corpus)
        tokenization.tokenize(project, corpus)
    assert not [*project.config.file.parent.rglob("*.bin"), *project.config.file.parent.rglob("documents.parquet")]


def test_deep_verification_is_that_of_a_local_project(project, cluster, place, stored, built_here, tmp_path_factory):
    restore(place, stored)
    copied = {path for path in project.outputs.folder.rglob("*") if path.is_file()}
    assert not copied
    local, there = Project.open(built_here), list(verify_project(project, deep=True))
    wanted = [target.run(True) for target in targets(local)]
    assert [report.output for report in there] == [report.output for report in wanted]
    assert not [finding for report in there for finding in report.findings]
    assert [report.figures for report in there] == [report.figures for report in wanted]
    assert not list(project.outputs.folder.rglob("*.bin"))
    assert set(left_by_workers(cluster, tmp_path_factory.getbasetemp())) <= {"tokenizer.json"}
