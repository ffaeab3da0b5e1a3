"""The files in which people have tokenizers, read into one description that every engine takes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import orjson

from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenization.files import ranks, sentencepiece
from nanoset_core.tokenization.files.source import (
    Content,
    Kind,
    TokenizerFile,
    TokenizerPath,
    as_source,
    kind_of,
    local_tokenizer,
    stat_signature,
    tokenizer_files,
    tokenizer_path,
)
from nanoset_core.tokenization.knowledge import Knowledge, cache_folder, from_array, to_array

__all__ = [
    "Definition",
    "TokenizerFile",
    "TokenizerPath",
    "as_source",
    "define",
    "local_tokenizer",
    "stat_signature",
    "tokenizer_files",
    "tokenizer_path",
]

_FACTS = ("meaning", "vocab_size", "max_id", "special_tokens", "eod", "notice")
_LEAST_KEPT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Definition:
    """A tokenizer, of whatever kind its files are."""

    source: TokenizerFile
    """Its files."""
    kind: Kind
    """Which they are."""
    fingerprint: str
    """sha256 of the tokenizer.json; else over the files and all settings that reach the tokens."""
    content: Content | None
    """What other files than a tokenizer.json define."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Return name → id of the special tokens that other files than a tokenizer.json define."""
        return self.content.special_tokens if self.content else {}

    @property
    def eod(self) -> str | None:
        """Return the token that the trainer ends documents with, where files of this kind settle it."""
        return self.content.eod if self.content else None

    @property
    def notice(self) -> str:
        """Return what the user should know and the files cannot say; or nothing."""
        return f"{self.source} {self.content.notice}" if self.content and self.content.notice else ""

    def json(self) -> bytes:
        """Return a tokenizer.json: the file itself, or what other files were made into."""
        return read_regular(self.source.path) if self.content is None else self.content.json


def define(tokenizer: str | os.PathLike[str]) -> Definition:
    """Read a tokenizer's files.

    Raises:
        MissingError: one is not there.
        FormatError: one is damaged, or holds something else.
        ConfigError: something has to be said that the files do not, or is said and not for them.
    """
    source = as_source(tokenizer)
    return _define(source, stat_signature(source))


_READERS = {
    "vocab.json": ranks.read_vocabulary,
    "tiktoken": ranks.read_ranks,
    "tiktoken JSON": ranks.read_megatron,
    "tekken.json": ranks.read_tekken,
    "SentencePiece": sentencepiece.read_model,
}


@lru_cache(maxsize=4)
def _define(source: TokenizerFile, _stamp: object) -> Definition:
    kind = kind_of(source)
    if kind == "tokenizer.json":
        return Definition(source, kind, sha256_file(source.path), None)
    files = [source.path, source.merges_file] if kind == "vocab.json" else [source.path]
    digests = [kind, *(sha256_file(file) for file in files if file.is_file())]
    content = _read(kind, digests, source)
    meaning = orjson.dumps(content.meaning, option=orjson.OPT_SORT_KEYS)
    fingerprint = hashlib.sha256("\n".join(digests).encode() + b"\n" + meaning).hexdigest()
    return Definition(source, kind, fingerprint, content)


def _read(kind: Kind, digests: list[str], source: TokenizerFile) -> Content:
    """Read other files than a tokenizer.json; large ones, which takes seconds, only once for all processes."""
    identity = orjson.dumps([*digests, sorted(source.settings.items())], default=str).decode()
    kept = Knowledge("definition", identity, cache_folder())
    if (found := kept.load()) is not None:
        return Content(json=found["json"].tobytes(), **from_array(found["facts"]))
    content = _READERS[kind](source)
    if len(content.json) >= _LEAST_KEPT_BYTES:
        facts = to_array({name: getattr(content, name) for name in _FACTS})
        kept.save({"json": np.frombuffer(content.json, np.uint8), "facts": facts})
    return content
