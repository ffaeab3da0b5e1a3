"""Read a tokenizer from any kind of file into one `Definition`, from which every engine is made.

- `source`: a tokenizer's files and settings
- `kinds`: which kind a file is
- `vocab_json`, `tiktoken_lines`, `ranks_json`, `sentencepiece`: readers that convert a kind of file
  to a tokenizer.json
- `named_tokens`, `additions`: special tokens that only files next to the tokenizer name
- `examination`: faults of a tokenizer.json
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.cache import CacheEntry, cache_folder, from_array, to_array
from nanoset_core.tokenizers.files.additions import Addition, notices_of_missing_tokens, resolve
from nanoset_core.tokenizers.files.examination import MIN_UNMERGED_SHARE, Examination, examine
from nanoset_core.tokenizers.files.kinds import Kind, kind_of
from nanoset_core.tokenizers.files.named_tokens import files_beside, read_named_tokens
from nanoset_core.tokenizers.files.ranks_json import read_megatron, read_tekken
from nanoset_core.tokenizers.files.sentencepiece import read_sentencepiece_model
from nanoset_core.tokenizers.files.source import (
    TokenizerFile,
    TokenizerPath,
    as_source,
    local_tokenizer,
    stat_signature,
    tokenizer_files,
    tokenizer_path,
)
from nanoset_core.tokenizers.files.tiktoken_lines import read_tiktoken_lines
from nanoset_core.tokenizers.files.tokenizer_json import ConvertedTokenizer, parsed_added_tokens
from nanoset_core.tokenizers.files.vocab_json import read_vocab_json

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

_CACHED_FIELDS = ("meaning", "vocab_size", "max_id", "special_tokens", "eod", "notice")
"""Fields of a converted tokenizer that the cache stores as JSON."""
_MIN_CACHED_BYTES = 1 << 20
"""Smaller files are read faster than the cache."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A tokenizer, whatever kind of file it was read from."""

    source: TokenizerFile
    """Its file, with its settings."""
    kind: Kind
    """The kind of this file."""
    fingerprint: str
    """Identifies the tokenizer in recipes: the sha256 of a tokenizer.json that is used unchanged,
    else a sha256 over the files and all settings that affect the tokens.
    """
    converted: ConvertedTokenizer | None
    """The tokenizer.json that the file was converted to; None if it is a tokenizer.json itself."""
    model_changes: Mapping[str, Any]
    """Setting of the model → the value that replaces the one in the tokenizer.json."""
    added_tokens: Sequence[Mapping[str, Any]]
    """All added tokens, if files next to the tokenizer.json add some; else empty."""
    notices: Sequence[str]
    """What the user should know about the tokenizer, a sentence each."""
    drops_characters: bool
    """Whether characters without a token are missing from the tokens of a text."""
    new_names: Sequence[str] = ()
    """Tokens that are added because files next to the tokenizer.json name them."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Name → id of the special tokens of a converted tokenizer; empty for a tokenizer.json."""
        return self.converted.special_tokens if self.converted else {}

    @property
    def eod(self) -> str | None:
        """The end-of-document token that the trainer's class defines, or None."""
        return self.converted.eod if self.converted else None

    def json(self) -> bytes:
        """Return the tokenizer as a tokenizer.json, Hugging Face's format.

        A file in another format has been converted. A setting such as a random dropout is replaced,
        and tokens are added that only files next to it name.
        """
        content = _content(self.source, self.converted)
        if not self.model_changes and not self.added_tokens:
            return content

        tokenizer = orjson.loads(content)
        tokenizer["model"].update(self.model_changes)
        if self.added_tokens:
            tokenizer["added_tokens"] = list(self.added_tokens)
        return orjson.dumps(tokenizer)


def define(tokenizer: str | os.PathLike[str]) -> Definition:
    """Read a tokenizer's files, and return what they define, such as its special tokens.

    The files may be in one of several formats, such as a tokenizer.json or a SentencePiece model.

    Args:
        tokenizer: The tokenizer's file, the folder that contains this file, or a `TokenizerFile`
            with settings.

    Raises:
        MissingError: A file does not exist.
        FormatError: A file is damaged, or is something else.
        ConfigError: A setting is missing, or one does not apply to the kind of file.
    """
    source = as_source(tokenizer)
    return _define(source, stat_signature(source))


@lru_cache(maxsize=4)
def _define(source: TokenizerFile, _signature: object) -> Definition:
    """Read a tokenizer's files, and keep the result as long as they are unchanged.

    Args:
        source: The tokenizer's file.
        _signature: Sizes, times and inodes of the files. If one is written, it changes, so that the
            cache of this function has no entry for it.
    """
    kind = kind_of(source)
    if kind == "tokenizer.json":
        return _define_tokenizer_json(source)
    return _define_converted(source, kind)


def _define_tokenizer_json(source: TokenizerFile) -> Definition:
    """Return what a tokenizer.json (Hugging Face's format) defines, with the changes that it needs.

    The file stays as it is, but two things may be changed when it is used:

        model_changes    a random dropout, which would make tokens random, is switched off
        added_tokens     tokens are added that only a tokenizer_config.json next to the file names

    Args:
        source: The tokenizer.json.
    """
    digest = sha256_file(source.path)
    # The examination finds these changes, and what the user should know. It is cached by the
    # digest. Files of other formats are converted first, which a tokenizer.json need not be.
    examination = _examined(source, "tokenizer.json", identity=digest, converted=None)
    return Definition(
        source=source,
        kind="tokenizer.json",
        fingerprint=_fingerprint_with_changes(digest, examination),
        converted=None,
        model_changes=examination.model_changes,
        added_tokens=tuple(examination.added_tokens),
        notices=_sentences(source, examination.notices),
        drops_characters=examination.drops_characters,
        new_names=tuple(examination.new_names),
    )


def _fingerprint_with_changes(digest: str, examination: Examination) -> str:
    """Return the fingerprint of a tokenizer.json, a digest that changes whenever its tokens may.

    It is the sha256 of the file if the file is used unchanged. Otherwise it also depends on the
    changes, such as {"dropout": None} for a file with a random dropout, or tokens that are added.

    Args:
        digest: The sha256 of the file.
        examination: The changes that the file needs.
    """
    changes: dict[str, Any] = {**examination.model_changes}
    if examination.added_tokens:
        changes["added_tokens"] = examination.added_tokens
    if not changes:
        return digest
    return _fingerprint(["tokenizer.json", digest], changes)


def _define_converted(source: TokenizerFile, kind: Kind) -> Definition:
    """Return what a tokenizer of another format defines, such as a SentencePiece model.

    It is converted to a tokenizer.json (Hugging Face's format), and examined for faults.

    Args:
        source: The file.
        kind: The kind of the file: "SentencePiece", "tiktoken", "vocab.json" and so on.
    """
    kind_and_digests = _kind_and_digests(source, kind)  # such as ["tiktoken", "3f2a…"]
    converted = _convert(source, kind, kind_and_digests)
    # `meaning` is the settings that affect the tokens, such as a split pattern.
    fingerprint = _fingerprint(kind_and_digests, converted.meaning)

    examination = _examined(source, kind, fingerprint, converted)
    notices = list(examination.notices)
    if converted.notice:
        notices.insert(0, converted.notice)
    return Definition(
        source=source,
        kind=kind,
        fingerprint=fingerprint,
        converted=converted,
        model_changes={},
        added_tokens=(),
        notices=_sentences(source, notices),
        drops_characters=examination.drops_characters,
    )


def _kind_and_digests(source: TokenizerFile, kind: Kind) -> list[str]:
    """Return the kind of a file, and the sha256 of each file that is read to convert it."""
    digests: list[str] = [kind, sha256_file(source.path)]
    if kind == "vocab.json" and source.merges_file.is_file():
        digests.append(sha256_file(source.merges_file))
    return digests


def _fingerprint(digests: Sequence[str], meaning: Mapping[str, Any]) -> str:
    """Return a sha256 over the digests of files and everything else that decides the tokens."""
    meaning_json = orjson.dumps(meaning, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256("\n".join(digests).encode() + b"\n" + meaning_json).hexdigest()


def _sentences(source: TokenizerFile, notices: Sequence[str]) -> tuple[str, ...]:
    """Complete notices, which continue a sentence that begins with the path of the file."""
    return tuple(f"{source} {notice}" for notice in notices)


_READERS: Mapping[Kind, Callable[[TokenizerFile], ConvertedTokenizer]] = {
    "vocab.json": read_vocab_json,
    "tiktoken": read_tiktoken_lines,
    "tiktoken JSON": read_megatron,
    "tekken.json": read_tekken,
    "SentencePiece": read_sentencepiece_model,
}


def _convert(
    source: TokenizerFile, kind: Kind, kind_and_digests: Sequence[str]
) -> ConvertedTokenizer:
    """Convert a tokenizer of another format to a tokenizer.json, or load the result from the cache.

    Conversion can take seconds. So the result is kept in a cache on disk, under a key that consists
    of everything that decides it: the kind of file, the digests of its bytes, and the user's
    settings.

    Args:
        source: The file, with the settings.
        kind: The kind of the file, such as "SentencePiece".
        kind_and_digests: The kind, and the sha256 of each file that is read: ["SentencePiece",
            "a1b2…"].
    """
    settings = sorted(source.settings.items())
    cache_key = orjson.dumps([*kind_and_digests, settings], default=str).decode()
    cache_entry = CacheEntry("definition", cache_key, cache_folder())
    cached = _load_converted(cache_entry)
    if cached is not None:
        return cached

    converted = _READERS[kind](source)
    if len(converted.json) >= _MIN_CACHED_BYTES:
        _save_converted(converted, cache_entry)
    return converted


def _load_converted(entry: CacheEntry) -> ConvertedTokenizer | None:
    """Return the tokenizer that `_save_converted` has stored in the cache; None if there is none.

    Args:
        entry: Its place in the cache.
    """
    arrays = entry.load()
    if arrays is None:
        return None
    other_fields = from_array(arrays["facts"])
    return ConvertedTokenizer(json=arrays["json"].tobytes(), **other_fields)


def _save_converted(converted: ConvertedTokenizer, entry: CacheEntry) -> None:
    """Store a converted tokenizer in the cache, which takes numpy arrays.

    One array has the bytes of its tokenizer.json, and the other one all other fields.

    Args:
        converted: The tokenizer.
        entry: Its place in the cache.
    """
    json_bytes = np.frombuffer(converted.json, np.uint8)
    other_fields = {name: getattr(converted, name) for name in _CACHED_FIELDS}
    entry.save({"json": json_bytes, "facts": to_array(other_fields)})


def _content(source: TokenizerFile, converted: ConvertedTokenizer | None) -> bytes:
    """Return the bytes of a tokenizer.json.

    Args:
        source: The tokenizer's file.
        converted: What this file was converted to; None if it is a tokenizer.json itself.
    """
    if converted is None:
        return read_regular(source.path)
    return converted.json


def _examined(
    source: TokenizerFile, kind: Kind, identity: str, converted: ConvertedTokenizer | None
) -> Examination:
    """Examine a tokenizer for faults, or load the result of an earlier call from the cache on disk.

    Args:
        source: The tokenizer's file.
        kind: The kind of the file, such as "tokenizer.json" or "SentencePiece".
        identity: A digest that changes with the tokenizer's own files and settings.
        converted: The tokenizer.json that the file was converted to; None if the file is itself a
            tokenizer.json.
    """
    companions = files_beside(source.path)  # such as its tokenizer_config.json
    cache_key = _examination_key(identity, companions)
    cache_entry = CacheEntry("examination", cache_key, cache_folder())
    arrays = cache_entry.load()
    if arrays is not None:
        return Examination(**from_array(arrays["examination"]))

    content = _content(source, converted)
    tokenizer = _parsed_object(content)
    if tokenizer is None:
        return Examination()  # the tokenizers library says what is wrong when it loads the file
    addition = _companion_tokens(tokenizer, content, companions, converted)
    examination = _examine_with(tokenizer, addition, source, kind)
    if len(content) >= _MIN_CACHED_BYTES:
        cache_entry.save({"examination": to_array(asdict(examination))})
    return examination


def _examination_key(identity: str, companions: Sequence[Path]) -> str:
    """Return the key of an examination in the cache: everything that decides its result.

    Args:
        identity: A digest that changes with the tokenizer.
        companions: The files next to it that may name further tokens.

    Returns:
        Such as "5d1e… tokenizer_config.json 9c0a…".
    """
    companion_digests = [f"{path.name} {sha256_file(path)}" for path in companions]
    return " ".join([identity, *companion_digests])


def _parsed_object(content: bytes) -> dict[str, Any] | None:
    """Return the object that a JSON file contains; None if it contains something else."""
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _examine_with(
    tokenizer: Mapping[str, Any], addition: Addition, source: TokenizerFile, kind: Kind
) -> Examination:
    """Add special tokens to a tokenizer, and check it for faults.

    Args:
        tokenizer: The parsed tokenizer.json.
        addition: The tokens to add, because files next to the tokenizer name them, and notices
            about these files.
        source: The tokenizer's file, for errors.
        kind: The kind of this file.

    Returns:
        The faults, the tokens that were added, and all notices.
    """
    if addition.added_tokens:  # all added tokens: those of the tokenizer.json, and new ones
        tokenizer = {**tokenizer, "added_tokens": list(addition.added_tokens)}
    examination = examine(tokenizer, source, min_unmerged_share=_min_unmerged_share(kind))
    return replace(
        examination,
        added_tokens=addition.added_tokens,
        new_names=addition.new_names,
        notices=[*addition.notices, *examination.notices],
    )


def _min_unmerged_share(kind: Kind) -> float:
    """Return which share of a tokenizer's tokens, if no merge makes them, shows that it is damaged.

    A tokenizer makes its tokens by merging smaller ones: "t" and "h" to "th". A few that no merge
    makes are usual, since people add words by hand. But a vocab.json has its merges in a file of
    their own: a single token without a merge shows that this file was cut off.

    Args:
        kind: The kind of the tokenizer's file.
    """
    return 0.0 if kind == "vocab.json" else MIN_UNMERGED_SHARE


def _companion_tokens(
    tokenizer: Mapping[str, Any],
    content: bytes,
    companions: Sequence[Path],
    converted: ConvertedTokenizer | None,
) -> Addition:
    """Find special tokens that only the files next to a tokenizer name, such as "<|im_end|>".

    Models are often published with a tokenizer_config.json. The library `transformers` adds the
    tokens that it names to the tokenizer. To a tokenizer.json, this project adds them, too. To a
    tokenizer in another format, it adds nothing, and only tells the user about them.

    Args:
        tokenizer: The parsed tokenizer.json, or what another format was converted to.
        content: The bytes of that tokenizer.json.
        companions: The files next to it that may name tokens, such as tokenizer_config.json.
        converted: The result of the conversion from another format; None for a tokenizer.json.

    Returns:
        The tokens to add, if any, and notices for the user.
    """
    named = read_named_tokens(companions, added_ids=_ids_of_added_tokens(tokenizer))
    if converted is None:
        return resolve(named, tokenizer, content)
    notices = notices_of_missing_tokens(named, tokenizer, converted.special_tokens)
    return Addition(notices=notices)


def _ids_of_added_tokens(tokenizer: Mapping[str, Any]) -> set[int]:
    """Return the ids of a tokenizer.json's added tokens, such as 2 for {"id": 2, "content": …}."""
    ids = [token.get("id") for token in parsed_added_tokens(tokenizer)]
    return {token_id for token_id in ids if isinstance(token_id, int)}
