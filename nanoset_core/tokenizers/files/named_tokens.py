"""Special tokens that files next to a tokenizer.json name and the tokenizer.json itself lacks.

Trainers load a folder with transformers' `AutoTokenizer`, which adds such tokens to the tokenizer:
each becomes one id. The rules below are those of `PreTrainedTokenizerFast` in transformers 4.57 and
5.24 as far as both agree; where they do not, or where the tokenizer's class may add tokens of its
own, nothing is added, and a notice names the tokens.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files.parts import own_tokens, types_within

if TYPE_CHECKING:
    from tokenizers import AddedToken

CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
FILES = (CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
"""Names of the files that transformers reads next to a tokenizer.json."""

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""Keys of single tokens, in the order in which transformers adds them."""
_LISTS = ("additional_special_tokens", "extra_special_tokens")
"""Keys of further tokens, as transformers 4 and 5 call them."""
_DECODER = "added_tokens_decoder"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
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
"""Class of a tokenizer, without the ending Fast → the tokens that it has if its files do not name
others.
"""
_SHOWN = 6
"""How many tokens a notice names."""

Token = Mapping[str, Any]
"""`content` and those of `_FLAGS` that are given, as in a tokenizer.json."""


@dataclass(frozen=True, slots=True)
class NamedTokens:
    """The special tokens that the files next to a tokenizer.json name."""

    listed: Sequence[Token] = ()
    """Tokens with their flags, in the order of their ids: of added_tokens_decoder or
    added_tokens.json.
    """
    special: Sequence[Token] = ()
    """Tokens that are named for a purpose, in the order in which transformers adds them."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Token → why it is not certain whether transformers adds it, or how."""
    class_tokens: Sequence[str] = ()
    """Tokens that the tokenizer's class has and the files do not name."""
    unknown_class: str = ""
    """The tokenizer's class, if it is not known which tokens it has."""
    sources: Sequence[str] = ()
    """Names of the files."""
    unreadable: Sequence[str] = ()
    """Names of those that are no JSON object."""
    splits_special_tokens: bool = False
    """Whether transformers is told to split special tokens in texts like other text."""

    @property
    def contents(self) -> list[str]:
        """Return the texts of all tokens that the files name, each once."""
        return list(dict.fromkeys([*_contents([*self.listed, *self.special]), *self.doubts]))


def files_beside(tokenizer: Path) -> list[Path]:
    """Return the existing files next to a tokenizer that may name special tokens."""
    return [path for path in (tokenizer.with_name(name) for name in FILES) if path.is_file()]


def read_named_tokens(files: Sequence[Path], own_ids: Collection[int]) -> NamedTokens:
    """Read the special tokens that the files next to a tokenizer name.

    Args:
        files: Those of `FILES` that exist.
        own_ids: Ids of the tokenizer.json's own added tokens.
    """
    contents: dict[str, Mapping[str, Any]] = {}
    unreadable = []
    for path in files:
        content = _read_object(path)
        if content is None:
            unreadable.append(path.name)
        else:
            contents[path.name] = content
    config = contents.get(CONFIG) or {}

    listed: list[Token] = []
    if _DECODER in config:
        # Since transformers 4.34 the tokenizer_config.json holds all added tokens; the other files
        # are not read then.
        listed = _by_id(config[_DECODER], config)
        special_map: Mapping[str, Any] = {}
    else:
        special_map = contents.get(SPECIAL_TOKENS_MAP) or {}
        added = contents.get(ADDED_TOKENS) or {}
        listed = _of_added_tokens(added, {**config, **special_map}, own_ids)
    named_tokens, named_doubts = _named_for_a_purpose(config, special_map)
    further_tokens, further_doubts = _further_tokens(config, special_map)
    doubts = {**_tokens_of_other_keys(config), **further_doubts, **named_doubts}
    special = [*named_tokens, *further_tokens]
    certain = {"", *(str(token["content"]) for token in (*listed, *special))}

    class_name = str(config.get("tokenizer_class") or "PreTrainedTokenizer").removesuffix("Fast")
    defaults = _CLASS_TOKENS.get(class_name)
    named = config.keys() | special_map.keys()
    return NamedTokens(
        listed,
        special,
        {name: reason for name, reason in doubts.items() if name not in certain},
        [token for key, token in (defaults or {}).items() if key not in named],
        class_name if defaults is None else "",
        list(contents),
        unreadable,
        config.get("split_special_tokens") is True,
    )


def _read_object(path: Path) -> Mapping[str, Any] | None:
    """Read a JSON object; return None if the file holds none."""
    try:
        value = json.loads(read_regular(path))  # these files may hold integers that orjson refuses
    except (ValueError, OSError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _by_id(decoder: Any, config: Mapping[str, Any]) -> list[Token]:
    """Return the tokens of an added_tokens_decoder: id → token with its flags."""
    if not isinstance(decoder, dict):
        return []
    tokens = {
        int(ident): token
        for ident, token in decoder.items()
        if ident.isdigit() and _is_token(token)
    }
    return [_flags_of(tokens[ident]) for ident in sorted(tokens)]


def _of_added_tokens(
    added: Mapping[str, Any], named: Mapping[str, Any], own_ids: Collection[int]
) -> list[Token]:
    """Return the tokens of an added_tokens.json: token → id.

    Those whose id the tokenizer.json gives to an added token of its own are replaced by it.
    """
    special: set[str] = set()
    for key in (*_NAMED, *_LISTS):
        value = named.get(key)
        special.update(_content(token) for token in (value if isinstance(value, list) else [value]))
    ids = {
        name: ident
        for name, ident in added.items()
        if isinstance(ident, int) and ident not in own_ids
    }
    return [
        {"content": name, "special": name in special, "normalized": name not in special}
        for name in sorted(ids, key=ids.__getitem__)
    ]


def _named_for_a_purpose(
    config: Mapping[str, Any], special_map: Mapping[str, Any]
) -> tuple[list[Token], dict[str, str]]:
    """Return the tokens of keys such as eos_token, and token → why it is not certain, of others."""
    tokens: list[Token] = []
    doubts = {}
    for key in _NAMED:
        value = special_map.get(key, config.get(key))
        # Transformers refuses an object without its type in a tokenizer_config.json.
        if (
            isinstance(value, dict)
            and key not in special_map
            and value.get("__type") != "AddedToken"
        ):
            doubts[_content(value)] = f"{key} of {CONFIG} is an object without __type"
        elif _content(value):
            tokens.append({**_flags_of(value), "special": True})
    return tokens, doubts


def _further_tokens(
    config: Mapping[str, Any], special_map: Mapping[str, Any]
) -> tuple[list[Token], dict[str, str]]:
    """Return the tokens of lists such as additional_special_tokens, and token → why it is not
    certain, of others.
    """
    tokens: list[Token] = []
    doubts = {}
    in_config = [token for key in _LISTS for token in _members(config.get(key))]
    for token in in_config:
        if isinstance(token, dict) and token.get("__type") != "AddedToken":
            doubts[_content(token)] = f"an object without __type in {CONFIG}"
        elif _content(token):
            tokens.append({**_flags_of(token), "special": True})
    for token in (token for key in _LISTS for token in _members(special_map.get(key))):
        # Transformers 4 joins the two lists, and transformers 5 reads the first alone and no
        # objects in the second.
        if any(key in config for key in _LISTS):
            doubts[_content(token)] = f"both {CONFIG} and {SPECIAL_TOKENS_MAP} list further tokens"
        elif isinstance(token, dict):
            doubts[_content(token)] = f"an object in a list of {SPECIAL_TOKENS_MAP}"
        elif _content(token):
            tokens.append({**_flags_of(token), "special": True})
    return tokens, doubts


def _tokens_of_other_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Return token → its key, of tokens that transformers 5 adds, and transformers 4 does not."""
    keys = [key for key in config if key.endswith("_token") and key not in _NAMED]
    return {_content(config[key]): f"{key} of {CONFIG}" for key in keys}


def _members(value: Any) -> list[Any]:
    """Return the tokens of a list, or of a mapping from purposes to tokens."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _is_token(value: Any) -> bool:
    return (
        isinstance(value, dict) and isinstance(value.get("content"), str) and bool(value["content"])
    )


def _content(value: Any) -> str:
    """Return the text of a token; nothing, if there is none."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _flags_of(value: Any) -> dict[str, Any]:
    """Return a token's text with those of its flags that are given."""
    flags = (
        {name: bool(value[name]) for name in _FLAGS if name in value}
        if isinstance(value, dict)
        else {}
    )
    return {"content": _content(value), **flags}


@dataclass(frozen=True, slots=True)
class Addition:
    """What files next to a tokenizer.json add to it."""

    added_tokens: Sequence[Mapping[str, Any]] = ()
    """All added tokens of the tokenizer, its own included, as a tokenizer.json has them; none:
    those of its file.
    """
    new_names: Sequence[str] = ()
    """Those of them that the tokenizer.json lacks."""
    notices: Sequence[str] = ()
    """What the user should know."""


def resolve(named: NamedTokens, tokenizer: Mapping[str, Any], content: bytes) -> Addition:
    """Return the added tokens that `AutoTokenizer` gives a tokenizer, or a notice that names those
    it may give.

    If the tokenizer.json has all tokens, it is used as it is, so that data made with it stays
    current.

    Args:
        named: What the files next to it name.
        tokenizer: The parsed tokenizer.json.
        content: The same as bytes.
    """
    notices = [
        f"has a {name} next to it that is no JSON object, and is not read"
        for name in named.unreadable
    ]
    if named.splits_special_tokens:
        notices.append(
            f"gives one id to a special token in a text, and transformers splits it, since {CONFIG} next to it sets "
            "split_special_tokens"
        )
    own = {token["content"]: token for token in own_tokens(tokenizer)}
    unmatched = [name for name in named.contents if name not in own]
    flags = _deciding_flags(tokenizer)
    changed = [
        name
        for name in _contents(named.listed)
        if name in own and _differs(named.listed, own[name], flags)
    ]
    # Transformers 4 replaces the flags of such a token, and transformers 5 does not.
    reflagged = [
        name
        for name in _contents(named.special)
        if name in own and _differs(named.special, own[name], flags)
    ]
    vocabulary = _vocabulary(tokenizer)
    of_class = [
        name
        for name in dict.fromkeys(named.class_tokens)
        if name not in own and name not in named.contents
    ]
    missing = [name for name in (*unmatched, *of_class) if name not in vocabulary]
    if not missing:
        notices += _other_meanings(named, unmatched, list(dict.fromkeys([*changed, *reflagged])))
        return Addition(notices=notices)

    # Which ids tokens get depends on all tokens before them: one doubt is a doubt about all.
    doubts = [f"{name!r}: {reason}" for name, reason in named.doubts.items() if name in unmatched]
    if named.unknown_class:
        doubts.append(f"the class {named.unknown_class} may have tokens of its own")
    if named.splits_special_tokens:
        doubts.append(f"{CONFIG} sets split_special_tokens")
    doubts += [f"{name!r}: a token of the tokenizer's class" for name in of_class]
    doubts += [f"{name!r}: its flags differ from those in the tokenizer.json" for name in reflagged]
    added = () if doubts else _with_tokens(named, content)
    if added:
        return Addition(added, missing, notices)
    reason = f" ({'; '.join(doubts[:_SHOWN])})" if doubts else ""
    notices.append(
        f"lacks {_listed(missing)}, which {' and '.join(named.sources)} next to it names. Texts that hold them are "
        "split into pieces here, and may get one id each in a trainer that loads the folder with transformers"
        f"{reason}. {_SAVE}"
    )
    return Addition(notices=notices)


_SAVE = (
    "To be certain, save the tokenizer again with the trainer's version of transformers: "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
)


def lacking_notices(
    named: NamedTokens, tokenizer: Mapping[str, Any], special_tokens: Collection[str]
) -> list[str]:
    """Return a notice on tokens that files next to another kind of tokenizer name, and that it does
    not have.

    Args:
        named: What the files name.
        tokenizer: The tokenizer.json that the tokenizer was made into.
        special_tokens: The tokenizer's special tokens.
    """
    vocabulary = _vocabulary(tokenizer)
    missing = [
        name for name in named.contents if name not in vocabulary and name not in special_tokens
    ]
    if not missing:
        return []
    return [
        f"has no token {_listed(missing)}, which {' and '.join(named.sources)} next to it names: texts that hold them "
        "are split into pieces. If the trainer loads the folder with transformers, tokenize with the tokenizer.json "
        "that AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes"
    ]


def _other_meanings(
    named: NamedTokens, unmatched: Sequence[str], changed: Sequence[str]
) -> list[str]:
    """Return notices on tokens that the tokenizer.json has, but in another way than transformers
    takes them.
    """
    sources = " and ".join(named.sources)
    notices = []
    if unmatched:
        notices.append(
            f"has {_listed(unmatched)} in its vocabulary, but not as added tokens: texts that hold them are split into "
            f"pieces here. {sources} names them, so that transformers gives each one id. {_SAVE}"
        )
    if changed:
        notices.append(
            f"and {sources} say different things about {_listed(changed)} (such as lstrip, rstrip, normalized); the "
            f"tokenizer.json is followed here, and the other by transformers. {_SAVE}"
        )
    return notices


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN:,} more"


def _contents(tokens: Sequence[Token]) -> list[str]:
    """Return the texts of tokens, each once."""
    return list(dict.fromkeys(str(token["content"]) for token in tokens))


def _differs(tokens: Sequence[Token], own: Token, flags: Collection[str]) -> bool:
    """Return whether one of the tokens has the text of another and other flags."""
    same = [token for token in tokens if token["content"] == own["content"]]
    return any(token[flag] != own.get(flag) for token in same for flag in flags if flag in token)


def _deciding_flags(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the flags of added tokens that decide ids: `special` matters only where ids are
    decoded.
    """
    flags = ["single_word", "lstrip", "rstrip"]
    if types_within(tokenizer.get("normalizer")) - {"Sequence", "None"}:
        flags.append("normalized")
    return flags


def _vocabulary(tokenizer: Mapping[str, Any]) -> Collection[str]:
    """Return the tokens of the model."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        return vocabulary.keys()
    entries = vocabulary if isinstance(vocabulary, list) else []
    return {entry[0] for entry in entries if isinstance(entry, list) and entry}


def _with_tokens(named: NamedTokens, content: bytes) -> Sequence[Mapping[str, Any]]:
    """Return the added tokens after transformers' additions; none, if the library cannot load the
    tokenizer.

    The library itself gives the ids: those of the vocabulary to tokens that are in it, the next
    free ones to others.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return ()
    own = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    special_names = {*_contents(named.special), *named.class_tokens}

    # As in PreTrainedTokenizerFast.__init__: first the listed tokens that are not there with just
    # these flags …
    additions: dict[str, AddedToken] = {}
    for token in named.listed:
        added = _added_token(token, special_names)
        if token["content"] not in own or repr(added) != repr(own[token["content"]]):
            additions[token["content"]] = added
    # … then the named ones that are not there at all.
    for token in named.special:
        if token["content"] not in own and token["content"] not in additions:
            additions[token["content"]] = _added_token(token, special_names)
    tokenizer.add_tokens(list(additions.values()))

    decoder = tokenizer.get_added_tokens_decoder()
    return [
        {"id": ident, "content": token.content, **{name: getattr(token, name) for name in _FLAGS}}
        for ident, token in sorted(decoder.items())
    ]


def _added_token(token: Token, special_names: Collection[str]) -> AddedToken:
    """Return a token as transformers makes it; special ones are not normalized unless their flags
    say so.
    """
    from tokenizers import AddedToken

    is_special = bool(token.get("special")) or token["content"] in special_names
    flags = {name: token.get(name, False) for name in ("single_word", "lstrip", "rstrip")}
    normalized = token.get("normalized", not is_special)
    return AddedToken(token["content"], special=is_special, normalized=normalized, **flags)
