"""Trials on files of tokens, .idx, .bin, .pbin and tars, and on raw text."""

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
from typing import Any

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
from nanoset_core.loading.shard_files import iterate_shard, iterate_shards
from nanoset_core.text.contents import contents_of
from nanoset_core.text.documents import read_documents
from nanoset_core.text.fingerprints import fingerprint
from nanoset_core.text.pieces import Piece, SourceRange

DOCUMENTS = [
    [(7 * i + j) % 300 for j in range(n)] for i, n in enumerate((5, 1, 40, 3, 3, 120, 2, 9))
]
ROWS = [[(i * 31 + j) % 5000 for j in range(16)] for i in range(6)]


def formats(scratch: Path) -> list[Format]:
    """All of them, made in an empty folder."""
    pair = _pair(scratch)
    wide = scratch / "wide.pbin"
    write_pbin(wide, [np.array(tokens) for tokens in DOCUMENTS], token_bytes=2)
    return [
        Format(".idx", pair, "x.idx", _read_pair, _is_pair),
        Format(".bin", pair, "x.bin", _read_pair, _is_pair),
        Format(".pbin", {"x.pbin": wide.read_bytes()}, "x.pbin", _read_packed, _is_packed),
        *(_tar_formats(member) for member in ("npy", "json.gz", "json")),
        Format(
            "tar of ours", {"x.tar": tar("npy")}, "x.tar", _read_shard, _is_shard, mend=mend_tar
        ),
        Format("manifest.jsonl", _webdataset(), "manifest.jsonl", _read_shards, _is_listed),
    ]


def _pair(scratch: Path) -> dict[str, bytes]:
    with MMapIndexedDatasetBuilder(scratch / "x", np.uint16) as builder:
        for tokens in DOCUMENTS[::2]:
            builder.add_document(
                np.array(tokens), [len(tokens) - len(tokens) // 2, len(tokens) // 2]
            )
        builder.finalize()
    return {name: (scratch / name).read_bytes() for name in ("x.idx", "x.bin")}


def _read_pair(folder: Path) -> Any:
    dataset = MMapIndexedDataset(folder / "x")
    modes = None if dataset.modes is None else dataset.modes.tolist()
    return (
        dataset.dtype.str,
        [s.tobytes() for s in dataset],
        dataset.document_indices.tolist(),
        modes,
    )


def _is_pair(folder: Path, value: Any) -> bool:
    """As a reader would find it that goes by the layout alone, number by number."""
    index, tokens = (folder / "x.idx").read_bytes(), (folder / "x.bin").read_bytes()
    magic, version, code, n, m = struct.unpack_from("<9sQBQQ", index)
    lengths = struct.unpack_from(f"<{n}i", index, 34)
    pointers = struct.unpack_from(f"<{n}q", index, 34 + 4 * n)
    documents = list(struct.unpack_from(f"<{m}q", index, 34 + 12 * n))
    rest = index[34 + 12 * n + 8 * m :]
    size, end, sequences = DTYPE_CODES[code].itemsize, 0, []
    for length, pointer in zip(lengths, pointers, strict=True):
        if length < 0 or pointer < end or pointer % size:
            return False
        end = pointer + length * size
        sequences.append(tokens[pointer:end])
    sound = magic == b"MMIDIDX\0\0" and version == 1 and end <= len(tokens) and len(rest) in (0, n)
    sound = sound and documents[0] == 0 and documents[-1] == n and documents == sorted(documents)
    modes = list(struct.unpack(f"<{n}b", rest)) if rest else None
    return sound and value == (DTYPE_CODES[code].str, sequences, documents, modes)


def _read_packed(folder: Path) -> Any:
    dataset = PackedDataset(folder / "x.pbin")
    return (
        dataset.layout,
        dataset.token_bytes,
        dataset.index_facts.merge_faults,
        [d.tolist() for d in dataset],
    )


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def _is_packed(folder: Path, value: Any) -> bool:
    layout, token_bytes, faults, documents = value
    data = (folder / "x.pbin").read_bytes()
    order, header, first = {"A": (">", 8, 8), "C": ("<", 12, 12), "D": ("<", 12, 0)}[layout]
    (size,) = struct.unpack_from(f"{order}Q", data)
    stored = 4 if layout == "A" else struct.unpack_from(f"{order}I", data, 8)[0]
    entries = _Plain(io.BytesIO(data[header + size :])).load()
    if faults:  # read as meant: documents back to back
        ends = np.cumsum([length for _, length in entries]).tolist()
        entries = [(end - length, length) for end, (_, length) in zip(ends, entries, strict=True)]
    tokens = data[header : header + size]
    found = []
    for offset, length in entries:
        begin = offset - first
        if begin < 0 or length < 0 or begin + length > size:
            return False
        found.append(np.frombuffer(tokens[begin : begin + length], f"{order}u{stored}").tolist())
    return stored == token_bytes and found == documents


def tar(member: str) -> bytes:
    """A tar of six contexts."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, row in enumerate(ROWS):
            body = _body(member, row)
            info = tarfile.TarInfo(f"{number:08d}.{member}")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return file.getvalue()[: -(-file.tell() // 512) * 512]


def _body(member: str, row: list[int]) -> bytes:
    if member == "npy":
        file = io.BytesIO()
        np.save(file, np.array(row, np.uint16))
        return file.getvalue()
    text = json.dumps(row).encode()
    return gzip.compress(text, mtime=0) if member.endswith(".gz") else text


def mend_tar(folder: Path) -> None:
    """Put right the checksum of every block that could be a header."""
    path = folder / "x.tar"
    data = np.frombuffer(path.read_bytes(), np.uint8)
    blocks = data[: len(data) // 512 * 512].reshape(-1, 512).copy()
    for number in np.flatnonzero(
        (blocks[:, 257:260] == np.frombuffer(b"ust", np.uint8)).any(axis=1)
    ):
        blocks[number, 148:156] = ord(" ")
        total = int(blocks[number].sum(dtype=np.int64))
        blocks[number, 148:156] = np.frombuffer(f"{total:06o}\0 ".encode(), np.uint8)
    path.unlink()
    path.write_bytes(blocks.tobytes() + data[blocks.size :].tobytes())


def _tar_formats(member: str) -> Format:
    return Format(
        f"tar of {member}", {"x.tar": tar(member)}, "x.tar", _read_tar, _is_tar, mend=mend_tar
    )


def _read_tar(folder: Path) -> Any:
    found = survey_tars([folder / "x.tar"])
    return found.tars[0].data_key, [tokens.tolist() for tokens in _contexts(found.tars[0])]


def _is_tar(folder: Path, value: Any) -> bool:
    key, contexts = value
    with tarfile.open(folder / "x.tar", "r:") as archive:
        return contexts == [
            _tokens(archive, info) for info in archive if info.isreg() and _has_key(info.name, key)
        ]


def _has_key(name: str, key: str) -> bool:
    last = name.rsplit("/", 1)[-1]
    return not last.startswith("__") and "." in last and last.split(".", 1)[1].lower() == key


def _tokens(archive: tarfile.TarFile, info: tarfile.TarInfo) -> list[int]:
    body = archive.extractfile(info).read()
    if info.name.lower().endswith(".npy"):
        return np.load(io.BytesIO(body)).tolist()
    return json.loads(gzip.decompress(body) if info.name.lower().endswith(".gz") else body)


def _read_shard(folder: Path) -> Any:
    return [tokens.tolist() for tokens in iterate_shard(folder / "x.tar")]


def _is_shard(folder: Path, value: Any) -> bool:
    with tarfile.open(folder / "x.tar", "r:") as archive:
        return value == [_tokens(archive, info) for info in archive]


def _webdataset() -> dict[str, bytes]:
    rows = [{"shard": f"shard-{number:08d}", "num_sequences": len(ROWS)} for number in range(3)]
    listed = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return {"manifest.jsonl": listed} | {f"{row['shard']}.tar": tar("npy") for row in rows}


def _read_shards(folder: Path) -> Any:
    return [tokens.tolist() for tokens in iterate_shards(folder)]


def _is_listed(folder: Path, value: Any) -> bool:
    """Shards named in the list, of the stated number of contexts; no file that lies elsewhere."""
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_bytes().splitlines()]
    named = all(row["shard"] in {f"shard-{n:08d}" for n in range(3)} for row in rows)
    return (
        named
        and all(row["num_sequences"] == len(ROWS) for row in rows)
        and value == ROWS * len(rows)
    )


# Raw text: JSON lines plain, gzipped and zstandard, Parquet and Arrow

DOCUMENT_ROWS = [
    {"id": f"d-{n}", "text": f"Document {n}: é漢 " + "word " * (n * 7 % 23), "n": n}
    for n in range(30)
]


def text_formats() -> list[Format]:
    """Raw text."""
    judges: dict[str, Callable[[Path, Any], bool]] = {
        "x.jsonl": _is_lines,
        "x.jsonl.gz": _is_prefix_of(_gunzip),
        "x.jsonl.zst": _is_prefix_of(_unzstd),
        "x.parquet": _is_table,
        "x.arrow": _is_table,
    }
    stored = {name: encoded(name, DOCUMENT_ROWS, 12, checked=True) for name in judges}

    def kind(name: str, what: str, data: bytes) -> Format:
        return Format(
            f"{name.removeprefix('x')}{what}", {name: data}, name, _read, judges[name], _has_fault
        )

    found = [kind(name, "", data) for name, data in stored.items()]
    for name, data in stored.items():
        after = f"{name.removeprefix('x')} after its inventory"
        found.append(Format(after, {name: data}, name, _Inventoried(name, data)))
    unchecked = [
        kind(name, " without checksums", encoded(name, DOCUMENT_ROWS, 12))
        for name in ("x.jsonl.zst", "x.parquet")
    ]
    return [
        *found,
        *unchecked,
        kind("x.arrow", " stream", encoded("x.stream.arrow", DOCUMENT_ROWS, 12)),
    ]


def _documents(folder: Path, source: SourceRange, *, verify: bool) -> Any:
    """([(text, line, id)], [(reason, line)], faults)"""
    documents, rejects, faults, lines = [], [], 0, 0
    for batch in read_documents(folder, source, max_line_bytes=1 << 20, verify=verify):
        documents += zip(batch.texts, batch.lines, batch.ids, strict=True)
        rejects += [(reject.reason, reject.line) for reject in batch.rejects]
        faults, lines = faults + batch.faults, lines + batch.read_lines
    if len(documents) + len(rejects) - faults != lines:
        raise AssertionError(
            f"{lines} lines, {len(documents)} documents, {len(rejects)} rejects, {faults} faults"
        )
    return documents, rejects, faults


def _read(folder: Path) -> Any:
    """Whatever lies there, as a build would take it that finds it so."""
    (stat,) = contents_of(folder).ordered
    return _documents(folder, SourceRange(tuple(fingerprint(folder, stat))), verify=True)


class _Inventoried:
    """Reads by the inventory of the sound file."""

    def __init__(self, name: str, data: bytes) -> None:
        self._name, self._data = name, data

    def __call__(self, folder: Path) -> Any:
        piece = Piece(self._name, 0, len(self._data), 1, hashlib.sha256(self._data).hexdigest())
        try:
            return _documents(folder, SourceRange((piece,)), verify=True)
        except SourceChangedError:
            if (folder / self._name).read_bytes() == self._data:
                raise AssertionError("a sound file was refused") from None
            raise


def _has_fault(value: Any) -> bool:
    return bool(value[1])


def _slow_documents(data: bytes) -> tuple[list[tuple[Any, ...]], int]:
    """([(text, line, id)], lines) by Python's own json."""
    lines = data.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line.decode())
            text = value["text"]
            text.encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        identity = value.get("id")
        if identity is not None and not isinstance(identity, str):
            identity = json.dumps(identity)
        if identity is not None:
            identity = identity.encode("utf-8", "backslashreplace").decode()
        found.append((text, number, identity))
    return found, len(lines)


def _is_lines(folder: Path, value: Any) -> bool:
    documents, lines = _slow_documents((folder / "x.jsonl").read_bytes())
    return value[0] == documents and len(documents) + len(value[1]) == lines and value[2] == 0


def _is_prefix_of(decode: Callable[[Path], tuple[bytes, bool]]) -> Callable[[Path, Any], bool]:
    """A judge of compressed files: all of it, or with a fault what comes before the fault."""

    def judge(folder: Path, value: Any) -> bool:
        data, whole = decode(folder)
        documents, _ = _slow_documents(data)
        given, _, faults = value
        if whole:
            return faults == 0 and given == documents
        # Decoders may notice damage at different places; up to the earlier one they agree.
        count = min(len(given), len(documents))
        return (
            faults == 1 and given[: count - 1] == documents[: count - 1] if count else faults == 1
        )

    return judge


def _gunzip(folder: Path) -> tuple[bytes, bool]:
    return _decoded(
        (folder / "x.jsonl.gz").read_bytes(), lambda: zlib.decompressobj(wbits=31), padding=b"\0"
    )


def _unzstd(folder: Path) -> tuple[bytes, bool]:
    make = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    return _decoded((folder / "x.jsonl.zst").read_bytes(), make)


def _decoded(data: bytes, make: Callable[[], Any], padding: bytes = b"") -> tuple[bytes, bool]:
    """(text, whether that is all), byte by byte, since what comes before an error counts."""
    text, decoder = b"", None
    try:
        while data:
            if decoder is not None and padding and not (data := data.lstrip(padding)):
                break
            decoder = make()
            while data and not decoder.eof:
                text += decoder.decompress(data[:1])
                data = data[1:]
            if not decoder.eof:
                return text, False
    except (zlib.error, zstandard.ZstdError):
        return text, False
    return text, True


def _is_table(folder: Path, value: Any) -> bool:
    """All rows as pyarrow reads the whole file at once; with a fault, a part of its beginning."""
    documents, rejects, faults = value
    if faults:
        return documents == sorted(documents, key=lambda row: row[1])
    texts = _whole_table(folder)
    found = [(text, number) for number, text in enumerate(texts, 1) if text is not None]
    return [(text, row) for text, row, _ in documents] == found and len(found) + len(
        rejects
    ) == len(texts)


def _whole_table(folder: Path) -> list[str | None]:
    (path,) = folder.iterdir()
    if path.suffix == ".parquet":
        file = pq.ParquetFile(path, page_checksum_verification=True)
        table = file.read(columns=_wanted(file.schema_arrow.names))
    else:
        data = pa.py_buffer(path.read_bytes())
        opener = pa.ipc.open_file if path.read_bytes()[:6] == b"ARROW1" else pa.ipc.open_stream
        names = opener(data).schema.names
        fields = [number for number, name in enumerate(names) if name in _wanted(names)]
        table = opener(data, options=pa.ipc.IpcReadOptions(included_fields=fields)).read_all()
    if "text" not in table.column_names:
        return [None] * table.num_rows
    return [_text(value) for value in table.column("text").cast(pa.binary()).to_pylist()]


def _wanted(names: list[str]) -> list[str]:
    """Columns that are read: none where there is no text."""
    return [name for name in ("text", "id") if name in names] if "text" in names else []


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
