"""What every store keeps to: each kind runs these tests against itself, by a subclass with a
fixture `store`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from nanoset_core.errors import ConfigError, MissingError, SourceChangedError, StorageError
from nanoset_core.storage import reading
from nanoset_core.storage.store import PieceDigest, Store, Stored

MIB = 1 << 20
NAMES = (
    "a",
    "folder/sub folder/a b.txt",
    "folder.and.more",
    "folder/+&=#?%41.txt",
    "quote'\"`.txt",
    "ünïcode/漢字.txt",
    "~tilde/-dash/_.json",
)
HOSTILE = (
    "",
    ".",
    "..",
    "/a",
    "a/",
    "a//b",
    "../a",
    "a/../../b",
    "./a",
    "a\0b",
    "x" * 300,
    "a/" + "y" * 5000,
)


class StoreContract:
    """A subclass gives the fixture `store`: an empty one; files above `part_bytes` go there in
    parts.
    """

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    @pytest.fixture(params=["put", "put_parts", "put_file"])
    def write(
        self, request: pytest.FixtureRequest, store: Store, tmp_path: Path
    ) -> Callable[..., None]:
        """One of the ways to write an object."""

        def put_parts(name: str, data: bytes) -> None:
            store.put_parts(name, (data[at : at + 1000] for at in range(0, len(data), 1000)))

        def put_file(name: str, data: bytes) -> None:
            path = tmp_path / f"file-{len(data)}-{threading.get_ident()}"
            path.write_bytes(data)
            store.put_file(name, path, sha256=hashlib.sha256(data).hexdigest())

        return {"put": store.put, "put_parts": put_parts, "put_file": put_file}[request.param]

    def test_what_is_written_is_there_whole(self, store, write, tmp_path):
        for number, name in enumerate(NAMES):
            data = name.encode() * number
            write(name, data)
            assert store.read(name) == data
            found = store.stat(name)
            assert (found.name, found.size) == (name, len(data))
            assert store.read_stored(name) == (data, found)
            assert store.sha256(name) == hashlib.sha256(data).hexdigest()
            assert store.fetch(name, tmp_path / "copies" / str(number), sha256=store.sha256(name))
            assert (tmp_path / "copies" / str(number)).read_bytes() == data
        write(NAMES[0], b"other")
        assert store.read(NAMES[0]) == b"other"

    def test_what_is_not_there(self, store, tmp_path):
        assert store.stat("nothing") is None
        assert store.read("nothing") is None
        assert store.sha256("nothing") is None
        assert not store.fetch("nothing", tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        assert list(store.list("nothing")) == []
        assert tuple(map(list, store.level("nothing"))) == ([], [])
        with pytest.raises(MissingError):
            store.read_range("nothing", 0, 1)
        store.delete("nothing")

    def test_objects_without_bytes(self, store, write):
        write("empty", b"")
        assert store.read("empty") == b""
        assert store.read_range("empty", 0, 0) == b""
        assert store.open_range("empty", 0, 1) == (b"", store.stat("empty"))
        assert [(found.name, found.size) for found in store.list()] == [("empty", 0)]

    def test_listed_in_the_order_of_bytes_and_by_folders(self, store):
        for name in reversed(NAMES):
            store.put(name, name.encode())
        listed = list(store.list())
        assert [found.name for found in listed] == sorted(NAMES, key=str.encode)
        assert listed == [store.stat(name) for name in sorted(NAMES, key=str.encode)]
        assert [found.name for found in store.list("folder")] == [
            "folder/+&=#?%41.txt",
            "folder/sub folder/a b.txt",
        ]
        folders, files = store.level("folder")
        assert (list(folders), list(files)) == (["sub folder"], ["+&=#?%41.txt"])
        assert {"folder", "ünïcode", "~tilde"} == set(store.level()[0])

    def test_a_listing_is_of_this_moment(self, store):
        for number in range(12):
            store.put(f"n/{number}", b"x")
            assert len(list(store.list("n"))) == number + 1
            if number % 3 == 0:
                store.delete(f"n/{number}")
                assert store.stat(f"n/{number}") is None
                store.put(f"n/{number}", b"y")

    def test_ranges(self, store):
        data = os.urandom(100_000)
        store.put("data", data)
        mark = store.stat("data").mark
        for begin, end in ((0, 1), (0, 100_000), (7, 7), (99_999, 100_000), (12_345, 54_321)):
            assert store.read_range("data", begin, end) == data[begin:end]
            assert store.read_range("data", begin, end, mark) == data[begin:end]
        for begin, end in ((0, 100_001), (99_999, 100_001), (100_000, 100_001), (200_000, 200_001)):
            with pytest.raises(SourceChangedError):
                store.read_range("data", begin, end, mark)
        for begin, end in (
            (0, 1),
            (99_999, 100_000),
            (17, 50_000),
            (0, 100_001),
            (99_999, 100_007),
        ):
            assert store.open_range("data", begin, end) == (data[begin:end], store.stat("data"))
        for begin, end in ((100_000, 100_001), (200_000, 200_001)):
            assert store.open_range("data", begin, end) == (b"", store.stat("data"))
        assert store.open_range("nothing", 0, 1) is None

    def test_a_mark_is_of_one_version(self, store):
        store.put("data", b"before")
        before = store.stat("data")
        store.put("data", b"after!")
        after = store.stat("data")
        assert before.mark != after.mark
        assert store.read_range("data", 0, 6, after.mark) == b"after!"
        with pytest.raises(SourceChangedError, match="listed"):
            store.read_range("data", 0, 6, before.mark)
        store.delete("data")
        with pytest.raises(MissingError):
            store.read_range("data", 0, 6, after.mark)

    def test_read_like_a_file(self, store, monkeypatch):
        monkeypatch.setattr(reading, "FIRST_BYTES", 16 << 10)
        monkeypatch.setattr(reading, "MOST_BYTES", 64 << 10)
        data, chosen = os.urandom(MIB + 17), random.Random(0)
        store.put("data", data)
        with reading.open_object(store, "data") as file:
            assert file.read() == data
            assert file.read(1) == b""
        with reading.open_object(store, "data") as file, io.BytesIO(data) as real:
            for _ in range(60):
                whence = chosen.choice([io.SEEK_SET, io.SEEK_CUR, io.SEEK_CUR, io.SEEK_END])
                offset = chosen.choice([0, 0, chosen.randrange(-100_000, 100_000)])
                if whence == io.SEEK_SET or offset >= 0 or real.tell() + offset >= 0:
                    offset = abs(offset) if whence == io.SEEK_SET else offset
                    assert file.seek(offset, whence) == real.seek(offset, whence)
                count = chosen.choice([0, 1, 1000, 100_000, 500_000])
                assert file.read(count) == real.read(count)
                assert file.tell() == real.tell()
        for end in (None, 10):
            with pytest.raises(FileNotFoundError):
                reading.open_object(store, "nothing", end=end)

    def test_no_more_of_a_file_is_brought_than_is_to_be_read(self, store, monkeypatch):
        monkeypatch.setattr(reading, "FIRST_BYTES", 16 << 10)
        monkeypatch.setattr(reading, "MOST_BYTES", 64 << 10)
        data, asked = os.urandom(MIB), []
        store.put("data", data)
        read_range = type(store).read_range
        monkeypatch.setattr(
            type(store), "read_range", lambda *about: asked.append(about[2:4]) or read_range(*about)
        )
        begin, end = 100_000, 500_001
        for first in (0, begin):  # it says where it will begin, or does not
            asked.clear()
            with reading.open_object(store, "data", begin=first, end=end) as file:
                file.seek(begin)
                assert file.read(end - begin) == data[begin:end]
                assert max(last for _, last in asked) == end
                assert file.read(1000) == data[end : end + 1000]
                assert file.read() == data[end + 1000 :]

    def test_a_file_that_is_replaced_while_it_is_read_is_refused(self, store):
        store.put("data", bytes(5 * MIB))
        with reading.open_object(store, "data") as file:
            file.read(1000)
            store.put("data", b"x" * 5 * MIB)
            with pytest.raises(SourceChangedError, match="listed"):
                file.read()

    def test_names_stay_inside(self, store, write):
        for name in HOSTILE:
            for call in (
                lambda name=name: write(name, b"x"),
                lambda name=name: store.read(name),
                lambda name=name: store.stat(name),
                lambda name=name: store.read_range(name, 0, 1),
                lambda name=name: store.delete(name),
                lambda name=name: store.compose(name, []),
            ):
                with pytest.raises(ConfigError):
                    call()
        assert list(store.list()) == []

    def test_of_racing_writers_of_all_kinds_the_bytes_of_one_stay(self, store, write):
        whole = [bytes([who]) * (3 * MIB + who) for who in range(1, 5)]
        threads = [threading.Thread(target=write, args=("one", data)) for data in whole]
        for thread in threads:
            thread.start()
        seen = {hashlib.sha256(data).hexdigest() for data in whole} | {None}
        while any(thread.is_alive() for thread in threads):
            found = store.read("one")
            assert found is None or hashlib.sha256(found).hexdigest() in seen
        for thread in threads:
            thread.join()
        assert store.read("one") in whole

    def test_parts_appear_together_or_not_at_all(self, store):
        data = os.urandom(12 * MIB + 17)

        def blocks(until: int) -> Iterator[bytes]:
            for at in range(0, until, MIB):
                assert store.stat("big") is None
                assert list(store.list()) == []
                yield data[at : at + MIB]
            if until < len(data):
                raise RuntimeError("in the middle")

        for until in (0, 3 * MIB, 11 * MIB):
            with pytest.raises(RuntimeError, match="in the middle"):
                store.put_parts("big", blocks(until))
            assert list(store.list()) == []
        self.nothing_unfinished(store)
        store.put_parts("big", blocks(len(data)))
        assert store.read_range("big", 0, len(data)) == data
        assert store.stat("big").size == len(data)

    def nothing_unfinished(self, store: Store) -> None:
        """Nothing was left of what was not finished."""

    def test_a_file_with_other_bytes_than_it_should_have_is_not_sent(self, store, tmp_path):
        (tmp_path / "file").write_bytes(b"dead")
        with pytest.raises(StorageError, match="other bytes"):
            store.put_file("file", tmp_path / "file", sha256=hashlib.sha256(b"good").hexdigest())
        assert list(store.list()) == []

    def test_what_is_fetched_is_checked(self, store, tmp_path):
        store.put("file", b"dead")
        with pytest.raises(StorageError, match="other bytes"):
            store.fetch("file", tmp_path / "copy", sha256=hashlib.sha256(b"good").hexdigest())
        assert not (tmp_path / "copy").exists()

    def test_what_is_fetched_is_checked_piece_by_piece(self, store, tmp_path):
        data = os.urandom(100_000)
        store.put("file", data)
        bounds = [0, 1, 40_000, 40_001, 100_000]
        pieces = [
            PieceDigest(hashlib.sha256(data[begin:end]).hexdigest(), end - begin)
            for begin, end in pairwise(bounds)
        ]
        assert store.fetch("file", tmp_path / "copy", pieces=pieces)
        assert (tmp_path / "copy").read_bytes() == data
        (tmp_path / "copy").unlink()
        for others in (
            pieces[:-1],
            [*pieces, pieces[0]],
            [pieces[1], *pieces[1:]],
            pieces[::-1],
            [],
        ):
            with pytest.raises(StorageError, match="other bytes"):
                store.fetch("file", tmp_path / "copy", pieces=others)
            assert not (tmp_path / "copy").exists()

    @pytest.mark.parametrize(
        "sizes",
        [
            [],
            [0],
            [3],
            [0, 1, 0, 2, 0],
            [100_000] * 30,
            [6 * MIB, 5 * MIB + 1],
            [1, 6 * MIB, 2, 3, 11 * MIB, 4, 5 * MIB, MIB],
            [4 * MIB, 4 * MIB, 4 * MIB],
        ],
        ids=str,
    )
    def test_objects_behind_one_another(self, store, sizes):
        data = [os.urandom(size) for size in sizes]
        for number, part in enumerate(data):
            store.put(f"parts/{number:03d}", part)
        sources = list(store.list("parts"))
        heard: list[int] = []
        digest = store.compose(
            "whole",
            sources,
            sha256=[hashlib.sha256(part).hexdigest() for part in data],
            joined=heard.append,
        )
        assert sum(heard) == sum(map(len, data))
        assert digest in (None, store.sha256("whole"))
        assert store.sha256("whole") == hashlib.sha256(b"".join(data)).hexdigest()
        assert store.stat("whole").size == sum(sizes)
        self.nothing_unfinished(store)

    def test_only_what_was_meant_is_put_behind_one_another(self, store):
        for name in ("a", "b"):
            store.put(name, name.encode() * 6 * MIB)
        sources = list(store.list())
        gone = dataclasses.replace(sources[1], name="gone")
        with pytest.raises(MissingError):
            store.compose("whole", [sources[0], gone])
        store.put("b", b"c" * 6 * MIB)
        with pytest.raises(SourceChangedError):
            store.compose("whole", sources)
        assert [found.name for found in store.list()] == ["a", "b"]
        self.nothing_unfinished(store)

    def test_sources_that_end_early_are_refused(self, store):
        store.put("a", b"a" * 1000)
        found = store.stat("a")
        with pytest.raises(SourceChangedError):
            store.compose("whole", [dataclasses.replace(found, size=found.size + 1)])
        store.compose("less", [dataclasses.replace(found, size=found.size - 1)])
        assert store.stat("less").size == found.size - 1
        assert store.stat("whole") is None

    def test_pickled(self, store):
        store.put("a", b"x")
        again = pickle.loads(pickle.dumps(store))
        assert again == store
        assert again.read("a") == b"x"
        assert again.url("a") == store.url("a")
        assert "a" in store.url("a")

    def test_its_clock_dates_what_is_written(self, store):
        store.put("a", b"x")
        found = store.stat("a")
        assert isinstance(found, Stored)
        assert abs(store.now() - found.written_ns) < 30 * 10**9
        time.sleep(1.1)  # times in buckets are whole seconds
        store.put("a", b"x")
        assert store.stat("a").written_ns > found.written_ns
