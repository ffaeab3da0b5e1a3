"""Read files that were made to do harm: each must be refused, or read without harm.

"Without harm" means that reading takes at most 400 MiB of memory and a minute of processor time,
and changes no other file. Each case in `CASES` writes such a file and reads it.
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
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# These are imported once, before any fork: a fork would count their memory as its own.
import tokenizers  # noqa: F401
import zstandard  # noqa: F401
from isal import isal_zlib  # noqa: F401

from campaigns.runner import Kind, Trial, forked
from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.tars.tar_input import _contexts, survey_tars
from nanoset_core.loading.tar_files import iterate_shard, iterate_shards
from nanoset_core.outputs.manifest import Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.access import FileAccess
from nanoset_core.text.documents import DocumentBatch, read_documents
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.inventory.fingerprints import fingerprint
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

HEAD = ("file",)
"""First column of the table."""
COLUMNS = ("read", "refused")
"""The file was read; an error of nanoset named it."""
TRIALS = 1
"""Trials of each case: nothing is random."""
MIB = 1 << 20
GIB = 1 << 30
_MAX_MESSAGE_LENGTH = 20_000
"""A longer message would fill a terminal; it most likely contains the file."""
_ENOUGH_LINES = 100_000
"""Lines after which `read_text` stops: by then, their number does no more harm."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of a zstd frame."""
_ZSTD_BLOCK_BYTES = 128 << 10
"""The most that a block of a zstd frame unpacks to."""

WriteAndRead = Callable[[Path], Any]
"""Writes a hostile file into an empty folder, reads it, and returns a value that JSON can hold."""


class HostileCase(NamedTuple):
    """A hostile file, and what must happen when it is read: exactly one of two things."""

    write_and_read: WriteAndRead
    value: Any = None
    """What `write_and_read` must return, if it must not be refused."""
    refusal: str | None = None
    """What the error must contain, if the file must be refused."""


CASES: dict[str, HostileCase] = {}
"""Name → case."""


def add_case(
    name: str, write_and_read: WriteAndRead, *, reads: Any = None, refused: str | None = None
) -> None:
    """Add a case to CASES.

    Args:
        name: Its name in the table.
        write_and_read: Writes the file and reads it.
        reads: See `HostileCase.value`.
        refused: See `HostileCase.refusal`.
    """
    CASES[name] = HostileCase(write_and_read, reads, refused)


def hostile_case(**expected: Any) -> Callable[[WriteAndRead], WriteAndRead]:
    """Return a decorator that adds a function to CASES by its name, with spaces for underscores.

    Args:
        expected: `reads` or `refused`; see `add_case`.
    """

    def decorate(function: WriteAndRead) -> WriteAndRead:
        add_case(function.__name__.replace("_", " "), function, **expected)
        return function

    return decorate


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """Yield a kind of trial for each case; it has one trial.

    Args:
        folder: Where the trials write.
        options: Options of the command line.
    """
    # Each further thread of pyarrow would take address space, which is limited.
    pa.set_cpu_count(1)
    for name, case in CASES.items():

        def run_trial(_number: int, case: HostileCase = case) -> Trial:
            return _run_case(case, folder)

        yield forked((name,), 1, run_trial, extra_bytes=400 * MIB, seconds=60)


def _run_case(case: HostileCase, scratch: Path) -> Trial:
    """Write and read the file of a case, and compare the result with what must happen."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        try:
            value = case.write_and_read(Path(folder))
        except NanosetError as error:
            message = str(error)
            is_expected = case.refusal is not None and case.refusal in message
            names_file = folder in message and len(message) < _MAX_MESSAGE_LENGTH
            wrong = [] if is_expected and names_file else [f"refused: {message}"]
            return Trial(Counter(["refused"]), wrong)

    # As JSON reads it again, a tuple is a list, so that it can be compared with the expectation.
    value = json.loads(json.dumps(value))
    is_expected = case.refusal is None and value == case.value
    return Trial(Counter(["read"]), [] if is_expected else [f"read: {value}"])


def read_text(folder: Path) -> Any:
    """Read the only file of a folder as raw text.

    Returns:
        [number of documents, number of rejected lines, reason of the first rejection or None], or
        "enough" if the file has more than `_ENOUGH_LINES` lines.
    """
    n_documents = 0
    reasons: list[str] = []
    for batch in _read_batches(folder, max_line_bytes=16 * MIB):
        n_documents += len(batch.texts)
        reasons += [reject.reason for reject in batch.rejects]
        if n_documents + len(reasons) > _ENOUGH_LINES:
            return "enough"
    return [n_documents, len(reasons), reasons[0] if reasons else None]


def _read_batches(folder: Path, **options: Any) -> Iterator[DocumentBatch]:
    """Return the documents of the only file of a folder, in batches.

    Args:
        folder: The folder.
        options: Passed to `read_documents`.
    """
    (stat,) = contents_of(folder).ordered
    pieces = tuple(fingerprint(folder, stat))
    return read_documents(folder, SourceRange(pieces), **options)


def write(path: Path, data: bytes) -> Path:
    """Write a file, and return its folder."""
    path.write_bytes(data)
    return path.parent


# --- JSON lines, plain and compressed ---


def _zstd_frame(byte: bytes, n_blocks: int, window_log: int = 20) -> bytes:
    """Return a zstd frame that unpacks to one byte, repeated, 128 KiB for each four of its bytes.

    Args:
        byte: The byte.
        n_blocks: Number of blocks of 128 KiB.
        window_log: Logarithm to base 2 of the memory that the frame asks its reader to set aside.
    """
    # A block starts with a number of three bytes: its size, its type (1: one byte that is repeated)
    # in two bits, and one bit that says whether it is the last one.
    inner_header = struct.pack("<I", _ZSTD_BLOCK_BYTES << 3 | 1 << 1)[:3]
    last_header = struct.pack("<I", _ZSTD_BLOCK_BYTES << 3 | 1 << 1 | 1)[:3]
    window_descriptor = bytes([(window_log - 10) << 3])
    frame_header = _ZSTD_MAGIC + b"\0" + window_descriptor
    return frame_header + (inner_header + byte) * (n_blocks - 1) + last_header + byte


@hostile_case(reads=[0, 1, "line_too_long"])
def gzip_that_unpacks_to_one_line(folder: Path) -> Any:
    """512 MiB of zeros, in 32 gzip members, after the start of a JSON line."""
    zeros = gzip.compress(bytes(16 * MIB))
    return read_text(write(folder / "x.jsonl.gz", gzip.compress(b'{"text": "') + zeros * 32))


@hostile_case(reads=[0, 1, "line_too_long"])
def zstd_that_unpacks_to_one_line(folder: Path) -> Any:
    """512 MiB of the letter a."""
    return read_text(write(folder / "x.jsonl.zst", _zstd_frame(b"a", 4 * 1024)))


@hostile_case(reads="enough")
def gzip_that_unpacks_to_lines(folder: Path) -> Any:
    """64 million short documents, which must be returned in batches."""
    lines = gzip.compress(b'{"text": "a"}\n' * MIB)
    return read_text(write(folder / "x.jsonl.gz", lines * 64))


@hostile_case(reads="enough")
def zstd_that_unpacks_to_blank_lines(folder: Path) -> Any:
    """128 GiB of line ends."""
    return read_text(write(folder / "x.jsonl.zst", _zstd_frame(b"\n", 1 << 20)))


@hostile_case(refused="needs more memory than is available")
def zstd_with_a_window_of_2_GiB(folder: Path) -> Any:
    """A frame that asks its reader to set aside 2 GiB."""
    return read_text(write(folder / "x.jsonl.zst", _zstd_frame(b"\n", 20_000, window_log=31)))


@hostile_case(reads=[0, 2, "invalid_json"])
def json_in_many_brackets(folder: Path) -> Any:
    """Lists in lists, 200,000 deep, which would overflow the stack of a recursive parser."""
    deep = b"[" * 200_000 + b"]" * 200_000
    in_other_field = b'{"text": "a", "x": ' + deep + b"}\n"
    in_text = b'{"text": ' + deep + b"}\n"
    return read_text(write(folder / "x.jsonl", in_other_field + in_text))


@hostile_case(reads=[0, 1, "invalid_json"])
def json_with_a_number_of_a_million_digits(folder: Path) -> Any:
    """A number whose conversion takes time that grows with the square of its length."""
    line = b'{"text": "a", "id": ' + b"9" * 1_000_000 + b"}\n"
    return read_text(write(folder / "x.jsonl", line))


@hostile_case(reads=[600, True])
def json_with_long_ids(folder: Path) -> Any:
    """600 documents with ids of 1 MiB, which are dropped: all together would need 600 MiB."""
    line = b'{"text": "a", "id": "' + b"i" * MIB + b'"}\n'
    n_documents = 0
    id_lengths: set[int] = set()
    # As a list, so that all batches are in memory at the same time.
    batches = list(_read_batches(write(folder / "x.jsonl.gz", gzip.compress(line) * 600)))
    for batch in batches:
        n_documents += len(batch.texts)
        id_lengths |= {len(identity or "") for identity in batch.ids}
    return [n_documents, id_lengths == {0}]


# --- Tables ---


def table(
    folder: Path, columns: dict[str, Any], name: str = "x.arrow", compression: str | None = None
) -> Path:
    """Write an Arrow file of one record batch, and return its folder.

    Args:
        folder: Its folder.
        columns: Name → array.
        name: Its name; if it contains `.stream`, the file has Arrow's format for streams.
        compression: Of its buffers.
    """
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    open_writer = pa.ipc.new_stream if ".stream" in name else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with open_writer(folder / name, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return folder


def _read_overstated_parquet(folder: Path, column: str) -> Any:
    """Read a Parquet file of 3 rows whose footer says that it has 2^40.

    Args:
        folder: Where the file is written.
        column: Name of its only column.
    """
    file = io.BytesIO()
    pq.write_table(pa.table({column: ["a", "b", "c"]}), file)
    data = file.getvalue()

    # A Parquet file ends with its footer, the footer's size in four bytes, and "PAR1".
    footer_size = int.from_bytes(data[-8:-4], "little")
    body = data[: -8 - footer_size]
    footer = data[-8 - footer_size : -8]

    # The footer is written in Thrift's compact protocol: 0x16 starts a field of type i64 that comes
    # right after the previous one. Numbers are doubled (their last bit is the sign), and stored
    # with seven bits in a byte, the lowest first; so 0x06 is the number 3.
    footer = footer.replace(b"\x16\x06", b"\x16" + b"\x80" * 5 + b"\x40")
    changed = body + footer + struct.pack("<I", len(footer)) + b"PAR1"
    return read_text(write(folder / "x.parquet", changed))


@hostile_case(reads=[0, 4, "missing_key"])
def parquet_that_claims_rows(folder: Path) -> Any:
    """A footer that overstates the number of rows, of a table without text."""
    return _read_overstated_parquet(folder, "other")


@hostile_case(reads=[3, 1, "corrupt_parquet"])
def parquet_that_claims_rows_of_text(folder: Path) -> Any:
    """A footer that overstates the number of rows, of a table with text."""
    return _read_overstated_parquet(folder, "text")


@hostile_case(reads=[1, 1, "line_too_long"])
def parquet_with_a_long_text(folder: Path) -> Any:
    """A text of 24 MiB, which is longer than a line may be."""
    texts = pa.table({"text": ["a" * (24 * MIB), "b"]})
    pq.write_table(texts, folder / "x.parquet", compression="zstd", use_dictionary=False)
    return read_text(folder)


@hostile_case(reads=[0, 1, "corrupt_parquet"])
def parquet_with_a_deep_schema(folder: Path) -> Any:
    """A column of structs in structs, 400 deep."""
    column_type = pa.int8()
    for _ in range(400):
        column_type = pa.struct([("a", column_type)])
    columns = {"text": ["a"], "x": pa.nulls(1, column_type)}
    pq.write_table(pa.table(columns), folder / "x.parquet")
    return read_text(folder)


@hostile_case(reads=[2000, 0, None])
def arrow_views_of_one_text(folder: Path) -> Any:
    """2,000 rows that share the bytes of one text, and would take 500 MiB if they were copied."""
    text = b"y" * 256 * 1024
    n_rows = 2000
    # (rows, 4): length, first four bytes, number of the buffer, and offset in the buffer.
    views = np.zeros((n_rows, 4), "<i4")
    views[:, 0] = len(text)
    views[:, 1] = int.from_bytes(text[:4], "little")
    buffers = [None, pa.py_buffer(views.tobytes()), pa.py_buffer(text)]
    texts = pa.Array.from_buffers(pa.string_view(), n_rows, buffers)
    return read_text(table(folder, {"text": texts}))


@hostile_case(reads=[200, 0, None])
def arrow_dictionary_of_a_long_id(folder: Path) -> Any:
    """200 rows that share an id of 4 MiB, and would take 800 MiB if it was copied."""
    words = pa.array(["i" * 4 * MIB] + ["j"] * 9000)
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), words)
    return read_text(table(folder, {"text": pa.array(["a"] * 200), "id": ids}))


def _read_overstated_arrow(folder: Path, name: str, *, as_dictionary: bool = False) -> Any:
    """Read an Arrow file with a compressed buffer that says that it unpacks to 8 GiB.

    Args:
        folder: Where the file is written.
        name: Its name; see `table`.
        as_dictionary: Whether the buffer belongs to a dictionary, which is read first.
    """
    texts = pa.array(["a" * 100_000])
    if as_dictionary:
        texts = texts.dictionary_encode()
    path = table(folder, {"text": texts}, name, "zstd") / name

    # A compressed buffer starts with its unpacked size, in eight bytes.
    data = path.read_bytes()
    true_start = struct.pack("<q", 100_000) + _ZSTD_MAGIC
    false_start = struct.pack("<q", 8 * GIB) + _ZSTD_MAGIC
    assert data.count(true_start) == 1
    return read_text(write(path, data.replace(true_start, false_start)))


@hostile_case(refused="needs more memory than is available")
def arrow_that_says_it_unpacks_to_8_GiB(folder: Path) -> Any:
    """A file of Arrow's format for files."""
    return _read_overstated_arrow(folder, "x.arrow")


@hostile_case(refused="needs more memory than is available")
def arrow_stream_that_says_it_unpacks_to_8_GiB(folder: Path) -> Any:
    """A file of Arrow's format for streams."""
    return _read_overstated_arrow(folder, "x.stream.arrow")


@hostile_case(refused="needs more memory than is available")
def arrow_dictionary_that_says_it_unpacks_to_8_GiB(folder: Path) -> Any:
    """A file whose dictionary is compressed."""
    return _read_overstated_arrow(folder, "x.arrow", as_dictionary=True)


# --- Tars ---


def tar(path: Path, name: str, body: bytes, pax_headers: dict[str, str] | None = None) -> Path:
    """Write a tar of one member, and return its path.

    Args:
        path: The tar.
        name: Name of the member.
        body: Content of the member.
        pax_headers: Extended headers of the member.
    """
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.size = len(body)
        info.pax_headers = pax_headers or {}
        archive.addfile(info, io.BytesIO(body))
    return path


def tar_header(name: str, size: int, member_type: bytes = tarfile.REGTYPE) -> bytes:
    """Return the header block of a tar's member, which may state any size."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.type = member_type
    return info.tobuf(tarfile.GNU_FORMAT)


def read_foreign_tar(path: Path) -> Any:
    """Read a tar as one that another program wrote, and return the shapes of all its contexts.

    A *context* is one row of tokens, and one member of the tar.
    """
    survey = survey_tars([path])
    return [context.shape for context in _contexts(survey.tars[0])]


def write_sparse(path: Path, start: bytes, size: int) -> Path:
    """Write a file that is zeros after its start and takes no space on the disk; return its path."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


def _read_sparse_shard(folder: Path, start: bytes, size: int) -> Any:
    """Write such a file, and read it as a tar that nanoset wrote."""
    return list(iterate_shard(write_sparse(folder / "x.tar", start, size)))


@hostile_case(refused="more than 67,108,864")
def tar_with_a_huge_member(folder: Path) -> Any:
    """A member of 4 GiB of zeros."""
    start = tar_header("a.npy", 4 * GIB)
    return read_foreign_tar(write_sparse(folder / "x.tar", start, 4 * GIB + 4096))


@hostile_case(refused="more than 67,108,864")
def shard_with_a_huge_member(folder: Path) -> Any:
    """A member of 250 MiB of zeros, in a tar that is read as one of nanoset."""
    return _read_sparse_shard(folder, tar_header("a.npy", 250 * MIB), 250 * MIB + 4096)


@hostile_case(reads=[])
def shard_of_zeros(folder: Path) -> Any:
    """300 MiB of zeros, which is a tar without members."""
    return _read_sparse_shard(folder, b"", 300 * MIB)


@hostile_case(refused="an extended header that cannot be read")
def tar_with_an_extended_header_of_digits(folder: Path) -> Any:
    """An extended header in which `tarfile` searches for longer than a minute.

    Its time grows with the square of the number of digits.
    """
    digits = b"1" * MIB
    start = tar_header("a", len(digits), tarfile.XHDTYPE) + digits + tar_header("a.npy", 0)
    return read_foreign_tar(write_sparse(folder / "x.tar", start, len(start) + 1024))


@hostile_case(refused="does not contain the tokens")
def tar_with_holes(folder: Path) -> Any:
    """A member that is said to be 1 TiB in size, with holes that are not stored."""
    pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "a.json",
        "GNU.sparse.realsize": str(1 << 40),
    }
    return read_foreign_tar(tar(folder / "x.tar", "a.json", b"1" * 400_000, pax_headers))


_STRINGS_JSON = json.dumps(["a" * 100_000] + [""] * 100_000).encode()
"""100,001 strings. As an array of numpy, each would take as much memory as the longest of them."""


@hostile_case(refused="text among the numbers")
def tar_of_strings(folder: Path) -> Any:
    """A context of strings."""
    return read_foreign_tar(tar(folder / "x.tar", "a.json", _STRINGS_JSON))


@hostile_case(refused="text among the numbers")
def tar_of_zipped_strings(folder: Path) -> Any:
    """A compressed context of strings."""
    return read_foreign_tar(tar(folder / "x.tar", "a.json.gz", gzip.compress(_STRINGS_JSON)))


@hostile_case(refused="does not contain the tokens of a context")
def tar_of_brackets(folder: Path) -> Any:
    """A context of lists in lists, 900 deep."""
    return read_foreign_tar(tar(folder / "x.tar", "a.json", b"[" * 900 + b"]" * 900))


# --- Named pipes and links ---
# Opening a named pipe waits for a program that writes into it, which would wait forever.


@hostile_case(refused="a named pipe")
def pipe_as_idx(folder: Path) -> Any:
    """A named pipe in place of the index of a dataset."""
    os.mkfifo(folder / "x.idx")
    return len(MMapIndexedDataset(folder / "x"))


@hostile_case(refused="a named pipe")
def pipe_as_pbin(folder: Path) -> Any:
    """A named pipe in place of a .pbin file."""
    os.mkfifo(folder / "x.pbin")
    return len(PackedDataset(folder / "x.pbin"))


@hostile_case(refused="a named pipe")
def pipe_as_tar(folder: Path) -> Any:
    """A named pipe in place of a tar that another program wrote."""
    os.mkfifo(folder / "x.tar")
    return read_foreign_tar(folder / "x.tar")


@hostile_case(refused="a named pipe")
def pipe_as_shard(folder: Path) -> Any:
    """A named pipe in place of a tar that a list of shards names."""
    os.mkfifo(folder / "x.tar")
    (folder / "manifest.jsonl").write_text('{"shard": "x", "num_sequences": 1}\n')
    return list(iterate_shards(folder))


@hostile_case(refused="a named pipe")
def pipe_as_list_of_shards(folder: Path) -> Any:
    """A named pipe in place of the list of shards."""
    os.mkfifo(folder / "manifest.jsonl")
    return list(iterate_shards(folder))


@hostile_case(refused="there is no tokenizer")
def pipe_as_tokenizer(folder: Path) -> Any:
    """A named pipe in place of a tokenizer."""
    os.mkfifo(folder / "t.json")
    return tokenizer_facts(folder / "t.json").vocab_size


@hostile_case(refused="not a tokenizer")
def tokenizer_in_many_brackets(folder: Path) -> Any:
    """Lists in lists, 200,000 deep."""
    (folder / "t.json").write_bytes(b'{"version": ' + b"[" * 200_000)
    return tokenizer_facts(folder / "t.json").vocab_size


@hostile_case(reads=["untouched", False, True])
def links_in_the_output_root(folder: Path) -> Any:
    """Links where outputs write: a link is replaced, and the file that it leads to is not changed."""
    victim = folder / "victim"
    victim.write_text("untouched")
    output_folder = folder / "data/datasets/web"
    output_folder.mkdir(parents=True)
    (output_folder / "current.json").symlink_to(victim)
    (output_folder / ".tmp-x").symlink_to(folder)

    def write_one_file(target: Path) -> Written:
        (target / "a").touch()
        return Written({})

    outputs = OutputRoot(FileAccess(folder / "data"))
    manifest = outputs.commit(Recipe("datasets", "web", 1), write_one_file)
    outputs.make_current(manifest)
    outputs.sweep()

    is_still_link = (output_folder / "current.json").is_symlink()
    has_current = outputs.current("datasets", "web") is not None
    return [victim.read_text(), is_still_link, has_current]
