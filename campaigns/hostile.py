"""Files that were made to do harm: each is refused, or read without harm, within 400 MiB and a
minute.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import struct
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers  # noqa: F401 - once, before any fork
import zstandard  # noqa: F401
from isal import isal_zlib  # noqa: F401

from campaigns.runner import Kind, Trial, forked
from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.tars.tar_input import _contexts, survey_tars
from nanoset_core.loading.shard_files import iterate_shard, iterate_shards
from nanoset_core.outputs.manifest import Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.access import FileAccess
from nanoset_core.text.contents import contents_of
from nanoset_core.text.documents import read_documents
from nanoset_core.text.fingerprints import fingerprint
from nanoset_core.text.pieces import SourceRange
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

HEAD, COLUMNS, TRIALS = ("file",), ("read", "refused"), 1
MIB = 1 << 20
Make = Callable[[Path], Any]
CASES: dict[str, tuple[Make, Any, str | None]] = {}
"""Name → a function that writes hostile files and reads them, what it has to give, what its error
has to say.
"""


def add(name: str, make: Make, *, reads: Any = None, refused: str | None = None) -> None:
    """Register a case."""
    CASES[name] = make, reads, refused


def case(**expected: Any) -> Callable[[Make], None]:
    """Register a function as the case of its name."""
    return lambda make: add(make.__name__.replace("_", " "), make, **expected)


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """A kind for each case."""
    pa.set_cpu_count(1)
    for name in CASES:
        limits = {"extra_bytes": 400 * MIB, "seconds": 60}
        yield forked((name,), 1, lambda _number, name=name: _try(*CASES[name], folder), **limits)


def _try(make: Make, reads: Any, refused: str | None, scratch: Path) -> Trial:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        try:
            value = json.loads(json.dumps(make(Path(folder))))
        except NanosetError as error:
            is_told = refused is not None and refused in str(error) and folder in str(error)
            return Trial(
                Counter(refused=1),
                [] if is_told and len(str(error)) < 20_000 else [f"refused: {error}"],
            )
    return Trial(Counter(read=1), [] if refused is None and value == reads else [f"read: {value}"])


def read(folder: Path) -> Any:
    """[documents, rejects, reason of the first reject], or "enough" of them."""
    documents, rejects = 0, []
    for batch in _batches(folder, max_line_bytes=16 * MIB):
        documents += len(batch.texts)
        rejects += [reject.reason for reject in batch.rejects]
        if documents + len(rejects) > 100_000:
            return "enough"
    return [documents, len(rejects), rejects[0] if rejects else None]


def _batches(folder: Path, **options: Any) -> Any:
    (stat,) = contents_of(folder).ordered
    return read_documents(folder, SourceRange(tuple(fingerprint(folder, stat))), **options)


def write(path: Path, data: bytes) -> Path:
    """Write a file; → its folder."""
    path.write_bytes(data)
    return path.parent


# JSON lines


def _frame(byte: bytes, blocks: int, window_log: int = 20) -> bytes:
    """A frame of blocks of 128 KiB of one byte, in four bytes each."""
    block, last = (struct.pack("<I", (128 << 10) << 3 | 1 << 1 | end)[:3] + byte for end in (0, 1))
    return b"\x28\xb5\x2f\xfd\0" + bytes([(window_log - 10) << 3]) + block * (blocks - 1) + last


_DEEP = b"[" * 200_000 + b"]" * 200_000
_BRACKETS = b'{"text": "a", "x": ' + _DEEP + b'}\n{"text": ' + _DEEP + b"}\n"
_LINE, _TOO_LARGE = (
    {"reads": [0, 1, "line_too_long"]},
    {"refused": "needs more memory than is available"},
)
for _name, _ending, _data, _expected in (
    (
        "gzip that unpacks to one line",
        ".gz",
        lambda: gzip.compress(b'{"text": "') + gzip.compress(bytes(16 * MIB)) * 64,
        _LINE,
    ),
    ("zstd that unpacks to one line", ".zst", lambda: _frame(b"a", 8 * 1024), _LINE),
    (
        "gzip that unpacks to lines",
        ".gz",
        lambda: gzip.compress(b'{"text": "a"}\n' * MIB) * 64,
        {"reads": "enough"},
    ),
    (
        "zstd that unpacks to blank lines",
        ".zst",
        lambda: _frame(b"\n", 1 << 20),
        {"reads": "enough"},
    ),
    (
        "zstd with a window of 2 GiB",
        ".zst",
        lambda: _frame(b"\n", 20_000, window_log=31),
        _TOO_LARGE,
    ),
    ("json in many brackets", "", lambda: _BRACKETS, {"reads": [0, 2, "invalid_json"]}),
    (
        "json with a number of a million digits",
        "",
        lambda: b'{"text": "a", "id": ' + b"9" * 1_000_000 + b"}\n",
        {"reads": [0, 1, "invalid_json"]},
    ),
):
    add(
        _name,
        lambda folder, e=_ending, data=_data: read(write(folder / f"x.jsonl{e}", data())),
        **_expected,
    )


@case(reads=[600, True])
def json_with_long_ids(folder: Path) -> Any:
    line = b'{"text": "a", "id": "' + b"i" * MIB + b'"}\n'
    batches = list(_batches(write(folder / "x.jsonl.gz", gzip.compress(line) * 600)))
    return [
        sum(len(batch.texts) for batch in batches),
        {len(i or "") for batch in batches for i in batch.ids} == {0},
    ]


# Tables


def table(
    folder: Path, columns: dict[str, Any], name: str = "x.arrow", compression: str | None = None
) -> Path:
    """An Arrow file, or with .stream.arrow a stream, of one record batch; → its folder."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    maker = pa.ipc.new_stream if ".stream" in name else pa.ipc.new_file
    with maker(
        folder / name, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_batch(batch)
    return folder


def _claim(folder: Path, column: str) -> Any:
    """Let the footer say 2^40 where it says 3."""
    file = io.BytesIO()
    pq.write_table(pa.table({column: ["a", "b", "c"]}), file)
    data = file.getvalue()
    size = int.from_bytes(data[-8:-4], "little")
    # Thrift's compact protocol: the next field, of 64 bits, zigzag
    footer = data[-8 - size : -8].replace(b"\x16\x06", b"\x16" + b"\x80" * 5 + b"\x40")
    return read(
        write(
            folder / "x.parquet",
            data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1",
        )
    )


add("parquet that claims rows", lambda folder: _claim(folder, "other"), reads=[0, 4, "missing_key"])
add(
    "parquet that claims rows of text",
    lambda folder: _claim(folder, "text"),
    reads=[3, 1, "corrupt_parquet"],
)


@case(reads=[1, 1, "line_too_long"])
def parquet_with_a_long_text(folder: Path) -> Any:
    texts = pa.table({"text": ["a" * (24 * MIB), "b"]})
    pq.write_table(texts, folder / "x.parquet", compression="zstd", use_dictionary=False)
    return read(folder)


@case(reads=[0, 1, "corrupt_parquet"])
def parquet_with_a_deep_schema(folder: Path) -> Any:
    kind = pa.int8()
    for _ in range(400):
        kind = pa.struct([("a", kind)])
    pq.write_table(pa.table({"text": ["a"], "x": pa.nulls(1, kind)}), folder / "x.parquet")
    return read(folder)


def _views_of_one_text() -> dict[str, Any]:
    text, rows = b"y" * 256 * 1024, 2000
    views = np.zeros((rows, 4), "<i4")
    views[:, 0], views[:, 1] = len(text), int.from_bytes(text[:4], "little")
    buffers = [None, pa.py_buffer(views.tobytes()), pa.py_buffer(text)]
    return {"text": pa.Array.from_buffers(pa.string_view(), rows, buffers)}


def _dictionary_of_a_long_id() -> dict[str, Any]:
    words = pa.array(["i" * 4 * MIB] + ["j"] * 9000)
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), words)
    return {"text": pa.array(["a"] * 200), "id": ids}


for _name, _columns, _reads in (
    ("views of one text", _views_of_one_text, [2000, 0, None]),
    ("dictionary of a long id", _dictionary_of_a_long_id, [200, 0, None]),
):
    add(
        f"arrow {_name}",
        lambda folder, columns=_columns: read(table(folder, columns())),
        reads=_reads,
    )


def _inflated(folder: Path, name: str, *, as_dictionary: bool = False) -> Any:
    """Let a compressed buffer say a size that it does not have."""
    texts = pa.array(["a" * 100_000])
    path = (
        table(folder, {"text": texts.dictionary_encode() if as_dictionary else texts}, name, "zstd")
        / name
    )
    data, size = path.read_bytes(), struct.pack("<q", 100_000)
    assert data.count(size + b"\x28\xb5\x2f\xfd") == 1
    return read(
        write(
            path,
            data.replace(
                size + b"\x28\xb5\x2f\xfd", struct.pack("<q", 8 << 30) + b"\x28\xb5\x2f\xfd"
            ),
        )
    )


for _name, _make in (
    ("", lambda folder: _inflated(folder, "x.arrow")),
    (" stream", lambda folder: _inflated(folder, "x.stream.arrow")),
    (" dictionary", lambda folder: _inflated(folder, "x.arrow", as_dictionary=True)),
):
    add(f"arrow{_name} that says it unpacks to 8 GiB", _make, **_TOO_LARGE)


# Tars


def tar(path: Path, *members: tuple[str, bytes], pax: dict[str, str] | None = None) -> Path:
    """A tar of small members."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(body), pax or {}
            archive.addfile(info, io.BytesIO(body))
    return path


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """The header of a member."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def survey(path: Path) -> Any:
    """Shapes of all contexts of a tar that was not made by us."""
    return [context.shape for context in _contexts(survey_tars([path]).tars[0])]


def hollow(path: Path, start: bytes, size: int) -> Path:
    """A file that is zeros after its start, and takes no room on the disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


def _hollow_shard(folder: Path, start: bytes, size: int) -> Any:
    return list(iterate_shard(hollow(folder / "x.tar", start, size)))


def _digits(folder: Path) -> Any:
    """Python's own search takes time that grows with the square of their number."""
    digits = b"1" * MIB
    start = header("a", len(digits), tarfile.XHDTYPE) + digits + header("a.npy", 0)
    return survey(hollow(folder / "x.tar", start, len(start) + 1024))


def _tar_of(name: str, body: Callable[[], bytes], **options: Any) -> Make:
    return lambda folder: survey(tar(folder / "x.tar", (name, body()), **options))


_HUGE = "more than 67,108,864"
_STRINGS = json.dumps(["a" * 100_000] + [""] * 100_000).encode()
_HOLES = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.json"}
_HOLES |= {"GNU.sparse.realsize": str(1 << 40)}
add(
    "tar with a huge member",
    lambda folder: survey(hollow(folder / "x.tar", header("a.npy", 4 << 30), (4 << 30) + 4096)),
    refused=_HUGE,
)
add(
    "shard with a huge member",
    lambda folder: _hollow_shard(folder, header("a.npy", 250 * MIB), 250 * MIB + 4096),
    refused=_HUGE,
)
add("shard of zeros", lambda folder: _hollow_shard(folder, b"", 300 * MIB), reads=[])
add(
    "tar with an extended header of digits",
    _digits,
    refused="an extended header that cannot be read",
)
add(
    "tar with holes",
    _tar_of("a.json", lambda: b"1" * 400_000, pax=_HOLES),
    refused="does not contain the tokens",
)
add("tar of strings", _tar_of("a.json", lambda: _STRINGS), refused="text among the numbers")
add(
    "tar of zipped strings",
    _tar_of("a.json.gz", lambda: gzip.compress(_STRINGS)),
    refused="text among the numbers",
)
add(
    "tar of brackets",
    _tar_of("a.json", lambda: b"[" * 900 + b"]" * 900),
    refused="does not contain the tokens of a context",
)


# Pipes, devices, links and names


def _pipe(name: str, act: Make) -> Make:
    def make(folder: Path) -> Any:
        os.mkfifo(folder / name)
        return act(folder)

    return make


def _listed_pipe(folder: Path) -> Any:
    (folder / "manifest.jsonl").write_text('{"shard": "x", "num_sequences": 1}\n')
    return list(iterate_shards(folder))


for _name, _file, _make in (
    ("idx", "x.idx", lambda folder: len(MMapIndexedDataset(folder / "x"))),
    ("pbin", "x.pbin", lambda folder: len(PackedDataset(folder / "x.pbin"))),
    ("tar", "x.tar", lambda folder: survey(folder / "x.tar")),
    ("shard", "x.tar", _listed_pipe),
    ("list of shards", "manifest.jsonl", lambda folder: list(iterate_shards(folder))),
):
    add(f"pipe as {_name}", _pipe(_file, _make), refused="a named pipe")


def _facts(folder: Path) -> Any:
    return tokenizer_facts(folder / "t.json").vocab_size


add("pipe as tokenizer", _pipe("t.json", _facts), refused="there is no tokenizer")
add(
    "tokenizer in many brackets",
    lambda folder: _facts(write(folder / "t.json", b'{"version": ' + b"[" * 200_000)),
    refused="not a tokenizer",
)


@case(reads=["untouched", False, True])
def links_in_the_output_root(folder: Path) -> Any:
    """A link in the place of a file gives way; what it leads to stays as it is."""
    victim, place = folder / "victim", folder / "data/datasets/web"
    victim.write_text("untouched")
    place.mkdir(parents=True)
    (place / "current.json").symlink_to(victim)
    (place / ".tmp-x").symlink_to(folder)
    outputs = OutputRoot(FileAccess(folder / "data"))

    def write_one_file(target: Path) -> Written:
        (target / "a").touch()
        return Written({})

    manifest = outputs.commit(Recipe("datasets", "web", 1), write_one_file)
    outputs.make_current(manifest)
    outputs.sweep()
    return [
        victim.read_text(),
        (place / "current.json").is_symlink(),
        outputs.current("datasets", "web") is not None,
    ]
