"""The files in which people have tokenizers, read into one description that every engine takes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files import ranks, sentencepiece
from nanoset_core.tokenizers.files.examination import MIN_UNMERGED_SHARE, Examination, examine
from nanoset_core.tokenizers.files.named_tokens import (
    Addition,
    files_beside,
    lacking_notices,
    read_named_tokens,
    resolve,
)
from nanoset_core.tokenizers.files.parts import own_tokens
from nanoset_core.tokenizers.files.source import (
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
from nanoset_core.tokenizers.knowledge import Knowledge, cache_folder, from_array, to_array

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
    model_changes: Mapping[str, Any]
    """Setting of the model → the value that is used in place of that in the tokenizer.json."""
    added_tokens: Sequence[Mapping[str, Any]]
    """All added tokens, if files next to the tokenizer.json add some; else nothing."""
    notices: Sequence[str]
    """What the user should know about the tokenizer, a sentence each."""
    drops_characters: bool
    """Whether characters that the tokenizer has no token for are missing from the tokens of a text."""
    new_names: Sequence[str] = ()
    """Tokens that only files next to a tokenizer.json name, and that are added."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Return name → id of the special tokens that other files than a tokenizer.json define."""
        return self.content.special_tokens if self.content else {}

    @property
    def eod(self) -> str | None:
        """Return the token that the trainer ends documents with, where files of this kind settle
        it.
        """
        return self.content.eod if self.content else None

    def json(self) -> bytes:
        """Return a tokenizer.json: the file itself, what is changed in it, or what other files were
        made into.
        """
        content = read_regular(self.source.path) if self.content is None else self.content.json
        if not self.model_changes and not self.added_tokens:
            return content
        tokenizer = orjson.loads(content)
        tokenizer["model"].update(self.model_changes)
        if self.added_tokens:
            tokenizer["added_tokens"] = list(self.added_tokens)
        return orjson.dumps(tokenizer)


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
        return _define_json(source)
    files = [source.path, source.merges_file] if kind == "vocab.json" else [source.path]
    digests = [kind, *(sha256_file(file) for file in files if file.is_file())]
    content = _read(kind, digests, source)
    meaning = orjson.dumps(content.meaning, option=orjson.OPT_SORT_KEYS)
    fingerprint = _fingerprint(digests, meaning)
    # What these files were made into is used as it is: only notices are of interest.
    # A merges.txt that was cut at the end of a line looks whole: one token without a merge tells.
    min_unmerged_share = 0.0 if kind == "vocab.json" else MIN_UNMERGED_SHARE
    examination = _examined(source, fingerprint, content, min_unmerged_share)
    notices = [*([content.notice] if content.notice else []), *examination.notices]
    drops_characters = examination.drops_characters
    return Definition(
        source, kind, fingerprint, content, {}, (), _sentences(source, notices), drops_characters
    )


def _define_json(source: TokenizerFile) -> Definition:
    """Read a tokenizer.json, whose fingerprint is its sha256 as long as it is used as it is."""
    digest = sha256_file(source.path)
    examination = _examined(source, digest, None)
    meaning: dict[str, Any] = {**examination.model_changes}
    if examination.added_tokens:
        meaning["added_tokens"] = examination.added_tokens
    fingerprint = digest
    if meaning:
        fingerprint = _fingerprint(
            ["tokenizer.json", digest], orjson.dumps(meaning, option=orjson.OPT_SORT_KEYS)
        )
    return Definition(
        source,
        "tokenizer.json",
        fingerprint,
        None,
        examination.model_changes,
        tuple(examination.added_tokens),
        _sentences(source, examination.notices),
        examination.drops_characters,
        tuple(examination.new_names),
    )


def _fingerprint(digests: Sequence[str], meaning: bytes) -> str:
    """Return a sha256 over the digests of files and what else decides the tokens."""
    return hashlib.sha256("\n".join(digests).encode() + b"\n" + meaning).hexdigest()


def _sentences(source: TokenizerFile, notices: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{source} {notice}" for notice in notices)


def _examined(
    source: TokenizerFile,
    identity: str,
    made: Content | None,
    min_unmerged_share: float = MIN_UNMERGED_SHARE,
) -> Examination:
    """Examine a tokenizer; a large one, which takes a second, only once for all processes.

    Args:
        source: Its file.
        identity: A digest of what is examined, without the files next to it.
        made: What the file was made into; None if it is a tokenizer.json.
        min_unmerged_share: See `examine`.
    """
    beside = files_beside(source.path)
    digests = [f"{path.name} {sha256_file(path)}" for path in beside]
    memory = Knowledge("examination", " ".join([identity, *digests]), cache_folder())
    saved = memory.load()
    if saved is not None:
        return Examination(**from_array(saved["examination"]))
    content = read_regular(source.path) if made is None else made.json
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError:
        return Examination()  # the tokenizers library says what is wrong when it loads the file
    if not isinstance(parsed, dict):
        return Examination()

    # Special tokens that only files next to the tokenizer name.
    own_ids = {token["id"] for token in own_tokens(parsed) if isinstance(token.get("id"), int)}
    named = read_named_tokens(beside, own_ids)
    if made is None:
        addition = resolve(named, parsed, content)
    else:
        addition = Addition(notices=lacking_notices(named, parsed, made.special_tokens))
    if addition.added_tokens:
        parsed["added_tokens"] = list(addition.added_tokens)

    examination = examine(parsed, source, min_unmerged_share=min_unmerged_share)
    examination = replace(
        examination,
        added_tokens=addition.added_tokens,
        new_names=addition.new_names,
        notices=[*addition.notices, *examination.notices],
    )
    if len(content) >= _LEAST_KEPT_BYTES:
        memory.save({"examination": to_array(asdict(examination))})
    return examination


def _read(kind: Kind, digests: list[str], source: TokenizerFile) -> Content:
    """Read other files than a tokenizer.json; large ones, which takes seconds, only once for all
    processes.
    """
    identity = orjson.dumps([*digests, sorted(source.settings.items())], default=str).decode()
    kept = Knowledge("definition", identity, cache_folder())
    if (found := kept.load()) is not None:
        return Content(json=found["json"].tobytes(), **from_array(found["facts"]))
    content = _READERS[kind](source)
    if len(content.json) >= _LEAST_KEPT_BYTES:
        facts = to_array({name: getattr(content, name) for name in _FACTS})
        kept.save({"json": np.frombuffer(content.json, np.uint8), "facts": facts})
    return content
