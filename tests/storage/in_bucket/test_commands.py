"""Commands without a project read from and write to buckets as they do to local folders."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from helpers import s3_server
from helpers.answering import answering, send_answer
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
from nanoset_core.storage.stores.s3.store import S3Store
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

TEXT = f"--tokenizer IN/tokenizer.json --workers 1 --eod {EOD}"
COMMANDS = {
    "tokenize": f"tokenize --input IN/text --output-prefix OUT/x {TEXT} --append-eod",
    "tokenize patterns": (
        f"tokenize --input IN/te*/**/b*.gz IN/text/a.jsonl --output-prefix OUT/x {TEXT} --per-file"
    ),
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
"""Name of a case → the command. IN stands for the place of the inputs, OUT for that of outputs."""
MAP_WITHOUT_CACHE = (
    "map --data-path 0.3 IN/pairs/p 0.7 IN/pairs/q --seq-length 8 --train-samples 90 --split 1,0,0"
)
MAP = f"{MAP_WITHOUT_CACHE} --data-cache-path OUT/x"
MISSING_BUCKET = "s3://no-such-bucket-here"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """A folder with an input of each kind; tests must not write to it."""
    folder = tmp_path_factory.mktemp("inputs") / "in"

    # Text, a tokenizer, and a list of documents.
    rows = sentences("web", 40)
    text_by_name = {
        "a.jsonl": jsonl(rows[:20]),
        "deep/b-10.jsonl.gz": gzip.compress(jsonl(rows[20:30]), mtime=0),
        "deep/b-9.jsonl.gz": gzip.compress(jsonl(rows[30:]), mtime=0),
    }
    (folder / "text" / "deep").mkdir(parents=True)
    for name, data in text_by_name.items():
        (folder / "text" / name).write_bytes(data)
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "drop.txt").write_text("3\n1\n")

    # Tokens as .pbin files, as pairs of .bin and .idx, and as tars.
    (folder / "pairs").mkdir()
    for name, first_token in (("p", 1), ("q", 5)):
        documents = [np.arange(first_token, 40 + number) for number in range(20)]
        write_pbin(folder / f"{name}.pbin", documents, token_bytes=2)
        with MMapIndexedDatasetBuilder(folder / "pairs" / name, np.uint16) as builder:
            for document in documents:
                builder.add_document(document)
    run("shuffle --input IN/pairs/p --output IN/tars --seqlen 9 --workers 1", folder, folder)
    return folder


@pytest.fixture
def bucket(
    place: S3Store, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> S3Store:
    """A bucket with the inputs below `in`, which commands reach by the AWS configuration."""
    assert place.endpoint_url is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", place.endpoint_url)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))

    objects: dict[str, s3_server.StoredObject] = {}
    for path in inputs.rglob("*"):
        if path.is_file():
            name = path.relative_to(inputs).as_posix()
            objects[f"in/{name}"] = s3_server.StoredObject(path.read_bytes(), {}, {})
    s3_server.restore(place, objects)
    return place


def inputs_of(bucket: S3Store) -> str:
    """Return the address of the inputs in a bucket."""
    return f"{bucket.url()}/in"


def outputs_of(bucket: S3Store) -> str:
    """Return the address of the outputs in a bucket."""
    return f"{bucket.url()}/out"


# Running commands


def arguments(command: str, source: Path | str, target: Path | str) -> list[str]:
    """Return the arguments of a command, with a source and a target for IN and OUT.

    Args:
        command: A name in `COMMANDS`, or a command.
        source: Place of the inputs.
        target: Place of the outputs.
    """
    words = COMMANDS.get(command, command).split()
    return [word.replace("IN", str(source), 1).replace("OUT", str(target), 1) for word in words]


def run(command: str, source: Path | str, target: Path | str) -> Result:
    """Run a command, which must succeed, and return what it printed."""
    result = invoke_nanoset(arguments(command, source, target))
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


def run_in_bucket(command: str, bucket: S3Store, options: str = "") -> Result:
    """Run a command of `COMMANDS` with inputs and outputs in a bucket."""
    return run(f"{COMMANDS[command]} {options}", inputs_of(bucket), outputs_of(bucket))


def error_of(command: str, source: Path | str, target: Path | str) -> NanosetError:
    """Run a command, which must fail, and return its error."""
    result = invoke_nanoset(arguments(command, source, target))
    assert isinstance(result.exception, NanosetError), f"{result.output}\n{result.exception!r}"
    return result.exception


# Outputs of commands


def is_compared(name: str) -> bool:
    """Return whether a file must have the same bytes in all places.

    The others name the place of the outputs: records of commands, and exp_data.json, which names
    the folder of the tokenizer.
    """
    return not name.endswith((".made.json", ".manifest.json", "manifest.json", "exp_data.json"))


def local_outputs(command: str, inputs: Path, target: Path) -> dict[str, bytes]:
    """Run a command on this machine, and return the bytes of each output, by name."""
    target.mkdir()
    run(command, inputs, target)
    data_by_name: dict[str, bytes] = {}
    for path in target.rglob("*"):
        name = path.relative_to(target).as_posix()
        if path.is_file() and is_compared(name):
            data_by_name[name] = path.read_bytes()
    return data_by_name


def all_outputs_in(bucket: S3Store) -> dict[str, bytes]:
    """Return the bytes of each object of the outputs in a bucket, by name."""
    snapshot = s3_server.snapshot(bucket.below("out"))
    return {name: stored_object.data for name, stored_object in snapshot.items()}


def outputs_in(bucket: S3Store) -> dict[str, bytes]:
    """Return the bytes of those outputs in a bucket that must be the same in all places."""
    return {name: data for name, data in all_outputs_in(bucket).items() if is_compared(name)}


def tars_in(bucket: S3Store) -> set[str]:
    """Return the names of the tars among the outputs in a bucket."""
    return {name for name in all_outputs_in(bucket) if name.endswith(".tar")}


# The same outputs as on this machine


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_writes_the_same_bytes_to_a_bucket_and_nothing_when_it_is_repeated(
    command, bucket, inputs, tmp_path, monkeypatch
):
    expected_outputs = local_outputs(command, inputs, tmp_path / "here")

    run_in_bucket(command, bucket)
    assert outputs_in(bucket) == expected_outputs

    # When it is repeated, it must not even try to write.
    objects_before = s3_server.snapshot(bucket)
    monkeypatch.setattr(S3Store, "put_file", None)
    monkeypatch.setattr(S3Store, "delete", None)
    assert "already exists" in run_in_bucket(command, bucket).output
    assert s3_server.snapshot(bucket) == objects_before

    # No temporary file is left.
    scratch_files = [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]
    assert not scratch_files


def test_index_files_are_written_to_a_bucket_once(bucket, tmp_path):
    (tmp_path / "here").mkdir()
    run(MAP, inputs_of(bucket), tmp_path / "here")
    expected_files = {}
    for path in (tmp_path / "here" / "x").iterdir():
        expected_files[f"x/{path.name}"] = path.read_bytes()
    assert len(expected_files) > 10

    assert "already exists" not in run(MAP, inputs_of(bucket), outputs_of(bucket)).output
    assert all_outputs_in(bucket) == expected_files

    assert "already exists" in run(MAP, inputs_of(bucket), outputs_of(bucket)).output


def test_index_files_of_somebody_else_are_replaced_only_on_request(bucket):
    run(MAP, inputs_of(bucket), outputs_of(bucket))
    objects_before = s3_server.snapshot(bucket.below("out"))
    names = sorted(objects_before)
    record = next(name for name in names if name.endswith(".json"))
    bucket.put(f"out/{names[0]}", b"of somebody else")
    bucket.delete(f"out/{record}")

    error = error_of(MAP, inputs_of(bucket), outputs_of(bucket))
    assert error.where == f"{outputs_of(bucket)}/x"
    assert "--overwrite" in str(error)

    run(f"{MAP} --overwrite", inputs_of(bucket), outputs_of(bucket))
    assert s3_server.snapshot(bucket.below("out")) == objects_before


def test_index_files_are_not_written_next_to_pairs_in_a_bucket(bucket):
    """Those of pairs on this machine are, unless a folder is named."""
    error = error_of(MAP_WITHOUT_CACHE, inputs_of(bucket), "")

    assert "name one with --data-cache-path" in str(error)


# Commands that show and check


@pytest.mark.parametrize(
    "command", ["inspect IN/pairs/p", "verify IN/pairs/p --deep --json"], ids=["inspect", "verify"]
)
def test_a_pair_in_a_bucket_is_described_as_on_this_machine(bucket, inputs, command):
    local_output = run(command, inputs, "").output

    output = run(command, inputs_of(bucket), "").output

    assert output == local_output.replace(str(inputs), inputs_of(bucket))


def test_a_damaged_pair_in_a_bucket_is_found(bucket):
    verify = "verify OUT/x_text_document --deep"
    tokenize = f"tokenize --input IN/text --output-prefix OUT/x {TEXT}"
    run(tokenize, inputs_of(bucket), outputs_of(bucket))

    # The pair is good.
    tokenizer = "--tokenizer IN/tokenizer.json"
    assert run(f"{verify} {tokenizer}", inputs_of(bucket), outputs_of(bucket)).output

    # Its last token is damaged.
    data = bucket.read("out/x_text_document.bin")
    bucket.put("out/x_text_document.bin", data[:-2] + b"\0\0")
    result = invoke_nanoset(arguments(verify, inputs_of(bucket), outputs_of(bucket)))
    assert result.exit_code == 1
    unwrapped_output = result.output.replace("\n", "")
    assert f"{outputs_of(bucket)}/x_text_document.bin" in unwrapped_output


def test_a_damaged_pack_in_a_bucket_is_named(bucket):
    bucket.put("out/damaged.pbin", b"no pack")
    merge = "pbin merge IN/p.pbin OUT/damaged.pbin -o OUT/merged.pbin"

    result = invoke_nanoset(arguments(merge, inputs_of(bucket), outputs_of(bucket)))

    assert result.exit_code == 1
    assert result.exception.where.startswith(f"{outputs_of(bucket)}/damaged.pbin")


def test_a_missing_pair_in_a_bucket_is_named(bucket):
    result = invoke_nanoset(arguments("verify IN/nothing", inputs_of(bucket), ""))

    assert result.exit_code == 1
    assert f"{inputs_of(bucket)}/nothing.idx" in result.output.replace("\n", "")


def test_a_pack_is_described_without_reading_most_of_it(bucket, tmp_path, ranges):
    pack = tmp_path / "large.pbin"
    documents = [np.full(700_000, 7, np.uint16), np.arange(900_000).astype(np.uint16)]
    write_pbin(pack, documents, token_bytes=2)
    bucket.put("in/large.pbin", pack.read_bytes())
    local_output = run("pbin describe IN/large.pbin", tmp_path, "").output

    output = run("pbin describe IN/large.pbin", inputs_of(bucket), "").output

    assert output == local_output.replace(str(tmp_path), inputs_of(bucket))
    assert total_bytes(ranges) < pack.stat().st_size / 4


def test_a_missing_pack_in_a_bucket_is_named(bucket):
    error = error_of("pbin describe IN/nothing.pbin", inputs_of(bucket), "")

    assert isinstance(error, MissingError)
    assert error.where == f"{inputs_of(bucket)}/nothing.pbin"


# Interrupted commands


def final_outputs_in(bucket: S3Store) -> set[str]:
    """Return the names of the objects that make an output look complete to its readers."""
    endings = (".idx", "x/manifest.json", "x/manifest.jsonl", ".pbin")
    return {name for name in all_outputs_in(bucket) if name.endswith(endings)}


class Interruption:
    """Interrupts a command when it is about to change a bucket the n-th time."""

    def __init__(self) -> None:
        """Begin without an interruption."""
        self.n_changes = 0
        """How often the command has changed the bucket."""
        self.interrupted_change: int | None = None
        """Number of the change, from 1, that is interrupted; None: none of them."""
        self._thread = threading.local()
        """Whether this thread is about to change the bucket: attribute `is_changing`."""

    def before_change(self) -> None:
        """Count a change, and interrupt it if it is its turn."""
        self.n_changes += 1
        if self.n_changes == self.interrupted_change:
            raise KeyboardInterrupt

    def wrap(self, method: Callable[..., object]) -> Callable[..., object]:
        """Return a method of a store that is counted as a change.

        A method that is called by another one, before anything has changed, is not counted again.
        """

        def call(store: S3Store, *args: object, **options: object) -> object:
            if getattr(self._thread, "is_changing", False):
                return method(store, *args, **options)
            self.before_change()
            self._thread.is_changing = True
            try:
                return method(store, *args, **options)
            finally:
                self._thread.is_changing = False

        return call


@pytest.fixture
def interruption(monkeypatch: pytest.MonkeyPatch) -> Interruption:
    """An interruption that the test can time."""
    interruption = Interruption()
    for name in ("put", "put_file", "delete", "compose", "put_parts"):
        monkeypatch.setattr(S3Store, name, interruption.wrap(getattr(S3Store, name)))
    return interruption


@pytest.mark.parametrize(
    "command", ["merge", pytest.param("shuffle pairs", marks=pytest.mark.slow)]
)
def test_a_command_that_is_interrupted_leaves_nothing_that_looks_complete(
    command, bucket, inputs, tmp_path, interruption
):
    expected_outputs = local_outputs(command, inputs, tmp_path / "here")

    # Count the changes of the bucket.
    run_in_bucket(command, bucket)
    n_changes = interruption.n_changes
    final_names = final_outputs_in(bucket)
    assert final_names

    # Interrupt each of them.
    for number in range(1, n_changes + 1):
        for stored in bucket.list("out"):
            bucket.client().delete_object(Bucket=bucket.bucket, Key=bucket.key(stored.name))
        interruption.n_changes = 0
        interruption.interrupted_change = number
        result = invoke_nanoset(arguments(command, inputs_of(bucket), outputs_of(bucket)))
        assert result.exit_code != 0

        # If the output looks complete, it is, except for the note that it was begun.
        if final_outputs_in(bucket) == final_names:
            outputs = outputs_in(bucket)
            finished = {name: data for name, data in outputs.items() if ".begun" not in name}
            assert finished == expected_outputs

        # The same command completes it.
        interruption.interrupted_change = None
        run_in_bucket(command, bucket)
        assert outputs_in(bucket) == expected_outputs


def test_tars_that_an_earlier_version_left_unfinished_are_completed(bucket):
    run_in_bucket("shuffle pairs", bucket)
    expected_outputs = all_outputs_in(bucket)
    # Earlier versions noted only the digest of the recipe while they published tars.
    manifest = json.loads(bucket.read("out/x/manifest.json"))
    bucket.put("out/x/.begun", manifest["digest"].encode())
    bucket.delete("out/x/manifest.json")
    bucket.delete("out/x/index.json")

    run_in_bucket("shuffle pairs", bucket)

    assert all_outputs_in(bucket) == expected_outputs


# Outputs that exist already


@pytest.fixture(
    params=[
        pytest.param(("tokenize", "x_text_document.bin"), id="tokenize"),
        pytest.param(("merge", "x.idx"), id="merge"),
        pytest.param(("pbin merge", "x.pbin"), id="pbin merge"),
    ]
)
def foreign_output(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A command, and an output of it that somebody else has written."""
    command_and_name: tuple[str, str] = request.param
    return command_and_name


def check_refused_because_of(name: str, command: str, bucket: S3Store) -> None:
    """Check that a command refuses to replace an object of somebody else."""
    bucket.put(f"out/{name}", b"of somebody else")

    error = error_of(command, inputs_of(bucket), outputs_of(bucket))

    assert isinstance(error, ConfigError)
    assert (error.where or "").startswith(f"{outputs_of(bucket)}/x")
    assert bucket.read(f"out/{name}") == b"of somebody else"


def test_an_output_of_somebody_else_is_replaced_only_on_request(
    foreign_output, bucket, inputs, tmp_path
):
    command, name = foreign_output
    check_refused_because_of(name, command, bucket)

    run_in_bucket(command, bucket, "--overwrite")

    assert outputs_in(bucket) == local_outputs(command, inputs, tmp_path / "here")


def test_tars_of_somebody_else_are_not_replaced(bucket):
    check_refused_because_of("x/a.tar", "shuffle pairs", bucket)


def test_tars_of_other_settings_are_removed_on_request(bucket):
    run_in_bucket("shuffle pairs", bucket, "--wds-chunk-size 40")
    many_tars = tars_in(bucket)

    error = error_of("shuffle pairs", inputs_of(bucket), outputs_of(bucket))
    assert "--wds-chunk-size" in str(error)

    run_in_bucket("shuffle pairs", bucket, "--overwrite")
    assert len(tars_in(bucket)) < len(many_tars)


# Buckets that are missing or forbidden


@pytest.mark.parametrize("command", ["tokenize", "merge", "shuffle pairs", "pbin merge"])
def test_a_missing_bucket_for_outputs_is_named(command, bucket):
    error = error_of(command, inputs_of(bucket), f"{MISSING_BUCKET}/out")

    assert isinstance(error, StorageError)
    assert MISSING_BUCKET in (error.where or "")
    assert "make the bucket, or correct its name" in (error.remedy or "")


@pytest.mark.parametrize("command", ["tokenize", "merge", "shuffle pairs", "pbin merge"])
def test_a_missing_bucket_of_inputs_is_named(command, bucket):
    error = error_of(command, f"{MISSING_BUCKET}/in", outputs_of(bucket))

    assert isinstance(error, StorageError | MissingError)
    assert MISSING_BUCKET in (error.where or "")


@pytest.fixture(scope="module")
def forbidden_address() -> Iterator[str]:
    """The address of a server that refuses all requests."""

    def refuse(request: http.server.BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        send_answer(
            request,
            403,
            b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
        )

    with answering(refuse) as address:
        yield address


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize("are_inputs_local", [True, False], ids=["local inputs", "all in bucket"])
@pytest.mark.parametrize(
    "command", ["tokenize", "merge", "shuffle tars", "pack pair", "pbin merge"]
)
def test_a_command_without_permission_fails_with_a_remedy(
    command, inputs, are_inputs_local, forbidden_address, monkeypatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", forbidden_address)
    source = "s3://b/in"
    if are_inputs_local:
        source = str(inputs)

    error = error_of(command, source, "s3://b/out")

    assert isinstance(error, StorageError)
    assert (error.where or "").startswith("s3://b/")
    assert "credentials" in (error.remedy or "")


# Inputs that are refused


def test_a_pattern_without_files_is_refused(bucket, inputs):
    command = "tokenize --input IN/nothing*.jsonl --output-prefix x --tokenizer OUT"

    error = error_of(command, inputs_of(bucket), inputs)

    assert isinstance(error, MissingError)


def test_inputs_in_a_bucket_and_on_this_machine_cannot_be_mixed(bucket, inputs, tmp_path):
    command = (
        f"tokenize --input {inputs_of(bucket)}/text {inputs}/text "
        "--output-prefix OUT/x --tokenizer IN/tokenizer.json"
    )

    error = error_of(command, inputs, tmp_path)

    assert isinstance(error, InputError)
    assert "several places" in str(error)


def test_scratch_space_must_not_be_in_a_bucket(bucket, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = f"pbin write IN/text -o x --scratch OUT/y {TEXT}"

    result = invoke_nanoset(arguments(command, inputs, bucket.url()))

    assert result.exit_code == 2
    assert "is in a bucket" in result.output
    assert not (tmp_path / "s3:").exists()


def test_a_missing_tokenizer_in_a_bucket_is_named(bucket, tmp_path):
    command = "tokenize --input IN/text --output-prefix OUT/x --tokenizer IN/none"

    error = error_of(command, inputs_of(bucket), tmp_path)

    assert isinstance(error, MissingError)
    assert error.where == f"{inputs_of(bucket)}/none"


# Tokenizers in buckets


def test_a_tokenizer_that_is_replaced_in_the_bucket_makes_another_output(bucket, inputs, tmp_path):
    command = "tokenize --input IN/text/a.jsonl --output-prefix OUT/x --tokenizer IN --workers 1"
    run(command, inputs_of(bucket), tmp_path)
    tokens_before = (tmp_path / "x_text_document.bin").read_bytes()
    bucket.put("in/tokenizer.json", (inputs / "tokenizer.json").read_bytes() + b" ")

    error = error_of(command, inputs_of(bucket), tmp_path)

    assert "--overwrite" in str(error)
    assert (tmp_path / "x_text_document.bin").read_bytes() == tokens_before


@pytest.fixture
def config_with_remote_tokenizer(bucket: S3Store, make_project):
    """The settings of a project whose tokenizer is in the bucket."""
    storage = f"storage: {{endpoint_url: {bucket.endpoint_url!r}}}"
    replacements = {
        "path: tokenizer.json": f"path: {inputs_of(bucket)}/tokenizer.json",
        "root: data": f"root: data\n{storage}",
    }
    return load_config(make_project("remote", replacements))


def test_the_tokenizer_of_a_project_may_be_in_a_bucket(config_with_remote_tokenizer, make_project):
    local_config = load_config(make_project("local"))
    local_facts = tokenizer_facts(local_config.tokenizer_file)

    facts = tokenizer_facts(config_with_remote_tokenizer.tokenizer_file)

    assert facts.fingerprint == local_facts.fingerprint
    assert config_with_remote_tokenizer.tokenizer_file == facts.file


def test_a_tokenizer_of_a_project_that_was_deleted_from_the_bucket_is_named(
    config_with_remote_tokenizer, bucket
):
    assert config_with_remote_tokenizer.tokenizer_file
    bucket.delete("in/tokenizer.json")

    with pytest.raises(MissingError, match="there is no tokenizer") as caught:
        _ = config_with_remote_tokenizer.tokenizer_file

    assert caught.value.where == f"{inputs_of(bucket)}/tokenizer.json"


# Bytes that pass through this process


def test_pairs_are_joined_within_the_bucket(bucket, tmp_path, ranges):
    # Two pairs with 5.4 MB of tokens, which is large enough to be copied within a bucket.
    token_rows = np.random.default_rng(1).integers(0, 60_000, (2, 2_700_000), np.uint16)
    for number, tokens in enumerate(token_rows):
        with MMapIndexedDatasetBuilder(tmp_path / "large" / f"part-{number}", np.uint16) as builder:
            builder.add_document(tokens)
    for path in (tmp_path / "large").iterdir():
        bucket.put_file(f"large/{path.name}", path)
    merge = "merge --input IN --output-prefix OUT/x"
    pairs_in_bucket = f"{bucket.url()}/large"

    # Both places get the same bytes, and only the indices are read from the bucket.
    run(merge, tmp_path / "large", tmp_path)
    run(merge, pairs_in_bucket, outputs_of(bucket))
    assert total_bytes(ranges) < 1000
    assert bucket.read("out/x.bin") == (tmp_path / "x.bin").read_bytes()
    assert bucket.read("out/x.idx") == (tmp_path / "x.idx").read_bytes()

    # The same command does nothing.
    assert "already exists" in run(merge, pairs_in_bucket, outputs_of(bucket)).output

    # A pair whose tokens are fewer than its index says is refused.
    bucket.put("large/part-1.bin", b"shorter")
    error = error_of(f"{merge} --overwrite", pairs_in_bucket, outputs_of(bucket))
    assert isinstance(error, FormatError)
    assert error.where == f"{pairs_in_bucket}/part-1.bin"


@pytest.fixture
def n_bytes_of_compressed_text(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each range of a compressed file that is requested from a bucket."""
    lengths: list[int] = []

    def count_bytes(read: Callable[..., object]) -> Callable[..., object]:
        def counted_read(store: S3Store, name: str, start: int, stop: int, *args: object) -> object:
            if name.endswith(".gz"):
                lengths.append(stop - start)
            return read(store, name, start, stop, *args)

        return counted_read

    for name in ("read_range", "open_range"):
        monkeypatch.setattr(S3Store, name, count_bytes(getattr(S3Store, name)))
    return lengths


def test_compressed_text_is_read_once(bucket, inputs, tmp_path, n_bytes_of_compressed_text):
    command = f"tokenize --input IN/text/deep --output-prefix OUT/x {TEXT}"
    n_bytes_of_files = sum(path.stat().st_size for path in (inputs / "text" / "deep").iterdir())

    run(command, inputs_of(bucket), tmp_path)
    assert sum(n_bytes_of_compressed_text) == n_bytes_of_files

    # The same command does not read it again.
    assert "already exists" in run(command, inputs_of(bucket), tmp_path).output
    assert sum(n_bytes_of_compressed_text) == n_bytes_of_files
