"""A look at the first lines of a corpus: which keys they have, how much text there is."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from nanoset_core.errors import NanosetError
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.contents import Contents
from nanoset_core.text.documents import read_documents
from nanoset_core.text.endings import PARQUET, is_cuttable, is_table
from nanoset_core.text.lines import read_lines
from nanoset_core.text.listing import FileStat
from nanoset_core.text.pieces import Piece, SourceRange, StoredPiece
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables import read_table

SAMPLE_BYTES, SAMPLE_BATCH = 1 << 20, 64 << 10
"""Read to measure a corpus, and at once."""
_KEPT_CHARACTERS = 64 << 10
_FILES, _ROWS, _LONGEST = 3, 100, 64 << 20
_MOST_DEPTH = 3
_ID_TYPES = ("int", "UUID")
"""Types of ids that are not text."""
_IN_MOST = 0.9
"""Of the lines, at least, that have a text at a key of texts."""
_TEXTS = (
    *(
        "text",
        "content",
        "raw_content",
        "contents",
        "body",
        "document",
        "article",
        "story",
        "markdown",
        "code",
    ),
    "passage",
)
_IDS = (
    *(
        "id",
        "_id",
        "doc_id",
        "docid",
        "document_id",
        "uuid",
        "uid",
        "guid",
        "warc_record_id",
        "blob_id",
        "hash",
    ),
    *("url", "uri", "path"),
)
_ASIDE = (
    *(
        "title",
        "date",
        "timestamp",
        "created",
        "added",
        "language",
        "lang",
        "source",
        "author",
        "license",
        "name",
    ),
    *("domain", "subset", "split", "label", "category", "repo", "dump"),
)
"""Names of keys, from the likeliest on: of texts, of ids, of what else is told of a text."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What the first lines of a corpus have."""

    texts: Mapping[str, int] = field(default_factory=dict)
    """Key → characters of its strings, on average, rounded up and without white space around them;
    of keys that nearly all lines have. A dot goes into an object."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Key → type of what it holds elsewhere."""

    @property
    def filled(self) -> list[str]:
        """Keys of texts that are not empty in every line; all of them if every one is empty."""
        return [key for key, length in self.texts.items() if length] or [*self.texts]

    @property
    def text(self) -> str | None:
        """The key that surely holds the text; None where that cannot be told."""
        for name in _TEXTS:
            key = _named(name, self.filled)
            if key is not None:
                return key
        candidates = [key for key in self.filled if _last(key) not in (*_IDS, *_ASIDE)]
        return candidates[0] if len(candidates) == 1 else None

    @property
    def id(self) -> str | None:
        """The key that holds the documents' own ids; None where none is named so."""
        texts = [key for key, length in self.texts.items() if length]
        keys = [*texts, *(key for key, kind in self.others.items() if kind in _ID_TYPES)]
        return next(
            (key for name in _IDS if (key := _named(name, keys)) not in (None, self.text)), None
        )

    def __str__(self) -> str:
        texts = [
            key if length else f"{key} (empty in every line)" for key, length in self.texts.items()
        ]
        return ", ".join([*texts, *(f"{key} ({kind})" for key, kind in self.others.items())])


def _last(key: str) -> str:
    return key.rpartition(".")[2].lower()


def _named(name: str, keys: Sequence[str] | Mapping[str, int]) -> str | None:
    """Return the key of a name, one at the top before one within an object."""
    return next(
        (key for key in sorted(keys, key=lambda key: key.count(".")) if _last(key) == name), None
    )


def keys_of(folder: RawFolder, found: Contents) -> Keys:
    """Look at the first lines or rows of a corpus's first files; those that cannot be read are
    passed over.
    """
    rows: list[dict[str, Any]] = []
    for file in found.ordered[:_FILES]:
        with suppress(NanosetError, FaultError):
            rows += islice(_rows(folder, file), _ROWS)
    values: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in _flat(row):
            values.setdefault(key, []).append(value)
    texts = {}
    for key, some in values.items():
        lengths = [len(value.strip()) for value in some if isinstance(value, str | bytes)]
        if len(lengths) > _IN_MOST * len(rows):
            texts[key] = math.ceil(sum(lengths) / len(lengths))
    others = {key: type(some[0]).__name__ for key, some in values.items() if key not in texts}
    return Keys(texts, others)


def _rows(folder: RawFolder, file: FileStat) -> Iterator[dict[str, Any]]:
    if is_table(file.path):
        for rows in read_table(
            folder / file.path, lambda schema: None, lambda rows, _: rows.slice(0, _ROWS)
        ):
            yield from _rows_of_table(rows)
        return
    for block in read_lines(StoredPiece(folder, _whole(file)), _LONGEST):
        for line in block.lines:
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(line)
                if isinstance(value, dict):
                    yield value


def _rows_of_table(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield rows without the columns that Python has no values for, such as dates far away."""
    import pyarrow as pa

    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        with suppress(pa.ArrowException, ValueError, OverflowError):
            columns[name] = column.to_pylist()
    yield from (
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    )


def _flat(row: Mapping[str, Any], above: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict) and depth < _MOST_DEPTH:
            yield from _flat(value, f"{above}{key}.", depth + 1)
        elif value is not None:
            yield f"{above}{key}", value


def _whole(file: FileStat) -> Piece:
    return Piece(file.path, 0, file.size, 1, "")


@dataclass(frozen=True, slots=True)
class Measure:
    """What was read of a corpus, and what that says of the rest."""

    documents: int = 0
    """Documents that were read."""
    text_bytes: int = 0
    """UTF-8 bytes of their texts."""
    whole: float = 1.0
    """About how many times as much there is, judged by the stored bytes."""
    text: str = ""
    """Some of it."""


def measure(folder: RawFolder, found: Contents, text_key: str) -> Measure:
    """Read about the first MiB of a corpus's texts; files that cannot be read are passed over: a
    build will say so.
    """
    documents = text_bytes = read_bytes = 0
    stored, text = 0.0, ""
    for file in found.ordered:
        rows = begin = 0
        with suppress(NanosetError):
            source = SourceRange((_whole(file),))
            for batch in read_documents(
                folder, source, text_key=text_key, batch_bytes=SAMPLE_BATCH, verify=False
            ):
                rows, begin, documents = (
                    rows + batch.read_lines,
                    begin + batch.read_bytes,
                    documents + len(batch.texts),
                )
                text_bytes += sum(len(one.encode(errors="replace")) for one in batch.texts)
                text = text if len(text) >= _KEPT_CHARACTERS else "\n".join([text, *batch.texts])
                if read_bytes + begin >= SAMPLE_BYTES:
                    stored += min(file.size, _stored_bytes(folder, file, rows, begin, text))
                    return Measure(
                        documents, text_bytes, found.size / stored, text[:_KEPT_CHARACTERS]
                    )
        read_bytes, stored = read_bytes + begin, stored + file.size
    return Measure(
        documents, text_bytes, found.size / stored if stored else 1.0, text[:_KEPT_CHARACTERS]
    )


def _stored_bytes(
    folder: RawFolder, file: FileStat, rows: int, read_bytes: int, text: str
) -> float:
    """Estimate how many of a file's stored bytes were read."""
    if file.path.lower().endswith(PARQUET):
        import pyarrow.parquet as pq

        return float(file.size * rows / max(pq.read_metadata(str(folder / file.path)).num_rows, 1))
    if is_table(file.path) or is_cuttable(file.path):
        return read_bytes
    sample = text.encode(errors="replace")
    return read_bytes * len(zlib.compress(sample)) / max(len(sample), 1)
