"""Fixtures of tests with buckets: a server, buckets, and projects with outputs in a bucket.

All tests share the server and one built project, and each test gets a new bucket. With
S3_SERVER=ceph or S3_SERVER=swift, the tests run against another server than moto: see
`helpers.chosen_server`. Emulators of other clouds take part if they are installed.
"""

from __future__ import annotations

import functools
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers import azure_server, google_server, s3_server, swift_server
from helpers.buckets import root_in
from helpers.building import build_all
from helpers.ceph_server import ceph_server
from helpers.chosen_server import CREDENTIALS, chosen_server
from helpers.dagster_history import quick_history  # noqa: F401 - for all tests of this folder
from helpers.large_texts import small_pieces_of_files, write_unread_project
from helpers.sample_project import WITH_PBIN, write_project
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.azure import AzureStore
from nanoset_core.storage.stores.cloud_filesystem import CloudFilesystemStore
from nanoset_core.storage.stores.google import GoogleStore
from nanoset_core.storage.stores.memory import MemoryStore
from nanoset_core.storage.stores.s3 import reading as s3_reading
from nanoset_core.storage.stores.s3 import store as s3
from nanoset_core.storage.stores.s3.store import S3Store


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the S3 server of all tests of this folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with chosen_server(tmp_path_factory.mktemp("server")) as address:
            yield address


@pytest.fixture(scope="session")
def _ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ceph gateway."""
    with ceph_server(tmp_path_factory.mktemp("ceph")) as address:
        yield address


@pytest.fixture
def ceph_place(_ceph: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """A new bucket on a Ceph gateway if it is installed, whichever server other tests use."""
    for name, value in s3_server.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return s3_server.new_bucket(_ceph, "some/prefix")


@pytest.fixture(scope="session")
def _swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Swift server that speaks S3."""
    with swift_server.swift_server(tmp_path_factory.mktemp("swift")) as address:
        yield address


@pytest.fixture
def swift_place(_swift: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """A new bucket on a Swift server if it is installed, whichever server other tests use."""
    for name, value in (s3_server.CREDENTIALS | swift_server.CREDENTIALS).items():
        monkeypatch.setenv(name, value)
    return s3_server.new_bucket(_swift, "some/prefix")


@pytest.fixture
def memory_place() -> MemoryStore:
    """A place in the memory of this process."""
    return MemoryStore(f"memory://{uuid.uuid4().hex}/some/prefix")


@pytest.fixture(scope="session")
def google_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator of Google Storage, if one is installed."""
    with google_server.google_server(tmp_path_factory.mktemp("google")) as address:
        yield address


@pytest.fixture
def google_place(google_address: str, monkeypatch: pytest.MonkeyPatch) -> GoogleStore:
    """A new bucket on an emulator of Google Storage."""
    for name, value in google_server.environment(google_address).items():
        monkeypatch.setenv(name, value)
    return google_server.new_google_bucket(google_address, "some/prefix")


@pytest.fixture(scope="session")
def azure_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator of Azure, if one is installed."""
    with azure_server.azure_server(tmp_path_factory.mktemp("azure")) as address:
        yield address


@pytest.fixture
def azure_place(azure_address: str, monkeypatch: pytest.MonkeyPatch) -> AzureStore:
    """A new container on an emulator of Azure."""
    for name, value in azure_server.environment(azure_address).items():
        monkeypatch.setenv(name, value)
    return azure_server.new_container(azure_address, "some/prefix")


@pytest.fixture(params=["s3", "google", "azure"])
def any_bucket(request: pytest.FixtureRequest) -> Store:
    """A place in a new bucket of each cloud."""
    fixture_name = "place" if request.param == "s3" else f"{request.param}_place"
    store: Store = request.getfixturevalue(fixture_name)
    return store


@pytest.fixture(params=["memory", "google", "azure"])
def cloud(request: pytest.FixtureRequest) -> CloudFilesystemStore:
    """A place in each cloud other than S3, and in memory."""
    place: CloudFilesystemStore = request.getfixturevalue(f"{request.param}_place")
    return place


@pytest.fixture
def place(endpoint: str) -> Iterator[S3Store]:
    """A place below a prefix in a new bucket."""
    yield s3_server.new_bucket(endpoint, "some/prefix")
    s3_server.forget_all(endpoint)


@pytest.fixture
def new_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create clients again, with the environment variables of one test."""
    monkeypatch.setattr(s3, "new_client", functools.cache(s3.new_client.__wrapped__))
    monkeypatch.setattr(s3_reading, "_client", functools.cache(s3_reading._client.__wrapped__))


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Name, start and stop of every range of an object that is read."""
    return _record_ranges(monkeypatch, is_mark_required=False)


@pytest.fixture
def unchanged_ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Name, start and stop of every range of an object that is read.

    Each request must contain the mark (ETag) with which the object was listed, so that it fails if
    the object was replaced.
    """
    return _record_ranges(monkeypatch, is_mark_required=True)


def _record_ranges(
    monkeypatch: pytest.MonkeyPatch, *, is_mark_required: bool
) -> list[tuple[str, int, int]]:
    """Let the store record each range that is read, and return the list of these ranges."""
    ranges_read: list[tuple[str, int, int]] = []
    original_read_range = S3Store.read_range

    def read_range(store, name, start, stop, mark=None):
        ranges_read.append((name, start, stop))
        if is_mark_required:
            assert mark is not None, "another version of the object might answer"
        return original_read_range(store, name, start, stop, mark)

    monkeypatch.setattr(S3Store, "read_range", read_range)
    return ranges_read


@pytest.fixture
def remote_project(make_project: Callable[..., Path], place: S3Store) -> Callable[..., Path]:
    """A function that writes a project with the bucket as its root; returns its nanoset.yaml."""

    def write(name: str = "project") -> Path:
        return make_project(name, root_in(place) | WITH_PBIN)

    return write


@pytest.fixture
def project_in_any_bucket(
    make_project: Callable[..., Path], any_bucket: Store
) -> Callable[..., Path]:
    """A function that writes a project whose root is a bucket of each cloud, as `remote_project`."""

    def write(name: str = "project") -> Path:
        return make_project(name, root_in(any_bucket) | WITH_PBIN)

    return write


@pytest.fixture(scope="session")
def local_build(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a project that is built in a local folder; tests must not write to it."""
    folder = tmp_path_factory.mktemp("local") / "project"
    config = write_project(folder, tokenizer_file, WITH_PBIN)
    build_all(config)
    return config


class OtherMachine(NamedTuple):
    """Another machine, which has built the same project with its outputs in a bucket."""

    objects: dict[str, s3_server.StoredObject]
    """The objects that it sent to the bucket."""
    copies: Path
    """The folder of its working copies; tests must not write to it."""


@pytest.fixture(scope="session")
def other_machine(
    endpoint: str, tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path
) -> OtherMachine:
    """Another machine, which has built the project with its outputs in a bucket."""
    place = s3_server.new_bucket(endpoint, "of/another")
    folder = tmp_path_factory.mktemp("other_machine") / "project"
    config = write_project(folder, tokenizer_file, root_in(place) | WITH_PBIN)
    project = build_all(config)
    return OtherMachine(s3_server.snapshot(place), project.outputs.folder)


@pytest.fixture(scope="session")
def built_objects(other_machine: OtherMachine) -> dict[str, s3_server.StoredObject]:
    """The objects that another machine sent to a bucket when it built the project."""
    return other_machine.objects


@pytest.fixture
def filled(place: S3Store, built_objects: dict[str, s3_server.StoredObject]) -> S3Store:
    """The bucket with all outputs of the project; this machine has no working copies of them."""
    s3_server.restore(place, built_objects)
    return place


@pytest.fixture
def local_copy(local_build: Path, tmp_path: Path) -> Path:
    """The nanoset.yaml of a copy of the project that is built in a local folder."""
    shutil.copytree(local_build.parent, tmp_path / "local", symlinks=True)
    return tmp_path / "local" / local_build.name


@pytest.fixture
def small_pieces() -> Iterator[None]:
    """Files are cut into pieces of some kilobytes."""
    with small_pieces_of_files():
        yield


@pytest.fixture
def unread(tmp_path: Path, tokenizer_file: Path, place: S3Store, small_pieces: None) -> Path:
    """The nanoset.yaml of a project with its large text in a bucket, and without outputs."""
    return write_unread_project(tmp_path / "unread", tokenizer_file, place)
