"""Write the project of `nanoset demo`: raw text, a tokenizer and nanoset.yaml.

The text comes from the running Python, so that nothing has to be downloaded. There are four
corpora, in the three compressions that the project supports:

    stdlib          sources of the standard library         .jsonl.gz
    libraries       sources of the installed packages       .jsonl, with one broken line
    documentation   topics of the language reference        .jsonl.zst
    descriptions    descriptions of installed packages      .jsonl
"""

from __future__ import annotations

import email
import gzip
import importlib.metadata
import json
import math
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.message import Message
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.project.template import SCHEMA_FILE, config_text, schema_text
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.text.listing import natural_key

EOD = "<|endoftext|>"
"""Text of the end-of-document token."""
TOKENIZER_FILE = "tokenizer.json"
VOCABULARY = 16_384
"""Tokens of the tokenizer."""
TRAINING_BYTES = 6_000_000
"""About how much text the tokenizer is trained on; more would only take longer."""
MARKER = ".nanoset-demo"
"""Empty file in the folder of raw text, which says that the demo may replace the folder."""
BROKEN_LINE = b'{"id": "broken-on-purpose", "text": "this line was cut off in the mid\n'
"""A line that is not JSON, so that the demo shows what becomes of rejected lines."""

Document = dict[str, str]
"""A document with the keys `id` and `text`."""
_MIN_DOCUMENT_BYTES = 200
"""Shorter sources and descriptions are left out."""
_MAX_DOCUMENT_BYTES = 400_000
"""Longer sources are left out."""
_MIN_DOCUMENTS = 20
"""With fewer documents, a part of the split 90,5,5 could be empty."""
_SMALL_DEMO_MEGABYTES = 12.0
"""In a demo below this size, the broken line is more than a hundredth of its corpus."""
_SMALL_DEMO_DOCUMENTS = {"on_reject": "quarantine", "max_rejected_fraction": 0.5}
"""Settings of documents for a small demo, so that the broken line does not stop the build."""
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
"""Content of nanoset.yaml."""


def write_demo(
    folder: Path, *, megabytes: float = 24.0, say: Callable[[str], None] = lambda line: None
) -> bool:
    """Write the demo project, unless the folder contains a project already.

    nanoset.yaml is written last, so that an interrupted attempt is repeated by the next call.

    Args:
        folder: Folder of the project, which may exist.
        megabytes: About how much text to write, in 10**6 bytes; at least about 2.
        say: Called with a line of text before each step.

    Returns:
        Whether the project was written. False if there is a nanoset.yaml already.

    Raises:
        ConfigError: The folder contains raw text, or a tokenizer, that is not the demo's.
        StorageError: The folder cannot be written to, or is full.
    """
    if (folder / CONFIG_FILE).exists():
        return False

    # Sources of the standard library and of the packages are half of the text each. The other two
    # corpora are small.
    half_bytes = int(megabytes * 500_000)
    with writing_to(folder):
        other_paths = [folder / name for name in (TOKENIZER_FILE, SCHEMA_FILE, CONFIG["root"])]
        _prepare_raw_folder(folder / "raw", other_paths)
        say("writing corpora from this Python's own text")
        _write_corpora(folder / "raw", half_bytes)
        say(f"training a byte-level BPE tokenizer of {VOCABULARY:,} tokens")
        _train_tokenizer(folder / TOKENIZER_FILE, half_bytes)
        _write_config(folder, is_small=megabytes < _SMALL_DEMO_MEGABYTES)
    return True


def _write_corpora(raw: Path, limit_bytes: int) -> None:
    """Write the raw text of the four corpora, in different compressions.

    Args:
        raw: The folder of raw text, which exists and has no corpora.
        limit_bytes: About how much text each of the two large corpora gets.
    """
    _write_corpus(raw / "stdlib", standard_library(limit_bytes), n_files=6, write=_gzip)
    _write_corpus(
        raw / "libraries",
        libraries(limit_bytes),
        n_files=4,
        write=write_atomic,
        broken=BROKEN_LINE,
    )
    _write_corpus(raw / "documentation", documentation(), n_files=2, write=_zstd)
    _write_corpus(raw / "descriptions", descriptions(), n_files=1, write=write_atomic)


def _write_config(folder: Path, *, is_small: bool) -> None:
    """Write nanoset.yaml, and the schema by which editors complete and check it.

    Args:
        folder: Folder of the project.
        is_small: Whether there is so little text that the one broken line is more than the allowed
            fraction. Then nanoset.yaml allows a larger one.
    """
    config = CONFIG
    if is_small:
        config = CONFIG | {"documents": _SMALL_DEMO_DOCUMENTS}
    write_atomic(folder / SCHEMA_FILE, schema_text().encode())
    head = "# Written by `nanoset demo`; docs/configuration.md has every key.\n"
    write_atomic(folder / CONFIG_FILE, (head + config_text(config)).encode())


def _prepare_raw_folder(raw: Path, other_paths: Sequence[Path]) -> None:
    """Delete the raw text of an interrupted demo, and make an empty folder for that of a new one.

    A demo writes a marker file into the folder before anything else. So if there is a marker, all
    paths may be overwritten.

    Args:
        raw: The folder.
        other_paths: Other files and folders that the demo, or the build after it, will write.

    Raises:
        ConfigError: The folder has no marker, and one of the paths exists. It may belong to the
            user.
    """
    marker = raw / MARKER
    is_of_demo = marker.exists()
    if not is_of_demo:
        for path in (raw, *other_paths):
            _check_unused(path)
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    marker.touch()


def _check_unused(path: Path) -> None:
    """Check that a path is missing or an empty folder, so that nothing of the user is overwritten.

    Args:
        path: A file or folder that the demo will write.

    Raises:
        ConfigError: There is something.
    """
    is_empty_folder = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty_folder:
        raise ConfigError(
            "`nanoset demo` did not write this, and would overwrite it",
            where=path,
            expected="an empty folder, or one that `nanoset demo` made",
            remedy="name another folder: `nanoset demo FOLDER`",
        )


def _write_corpus(
    folder: Path,
    documents: Iterable[Document],
    *,
    n_files: int,
    write: Callable[[Path, bytes], None],
    broken: bytes = b"",
) -> None:
    """Write the JSON lines of a corpus.

    Args:
        folder: Folder of the corpus.
        documents: Its documents, which are divided evenly among the files.
        n_files: How many files to write. More than two are written in pairs to folders within
            `folder`.
        write: Writes a file, compressed or not, and appends the suffix of its compression to the
            path.
        broken: A line to append to the first file, although it is no valid document.
    """
    lines = [json.dumps(document, ensure_ascii=False).encode() + b"\n" for document in documents]
    lines_per_file = math.ceil(len(lines) / n_files)
    for number in range(n_files):
        start = number * lines_per_file
        content = b"".join(lines[start : start + lines_per_file])
        if number == 0:
            content += broken

        # The files 0 and 1 are in part-0, 2 and 3 in part-1, and so on.
        subfolder = folder / f"part-{number // 2}" if n_files > 2 else folder
        subfolder.mkdir(parents=True, exist_ok=True)
        write(subfolder / f"{folder.name}-{number}.jsonl", content)


def _gzip(path: Path, data: bytes) -> None:
    """Write a gzip file with two members, as if two compressed files were concatenated."""
    middle = data.find(b"\n", len(data) // 2) + 1
    first_member = gzip.compress(data[:middle], 6, mtime=0)
    second_member = gzip.compress(data[middle:], 6, mtime=0)
    write_atomic(path.with_suffix(".jsonl.gz"), first_member + second_member)


def _zstd(path: Path, data: bytes) -> None:
    """Write a zstd file."""
    import zstandard

    write_atomic(path.with_suffix(".jsonl.zst"), zstandard.compress(data))


def _train_tokenizer(path: Path, limit_bytes: int) -> None:
    """Train a byte-level BPE tokenizer on a sample of the corpora, and write it to a file.

    Args:
        path: The file.
        limit_bytes: Size of each of the two large corpora.
    """
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
    """Yield about `TRAINING_BYTES` of text: each k-th source, and all of the small corpora.

    Args:
        limit_bytes: Size of each of the two large corpora.

    Yields:
        The texts of documents.
    """
    step = max(1, 2 * limit_bytes // TRAINING_BYTES)  # of the sources in the two large corpora
    for documents in (standard_library(limit_bytes), libraries(limit_bytes)):
        for document in islice(documents, 0, None, step):
            yield document["text"]
    for document in chain(documentation(), descriptions()):
        yield document["text"]


def standard_library(limit_bytes: int) -> Iterator[Document]:
    """Yield sources of the standard library, until they have `limit_bytes` of UTF-8.

    There are at least `_MIN_DOCUMENTS`, so that they can be split.

    Args:
        limit_bytes: Bytes of text that are enough.

    Yields:
        Documents such as `{"id": "json/decoder.py", "text": "…"}`.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    yield from _sources(
        folder,
        limit_bytes,
        skip=("site-packages", "dist-packages", "lib2to3/tests", "idlelib/Icons"),
    )


def libraries(limit_bytes: int) -> Iterator[Document]:
    """Yield sources of the installed packages, until they have `limit_bytes` of UTF-8.

    There are at least `_MIN_DOCUMENTS`, so that they can be split.

    Args:
        limit_bytes: Bytes of text that are enough, in each folder of packages.

    Yields:
        Documents such as `{"id": "numpy/__init__.py", "text": "…"}`.
    """
    # Pure and compiled packages are in one folder in most installations, but not in all.
    folders = {Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")}
    for folder in sorted(folders):
        yield from _sources(folder, limit_bytes, skip=())


def _sources(folder: Path, limit_bytes: int, skip: tuple[str, ...]) -> Iterator[Document]:
    """Yield Python sources below a folder in natural order, up to a number of bytes.

    At least `_MIN_DOCUMENTS` are yielded, if there are as many.

    Args:
        folder: The folder.
        limit_bytes: Bytes of UTF-8 that are enough.
        skip: Prefixes of paths below the folder that are left out.

    Yields:
        Documents such as `{"id": "json/decoder.py", "text": "…"}`.
    """
    n_documents = 0
    n_bytes = 0
    for name in _source_names(folder, skip):
        text = _source_text(folder / name)
        if text is None:
            continue
        yield {"id": name, "text": text}
        n_documents += 1
        n_bytes += len(text.encode())
        if n_documents >= _MIN_DOCUMENTS and n_bytes >= limit_bytes:
            return


def _source_names(folder: Path, skip: tuple[str, ...]) -> list[str]:
    """Return the paths of all Python sources below a folder, relative to it, in natural order.

    Args:
        folder: The folder.
        skip: Prefixes of paths that are left out.
    """
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")]
    names = [name for name in names if not name.startswith(skip)]
    return sorted(names, key=natural_key)


def _source_text(path: Path) -> str | None:
    """Return the text of a Python source; None if it is too short, too long or not UTF-8."""
    if not path.is_file():
        return None
    if not _MIN_DOCUMENT_BYTES <= path.stat().st_size <= _MAX_DOCUMENT_BYTES:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def documentation() -> Iterator[Document]:
    """Yield the topics of the language reference, which Python's `help()` shows.

    Yields:
        Documents such as `{"id": "topic/assignment", "text": "…"}`.
    """
    from pydoc_data import topics

    for topic, text in sorted(topics.topics.items()):
        yield {"id": f"topic/{topic}", "text": text}


def descriptions() -> Iterator[Document]:
    """Yield the long descriptions of the installed packages, ordered by name, each name once.

    Yields:
        Documents such as `{"id": "distribution/numpy", "text": "…"}`.
    """
    text_by_name: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        metadata = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
        if metadata is None:
            continue
        message = email.message_from_string(metadata)  # the format of metadata is that of an email
        text = _description(message)
        if len(text) >= _MIN_DOCUMENT_BYTES:
            text_by_name.setdefault(message.get("Name", ""), text)

    for name, text in sorted(text_by_name.items()):
        # Bytes of the metadata that are not UTF-8 are replaced by "?".
        yield {"id": f"distribution/{name}", "text": text.encode("utf-8", "replace").decode()}


def _description(message: Message) -> str:
    """Return the long description in a package's metadata: the body, or else a header."""
    body = message.get_payload()
    if isinstance(body, str) and body.strip():
        return body
    description: str = message.get("Description", "")
    return description
