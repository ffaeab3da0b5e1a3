"""Read the special tokens that files next to a tokenizer name.

Trainers load a folder with transformers' `AutoTokenizer`, which adds such tokens to the tokenizer
if its own file lacks them: each becomes one id. The rules below are those of
`PreTrainedTokenizerFast` in transformers 4.57 and 5.24 as far as both agree. Tokens that they treat
differently are doubtful, and so are all tokens of a class that may add some of its own.
`additions.py` decides what becomes of them.
"""

from __future__ import annotations

import json
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

    Returns:
        The tokens that all versions of transformers add, those that only some versions add (doubts,
        with the reason for each), and what was found out about the files.
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
    special = _special_tokens(config, special_map)

    # The tokens of some entries are doubtful: text → reason. Drop those that another entry names
    # without doubt.
    certain_names = texts_of([*listed, *special.tokens])
    doubts = _doubts_about_others({**_other_doubts(config), **special.doubts}, certain_names)

    # The class of the tokenizer, such as LlamaTokenizer(Fast), may have more tokens by default.
    class_name = str(config.get("tokenizer_class") or "PreTrainedTokenizer").removesuffix("Fast")
    is_known_class = class_name in _CLASS_TOKENS
    return NamedTokens(
        listed=listed,
        special=special.tokens,
        doubts=doubts,
        class_tokens=_class_tokens(class_name, {*config, *special_map}),
        unknown_class="" if is_known_class else class_name,
        sources=[name for name, value in object_by_name.items() if value is not None],
        unreadable=[name for name, value in object_by_name.items() if value is None],
        splits_special_tokens=config.get("split_special_tokens") is True,
    )


def _doubts_about_others(
    doubts: Mapping[str, str], certain_names: Collection[str]
) -> dict[str, str]:
    """Return the doubts about tokens that no entry of a file names without doubt.

    Args:
        doubts: Text of a token → why transformers may not add it, by one of the entries.
        certain_names: Tokens that transformers adds because of another entry.
    """
    return {name: reason for name, reason in doubts.items() if name and name not in certain_names}


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

    Args:
        config: The content of tokenizer_config.json.
        special_map: The content of special_tokens_map.json.
        id_by_token: The content of added_tokens.json.
        added_ids: Ids of the added tokens in the tokenizer.json itself.
    """
    # New versions of transformers list the tokens with their flags in tokenizer_config.json, under
    # the key added_tokens_decoder.
    if _DECODER in config:
        return _decoder_tokens(config[_DECODER])

    # Old versions list the tokens in added_tokens.json, without flags. The other two files say
    # which are special, for example as eos_token.
    special_names = _special_names({**config, **special_map})
    return _added_tokens(id_by_token, special_names, added_ids)


def _special_tokens(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> _SpecialTokens:
    """Return the special tokens that a tokenizer's files name, other than in a list with ids.

    There are two kinds of keys for them:

        a purpose     {"eos_token": "</s>", "pad_token": "<pad>"}
        a list        {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}

    Some entries are ignored or refused by some versions of the library transformers, which uses
    these files. So it is doubtful whether a model was trained with these tokens.

    Args:
        config: The content of tokenizer_config.json.
        special_map: The content of special_tokens_map.json.

    Returns:
        tokens: Those that all versions add: first those for a purpose, then those of lists.
        doubts: The doubtful ones: text → reason. If both kinds of keys give a reason for the same
            token, it is that of the purpose.
    """
    purpose_tokens = _purpose_tokens(config, special_map)  # eos_token and so on
    list_tokens = _list_tokens(config, special_map)
    return _SpecialTokens(
        tokens=[*purpose_tokens.tokens, *list_tokens.tokens],
        # If a token is in both, the second one counts.
        doubts={**list_tokens.doubts, **purpose_tokens.doubts},
    )


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
    if not isinstance(decoder, dict):
        return []
    token_by_id = {}
    for key, token in decoder.items():
        if key.isdigit() and isinstance(token, dict) and _text_of(token):
            token_by_id[int(key)] = token
    return [_text_and_flags(token_by_id[token_id]) for token_id in sorted(token_by_id)]


def _added_tokens(
    ids: Mapping[str, Any], special_names: Collection[str], added_ids: Collection[int]
) -> list[Token]:
    """Return the tokens of an added_tokens.json, which old versions of transformers write.

    The file has the ids only: {"<x>": 32000, "</s>": 2}. Their flags have to be inferred:

        special       looked for in the text itself                     "special"
        all others    looked for in the text after it is normalized     "normalized"

    A token is left out if the tokenizer.json has an added token with the same id, since that one
    takes precedence.

    Args:
        ids: The content of the file: token → id.
        special_names: Tokens that other files name for a purpose, such as eos_token.
        added_ids: Ids of the added tokens in the tokenizer.json.

    Returns:
        The tokens, sorted by id: {"content": "</s>", "special": True, "normalized": False}, …
    """
    id_by_name = {}
    for name, token_id in ids.items():
        if isinstance(token_id, int) and token_id not in added_ids:
            id_by_name[name] = token_id

    # The file has no flags. Transformers looks for a special token in the text itself, and for any
    # other one in the normalized text.
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


class _SpecialTokens(NamedTuple):
    """Special tokens that some keys of the files name."""

    tokens: list[Token]
    """Tokens that transformers 4 and 5 add, in their order."""
    doubts: dict[str, str]
    """Text of each other token → why it is not certain that transformers adds it."""


def _purpose_tokens(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> _SpecialTokens:
    """Return the special tokens that files name for a purpose, such as {"eos_token": "</s>"}.

    Two files may have such a key. If special_tokens_map.json has it, tokenizer_config.json is not
    asked. The value is one of these:

        "</s>"                                            the text of the token
        {"__type": "AddedToken", "content": "</s>", …}    its text and flags
        {"content": "</s>", …}                            the same in special_tokens_map.json; but
                                                          doubtful in tokenizer_config.json, where
                                                          transformers refuses it
        null                                              no token

    Args:
        config: The content of tokenizer_config.json.
        special_map: The content of special_tokens_map.json.

    Returns:
        The tokens that the library transformers is certain to add, and doubtful ones with a reason.
    """
    tokens: list[Token] = []
    doubts = {}
    for key in _PURPOSES:
        if key in special_map:
            value = special_map[key]
        else:
            value = config.get(key)
            # In this file, transformers refuses an object that does not have the entry
            # `"__type": "AddedToken"`.
            if _is_untyped(value):
                doubts[_text_of(value)] = f"{key} of {CONFIG} is an object without __type"
                continue
        if _text_of(value):  # the value may also be null
            tokens.append({**_text_and_flags(value), "special": True})
    return _SpecialTokens(tokens, doubts)


def _list_tokens(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> _SpecialTokens:
    """Return the special tokens that a tokenizer's files list, without ids.

    For example, {"additional_special_tokens": ["<x>", "<y>"]}, in one of two files or in both. All
    tokens of tokenizer_config.json come first. If it has such a list, version 5 of the library
    transformers ignores that of special_tokens_map.json, and version 4 does not. So the tokens of
    the latter are then doubtful.

    Args:
        config: The content of tokenizer_config.json.
        special_map: The content of special_tokens_map.json.

    Returns:
        The tokens that all versions of transformers add, and doubtful ones with a reason.
    """
    in_config = _list_tokens_of_config(config)
    has_list_in_config = any(key in config for key in _LISTS)
    in_map = _list_tokens_of_map(special_map, has_list_in_config=has_list_in_config)
    return _SpecialTokens(
        tokens=[*in_config.tokens, *in_map.tokens],
        doubts={**in_config.doubts, **in_map.doubts},
    )


def _list_tokens_of_config(config: Mapping[str, Any]) -> _SpecialTokens:
    """Return the special tokens that a tokenizer_config.json lists.

    The library transformers adds them to the tokenizer. It is doubtful whether it does if a token
    is an object without a type:

        "<x>"                                           added
        {"__type": "AddedToken", "content": "<x>"}      added, with its flags such as lstrip
        {"content": "<x>"}                              doubtful: transformers refuses it

    Args:
        config: The content of the file, with {"additional_special_tokens": ["<x>", …]}, for
            example.

    Returns:
        The tokens that are added, and the doubtful ones: text → reason.
    """
    tokens: list[Token] = []
    doubts = {}
    for token in _members_of_lists(config):
        text = _text_of(token)
        if _is_untyped(token):
            doubts[text] = f"an object without __type in {CONFIG}"
        elif text:
            tokens.append({**_text_and_flags(token), "special": True})
    return _SpecialTokens(tokens, doubts)


def _list_tokens_of_map(
    special_map: Mapping[str, Any], *, has_list_in_config: bool
) -> _SpecialTokens:
    """Return the special tokens that a special_tokens_map.json lists.

    Version 4 of the library transformers adds all of these tokens to the tokenizer. Version 5
    ignores some, for which the result has a reason instead of the token, since it depends on the
    version whether they are added:

        the tokenizer_config.json has a list, too     version 5 ignores all tokens of the map
        a token is an object, {"content": "<x>"}      version 5 ignores this token
        a token is a text, "<x>"                      both versions add it

    Args:
        special_map: The content of special_tokens_map.json.
        has_list_in_config: Whether the tokenizer_config.json has a list.

    Returns:
        The tokens that both versions add, and the doubtful ones: text → reason.
    """
    tokens: list[Token] = []
    doubts = {}
    for token in _members_of_lists(special_map):
        text = _text_of(token)
        if has_list_in_config:
            doubts[text] = f"both {CONFIG} and {SPECIAL_TOKENS_MAP} list further tokens"
        elif isinstance(token, dict):
            doubts[text] = f"an object in a list of {SPECIAL_TOKENS_MAP}"
        elif text:
            tokens.append({"content": text, "special": True})
    return _SpecialTokens(tokens, doubts)


def _other_doubts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that transformers adds in version 5, but not in version 4.

    These are the tokens of other keys that end with _token, such as {"image_token": "<image>"}.

    Args:
        config: The content of tokenizer_config.json.

    Returns:
        Text of each token → the reason: {"<image>": "image_token of tokenizer_config.json"}.
    """
    doubts = {}
    for key, value in config.items():
        if key.endswith("_token") and key not in _PURPOSES:
            doubts[_text_of(value)] = f"{key} of {CONFIG}"
    return doubts


def _members_of_lists(config: Mapping[str, Any]) -> list[Any]:
    """Return the special tokens that a file lists under one of the keys of `_LISTS`.

        {"additional_special_tokens": ["<x>", "<y>"]}       as transformers 4 calls it
        {"extra_special_tokens": {"image_token": "<x>"}}    as transformers 5 calls it

    Args:
        config: The content of tokenizer_config.json or special_tokens_map.json.

    Returns:
        The tokens, each a text or an object.
    """
    tokens: list[Any] = []
    for key in _LISTS:
        value = config.get(key)
        if isinstance(value, dict):
            tokens += value.values()
        elif isinstance(value, list):
            tokens += value
    return tokens


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
