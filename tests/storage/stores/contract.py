"""What every store does: the tests that each kind of store runs against itself.

The tests of a store are a subclass of `StoreContract` with a fixture `store`.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from nanoset_core.errors import ConfigError, MissingError, SourceChangedError, StorageError
from nanoset_core.storage.reading import objects as reading
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
"""Names that a careless request or path would change."""
INVALID_NAMES = (
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
"""Names that lead out of a store, have two spellings, or are too long for a file system."""
SHA256_OF_GOOD = hashlib.sha256(b"good").hexdigest()


def sha256_of_each(objects: Sequence[bytes]) -> list[str]:
    """Return the sha256 of the bytes of each object."""
    return [hashlib.sha256(data).hexdigest() for data in objects]


def names_of(stored: Iterable[Stored]) -> list[str]:
    """Return the names of listed objects, in the order of the list."""
    return [entry.name for entry in stored]


class StoreContract:
    """The tests of a store.

    A subclass has a fixture `store` that returns an empty one. It must write objects of more than
    5 MiB in several parts, if it can.
    """

    @pytest.fixture
    def store(self) -> Store:
        """The store that is tested, without objects."""
        raise NotImplementedError

    @pytest.fixture(params=["put", "put_parts", "put_file"])
    def write(
        self, request: pytest.FixtureRequest, store: Store, tmp_path: Path
    ) -> Callable[[str, bytes], object]:
        """A function that writes an object, in each of the ways that a store has."""

        def put_parts(name: str, data: bytes) -> None:
            blocks = (data[start : start + 1000] for start in range(0, len(data), 1000))
            store.put_parts(name, blocks)

        def put_file(name: str, data: bytes) -> None:
            path = tmp_path / f"file-{len(data)}-{threading.get_ident()}"
            path.write_bytes(data)
            store.put_file(name, path, sha256=hashlib.sha256(data).hexdigest())

        functions = {"put": store.put, "put_parts": put_parts, "put_file": put_file}
        return functions[request.param]

    def assert_nothing_unfinished(self, store: Store) -> None:
        """Fail if there are remains of objects that were not finished."""

    # Whole objects

    @pytest.mark.parametrize("name", NAMES)
    def test_an_object_is_read_as_it_was_written(self, store, write, tmp_path, name):
        data = name.encode() * NAMES.index(name)  # the first one is empty

        write(name, data)

        stored = store.stat(name)
        assert stored.name == name
        assert stored.size == len(data)
        assert store.read(name) == data
        assert store.read_stored(name) == (data, stored)
        assert store.sha256(name) == hashlib.sha256(data).hexdigest()
        copy = tmp_path / "copies" / "copy"
        assert store.fetch(name, copy, sha256=store.sha256(name))
        assert copy.read_bytes() == data

    def test_an_object_that_is_written_again_is_replaced(self, store, write):
        write("a", b"before")

        write("a", b"other")

        assert store.read("a") == b"other"

    def test_a_missing_object_is_none(self, store):
        assert store.stat("nothing") is None
        assert store.read("nothing") is None
        assert store.sha256("nothing") is None
        assert store.open_range("nothing", 0, 1) is None

    def test_a_missing_object_is_not_fetched(self, store, tmp_path):
        assert not store.fetch("nothing", tmp_path / "copy")

        assert not (tmp_path / "copy").exists()

    def test_a_missing_folder_is_empty(self, store):
        folders, files = store.level("nothing")

        assert list(store.list("nothing")) == []
        assert list(folders) == []
        assert list(files) == []

    def test_a_range_of_a_missing_object_is_an_error(self, store):
        with pytest.raises(MissingError):
            store.read_range("nothing", 0, 1)

    def test_a_missing_object_may_be_deleted(self, store):
        store.delete("nothing")

    def test_an_object_may_be_empty(self, store, write):
        write("empty", b"")

        assert store.read("empty") == b""
        assert store.read_range("empty", 0, 0) == b""
        assert store.open_range("empty", 0, 1) == (b"", store.stat("empty"))
        [listed] = store.list()
        assert listed.name == "empty"
        assert listed.size == 0

    def test_a_name_that_leads_out_of_the_store_is_refused(self, store, write):
        for name in INVALID_NAMES:
            with pytest.raises(ConfigError):
                write(name, b"x")
            with pytest.raises(ConfigError):
                store.read(name)
            with pytest.raises(ConfigError):
                store.stat(name)
            with pytest.raises(ConfigError):
                store.read_range(name, 0, 1)
            with pytest.raises(ConfigError):
                store.delete(name)
            with pytest.raises(ConfigError):
                store.compose(name, [])

        assert list(store.list()) == []

    def test_a_pickled_store_is_the_same_store(self, store):
        store.put("a", b"x")

        unpickled = pickle.loads(pickle.dumps(store))

        assert unpickled == store
        assert unpickled.read("a") == b"x"
        assert unpickled.url("a") == store.url("a")
        assert "a" in store.url("a")

    def test_the_clock_of_the_store_dates_what_is_written(self, store):
        store.put("a", b"x")
        before = store.stat("a")
        assert isinstance(before, Stored)
        assert abs(store.now() - before.written_ns) < 30 * 10**9

        time.sleep(1.1)  # times in buckets are whole seconds
        store.put("a", b"x")

        assert store.stat("a").written_ns > before.written_ns

    # Lists

    def test_objects_are_listed_in_the_order_of_the_bytes_of_their_names(self, store):
        for name in reversed(NAMES):
            store.put(name, name.encode())

        listed = list(store.list())

        sorted_names = sorted(NAMES, key=str.encode)
        assert names_of(listed) == sorted_names
        assert listed == [store.stat(name) for name in sorted_names]

    def test_a_list_of_a_folder_includes_its_subfolders_only(self, store):
        for name in NAMES:
            store.put(name, name.encode())

        assert names_of(store.list("folder")) == [
            "folder/+&=#?%41.txt",
            "folder/sub folder/a b.txt",
        ]

    def test_one_level_of_a_folder_has_folders_and_files(self, store):
        for name in NAMES:
            store.put(name, name.encode())

        folders, files = store.level("folder")
        top_folders, _ = store.level()

        assert list(folders) == ["sub folder"]
        assert list(files) == ["+&=#?%41.txt"]
        assert set(top_folders) == {"folder", "ünïcode", "~tilde"}

    def test_a_list_has_every_object_that_was_written_before(self, store):
        for number in range(12):
            store.put(f"n/{number}", b"x")

            assert len(list(store.list("n"))) == number + 1

    def test_a_deleted_object_is_missing_until_it_is_written_again(self, store):
        for number in range(4):
            store.put(f"n/{number}", b"x")

            store.delete(f"n/{number}")
            assert store.stat(f"n/{number}") is None
            assert len(list(store.list("n"))) == number

            store.put(f"n/{number}", b"y")
            assert len(list(store.list("n"))) == number + 1

    # Ranges

    @pytest.fixture
    def data(self, store: Store) -> bytes:
        """The 100,000 bytes of an object of the same name."""
        data = os.urandom(100_000)
        store.put("data", data)
        return data

    @pytest.mark.parametrize(
        ("start", "stop"),
        [
            pytest.param(0, 1, id="first byte"),
            pytest.param(0, 100_000, id="all"),
            pytest.param(7, 7, id="nothing"),
            pytest.param(99_999, 100_000, id="last byte"),
            pytest.param(12_345, 54_321, id="in the middle"),
        ],
    )
    def test_a_range_is_read(self, store, data, start, stop):
        mark = store.stat("data").mark

        assert store.read_range("data", start, stop) == data[start:stop]
        assert store.read_range("data", start, stop, mark) == data[start:stop]

    @pytest.mark.parametrize(
        ("start", "stop"),
        [
            pytest.param(0, 100_001, id="all and one more"),
            pytest.param(99_999, 100_001, id="last byte and one more"),
            pytest.param(100_000, 100_001, id="one after the end"),
            pytest.param(200_000, 200_001, id="far after the end"),
        ],
    )
    def test_a_range_beyond_the_end_of_an_object_is_refused(self, store, data, start, stop):
        mark = store.stat("data").mark

        with pytest.raises(SourceChangedError):
            store.read_range("data", start, stop, mark)

    @pytest.mark.parametrize(
        ("start", "stop"),
        [
            pytest.param(0, 1, id="first byte"),
            pytest.param(99_999, 100_000, id="last byte"),
            pytest.param(17, 50_000, id="in the middle"),
            pytest.param(0, 100_001, id="all and one more"),
            pytest.param(99_999, 100_007, id="last byte and more"),
            pytest.param(100_000, 100_001, id="one after the end"),
            pytest.param(200_000, 200_001, id="far after the end"),
        ],
    )
    def test_an_object_is_opened_with_as_much_of_a_range_as_it_has(self, store, data, start, stop):
        assert store.open_range("data", start, stop) == (data[start:stop], store.stat("data"))

    def test_each_version_of_an_object_has_its_own_mark(self, store):
        store.put("data", b"before")
        before = store.stat("data")
        store.put("data", b"after!")
        after = store.stat("data")

        assert before.mark != after.mark
        assert store.read_range("data", 0, 6, after.mark) == b"after!"
        with pytest.raises(SourceChangedError, match="listed"):
            store.read_range("data", 0, 6, before.mark)

    def test_a_range_of_a_version_that_was_deleted_is_missing(self, store):
        store.put("data", b"after!")
        mark = store.stat("data").mark

        store.delete("data")

        with pytest.raises(MissingError):
            store.read_range("data", 0, 6, mark)

    # Objects that are read like files

    @pytest.fixture
    def small_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An opened object is read by ranges of 16 to 64 KiB, so that a small one needs several."""
        monkeypatch.setattr(reading, "FIRST_BYTES", 16 << 10)
        monkeypatch.setattr(reading, "MOST_BYTES", 64 << 10)

    def test_an_object_is_read_like_a_file_to_its_end(self, store, small_reads):
        data = os.urandom(MIB + 17)
        store.put("data", data)

        with reading.open_object(store, "data") as file:
            assert file.read() == data
            assert file.read(1) == b""

    def test_an_opened_object_seeks_and_reads_as_a_file_does(self, store, small_reads):
        data = os.urandom(MIB + 17)
        store.put("data", data)
        rng = random.Random(0)

        with reading.open_object(store, "data") as file, io.BytesIO(data) as real_file:
            for _ in range(60):
                # Seek, except to a position before the beginning.
                whence = rng.choice([io.SEEK_SET, io.SEEK_CUR, io.SEEK_CUR, io.SEEK_END])
                offset = rng.choice([0, 0, rng.randrange(-100_000, 100_000)])
                if whence == io.SEEK_SET:
                    offset = abs(offset)
                if offset >= 0 or real_file.tell() + offset >= 0:
                    assert file.seek(offset, whence) == real_file.seek(offset, whence)

                count = rng.choice([0, 1, 1000, 100_000, 500_000])
                assert file.read(count) == real_file.read(count)
                assert file.tell() == real_file.tell()

    @pytest.mark.parametrize("end", [None, 10])
    def test_a_missing_object_cannot_be_opened(self, store, end):
        with pytest.raises(FileNotFoundError):
            reading.open_object(store, "nothing", end=end)

    @pytest.mark.parametrize(
        "begin",
        [
            pytest.param(0, id="begin was not announced"),
            pytest.param(100_000, id="begin was announced"),
        ],
    )
    def test_an_opened_object_is_not_read_beyond_the_announced_end(
        self, store, small_reads, monkeypatch, begin
    ):
        data = os.urandom(MIB)
        store.put("data", data)
        stops = []
        real_read_range = type(store).read_range

        def read_range(store, name, start, stop, *args):
            stops.append(stop)
            return real_read_range(store, name, start, stop, *args)

        monkeypatch.setattr(type(store), "read_range", read_range)
        start = 100_000
        stop = 500_001
        with reading.open_object(store, "data", begin=begin, end=stop) as file:
            file.seek(start)
            assert file.read(stop - start) == data[start:stop]
            assert max(stops) == stop

            # More can be read all the same.
            assert file.read(1000) == data[stop : stop + 1000]
            assert file.read() == data[stop + 1000 :]

    def test_an_object_that_is_replaced_while_it_is_read_is_refused(self, store):
        store.put("data", bytes(5 * MIB))

        with reading.open_object(store, "data") as file:
            file.read(1000)
            store.put("data", b"x" * 5 * MIB)
            with pytest.raises(SourceChangedError, match="listed"):
                file.read()

    # Objects that appear as a whole

    def test_an_object_that_many_write_at_once_has_the_bytes_of_one_writer(self, store, write):
        versions = [bytes([number]) * (3 * MIB + number) for number in range(1, 5)]
        digests = set(sha256_of_each(versions))
        threads = [threading.Thread(target=write, args=("raced", data)) for data in versions]
        for thread in threads:
            thread.start()

        # A reader sees no object at first, and then always all bytes of one writer.
        while any(thread.is_alive() for thread in threads):
            data = store.read("raced")
            if data is not None:
                assert hashlib.sha256(data).hexdigest() in digests

        for thread in threads:
            thread.join()
        assert store.read("raced") in versions

    def test_an_object_appears_when_all_of_its_parts_are_written(self, store):
        data = os.urandom(12 * MIB + 17)

        def blocks() -> Iterator[bytes]:
            for start in range(0, len(data), MIB):
                assert store.stat("big") is None
                assert list(store.list()) == []
                yield data[start : start + MIB]

        store.put_parts("big", blocks())

        assert store.read_range("big", 0, len(data)) == data
        assert store.stat("big").size == len(data)

    @pytest.mark.parametrize("n_blocks", [0, 3, 11])
    def test_nothing_is_left_of_an_object_whose_parts_fail(self, store, n_blocks):
        def blocks() -> Iterator[bytes]:
            for _ in range(n_blocks):
                assert store.stat("big") is None
                assert list(store.list()) == []
                yield bytes(MIB)
            raise RuntimeError("in the middle")

        with pytest.raises(RuntimeError, match="in the middle"):
            store.put_parts("big", blocks())

        assert list(store.list()) == []
        self.assert_nothing_unfinished(store)

    # Digests that are checked

    def test_a_file_with_another_digest_than_expected_is_not_written(self, store, tmp_path):
        (tmp_path / "file").write_bytes(b"dead")

        with pytest.raises(StorageError, match="other bytes"):
            store.put_file("file", tmp_path / "file", sha256=SHA256_OF_GOOD)

        assert list(store.list()) == []

    def test_an_object_with_another_digest_than_expected_is_not_fetched(self, store, tmp_path):
        store.put("file", b"dead")

        with pytest.raises(StorageError, match="other bytes"):
            store.fetch("file", tmp_path / "copy", sha256=SHA256_OF_GOOD)

        assert not (tmp_path / "copy").exists()

    @pytest.fixture
    def pieces(self, data: bytes) -> list[PieceDigest]:
        """The digests of four pieces of the object `data`, two of which have one byte."""
        pieces = []
        for start, stop in pairwise([0, 1, 40_000, 40_001, 100_000]):
            sha256 = hashlib.sha256(data[start:stop]).hexdigest()
            pieces.append(PieceDigest(sha256, stop - start))
        return pieces

    def test_an_object_is_fetched_if_all_pieces_have_the_expected_digests(
        self, store, tmp_path, data, pieces
    ):
        assert store.fetch("data", tmp_path / "copy", pieces=pieces)

        assert (tmp_path / "copy").read_bytes() == data

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda pieces: pieces[:-1], id="last piece is missing"),
            pytest.param(lambda pieces: [*pieces, pieces[0]], id="one piece too many"),
            pytest.param(lambda pieces: [pieces[1], *pieces[1:]], id="another first piece"),
            pytest.param(lambda pieces: pieces[::-1], id="other order"),
            pytest.param(lambda pieces: [], id="no pieces"),
        ],
    )
    def test_an_object_with_other_pieces_than_expected_is_not_fetched(
        self, store, tmp_path, pieces, change
    ):
        with pytest.raises(StorageError, match="other bytes"):
            store.fetch("data", tmp_path / "copy", pieces=change(pieces))

        assert not (tmp_path / "copy").exists()

    # Objects that are joined

    @pytest.mark.parametrize(
        "sizes",
        [
            pytest.param([], id="no objects"),
            pytest.param([0], id="an empty object"),
            pytest.param([3], id="a small object"),
            pytest.param([0, 1, 0, 2, 0], id="small and empty objects"),
            pytest.param([100_000] * 30, id="many small objects"),
            pytest.param([6 * MIB, 5 * MIB + 1], id="large objects"),
            pytest.param(
                [1, 6 * MIB, 2, 3, 11 * MIB, 4, 5 * MIB, MIB], id="small and large objects"
            ),
            pytest.param([4 * MIB, 4 * MIB, 4 * MIB], id="objects below the least part"),
        ],
    )
    def test_objects_are_joined_in_order(self, store, sizes):
        objects = [os.urandom(size) for size in sizes]
        for number, data in enumerate(objects):
            store.put(f"parts/{number:03d}", data)
        sources = list(store.list("parts"))
        progress: list[int] = []

        digest = store.compose(
            "whole",
            sources,
            sha256=sha256_of_each(objects),
            joined=progress.append,
        )

        joined_sha256 = hashlib.sha256(b"".join(objects)).hexdigest()
        assert store.sha256("whole") == joined_sha256
        assert digest in (None, joined_sha256)  # it is None if the bucket copied the bytes
        assert store.stat("whole").size == sum(sizes)
        assert sum(progress) == sum(sizes)
        self.assert_nothing_unfinished(store)

    @pytest.fixture
    def sources(self, store: Store) -> list[Stored]:
        """The objects a and b of 6 MiB."""
        store.put("a", b"a" * 6 * MIB)
        store.put("b", b"b" * 6 * MIB)
        return list(store.list())

    def test_nothing_is_joined_if_a_source_is_missing(self, store, sources):
        missing = dataclasses.replace(sources[1], name="missing")

        with pytest.raises(MissingError):
            store.compose("whole", [sources[0], missing])

        assert names_of(store.list()) == ["a", "b"]
        self.assert_nothing_unfinished(store)

    def test_nothing_is_joined_if_a_source_was_replaced(self, store, sources):
        store.put("b", b"c" * 6 * MIB)

        with pytest.raises(SourceChangedError):
            store.compose("whole", sources)

        assert names_of(store.list()) == ["a", "b"]
        self.assert_nothing_unfinished(store)

    def test_a_source_that_is_shorter_than_listed_is_refused(self, store):
        store.put("a", b"a" * 1000)
        listed = dataclasses.replace(store.stat("a"), size=1001)

        with pytest.raises(SourceChangedError):
            store.compose("whole", [listed])

        assert store.stat("whole") is None

    def test_a_source_may_be_the_beginning_of_an_object(self, store):
        store.put("a", b"a" * 1000)
        beginning = dataclasses.replace(store.stat("a"), size=999)

        store.compose("less", [beginning])

        assert store.stat("less").size == 999
