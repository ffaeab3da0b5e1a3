"""The contract of stores, kept by a local folder, a small S3 server in this process, and Ceph and
Swift if there.
"""

from __future__ import annotations

import hashlib
import os
import random
from dataclasses import replace

import pytest
from storage.contract import StoreContract

from nanoset_core.errors import SourceChangedError
from nanoset_core.storage import s3_joining
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.s3 import Upload
from nanoset_core.storage.s3_joining import (
    COPIED_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    most_bytes,
    plan_parts,
    runs_of,
)
from nanoset_core.storage.s3_parts import MAX_PARTS, bytes_part


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
        assert "Uploads" not in store.client().list_multipart_uploads(Bucket=store.bucket)

    def test_the_place_is_below_its_prefix(self, store):
        store.put("a", b"x")
        (entry,) = store.client().list_objects_v2(Bucket=store.bucket)["Contents"]
        assert entry["Key"] == "some/prefix/a"

    def test_joined_in_two_levels(self, store, monkeypatch):
        monkeypatch.setattr(s3_joining, "MAX_PARTS", 3)
        data = [os.urandom(LEAST_BYTES + at) for at in range(5)]
        data.insert(2, b"small")
        for number, part in enumerate(data):
            store.put(f"parts/{number}", part)
        sources = list(store.list("parts"))
        assert (
            store.compose(
                "folder/whole", sources, sha256=[hashlib.sha256(part).hexdigest() for part in data]
            )
            is None
        )
        assert store.sha256("folder/whole") == hashlib.sha256(b"".join(data)).hexdigest()
        assert [found.name for found in store.list("folder")] == ["folder/whole"]
        self.nothing_unfinished(store)

    @pytest.mark.parametrize("count", [1, 3])
    def test_where_a_server_copies_the_list_of_an_objects_parts_the_bytes_are_sent(
        self, store, monkeypatch, tmp_path, count
    ):
        """As Swift does; of a last part nobody says so, but the size."""
        copy, data = Upload.copy, [os.urandom(2 * LEAST_BYTES + 7 * at) for at in range(count)]
        for number, part in enumerate(data):
            (tmp_path / "file").write_bytes(part)
            store.put_file(f"parts/{number}", tmp_path / "file")
        if count > 1:
            data.append(b"whole" * LEAST_BYTES)
            store.put("parts/whole", data[-1])

        def listed(upload, number, name, mark, begin, end):
            if "-" not in mark:
                return copy(upload, number, name, mark, begin, end)
            upload.send(number, bytes_part(b"[]"))
            return {"ETag": '"-"'}

        monkeypatch.setattr(Upload, "copy", listed)
        heard: list[int] = []
        assert store.compose("joined", list(store.list("parts")), joined=heard.append) is None
        assert sum(heard) == store.stat("joined").size
        assert store.sha256("joined") == hashlib.sha256(b"".join(data)).hexdigest()
        self.nothing_unfinished(store)

    @pytest.mark.parametrize("heeded", [True, False])
    def test_an_object_that_is_replaced_before_it_is_copied_is_refused(
        self, store, monkeypatch, heeded
    ):
        """Also by servers that do not heed the condition."""
        copy = Upload.copy

        def replaced(upload, number, name, mark, begin, end):
            store.put(name, b"z" * 2 * LEAST_BYTES)
            return copy(upload, number, name, mark if heeded else store.stat(name).mark, begin, end)

        for name in ("a", "b"):
            store.put(name, name.encode() * 2 * LEAST_BYTES)
        sources = list(store.list())
        monkeypatch.setattr(Upload, "copy", replaced)
        with pytest.raises(SourceChangedError):
            store.compose("whole", sources)
        with pytest.raises(SourceChangedError):
            store.compose(
                "whole", [sources[0], store.stat("b")], sha256=[hashlib.sha256(b"").hexdigest()] * 2
            )
        assert store.stat("whole") is None
        self.nothing_unfinished(store)

    def test_a_copy_with_other_bytes_is_refused(self, store, monkeypatch):
        copy = Upload.copy
        wrong = store.below("elsewhere")
        store.put("a", b"a" * LEAST_BYTES)
        wrong.put("a", b"b" * LEAST_BYTES)
        source = store.stat("a")
        other = wrong.stat("a")

        def copied(upload, number, name, mark, begin, end):
            return copy(upload, number, f"elsewhere/{name}", other.mark, begin, end)

        monkeypatch.setattr(Upload, "copy", copied)
        with pytest.raises(SourceChangedError, match="listed"):
            store.compose("whole", [source])
        assert store.stat("whole") is None


class TestChosen(S3Contract):
    """On the server that all tests of this room use: moto, or what S3_SERVER says."""

    @pytest.fixture
    def store(self, place):
        return replace(place, part_bytes=LEAST_BYTES)


class TestCeph(S3Contract):
    @pytest.fixture
    def store(self, ceph_place):
        return replace(ceph_place, part_bytes=LEAST_BYTES)


class TestSwift(S3Contract):
    @pytest.fixture
    def store(self, swift_place):
        return replace(swift_place, part_bytes=LEAST_BYTES)


def test_parts_of_any_sizes():
    chosen = random.Random(0)
    for _ in range(300):
        sizes = [
            chosen.choice([0, 1, chosen.randrange(20), chosen.randrange(100)])
            for _ in range(chosen.randrange(9))
        ]
        parts = plan_parts(sizes, least=10, most=35)
        assert [
            (piece.source, at)
            for part in parts
            for piece in part
            for at in range(piece.begin, piece.end)
        ] == [(source, at) for source, size in enumerate(sizes) for at in range(size)]
        totals = [sum(piece.end - piece.begin for piece in part) for part in parts]
        assert all(10 <= total <= 35 for total in totals[:-1])
        assert all(total <= 35 for total in totals)
        assert all(
            piece.end - piece.begin < 20 for part in parts if len(part) > 1 for piece in part
        )


def test_as_many_parts_as_an_object_may_have():
    assert len(plan_parts([LEAST_BYTES] * MAX_PARTS)) == MAX_PARTS
    assert len(plan_parts([MOST_BYTES + 1])) == 2


def test_objects_are_joined_in_runs_where_they_are_too_many_parts_at_once():
    assert runs_of([LEAST_BYTES] * MAX_PARTS) == [slice(0, MAX_PARTS)]
    assert runs_of([1000] * 10 * MAX_PARTS) == [slice(0, 10 * MAX_PARTS)], "sent in few parts"
    chosen = random.Random(0)
    for _ in range(8):
        count = chosen.choice([MAX_PARTS + 1, 25_000])
        sizes = [chosen.choice([0, 3, 10, 34, 36, chosen.randrange(200)]) for _ in range(count)]
        runs = runs_of(sizes, least=10, most=35)
        assert [at for run in runs for at in range(run.start, run.stop)] == list(range(count))
        assert all(run.start < run.stop for run in runs)
        for run in runs:
            assert len(plan_parts(sizes[run], least=10, most=35)) <= MAX_PARTS
    large = 2 * MAX_PARTS * COPIED_BYTES // 3
    for sizes in ([large], [64 << 20] * 100_000, [large // 2, large // 2, 5]):
        runs = runs_of(sizes, most=most_bytes(sizes, COPIED_BYTES))
        assert (
            len(plan_parts([sum(sizes[run]) for run in runs], most=most_bytes(sizes, COPIED_BYTES)))
            <= MAX_PARTS
        )
