"""Which names users may give; names become folders, partition keys and asset keys."""

from __future__ import annotations

import re
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.storage.paths import has_control_characters

_CORPUS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ASSET = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_MOST_CHARACTERS = 128
"""Files are named <corpus>_<key>_document.manifest.json and so on, within the 255 bytes that file
systems take.
"""
MOST_KEY_BYTES = 64
"""Of the key of a corpus's text."""
RESERVED = (
    "corpus",
    "corpora",
    "raw_jsonl",
    "tokenized_shards",
    "indexed_dataset",
    "packed_dataset",
    "packed",
)
"""Names of jobs, groups and assets that every project has."""


def check_corpus_name(name: str, where: object) -> str:
    """Return `name`, or raise ConfigError when it cannot name a corpus."""
    if not _CORPUS.fullmatch(name) or len(name) > _MOST_CHARACTERS:
        expected = f"up to {_MOST_CHARACTERS} letters, digits, '.', '_' and '-', starting with a letter or digit"
        what, remedy = "a folder's name cannot name a corpus", "rename the folder"
        raise ConfigError(what, where=where, found=repr(name), expected=expected, remedy=remedy)
    return name


def check_text_key(key: str, where: object, most_bytes: int = MOST_KEY_BYTES) -> str:
    """Return `key`, or raise ConfigError if no file can be named <name>_<key>_document."""
    try:
        size = len(key.encode())
    except (
        UnicodeEncodeError
    ):  # half of a surrogate pair, or a byte of the command line that is not UTF-8
        reason = "is not UTF-8"
    else:
        reason = "is empty" if not key else ""
        if "/" in key or has_control_characters(key):
            reason = "holds '/' or a control character"
        elif size > most_bytes:
            reason = f"has {size:,} bytes"
    if reason:
        shown = ascii(key) if len(key) <= most_bytes else f"{key[:most_bytes]!a}…"
        raise ConfigError(
            "this key cannot be part of a file's name",
            where=where,
            found=f"{shown}, which {reason}",
            expected=f"up to {most_bytes} bytes of text without '/' and control characters, since files are named "
            "<name>_<key>_document",
            remedy="rename the key in the raw text",
        )
    return key


def check_asset_name(name: str, where: object) -> str:
    """Return `name`, or raise ConfigError when it cannot name a nanoset or webdataset."""
    what, expected = "", ""
    if not _ASSET.fullmatch(name) or len(name) > _MOST_CHARACTERS:
        what = "this cannot name an asset"
        expected = f"up to {_MOST_CHARACTERS} letters, digits, '_' and '-', starting with a letter"
    elif name.replace("-", "_") in RESERVED:
        what, expected = "this name is taken", f"none of {', '.join(RESERVED)}"
    if what:
        raise ConfigError(
            what, where=where, found=repr(name), expected=expected, remedy="give it another name"
        )
    return name


def check_corpora(file: Path, path: str, corpora: tuple[str, ...]) -> None:
    """Raise ConfigError unless these are names of corpora, at least one, each once."""
    where = f"{file}: {path}"
    if not corpora:
        remedy = "name a folder of raw text"
        raise ConfigError(
            "no corpora are named", where=where, expected="at least one", remedy=remedy
        )
    for corpus in corpora:
        check_corpus_name(corpus, where)
    if len(set(corpora)) != len(corpora):
        remedy = "remove the repetition; to see a corpus more often, give it a greater weight"
        raise ConfigError(
            "a corpus is named twice", where=where, found=", ".join(corpora), remedy=remedy
        )
