"""Objects of a bucket are read like files and folders, and token files by blocks."""

from __future__ import annotations

import http.server
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.answering import answering, send_answer
from helpers.s3_server import total_bytes
from nanoset_core import (
    MMapIndexedDataset,
    MMapIndexedDatasetBuilder,
    NanosetBuilder,
    NanosetConfig,
)
from nanoset_core.errors import (
    ConfigError,
    InputError,
    MissingError,
    SourceChangedError,
    StorageError,
)
from nanoset_core.storage import requests
from nanoset_core.storage.reading import objects as reading
from nanoset_core.storage.reading.mapped_files import BlockFile
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.storage.stores.s3.store import S3Store
from nanoset_core.text.inventory.take import take_inventory

MIB = 1 << 20
NAMES = ("plain.jsonl", "a folder/ünï 漢.jsonl", "100%+&=#?versions=1.jsonl", "a*b[1].jsonl")
"""Names that a careless request would change."""
NAME = NAMES[0]


@pytest.fixture
def data(tmp_path: Path, place: S3Store) -> bytes:
    """The content of the objects `NAMES`, of 9 MiB."""
    content = os.urandom(9 * MIB + 5)
    (tmp_path / "file").write_bytes(content)
    for name in NAMES:
        place.put_file(name, tmp_path / "file")
    return content


# Inventories of objects


class RefusingExecutor:
    """An executor that fails if it is given any work."""

    def run(self, work: Callable[[Any], Any], tasks: list[Any]) -> Iterator[Any]:
        """Fail."""
        raise AssertionError(tasks)


class LocalExecutor:
    """An executor that works in this process, and remembers its tasks."""

    def __init__(self) -> None:
        """Begin without tasks."""
        self.tasks: list[Any] = []

    def run(self, work: Callable[[Any], Any], tasks: list[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task."""
        self.tasks += tasks
        for number, task in enumerate(self.tasks):
            yield number, work(task)


@pytest.fixture
def spread_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be hashed by workers even if they are small."""
    monkeypatch.setattr("nanoset_core.text.inventory.fingerprints.SPREAD_BYTES", 1)


@pytest.mark.usefixtures("spread_work")
def test_objects_that_are_known_by_their_etags_are_not_hashed(place, data):
    folder = RemotePath(place, by_etag=True)

    inventory = take_inventory(folder, "web", executor=RefusingExecutor())

    assert inventory.size == len(data) * len(NAMES)


@pytest.mark.usefixtures("spread_work", "data")
def test_objects_are_hashed_by_workers(place):
    with pytest.raises(AssertionError):
        take_inventory(RemotePath(place), "web", executor=RefusingExecutor())


@pytest.mark.usefixtures("spread_work")
def test_a_large_object_is_hashed_in_pieces_and_read_once(place, tmp_path, monkeypatch, ranges):
    lines = b"".join(b'{"text": "%05d"}\n' % number for number in range(200_000))
    place.put("web/large.jsonl", lines)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "large.jsonl").write_bytes(lines)
    window_bytes = 4096
    monkeypatch.setattr("nanoset_core.text.inventory.fingerprints.PIECE_BYTES", 300_000)
    monkeypatch.setattr("nanoset_core.text.inventory.piece_cuts.WINDOW_BYTES", window_bytes)
    executor = LocalExecutor()

    inventory = take_inventory(RemotePath(place) / "web", "web", executor=executor)

    n_pieces = 13
    assert inventory == take_inventory(tmp_path / "web", "web")
    assert len(inventory.pieces) == n_pieces
    assert len(executor.tasks) == n_pieces
    # Around each cut, a few bytes are read in addition, to find the ends of lines.
    assert total_bytes(ranges) <= len(lines) + 2 * n_pieces * window_bytes


# Failing servers


class Answer(NamedTuple):
    """An answer of a server."""

    status: int
    content_length: int
    """The length that the server announces."""
    body: bytes


def error_answer(status: int, code: str) -> Answer:
    """Return an answer with one of S3's error codes."""
    body = f"<Error><Code>{code}</Code><Message>We did</Message></Error>".encode()
    return Answer(status, len(body), body)


@dataclass
class FailingServer:
    """A server of one object that contains b"data", and that may fail."""

    failures: list[Answer] = field(default_factory=list)
    """Answers that are given instead of the object, one for each request."""
    n_answers: int = 0
    """Number of the requests for the object that were answered."""
    store: S3Store = field(default_factory=lambda: S3Store("b", "p"))
    """The store of the object."""

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        answer = Answer(200, 4, b"")
        if request.command == "GET":
            answer = self.failures.pop() if self.failures else Answer(206, 4, b"data")
            self.n_answers += 1
            request.close_connection = True
        send_answer(
            request,
            answer.status,
            answer.body,
            Content_Length=str(answer.content_length),
            ETag='"e"',
            Last_Modified="Wed, 21 Oct 2015 07:28:00 GMT",
        )


@pytest.fixture
def failing_server(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingServer]:
    """A server that the test lets fail; there are no pauses between attempts.

    The endpoint is not used, but its fixture sets credentials.
    """
    monkeypatch.setattr(requests.time, "sleep", lambda seconds: None)
    server = FailingServer()
    with answering(lambda request: server.answer(request)) as address:
        server.store = S3Store("b", "p", address, "us-east-1")
        yield server


TEMPORARY_FAILURES = [
    pytest.param(error_answer(503, "SlowDown"), id="throttled"),
    pytest.param(error_answer(500, "InternalError"), id="internal error"),
    pytest.param(Answer(206, 4, b"da"), id="cut off"),
]


@pytest.mark.parametrize("failure", TEMPORARY_FAILURES)
def test_an_object_is_read_although_nine_attempts_fail(failing_server, failure):
    failing_server.failures = [failure] * 9

    with RemotePath(failing_server.store, "k").open() as file:
        assert file.read() == b"data"

    assert failing_server.n_answers == 10


@pytest.mark.parametrize("failure", TEMPORARY_FAILURES)
def test_an_object_cannot_be_read_if_ten_attempts_fail(failing_server, failure):
    failing_server.failures = [failure] * 200

    with (
        RemotePath(failing_server.store, "k").open() as file,
        pytest.raises(StorageError, match="after 10 attempt"),
    ):
        file.read()

    assert failing_server.n_answers == 10


# Token files that are read by blocks


def test_a_block_is_requested_once_for_neighbouring_ranges(place, data, tmp_path, ranges):
    blocks = BlockFile(place, NAME, tmp_path / "mirror", block_bytes=4096)

    assert blocks[5000:5010] == data[5000:5010]
    assert blocks[5010:5020] == data[5010:5020]

    assert ranges == [(NAME, 4096, 8192)]


def test_ranges_that_were_fetched_are_not_requested_again(place, data, tmp_path, ranges):
    blocks = BlockFile(place, NAME, tmp_path / "mirror", block_bytes=4096)
    starts = np.random.default_rng(0).integers(0, len(data) - 9000, 40)

    blocks.fetch(starts, starts + 9000)
    n_requests = len(ranges)
    for start in starts.tolist():
        assert blocks[start : start + 9000] == data[start : start + 9000]

    assert len(ranges) == n_requests


def test_the_last_block_may_be_short(place, data, tmp_path):
    blocks = BlockFile(place, NAME, tmp_path / "mirror", block_bytes=4096)

    assert blocks[len(data) - 7 : len(data)] == data[-7:]


def test_blocks_are_not_kept_in_files_with_names(place, data, tmp_path):
    """Their file is deleted while it is open, so that it vanishes with the process."""
    blocks = BlockFile(place, NAME, tmp_path / "mirror", block_bytes=4096)

    assert blocks[5000:5010] == data[5000:5010]

    mirrored_files = [path for path in (tmp_path / "mirror").rglob("*") if path.is_file()]
    assert not mirrored_files


@pytest.mark.usefixtures("data")
def test_blocks_of_an_object_that_was_replaced_are_refused(place, tmp_path):
    blocks = BlockFile(place, NAME, tmp_path / "mirror")
    place.put(NAME, b"other")

    with pytest.raises(SourceChangedError):
        blocks[0:10]


def test_blocks_of_a_missing_object_cannot_be_opened(place, tmp_path):
    with pytest.raises(FileNotFoundError):
        BlockFile(place, "nothing", tmp_path / "mirror")


# Folders


@pytest.mark.usefixtures("data")
def test_a_folder_lists_its_files_and_folders(place):
    first_parts = {name.split("/")[0] for name in NAMES}

    names = [entry.name for entry in RemotePath(place).iterdir()]

    assert sorted(names) == sorted(first_parts)


def test_a_folder_exists_while_there_is_an_object_in_it(place):
    folder = RemotePath(place) / "later"

    place.put("later/new.jsonl", b"x")
    assert folder.is_dir()
    [file] = folder.files()
    assert (file.path, file.size) == ("new.jsonl", 1)

    place.delete("later/new.jsonl")
    assert not folder.is_dir()


def test_a_key_that_leads_out_of_its_folder_is_refused(place):
    key = f"{place.prefix}/web/../../out.jsonl"
    place.client().put_object(Bucket=place.bucket, Key=key, Body=b"x")

    with pytest.raises(InputError, match=r"no path of a file"):
        list(RemotePath(place).files())


# Datasets that are opened by their address


@pytest.fixture
def dataset_environment(
    new_clients: None, place: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Environment variables that lead to the bucket and to a cache, whose folder is returned."""
    assert place.endpoint_url is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", place.endpoint_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_dataset(prefix: Path, n_documents: int) -> None:
    """Write a pair of .bin and .idx with documents of 0, 1, 2 … tokens."""
    with MMapIndexedDatasetBuilder(prefix, dtype=np.uint16) as builder:
        for length in range(n_documents):
            builder.add_document(np.arange(length, dtype=np.uint16), [length])


def upload_dataset(prefix: Path, place: S3Store) -> None:
    """Upload a pair of .bin and .idx as text_document."""
    for ending in ("bin", "idx"):
        place.put_file(f"text_document.{ending}", prefix.with_suffix(f".{ending}"))


def check_same_dataset(dataset: MMapIndexedDataset, local_dataset: MMapIndexedDataset) -> None:
    """Check that two datasets have the same documents and tokens."""
    assert len(dataset) == len(local_dataset)
    for document, local_document in zip(dataset, local_dataset, strict=True):
        assert np.array_equal(document, local_document)
    assert np.array_equal(dataset.tokens, local_dataset.tokens)


@pytest.mark.usefixtures("dataset_environment")
def test_the_error_for_a_missing_dataset_in_a_bucket_names_its_address(place):
    with pytest.raises(MissingError) as error:
        MMapIndexedDataset(f"{place.url()}/none")

    assert f"{place.url()}/none.idx: no such file" in str(error.value)


def test_a_whole_bucket_is_no_dataset():
    with pytest.raises(ConfigError, match="a whole bucket"):
        MMapIndexedDataset("s3://bucket")


@pytest.mark.usefixtures("dataset_environment")
def test_index_files_for_data_in_a_bucket_are_kept_in_memory(place, tmp_path, monkeypatch):
    write_dataset(tmp_path / "local", 30)
    upload_dataset(tmp_path / "local", place)
    working_folder = tmp_path / "working"
    working_folder.mkdir()
    monkeypatch.chdir(working_folder)
    config = NanosetConfig(f"{place.url()}/text_document", sequence_length=4, split="1,0,0")

    train = NanosetBuilder(config).build()[0]

    assert len(train.batch(range(len(train)))) == len(train) > 0
    assert list(working_folder.iterdir()) == []


def test_a_dataset_in_a_bucket_has_the_documents_of_its_files(dataset_environment, place, tmp_path):
    write_dataset(tmp_path / "local", 300)
    upload_dataset(tmp_path / "local", place)

    dataset = MMapIndexedDataset(f"{place.url()}/text_document")

    assert len(dataset) == 300
    check_same_dataset(dataset, MMapIndexedDataset(tmp_path / "local"))
    assert len(pickle.loads(pickle.dumps(dataset))) == 300
    assert not list(dataset_environment.rglob("*.bin"))


def test_a_dataset_that_was_replaced_in_the_bucket_is_opened_as_the_new_one(
    dataset_environment, place, tmp_path
):
    """While the old one is still open."""
    write_dataset(tmp_path / "old", 300)
    upload_dataset(tmp_path / "old", place)
    old_dataset = MMapIndexedDataset(f"{place.url()}/text_document")
    assert len(old_dataset) == 300
    time.sleep(1.1)  # times in buckets are whole seconds
    write_dataset(tmp_path / "new", 200)
    upload_dataset(tmp_path / "new", place)

    dataset = MMapIndexedDataset(f"{place.url()}/text_document")

    assert len(dataset) == 200
    check_same_dataset(dataset, MMapIndexedDataset(tmp_path / "new"))
    assert len(pickle.loads(pickle.dumps(dataset))) == 200


@pytest.mark.usefixtures("dataset_environment")
def test_a_missing_dataset_in_a_bucket_is_an_error(place):
    with pytest.raises(MissingError):
        MMapIndexedDataset(f"{place.url()}/nothing")


# Reading ahead


def test_several_ranges_are_requested_at_the_same_time_when_a_file_is_read_in_order(
    place, data, monkeypatch
):
    range_bytes = MIB
    start = 99
    stop = 7 * MIB + 7
    monkeypatch.setattr(reading, "MOST_BYTES", range_bytes)
    real_read_range = S3Store.read_range
    requested_ranges = []
    # Passed when all requests that may be pending are. If a request were only sent after another
    # one had been answered, the barrier would break.
    all_pending = threading.Barrier(reading.AHEAD)

    def read_range(self, name, begin, end, mark=None):
        requested_ranges.append((begin, end))
        if begin <= start + reading.AHEAD * range_bytes:
            all_pending.wait(timeout=30)
        return real_read_range(self, name, begin, end, mark)

    monkeypatch.setattr(S3Store, "read_range", read_range)
    with (RemotePath(place) / NAME).open(begin=start, end=stop) as file:
        file.seek(start)
        assert file.read(stop - start) == data[start:stop]

    # The first bytes were read when the file was opened. The others follow in equal ranges.
    expected_ranges = []
    for begin in range(start + reading.FIRST_BYTES, stop, range_bytes):
        expected_ranges.append((begin, min(begin + range_bytes, stop)))
    assert sorted(requested_ranges) == expected_ranges
