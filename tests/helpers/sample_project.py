"""The small project that most tests build: its raw text, its settings, and checksums of outputs."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

EOD = "<|endoftext|>"
SPLITS = ("train", "valid", "test")

CONFIG = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
documents: {max_rejected_fraction: 0.2}
tokenization: {append_eod: true, range_mib: 0.02, workers: 1}
nanosets:
  pretrain:
    blend: {web: 0.7, code: 0.3}
    sequence_length: 32
    split: "80,15,5"
    seed: 7
    samples: {train: 400}
    trainer_path: /lustre/data
  plain:
    blend: books
    sequence_length: 16
    split: "9,1"
    trainer_path: /lustre/data
webdatasets:
  shuffled:
    corpora: [web, code, books]
    sequence_length: 33
    samples_per_shard: 128
    seed: 5
    member: npy
    groups: 3
"""

FEWER = {
    '  plain:\n    blend: books\n    sequence_length: 16\n    split: "9,1"\n    trainer_path: '
    "/lustre/data\n": "",
    "groups: 3": "groups: 1",
}
"""Replacements in CONFIG that leave outputs of every kind, and a build a third fewer runs."""

ONLY_WEB = {
    "blend: {web: 0.7, code: 0.3}": "blend: web",
    "corpora: [web, code, books]": "corpora: [web]",
}
"""Replacements in CONFIG, in addition to FEWER, after which only one corpus is read.

The text of the others must be removed: see `keep_only_web`.
"""

OF_BOOKS = FEWER | {
    "blend: {web: 0.7, code: 0.3}": "blend: books",
    "corpora: [web, code, books]": "corpora: [books]",
}
"""Replacements in CONFIG that leave a nanoset and a webdataset of the corpus `books`."""

ONE_LARGE_TAR = {
    "samples_per_shard: 128": "samples_per_shard: 100000",
    "sequence_length: 33": "sequence_length: 2",
    "member: npy": "member: json.gz",
}
"""Replacements in CONFIG after which a worker writes one tar for about a second.

It can be killed meanwhile.
"""

WITH_PBIN = {"nanosets:": "pbin: [web, code]\nnanosets:"}
"""Replacements in CONFIG that convert two corpora to `.pbin`, too."""


def keep_only_web(config: Path) -> None:
    """Remove the text of the other corpora from a sample project with the settings ONLY_WEB."""
    for corpus in ("code", "books"):
        shutil.rmtree(config.parent / "raw" / corpus)


SENTENCE = (
    "the data of a model is read in order and shuffled by seed then packed into samples of one "
    "length"
)
WORDS = SENTENCE.split(" ")


def sentences(corpus: str, count: int) -> list[dict[str, str]]:
    """Return documents that differ, from a few words to a few hundred."""
    rows = []
    for number in range(count):
        words = [
            WORDS[(number * 7 + step * step) % len(WORDS)] for step in range(5 + number * 13 % 90)
        ]
        rows.append(
            {
                "id": f"{corpus}-{number}",
                "text": f"{corpus} {number}: " + " ".join(words) + " é漢 .",
            }
        )
    return rows


def jsonl(rows: Iterable[object]) -> bytes:
    """Return rows as JSON lines."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def encoded(
    name: str, rows: Sequence[Mapping[str, object]], part: int, *, checked: bool = False
) -> bytes:
    """Return rows as a file of raw text, in the format that the ending of its name says.

    Args:
        name: For example `a.jsonl`, `a.jsonl.gz` (two members), `a.jsonl.zst` (two frames),
            `a.parquet`, `a.arrow`, `a.stream.arrow`, `a.csv` or `a.tsv.gz`.
        rows: One document each.
        part: Rows of the first member or frame, of a row group, or of a record batch.
        checked: Whether zstd frames and pages of Parquet have checksums.
    """
    if name.endswith(".parquet"):
        return _encoded_parquet(rows, part, checked=checked)
    if name.endswith(".arrow"):
        return _encoded_arrow(rows, part, is_stream=name.endswith(".stream.arrow"))

    if ".csv" in name or ".tsv" in name:
        data = _encoded_csv(rows, delimiter="\t" if ".tsv" in name else ",")
        parts = [data[: len(data) // 2], data[len(data) // 2 :]]
    else:
        parts = [jsonl(part_rows) for part_rows in (rows[:part], rows[part:]) if part_rows]
    if name.endswith(".gz"):
        parts = [gzip.compress(data, mtime=0) for data in parts]
    if name.endswith(".zst"):
        import zstandard

        compressor = zstandard.ZstdCompressor(write_checksum=checked)
        parts = [compressor.compress(data) for data in parts]
    return b"".join(parts)


def _encoded_parquet(rows: Sequence[Mapping[str, object]], part: int, *, checked: bool) -> bytes:
    """Return rows as a Parquet file with row groups of `part` rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(list(rows))
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=part, write_page_checksum=checked)
    return file.getvalue()


def _encoded_csv(rows: Sequence[Mapping[str, object]], delimiter: str) -> bytes:
    """Return rows as a CSV file with a header."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def _encoded_arrow(rows: Sequence[Mapping[str, object]], part: int, *, is_stream: bool) -> bytes:
    """Return rows as an Arrow file, or as a compressed Arrow stream, in batches of `part` rows."""
    import pyarrow as pa

    table = pa.Table.from_pylist(list(rows))
    file = io.BytesIO()
    if is_stream:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        writer = pa.ipc.new_stream(file, table.schema, options=options)
    else:
        writer = pa.ipc.new_file(file, table.schema)
    with writer:
        writer.write_table(table, max_chunksize=part)
    return file.getvalue()


def tokenizer_json(vocab_size: int = 300, *corpora: str) -> bytes:
    """Train a byte-level BPE tokenizer on sentences of some corpora, and return its JSON."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOD, "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts: list[str] = []
    for corpus in corpora or ("web",):
        texts += [row["text"] for row in sentences(corpus, 60)]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=True).encode()


def write_raw(raw: Path) -> None:
    """Write three corpora: plain files in folders, gzip of two members, and zstd of two frames."""
    web = sentences("web", 240)
    for part in range(4):
        file = raw / "web" / f"part-{part // 2}" / f"web-{part}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jsonl(web[part * 60 : part * 60 + 60]))
    _write_compressed(raw / "code" / "code.jsonl.gz", count=120, part=50)
    _write_compressed(raw / "books" / "books.jsonl.zst", count=90, part=30)


def _write_compressed(file: Path, count: int, part: int) -> None:
    """Write sentences of a corpus, named like the file's folder, in two members or frames."""
    file.parent.mkdir()
    file.write_bytes(encoded(file.name, sentences(file.parent.name, count), part))


def write_project(
    folder: Path, tokenizer_file: Path, replacements: Mapping[str, str] | None = None
) -> Path:
    """Write the sample project into a new folder, and return its nanoset.yaml.

    Args:
        folder: Must not exist.
        tokenizer_file: Is copied.
        replacements: Text of CONFIG, each with what takes its place.
    """
    folder.mkdir()
    write_raw(folder / "raw")
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    text = CONFIG
    for old, new in (replacements or {}).items():
        assert old in text
        text = text.replace(old, new)
    (folder / "nanoset.yaml").write_text(text)
    return folder / "nanoset.yaml"


def write_corpus(
    folder: Path, tokenizer_file: Path, settings: Mapping[str, Any] | None = None
) -> Path:
    """Write a project of one corpus with two dozen files, and return its nanoset.yaml."""
    raw = folder / "raw" / "web"
    raw.mkdir(parents=True)
    for number in range(24):
        rows = sentences(f"web{number}", 400)
        (raw / f"{number}.jsonl").write_bytes(jsonl(rows))
    shutil.copy(tokenizer_file, folder / "tokenizer.json")

    config: dict[str, Any] = {
        "raw": "raw",
        "root": "data",
        "tokenizer": {"path": "tokenizer.json", "eod": EOD},
        **(settings or {}),
    }
    small_ranges = {"range_mib": 0.1, "workers": 2, "engine": "tokenizers"}
    config["tokenization"] = small_ranges | config.get("tokenization", {})
    config_file = folder / "nanoset.yaml"
    config_file.write_text(json.dumps(config))
    return config_file


def tree(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file below a folder and the target of each link, by relative path.

    Files that only speed up the next run are left out.
    """
    content_by_name = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            content_by_name[name] = f"-> {path.readlink()}"
        elif path.is_file() and path.name != ".fingerprints.json" and "/.registered/" not in name:
            content_by_name[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return content_by_name


def outputs_of(config: Path) -> dict[str, str]:
    """Return the sha256 of each file of a local root that a bucket would hold, by relative path."""
    outputs = {}
    for name, sha256 in tree(config.parent / "data").items():
        if ".in-use" not in name and not name.endswith("/current"):
            outputs[name] = sha256
    return outputs
