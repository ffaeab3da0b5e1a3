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
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.message import Message
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.project.first_config.template import SCHEMA_FILE, config_text, schema_text
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.rounding import ceil_division
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.text.files.listing import natural_key

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
    """Write an example project, unless the folder contains a project already.

        raw/            four collections of texts, taken from the running Python
        tokenizer.json  a tokenizer that is trained on them
        nanoset.yaml    the settings of the project

    If this is interrupted, the next call begins again: nanoset.yaml is written last, and shows that
    the project is complete.

    Args:
        folder: Folder of the project, which may exist.
        megabytes: About how much text to write, in 10**6 bytes; at least about 2.
        say: Called with a line of text before each step, to show it to the user.

    Returns:
        Whether the project was written. False if there is a nanoset.yaml already.

    Raises:
        ConfigError: The folder contains raw text, or a tokenizer, that is not the demo's.
        StorageError: The folder cannot be written to, or is full.
    """
    if (folder / CONFIG_FILE).exists():
        return False

    half_bytes = int(megabytes * 500_000)  # two large corpora have half of the text each
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
    """Write the four corpora (collections of texts) of the example project as JSON lines.

    They differ in how the files are compressed, to show that all of this can be read:

        stdlib           6 files, gzip
        libraries        4 files, not compressed; the first has a broken line
        documentation    2 files, zstd
        descriptions     1 file, not compressed

    Args:
        raw: The folder for them, which exists.
        limit_bytes: About how much text each of the first two gets. The others are small.
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
    """Write the settings of the example project, nanoset.yaml, and a schema next to it.

    Editors use the schema to complete keys and to show mistakes.

    Args:
        folder: Folder of the project.
        is_small: Whether there is little text. One line of it is broken on purpose. In little text,
            that is more than the usual 1 % of lines that may be broken, so more are allowed.
    """
    config = CONFIG
    if is_small:
        config = CONFIG | {"documents": _SMALL_DEMO_DOCUMENTS}
    write_atomic(folder / SCHEMA_FILE, schema_text().encode())
    head = "# Written by `nanoset demo`; docs/configuration.md has every key.\n"
    write_atomic(folder / CONFIG_FILE, (head + config_text(config)).encode())


def _prepare_raw_folder(raw: Path, other_paths: Sequence[Path]) -> None:
    """Make an empty folder for the text of the example project; delete that of an interrupted
    attempt.

    Text of the user must not be deleted. So the first thing that is written is an empty file, the
    marker `.nanoset-demo`. If a later call finds it, everything in the folder may be overwritten.

    Args:
        raw: The folder for the text.
        other_paths: Other files and folders that the example project will have.

    Raises:
        ConfigError: There is no marker, and one of the paths exists. It may belong to the user.
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
    """Check that nothing of the user is at a path that will be written: it is missing, or an empty
    folder.

    Args:
        path: Such as the folder `raw`, or the file tokenizer.json.

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
    """Write a corpus (a collection of texts) as files of JSON lines, one document on each line.

    For example, 6 files of the corpus "stdlib" are written as

        stdlib/part-0/stdlib-0.jsonl.gz    stdlib/part-0/stdlib-1.jsonl.gz
        stdlib/part-1/stdlib-2.jsonl.gz    …

    Args:
        folder: Folder of the corpus, such as `stdlib`.
        documents: Its documents, which are divided evenly among the files.
        n_files: How many files to write. If there are one or two, they are in `folder` itself.
        write: Writes bytes to a path; compresses them, and adds ".gz" to the path, for example.
        broken: A line to append to the first file, although it is no valid document.
    """
    lines = [json.dumps(document, ensure_ascii=False).encode() + b"\n" for document in documents]
    lines_per_file = ceil_division(len(lines), n_files)
    for number in range(n_files):
        start = number * lines_per_file
        content = b"".join(lines[start : start + lines_per_file])
        if number == 0:
            content += broken

        path = _corpus_file(folder, number, n_files)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)


def _corpus_file(folder: Path, number: int, n_files: int) -> Path:
    """Return the path of one file of a corpus; with more than two files, a subfolder has two each.

        stdlib/stdlib-0.jsonl           file 0 of 1 or 2
        stdlib/part-0/stdlib-1.jsonl    file 1 of 6
        stdlib/part-1/stdlib-2.jsonl    file 2 of 6

    Args:
        folder: Folder of the corpus, such as `stdlib`.
        number: Number of the file, counted from 0.
        n_files: How many files the corpus has.
    """
    name = f"{folder.name}-{number}.jsonl"
    if n_files <= 2:
        return folder / name
    return folder / f"part-{number // 2}" / name


def _gzip(path: Path, data: bytes) -> None:
    """Write a gzip file that consists of two parts, each of which is a complete gzip file.

    Such files are common: `cat a.gz b.gz > ab.gz` makes one. Some programs only read the first
    part, so the example shows that this project reads both.

    Args:
        path: Path of the uncompressed file, such as a.jsonl; ".gz" is appended.
        data: The lines. They are divided at the end of a line near the middle.
    """
    middle = data.find(b"\n", len(data) // 2) + 1
    first_member = gzip.compress(data[:middle], 6, mtime=0)
    second_member = gzip.compress(data[middle:], 6, mtime=0)
    write_atomic(path.with_suffix(".jsonl.gz"), first_member + second_member)


def _zstd(path: Path, data: bytes) -> None:
    """Write a file that is compressed by zstd.

    Args:
        path: Path of the uncompressed file, such as a.jsonl; ".zst" is appended.
        data: The lines.
    """
    import zstandard

    write_atomic(path.with_suffix(".jsonl.zst"), zstandard.compress(data))


def _train_tokenizer(path: Path, limit_bytes: int) -> None:
    """Train a tokenizer on a sample of the texts, and write it to a file.

    It is a byte-level BPE tokenizer, as GPT-2's: it begins with the 256 bytes as tokens, and adds
    tokens for frequent sequences, such as "the", until there are 16,384.

    Args:
        path: The file, tokenizer.json.
        limit_bytes: About how much text each of the two large corpora (collections of texts) has.
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
    """Yield about 6 MB of texts, on which a tokenizer is trained; more would only take longer.

    These are all texts of the two small corpora, and some of the two large ones. For example, of
    two large corpora of 12 MB each, every fourth text is taken.

    Args:
        limit_bytes: About how much text each of the two large corpora has.
    """
    # Take each text of the large corpora whose number is a multiple of `step`: 4 for 2 * 12 MB.
    step = max(1, 2 * limit_bytes // TRAINING_BYTES)
    for documents in (standard_library(limit_bytes), libraries(limit_bytes)):
        for document in islice(documents, 0, None, step):
            yield document["text"]
    for document in chain(documentation(), descriptions()):
        yield document["text"]


def standard_library(limit_bytes: int) -> Iterator[Document]:
    """Yield the source files of Python's standard library as documents.

    For example: {"id": "json/decoder.py", "text": "…"}.

    Args:
        limit_bytes: Stop after this much text. But there are always at least 20 documents, so that
            they can be split for training, validation and test.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    yield from _sources(
        folder,
        limit_bytes,
        skip=("site-packages", "dist-packages", "lib2to3/tests", "idlelib/Icons"),
    )


def libraries(limit_bytes: int) -> Iterator[Document]:
    """Yield the source files of the installed Python packages as documents.

    For example: {"id": "numpy/__init__.py", "text": "…"}.

    Args:
        limit_bytes: Stop after this much text, in each folder of packages. But there are always at
            least 20 documents, so that they can be split for training, validation and test.
    """
    # Pure and compiled packages are in one folder in most installations, but not in all.
    folders = {Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")}
    for folder in sorted(folders):
        yield from _sources(folder, limit_bytes, skip=())


def _sources(folder: Path, limit_bytes: int, skip: tuple[str, ...]) -> Iterator[Document]:
    """Yield the Python source files below a folder as documents, until there is enough text.

    For example: {"id": "json/decoder.py", "text": "…"}.

    Args:
        folder: The folder.
        limit_bytes: How much text is enough. But at least 20 documents are yielded, if there are as
            many.
        skip: Paths below the folder that are left out, such as "site-packages".
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


@cache
def _source_names(folder: Path, skip: tuple[str, ...]) -> Sequence[str]:
    """Return the paths of all Python source files below a folder, relative to it.

    They are in natural order, in which a2.py comes before a10.py. The folders have thousands of
    files, and are needed twice, for the corpora and for the tokenizer: they are searched once.

    Args:
        folder: The folder.
        skip: Paths below the folder that are left out, such as "site-packages". A path is left out
            if it starts with one of them.
    """
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")]
    names = [name for name in names if not name.startswith(skip)]
    return sorted(names, key=natural_key)


def _source_text(path: Path) -> str | None:
    """Return the text of a Python source file, or None if it makes no good document.

    That is so if it has less than 200 or more than 400,000 bytes, or is not encoded in UTF-8.

    Args:
        path: The file.
    """
    if not path.is_file():
        return None
    if not _MIN_DOCUMENT_BYTES <= path.stat().st_size <= _MAX_DOCUMENT_BYTES:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def documentation() -> Iterator[Document]:
    """Yield the topics of Python's language reference as documents.

    They are the texts that Python shows for `help("assignment")`, for example: {"id":
    "topic/assignment", "text": "…"}.
    """
    from pydoc_data import topics

    for topic, text in sorted(topics.topics.items()):
        yield {"id": f"topic/{topic}", "text": text}


def descriptions() -> Iterator[Document]:
    """Yield the long descriptions of the installed Python packages as documents, ordered by name.

    For example: {"id": "distribution/numpy", "text": "…"}. This is the text that a package shows on
    PyPI, the index of packages.
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
    """Return the long description in the metadata of a Python package, or "" if it has none.

    The metadata have the format of an email. The description is its body, or, in old packages, the
    value of the header "Description".

    Args:
        message: The metadata.
    """
    body = message.get_payload()
    if isinstance(body, str) and body.strip():
        return body
    description: str = message.get("Description", "")
    return description
