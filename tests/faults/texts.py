"""Trials on raw text: JSON lines plain, gzipped and zstandard, Parquet and Arrow."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.formats import Format
from sample_project import encoded

from nanoset_core.errors import SourceChangedError
from nanoset_core.raw.contents import contents_of
from nanoset_core.raw.documents import read_documents
from nanoset_core.raw.fingerprints import fingerprint
from nanoset_core.raw.pieces import Piece, SourceRange

ROWS = [{"id": f"d-{n}", "text": f"Document {n}: é漢 " + "word " * (n * 7 % 23), "n": n} for n in range(30)]


def formats() -> list[Format]:
    """All of them."""
    judges: dict[str, Callable[[Path, Any], bool]] = {
        "x.jsonl": _is_lines,
        "x.jsonl.gz": _is_prefix_of(_gunzip),
        "x.jsonl.zst": _is_prefix_of(_unzstd),
        "x.parquet": _is_table,
        "x.arrow": _is_table,
    }
    stored = {name: encoded(name, ROWS, 12, checked=True) for name in judges}

    def kind(name: str, what: str, data: bytes) -> Format:
        return Format(f"{name.removeprefix('x')}{what}", {name: data}, name, _read, judges[name], _has_fault)

    found = [kind(name, "", data) for name, data in stored.items()]
    for name, data in stored.items():
        after = f"{name.removeprefix('x')} after its inventory"
        found.append(Format(after, {name: data}, name, _Inventoried(name, data)))
    unchecked = [kind(name, " without checksums", encoded(name, ROWS, 12)) for name in ("x.jsonl.zst", "x.parquet")]
    return [*found, *unchecked, kind("x.arrow", " stream", encoded("x.stream.arrow", ROWS, 12))]


def _documents(folder: Path, source: SourceRange, *, verify: bool) -> Any:
    """([(text, line, id)], [(reason, line)], faults)"""
    documents, rejects, faults, lines = [], [], 0, 0
    for batch in read_documents(folder, source, max_line_bytes=1 << 20, verify=verify):
        documents += zip(batch.texts, batch.lines, batch.ids, strict=True)
        rejects += [(reject.reason, reject.line) for reject in batch.rejects]
        faults, lines = faults + batch.faults, lines + batch.read_lines
    if len(documents) + len(rejects) - faults != lines:
        raise AssertionError(f"{lines} lines, {len(documents)} documents, {len(rejects)} rejects, {faults} faults")
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
        return faults == 1 and given[: count - 1] == documents[: count - 1] if count else faults == 1

    return judge


def _gunzip(folder: Path) -> tuple[bytes, bool]:
    return _decoded((folder / "x.jsonl.gz").read_bytes(), lambda: zlib.decompressobj(wbits=31), padding=b"\0")


def _unzstd(folder: Path) -> tuple[bytes, bool]:
    import zstandard

    make = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    return _decoded((folder / "x.jsonl.zst").read_bytes(), make)


def _decoded(data: bytes, make: Callable[[], Any], padding: bytes = b"") -> tuple[bytes, bool]:
    """(text, whether that is all), byte by byte, since what comes before an error counts."""
    import zstandard

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
    return [(text, row) for text, row, _ in documents] == found and len(found) + len(rejects) == len(texts)


def _whole_table(folder: Path) -> list[str | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

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
