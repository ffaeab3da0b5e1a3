"""Reading a tokenizer's files into one description, which the `tokenizers` library reads, and facts for trainers."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import orjson

from nanoset_core.errors import FormatError
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenization.files import gpt2, ranks, sentencepiece
from nanoset_core.tokenization.files.content import Content
from nanoset_core.tokenization.files.source import Kind, TokenizerFile, as_source, kind_of, stat_signature
from nanoset_core.tokenization.knowledge import Knowledge, cache_folder, from_array, to_array

_FACTS = ("meaning", "vocab_size", "max_id", "special_tokens", "eod", "notice")
_LEAST_KEPT_BYTES = 1 << 20
_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
_WITHIN = re.compile(rb"[\x80-\xbf]")  # what no character begins with


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
    special_tokens: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Name → id of the special tokens that other files than a tokenizer.json define."""
    eod: str | None = None
    """The token that the trainer ends documents with, where files of this kind settle it."""
    notice: str = ""
    """What the user should know and the files cannot say; or nothing."""

    def json(self) -> bytes:
        """Return a tokenizer.json: the file itself, or what other files were made into."""
        return read_regular(self.source.path) if self.content is None else self.content.json

    @property
    def identity(self) -> str:
        """Return a hex sha256 that changes with anything that the tokens depend on: for what is kept between runs."""
        if self.content is None:
            return self.fingerprint
        return hashlib.sha256(f"{self.fingerprint} ".encode() + self.content.json).hexdigest()


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
    "vocab.json": gpt2.read_vocabulary,
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
    notice = content.notice and f"{source} {content.notice}"
    return Definition(source, kind, fingerprint, content, content.special_tokens, content.eod, notice)


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


def check_merges(content: bytes, source: TokenizerFile) -> None:
    """Refuse merges over which the library ends the process, as 0.23 does.

    It cuts as many bytes from the second part of each merge as the prefix of continuing subwords has, whatever they
    are; where that is within a character, the result is no text.

    Raises:
        FormatError: there is such a merge.
    """
    if _PREFIX.search(content) is None:
        return
    try:
        model = orjson.loads(content)["model"]
        prefix, merges = model["continuing_subword_prefix"], model["merges"]
        seconds = [merge.split(" ", 1)[1] if isinstance(merge, str) else merge[1] for merge in merges]
        size = len(prefix.encode())
        cut = next((token for token in seconds if _WITHIN.match(token.encode()[size:])), None)
    except (ValueError, LookupError, TypeError, AttributeError):
        return  # the library says what is wrong
    if cut is not None:
        raise FormatError(
            "a merge does not fit the prefix of continuing subwords",
            where=source,
            found=f"a merge with {cut!r}, and model.continuing_subword_prefix {prefix!r}",
            expected=f"merges whose second token begins with {prefix!r}",
            remedy="set model.continuing_subword_prefix to null in the file, or to what its tokens begin with",
        )
