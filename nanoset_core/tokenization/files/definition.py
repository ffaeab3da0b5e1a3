"""What a tokenizer's files define: a description that the `tokenizers` library reads, and what trainers go by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import orjson

from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenization.files import gpt2, megatron_tiktoken, sentencepiece, tekken, tiktoken
from nanoset_core.tokenization.files.content import Content
from nanoset_core.tokenization.files.source import Kind, TokenizerFile, as_source, kind_of, stamp
from nanoset_core.tokenization.knowledge import Knowledge, cache_folder, from_array, to_array

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
    content: Content | None = field(repr=False)
    """What other files than a tokenizer.json define."""

    def json(self) -> bytes:
        """A tokenizer.json: the file itself, or what other files were made into."""
        return read_regular(self.source.path) if self.content is None else self.content.json

    @property
    def identity(self) -> str:
        """Hex sha256 that changes with anything that the tokens depend on: for what is kept between runs."""
        if self.content is None:
            return self.fingerprint
        return hashlib.sha256(f"{self.fingerprint} ".encode() + self.content.json).hexdigest()

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Name → id of the special tokens that other files than a tokenizer.json define."""
        return {} if self.content is None else self.content.special_tokens

    @property
    def notice(self) -> str:
        """What its files cannot say themselves, and whoever uses them should know; or nothing."""
        told = "" if self.content is None else self.content.notice
        return told and f"{self.source} {told}"

    @property
    def eod(self) -> str | None:
        """The token that the trainer ends documents with, where files of this kind settle it."""
        return None if self.content is None else self.content.eod


def define(tokenizer: str | os.PathLike[str]) -> Definition:
    """Read a tokenizer's files.

    Raises:
        MissingError: one is not there.
        FormatError: one is damaged, or holds something else.
        ConfigError: something has to be said that the files do not, or is said and not for them.
    """
    source = as_source(tokenizer)
    return _define(source, stamp(source))


_READERS = {
    "vocab.json": gpt2.read_vocabulary,
    "tiktoken": tiktoken.read_ranks,
    "tiktoken JSON": megatron_tiktoken.read_ranks,
    "tekken.json": tekken.read_tekken,
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
    return Definition(source, kind, hashlib.sha256("\n".join(digests).encode() + b"\n" + meaning).hexdigest(), content)


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
