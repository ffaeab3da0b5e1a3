"""The demo project: corpora of real text of the running Python in three compressions, a tokenizer,
nanoset.yaml.
"""

from __future__ import annotations

import email
import gzip
import importlib.metadata
import json
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.project.template import SCHEMA_FILE, config_text, schema_text
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.text.listing import natural_key

EOD = "<|endoftext|>"
TOKENIZER_FILE = "tokenizer.json"
VOCABULARY = 16_384
TRAINING_BYTES = 6_000_000
MARKER = ".nanoset-demo"
BROKEN_LINE = b'{"id": "broken-on-purpose", "text": "this line was cut off in the mid\n'

Document = dict[str, str]
_SMALLEST, _LARGEST = 200, 400_000
"""Bytes of a source that is taken."""
_FEWEST = 20
"""So many documents leave one for each part of the split 90,5,5."""
_ENOUGH_MEGABYTES = 12.0
_FEW_DOCUMENTS = {"on_reject": "quarantine", "max_rejected_fraction": 0.5}
"""Of a smaller demo, where the one broken line is more than a hundredth of its corpus."""
CONFIG: dict[str, Any] = {
    "raw": "raw",
    "root": "data",
    "tokenizer": {"path": TOKENIZER_FILE, "eod": EOD},
    "documents": {"on_reject": "quarantine", "max_rejected_fraction": 0.01},
    "tokenization": {
        "append_eod": True,
        "range_mib": 4,  # small, so that a small demo keeps every processor busy
    },
    "nanosets": {
        "pretrain": {
            "blend": {"stdlib": 0.4, "libraries": 0.4, "documentation": 0.1, "descriptions": 0.1},
            "sequence_length": 512,
            "split": "90,5,5",
            "seed": 1234,
            "schedule": {
                "iterations": 750,
                "global_batch_size": 16,
                "eval_interval": 250,
                "eval_iters": 3,
            },
        }
    },
    "webdatasets": {
        "shuffled": {
            "corpora": ["stdlib", "libraries", "documentation", "descriptions"],
            "sequence_length": 513,
            "samples_per_shard": 2048,
            "seed": 1234,
            "member": "json.gz",
        }
    },
}


def write_demo(
    folder: Path, *, megabytes: float = 24.0, say: Callable[[str], None] = lambda line: None
) -> bool:
    """Write the demo project; nanoset.yaml last, so that an interrupted attempt is repeated.

    Args:
        folder: of the project; it may exist.
        megabytes: about how much text to take, in 10**6 bytes; 2 is about the least.
        say: called with a line on each step.

    Returns:
        False where the project is there already and was left alone.

    Raises:
        ConfigError: the folder holds raw text, or a tokenizer, that is not the demo's.
        StorageError: the folder cannot be written to, or is full.
    """
    if (folder / CONFIG_FILE).exists():
        return False
    with writing_to(folder):
        _write(folder, megabytes, say)
    return True


def _write(folder: Path, megabytes: float, say: Callable[[str], None]) -> None:
    raw = folder / "raw"
    _clear(raw, folder / TOKENIZER_FILE)
    half = int(megabytes * 500_000)
    say("writing corpora from this Python's own text")
    _write_corpus(raw / "stdlib", standard_library(half), 6, _gzip)
    _write_corpus(raw / "libraries", libraries(half), 4, write_atomic, broken=BROKEN_LINE)
    _write_corpus(raw / "documentation", documentation(), 2, _zstd)
    _write_corpus(raw / "descriptions", descriptions(), 1, write_atomic)
    say(f"training a byte-level BPE tokenizer of {VOCABULARY:,} tokens")
    _train_tokenizer(folder / TOKENIZER_FILE, half)
    values = CONFIG if megabytes >= _ENOUGH_MEGABYTES else CONFIG | {"documents": _FEW_DOCUMENTS}
    write_atomic(folder / SCHEMA_FILE, schema_text().encode())
    head = "# Written by `nanoset demo`; docs/configuration.md has every key.\n"
    write_atomic(folder / CONFIG_FILE, (head + config_text(values)).encode())


def _clear(raw: Path, tokenizer: Path) -> None:
    """Make `raw` a new folder that is marked as the demo's; nothing without that mark is removed."""
    if not (raw / MARKER).exists():
        for path in (raw, tokenizer):
            if path.is_file() or (path.is_dir() and any(path.iterdir())):
                raise ConfigError(
                    "this is not a demo's, and would be overwritten",
                    where=path,
                    expected="an empty folder, or one that `nanoset demo` made",
                    remedy="name another folder: `nanoset demo FOLDER`",
                )
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    (raw / MARKER).touch()


def _write_corpus(
    folder: Path,
    documents: Iterable[Document],
    files: int,
    write: Callable[[Path, bytes], None],
    *,
    broken: bytes = b"",
) -> None:
    """Write documents into files, two to a folder; `broken` ends the first."""
    rows = [json.dumps(document, ensure_ascii=False).encode() + b"\n" for document in documents]
    each = -(-len(rows) // files)
    for number in range(files):
        part = folder / f"part-{number // 2}" if files > 2 else folder
        part.mkdir(parents=True, exist_ok=True)
        data = b"".join(rows[number * each : (number + 1) * each])
        write(part / f"{folder.name}-{number}.jsonl", data if number else data + broken)


def _gzip(path: Path, data: bytes) -> None:
    # Two members in each file, as concatenated downloads have.
    middle = data.find(b"\n", len(data) // 2) + 1
    members = (gzip.compress(part, 6, mtime=0) for part in (data[:middle], data[middle:]))
    write_atomic(path.with_suffix(".jsonl.gz"), b"".join(members))


def _zstd(path: Path, data: bytes) -> None:
    import zstandard

    write_atomic(path.with_suffix(".jsonl.zst"), zstandard.compress(data))


def _train_tokenizer(path: Path, limit_bytes: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_texts(limit_bytes), trainer)
    write_atomic(path, tokenizer.to_str(pretty=True).encode())


def _training_texts(limit_bytes: int) -> Iterator[str]:
    """A sample of every corpus: each k-th source, and all of the small corpora."""
    step = max(1, 2 * limit_bytes // TRAINING_BYTES)
    for documents in (standard_library(limit_bytes), libraries(limit_bytes)):
        yield from (document["text"] for document in islice(documents, 0, None, step))
    yield from (document["text"] for document in documentation())
    yield from (document["text"] for document in descriptions())


def standard_library(limit_bytes: int) -> Iterator[Document]:
    """Yield sources of the standard library, until they hold `limit_bytes` of UTF-8 and can be
    split.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    yield from _sources(
        folder,
        limit_bytes,
        skip=("site-packages", "dist-packages", "lib2to3/tests", "idlelib/Icons"),
    )


def libraries(limit_bytes: int) -> Iterator[Document]:
    """Yield sources of the installed packages, until they hold `limit_bytes` of UTF-8 and can be
    split.
    """
    folders = {Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")}
    for folder in sorted(folders):
        yield from _sources(folder, limit_bytes, skip=())


def _sources(folder: Path, limit_bytes: int, skip: tuple[str, ...]) -> Iterator[Document]:
    given = size = 0
    paths = sorted(
        folder.rglob("*.py"), key=lambda path: natural_key(path.relative_to(folder).as_posix())
    )
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if (
            name.startswith(skip)
            or not path.is_file()
            or not _SMALLEST <= path.stat().st_size <= _LARGEST
        ):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a source in another encoding is no text for this demo
        yield {"id": name, "text": text}
        given, size = given + 1, size + len(text.encode())
        if given >= _FEWEST and size >= limit_bytes:
            return


def documentation() -> Iterator[Document]:
    """Yield topics of the language reference, as pydoc holds them."""
    from pydoc_data import topics

    for topic, text in sorted(topics.topics.items()):
        yield {"id": f"topic/{topic}", "text": text}


def descriptions() -> Iterator[Document]:
    """Yield the long descriptions of the installed distributions, one of each name."""
    seen: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        metadata = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
        if metadata is None:
            continue
        message = email.message_from_string(metadata)
        body = message.get_payload()
        text = body if isinstance(body, str) and body.strip() else message.get("Description", "")
        if len(text) >= _SMALLEST:
            seen.setdefault(message.get("Name", ""), text)
    for name, text in sorted(seen.items()):
        yield {"id": f"distribution/{name}", "text": text.encode("utf-8", "replace").decode()}
