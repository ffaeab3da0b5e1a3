"""Formats of tokens (.idx, .bin, .pbin and tars) and of raw text, for the campaign on formats.

Each format has a reader of nanoset, and a *judge*: a slow and simple reader, written from the
description of the format alone, which says whether the result of the first one is in the file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from campaigns.formats import Format
from helpers.sample_project import encoded
from nanoset_core.errors import SourceChangedError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import DTYPE_CODES
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.writing import write_pbin
from nanoset_core.formats.tars.tar_input import _contexts, survey_tars
from nanoset_core.loading.tar_files import iterate_shard, iterate_shards
from nanoset_core.text.documents import read_documents
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.inventory.fingerprints import fingerprint
from nanoset_core.text.inventory.pieces import Piece, SourceRange

_DOCUMENT_LENGTHS = (5, 1, 40, 3, 3, 120, 2, 9)


def _document(number: int, length: int) -> list[int]:
    """Return the tokens of a document, which differ from those of other documents."""
    return [(7 * number + position) % 300 for position in range(length)]


def _context(number: int) -> list[int]:
    """Return the tokens of a context, which differ from those of other contexts."""
    return [(number * 31 + position) % 5000 for position in range(16)]


DOCUMENTS = [_document(number, length) for number, length in enumerate(_DOCUMENT_LENGTHS)]
"""Tokens of each document."""
CONTEXTS = [_context(number) for number in range(6)]
"""Tokens of each *context*: a row of tokens of one length, of which a tar has one in each member."""
_N_SHARDS = 3
"""Number of tars in the small webdataset."""
_TAR_BLOCK_BYTES = 512
"""Headers and contents of a tar's members start at multiples of this size."""


def formats(scratch: Path) -> list[Format]:
    """Return the formats of tokens.

    Args:
        scratch: An empty folder, where their files are written first.
    """
    pair = _write_pair(scratch)
    pbin = scratch / "wide.pbin"
    write_pbin(pbin, [np.array(tokens) for tokens in DOCUMENTS], token_bytes=2)
    return [
        Format(".idx", pair, "x.idx", _read_pair, _is_in_pair),
        Format(".bin", pair, "x.bin", _read_pair, _is_in_pair),
        Format(".pbin", {"x.pbin": pbin.read_bytes()}, "x.pbin", _read_pbin, _is_in_pbin),
        _foreign_tar_format("npy"),
        _foreign_tar_format("json.gz"),
        _foreign_tar_format("json"),
        Format(
            "tar of ours",
            {"x.tar": tar("npy")},
            "x.tar",
            _read_shard,
            _is_in_shard,
            mend=correct_tar_checksums,
        ),
        Format("manifest.jsonl", _webdataset(), "manifest.jsonl", _read_webdataset, _is_webdataset),
    ]


# --- Pairs of .idx and .bin ---


class PairContent(NamedTuple):
    """What a pair of .idx and .bin contains."""

    dtype: str
    """Type of its tokens, as numpy writes it."""
    sequences: list[bytes]
    """Tokens of each sequence, as they are stored."""
    document_starts: list[int]
    """Number of the first sequence of each document, and the number of sequences."""
    modes: list[int] | None
    """Number of each sequence's mode, or None if the index has no modes."""


def _write_pair(folder: Path) -> dict[str, bytes]:
    """Write a pair with documents of two sequences, and return its files."""
    with MMapIndexedDatasetBuilder(folder / "x", np.uint16) as builder:
        for tokens in DOCUMENTS[::2]:
            second_length = len(tokens) // 2
            first_length = len(tokens) - second_length
            builder.add_document(np.array(tokens), [first_length, second_length])
        builder.finalize()
    return {name: (folder / name).read_bytes() for name in ("x.idx", "x.bin")}


def _read_pair(folder: Path) -> PairContent:
    """Read the pair as nanoset does."""
    dataset = MMapIndexedDataset(folder / "x")
    return PairContent(
        dtype=dataset.dtype.str,
        sequences=[sequence.tobytes() for sequence in dataset],
        document_starts=dataset.document_indices.tolist(),
        modes=None if dataset.modes is None else dataset.modes.tolist(),
    )


def _is_in_pair(folder: Path, value: PairContent) -> bool:
    """Return whether the index is valid and says the value."""
    index = (folder / "x.idx").read_bytes()
    tokens = (folder / "x.bin").read_bytes()

    # Header: magic, version, code of the dtype, number of sequences, and number of entries of the
    # last array. Arrays: length of each sequence, its byte offset in the .bin, and the number of
    # each document's first sequence. There may be one byte more for each sequence: its mode.
    magic, version, dtype_code, n_sequences, n_starts = struct.unpack_from("<9sQBQQ", index)
    lengths_start = struct.calcsize("<9sQBQQ")
    offsets_start = lengths_start + 4 * n_sequences
    documents_start = offsets_start + 8 * n_sequences
    modes_start = documents_start + 8 * n_starts
    lengths = struct.unpack_from(f"<{n_sequences}i", index, lengths_start)
    offsets = struct.unpack_from(f"<{n_sequences}q", index, offsets_start)
    document_starts = list(struct.unpack_from(f"<{n_starts}q", index, documents_start))
    mode_bytes = index[modes_start:]

    if magic != b"MMIDIDX\0\0" or version != 1 or len(mode_bytes) not in (0, n_sequences):
        return False
    if document_starts[0] != 0 or document_starts[-1] != n_sequences:
        return False
    if document_starts != sorted(document_starts):
        return False

    # Sequences may be in any order, and may overlap: a view's .idx points into a corpus's .bin.
    dtype = DTYPE_CODES[dtype_code]
    sequences: list[bytes] = []
    for length, offset in zip(lengths, offsets, strict=True):
        stop = offset + length * dtype.itemsize
        if length < 0 or offset < 0 or offset % dtype.itemsize != 0 or stop > len(tokens):
            return False
        sequences.append(tokens[offset:stop])

    modes = list(struct.unpack(f"<{n_sequences}b", mode_bytes)) if mode_bytes else None
    return value == PairContent(dtype.str, sequences, document_starts, modes)


# --- .pbin ---


class PbinContent(NamedTuple):
    """What a .pbin file contains."""

    layout: str
    """Letter of the layout; several versions of Modalities wrote different ones."""
    token_bytes: int
    """Bytes that a token takes."""
    merge_faults: Any
    """Not empty if a merge of files left wrong offsets, which nanoset corrects."""
    documents: list[list[int]]
    """Tokens of each document."""


class ExpectedPbinLayout(NamedTuple):
    """How one layout of a .pbin stores numbers."""

    byte_order: str
    """As `struct` writes it."""
    header_bytes: int
    """Size of the header, after which the tokens start."""
    first_offset: int
    """The offset that the index states for a document at the start of the tokens."""


_PBIN_LAYOUTS = {
    "A": ExpectedPbinLayout(">", 8, 8),
    "C": ExpectedPbinLayout("<", 12, 12),
    "D": ExpectedPbinLayout("<", 12, 0),
}


class _PlainUnpickler(pickle.Unpickler):
    """Reads a pickle of numbers and lists, and refuses one that names any class."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse a class, whatever it is."""
        raise pickle.UnpicklingError(f"{module}.{name}")


def _read_pbin(folder: Path) -> PbinContent:
    """Read the .pbin as nanoset does."""
    dataset = PackedDataset(folder / "x.pbin")
    return PbinContent(
        layout=dataset.layout,
        token_bytes=dataset.token_bytes,
        merge_faults=dataset.index_facts.merge_faults,
        documents=[document.tolist() for document in dataset],
    )


def _is_in_pbin(folder: Path, value: PbinContent) -> bool:
    """Return whether the file, in the layout that the value says, contains the value.

    A .pbin has a header, the tokens, and a pickled list of the offset and length of each document.
    The header states the size of the tokens in bytes and, except in layout A, the bytes of a token.
    """
    data = (folder / "x.pbin").read_bytes()
    layout = _PBIN_LAYOUTS[value.layout]
    (size,) = struct.unpack_from(f"{layout.byte_order}Q", data)
    token_bytes = 4
    if value.layout != "A":
        (token_bytes,) = struct.unpack_from(f"{layout.byte_order}I", data, 8)
    tokens_stop = layout.header_bytes + size
    tokens = data[layout.header_bytes : tokens_stop]
    entries = _PlainUnpickler(io.BytesIO(data[tokens_stop:])).load()

    # After a faulty merge, the offsets are wrong, but the documents follow each other directly.
    if value.merge_faults:
        lengths = [length for _, length in entries]
        stops = np.cumsum(lengths).tolist()
        entries = [(stop - length, length) for stop, length in zip(stops, lengths, strict=True)]

    dtype = f"{layout.byte_order}u{token_bytes}"
    documents: list[list[int]] = []
    for offset, length in entries:
        start = offset - layout.first_offset
        if start < 0 or length < 0 or start + length > size:
            return False
        documents.append(np.frombuffer(tokens[start : start + length], dtype).tolist())
    return token_bytes == value.token_bytes and documents == value.documents


# --- Tars ---


def tar(member_ending: str) -> bytes:
    """Return a tar of contexts.

    Args:
        member_ending: Format of its members: npy, json or json.gz.
    """
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, context in enumerate(CONTEXTS):
            body = _encode_context(member_ending, context)
            info = tarfile.TarInfo(f"{number:08d}.{member_ending}")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return file.getvalue()


def _encode_context(member_ending: str, context: list[int]) -> bytes:
    """Return the content of a tar's member."""
    if member_ending == "npy":
        file = io.BytesIO()
        np.save(file, np.array(context, np.uint16))
        return file.getvalue()
    text = json.dumps(context).encode()
    return gzip.compress(text, mtime=0) if member_ending.endswith(".gz") else text


def correct_tar_checksums(folder: Path) -> None:
    """Correct the checksum of every block of `x.tar` that could be the header of a member.

    Otherwise, damage to a header would nearly always end at its checksum.
    """
    path = folder / "x.tar"
    data = path.read_bytes()
    blocks_stop = len(data) // _TAR_BLOCK_BYTES * _TAR_BLOCK_BYTES
    # (n_blocks, 512)
    blocks = np.frombuffer(data[:blocks_stop], np.uint8).reshape(-1, _TAR_BLOCK_BYTES).copy()

    # Headers have "ustar" at byte 257. One letter of "ust" suffices: the others may be damaged.
    is_header = (blocks[:, 257:260] == np.frombuffer(b"ust", np.uint8)).any(axis=1)
    for number in np.flatnonzero(is_header):
        # The checksum is the sum of all bytes of the header, with spaces in its own place.
        blocks[number, 148:156] = ord(" ")
        checksum = int(blocks[number].sum(dtype=np.int64))
        blocks[number, 148:156] = np.frombuffer(f"{checksum:06o}\0 ".encode(), np.uint8)

    # A new file: the old one may be mapped into memory.
    path.unlink()
    path.write_bytes(blocks.tobytes() + data[blocks_stop:])


def _foreign_tar_format(member_ending: str) -> Format:
    """Return the format of a tar that another program wrote, whose members have an ending."""
    return Format(
        f"tar of {member_ending}",
        {"x.tar": tar(member_ending)},
        "x.tar",
        _read_foreign_tar,
        _is_in_foreign_tar,
        mend=correct_tar_checksums,
    )


class ForeignTarContent(NamedTuple):
    """What a tar that another program wrote contains."""

    data_key: str
    """Ending of the members that contain tokens."""
    contexts: list[list[int]]
    """Tokens of each of these members."""


def _read_foreign_tar(folder: Path) -> ForeignTarContent:
    """Read the tar as one that another program wrote."""
    survey = survey_tars([folder / "x.tar"])
    contexts = [tokens.tolist() for tokens in _contexts(survey.tars[0])]
    return ForeignTarContent(survey.tars[0].data_key, contexts)


def _is_in_foreign_tar(folder: Path, value: ForeignTarContent) -> bool:
    """Return whether the tar's members with the value's ending contain the value's tokens."""
    contexts: list[list[int]] = []
    with tarfile.open(folder / "x.tar", "r:") as archive:
        for info in archive:
            if info.isreg() and _has_data_key(info.name, value.data_key):
                contexts.append(_decode_context(archive, info))
    return contexts == value.contexts


def _has_data_key(member_name: str, data_key: str) -> bool:
    """Return whether a member has an ending, which is everything after the first dot of its name.

    Names that start with `__` are those of the `webdataset` library's own members.
    """
    file_name = member_name.rsplit("/", 1)[-1]
    _, dot, ending = file_name.partition(".")
    return not file_name.startswith("__") and dot != "" and ending.lower() == data_key


def _decode_context(archive: tarfile.TarFile, info: tarfile.TarInfo) -> list[int]:
    """Return the tokens of a tar's member."""
    body = archive.extractfile(info).read()
    name = info.name.lower()
    if name.endswith(".npy"):
        return np.load(io.BytesIO(body)).tolist()
    if name.endswith(".gz"):
        body = gzip.decompress(body)
    return json.loads(body)


def _read_shard(folder: Path) -> list[list[int]]:
    """Read the tar as one that nanoset wrote, as a trainer does."""
    return [tokens.tolist() for tokens in iterate_shard(folder / "x.tar")]


def _is_in_shard(folder: Path, value: list[list[int]]) -> bool:
    """Return whether the members of the tar contain the tokens."""
    with tarfile.open(folder / "x.tar", "r:") as archive:
        return value == [_decode_context(archive, info) for info in archive]


def _webdataset() -> dict[str, bytes]:
    """Return the files of a webdataset: some tars, and a list of them with their sizes."""
    files: dict[str, bytes] = {}
    lines: list[bytes] = []
    for number in range(_N_SHARDS):
        row = {"shard": f"shard-{number:08d}", "num_sequences": len(CONTEXTS)}
        lines.append(json.dumps(row).encode() + b"\n")
        files[f"shard-{number:08d}.tar"] = tar("npy")
    files["manifest.jsonl"] = b"".join(lines)
    return files


def _read_webdataset(folder: Path) -> list[list[int]]:
    """Read all tars that the list names, as a trainer does."""
    return [tokens.tolist() for tokens in iterate_shards(folder)]


def _is_webdataset(folder: Path, value: list[list[int]]) -> bool:
    """Return whether every line of the list is true, and the value has the contexts of each line.

    No line may name a file outside of the folder.
    """
    known_names = {f"shard-{number:08d}" for number in range(_N_SHARDS)}
    n_lines = 0
    for line in (folder / "manifest.jsonl").read_bytes().splitlines():
        row = json.loads(line)
        if row["shard"] not in known_names or row["num_sequences"] != len(CONTEXTS):
            return False
        n_lines += 1
    return value == CONTEXTS * n_lines


# --- Raw text: JSON lines, plain or compressed, Parquet and Arrow ---

DOCUMENT_ROWS = [
    {"id": f"d-{n}", "text": f"Document {n}: é漢 " + "word " * (n * 7 % 23), "n": n}
    for n in range(30)
]
"""Documents of every file of raw text."""
_PART_ROWS = 12
"""Rows of the first gzip member or zstd frame, of a row group, or of a record batch."""


class TextContent(NamedTuple):
    """What a file of raw text contains."""

    documents: list[TextDocument]
    rejects: list[TextReject]
    faults: int
    """Number of rejects that stand for the unreadable rest of a file, and not for a line."""


class TextDocument(NamedTuple):
    """A document."""

    text: str
    line: int
    """Number of its line or row, from 1."""
    identity: str | None
    """Its `id`."""


class TextReject(NamedTuple):
    """A line or row that is no document."""

    reason: str
    line: int


def text_formats() -> list[Format]:
    """Return the formats of raw text.

    There are up to three for each kind of file: as a build reads it that finds it damaged; as a
    build reads it that knows the digest of the original; and without checksums inside the file.
    """
    judges: dict[str, Callable[[Path, TextContent], bool]] = {
        "x.jsonl": _is_in_lines,
        "x.jsonl.gz": _judge_compressed(_decompress_gzip),
        "x.jsonl.zst": _judge_compressed(_decompress_zstd),
        "x.parquet": _is_in_table,
        "x.arrow": _is_in_table,
    }

    def text_format(name: str, suffix: str, data: bytes) -> Format:
        shown_name = name.removeprefix("x") + suffix
        return Format(shown_name, {name: data}, name, _read_text, judges[name], _has_rejects)

    formats: list[Format] = []
    for name in judges:
        data = encoded(name, DOCUMENT_ROWS, _PART_ROWS, checked=True)
        formats.append(text_format(name, "", data))
        after_inventory = f"{name.removeprefix('x')} after its inventory"
        formats.append(Format(after_inventory, {name: data}, name, _inventoried_reader(name, data)))
    for name in ("x.jsonl.zst", "x.parquet"):
        data = encoded(name, DOCUMENT_ROWS, _PART_ROWS)
        formats.append(text_format(name, " without checksums", data))
    stream = encoded("x.stream.arrow", DOCUMENT_ROWS, _PART_ROWS)
    formats.append(text_format("x.arrow", " stream", stream))
    return formats


def _read_range(folder: Path, source: SourceRange) -> TextContent:
    """Read a range of text as builds do, and check that every line is accounted for.

    Raises:
        AssertionError: A line is neither a document nor a reject, or is both.
    """
    documents: list[TextDocument] = []
    rejects: list[TextReject] = []
    n_faults = 0
    n_lines = 0
    for batch in read_documents(folder, source, max_line_bytes=1 << 20, verify=True):
        columns = zip(batch.texts, batch.lines, batch.ids, strict=True)
        documents += [TextDocument(text, line, identity) for text, line, identity in columns]
        rejects += [TextReject(reject.reason, reject.line) for reject in batch.rejects]
        n_faults += batch.faults
        n_lines += batch.read_lines
    if len(documents) + len(rejects) - n_faults != n_lines:
        raise AssertionError(
            f"{n_lines} lines, {len(documents)} documents, {len(rejects)} rejects, "
            f"{n_faults} faults"
        )
    return TextContent(documents, rejects, n_faults)


def _read_text(folder: Path) -> TextContent:
    """Read the only file of a folder, as a build does that sees it for the first time."""
    (stat,) = contents_of(folder).ordered
    pieces = tuple(fingerprint(folder, stat))
    return _read_range(folder, SourceRange(pieces))


def _inventoried_reader(name: str, original: bytes) -> Callable[[Path], TextContent]:
    """Return a reader that knows the digest of the original file, and must refuse any other.

    Args:
        name: Name of the file.
        original: Its original content.
    """
    piece = Piece(name, 0, len(original), 1, hashlib.sha256(original).hexdigest())

    def read(folder: Path) -> TextContent:
        try:
            return _read_range(folder, SourceRange((piece,)))
        except SourceChangedError:
            if (folder / name).read_bytes() == original:
                raise AssertionError("the original file was refused") from None
            raise

    return read


def _has_rejects(value: TextContent) -> bool:
    """Return whether a part of the text was rejected."""
    return bool(value.rejects)


# --- Judges of raw text ---


class ExpectedLines(NamedTuple):
    """What `_parse_lines` finds in text."""

    documents: list[TextDocument]
    n_lines: int


def _parse_lines(data: bytes) -> ExpectedLines:
    """Parse JSON lines with Python's own `json`, and return the lines that are documents."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    documents: list[TextDocument] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line.decode())
            text = row["text"]
            text.encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue

        # Ids of other types are written as JSON, and halves of surrogate pairs as escapes.
        identity = row.get("id")
        if identity is not None:
            if not isinstance(identity, str):
                identity = json.dumps(identity)
            identity = identity.encode("utf-8", "backslashreplace").decode()
        documents.append(TextDocument(text, number, identity))
    return ExpectedLines(documents, len(lines))


def _is_in_lines(folder: Path, value: TextContent) -> bool:
    """Return whether the plain file contains the value's documents, and rejects for other lines."""
    parsed = _parse_lines((folder / "x.jsonl").read_bytes())
    has_all_lines = len(value.documents) + len(value.rejects) == parsed.n_lines
    return value.documents == parsed.documents and has_all_lines and value.faults == 0


class Decompressed(NamedTuple):
    """What could be read of a compressed file."""

    data: bytes
    """What comes before the first error, or everything."""
    is_complete: bool


def _judge_compressed(
    decompress: Callable[[Path], Decompressed],
) -> Callable[[Path, TextContent], bool]:
    """Return a judge of a compressed file of JSON lines.

    It requires all documents, or, if the file has an error, one fault and the documents before it.

    Args:
        decompress: Decompresses the file in a folder.
    """

    def judge(folder: Path, value: TextContent) -> bool:
        decompressed = decompress(folder)
        expected = _parse_lines(decompressed.data).documents
        if decompressed.is_complete:
            return value.faults == 0 and value.documents == expected
        # Two decompressors may notice an error at different places. They agree up to the earlier
        # one, except for the last document, which either of them may have cut.
        n_common = min(len(value.documents), len(expected))
        n_certain = max(0, n_common - 1)
        return value.faults == 1 and value.documents[:n_certain] == expected[:n_certain]

    return judge


def _decompress_gzip(folder: Path) -> Decompressed:
    """Decompress the gzip file of a folder with Python's own `zlib`."""
    data = (folder / "x.jsonl.gz").read_bytes()
    # gzip files may end with zeros, as tapes need them; 31 says that a gzip header is expected.
    return _decompress(data, lambda: zlib.decompressobj(wbits=31), padding=b"\0")


def _decompress_zstd(folder: Path) -> Decompressed:
    """Decompress the zstd file of a folder."""
    data = (folder / "x.jsonl.zst").read_bytes()
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    return _decompress(data, decompressor.decompressobj)


def _decompress(data: bytes, make_decoder: Callable[[], Any], padding: bytes = b"") -> Decompressed:
    """Decompress members or frames one byte at a time, to get all that comes before an error.

    Args:
        data: Compressed bytes.
        make_decoder: Returns a decoder for one member or frame.
        padding: Byte that is skipped between members.
    """
    output = b""
    position = 0
    is_first = True
    try:
        while position < len(data):
            if not is_first and padding and data[position : position + 1] == padding:
                position += 1
                continue
            decoder = make_decoder()
            is_first = False
            while position < len(data) and not decoder.eof:
                output += decoder.decompress(data[position : position + 1])
                position += 1
            if not decoder.eof:
                return Decompressed(output, is_complete=False)
    except (zlib.error, zstandard.ZstdError):
        return Decompressed(output, is_complete=False)
    return Decompressed(output, is_complete=True)


def _is_in_table(folder: Path, value: TextContent) -> bool:
    """Return whether the table contains the value's documents, and rejects for all other rows.

    If the value has a fault, pyarrow cannot read the table as a whole; then only the order of the
    documents is checked.
    """
    if value.faults:
        return value.documents == sorted(value.documents, key=lambda document: document.line)
    texts = _read_table_texts(folder)
    expected: list[tuple[str, int]] = []
    for number, text in enumerate(texts, 1):
        if text is not None:
            expected.append((text, number))
    documents = [(document.text, document.line) for document in value.documents]
    return documents == expected and len(documents) + len(value.rejects) == len(texts)


def _read_table_texts(folder: Path) -> list[str | None]:
    """Read the text of each row of a table with pyarrow, all at once; None for rows without one."""
    (path,) = folder.iterdir()
    table = _read_parquet(path) if path.suffix == ".parquet" else _read_arrow(path)
    if "text" not in table.column_names:
        return [None] * table.num_rows
    # As bytes: a file may contain text that is not UTF-8.
    values = table.column("text").cast(pa.binary()).to_pylist()
    return [_decode_text(value) for value in values]


def _read_parquet(path: Path) -> pa.Table:
    """Read the columns of a Parquet file that builds read."""
    file = pq.ParquetFile(path, page_checksum_verification=True)
    return file.read(columns=_read_columns(file.schema_arrow.names))


def _read_arrow(path: Path) -> pa.Table:
    """Read the columns of an Arrow file, of the format for files or that for streams."""
    data = path.read_bytes()
    is_file_format = data[:6] == b"ARROW1"
    open_reader = pa.ipc.open_file if is_file_format else pa.ipc.open_stream
    names = open_reader(pa.py_buffer(data)).schema.names
    columns = _read_columns(names)
    numbers = [number for number, name in enumerate(names) if name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=numbers)
    return open_reader(pa.py_buffer(data), options=options).read_all()


def _read_columns(names: list[str]) -> list[str]:
    """Return which of a table's columns a build reads: none if there is no text."""
    if "text" not in names:
        return []
    return [name for name in ("text", "id") if name in names]


def _decode_text(value: bytes | None) -> str | None:
    """Return a text, or None if it is missing or not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
