"""What a tokenizer's files define: a description that the `tokenizers` library reads, and what trainers go by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

import orjson

from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenization.files import gpt2, megatron_tiktoken, sentencepiece, tekken, tiktoken
from nanoset_core.tokenization.files.content import Content
from nanoset_core.tokenization.files.converted import Converted
from nanoset_core.tokenization.files.source import Kind, TokenizerFile, as_source, kind_of, stamp


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
        known = f"{self.fingerprint} {installed_version('sentencepiece')} ".encode() + self.content.json
        return hashlib.sha256(known).hexdigest()

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


def installed_version(package: str) -> str:
    """Of a package; `unknown` where it is none that was installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


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
    known = Converted(digests, source.settings)
    content = known.recall()
    if content is None:
        content = _READERS[kind](source)
        known.remember(content)
    meaning = orjson.dumps(content.meaning, option=orjson.OPT_SORT_KEYS)
    return Definition(source, kind, hashlib.sha256("\n".join(digests).encode() + b"\n" + meaning).hexdigest(), content)
