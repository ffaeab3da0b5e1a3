"""Workers of a cluster that share nothing but the bucket with the process that gives them work, nor with each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dask_cluster import Cluster, can_hide, running
from s3_server import objects, upload_raw
from sample_project import build_all, outputs_of

from nanoset_core.pipeline import raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.location import S3Place


@pytest.fixture(scope="module")
def cluster(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    if not can_hide():
        pytest.skip("no process may have file systems of its own here")
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def project(remote_project: Callable[..., Path], cluster: Cluster, place: S3Place, tmp_path: Path) -> Project:
    """All in the bucket, but settings and tokenizer, which lie in a folder that no worker sees."""
    cluster.staff(0)
    cluster.staff(2, hidden=tmp_path)
    config = remote_project("project")
    raw_text = upload_raw(config.parent / "raw", place)
    shutil.rmtree(config.parent / "raw")
    text = config.read_text().replace("raw: raw", f"raw: {raw_text.url}")
    config.write_text(f"{text}executor: {{kind: dask, address: '{cluster.address}'}}\n")
    return Project.open(config)


def left_by_workers(cluster: Cluster) -> list[Path]:
    """Files in the workers' own folders, but for the tokenizer, which stays as long as a worker."""
    found = (path for path in cluster.folder.glob("machine-*/*/**/*") if path.is_file() and "/cache/" not in str(path))
    ours = (path for path in found if "/nanoset/" in str(path.relative_to(cluster.folder)))
    return [path for path in ours if path.name != "tokenizer.json"]


def test_a_whole_build_has_the_bytes_of_a_local_one(project, cluster, place, built_here):
    build_all(project.config.file)
    assert objects(place) == outputs_of(built_here)
    assert left_by_workers(cluster) == []


def test_this_process_moves_no_tokens(project):
    for corpus in ("web", "code"):
        raw.make_inventory(project, corpus)
        tokenization.tokenize(project, corpus)
    assert not [*project.config.file.parent.rglob("*.bin"), *project.config.file.parent.rglob("documents.parquet")]
