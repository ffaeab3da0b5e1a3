"""Which token ends a document: what a tokenizer's files say, and what is known of such names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files import TokenizerPath, define
from nanoset_core.tokenizers.tokenizer import (
    naming_special_tokens,
    special_ids,
    special_tokens,
    token_id,
)

_CONFIG, _GENERATION = "tokenizer_config.json", "generation_config.json"
_OF_DOCUMENTS = (
    *(
        "<|endoftext|>",
        "<|end_of_text|>",
        "<eos>",
        "</s>",
        "<|eos|>",
        "<EOS_TOKEN>",
        "<EOD>",
        "[EOS]",
    ),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Names of tokens that end documents in pre-training, the most common first; the last is
DeepSeek's.
"""
_OF_TURNS = (
    *(
        "<|im_end|>",
        "<|return|>",
        "<|call|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|end|>",
        "<|user|>",
    ),
    *(
        "<end_of_turn>",
        "<turn|>",
        "<|end_of_turn|>",
        "<|endofturn|>",
        "<|END_OF_TURN_TOKEN|>",
        "[EOT]",
        "[/INST]",
    ),
)
"""Names of tokens that end turns of a chat."""


@dataclass(frozen=True, slots=True)
class EndToken:
    """A token that ends documents."""

    text: str
    """Its name."""
    source: str
    """What names it: a file, an option."""
    ident: int | None = None
    """Its id; None where the vocabulary has no such token."""

    @property
    def is_of_chats(self) -> bool:
        """Whether it was made to end the turns of a chat, and not documents."""
        return self.text in _OF_TURNS

    def __str__(self) -> str:
        return f"{self.text} (id {self.ident}, by {self.source})"


def end_token(tokenizer: TokenizerPath, given: str | None) -> str:
    """Return the end-of-document token: the one given; else that of the trainer for files of this
    kind; else what tokenizer_config.json beside the tokenizer says.

    Raises:
        ConfigError: None of them names one.
        FormatError: It is no tokenizer.
    """
    found = next((end.text for end in _by_trainers(tokenizer)), None) if given is None else given
    if found is not None:
        return found
    special = special_tokens(tokenizer)
    raise ConfigError(
        "the end-of-document token is not known",
        where=tokenizer,
        found=f"no eos_token in {tokenizer.parent / _CONFIG}",
        expected=f"one of its special tokens: {', '.join(map(repr, special[:12]))}"
        if special
        else None,
        remedy=f"name the token with --eod{naming_special_tokens(tokenizer)}",
    )


def named_end(tokenizer: TokenizerPath, text: str) -> EndToken:
    """Return an end-of-document token with its id, by the file that names it, else by --eod;
    ConfigError: no such.
    """
    source = next((end.source for end in _by_trainers(tokenizer) if end.text == text), "--eod")
    return EndToken(text, source, token_id(tokenizer, text, "--eod"))


def chosen_end(tokenizer: TokenizerPath) -> EndToken | None:
    """Return the token of the vocabulary that pre-training ends documents with; None where none is
    known.

    What the files name comes first, unless it ends turns of a chat, or is a token that the
    tokenizer.json itself lacks, and the vocabulary has a token for documents.
    """
    special = special_ids(tokenizer)
    new_names = define(tokenizer).new_names
    named = [
        _with_id(tokenizer, end) for end in (*_by_trainers(tokenizer), *_by_generation(tokenizer))
    ]
    known = [end for end in named if end.ident is not None and end.text not in new_names]
    common = [
        EndToken(name, "its common name", special[name])
        for name in _OF_DOCUMENTS
        if name in special and name not in new_names
    ]
    # A token that only files next to the tokenizer.json name comes last: a model that was trained
    # has none for it.
    candidates = [*known, *common, *(end for end in named if end.text in new_names)]
    of_documents = [end for end in candidates if not end.is_of_chats]
    return next(iter(of_documents or candidates), None)


def end_reason(tokenizer: TokenizerPath, end: EndToken) -> str:
    """Return why `chosen_end` chose a token, in sentences."""
    reason = f"Id {end.ident}, by {end.source}."
    if end.is_of_chats:
        return f"{reason} It ends turns of a chat: see that this is meant."
    others = (other for other in _by_trainers(tokenizer) if other.is_of_chats)
    return reason + "".join(
        f" {other.source} names {other.text}, which ends turns of a chat." for other in others
    )


def chat_notice(tokenizer: TokenizerPath, end: EndToken, setting: str) -> str:
    """Return a notice on an end token that ends turns of a chat; nothing on others. `setting` names
    another one.
    """
    if not end.is_of_chats:
        return ""
    better = chosen_end(tokenizer)
    says = f"documents end with {end}, which ends turns of a chat"
    if better is None or better.is_of_chats:
        return f"{says}: see that this is meant"
    return f"{says}: pre-training takes {better.text} (id {better.ident}); to take it, give {setting} {better.text!r}"


def _by_trainers(tokenizer: TokenizerPath) -> Iterator[EndToken]:
    """Yield the token that the trainer takes for files of this kind, and the one that Hugging
    Face's classes take.
    """
    if tokenizer.is_file() and (own := define(tokenizer).eod) is not None:
        yield EndToken(own, tokenizer.name)
    named = _read(tokenizer.parent / _CONFIG, "eos_token")
    named = named.get("content") if isinstance(named, dict) else named
    if isinstance(named, str):
        yield EndToken(named, _CONFIG)


def _by_generation(tokenizer: TokenizerPath) -> Iterator[EndToken]:
    """Yield the tokens at which generation stops."""
    ids = _read(tokenizer.parent / _GENERATION, "eos_token_id")
    names = {ident: name for name, ident in special_ids(tokenizer).items()}
    for ident in ids if isinstance(ids, list) else [ids]:
        if isinstance(ident, int) and ident in names:
            yield EndToken(names[ident], _GENERATION)


def _read(file: Path, key: str) -> Any:
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, IndexError):
        return json.loads(read_regular(file))[key]
    return None


def _with_id(tokenizer: TokenizerPath, end: EndToken) -> EndToken:
    with suppress(ConfigError):
        return replace(end, ident=token_id(tokenizer, end.text, end.source))
    return end
