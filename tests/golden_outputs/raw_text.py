"""The raw text that the golden outputs are made from; run once, to write `tests/golden/outputs/raw`.

The files are committed, since what a compressor or pyarrow makes of a text differs between their versions.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

SENTENCE = "the data of a model is read in order and shuffled by seed then packed into samples of one length"
WORDS = SENTENCE.split(" ")


def documents(corpus: str, count: int) -> list[dict[str, str]]:
    """Documents that differ, of five to seventy words."""
    rows = []
    for number in range(count):
        words = [WORDS[(number * 7 + step * step) % len(WORDS)] for step in range(5 + number * 13 % 65)]
        rows.append({"id": f"{corpus}-{number}", "text": f"{corpus} {number}: " + " ".join(words) + " é漢 ."})
    return rows


def lines(rows: Iterable[object]) -> bytes:
    """One JSON value a line."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


REJECTED = b"".join(
    [
        b'{"id": "cut", "text": "no end\n',
        b'{"id": "other", "body": "no text"}\n',
        b'{"id": "number", "text": 7}\n',
        b'["no", "object"]\n',
        b"\n",
        b'{"id": "latin", "text": "caf\xe9"}\n',
        b'{"id": "surrogate", "text": "\\ud800"}\n',
    ]
)


def write(raw: Path) -> None:
    """Four corpora: plain files with lines that are no documents, gzip, zstd, and tables."""
    for corpus in ("web/part-0", "web/part-1", "code", "books", "tables"):
        (raw / corpus).mkdir(parents=True)
    web = documents("web", 90)
    (raw / "web/part-0/web-0.jsonl").write_bytes(lines(web[:40]))
    (raw / "web/part-0/web-1.jsonl").write_bytes(lines(web[40:60]) + REJECTED + lines(web[60:65]))
    (raw / "web/part-1/web-2.jsonl").write_bytes(lines([{"id": "empty", "text": ""}, {"id": 3, "text": " "}]))
    (raw / "web/part-1/web-10.jsonl").write_bytes(lines(web[65:])[:-1])  # no line end after the last line
    (raw / "web/notes.txt").write_bytes(b"not read\n")
    code = documents("code", 60)
    (raw / "code/code.jsonl.gz").write_bytes(
        gzip.compress(lines(code[:25]), mtime=0) + gzip.compress(lines(code[25:]), mtime=0)
    )
    books = documents("books", 50)
    (raw / "books/books.jsonl.zst").write_bytes(
        zstandard.compress(lines(books[:20])) + zstandard.compress(lines(books[20:]))
    )
    tables = pa.Table.from_pylist(documents("tables", 30))
    pq.write_table(tables.slice(0, 20), raw / "tables/rows.parquet", row_group_size=8)
    with pa.ipc.new_stream(str(raw / "tables/rows.arrow"), tables.schema) as stream:
        stream.write_table(tables.slice(20))


if __name__ == "__main__":
    write(Path(__file__).parents[1] / "golden" / "outputs" / "raw")
