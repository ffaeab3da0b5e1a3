"""The small project that most tests build: its raw text, its settings, and checksums of outputs."""

from __future__ import annotations

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

WITH_PBIN = {"nanosets:": "pbin: [web, code]\nnanosets:"}
"""Replacements in CONFIG that convert two corpora to `.pbin`, too."""

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
            `a.parquet`, `a.arrow` or `a.stream.arrow`.
        rows: One document each.
        part: Rows of the first member or frame, of a row group, or of a record batch.
        checked: Whether zstd frames and pages of Parquet have checksums.
    """
    if not name.endswith((".parquet", ".arrow")):
        parts = [jsonl(some) for some in (rows[:part], rows[part:]) if some]
        if name.endswith(".gz"):
            parts = [gzip.compress(data, mtime=0) for data in parts]
        if name.endswith(".zst"):
            import zstandard

            parts = [
                zstandard.ZstdCompressor(write_checksum=checked).compress(data) for data in parts
            ]
        return b"".join(parts)
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, file = pa.Table.from_pylist(list(rows)), io.BytesIO()
    if name.endswith(".parquet"):
        pq.write_table(table, file, row_group_size=part, write_page_checksum=checked)
        return file.getvalue()
    make, options = pa.ipc.new_file, None
    if name.endswith(".stream.arrow"):
        make, options = pa.ipc.new_stream, pa.ipc.IpcWriteOptions(compression="zstd")
    with make(file, table.schema, options=options) as writer:
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
    rows = (row for corpus in corpora or ("web",) for row in sentences(corpus, 60))
    tokenizer.train_from_iterator([row["text"] for row in rows], trainer)
    return tokenizer.to_str(pretty=True).encode()


def write_raw(raw: Path) -> None:
    """Write three corpora: plain files in folders, gzip of two members, and zstd of two frames."""
    web = sentences("web", 240)
    for part in range(4):
        file = raw / "web" / f"part-{part // 2}" / f"web-{part}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jsonl(web[part * 60 : part * 60 + 60]))
    for corpus, name, count, first in (
        ("code", "code.jsonl.gz", 120, 50),
        ("books", "books.jsonl.zst", 90, 30),
    ):
        (raw / corpus).mkdir()
        (raw / corpus / name).write_bytes(encoded(name, sentences(corpus, count), first))


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
    (folder / "raw" / "web").mkdir(parents=True)
    for number in range(24):
        (folder / "raw" / "web" / f"{number}.jsonl").write_bytes(
            jsonl(sentences(f"web{number}", 400))
        )
    shutil.copy(tokenizer_file, folder / "tokenizer.json")
    given = {
        "raw": "raw",
        "root": "data",
        "tokenizer": {"path": "tokenizer.json", "eod": EOD},
    } | dict(settings or {})
    how = {"range_mib": 0.1, "workers": 2, "engine": "tokenizers"}
    given["tokenization"] = how | given.get("tokenization", {})
    (folder / "nanoset.yaml").write_text(json.dumps(given))
    return folder / "nanoset.yaml"


def tree(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file below a folder and the target of each link, by relative path.

    Files that only speed up the next run are left out.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file() and path.name != ".fingerprints.json" and "/.registered/" not in name:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def outputs_of(config: Path) -> dict[str, str]:
    """Return the sha256 of each file of a local root that a bucket would hold, by relative path."""
    found = tree(config.parent / "data")
    return {
        name: sha
        for name, sha in found.items()
        if ".in-use" not in name and not name.endswith("/current")
    }
