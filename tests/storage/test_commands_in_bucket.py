"""Commands that need no project take s3:// in and out: the same bytes as on this machine, whole or
not at all.
"""

from __future__ import annotations

import gzip
import http.server
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from helpers import s3_server
from helpers.answering import answering, say
from helpers.command import invoke_nanoset
from helpers.s3_server import total_bytes
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core import MMapIndexedDatasetBuilder, load_config
from nanoset_core.errors import (
    ConfigError,
    FormatError,
    InputError,
    MissingError,
    NanosetError,
    StorageError,
)
from nanoset_core.formats.pbin.writing import write_pbin
from nanoset_core.storage.s3 import S3Store
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

TEXT = f"--tokenizer IN/tokenizer.json --workers 1 --eod {EOD}"
COMMANDS = {
    "tokenize": f"tokenize --input IN/text --output-prefix OUT/x {TEXT} --append-eod",
    "tokenize patterns": f"tokenize --input IN/te*/**/b*.gz IN/text/a.jsonl --output-prefix OUT/x {TEXT} --per-file",
    "merge": "merge --input IN/pairs --output-prefix OUT/x",
    "shuffle text": f"shuffle --input IN/text --output OUT/x --seqlen 9 {TEXT}",
    "shuffle pairs": "shuffle --input IN/pairs/p IN/pairs/q --output OUT/x --seqlen 9 --workers 1",
    "shuffle tars": "shuffle --input IN/tars --output OUT/x --workers 1",
    "pack text": f"pbin write IN/text -o OUT/x.pbin {TEXT}",
    "pack pair": "pbin write IN/pairs/p -o OUT/x.pbin",
    "pbin merge": "pbin merge IN/p.pbin IN/q.pbin -o OUT/x.pbin",
    "pbin shuffle": "pbin shuffle IN/p.pbin --seed 1 -o OUT/x.pbin",
    "pbin filter": "pbin filter IN/p.pbin --drop IN/drop.txt -o OUT/x.pbin",
    "pbin repair": "pbin repair IN/p.pbin -o OUT/x.pbin",
    "pbin raw-index": "pbin raw-index IN/text/a.jsonl -o OUT/x.idx",
}
"""What it is called here → the command; IN holds the input, OUT takes the output."""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """A folder with an input of each kind."""
    folder = tmp_path_factory.mktemp("given") / "in"
    (folder / "text" / "deep").mkdir(parents=True)
    (folder / "pairs").mkdir()
    rows = sentences("web", 40)
    (folder / "text" / "a.jsonl").write_bytes(jsonl(rows[:20]))
    (folder / "text" / "deep" / "b-10.jsonl.gz").write_bytes(
        gzip.compress(jsonl(rows[20:30]), mtime=0)
    )
    (folder / "text" / "deep" / "b-9.jsonl.gz").write_bytes(
        gzip.compress(jsonl(rows[30:]), mtime=0)
    )
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "drop.txt").write_text("3\n1\n")
    for name, first in (("p", 1), ("q", 5)):
        documents = [np.arange(first, 40 + number) for number in range(20)]
        write_pbin(folder / f"{name}.pbin", documents, token_bytes=2)
        with MMapIndexedDatasetBuilder(folder / "pairs" / name, np.uint16) as builder:
            for document in documents:
                builder.add_document(document)
    run("shuffle --input IN/pairs/p --output IN/tars --seqlen 9 --workers 1", folder, folder)
    return folder


@pytest.fixture
def bucket(
    new_clients: None, place: S3Store, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> S3Store:
    """A place in a bucket with the same below `in`, as the AWS configuration reaches it."""
    assert place.endpoint_url is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", place.endpoint_url)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    files = {
        path.relative_to(given).as_posix(): path.read_bytes()
        for path in given.rglob("*")
        if path.is_file()
    }
    s3_server.restore(
        place,
        {f"in/{name}": s3_server.Kept(data, {}, (None, None)) for name, data in files.items()},
    )
    return place


def arguments(command: str, source: Path | str, target: Path | str) -> list[str]:
    return [
        word.replace("IN", str(source), 1).replace("OUT", str(target), 1)
        for word in COMMANDS.get(command, command).split()
    ]


def run(command: str, source: Path | str, target: Path | str) -> Result:
    outcome = invoke_nanoset(arguments(command, source, target))
    assert outcome.exit_code == 0, f"{outcome.output}\n{outcome.exception!r}"
    return outcome


def remotely(command: str, bucket: S3Store, more: str = "") -> Result:
    return run(f"{COMMANDS[command]} {more}", f"{bucket.url()}/in", f"{bucket.url()}/out")


def refused(command: str, source: str, target: str) -> NanosetError:
    outcome = invoke_nanoset(arguments(command, source, target))
    assert isinstance(outcome.exception, NanosetError), f"{outcome.output}\n{outcome.exception!r}"
    return outcome.exception


def is_record(name: str) -> bool:
    return name.endswith((".made.json", ".manifest.json", "manifest.json"))


def made_here(command: str, given: Path, target: Path) -> dict[str, bytes]:
    """Name → bytes of what a command makes on this machine, but for records, which name places."""
    target.mkdir()
    run(command, given, target)
    paths = (path for path in target.rglob("*") if path.is_file() and not is_record(path.name))
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in paths}


def made_there(bucket: S3Store) -> dict[str, bytes]:
    kept = s3_server.snapshot(bucket.below("out"))
    return {name: found.data for name, found in kept.items() if not is_record(name)}


def without_names(files: dict[str, bytes]) -> dict[str, bytes]:
    """All but exp_data.json, which names the tokenizer's folder."""
    return {name: data for name, data in files.items() if not name.endswith("exp_data.json")}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_bytes_as_on_this_machine_and_nothing_the_second_time(
    command, bucket, given, tmp_path, monkeypatch
):
    wanted = made_here(command, given, tmp_path / "here")
    remotely(command, bucket)
    assert without_names(made_there(bucket)) == without_names(wanted)
    before = s3_server.snapshot(bucket)
    monkeypatch.setattr(S3Store, "put_file", None)
    monkeypatch.setattr(S3Store, "delete", None)
    assert "already exists" in remotely(command, bucket).output
    assert s3_server.snapshot(bucket) == before
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()], (
        "scratch is gone"
    )


MAP = (
    "map --data-path 0.3 IN/pairs/p 0.7 IN/pairs/q --seq-length 8 --train-samples 90 --split 1,0,0 "
    "--data-cache-path OUT/x"
)


def test_index_files_go_to_a_bucket(bucket, tmp_path):
    (tmp_path / "here").mkdir()
    source = f"{bucket.url()}/in"
    run(MAP, source, tmp_path / "here")
    wanted = {f"x/{path.name}": path.read_bytes() for path in (tmp_path / "here" / "x").iterdir()}
    assert len(wanted) > 10
    assert "already exists" not in run(MAP, source, f"{bucket.url()}/out").output
    there = s3_server.snapshot(bucket.below("out"))
    assert {name: kept.data for name, kept in there.items()} == wanted
    assert "already exists" in run(MAP, source, f"{bucket.url()}/out").output
    bucket.put(f"out/{min(wanted)}", b"of somebody else")
    sidecar = next(name for name in wanted if name.endswith(".json"))
    bucket.delete(f"out/{sidecar}")
    error = refused(MAP, source, f"{bucket.url()}/out")
    assert error.where == f"{bucket.url()}/out/x"
    assert "--overwrite" in str(error)
    run(f"{MAP} --overwrite", source, f"{bucket.url()}/out")
    assert s3_server.snapshot(bucket.below("out")) == there
    error = refused(MAP.replace("--data-cache-path OUT/x", ""), source, "")
    assert "name one with --data-cache-path" in str(error)


def test_a_pair_is_shown_and_checked(bucket, given):
    url = f"{bucket.url()}/in"
    shown = run("inspect IN/pairs/p", given, "").output
    assert run("inspect IN/pairs/p", url, "").output == shown.replace(str(given), url)
    assert run("verify IN/pairs/p --deep --json", url, "").output == run(
        "verify IN/pairs/p --deep --json", given, ""
    ).output.replace(str(given), url)
    tokenized = f"tokenize --input IN/text --output-prefix OUT/x {TEXT}"
    run(tokenized, url, f"{bucket.url()}/out")
    pair = "OUT/x_text_document"
    assert run(
        f"verify {pair} --deep --tokenizer IN/tokenizer.json", url, f"{bucket.url()}/out"
    ).output
    data = bucket.read("out/x_text_document.bin") or b""
    bucket.put("out/x_text_document.bin", data[:-2] + b"\0\0")
    outcome = invoke_nanoset(arguments(f"verify {pair} --deep", url, f"{bucket.url()}/out"))
    assert outcome.exit_code == 1
    assert f"{bucket.url()}/out/x_text_document.bin" in outcome.output.replace("\n", "")
    outcome = invoke_nanoset(arguments("verify IN/nothing", url, ""))
    assert outcome.exit_code == 1
    assert f"{bucket.url()}/in/nothing.idx" in outcome.output.replace("\n", "")


def test_a_pack_is_described_by_its_ends(bucket, given, ranges):
    path = given / "large.pbin"
    write_pbin(
        path, [np.full(700_000, 7, np.uint16), np.arange(900_000).astype(np.uint16)], token_bytes=2
    )
    bucket.put("in/large.pbin", path.read_bytes())
    url = f"{bucket.url()}/in"
    assert run("pbin describe IN/large.pbin", url, "").output == run(
        "pbin describe IN/large.pbin", given, ""
    ).output.replace(str(given), url)
    assert total_bytes(ranges) < path.stat().st_size / 4
    outcome = invoke_nanoset(arguments("pbin describe IN/nothing.pbin", url, ""))
    assert isinstance(outcome.exception, MissingError)
    assert outcome.exception.where == f"{url}/nothing.pbin"


def final(bucket: S3Store) -> set[str]:
    """Names of objects without which nobody takes the others for an output."""
    names = s3_server.snapshot(bucket.below("out"))
    return {
        name
        for name in names
        if name.endswith((".idx", "x/manifest.json", "x/manifest.jsonl", ".pbin"))
    }


@pytest.mark.parametrize("command", ["merge", "shuffle pairs"])
def test_interrupted_anywhere_it_leaves_nothing_that_looks_finished(
    command, bucket, given, tmp_path, monkeypatch
):
    wanted = made_here(command, given, tmp_path / "here")
    changes: list[str] = []
    stop_at: list[int] = [0]

    def counted(name):
        real = getattr(S3Store, name)

        def call(self, *given, **options):
            changes.append(given[0])
            if len(changes) == stop_at[0]:
                raise KeyboardInterrupt
            return real(self, *given, **options)

        monkeypatch.setattr(S3Store, name, call)

    for name in ("put", "put_file", "delete", "compose", "put_parts"):
        counted(name)
    remotely(command, bucket)
    total, whole = len(changes), final(bucket)
    assert whole
    for number in range(1, total + 1):
        for found in bucket.list("out"):
            bucket.client().delete_object(Bucket=bucket.bucket, Key=bucket.key(found.name))
        changes.clear()
        stop_at[0] = number
        outcome = invoke_nanoset(arguments(command, f"{bucket.url()}/in", f"{bucket.url()}/out"))
        assert outcome.exit_code != 0
        if final(bucket) == whole:
            found_there = {
                name: data for name, data in made_there(bucket).items() if ".begun" not in name
            }
            assert without_names(found_there) == without_names(wanted)
        stop_at[0] = 0
        remotely(command, bucket)
        assert without_names(made_there(bucket)) == without_names(wanted)


def test_tars_that_an_older_version_left_unfinished_are_completed(bucket):
    remotely("shuffle pairs", bucket)
    wanted = s3_server.snapshot(bucket.below("out"))
    # Older versions noted only the digest of the recipe while they published tars.
    manifest = json.loads(bucket.read("out/x/manifest.json"))
    bucket.put("out/x/.begun", manifest["digest"].encode())
    bucket.delete("out/x/manifest.json")
    bucket.delete("out/x/index.json")

    remotely("shuffle pairs", bucket)

    completed = s3_server.snapshot(bucket.below("out"))
    assert {name: kept.data for name, kept in completed.items()} == {
        name: kept.data for name, kept in wanted.items()
    }


@pytest.mark.parametrize("command", ["tokenize", "merge", "shuffle pairs", "pbin merge"])
def test_what_another_made_is_not_replaced(command, bucket, given, tmp_path):
    names = {
        "tokenize": "x_text_document.bin",
        "merge": "x.idx",
        "shuffle pairs": "x/a.tar",
        "pbin merge": "x.pbin",
    }
    key = f"out/{names[command]}"
    bucket.put(key, b"of somebody else")
    error = refused(command, f"{bucket.url()}/in", f"{bucket.url()}/out")
    assert isinstance(error, ConfigError)
    assert (error.where or "").startswith(f"{bucket.url()}/out/x")
    assert bucket.read(key) == b"of somebody else"
    if command != "shuffle pairs":
        remotely(command, bucket, "--overwrite")
        wanted = made_here(command, given, tmp_path / "here")
        assert made_there(bucket) == wanted


def test_other_settings_need_leave_and_what_they_leave_out_goes(bucket):
    remotely("shuffle pairs", bucket, "--wds-chunk-size 40")
    many = {name for name in s3_server.snapshot(bucket.below("out")) if name.endswith(".tar")}
    error = refused(f"{COMMANDS['shuffle pairs']}", f"{bucket.url()}/in", f"{bucket.url()}/out")
    assert "--wds-chunk-size" in str(error)
    remotely("shuffle pairs", bucket, "--overwrite")
    few = {name for name in s3_server.snapshot(bucket.below("out")) if name.endswith(".tar")}
    assert len(few) < len(many)


@pytest.mark.parametrize("command", ["tokenize", "merge", "shuffle pairs", "pbin merge"])
def test_a_bucket_that_is_not_there_is_named(command, bucket, given):
    there, none = f"{bucket.url()}/in", "s3://no-such-bucket-here"
    error = refused(command, there, f"{none}/out")
    assert isinstance(error, StorageError)
    assert none in (error.where or "")
    assert "make the bucket, or correct its name" in (error.remedy or "")
    error = refused(command, f"{none}/in", f"{bucket.url()}/out")
    assert none in (error.where or "")
    assert isinstance(error, StorageError | MissingError)


@pytest.fixture
def forbidden(new_clients: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that nobody may use."""

    def refuse(to: http.server.BaseHTTPRequestHandler) -> None:
        to.rfile.read(int(to.headers.get("Content-Length", 0)))
        say(to, 403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")

    with answering(refuse) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield


@pytest.mark.parametrize(
    "command", ["tokenize", "merge", "shuffle tars", "pack pair", "pbin merge"]
)
def test_without_rights_it_says_so_before_any_work(command, endpoint, given, forbidden):
    for source, target in ((str(given), "s3://b/out"), ("s3://b/in", "s3://b/out")):
        error = refused(command, source, target)
        assert isinstance(error, StorageError)
        assert (error.where or "").startswith("s3://b/")
        assert "credentials" in (error.remedy or "")


def test_what_cannot_be_asked_for(bucket, given, tmp_path):
    error = refused(
        "tokenize --input IN/nothing*.jsonl --output-prefix x --tokenizer OUT",
        f"{bucket.url()}/in",
        given,
    )
    assert isinstance(error, MissingError)
    both = f"--input {bucket.url()}/in/text {given}/text"
    error = refused(
        f"tokenize {both} --output-prefix OUT/x --tokenizer IN/tokenizer.json",
        str(given),
        str(tmp_path),
    )
    assert isinstance(error, InputError)
    assert "several places" in str(error)
    outcome = invoke_nanoset(
        arguments(f"pack text IN/text -o x --scratch OUT/y {TEXT}", given, bucket.url())
    )
    assert outcome.exit_code == 2
    assert "is in a bucket" in outcome.output
    assert not (tmp_path / "s3:").exists()
    error = refused(
        "tokenize --input IN/text --output-prefix OUT/x --tokenizer IN/none",
        f"{bucket.url()}/in",
        str(tmp_path),
    )
    assert isinstance(error, MissingError)
    assert error.where == f"{bucket.url()}/in/none"


def test_a_tokenizer_that_is_written_anew_is_the_new_one(bucket, given, tmp_path):
    command = "tokenize --input IN/text/a.jsonl --output-prefix OUT/x --tokenizer IN --workers 1"
    url = f"{bucket.url()}/in"
    run(command, url, tmp_path)
    first = (tmp_path / "x_text_document.bin").read_bytes()
    bucket.put("in/tokenizer.json", (given / "tokenizer.json").read_bytes() + b" ")
    assert "--overwrite" in str(refused(command, url, str(tmp_path)))
    assert (tmp_path / "x_text_document.bin").read_bytes() == first


def test_the_tokenizer_of_a_project_may_lie_in_a_bucket(bucket, make_project):
    here = load_config(make_project("here"))
    there = load_config(
        make_project(
            "there",
            {
                "path: tokenizer.json": f"path: {bucket.url()}/in/tokenizer.json",
                "root: data": f"root: data\nstorage: {{endpoint_url: {bucket.endpoint_url!r}}}",
            },
        )
    )
    facts = tokenizer_facts(there.tokenizer_file)
    assert facts.fingerprint == tokenizer_facts(here.tokenizer_file).fingerprint
    assert there.tokenizer_file == facts.file
    bucket.delete("in/tokenizer.json")
    with pytest.raises(MissingError, match="there is no tokenizer") as caught:
        _ = there.tokenizer_file
    assert caught.value.where == f"{bucket.url()}/in/tokenizer.json"


def test_tokens_are_joined_within_the_bucket(bucket, given, tmp_path, ranges):
    rows = np.random.default_rng(1).integers(0, 60_000, (2, 2_700_000), np.uint16)
    for number, row in enumerate(rows):  # of 5.4 MB: large enough to be copied
        with MMapIndexedDatasetBuilder(tmp_path / "large" / f"part-{number}", np.uint16) as builder:
            builder.add_document(row)
    for path in (tmp_path / "large").iterdir():
        bucket.put_file(f"large/{path.name}", path)
    run("merge --input IN --output-prefix OUT/x", tmp_path / "large", tmp_path)
    url = f"{bucket.url()}/out"
    run("merge --input IN --output-prefix OUT/x", f"{bucket.url()}/large", url)
    assert total_bytes(ranges) < 1000, "nothing but indices passed through this process"
    for ending in ("bin", "idx"):
        assert bucket.read(f"out/x.{ending}") == (tmp_path / f"x.{ending}").read_bytes()
    assert (
        "already exists"
        in run("merge --input IN --output-prefix OUT/x", f"{bucket.url()}/large", url).output
    )
    bucket.put("large/part-1.bin", b"shorter")
    error = refused(
        "merge --input IN --output-prefix OUT/x --overwrite", f"{bucket.url()}/large", url
    )
    assert isinstance(error, FormatError)
    assert error.where == f"{bucket.url()}/large/part-1.bin"


def test_compressed_text_is_read_once(bucket, given, tmp_path, monkeypatch):
    spans = []

    def counted(call):
        def read(self, name, begin, end, *mark):
            if name.endswith(".gz"):
                spans.append(end - begin)
            return call(self, name, begin, end, *mark)

        return read

    for name in ("read_range", "open_range"):
        monkeypatch.setattr(S3Store, name, counted(getattr(S3Store, name)))
    command = f"tokenize --input IN/text/deep --output-prefix OUT/x {TEXT}"
    run(command, f"{bucket.url()}/in", tmp_path)
    assert sum(spans) == sum(path.stat().st_size for path in (given / "text" / "deep").iterdir())
    assert "already exists" in run(command, f"{bucket.url()}/in", tmp_path).output
    assert sum(spans) == sum(path.stat().st_size for path in (given / "text" / "deep").iterdir())
