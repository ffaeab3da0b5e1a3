"""Objects read like files, and token files read by blocks."""

from __future__ import annotations

import http.server
import os
import pickle
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from helpers.answering import answering, say
from helpers.s3_server import total_bytes
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.errors import InputError, MissingError, SourceChangedError, StorageError
from nanoset_core.storage import reading
from nanoset_core.storage import s3_requests as requests
from nanoset_core.storage.location import RemoteFolder
from nanoset_core.storage.mapped_files import BlockFile
from nanoset_core.storage.s3 import S3Store
from nanoset_core.text.inventories import take_inventory

LONG_AGO = "Wed, 21 Oct 2015 07:28:00 GMT"
NAMES = ("plain.jsonl", "a folder/ünï 漢.jsonl", "100%+&=#?versions=1.jsonl", "a*b[1].jsonl")


@pytest.fixture
def data(tmp_path, place):
    content = os.urandom((9 << 20) + 5)
    (tmp_path / "file").write_bytes(content)
    for name in NAMES:
        place.put_file(name, tmp_path / "file")
    return content


class NoWorkers:
    """An executor that nothing may be given to."""

    def run(self, work, tasks):
        raise AssertionError(tasks)


def test_objects_known_by_their_etags_are_given_to_no_worker(place, data, monkeypatch):
    monkeypatch.setattr("nanoset_core.text.fingerprints.SPREAD_BYTES", 1)
    known = take_inventory(RemoteFolder(place, by_etag=True), "web", executor=NoWorkers())
    assert known.size == len(data) * len(NAMES)
    with pytest.raises(AssertionError):
        take_inventory(RemoteFolder(place), "web", executor=NoWorkers())


class Here:
    """An executor that notes what it is given."""

    def __init__(self):
        self.tasks = []

    def run(self, work, tasks):
        self.tasks += tasks
        yield from ((number, work(task)) for number, task in enumerate(self.tasks))


def test_a_large_object_is_hashed_piece_by_piece_and_read_once(
    place, tmp_path, monkeypatch, ranges
):
    lines = b"".join(b'{"text": "%05d"}\n' % number for number in range(200_000))
    place.put("web/large.jsonl", lines)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "large.jsonl").write_bytes(lines)
    monkeypatch.setattr("nanoset_core.text.fingerprints.PIECE_BYTES", 300_000)
    monkeypatch.setattr("nanoset_core.text.piece_cuts.WINDOW_BYTES", 4096)
    monkeypatch.setattr("nanoset_core.text.fingerprints.SPREAD_BYTES", 1)
    executor = Here()
    found = take_inventory(RemoteFolder(place) / "web", "web", executor=executor)
    assert found == take_inventory(tmp_path / "web", "web")
    assert len(executor.tasks) == len(found.pieces) == 13
    assert total_bytes(ranges) <= len(lines) + 2 * 13 * 4096


SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate</Message></Error>"
)
INTERNAL = b"<Error><Code>InternalError</Code><Message>We did</Message></Error>"
FAILURES = {
    "throttled": (503, len(SLOW_DOWN), SLOW_DOWN),
    "ill": (500, len(INTERNAL), INTERNAL),
    "cut": (206, 4, b"da"),
}


@pytest.fixture
def failing_store() -> Iterator[tuple[S3Store, list[tuple[int, int, bytes]], list[int]]]:
    """A server of one object, `data`; → (its place, answers to give instead of it, the status of
    all given).
    """
    instead: list[tuple[int, int, bytes]] = []
    given: list[int] = []

    def give(to: http.server.BaseHTTPRequestHandler) -> None:
        status, size, body = 200, 4, b""
        if to.command == "GET":
            status, size, body = instead.pop() if instead else (206, 4, b"data")
            given.append(status)
            to.close_connection = True
        say(to, status, body, Content_Length=str(size), ETag='"e"', Last_Modified=LONG_AGO)

    with answering(give) as address:
        yield S3Store("b", "p", address, "us-east-1"), instead, given


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_what_fails_in_passing_is_asked_ten_times_and_no_more(
    endpoint, failing_store, monkeypatch, failure
):
    monkeypatch.setattr(requests.time, "sleep", lambda seconds: None)
    place, instead, given = failing_store
    instead += [failure] * 9
    with RemoteFolder(place, "k").open() as file:
        assert file.read() == b"data"
    assert len(given) == 10
    instead += [failure] * 200
    with (
        RemoteFolder(place, "k").open() as file,
        pytest.raises(StorageError, match="after 10 attempt"),
    ):
        file.read()
    assert len(given) == 20


def test_blocks_come_once_and_are_the_bytes(place, data, tmp_path, ranges):
    blocks = BlockFile(place, NAMES[0], tmp_path / "mirror", block_bytes=4096)
    assert blocks[5000:5010] == data[5000:5010]
    assert blocks[5010:5020] == data[5010:5020]
    assert ranges == [(NAMES[0], 4096, 8192)]
    begins = np.random.default_rng(0).integers(0, len(data) - 9000, 40)
    blocks.fetch(begins, begins + 9000)
    before = len(ranges)
    for begin in begins.tolist():
        assert blocks[begin : begin + 9000] == data[begin : begin + 9000]
    assert len(ranges) == before
    assert blocks[len(data) - 7 : len(data)] == data[-7:]
    assert not list((tmp_path / "mirror").rglob("*")) or not any(
        path.is_file() for path in tmp_path.rglob("*.jsonl")
    )


def test_blocks_of_an_object_that_is_replaced_are_refused(place, data, tmp_path):
    blocks = BlockFile(place, NAMES[0], tmp_path / "mirror")
    place.put(NAMES[0], b"other")
    with pytest.raises(SourceChangedError):
        blocks[0:10]
    with pytest.raises(FileNotFoundError):
        BlockFile(place, "nothing", tmp_path / "mirror")


def test_folders_are_listed_fresh(place, data):
    folder = RemoteFolder(place)
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(
        {name.split("/")[0] for name in NAMES}
    )
    place.put("later/new.jsonl", b"x")
    assert (folder / "later").is_dir()
    assert [found[:2] for found in (folder / "later").files()] == [("new.jsonl", 1)]
    place.delete("later/new.jsonl")
    assert not (folder / "later").is_dir()


def test_keys_that_no_folder_could_hold_are_refused(place):
    place.client().put_object(
        Bucket=place.bucket, Key=f"{place.prefix}/web/../../out.jsonl", Body=b"x"
    )
    with pytest.raises(InputError, match=r"no path of a file"):
        list(RemoteFolder(place).files())


def test_a_dataset_by_its_url_is_that_of_its_files(new_clients, place, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", place.endpoint_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    written = []
    for number in (300, 200):
        prefix = tmp_path / f"of-{number}"
        builder = MMapIndexedDatasetBuilder(prefix, dtype=np.uint16)
        for length in range(number):
            builder.add_document(np.arange(length, dtype=np.uint16), [length])
        builder.finalize()
        for end in ("bin", "idx"):
            place.put_file(f"text_document.{end}", tmp_path / f"of-{number}.{end}")
        dataset = MMapIndexedDataset(f"{place.url()}/text_document")
        local = MMapIndexedDataset(prefix)
        assert len(dataset) == len(local) == number
        assert all(
            np.array_equal(ours, theirs) for ours, theirs in zip(dataset, local, strict=True)
        )
        assert np.array_equal(dataset.tokens, local.tokens)
        assert len(pickle.loads(pickle.dumps(dataset))) == number
        written.append(dataset)
        time.sleep(1.1)  # times in buckets are whole seconds
    with pytest.raises(MissingError):
        MMapIndexedDataset(f"{place.url()}/nothing")
    assert not list((tmp_path / "cache").rglob("*.bin"))


def test_what_is_read_in_order_is_on_its_way_in_several_ranges_from_the_first_byte_on(
    place, data, monkeypatch
):
    monkeypatch.setattr(reading, "MOST_BYTES", 1 << 20)
    real, asked = S3Store.read_range, []
    all_there = threading.Barrier(reading.AHEAD)

    def read_range(self, name, begin, end, mark=None):
        asked.append((begin, end))
        if begin <= first + (reading.AHEAD << 20):
            all_there.wait(timeout=30)  # a range that waited for another one would break it
        return real(self, name, begin, end, mark)

    monkeypatch.setattr(S3Store, "read_range", read_range)
    first, end = 99, (7 << 20) + 7
    with (RemoteFolder(place) / NAMES[0]).open(begin=first, end=end) as file:
        file.seek(first)
        assert file.read(end - first) == data[first:end]
    # the first range came while it was opened
    behind = range(first + reading.FIRST_BYTES, end, 1 << 20)
    assert sorted(asked) == [(begin, min(begin + (1 << 20), end)) for begin in behind]
