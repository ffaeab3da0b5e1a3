"""Read the special tokens that files next to a tokenizer name.

Trainers load a folder with transformers' `AutoTokenizer`, which adds such tokens to the tokenizer
if its own file lacks them: each becomes one id. The rules below are those of
`PreTrainedTokenizerFast` in transformers 4.57 and 5.24 as far as both agree. Tokens that they treat
differently are doubtful, and so are all tokens of a class that may add some of its own.
`additions.py` decides what becomes of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.storage.regular_files import read_regular

CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
FILES = (CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
"""Names of the files that transformers reads next to a tokenizer.json."""

TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
"""Keys of an added token other than its text and id."""

Token = Mapping[str, Any]
"""A token as in a tokenizer.json: `content`, and those of `TOKEN_FLAGS` that the file has."""

_PURPOSES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""Keys that name one token each, in the order in which transformers adds the tokens."""
_LISTS = ("additional_special_tokens", "extra_special_tokens")
"""Keys of further tokens, as transformers 4 and 5 call them."""
_DECODER = "added_tokens_decoder"
"""Key of the mapping from ids to all added tokens, with their flags."""
_TOKEN_ID = re.compile("[0-9]{1,18}")
"""An id in this mapping. Other keys, such as "²" or one of 5,000 digits, are ignored."""

_END_OF_TEXT = "<|endoftext|>"
_CLASS_TOKENS: Mapping[str, Mapping[str, str]] = {
    "PreTrainedTokenizer": {},
    "TokenizersBackend": {},
    "GPT2Tokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT),
    "GPTNeoXTokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT),
    "CodeGenTokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT),
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END_OF_TEXT),
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GemmaTokenizer": {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    },
    "BloomTokenizer": {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    },
}
"""Class of a tokenizer → purpose → the token that it has if the files name none.

Class names are without the ending Fast.
"""


@dataclass(frozen=True, slots=True)
class NamedTokens:
    """The special tokens that the files next to a tokenizer name."""

    listed: Sequence[Token] = ()
    """Tokens of added_tokens_decoder or added_tokens.json, in the order of their ids."""
    id_by_name: Mapping[str, int] = field(default_factory=dict)
    """Text of each token that one of these lists → the id that it has there. Transformers only uses
    the order of the ids.
    """
    special: Sequence[Token] = ()
    """Tokens that are named for a purpose, in the order in which transformers adds them."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Token → why it is not certain whether transformers adds it, or how."""
    class_tokens: Sequence[str] = ()
    """Tokens that the tokenizer's class has although the files do not name them."""
    unknown_class: str = ""
    """The tokenizer's class, if its tokens are not known."""
    sources: Sequence[str] = ()
    """Names of the files that were read."""
    unreadable: Sequence[str] = ()
    """Names of files that are no JSON object."""
    splits_special_tokens: bool = False
    """Whether transformers is set to split special tokens in texts like other text."""

    @property
    def names(self) -> list[str]:
        """The texts of all tokens that the files name, each once."""
        certain = texts_of([*self.listed, *self.special])
        return list(dict.fromkeys([*certain, *self.doubts]))


def texts_of(tokens: Sequence[Token]) -> list[str]:
    """Return the texts of tokens, each once.

    Args:
        tokens: Tokens as in a tokenizer.json, which have a `content`.

    Returns:
        The texts in the order in which they occur first.
    """
    return list(dict.fromkeys(str(token["content"]) for token in tokens))


def files_beside(tokenizer: Path) -> list[Path]:
    """Return the existing files next to a tokenizer that may name special tokens.

    Args:
        tokenizer: Path of the tokenizer's file.

    Returns:
        Paths such as that of tokenizer_config.json, in the order of `FILES`.
    """
    paths = [tokenizer.with_name(name) for name in FILES]
    return [path for path in paths if path.is_file()]


def read_named_tokens(files: Sequence[Path], added_ids: Collection[int]) -> NamedTokens:
    """Read the special tokens that the files next to a tokenizer name.

    A tokenizer.json may lack tokens that these files have. The library transformers adds them when
    it loads the tokenizer, and so does this project:

        tokenizer_config.json      settings; since version 4.34 also a list of all added tokens
        special_tokens_map.json    special tokens by their purpose: {"eos_token": "</s>"}
        added_tokens.json          ids of added tokens: {"<x>": 32000}

    Args:
        files: Those of the three files that exist.
        added_ids: Ids of the added tokens in the tokenizer.json itself.
    """
    # File name → its JSON object, or None if it has none.
    object_by_name = {path.name: _read_object(path) for path in files}
    config = object_by_name.get(CONFIG) or {}
    id_by_token = object_by_name.get(ADDED_TOKENS) or {}

    # If tokenizer_config.json has the list of all added tokens (under the key _DECODER, which is
    # added_tokens_decoder), transformers does not read the other files.
    special_map: Mapping[str, Any] = {}
    if _DECODER not in config:
        special_map = object_by_name.get(SPECIAL_TOKENS_MAP) or {}
    listed = _listed_tokens(config, special_map, id_by_token, added_ids)

    # Special tokens, in the order in which transformers adds them. Some of them are doubtful.
    purpose_tokens = _purpose_tokens(config, special_map)
    further_tokens = [
        *_further_tokens_of_config(config),
        *_further_tokens_of_map(
            special_map, is_list_in_config=any(key in config for key in _LISTS)
        ),
    ]
    special = [entry.token for entry in [*purpose_tokens, *further_tokens] if not entry.doubt]
    certain_names = texts_of([*listed, *special])
    other_tokens = _tokens_of_version_5(config)  # all of them are doubtful
    doubts = _doubts([*other_tokens, *further_tokens, *purpose_tokens], certain_names)

    # The class of the tokenizer, such as LlamaTokenizer(Fast), may have more tokens by default.
    class_name = str(config.get("tokenizer_class") or "PreTrainedTokenizer").removesuffix("Fast")
    is_known_class = class_name in _CLASS_TOKENS
    return NamedTokens(
        listed=listed,
        id_by_name=_listed_ids(config, id_by_token),
        special=special,
        doubts=doubts,
        class_tokens=_class_tokens(class_name, {*config, *special_map}),
        unknown_class="" if is_known_class else class_name,
        sources=[name for name, value in object_by_name.items() if value is not None],
        unreadable=[name for name, value in object_by_name.items() if value is None],
        splits_special_tokens=config.get("split_special_tokens") is True,
    )


def _doubts(entries: Sequence[_NamedToken], certain_names: Collection[str]) -> dict[str, str]:
    """Return the special tokens that only some versions of the library transformers add.

    The files of a tokenizer name special tokens, which transformers adds to its vocabulary. Some
    entries of these files are read by some versions of transformers only. Such an entry has a
    doubt: a text that names it.

    Args:
        entries: All entries, with and without a doubt. If several with a doubt name the same token,
            the last one counts.
        certain_names: Tokens of entries without a doubt. All versions add these.

    Returns:
        Text of a token → doubt, such as {"<image>": "image_token of tokenizer_config.json"}.
    """
    doubts = {}
    for entry in entries:
        text = _text_of(entry.token)
        if entry.doubt and text not in certain_names:
            doubts[text] = entry.doubt
    return doubts


def _listed_tokens(
    config: Mapping[str, Any],
    special_map: Mapping[str, Any],
    id_by_token: Mapping[str, Any],
    added_ids: Collection[int],
) -> list[Token]:
    """Return the added tokens that the files next to a tokenizer list with their ids.

    The library transformers writes them to one of two files, depending on its version:

        new    tokenizer_config.json    {"added_tokens_decoder": {"2": {"content": "</s>", …}}}
        old    added_tokens.json        {"</s>": 2}

    Only the new list has the flags of the tokens. For the old one, the other two files say which
    tokens are special, for example as eos_token.

    Args:
        config: The content of tokenizer_config.json.
        special_map: The content of special_tokens_map.json.
        id_by_token: The content of added_tokens.json.
        added_ids: Ids of the added tokens in the tokenizer.json itself.
    """
    if _DECODER in config:
        return _decoder_tokens(config[_DECODER])

    special_names = _special_names({**config, **special_map})
    return _added_tokens(id_by_token, special_names, added_ids)


def _listed_ids(config: Mapping[str, Any], id_by_token: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids that the files next to a tokenizer give to tokens; see `_listed_tokens`.

    Args:
        config: The content of tokenizer_config.json.
        id_by_token: The content of added_tokens.json.

    Returns:
        Text of a token → id, such as {"</s>": 2}.
    """
    if _DECODER in config:
        token_by_id = _decoder_by_id(config[_DECODER])
        return {_text_of(token): token_id for token_id, token in token_by_id.items()}
    return {name: token_id for name, token_id in id_by_token.items() if type(token_id) is int}


def _read_object(path: Path) -> Mapping[str, Any] | None:
    """Return a file's JSON object, or None if the file contains none."""
    try:
        value = json.loads(read_regular(path))  # these files may have integers that orjson refuses
    except (ValueError, OSError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# Tokens that are listed with their ids


def _decoder_tokens(decoder: Any) -> list[Token]:
    """Return the tokens of an added_tokens_decoder, which maps ids to tokens, sorted by id."""
    token_by_id = _decoder_by_id(decoder)
    return [_text_and_flags(token_by_id[token_id]) for token_id in sorted(token_by_id)]


def _decoder_by_id(decoder: Any) -> dict[int, Any]:
    """Return the valid entries of an added_tokens_decoder: id → object with text and flags."""
    token_by_id: dict[int, Any] = {}
    if not isinstance(decoder, dict):
        return token_by_id
    for key, token in decoder.items():
        is_id = _TOKEN_ID.fullmatch(key) is not None
        if is_id and isinstance(token, dict) and _text_of(token):
            token_by_id[int(key)] = token
    return token_by_id


def _added_tokens(
    ids: Mapping[str, Any], special_names: Collection[str], added_ids: Collection[int]
) -> list[Token]:
    """Return the tokens of an added_tokens.json, which old versions of transformers write.

    The file has no flags. Transformers looks for a special token in the text itself, and for any
    other one in the normalized text.

    Args:
        ids: The content of the file: {"<x>": 32000, "</s>": 2}.
        special_names: Tokens that other files name for a purpose, such as eos_token.
        added_ids: Ids of the added tokens in the tokenizer.json, which take precedence over those
            of this file.

    Returns:
        The tokens, sorted by id: {"content": "</s>", "special": True, "normalized": False}, …
    """
    id_by_name = {}
    for name, token_id in ids.items():
        if isinstance(token_id, int) and token_id not in added_ids:
            id_by_name[name] = token_id

    tokens: list[Token] = []
    for name in sorted(id_by_name, key=id_by_name.__getitem__):
        is_special = name in special_names
        tokens.append({"content": name, "special": is_special, "normalized": not is_special})
    return tokens


def _special_names(config: Mapping[str, Any]) -> set[str]:
    """Return the tokens that the keys for purposes, or lists of further tokens, name."""
    names: set[str] = set()
    for key in (*_PURPOSES, *_LISTS):
        value = config.get(key)
        tokens = value if isinstance(value, list) else [value]
        names.update(_text_of(token) for token in tokens)
    return names


# Tokens that are named for a purpose


class _NamedToken(NamedTuple):
    """An entry of a file that names a special token."""

    token: Token
    doubt: str
    """Why it is not certain that the library transformers adds the token; empty if all its versions
    do."""


def _special_token(value: Any) -> Token:
    """Return a token of a file, a text or an object with text and flags, as a special token."""
    return {**_text_and_flags(value), "special": True}


def _purpose_tokens(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> list[_NamedToken]:
    """Return the special tokens that files name for a purpose, such as {"eos_token": "</s>"}.

    A token is a text, or an object with its text and flags:

        {"__type": "AddedToken", "content": "</s>", "lstrip": true}

    Args:
        config: The content of tokenizer_config.json.
        special_map: The content of special_tokens_map.json. It takes precedence.

    Returns:
        The tokens in the order in which the library transformers adds them.
    """
    entries = []
    for key in _PURPOSES:
        doubt = ""
        if key in special_map:
            value = special_map[key]
        else:
            value = config.get(key)
            # Without "__type", transformers refuses an object in this file.
            if _is_untyped(value):
                doubt = f"{key} of {CONFIG} is an object without __type"
        if _text_of(value):  # the value may also be null
            entries.append(_NamedToken(_special_token(value), doubt))
    return entries


def _further_tokens_of_config(config: Mapping[str, Any]) -> list[_NamedToken]:
    """Return the further special tokens of a tokenizer_config.json, those without a purpose.

    They are in a list of texts and objects, here one of each:

        {"additional_special_tokens": [
            "<x>",
            {"__type": "AddedToken", "content": "<y>", "lstrip": true}]}

    The library transformers refuses to load an object without "__type". Such an entry gets a
    *doubt*, a text that says why it is not certain that the token is added.

    Args:
        config: The content of the file.
    """
    entries = []
    for value in _further_values(config):
        doubt = ""
        if _is_untyped(value):
            doubt = f"an object without __type in {CONFIG}"
        entries.append(_NamedToken(_special_token(value), doubt))
    return entries


def _further_tokens_of_map(
    special_map: Mapping[str, Any], *, is_list_in_config: bool
) -> list[_NamedToken]:
    """Return the further special tokens of a special_tokens_map.json, those without a purpose.

    They are in a list: {"additional_special_tokens": ["<x>", {"content": "<y>", "lstrip": true}]}.
    Version 4 of the library transformers adds all of them to a tokenizer, and version 5 only some.
    The others get a *doubt*, a text that says why it is not certain that they are added:

        tokenizer_config.json has a list, too    a doubt for all of them
        it has none                              a doubt for objects, such as that of "<y>"

    Args:
        special_map: The content of the file.
        is_list_in_config: Whether tokenizer_config.json has such a list.
    """
    entries = []
    for value in _further_values(special_map):
        doubt = ""
        if is_list_in_config:
            doubt = f"both {CONFIG} and {SPECIAL_TOKENS_MAP} list further tokens"
        elif isinstance(value, dict):
            doubt = f"an object in a list of {SPECIAL_TOKENS_MAP}"
        entries.append(_NamedToken(_special_token(value), doubt))
    return entries


def _tokens_of_version_5(config: Mapping[str, Any]) -> list[_NamedToken]:
    """Return the special tokens that the library transformers adds only in version 5.

    These are the tokens of any other key that ends with _token, such as {"image_token": "<image>"}.

    Args:
        config: The content of tokenizer_config.json.
    """
    entries = []
    for key, value in config.items():
        if key.endswith("_token") and key not in _PURPOSES and _text_of(value):
            entries.append(_NamedToken(_special_token(value), doubt=f"{key} of {CONFIG}"))
    return entries


def _further_values(config: Mapping[str, Any]) -> list[Any]:
    """Return the special tokens that a file lists without a purpose, under one of two keys.

        {"additional_special_tokens": ["<x>", "<y>"]}       as transformers 4 calls it
        {"extra_special_tokens": {"image_token": "<x>"}}    as transformers 5 calls it

    Args:
        config: The content of tokenizer_config.json or special_tokens_map.json.

    Returns:
        The tokens, each a text or an object. Values without a text, such as null, are left out.
    """
    values: list[Any] = []
    for key in _LISTS:
        member = config.get(key)
        if isinstance(member, dict):
            values += member.values()
        elif isinstance(member, list):
            values += member
    return [value for value in values if _text_of(value)]


def _class_tokens(class_name: str, keys: Collection[str]) -> list[str]:
    """Return the special tokens that a class of transformers has by default.

    For example, LlamaTokenizer has `</s>` as its eos_token unless a file names another one.

    Args:
        class_name: Name of the class; a class without default tokens has none.
        keys: All keys of the tokenizer's configuration files. A key such as eos_token, even with
            the value null, replaces the default token for this purpose.
    """
    default_tokens = _CLASS_TOKENS.get(class_name, {})  # purpose → token
    return [token for purpose, token in default_tokens.items() if purpose not in keys]


# One token


def _text_of(value: Any) -> str:
    """Return the text of a token, which is a text or an object; empty if it has none."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _is_untyped(value: Any) -> bool:
    """Return whether a token is an object without the type that transformers writes."""
    return isinstance(value, dict) and value.get("__type") != "AddedToken"


def _text_and_flags(value: Any) -> dict[str, Any]:
    """Return a token with its text, and those of its flags that the file has."""
    token: dict[str, Any] = {"content": _text_of(value)}
    if isinstance(value, dict):
        for name in TOKEN_FLAGS:
            if name in value:
                token[name] = bool(value[name])
    return token
