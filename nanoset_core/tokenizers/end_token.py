"""Find the token that ends documents, from a tokenizer's files and from common names.

A tokenizer may have several tokens that end something. The one that ends the turns of a chat is
often called eos_token in the files of chat models, but pre-training ends documents with another.
"""

from __future__ import annotations

import json
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

_CONFIG = "tokenizer_config.json"
_GENERATION_CONFIG = "generation_config.json"

_DOCUMENT_ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<eos>",
    "</s>",
    "<|eos|>",
    "<EOS_TOKEN>",
    "<EOD>",
    "[EOS]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek's
)
"""Names of tokens that end documents in pre-training, the most common first."""

_TURN_ENDS = (
    "<|im_end|>",
    "<|return|>",
    "<|call|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|end|>",
    "<|user|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "<|END_OF_TURN_TOKEN|>",
    "[EOT]",
    "[/INST]",
)
"""Names of tokens that end the turns of a chat."""

_N_SHOWN = 12
"""How many special tokens a message names."""


@dataclass(frozen=True, slots=True)
class EndToken:
    """A token that ends documents."""

    text: str
    """Its name."""
    source: str
    """What names it: a file or an option."""
    ident: int | None = None
    """Its id, or None if the vocabulary has no such token."""

    @property
    def is_of_chats(self) -> bool:
        """Whether it usually ends the turns of a chat, and not documents."""
        return self.text in _TURN_ENDS

    def __str__(self) -> str:
        return f"{self.text} (id {self.ident}, by {self.source})"


def end_token(tokenizer: TokenizerPath, requested_token: str | None) -> str:
    """Return the token that ends documents, such as "<|endoftext|>".

    Documents are put one after another for training, with this token after each. If the user names
    no token, it is the one that training programs use with the tokenizer.

    Args:
        tokenizer: The tokenizer's file.
        requested_token: The token that the user named, or None.

    Raises:
        ConfigError: Neither the user nor a file names a token.
        FormatError: The file is no tokenizer.
    """
    if requested_token is not None:
        return requested_token
    trainer_ends = _trainer_ends(tokenizer)
    if trainer_ends:
        return trainer_ends[0].text

    # No file names a token: suggest the special tokens of the vocabulary.
    special = special_tokens(tokenizer)
    expected = None
    if special:
        listed = ", ".join(map(repr, special[:_N_SHOWN]))
        expected = f"one of its special tokens: {listed}"
    raise ConfigError(
        "the end-of-document token is not known",
        where=tokenizer,
        found=f"no eos_token in {tokenizer.parent / _CONFIG}",
        expected=expected,
        remedy=f"name the token with --eod{naming_special_tokens(tokenizer)}",
    )


def named_end(tokenizer: TokenizerPath, text: str) -> EndToken:
    """Return the token that ends documents, with its id, and with what names it, for messages.

    Args:
        tokenizer: The tokenizer's file.
        text: Text of the token, such as "<|endoftext|>". A file such as tokenizer_config.json names
            it; if none does, the user has named it by the option --eod.

    Raises:
        ConfigError: The tokenizer has no such token.
    """
    source_by_text: dict[str, str] = {}
    for end in _trainer_ends(tokenizer):
        source_by_text.setdefault(end.text, end.source)  # the first file that names the token
    source = source_by_text.get(text, "--eod")
    ident = token_id(tokenizer, text, key="--eod")
    return EndToken(text, source, ident)


def chosen_end(tokenizer: TokenizerPath) -> EndToken | None:
    """Choose the token of the vocabulary that ends documents in pre-training.

    For example, the files of a chat model often name <|im_end|>, which ends the turns of a chat, as
    its end token. Then <|endoftext|> is chosen, if the vocabulary has it.

    Args:
        tokenizer: The tokenizer's file, with settings or without.

    Returns:
        The token with its id; None if there is no candidate.
    """
    candidates = _candidate_ends(tokenizer)
    for end in candidates:
        if not end.is_of_chats:
            return end
    return candidates[0] if candidates else None


def _candidate_ends(tokenizer: TokenizerPath) -> list[EndToken]:
    """Return the tokens of a tokenizer that may end documents, the best first.

    These are tokens that files such as tokenizer_config.json name as end tokens, and those with a
    common name, such as <|endoftext|>. Tokens that only these files name, and that the
    tokenizer.json does not have, are the last choice: a model that was trained with the
    tokenizer.json has no embeddings for them.

    Args:
        tokenizer: The tokenizer's file, with settings or without.

    Returns:
        First those that files name, then those with a common name, and at last the new ones.
    """
    new_names = define(tokenizer).new_names
    known_ends = []
    new_ends = []
    for end in _ends_of_files(tokenizer):
        if end.text in new_names:
            new_ends.append(end)
        elif end.ident is not None:  # otherwise the vocabulary does not have it
            known_ends.append(end)
    common_ends = [end for end in _common_ends(tokenizer) if end.text not in new_names]
    return [*known_ends, *common_ends, *new_ends]


def _ends_of_files(tokenizer: TokenizerPath) -> list[EndToken]:
    """Return the tokens that files such as tokenizer_config.json name as end tokens.

    The id of a token is None if the vocabulary does not contain it.
    """
    ends = [*_trainer_ends(tokenizer), *_generation_ends(tokenizer)]
    return [_with_id(tokenizer, end) for end in ends]


def _common_ends(tokenizer: TokenizerPath) -> list[EndToken]:
    """Return the special tokens of the vocabulary that have a common name for an end token."""
    special = special_ids(tokenizer)
    ends = []
    for name in _DOCUMENT_ENDS:
        if name in special:
            ends.append(EndToken(name, "its common name", special[name]))
    return ends


def end_reason(tokenizer: TokenizerPath, end: EndToken) -> str:
    """Return why a token was chosen to end documents, in sentences for the user.

    There are three kinds of answers:

        the token has a common name         Id 0, by its common name.
        files name one for chats instead    Id 0, by its common name. tokenizer_config.json names
                                            <|im_end|>, which ends turns of a chat.
        the token itself is for chats       Id 2, by tokenizer_config.json. It ends turns of a chat:
                                            check that this is intended.

    Args:
        tokenizer: The tokenizer's file.
        end: The token that `chosen_end` chose.
    """
    reason = f"Id {end.ident}, by {end.source}."
    if end.is_of_chats:
        return f"{reason} It ends turns of a chat: check that this is intended."

    # The files of a chat model name the token that ends turns, such as <|im_end|>. Say why it was
    # not chosen.
    for named_end_token in _trainer_ends(tokenizer):
        if named_end_token.is_of_chats:
            reason += (
                f" {named_end_token.source} names {named_end_token.text}, "
                "which ends turns of a chat."
            )
    return reason


def chat_notice(tokenizer: TokenizerPath, end: EndToken, setting: str) -> str:
    """Return a notice if documents end with a token that is meant to end the turns of a chat.

    For example, "documents end with <|im_end|> (id 2, by tokenizer_config.json), which ends turns
    of a chat: pre-training uses <|endoftext|> (id 0); to use it, set eod '<|endoftext|>'".

    Args:
        tokenizer: The tokenizer's file.
        end: The token in use.
        setting: The setting or option by which the user can choose another token.

    Returns:
        The notice; empty if the token is one for documents.
    """
    if not end.is_of_chats:
        return ""
    notice = f"documents end with {end}, which ends turns of a chat"
    better = chosen_end(tokenizer)
    if better is None or better.is_of_chats:
        return f"{notice}: check that this is intended"
    return (
        f"{notice}: pre-training uses {better.text} (id {better.ident}); "
        f"to use it, set {setting} {better.text!r}"
    )


# What files name


def _trainer_ends(tokenizer: TokenizerPath) -> list[EndToken]:
    """Return the tokens that training programs put after documents, the first choice first.

    Args:
        tokenizer: The tokenizer's file. The tokenizer_config.json is looked for next to it.

    Returns:
        The tokens without their ids; none if no file names one.
    """
    ends = [_end_of_class(tokenizer), _end_of_config(tokenizer)]
    return [end for end in ends if end is not None]


def _end_of_class(tokenizer: TokenizerPath) -> EndToken | None:
    """Return the token that Megatron-LM and others put after documents, for this kind of file.

    They have a class for each format of tokenizer, with a fixed token.

    Args:
        tokenizer: The tokenizer's file.

    Returns:
        The token; None if the file does not exist, or is a tokenizer.json, whose class has none.
    """
    if not tokenizer.is_file():
        return None
    definition = define(tokenizer)
    if definition.eod is None:
        return None
    return EndToken(definition.eod, tokenizer.name)


def _end_of_config(tokenizer: TokenizerPath) -> EndToken | None:
    """Return the token that programs put after documents if they use the library transformers.

    It is the eos_token of the tokenizer_config.json: a text, or an object with the text and its
    properties.

    Args:
        tokenizer: The tokenizer's file, which is in the same folder.
    """
    eos_token = _read_key(tokenizer.parent / _CONFIG, "eos_token")
    if isinstance(eos_token, dict):
        eos_token = eos_token.get("content")
    if not isinstance(eos_token, str):
        return None
    return EndToken(eos_token, _CONFIG)


def _generation_ends(tokenizer: TokenizerPath) -> list[EndToken]:
    """Return the tokens at which the model stops generating text, by its generation_config.json.

    The file has ids: {"eos_token_id": [2, 0]}. One of these tokens may also end documents.

    Args:
        tokenizer: The tokenizer's file. The generation_config.json is in the same folder, if the
            model has one.

    Returns:
        The special tokens among them, with their ids.
    """
    value = _read_key(tokenizer.parent / _GENERATION_CONFIG, "eos_token_id")
    eos_ids = value if isinstance(value, list) else [value]
    name_by_id = {special_id: name for name, special_id in special_ids(tokenizer).items()}
    ends = []
    for eos_id in eos_ids:
        if isinstance(eos_id, int) and eos_id in name_by_id:
            ends.append(EndToken(name_by_id[eos_id], _GENERATION_CONFIG))
    return ends


def _read_key(file: Path, key: str) -> Any:
    """Return the value of a key in a JSON file, or None if it cannot be read."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, IndexError):
        return json.loads(read_regular(file))[key]
    return None


def _with_id(tokenizer: TokenizerPath, end: EndToken) -> EndToken:
    """Return an end token with its id, if the vocabulary has it."""
    with suppress(ConfigError):
        return replace(end, ident=token_id(tokenizer, end.text, end.source))
    return end
