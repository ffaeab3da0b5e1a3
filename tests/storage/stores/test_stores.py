"""The contract of stores, for a local folder, moto, and Ceph and Swift if they are installed.

Further tests specify what only stores in buckets do, and how objects are joined in a bucket.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from storage.stores.contract import StoreContract, names_of, sha256_of_each

from nanoset_core.errors import SourceChangedError
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.store import Stored
from nanoset_core.storage.stores.local import LocalStore
from nanoset_core.storage.stores.s3 import joining as s3_joining
from nanoset_core.storage.stores.s3.joining import (
    COPIED_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    JoinedRange,
    most_bytes,
    plan_parts,
    runs_of,
)
from nanoset_core.storage.stores.s3.parts import MAX_PARTS, bytes_part
from nanoset_core.storage.stores.s3.store import S3Store, Upload

MIB = 1 << 20


class TestLocal(StoreContract):
    """A local folder."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        """A folder that does not exist yet."""
        return LocalStore(tmp_path / "objects")

    def assert_nothing_unfinished(self, store):
        """Fail if there are files under a temporary name."""
        unfinished = list(store.folder.rglob(f"{UNFINISHED}*"))
        assert not unfinished

    def test_unfinished_files_and_folders_are_not_listed(self, store):
        store.put("folder/a", b"x")
        (store.folder / "folder" / f"{UNFINISHED}b").write_bytes(b"y")
        (store.folder / f"{UNFINISHED}folder").mkdir()
        (store.folder / f"{UNFINISHED}folder" / "c").write_bytes(b"z")

        assert names_of(store.list()) == ["folder/a"]
        assert store.level() == (["folder"], [])


class S3Contract(StoreContract):
    """The tests of stores in buckets, in addition to those of all stores."""

    def assert_nothing_unfinished(self, store):
        """Fail if there are uploads in parts that were not completed or aborted."""
        answer = store.client().list_multipart_uploads(Bucket=store.bucket)
        assert "Uploads" not in answer

    def test_keys_begin_with_the_prefix_of_the_store(self, store):
        store.put("a", b"x")

        [entry] = store.client().list_objects_v2(Bucket=store.bucket)["Contents"]
        assert entry["Key"] == "some/prefix/a"

    def test_objects_are_joined_in_two_steps_if_they_need_too_many_parts(self, store, monkeypatch):
        monkeypatch.setattr(s3_joining, "MAX_PARTS", 3)
        objects = [os.urandom(LEAST_BYTES + number) for number in range(5)]
        objects.insert(2, b"small")
        for number, data in enumerate(objects):
            store.put(f"parts/{number}", data)
        sources = list(store.list("parts"))

        digest = store.compose("folder/whole", sources, sha256=sha256_of_each(objects))

        assert digest is None, "the bucket copied the bytes"
        assert store.sha256("folder/whole") == hashlib.sha256(b"".join(objects)).hexdigest()
        assert names_of(store.list("folder")) == ["folder/whole"]
        self.assert_nothing_unfinished(store)

    @pytest.fixture
    def copies_lists_of_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server that copies the list of an object's parts instead of its bytes, as Swift does.

        The error is noticed by the size of the copy, or, for the last part, by that of the object.
        """
        real_copy = Upload.copy

        def copy(upload, number, name, mark, begin, end):
            was_sent_in_parts = "-" in mark
            if not was_sent_in_parts:
                return real_copy(upload, number, name, mark, begin, end)
            upload.send(number, bytes_part(b"[]"))
            return {"ETag": '"-"'}

        monkeypatch.setattr(Upload, "copy", copy)

    def put_in_parts(self, store: S3Store, folder: Path, objects: Sequence[bytes]) -> None:
        """Write the objects parts/0, parts/1 …, each of which is uploaded in several parts."""
        for number, data in enumerate(objects):
            (folder / "file").write_bytes(data)
            store.put_file(f"parts/{number}", folder / "file")

    def check_joining(self, store: S3Store, objects: Sequence[bytes]) -> None:
        """Join the objects below parts, and check the result and the progress reported."""
        progress: list[int] = []

        digest = store.compose("joined", list(store.list("parts")), joined=progress.append)

        assert digest is None
        assert sum(progress) == store.stat("joined").size
        assert store.sha256("joined") == hashlib.sha256(b"".join(objects)).hexdigest()
        self.assert_nothing_unfinished(store)

    def test_an_object_is_sent_if_the_server_would_copy_the_list_of_its_parts(
        self, store, copies_lists_of_parts, tmp_path
    ):
        objects = [os.urandom(2 * LEAST_BYTES)]
        self.put_in_parts(store, tmp_path, objects)

        self.check_joining(store, objects)

    def test_objects_are_sent_if_the_server_would_copy_the_lists_of_their_parts(
        self, store, copies_lists_of_parts, tmp_path
    ):
        objects = [os.urandom(2 * LEAST_BYTES + 7 * number) for number in range(3)]
        self.put_in_parts(store, tmp_path, objects)
        uploaded_at_once = b"whole" * (LEAST_BYTES // 4)
        store.put("parts/whole", uploaded_at_once)

        self.check_joining(store, [*objects, uploaded_at_once])

    @pytest.fixture
    def two_sources(self, store: S3Store) -> list[Stored]:
        """The objects a and b of 10 MiB."""
        store.put("a", b"a" * 2 * LEAST_BYTES)
        store.put("b", b"b" * 2 * LEAST_BYTES)
        return list(store.list())

    @pytest.fixture(
        params=[
            pytest.param(True, id="condition is checked"),
            pytest.param(False, id="condition is ignored"),
        ]
    )
    def replaced_before_copied(
        self,
        request: pytest.FixtureRequest,
        store: S3Store,
        two_sources: list[Stored],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Each source is replaced by other bytes just before the bucket copies it.

        Some servers ignore the condition of a copy, which is that the source has the expected mark.
        """
        is_condition_checked = request.param
        real_copy = Upload.copy

        def copy(upload, number, name, mark, begin, end):
            store.put(name, b"z" * 2 * LEAST_BYTES)
            if not is_condition_checked:
                mark = store.stat(name).mark
            return real_copy(upload, number, name, mark, begin, end)

        monkeypatch.setattr(Upload, "copy", copy)

    def test_an_empty_source_that_was_replaced_is_refused(self, store):
        store.put("a", b"a")
        store.put("b", b"")
        sources = list(store.list())
        store.put("b", b"b")

        with pytest.raises(SourceChangedError):
            store.compose("whole", sources, sha256=sha256_of_each([b"a", b""]))

        assert store.stat("whole") is None

    @pytest.mark.usefixtures("replaced_before_copied")
    def test_a_source_that_is_replaced_before_it_is_copied_is_refused(self, store, two_sources):
        with pytest.raises(SourceChangedError):
            store.compose("whole", two_sources)

        assert store.stat("whole") is None
        self.assert_nothing_unfinished(store)

    @pytest.mark.usefixtures("replaced_before_copied")
    def test_a_source_that_was_replaced_is_refused_if_joining_is_tried_again(
        self, store, two_sources
    ):
        with pytest.raises(SourceChangedError):
            store.compose("whole", two_sources)
        replaced_source = two_sources[0]
        current_source = store.stat("b")
        other_sha256 = hashlib.sha256(b"").hexdigest()

        with pytest.raises(SourceChangedError):
            store.compose("whole", [replaced_source, current_source], sha256=[other_sha256] * 2)

        assert store.stat("whole") is None
        self.assert_nothing_unfinished(store)

    def test_a_copy_with_other_bytes_than_the_source_is_refused(self, store, monkeypatch):
        elsewhere = store.below("elsewhere")
        store.put("a", b"a" * LEAST_BYTES)
        elsewhere.put("a", b"b" * LEAST_BYTES)
        source = store.stat("a")
        other_mark = elsewhere.stat("a").mark
        real_copy = Upload.copy

        def copy_other_object(upload, number, name, mark, begin, end):
            return real_copy(upload, number, f"elsewhere/{name}", other_mark, begin, end)

        monkeypatch.setattr(Upload, "copy", copy_other_object)
        with pytest.raises(SourceChangedError, match="listed"):
            store.compose("whole", [source])

        assert store.stat("whole") is None


class TestChosen(S3Contract):
    """A bucket on the server that all tests of this folder use: moto, or what S3_SERVER names."""

    @pytest.fixture
    def store(self, place: S3Store) -> S3Store:
        """A new bucket that is written in parts of 5 MiB."""
        return replace(place, part_bytes=LEAST_BYTES)


class TestCeph(S3Contract):
    """A bucket on a Ceph gateway."""

    @pytest.fixture
    def store(self, ceph_place: S3Store) -> S3Store:
        """A new bucket that is written in parts of 5 MiB."""
        return replace(ceph_place, part_bytes=LEAST_BYTES)


class TestSwift(S3Contract):
    """A bucket on a Swift server."""

    @pytest.fixture
    def store(self, swift_place: S3Store) -> S3Store:
        """A new bucket that is written in parts of 5 MiB."""
        return replace(swift_place, part_bytes=LEAST_BYTES)


# How objects are divided into the parts of an upload


def random_sizes(rng: random.Random, n_sources: int) -> list[int]:
    """Return the sizes of sources, many of which are empty or small."""
    return [rng.choice([0, 1, rng.randrange(20), rng.randrange(100)]) for _ in range(n_sources)]


def size_of(part: Sequence[JoinedRange]) -> int:
    """Return how many bytes a part of an upload has."""
    return sum(joined.end - joined.begin for joined in part)


def test_parts_hold_all_bytes_in_order_and_have_allowed_sizes():
    rng = random.Random(0)
    least = 10
    most = 35
    for _ in range(300):
        sizes = random_sizes(rng, rng.randrange(9))

        parts = plan_parts(sizes, least=least, most=most)

        # The ranges of all parts are the bytes of all sources, in order.
        planned_bytes = []
        for part in parts:
            for joined in part:
                offsets = range(joined.begin, joined.end)
                planned_bytes.extend((joined.source, offset) for offset in offsets)
        expected_bytes = []
        for source, size in enumerate(sizes):
            expected_bytes.extend((source, offset) for offset in range(size))
        assert planned_bytes == expected_bytes

        # Only the last part may be smaller than S3's minimum.
        part_sizes = [size_of(part) for part in parts]
        assert all(size >= least for size in part_sizes[:-1])
        assert all(size <= most for size in part_sizes)

        # A part with ranges of several sources is sent by this process, so they must be small.
        for part in parts:
            if len(part) > 1:
                assert all(joined.end - joined.begin < 2 * least for joined in part)


def test_an_object_may_have_as_many_parts_as_s3_allows():
    assert len(plan_parts([LEAST_BYTES] * MAX_PARTS)) == MAX_PARTS


def test_a_source_above_the_maximum_size_of_a_part_is_divided():
    assert len(plan_parts([MOST_BYTES + 1])) == 2


# Runs of objects that are joined by one upload


def test_objects_are_joined_at_once_if_they_have_as_many_parts_as_s3_allows():
    assert runs_of([LEAST_BYTES] * MAX_PARTS) == [slice(0, MAX_PARTS)]


def test_many_small_objects_are_joined_at_once_since_they_share_parts():
    n_objects = 10 * MAX_PARTS

    assert runs_of([1000] * n_objects) == [slice(0, n_objects)]


def test_runs_hold_all_objects_in_order_and_need_one_upload_each():
    rng = random.Random(0)
    for n_objects in (MAX_PARTS + 1, 25_000):
        sizes = [rng.choice([0, 3, 10, 34, 36, rng.randrange(200)]) for _ in range(n_objects)]

        runs = runs_of(sizes, least=10, most=35)

        objects_in_runs = []
        for run in runs:
            assert run.start < run.stop
            objects_in_runs.extend(range(run.start, run.stop))
            assert len(plan_parts(sizes[run], least=10, most=35)) <= MAX_PARTS
        assert objects_in_runs == list(range(n_objects))


TWO_THIRDS_OF_LARGEST = 2 * MAX_PARTS * COPIED_BYTES // 3
"""Bytes: two thirds of what an upload of parts of the usual size can hold."""


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([TWO_THIRDS_OF_LARGEST], id="one large object"),
        pytest.param([64 * MIB] * 100_000, id="many objects"),
        pytest.param(
            [TWO_THIRDS_OF_LARGEST // 2, TWO_THIRDS_OF_LARGEST // 2, 5],
            id="two large objects and a small one",
        ),
    ],
)
def test_the_results_of_runs_can_be_joined_by_one_upload(sizes):
    most = most_bytes(sizes, COPIED_BYTES)

    runs = runs_of(sizes, most=most)

    run_sizes = [sum(sizes[run]) for run in runs]
    assert len(plan_parts(run_sizes, most=most)) <= MAX_PARTS
