"""A corpus with a large file, which storage cuts into pieces without reading it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.buckets import upload_raw
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.storage.stores.s3.store import S3Store

PIECE_BYTES = 6000
"""Size of a piece, in tests."""
WINDOW_BYTES = 256
"""Bytes that are read around the end of a piece to find the end of a line, in tests."""
CONFIG = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "{EOD}"}}
documents: {{max_rejected_fraction: 0.5}}
tokenization: {{append_eod: true, range_mib: 0.02, workers: 1}}
nanosets:
  plain: {{blend: web, sequence_length: 16, split: "1"}}
storage: {{fingerprint: content}}
"""
LARGE = "large.jsonl"
"""The large file of the corpus web."""


@contextmanager
def small_pieces_of_files() -> Iterator[None]:
    """Let files be cut into pieces of some kilobytes until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoset_core.text.inventory.fingerprints.PIECE_BYTES", PIECE_BYTES)
        patch.setattr("nanoset_core.text.inventory.piece_cuts.WINDOW_BYTES", WINDOW_BYTES)
        # Digests of files that were just written are not remembered: their times cannot show a
        # change a moment later. Let them be remembered at any age.
        patch.setattr("nanoset_core.text.inventory.fingerprint_memory._RACY_NS", -(10**18))
        yield


def large_text() -> bytes:
    """Return documents with bad lines between them; one line is longer than several pieces.

    The last line does not end.
    """
    draw = random.Random(3)
    lines = jsonl(sentences("web", 400)).splitlines()
    for bad in (b"", b"{", b"[1]", b'{"no": "text"}', b"   ", b'{"text": "broken'):
        for _ in range(12):
            lines.insert(draw.randrange(len(lines)), bad)
    lines.insert(150, json.dumps({"id": "long", "text": "word " * 4000}).encode())
    return b"\n".join(lines)


def write_project_of_large_text(folder: Path, tokenizer_file: Path) -> Path:
    """Write a project with the large file; return its nanoset.yaml."""
    (folder / "raw" / "web").mkdir(parents=True)
    (folder / "raw" / "web" / LARGE).write_bytes(large_text())
    (folder / "raw" / "web" / "small.jsonl").write_bytes(
        jsonl(sentences("small", 5)) + b"\n" + b"[]\n"
    )
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "nanoset.yaml").write_text(CONFIG)
    return folder / "nanoset.yaml"


def write_unread_project(folder: Path, tokenizer_file: Path, place: S3Store) -> Path:
    """Write the project with its text in a bucket; return its nanoset.yaml."""
    config = write_project_of_large_text(folder, tokenizer_file)
    raw_url = upload_raw(folder / "raw", place).url()
    source_settings = f"fingerprint: etag-pieces, endpoint_url: {place.endpoint_url!r}"
    settings = config.read_text()
    settings = settings.replace("raw: raw", f"raw: {raw_url}")
    settings = settings.replace("fingerprint: content", source_settings)
    config.write_text(settings)
    return config
