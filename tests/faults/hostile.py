"""Files that were made to do harm, each read in a process of its own with little memory and time.

    PYTHONPATH=tests python -m faults.hostile

Prints a line of JSON for each case: name, what became of it, MiB on top of the process, seconds.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import struct
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import NanosetError
from nanoset_core.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.packed import PackedDataset
from nanoset_core.raw.documents import read_documents
from nanoset_core.raw.fingerprints import fingerprint
from nanoset_core.raw.importing import import_parquet
from nanoset_core.raw.listing import list_files
from nanoset_core.raw.pieces import SourceRange
from nanoset_core.raw.survey import take_inventory
from nanoset_core.shuffling.reader import iterate_shard, iterate_shards
from nanoset_core.shuffling.tar_input import _contexts, survey_tars
from nanoset_core.storage.access import LocalAccess
from nanoset_core.tokenization.tokenizer import tokenizer_facts

EXTRA_BYTES = 400 << 20
"""address space that a case may take on top of the process as it is"""
SECONDS = 60
"""of a processor, for one case"""
STILL_SECONDS = 600
"""after which a case hangs that takes none"""
MOST_LINE_BYTES = 16 << 20
ENOUGH = 100_000
"""documents and rejects after which a case counts as read without harm"""
MIB = 1 << 20

Case = Callable[[Path], Any]
CASES: dict[str, Case] = {}


def case(make: Case) -> Case:
    """Register a function that writes hostile files into a folder, reads them and gives what was read."""
    CASES[make.__name__.replace("_", " ")] = make
    return make


def read(folder: Path) -> Any:
    """[documents, rejects, reason of the first reject], or "enough" of them."""
    documents, rejects = 0, []
    (stat,) = list_files(folder)
    source = SourceRange(tuple(fingerprint(folder, stat)))
    for batch in read_documents(folder, source, max_line_bytes=MOST_LINE_BYTES):
        documents += len(batch.texts)
        rejects += [reject.reason for reject in batch.rejects]
        if documents + len(rejects) > ENOUGH:
            return "enough"
    return [documents, len(rejects), rejects[0] if rejects else None]


def table(folder: Path, columns: dict[str, Any], name: str = "x.arrow", compression: str | None = None) -> Path:
    """An Arrow file, or with .stream.arrow a stream, of one record batch."""
    import pyarrow as pa

    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    maker = pa.ipc.new_stream if ".stream" in name else pa.ipc.new_file
    with maker(folder / name, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return folder / name


# JSON lines


@case
def gzip_that_unpacks_to_one_line(folder: Path) -> Any:
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(b'{"text": "') + gzip.compress(bytes(16 * MIB), 6) * 64)
    return read(folder)


@case
def zstd_that_unpacks_to_one_line(folder: Path) -> Any:
    (folder / "x.jsonl.zst").write_bytes(_frame(b"a", 8 * 1024))
    return read(folder)


@case
def gzip_that_unpacks_to_lines(folder: Path) -> Any:
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * MIB) * 64)
    return read(folder)


@case
def zstd_that_unpacks_to_blank_lines(folder: Path) -> Any:
    (folder / "x.jsonl.zst").write_bytes(_frame(b"\n", 1 << 20))
    return read(folder)


@case
def zstd_with_a_window_of_2_GiB(folder: Path) -> Any:
    (folder / "x.jsonl.zst").write_bytes(_frame(b"\n", 20_000, window_log=31))
    return read(folder)


def _frame(byte: bytes, blocks: int, window_log: int = 20) -> bytes:
    """A frame of blocks of 128 KiB of one byte, in four bytes each."""
    block, last = (struct.pack("<I", (128 << 10) << 3 | 1 << 1 | end)[:3] + byte for end in (0, 1))
    return b"\x28\xb5\x2f\xfd\0" + bytes([(window_log - 10) << 3]) + block * (blocks - 1) + last


@case
def json_in_many_brackets(folder: Path) -> Any:
    deep = b"[" * 200_000 + b"]" * 200_000
    (folder / "x.jsonl").write_bytes(b'{"text": "a", "x": ' + deep + b'}\n{"text": ' + deep + b"}\n")
    return read(folder)


@case
def json_with_a_number_of_a_million_digits(folder: Path) -> Any:
    (folder / "x.jsonl").write_bytes(b'{"text": "a", "id": ' + b"9" * 1_000_000 + b"}\n")
    return read(folder)


@case
def json_with_long_ids(folder: Path) -> Any:
    line = b'{"text": "a", "id": "' + b"i" * MIB + b'"}\n'
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(line) * 600)
    (stat,) = list_files(folder)
    batches = list(read_documents(folder, SourceRange(tuple(fingerprint(folder, stat)))))
    return [sum(len(batch.texts) for batch in batches), {len(i or "") for batch in batches for i in batch.ids} == {0}]


# Tables


@case
def parquet_that_claims_rows(folder: Path) -> Any:
    return _claim(folder, "other")


@case
def parquet_that_claims_rows_of_text(folder: Path) -> Any:
    return _claim(folder, "text")


def _claim(folder: Path, column: str) -> Any:
    """Let the footer say 2^40 where it says 3."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table({column: ["a", "b", "c"]}), file)
    data = file.getvalue()
    size = int.from_bytes(data[-8:-4], "little")
    # Thrift's compact protocol: the next field, of 64 bits, zigzag
    footer = data[-8 - size : -8].replace(b"\x16\x06", b"\x16" + b"\x80" * 5 + b"\x40")
    (folder / "x.parquet").write_bytes(data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return read(folder)


@case
def parquet_with_a_long_text(folder: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.table({"text": ["a" * (24 * MIB), "b"]})
    pq.write_table(texts, folder / "x.parquet", compression="zstd", use_dictionary=False)
    return read(folder)


@case
def parquet_with_a_deep_schema(folder: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.int8()
    for _ in range(400):
        kind = pa.struct([("a", kind)])
    pq.write_table(pa.table({"text": ["a"], "x": pa.nulls(1, kind)}), folder / "x.parquet")
    return read(folder)


@case
def arrow_of_nulls(folder: Path) -> Any:
    import pyarrow as pa

    table(folder, {"other": pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None])})
    return read(folder)


@case
def arrow_of_one_run(folder: Path) -> Any:
    import pyarrow as pa

    runs = pa.RunEndEncodedArray.from_arrays(pa.array([(1 << 31) - 1], pa.int32()), pa.array(["x" * 1000]))
    table(folder, {"text": runs})
    return read(folder)


@case
def arrow_views_of_one_text(folder: Path) -> Any:
    import pyarrow as pa

    text, rows = b"y" * 256 * 1024, 2000
    views = np.zeros((rows, 4), "<i4")
    views[:, 0], views[:, 1] = len(text), int.from_bytes(text[:4], "little")
    column = pa.Array.from_buffers(pa.string_view(), rows, [None, pa.py_buffer(views.tobytes()), pa.py_buffer(text)])
    table(folder, {"text": column})
    return read(folder)


@case
def arrow_list_of_nulls_as_id(folder: Path) -> Any:
    import pyarrow as pa

    count = (1 << 31) - 1
    nulls = pa.Array.from_buffers(pa.null(), count, [None])
    table(folder, {"text": pa.array(["a"]), "id": pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), nulls)})
    return read(folder)


@case
def arrow_overlapping_lists_as_id(folder: Path) -> Any:
    import pyarrow as pa

    rows = 20_000
    begins, sizes = (pa.array(np.full(rows, value, np.int32)) for value in (0, rows))
    lists = pa.ListViewArray.from_arrays(begins, sizes, pa.array(np.zeros(rows, np.int8)))
    table(folder, {"text": pa.array(["a"] * rows), "id": lists})
    return read(folder)


@case
def arrow_dictionary_of_a_long_id(folder: Path) -> Any:
    import pyarrow as pa

    rows = 200
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["i" * 4 * MIB] + ["j"] * 9000))
    table(folder, {"text": pa.array(["a"] * rows), "id": ids})
    return read(folder)


@case
def arrow_list_of_nulls_imported(folder: Path) -> Any:
    arrow_list_of_nulls_as_id(folder)
    return import_parquet(folder / "x.arrow", folder / "x.jsonl").rows


@case
def arrow_that_says_it_unpacks_to_8_GiB(folder: Path) -> Any:
    return _inflated(folder, "x.arrow")


@case
def arrow_stream_that_says_it_unpacks_to_8_GiB(folder: Path) -> Any:
    return _inflated(folder, "x.stream.arrow")


@case
def arrow_dictionary_that_says_it_unpacks_to_8_GiB(folder: Path) -> Any:
    return _inflated(folder, "x.arrow", as_dictionary=True)


def _inflated(folder: Path, name: str, *, as_dictionary: bool = False) -> Any:
    """Let a compressed buffer say a size that it does not have."""
    import pyarrow as pa

    texts = pa.array(["a" * 100_000])
    path = table(folder, {"text": texts.dictionary_encode() if as_dictionary else texts}, name, "zstd")
    data, size = path.read_bytes(), struct.pack("<q", 100_000)
    assert data.count(size + b"\x28\xb5\x2f\xfd") == 1
    path.write_bytes(data.replace(size + b"\x28\xb5\x2f\xfd", struct.pack("<q", 8 << 30) + b"\x28\xb5\x2f\xfd"))
    return read(folder)


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


@case
def tar_with_a_huge_member(folder: Path) -> Any:
    return survey(hollow(folder / "x.tar", header("a.npy", 4 << 30), (4 << 30) + 4096))


@case
def shard_with_a_huge_member(folder: Path) -> Any:
    path = hollow(folder / "x.tar", header("a.npy", 250 * MIB), 250 * MIB + 4096)
    return len(list(iterate_shard(path)))


@case
def shard_of_zeros(folder: Path) -> Any:
    return list(iterate_shard(hollow(folder / "x.tar", b"", 300 * MIB)))


@case
def tar_with_a_huge_extended_header(folder: Path) -> Any:
    return survey(hollow(folder / "x.tar", header("a", 4 << 30, tarfile.XHDTYPE), (4 << 30) + 4096))


@case
def tar_with_an_extended_header_of_digits(folder: Path) -> Any:
    """Python's own search takes time that grows with the square of their number."""
    digits = b"1" * MIB
    start = header("a", len(digits), tarfile.XHDTYPE) + digits + header("a.npy", 0)
    return survey(hollow(folder / "x.tar", start, len(start) + 1024))


@case
def tar_with_a_long_name(folder: Path) -> Any:
    return survey(tar(folder / "x.tar", ("a/" * 100_000 + "b.json", b"[1]")))


@case
def tar_with_holes(folder: Path) -> Any:
    holes = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.json"}
    return survey(tar(folder / "x.tar", ("a.json", b"1" * 400_000), pax=holes | {"GNU.sparse.realsize": str(1 << 40)}))


@case
def tar_of_strings(folder: Path) -> Any:
    return survey(tar(folder / "x.tar", ("a.json", json.dumps(["a" * 100_000] + [""] * 100_000).encode())))


@case
def tar_of_zipped_strings(folder: Path) -> Any:
    text = gzip.compress(json.dumps(["a" * 100_000] + [""] * 100_000).encode())
    return survey(tar(folder / "x.tar", ("a.json.gz", text)))


@case
def tar_of_brackets(folder: Path) -> Any:
    return survey(tar(folder / "x.tar", ("a.json", b"[" * 900 + b"]" * 900)))


@case
def shard_with_a_negative_size(folder: Path) -> Any:
    block = bytearray(header("a.npy", 0))
    block[124:136], block[148:156] = b"-0000001000\0", b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (folder / "x.tar").write_bytes(bytes(block) + bytes(10240))
    return len(list(iterate_shard(folder / "x.tar")))


@case
def list_of_shards_elsewhere(folder: Path) -> Any:
    (folder / "data").mkdir()
    tar(folder / "x.tar", ("a.json.gz", gzip.compress(b"[1]")))
    (folder / "data" / "manifest.jsonl").write_text('{"shard": "../x", "num_sequences": 1}\n')
    return len(list(iterate_shards(folder / "data")))


# Pipes, devices, links and names


@case
def pipes_beside_text(folder: Path) -> Any:
    (folder / "web").mkdir()
    (folder / "web" / "a.jsonl").write_text('{"text": "a"}\n')
    os.mkfifo(folder / "web" / "b.jsonl")
    (folder / "c.jsonl").symlink_to("/dev/zero")
    return take_inventory(folder / "web", "web").files


@case
def device_behind_a_link_in_a_corpus(folder: Path) -> Any:
    (folder / "web").mkdir()
    (folder / "web" / "a.jsonl").symlink_to("/dev/zero")
    return take_inventory(folder / "web", "web").files


@case
def file_that_became_a_pipe(folder: Path) -> Any:
    (folder / "x.jsonl").write_text('{"text": "a"}\n')
    (stat,) = list_files(folder)
    pieces = tuple(fingerprint(folder, stat))
    (folder / "x.jsonl").unlink()
    os.mkfifo(folder / "x.jsonl")
    return len(list(read_documents(folder, SourceRange(pieces))))


@case
def folders_in_folders(folder: Path) -> Any:
    place = folder
    for _ in range(150):
        place = place / "a"
        place.mkdir()
    return [file.path for file in list_files(folder)]


@case
def pipe_as_idx(folder: Path) -> Any:
    os.mkfifo(folder / "x.idx")
    return len(MMapIndexedDataset(folder / "x"))


@case
def device_as_bin(folder: Path) -> Any:
    with MMapIndexedDatasetBuilder(folder / "x", np.uint16) as builder:
        builder.add_document(np.array([1, 2]), [2])
        builder.finalize()
    (folder / "x.bin").unlink()
    (folder / "x.bin").symlink_to("/dev/zero")
    return len(MMapIndexedDataset(folder / "x"))


@case
def pipe_as_pbin(folder: Path) -> Any:
    os.mkfifo(folder / "x.pbin")
    return len(PackedDataset(folder / "x.pbin"))


@case
def pipe_as_tar(folder: Path) -> Any:
    os.mkfifo(folder / "x.tar")
    return survey(folder / "x.tar")


@case
def pipe_as_shard(folder: Path) -> Any:
    os.mkfifo(folder / "x.tar")
    (folder / "manifest.jsonl").write_text('{"shard": "x", "num_sequences": 1}\n')
    return len(list(iterate_shards(folder)))


@case
def pipe_as_list_of_shards(folder: Path) -> Any:
    os.mkfifo(folder / "manifest.jsonl")
    return len(list(iterate_shards(folder)))


@case
def pipe_as_tokenizer(folder: Path) -> Any:
    os.mkfifo(folder / "t.json")
    return tokenizer_facts(folder / "t.json").vocab_size


@case
def tokenizer_in_many_brackets(folder: Path) -> Any:
    (folder / "t.json").write_text('{"version": ' + "[" * 200_000)
    return tokenizer_facts(folder / "t.json").vocab_size


@case
def links_in_the_output_root(folder: Path) -> Any:
    """A link in the place of a file gives way; what it leads to stays as it is."""
    victim, place = folder / "victim", folder / "data/datasets/web"
    victim.write_text("untouched")
    place.mkdir(parents=True)
    (place / "current.json").symlink_to(victim)
    (place / ".tmp-x").symlink_to(folder)
    outputs = OutputRoot(LocalAccess(folder / "data"))
    manifest = outputs.commit(Recipe("datasets", "web", 1), lambda target: ((target / "a").touch() or {}, {}))
    outputs.make_current(manifest)
    outputs.sweep()
    return [victim.read_text(), (place / "current.json").is_symlink(), outputs.current("datasets", "web") is not None]


def run(name: str) -> tuple[str, Any, int]:
    """(outcome, value or text of the error, MiB) of a case in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        begin, end = os.pipe()
        child = os.fork()
        if child == 0:
            _child(CASES[name], Path(folder), end)
        os.close(end)
        with open(begin, "rb") as pipe:
            told = pipe.read()
        status = os.waitpid(child, 0)[1]
    if not told:
        return ("hung" if status in (signal.SIGPROF, signal.SIGALRM) else "crashed"), f"status {status}", 0
    outcome, value, mib = json.loads(told)
    return outcome, value, mib


def _child(made: Case, folder: Path, pipe: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + EXTRA_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(STILL_SECONDS)
    try:
        outcome, value = "read", made(folder)
    except NanosetError as error:
        named = str(folder) in str(error) and len(str(error)) < 20_000
        outcome, value = ("refused" if named else "names no file"), str(error)
    except BaseException as error:  # noqa: BLE001 - whatever else it is, that is the finding
        outcome, value = "foreign", f"{type(error).__name__}: {error}"
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    os.write(pipe, json.dumps([outcome, value, mib]).encode()[: 1 << 15])
    os._exit(0)


def main() -> None:
    import isal.isal_zlib
    import pyarrow.compute
    import pyarrow.parquet
    import tokenizers
    import zstandard

    assert all((isal.isal_zlib, pyarrow.compute, pyarrow.parquet, tokenizers, zstandard))  # once, before any fork
    pyarrow.set_cpu_count(1)
    for name in CASES:
        begun = time.monotonic()
        print(json.dumps([name, *run(name), round(time.monotonic() - begun, 2)]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
