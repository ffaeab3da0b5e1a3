"""Tars in a bucket are written, completed and checked with few requests, and none is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.buckets import calling_for_requests
from helpers.inspecting import verify_at
from helpers.s3_server import StoredObject, restore
from nanoset_core.project.project import Project
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.storage.stores.s3 import store as s3
from nanoset_core.storage.stores.s3.store import S3Store

NAME = "shuffled"
N_GROUPS = 3


class SentRequest(NamedTuple):
    """A request about a webdataset."""

    operation: str
    """Such as `PutObject`."""
    name: str
    """Name of the object within the folder of the webdataset; empty for a listing of the folder."""


@pytest.fixture
def project(
    remote_project: Callable[[], Path],
    place: S3Store,
    built_objects: dict[str, StoredObject],
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    """A project in a bucket whose tars are planned; they count as large files."""
    monkeypatch.setattr(s3, "SMALL_BYTES", 1024)  # a marker has fewer bytes, a tar more
    objects_before_tars: dict[str, StoredObject] = {}
    for name, stored_object in built_objects.items():
        if not name.startswith("webdatasets/"):
            objects_before_tars[name] = stored_object
    restore(place, objects_before_tars)
    project = Project.open(remote_project())
    shuffling.make_plan(project, NAME)
    return project


def write_all_groups(project: Project) -> None:
    """Write the tars of all groups, but do not finish the webdataset."""
    for group in range(N_GROUPS):
        shuffling.write_group(project, NAME, group)


@contextmanager
def recorded_requests(place: S3Store) -> Iterator[list[SentRequest]]:
    """Yield the requests about webdatasets that are sent in the `with` block."""
    requests: list[SentRequest] = []

    def record(params: dict[str, Any], model: Any, **_: object) -> None:
        key = params.get("Key", params.get("Prefix", ""))
        _, _, path = key.partition(f"/webdatasets/{NAME}/")
        if path:
            _version, _, name = path.partition("/")
            requests.append(SentRequest(model.name, name))

    with calling_for_requests(place, record):
        yield requests


def names_in_bucket(project: Project) -> set[str]:
    """Return the names of all objects in the folder of the webdataset."""
    names: set[str] = set()
    for stored in project.outputs.access.store.list(f"webdatasets/{NAME}"):
        _, _, path = stored.name.partition(f"/{NAME}/")
        _version, _, name = path.partition("/")
        if name:  # empty for current.json, which is not in the folder of a version
            names.add(name)
    return names


def delete_from_bucket(project: Project, name: str) -> None:
    """Delete an object of the folder of the webdataset."""
    store = project.outputs.access.store
    [path] = [stored.name for stored in store.list("webdatasets") if stored.name.endswith(name)]
    store.delete(path)


def test_a_group_of_new_tars_takes_one_listing_and_two_requests_for_each_tar(project, place):
    with recorded_requests(place) as requests:
        written = shuffling.write_group(project, NAME, N_GROUPS - 1)

    expected = [SentRequest("ListObjectsV2", "")]
    for tar in written.new_tars:
        expected.append(SentRequest("PutObject", f"{tar.stem}.tar"))
        expected.append(SentRequest("PutObject", f".shards/{tar.stem}.json"))
    assert sorted(requests) == sorted(expected)


def test_a_tar_that_a_build_sent_before_it_was_killed_is_not_sent_again(project, place):
    written = shuffling.write_group(project, NAME, 0)
    tar = written.tars[0]
    delete_from_bucket(project, f".shards/{tar.stem}.json")

    with recorded_requests(place) as requests:
        rewritten = shuffling.write_group(project, NAME, 0)

    assert rewritten.new_tars == [tar]
    assert SentRequest("HeadObject", f"{tar.stem}.tar") in requests
    assert SentRequest("PutObject", f"{tar.stem}.tar") not in requests
    assert f".shards/{tar.stem}.json" in names_in_bucket(project)


def test_a_webdataset_is_finished_with_one_listing(project, place):
    write_all_groups(project)

    with recorded_requests(place) as requests:
        shuffling.finish(project, NAME)

    listings = [request for request in requests if request.operation == "ListObjectsV2"]
    assert listings == [SentRequest("ListObjectsV2", "")]
    assert not any(name.startswith(".") for name in names_in_bucket(project))


def test_a_tar_that_is_deleted_while_the_webdataset_is_finished_is_sent_again(project, monkeypatch):
    write_all_groups(project)
    names_before = names_in_bucket(project)
    write_lists = shuffling.write_lists

    def delete_tar_and_write_lists(*arguments: Any, **options: Any) -> Any:
        delete_from_bucket(project, "shard-00000001.tar")
        return write_lists(*arguments, **options)

    monkeypatch.setattr(shuffling, "write_lists", delete_tar_and_write_lists)
    shuffling.finish(project, NAME)

    tars_before = {name for name in names_before if name.endswith(".tar")}
    assert tars_before < names_in_bucket(project)


def test_no_marker_is_left_if_a_lost_tar_of_a_complete_webdataset_is_written_again(project):
    write_all_groups(project)
    shuffling.finish(project, NAME)
    names_before = names_in_bucket(project)
    delete_from_bucket(project, "shard-00000000.tar")

    write_all_groups(project)

    assert names_in_bucket(project) == names_before


def test_all_damaged_lists_are_reported_in_the_order_of_their_names(project):
    write_all_groups(project)
    manifest = shuffling.finish(project, NAME)
    store = project.outputs.access.store
    lists = ["exp_data.json", "index.json", "manifest.jsonl"]
    for name in lists:
        path = f"webdatasets/{NAME}/{manifest.digest}/{name}"
        store.put(path, b"x" * manifest.files[name].size)

    report = verify_at(project, f"webdatasets/{NAME}")

    assert [finding.where for finding in report.errors] == [manifest.url(name) for name in lists]
    for finding in report.errors:
        assert finding.what == "a file has other bytes than when it was written"
