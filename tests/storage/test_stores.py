"""The contract of stores, kept by a local folder, a small S3 server in this process, and Ceph and Swift if there."""

from __future__ import annotations

import random

import pytest
import s3_server
from ceph_server import ceph_server
from storage.contract import StoreContract
from swift_server import CREDENTIALS as SWIFT_CREDENTIALS
from swift_server import swift_server

from nanoset_core.errors import StorageError
from nanoset_core.storage.compose import LEAST_BYTES, MOST_BYTES, MOST_PARTS, plan_parts
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.s3_requests import client
from nanoset_core.storage.scratch import UNFINISHED


class TestLocal(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "objects")

    def nothing_unfinished(self, store):
        assert not [path for path in store.folder.rglob("*") if path.name.startswith(UNFINISHED)]

    def test_what_is_unfinished_is_not_listed(self, store):
        store.put("folder/a", b"x")
        (store.folder / "folder" / f"{UNFINISHED}b").write_bytes(b"y")
        (store.folder / f"{UNFINISHED}folder").mkdir()
        (store.folder / f"{UNFINISHED}folder" / "c").write_bytes(b"z")
        assert [found.name for found in store.list()] == ["folder/a"]
        assert store.level() == (["folder"], [])


class S3Contract(StoreContract):
    def nothing_unfinished(self, store):
        assert "Uploads" not in client(store.place).list_multipart_uploads(Bucket=store.place.bucket)

    def test_the_place_is_below_its_prefix(self, store):
        store.put("a", b"x")
        (entry,) = client(store.place).list_objects_v2(Bucket=store.place.bucket)["Contents"]
        assert entry["Key"] == "some/prefix/a"


class TestMoto(S3Contract):
    @pytest.fixture
    def store(self, place):
        return S3Store(place, part_bytes=LEAST_BYTES)


@pytest.fixture(scope="session")
def ceph(tmp_path_factory, endpoint):
    with ceph_server(tmp_path_factory.mktemp("ceph")) as address:
        yield address


class TestCeph(S3Contract):
    @pytest.fixture
    def store(self, ceph, monkeypatch):
        for name, value in s3_server.CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        return S3Store(s3_server.new_bucket(ceph, "some/prefix"), part_bytes=LEAST_BYTES)


@pytest.fixture(scope="session")
def swift(tmp_path_factory, endpoint):
    with swift_server(tmp_path_factory.mktemp("swift")) as address:
        yield address


class TestSwift(S3Contract):
    writes_once = False

    @pytest.fixture
    def store(self, swift, monkeypatch):
        for name, value in SWIFT_CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        return S3Store(s3_server.new_bucket(swift, "some/prefix"), part_bytes=LEAST_BYTES)


def test_parts_of_any_sizes():
    chosen = random.Random(0)
    for _ in range(300):
        sizes = [chosen.choice([0, 1, chosen.randrange(20), chosen.randrange(100)]) for _ in range(chosen.randrange(9))]
        parts = plan_parts(sizes, least=10, most=35)
        assert [(piece.source, at) for part in parts for piece in part for at in range(piece.begin, piece.end)] == [
            (source, at) for source, size in enumerate(sizes) for at in range(size)
        ]
        totals = [sum(piece.size for piece in part) for part in parts]
        assert all(10 <= total <= 35 for total in totals[:-1])
        assert all(total <= 35 for total in totals)
        assert all(piece.size < 20 for part in parts if len(part) > 1 for piece in part)


def test_more_parts_than_an_object_may_have():
    assert len(plan_parts([LEAST_BYTES] * MOST_PARTS)) == MOST_PARTS
    assert len(plan_parts([MOST_BYTES + 1])) == 2
    sizes = [LEAST_BYTES + at % 3 for at in range(2 * MOST_PARTS)]
    joined = plan_parts(sizes)
    assert len(joined) <= MOST_PARTS
    assert sum(piece.size for part in joined for piece in part) == sum(sizes)
    with pytest.raises(StorageError, match="too many parts"):
        plan_parts([MOST_BYTES] * (MOST_PARTS + 1))
