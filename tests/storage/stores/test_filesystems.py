"""Raw text is read by fsspec, from web servers and others, as it is from a local folder."""

from __future__ import annotations

import hashlib
import http.server
import os
import pickle
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from helpers.buckets import upload_raw
from helpers.building import build_all, make_inventory
from helpers.command import invoke_nanoset
from helpers.inspecting import corpus_names, files_named_by, inventory_of
from helpers.s3_server import new_bucket
from helpers.sample_project import (
    EOD,
    FEWER,
    encoded,
    jsonl,
    outputs_of,
    sentences,
    write_project,
    write_raw,
)
from helpers.web_server import web_server
from nanoset_core.errors import (
    ConfigError,
    InputError,
    MissingError,
    SourceChangedError,
    StorageError,
)
from nanoset_core.project.project import Project
from nanoset_core.storage import requests
from nanoset_core.storage.location import remote_location
from nanoset_core.storage.reading import objects as reading
from nanoset_core.storage.stores import filesystems, redirects
from nanoset_core.storage.stores.filesystems import FilesystemStore
from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventory.pieces import Piece, SourceRange

fsspec = pytest.importorskip("fsspec")
MIB = 1 << 20


class Place:
    """A folder that fsspec reads, and a way to write to it that fsspec does not know."""

    def __init__(self, url: str, put: Callable[[str, bytes], Any]) -> None:
        """Begin with an empty folder.

        Args:
            url: Its address.
            put: Writes a file of it: (name, content).
        """
        self.url = url
        self.put = put
        self.store = FilesystemStore(url)

    def put_all(self, folder: Path) -> Place:
        """Copy all files of a local folder to it."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(path.relative_to(folder).as_posix(), path.read_bytes())
        return self


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attempts follow each other at once."""
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    """A web server of a local folder."""
    pytest.importorskip("aiohttp")
    (tmp_path / "served").mkdir()
    with web_server(tmp_path / "served") as server:
        yield server


@pytest.fixture
def web(served: Any) -> Place:
    """A folder of a web server."""
    # Web servers report whole seconds: let each file be 10 seconds newer than the one before.
    times = iter(range(1_700_000_000, 1_800_000_000, 10))

    def put(name: str, data: bytes) -> None:
        path = served.folder / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        written_at = next(times)
        os.utime(path, (written_at, written_at))

    return Place(f"{served.url}/text", put)


@pytest.fixture
def memory() -> Iterator[Place]:
    """A folder of fsspec's file system in memory."""
    folder = f"/{uuid.uuid4().hex}"
    file_system = fsspec.filesystem("memory")

    def put(name: str, data: bytes) -> None:
        path = f"{folder}/{name}"
        file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
        file_system.pipe_file(path, data)

    file_system.makedirs(folder)
    yield Place(f"memory:/{folder}", put)
    file_system.rm(folder, recursive=True)


@pytest.fixture(params=["memory", "web"])
def place(request: pytest.FixtureRequest) -> Place:
    """A folder of each file system."""
    place: Place = request.getfixturevalue(request.param)
    return place


# Files and folders


FILES = {
    "a.jsonl": b"1",
    "b/c.jsonl": b"22",
    "b/d/e.jsonl": b"",
    "b.jsonl": b"333",
    ".hidden": b"4",
}


@pytest.fixture
def store(place: Place) -> FilesystemStore:
    """A store with the files `FILES`."""
    for name, data in FILES.items():
        place.put(name, data)
    return place.store


def test_files_are_listed_in_the_order_of_their_names(store):
    listed = list(store.list())

    assert [stored.name for stored in listed] == sorted(FILES, key=str.encode)
    sizes = {stored.name: stored.size for stored in listed}
    assert sizes == {name: len(data) for name, data in FILES.items()}
    assert listed == [store.stat(stored.name) for stored in listed]
    assert all(0 < stored.written_ns <= store.now() for stored in listed)


def test_one_level_of_a_folder_has_folders_and_files(store):
    assert store.level() == (["b"], [".hidden", "a.jsonl", "b.jsonl"])


def test_files_are_read(store):
    assert store.read("b.jsonl") == b"333"
    assert store.read("b/d/e.jsonl") == b""


def test_a_folder_is_no_file(store):
    assert store.stat("b") is None


def test_a_missing_file_is_none(store):
    assert store.stat("none") is None
    assert store.read("none") is None
    assert list(store.list("none")) == []
    with pytest.raises(MissingError):
        store.read_range("none", 0, 1)


def test_a_folder_exists_if_there_are_files_in_it(store):
    assert store.holds("")
    assert store.holds("b")
    assert not store.holds("none")


def test_a_folder_of_a_store_is_a_store(store, place):
    folder = store.below("b")

    assert folder == FilesystemStore(f"{place.url}/b")
    assert [stored.name for stored in folder.list()] == ["c.jsonl", "d/e.jsonl"]


def test_a_store_can_be_pickled(store):
    unpickled = pickle.loads(pickle.dumps(store))

    assert list(unpickled.list()) == list(store.list())
    assert unpickled.read("b.jsonl") == b"333"


@pytest.mark.usefixtures("store")
def test_hidden_files_are_no_raw_text(place):
    folder = remote_location(place.url, where="raw", only_read=True)

    names = [file.path for file in folder.files()]

    assert names == ["a.jsonl", "b.jsonl", "b/c.jsonl", "b/d/e.jsonl"]


# Versions of files


@pytest.fixture
def data(place: Place) -> bytes:
    """The content of the file `data`, of 3 MiB."""
    content = os.urandom(3 * MIB + 17)
    place.put("data", content)
    return content


def test_a_file_is_read_in_several_requests(place, data, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", MIB // 2)

    with reading.open_object(place.store, "data", begin=0, end=len(data)) as file:
        assert file.read() == data


def test_a_range_of_a_file_is_read(place, data):
    mark = place.store.stat("data").mark
    size = len(data)

    for start, stop in ((0, 1), (7, 7), (size - 1, size), (12_345, MIB)):
        assert place.store.read_range("data", start, stop, mark) == data[start:stop]


def test_a_range_beyond_the_end_of_a_file_is_refused(place, data):
    mark = place.store.stat("data").mark
    size = len(data)

    for start, stop in ((size, size + 1), (0, size + 1)):
        with pytest.raises(SourceChangedError):
            place.store.read_range("data", start, stop, mark)


def test_a_file_that_is_replaced_between_two_requests_is_refused(place, data, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", MIB // 2)

    with reading.open_object(place.store, "data", begin=0, end=len(data)) as file:
        file.read(MIB // 2)
        place.put("data", data[::-1])
        with pytest.raises(SourceChangedError, match="another version"):
            file.read()


def test_a_file_that_is_replaced_during_a_request_is_refused(place, monkeypatch):
    place.put("data", b"x" * 100)
    mark = place.store.stat("data").mark
    real_fetch = filesystems._fetched

    def replace_and_fetch(*args, **options):
        place.put("data", b"y" * 100)
        return real_fetch(*args, **options)

    monkeypatch.setattr(filesystems, "_fetched", replace_and_fetch)
    with pytest.raises(SourceChangedError, match="another version"):
        place.store.read_range("data", 0, 100, mark)


def test_the_version_of_a_file_of_a_hub_is_requested_each_time(monkeypatch):
    """Its file system caches listings, and reports neither hash nor version unless asked to."""
    options_of_calls = []
    description = {"type": "file", "size": 3, "blob_id": "0a1b"}

    class Hub:
        def ls(self, path: str, **options: object) -> list[dict[str, object]]:
            options_of_calls.append(options)
            return [description | {"name": f"{path}/a.jsonl", "last_commit": None}]

        def info(self, path: str, **options: object) -> dict[str, object]:
            options_of_calls.append(options)
            return description | {"name": path, "last_commit": object()}

        def _strip_protocol(self, url: str) -> str:
            return url.removeprefix("hf://")

    monkeypatch.setattr(filesystems, "_file_system", lambda *_: Hub())
    store = FilesystemStore("hf://datasets/owner/name")

    assert list(store.list()) == [store.stat("a.jsonl")]

    assert options_of_calls == [
        {"detail": True, "refresh": True},
        {"refresh": True, "expand_info": True},
    ]


def test_a_server_that_reports_no_versions_is_refused(tmp_path):
    pytest.importorskip("aiohttp")
    (tmp_path / "data").write_bytes(b"x")

    with (
        web_server(tmp_path, sends_times=False) as server,
        pytest.raises(StorageError, match="could not be seen") as caught,
    ):
        list(FilesystemStore(server.url).list())

    assert "ETag or Last-Modified" in caught.value.expected


# Projects and commands


@pytest.fixture(scope="module")
def local_outputs(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> dict[str, str]:
    """The digests of the outputs of the project with a local folder of raw text, by name."""
    folder = tmp_path_factory.mktemp("local") / "project"
    config = write_project(folder, tokenizer_file, FEWER)
    build_all(config)
    return outputs_of(config)


@pytest.fixture
def config(tmp_path: Path, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a project that was not built."""
    return write_project(tmp_path / "project", tokenizer_file, FEWER)


def set_raw(config: Path, settings: str) -> None:
    """Replace the place of the raw text in a nanoset.yaml."""
    text = config.read_text()
    assert "raw: raw" in text
    config.write_text(text.replace("raw: raw", settings))


def test_a_project_gets_the_same_outputs_as_from_a_local_folder(place, config, local_outputs):
    place.put_all(config.parent / "raw")
    shutil.rmtree(config.parent / "raw")
    set_raw(config, f"raw: {place.url}")

    project = build_all(config)
    assert outputs_of(config) == local_outputs

    # A new file changes the inventory.
    digest_before = make_inventory(project, "web").digest
    place.put("web/new.jsonl", jsonl(sentences("new", 5)))
    assert make_inventory(Project.open(config), "web").digest != digest_before


@pytest.mark.parametrize("name", ["a.arrow", "a.stream.arrow", "a.parquet"])
def test_a_table_is_read_like_a_local_one(place, name):
    rows = sentences("tables", 40)
    data = encoded(name, rows, 15)
    place.put(f"web/{name}", data)
    piece = Piece(name, 0, len(data), 1, hashlib.sha256(data).hexdigest())
    folder = remote_location(f"{place.url}/web", where="raw", only_read=True)

    [batch] = read_documents(folder, SourceRange((piece,)))

    assert batch.texts == [row["text"] for row in rows]
    assert batch.rejects == []


def test_two_corpora_share_a_folder_in_a_bucket_and_elsewhere_as_on_this_machine(
    place, endpoint, config
):
    raw = config.parent / "raw"
    bucket = upload_raw(raw, new_bucket(endpoint))
    place.put_all(raw)
    corpora = "corpora: {web: {files: [part-0/]}, web_rest: {folder: web, exclude: [part-0]}}\n"
    settings = config.read_text() + corpora

    def digests_of_inventories(raw_settings: str) -> list[str]:
        config.write_text(settings)
        set_raw(config, raw_settings)
        project = Project.open(config)
        digests = []
        for corpus in ("web", "web_rest"):
            digests.append(make_inventory(project, corpus).digest)
            assert len(inventory_of(project, corpus).files) == 2
        return digests

    local_digests = digests_of_inventories("raw: raw")
    bucket_settings = f"raw: {bucket.url()}\nstorage: {{endpoint_url: {endpoint!r}}}"
    assert digests_of_inventories(f"raw: {place.url}") == local_digests
    assert digests_of_inventories(bucket_settings) == local_digests


@pytest.mark.parametrize("fingerprint", ["etag", "etag-pieces"])
def test_files_that_are_known_by_their_versions_are_not_read_for_an_inventory(
    web, served, config, fingerprint
):
    web.put_all(config.parent / "raw")
    set_raw(config, f"raw: {web.url}\nstorage: {{fingerprint: {fingerprint}}}")

    make_inventory(Project.open(config), "web")

    read_requests = [
        request
        for request in served.requests
        if request.startswith("GET") and request.endswith("jsonl")
    ]
    assert not read_requests


COMMANDS = {
    "tokenize": "tokenize --input IN --output-prefix OUT/x --append-eod",
    "tokenize a file": (
        "tokenize --input IN/web/part-0/web-1.jsonl --output-prefix OUT/x --append-eod"
    ),
    "tokenize a pattern": "tokenize --input IN/*/**/*.jsonl* --output-prefix OUT/x --append-eod",
    "shuffle": "shuffle --input IN/web IN/code --output OUT/x --seqlen 9",
    "pack": "pbin write IN/books -o OUT/x.pbin",
}
"""Name of a case → the command. IN stands for the place of the text, OUT for a folder."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_writes_the_same_bytes_as_from_a_local_folder(
    command, place, tmp_path, tokenizer_file
):
    (tmp_path / "raw").mkdir()
    write_raw(tmp_path / "raw")
    place.put_all(tmp_path / "raw")

    def outputs_from(source: str, target: Path) -> dict[str, bytes]:
        target.mkdir()
        command_line = COMMANDS[command].replace("IN", source).replace("OUT", str(target))
        arguments = command_line.split()
        arguments += ["--tokenizer", str(tokenizer_file), "--eod", EOD, "--workers", "1"]
        invoke_nanoset(arguments, catch_exceptions=False, standalone_mode=False)
        data_by_name = {}
        for path in target.rglob("*"):
            if path.is_file() and "json" not in path.name:  # records name the place of the text
                data_by_name[path.name] = path.read_bytes()
        return data_by_name

    local_outputs = outputs_from(str(tmp_path / "raw"), tmp_path / "from-local")
    assert local_outputs
    assert outputs_from(place.url, tmp_path / "from-remote") == local_outputs


def test_a_missing_folder_of_raw_text_is_an_error(place, config):
    set_raw(config, f"raw: {place.url}/none")

    with pytest.raises(MissingError, match="the folder of raw text does not exist"):
        build_all(config)


def test_a_folder_without_text_is_no_corpus(place, config):
    place.put("some/notes.md", b"#")
    set_raw(config, f"raw: {place.url}")

    assert not corpus_names(Project.open(config))
    with pytest.raises((InputError, MissingError)):
        make_inventory(Project.open(config), "some")


# Servers that fail or refuse


def test_a_request_that_fails_temporarily_is_retried(web, served):
    web.put("data", b"0123456789")
    served.answers[:] = [503, 0, 429, 500]  # 0: the connection breaks

    assert web.store.read_range("data", 2, 5) == b"234"

    assert not served.answers


REQUESTS = [
    pytest.param(lambda store: store.read_range("data", 0, 5), id="read a range"),
    pytest.param(lambda store: store.stat("data"), id="describe a file"),
    pytest.param(lambda store: store.level(), id="list a folder"),
]


@pytest.mark.parametrize("request_of", REQUESTS)
def test_a_host_that_does_not_exist_is_an_error_with_a_remedy(monkeypatch, request_of):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    store = FilesystemStore("http://127.0.0.1:9/text")  # no server listens on this port

    with pytest.raises(StorageError) as caught:
        request_of(store)

    assert "http:// cannot be read, after 2 attempts" in str(caught.value)
    assert "server up" in caught.value.remedy


@pytest.mark.parametrize("request_of", REQUESTS)
def test_a_server_that_refuses_access_is_an_error_with_a_remedy(tmp_path, monkeypatch, request_of):
    pytest.importorskip("aiohttp")
    for method in ("do_HEAD", "do_GET"):
        monkeypatch.setattr(
            f"helpers.web_server._Handler.{method}", lambda handler: handler.send_error(403)
        )

    with web_server(tmp_path) as server, pytest.raises(StorageError) as caught:
        request_of(FilesystemStore(server.url))

    assert "http:// refuses" in str(caught.value)
    assert "\n" not in caught.value.found
    assert "credentials that may read" in caught.value.remedy


@pytest.fixture
def store_without_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A small and a large file on a web server that always sends whole files."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    (tmp_path / "small").write_bytes(b"s" * 100)
    (tmp_path / "large").write_bytes(b"l" * 3 * MIB)
    with web_server(tmp_path, ranges=False) as server:
        yield FilesystemStore(server.url)


@pytest.mark.parametrize("stop", [100, 60])
def test_a_small_file_is_read_from_a_server_without_ranges(store_without_ranges, stop):
    assert store_without_ranges.read_range("small", 0, stop) == b"s" * stop


def test_a_range_of_a_large_file_is_refused_by_a_server_without_ranges(store_without_ranges):
    with pytest.raises(StorageError, match="does not send ranges of a file") as caught:
        store_without_ranges.read_range("large", MIB, 2 * MIB)

    assert "copy the files" in caught.value.remedy


# Addresses and packages


@pytest.mark.parametrize(
    ("scheme", "extra"), [("gs", "gcs"), ("hf", "hf"), ("abfs", "azure"), ("https", "http")]
)
def test_a_missing_package_is_named_with_the_extra_to_install(monkeypatch, scheme, extra):
    def fail(*_args: object, **_options: object) -> None:
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr("fsspec.core.url_to_fs", fail)
    # Without its cache of file systems.
    monkeypatch.setattr(filesystems, "_file_system", filesystems._file_system.__wrapped__)

    with pytest.raises(StorageError, match="gcsfs") as caught:
        FilesystemStore(f"{scheme}://bucket/text").level()

    assert caught.value.remedy == f"pip install 'nanoset-platform[{extra}]'"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        pytest.param("gopher://host/text", "no file system of this name", id="unknown scheme"),
        pytest.param(
            "https://me:secret@host/text", "holds a query, or a user's name", id="password"
        ),
        pytest.param(
            "https://host/text?token=secret", "holds a query, or a user's name", id="query"
        ),
        pytest.param("gs:///text", "not name a place", id="no bucket"),
        pytest.param("gs://b/a/../c", "not name a place", id="parent folder"),
    ],
)
def test_an_address_that_is_no_place_of_raw_text_is_refused_without_its_secrets(url, message):
    with pytest.raises(ConfigError, match=message) as caught:
        remote_location(url, where="raw", only_read=True)

    assert "secret" not in str(caught.value)


def test_outputs_must_not_be_in_a_file_system_that_is_only_read():
    with pytest.raises(ConfigError, match="cannot be used here"):
        remote_location("https://host/outputs", where="root")


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda store: store.delete("name"), id="delete"),
        pytest.param(lambda store: store.check_writable("name"), id="check writable"),
        pytest.param(lambda store: store.put("name", b""), id="put"),
    ],
)
def test_a_file_system_that_is_only_read_refuses_to_write(memory, write):
    with pytest.raises(ConfigError, match="outputs cannot be kept there"):
        write(memory.store)


# Redirects


class _RedirectingServer(http.server.ThreadingHTTPServer):
    """A server that redirects every request to another server."""

    target = ""
    """Address of the other server."""

    @property
    def url(self) -> str:
        """The address of this server."""
        return f"http://127.0.0.1:{self.server_port}"


class _RedirectingHandler(http.server.BaseHTTPRequestHandler):
    """Answers the requests to a `_RedirectingServer`."""

    server: _RedirectingServer

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.server.target + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def redirecting_server() -> Iterator[_RedirectingServer]:
    """A server that redirects to the address that the test sets as its target."""
    server = _RedirectingServer(("127.0.0.1", 0), _RedirectingHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_redirect_to_another_host_is_followed_and_reported(served, redirecting_server, caplog):
    redirecting_server.target = served.url
    (served.folder / "a.jsonl").write_text('{"text": "a"}\n')

    assert files_named_by(f"{redirecting_server.url}/a.jsonl") == ["a.jsonl"]

    expected = f"redirects to another host: what is read comes from {served.url}"
    assert f"{redirecting_server.url} {expected}" in caplog.text


def test_a_redirect_into_a_private_network_is_not_followed(redirecting_server, monkeypatch):
    """The address is that of a cloud's metadata, which has credentials."""
    metadata_host = "169.254.169.254"
    # The server of this test must not count as a private network.
    monkeypatch.setattr(redirects, "_is_private", lambda host: host == metadata_host)
    redirecting_server.target = f"http://{metadata_host}"

    with pytest.raises(StorageError, match="a redirect leads into a private network"):
        files_named_by(f"{redirecting_server.url}/a.jsonl")


LEAVES_HTTPS = "leaves https"
PRIVATE_NETWORK = "into a private network"


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("https://a.org/x", "http://a.org/x", LEAVES_HTTPS),
        ("https://a.org/x", "http://b.org/x?signature=s", LEAVES_HTTPS),
        ("https://a.org/x", "file:///etc/passwd", LEAVES_HTTPS),
        ("http://a.org/x", "http://localhost/x", PRIVATE_NETWORK),
        ("http://a.org/x", "http://127.0.0.1:8080/x", PRIVATE_NETWORK),
        ("https://a.org/x", "https://10.0.0.1/x", PRIVATE_NETWORK),
        ("https://a.org/x", "https://[::1]/x", PRIVATE_NETWORK),
    ],
)
def test_an_unsafe_redirect_is_refused_without_the_signature_in_its_target(source, target, reason):
    with pytest.raises(StorageError, match=reason) as caught:
        redirects.check_redirect(source, target)

    assert "signature" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param("https://a.org/x", "https://a.org/y", id="other path"),
        pytest.param("http://a.org/x", "https://a.org/x", id="to https"),
        pytest.param("http://127.0.0.1/x", "http://127.0.0.1/y", id="local host"),
    ],
)
def test_a_redirect_within_a_host_is_not_reported(source, target, caplog):
    redirects.check_redirect(source, target)

    assert not caplog.records
