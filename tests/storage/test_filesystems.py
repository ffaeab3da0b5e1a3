"""Raw text by fsspec: the same outputs as from this machine, one version of each file, and errors
in a sentence.
"""

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

from helpers.building import build_all, make_inventory
from helpers.command import invoke_nanoset
from helpers.inspecting import corpus_names, files_named_by, inventory_of
from helpers.s3_server import new_bucket, upload_raw
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
    NanosetError,
    SourceChangedError,
    StorageError,
)
from nanoset_core.project.project import Project
from nanoset_core.storage import filesystems, reading, redirects, s3_requests
from nanoset_core.storage.filesystems import FilesystemStore
from nanoset_core.storage.location import remote_location
from nanoset_core.text.documents import read_documents
from nanoset_core.text.pieces import Piece, SourceRange

fsspec = pytest.importorskip("fsspec")
MIB = 1 << 20


class Place:
    """A folder that fsspec reads: below a local one that a web server serves, or in fsspec's
    memory.
    """

    def __init__(self, url: str, put: Callable[[str, bytes], Any]) -> None:
        self.url, self.put = url, put
        self.store = FilesystemStore(url)

    def put_all(self, folder: Path) -> Place:
        """Copy all files of a folder there."""
        for path in filter(Path.is_file, folder.rglob("*")):
            self.put(path.relative_to(folder).as_posix(), path.read_bytes())
        return self


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_requests, "FIRST_WAIT_SECONDS", 0.0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    pytest.importorskip("aiohttp")
    (tmp_path / "served").mkdir()
    with web_server(tmp_path / "served") as server:
        yield server


@pytest.fixture
def web(served: Any) -> Place:
    times = iter(range(1_700_000_000, 1_800_000_000, 10))

    def put(name: str, data: bytes) -> None:
        path = served.folder / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (at := next(times), at))  # a server tells whole seconds

    return Place(f"{served.url}/text", put)


@pytest.fixture
def memory() -> Iterator[Place]:
    folder, system = f"/{uuid.uuid4().hex}", fsspec.filesystem("memory")

    def put(name: str, data: bytes) -> None:
        system.makedirs(f"{folder}/{name}".rpartition("/")[0], exist_ok=True)
        system.pipe_file(f"{folder}/{name}", data)

    system.makedirs(folder)
    yield Place(f"memory:/{folder}", put)
    system.rm(folder, recursive=True)


@pytest.fixture(params=["memory", "web"])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(request.param)


def test_a_place_says_what_is_there(place):
    files = {
        "a.jsonl": b"1",
        "b/c.jsonl": b"22",
        "b/d/e.jsonl": b"",
        "b.jsonl": b"333",
        ".hidden": b"4",
    }
    for name, data in files.items():
        place.put(name, data)
    store = pickle.loads(pickle.dumps(place.store))
    listed = list(store.list())
    assert [found.name for found in listed] == sorted(files, key=str.encode)
    assert {found.name: found.size for found in listed} == {
        name: len(data) for name, data in files.items()
    }
    assert listed == [store.stat(found.name) for found in listed]
    assert all(0 < found.written_ns <= store.now() for found in listed)
    assert store.level() == (["b"], [".hidden", "a.jsonl", "b.jsonl"])
    assert (store.read("b.jsonl"), store.read("b/d/e.jsonl")) == (b"333", b"")
    assert [store.stat("b"), store.stat("none"), store.read("none"), list(store.list("none"))] == [
        None,
        None,
        None,
        [],
    ]
    assert [store.holds(name) for name in ("", "b", "none")] == [True, True, False]
    assert store.below("b") == FilesystemStore(f"{place.url}/b")
    assert [found.name for found in store.below("b").list()] == ["c.jsonl", "d/e.jsonl"]
    with pytest.raises(MissingError):
        store.read_range("none", 0, 1)
    folder = remote_location(place.url, where="raw", only_read=True)
    assert [name for name, *_ in folder.files()] == [
        "a.jsonl",
        "b.jsonl",
        "b/c.jsonl",
        "b/d/e.jsonl",
    ]


def test_a_file_is_read_by_ranges_and_is_of_one_version(place, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", MIB // 2)
    data = os.urandom(3 * MIB + 17)
    place.put("data", data)
    mark = place.store.stat("data").mark
    with reading.open_object(place.store, "data", begin=0, end=len(data)) as file:
        assert file.read() == data
    for begin, end in ((0, 1), (7, 7), (len(data) - 1, len(data)), (12_345, MIB)):
        assert place.store.read_range("data", begin, end, mark) == data[begin:end]
    for begin, end in ((len(data), len(data) + 1), (0, len(data) + 1)):
        with pytest.raises(SourceChangedError):
            place.store.read_range("data", begin, end, mark)
    with reading.open_object(place.store, "data", begin=0, end=len(data)) as file:
        file.read(MIB // 2)
        place.put("data", data[::-1])
        with pytest.raises(SourceChangedError, match="another version"):
            file.read()


def test_bytes_that_were_replaced_while_they_were_read_are_refused(place, monkeypatch):
    real = filesystems._fetched

    def replaced(*given, **options):
        place.put("data", b"y" * 100)
        return real(*given, **options)

    place.put("data", b"x" * 100)
    mark = place.store.stat("data").mark
    monkeypatch.setattr(filesystems, "_fetched", replaced)
    with pytest.raises(SourceChangedError, match="another version"):
        place.store.read_range("data", 0, 100, mark)


@pytest.fixture(scope="module")
def built_here(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> dict[str, str]:
    config = write_project(tmp_path_factory.mktemp("here") / "project", tokenizer_file, FEWER)
    build_all(config)
    return outputs_of(config)


def test_a_project_gives_the_same_outputs_as_from_this_machine(
    place, tmp_path, tokenizer_file, built_here
):
    config = write_project(tmp_path / "project", tokenizer_file, FEWER)
    place.put_all(tmp_path / "project" / "raw")
    shutil.rmtree(tmp_path / "project" / "raw")
    config.write_text(config.read_text().replace("raw: raw", f"raw: {place.url}"))
    project = build_all(config)
    assert outputs_of(config) == built_here
    before = make_inventory(project, "web").digest
    place.put("web/new.jsonl", jsonl(sentences("new", 5)))
    assert make_inventory(Project.open(config), "web").digest != before


@pytest.mark.parametrize("name", ["a.arrow", "a.stream.arrow", "a.parquet"])
def test_tables_give_the_same_documents_as_from_this_machine(place, tmp_path, name):
    rows = sentences("tables", 40)
    place.put(f"web/{name}", data := encoded(name, rows, 15))
    source = SourceRange((Piece(name, 0, len(data), 1, hashlib.sha256(data).hexdigest()),))
    folder = remote_location(f"{place.url}/web", where="raw", only_read=True)
    (batch,) = read_documents(folder, source)
    assert (batch.texts, batch.rejects) == ([row["text"] for row in rows], [])


def test_a_folder_is_shared_by_files_as_on_this_machine(place, endpoint, tmp_path, tokenizer_file):
    """Also in a bucket."""
    config = write_project(tmp_path / "project", tokenizer_file, FEWER)
    text = (
        config.read_text()
        + "corpora: {web: {files: [part-0/]}, web_rest: {folder: web, exclude: [part-0]}}\n"
    )
    bucket = upload_raw(tmp_path / "project" / "raw", new_bucket(endpoint))
    place.put_all(tmp_path / "project" / "raw")

    def inventories(source: str) -> list[str]:
        config.write_text(text.replace("raw: raw", source))
        project = Project.open(config)
        digests = [make_inventory(project, name).digest for name in ("web", "web_rest")]
        assert [len(inventory_of(project, name).files) for name in ("web", "web_rest")] == [2, 2]
        return digests

    here = inventories("raw: raw")
    assert inventories(f"raw: {place.url}") == here
    assert inventories(f"raw: {bucket.url()}\nstorage: {{endpoint_url: {endpoint!r}}}") == here


@pytest.mark.parametrize("fingerprint", ["etag", "etag-pieces"])
def test_files_may_be_known_by_their_versions_alone(
    web, served, tmp_path, tokenizer_file, fingerprint
):
    config = write_project(tmp_path / "project", tokenizer_file, FEWER)
    web.put_all(tmp_path / "project" / "raw")
    config.write_text(
        config.read_text().replace(
            "raw: raw", f"raw: {web.url}\nstorage: {{fingerprint: {fingerprint}}}"
        )
    )
    make_inventory(Project.open(config), "web")
    assert not [
        asked for asked in served.asked if asked.startswith("GET") and asked.endswith("jsonl")
    ]


COMMANDS = {
    "tokenize": "tokenize --input IN --output-prefix OUT/x --append-eod",
    "tokenize a file": "tokenize --input IN/web/part-0/web-1.jsonl --output-prefix OUT/x --append-eod",
    "tokenize a pattern": "tokenize --input IN/*/**/*.jsonl* --output-prefix OUT/x --append-eod",
    "shuffle": "shuffle --input IN/web IN/code --output OUT/x --seqlen 9",
    "pack": "pbin write IN/books -o OUT/x.pbin",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_write_the_same_bytes_as_from_this_machine(
    command, place, tmp_path, tokenizer_file
):
    (tmp_path / "raw").mkdir()
    write_raw(tmp_path / "raw")
    place.put_all(tmp_path / "raw")

    def made(source: str, target: Path) -> dict[str, bytes]:
        target.mkdir()
        text = COMMANDS[command].replace("IN", source).replace("OUT", str(target))
        given = [*text.split(), "--tokenizer", str(tokenizer_file), "--eod", EOD, "--workers", "1"]
        invoke_nanoset(given, catch_exceptions=False, standalone_mode=False)
        return {
            path.name: path.read_bytes()
            for path in target.rglob("*")
            if path.is_file() and "json" not in path.name
        }

    here = made(str(tmp_path / "raw"), tmp_path / "here")
    assert here
    assert made(place.url, tmp_path / "there") == here


def test_failures_that_pass_are_asked_for_again(web, served):
    web.put("data", b"0123456789")
    served.answers[:] = [503, 0, 429, 500]
    assert web.store.read_range("data", 2, 5) == b"234"
    assert not served.answers


def refusals(store: FilesystemStore) -> list[NanosetError]:
    """What reading and listing say of a place that refuses."""
    told = []
    for ask in (
        lambda: store.read_range("data", 0, 5),
        lambda: store.stat("data"),
        lambda: store.level(),
    ):
        with pytest.raises(StorageError) as caught:
            ask()
        told.append(caught.value)
    return told


def test_a_host_that_is_not_there_is_named(web, monkeypatch):
    monkeypatch.setattr(s3_requests, "ATTEMPTS", 2)
    for error in refusals(FilesystemStore("http://127.0.0.1:9/text")):
        assert "http:// cannot be read, after 2 attempts" in str(error)
        assert "server up" in error.remedy


def test_without_rights_it_says_so(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("helpers.web_server._Handler.do_HEAD", lambda to: to.send_error(403))
    monkeypatch.setattr("helpers.web_server._Handler.do_GET", lambda to: to.send_error(403))
    with web_server(tmp_path) as server:
        for error in refusals(FilesystemStore(server.url)):
            assert "http:// refuses" in str(error)
            assert "\n" not in error.found
            assert "credentials that may read" in error.remedy


def test_a_server_without_ranges_is_refused_unless_the_files_are_read_at_once(
    tmp_path, monkeypatch
):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(s3_requests, "ATTEMPTS", 2)
    (tmp_path / "small").write_bytes(b"s" * 100)
    (tmp_path / "large").write_bytes(b"l" * 3 * MIB)
    with web_server(tmp_path, ranges=False) as server:
        store = FilesystemStore(server.url)
        for end in (100, 60):
            assert store.read_range("small", 0, end) == b"s" * end
        with pytest.raises(StorageError, match="does not send ranges of a file") as caught:
            store.read_range("large", MIB, 2 * MIB)
        assert "copy the files" in caught.value.remedy


def test_a_hub_is_asked_anew_for_the_version_of_a_file(monkeypatch):
    """Its file system remembers listings, and tells of a file alone neither hash nor version unless
    it is asked to.
    """
    asked = []

    class Hub:
        def ls(self, path: str, **given: object) -> list[dict[str, object]]:
            asked.append(given)
            return [
                {
                    "name": f"{path}/a.jsonl",
                    "type": "file",
                    "size": 3,
                    "blob_id": "0a1b",
                    "last_commit": None,
                }
            ]

        def info(self, path: str, **given: object) -> dict[str, object]:
            asked.append(given)
            return {
                "name": path,
                "type": "file",
                "size": 3,
                "blob_id": "0a1b",
                "last_commit": object(),
            }

        def _strip_protocol(self, url: str) -> str:
            return url.removeprefix("hf://")

    monkeypatch.setattr(filesystems, "_file_system", lambda *_: Hub())
    store = FilesystemStore("hf://datasets/owner/name")
    assert list(store.list()) == [store.stat("a.jsonl")]
    assert asked == [{"detail": True, "refresh": True}, {"refresh": True, "expand_info": True}]


def test_a_server_that_tells_no_version_is_refused(tmp_path):
    pytest.importorskip("aiohttp")
    (tmp_path / "data").write_bytes(b"x")
    with (
        web_server(tmp_path, told=False) as server,
        pytest.raises(StorageError, match="could not be seen") as caught,
    ):
        list(FilesystemStore(server.url).list())
    assert "ETag or Last-Modified" in caught.value.expected


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch):
    def missing(*given: object, **options: object) -> None:
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    monkeypatch.setattr(filesystems, "_file_system", filesystems._file_system.__wrapped__)
    for scheme, extra in (("gs", "gcs"), ("hf", "hf"), ("abfs", "azure"), ("https", "http")):
        with pytest.raises(StorageError, match="gcsfs") as caught:
            FilesystemStore(f"{scheme}://bucket/text").level()
        assert caught.value.remedy == f"pip install 'nanoset-platform[{extra}]'"


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("gopher://host/text", "no file system of this name"),
        ("https://me:secret@host/text", "holds a query, or a user's name"),
        ("https://host/text?token=secret", "holds a query, or a user's name"),
        ("gs:///text", "not name a place"),
        ("gs://b/a/../c", "not name a place"),
    ],
)
def test_urls_that_name_no_raw_text(url, what):
    with pytest.raises(ConfigError, match=what) as caught:
        remote_location(url, where="raw", only_read=True)
    assert "secret" not in str(caught.value)


def test_nothing_is_written_there(memory, tmp_path, tokenizer_file):
    with pytest.raises(ConfigError, match="only local folders and S3"):
        remote_location(memory.url, where="root")
    for write in (
        memory.store.delete,
        memory.store.check_writable,
        lambda name: memory.store.put(name, b""),
    ):
        with pytest.raises(ConfigError, match="outputs cannot be kept there"):
            write("name")


def test_what_is_not_there_is_said(place, tmp_path, tokenizer_file):
    config = write_project(tmp_path / "project", tokenizer_file, FEWER)
    config.write_text(config.read_text().replace("raw: raw", f"raw: {place.url}/none"))
    with pytest.raises(MissingError, match="the folder of raw text does not exist"):
        build_all(config)
    place.put("some/notes.md", b"#")
    config.write_text(config.read_text().replace(f"{place.url}/none", place.url))
    assert not corpus_names(Project.open(config))
    with pytest.raises((InputError, MissingError)):
        make_inventory(Project.open(config), "some")


class _Redirecting(http.server.BaseHTTPRequestHandler):
    """Sends every request to another server."""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.server.target + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def redirecting():
    """A server that redirects to its `target`, an address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Redirecting)
    server.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_redirect_to_another_host_is_said(served, redirecting, caplog):
    redirecting.target = served.url
    (served.folder / "a.jsonl").write_text('{"text": "a"}\n')
    assert files_named_by(f"{redirecting.url}/a.jsonl") == ["a.jsonl"]
    assert (
        f"{redirecting.url} redirects to another host: what is read comes from {served.url}"
        in caplog.text
    )


def test_a_redirect_that_may_not_be_followed_is_refused_before_it_is(redirecting, monkeypatch):
    monkeypatch.setattr(redirects, "_is_private", lambda host: host == "169.254.169.254")
    redirecting.target = "http://169.254.169.254"
    with pytest.raises(StorageError, match="a redirect leads into a private network"):
        files_named_by(f"{redirecting.url}/a.jsonl")


@pytest.mark.parametrize(("source", "target", "reason"), [
    ("https://a.org/x", "http://a.org/x", "leaves https"),
    ("https://a.org/x", "http://b.org/x?signature=s", "leaves https"),
    ("https://a.org/x", "file:///etc/passwd", "leaves https"),
    ("http://a.org/x", "http://localhost/x", "into a private network"),
    ("http://a.org/x", "http://127.0.0.1:8080/x", "into a private network"),
    ("https://a.org/x", "https://10.0.0.1/x", "into a private network"),
    ("https://a.org/x", "https://[::1]/x", "into a private network"),
])  # fmt: skip
def test_redirects_that_are_refused(source, target, reason):
    with pytest.raises(StorageError, match=reason) as refused:
        redirects.check_redirect(source, target)
    assert "signature" not in str(refused.value)


@pytest.mark.parametrize(("source", "target"), [
    ("https://a.org/x", "https://a.org/y"),
    ("http://a.org/x", "https://a.org/x"),
    ("http://127.0.0.1/x", "http://127.0.0.1/y"),
])  # fmt: skip
def test_a_redirect_within_a_host_needs_no_word(source, target, caplog):
    redirects.check_redirect(source, target)
    assert not [record for record in caplog.records if source.startswith(target[:12])]
