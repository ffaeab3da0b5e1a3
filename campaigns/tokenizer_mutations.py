"""Change a `tokenizer.json` in one setting: each field that it has, and settings that it could have.

A parsed `tokenizer.json` is a dictionary with the parts of a pipeline. A text passes through the
`normalizer`, is divided into words by the `pre_tokenizer`, and the words into tokens by the
`model`, whose `vocab` maps tokens to ids and whose `merges` list the pairs of tokens that are
joined. `added_tokens` are found in the text before all this.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

Parsed = dict[str, Any]
"""A parsed `tokenizer.json`, or a part of it."""
FieldPath = tuple[Any, ...]
"""The keys and indices that lead to a field, such as ("model", "vocab")."""


class Mutation(NamedTuple):
    """A change of one setting."""

    name: str
    """What is changed."""
    change: Callable[[Parsed], object]
    """Changes a parsed file. It raises any error if the file does not have the setting."""


# --- Values that parts of a file are replaced by ---

_SPLIT = {"type": "Split", "pattern": {"Regex": r"\d+"}, "behavior": "Isolated", "invert": False}
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
# SentencePiece's sign for a space, and the two steps by which its normalizers introduce it.
_PREPEND_SIGN = {"type": "Prepend", "prepend": "▁"}
_SPACES_TO_SIGNS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def _template(first: Parsed, special_tokens: Parsed) -> Parsed:
    """Return a post-processor that puts something before the tokens of a text.

    Args:
        first: What it puts there.
        special_tokens: Definitions of the special tokens that `first` refers to.
    """
    text_a = {"Sequence": {"id": "A", "type_id": 0}}
    text_b = {"Sequence": {"id": "B", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text_a],
        "pair": [text_a, text_b],
        "special_tokens": special_tokens,
    }


_NORMALIZERS: list[Parsed] = [
    {"type": "NFC"},
    {"type": "NFD"},
    {"type": "NFKC"},
    {"type": "NFKD"},
    {"type": "Lowercase"},
    {"type": "StripAccents"},
    {"type": "Nmt"},
    {"type": "ByteLevel"},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    _PREPEND_SIGN,
    {"type": "Prepend", "prepend": "x"},
    _SPACES_TO_SIGNS,
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "},
    {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "lowercase": True,
        "strip_accents": None,
    },
    {"type": "Sequence", "normalizers": []},
    {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]},
    {"type": "Sequence", "normalizers": [_SPACES_TO_SIGNS, _PREPEND_SIGN]},
    {"type": "Sequence", "normalizers": [_PREPEND_SIGN, _SPACES_TO_SIGNS]},
]
_PRE_TOKENIZERS: list[Parsed] = [
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "BertPreTokenizer"},
    {"type": "UnicodeScripts"},
    {"type": "Digits", "individual_digits": False},
    {"type": "Digits", "individual_digits": True},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "Punctuation", "behavior": "Removed"},
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "CharDelimiterSplit", "delimiter": " "},
    {"type": "FixedLength", "length": 5},
    _BYTE_LEVEL,
    _BYTE_LEVEL | {"use_regex": False},
    _SPLIT,
    _SPLIT | {"pattern": {"String": " "}, "behavior": "MergedWithPrevious"},
    _METASPACE | {"prepend_scheme": "first", "split": False},
    _METASPACE | {"prepend_scheme": "first", "split": True},
    _METASPACE | {"prepend_scheme": "never", "split": False},
    _METASPACE | {"prepend_scheme": "never", "split": True},
    _METASPACE | {"prepend_scheme": "always", "split": False},
    _METASPACE | {"prepend_scheme": "always", "split": True},
]
_POST_PROCESSORS: list[Parsed] = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": False},
    {
        "type": "RobertaProcessing",
        "sep": ["a", 1],
        "cls": ["b", 2],
        "trim_offsets": True,
        "add_prefix_space": False,
    },
    {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]},
    _template(
        {"SpecialToken": {"id": "a", "type_id": 0}}, {"a": {"id": "a", "ids": [1], "tokens": ["a"]}}
    ),
    _template({"Sequence": {"id": "A", "type_id": 0}}, {}),
    {"type": "Sequence", "processors": []},
]
_DECODERS: list[Parsed] = [
    {"type": "ByteLevel"},
    {"type": "Fuse"},
    {"type": "ByteFallback"},
    {"type": "Metaspace", "replacement": "▁"},
]
_TRUNCATION = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
_PADDING = {
    "strategy": {"Fixed": 40},
    "direction": "Left",
    "pad_to_multiple_of": None,
    "pad_id": 1,
    "pad_type_id": 0,
    "pad_token": "a",
}
_PARTS: dict[str, list[Any]] = {
    "normalizer": _NORMALIZERS,
    "pre_tokenizer": _PRE_TOKENIZERS,
    "post_processor": _POST_PROCESSORS,
    "decoder": _DECODERS,
    "truncation": [_TRUNCATION],
    "padding": [_PADDING],
    "version": ["1.1", 1],
    "added_tokens": [],
}
"""Part of a file → values by which it is replaced, in addition to null."""
_MODEL_SETTINGS: dict[str, list[Any]] = {
    "dropout": [None, 0.0, 0.1, 1.0],
    "unk_token": [None, "a", "nowhere", "<unk>"],
    "continuing_subword_prefix": [None, "", "##", "a"],
    "end_of_word_suffix": [None, "", "</w>", "a"],
    "fuse_unk": [False, True],
    "byte_fallback": [False, True],
    "ignore_merges": [False, True],
    "type": ["BPE", "WordPiece", "WordLevel", "Unigram", None],
}
"""Field of the model → its values."""
_BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
"""Values of a pre-tokenizer's field `behavior`: what it does with what its pattern matches."""
_PREPEND_SCHEMES = ["first", "never", "always"]
"""Values of the field `prepend_scheme`: which words get a sign before them."""


class RegexEdit(NamedTuple):
    """A replacement in a regular expression."""

    old: str
    new: str


_REGEX_EDITS = [
    RegexEdit("?i:", "?:"),
    RegexEdit(r"\p{L}", r"\w"),
    RegexEdit(r"\p{N}{1,3}", r"\p{N}{1,2}"),
    RegexEdit(r"\p{N}{1,3}", r"\p{N}+"),
    RegexEdit(r"\p{N}", r"\d"),
    RegexEdit(r"\s+(?!\S)|", ""),
    RegexEdit(r"|\s+", "|\\s"),
    RegexEdit(r"'s|", ""),
    RegexEdit(r" ?[", "["),
    RegexEdit(r"[\r\n]*", ""),
    RegexEdit(r"[\r\n]*", r"[\r\n/]*"),
    RegexEdit(r"[\r\n]+", r"[\n]+"),
    RegexEdit(r"\p{M}", ""),
    RegexEdit(r"?\p{L}", r"\p{L}"),
    RegexEdit(r"\p{Lo}", ""),
    RegexEdit("+", "++"),
    RegexEdit("+", "+?"),
]
"""Changes of a pattern that divides text into words: small, as between two models of one family."""
_TOKEN_TEXTS = [
    # Parts of words, with spaces and combining marks around them.
    *("the", "e", " e", "e ", "e\u0301", "\u0301", "é", "'s"),
    # Whitespace.
    *("  ", "\t", "\n", "\n\n", " ", "\u00a0"),
    # Digits, punctuation and other scripts.
    *("12", "1", ".", "中", "。", "🎉"),
    # Special tokens, and parts of them.
    *("<mask>", "[MASK]", "<|endoftext|>x", "<|end", "|><|", "x y"),
    # Characters that normalisation changes.
    *("ſ", "\u037e", "ﬁ"),
    # The signs of SentencePiece and of byte-level tokenizers for a space, and NUL.
    *("▁", "▁the", "Ġthe", "\0"),
]
"""Texts of new added tokens."""
_TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
"""Fields of an added token that are booleans."""
_TOKENS_WITHOUT_MERGES = [
    "",
    " ",
    "thex",
    "e▁x",
    "▁ ",
    "Ġqu ick",
    "\0",
    "12345",
    "Ġdogx",
    "日本",
    "<0x41>",
    "\n",
    "<|endoftext|>",
]
_N_RANDOM_CHANGES = 24
"""How often each random change of a model is made, each time with other random numbers."""


def mutations(parsed: Parsed) -> list[Mutation]:
    """Return every change of a parsed `tokenizer.json`, always in the same order."""
    return [
        *_replaced_parts(),
        *_changed_fields(parsed),
        *_changed_patterns(parsed),
        *_changed_model_settings(),
        *_changed_vocabulary(),
        *_changed_added_tokens(),
        *_new_added_tokens(),
    ]


def mutated(parsed: Parsed, mutation: Mutation) -> bytes | None:
    """Return a file after a mutation, or None if the mutation changes nothing."""
    changed = copy.deepcopy(parsed)
    try:
        mutation.change(changed)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        # The file does not have what the mutation changes.
        return None
    if changed == parsed:
        return None
    return json.dumps(changed).encode()


# --- Functions that make changes ---


def _container(parsed: Parsed, path: FieldPath) -> Any:
    """Return the dictionary or list that contains a field."""
    container: Any = parsed
    for key in path[:-1]:
        container = container[key]
    return container


def _set_field(path: FieldPath, value: Any) -> Callable[[Parsed], None]:
    """Return a change that sets a field to a value."""

    def change(parsed: Parsed) -> None:
        # A copy: a later change of the file must not change the value for other files.
        _container(parsed, path)[path[-1]] = copy.deepcopy(value)

    return change


def _remove_field(path: FieldPath) -> Callable[[Parsed], None]:
    """Return a change that removes a field."""

    def change(parsed: Parsed) -> None:
        del _container(parsed, path)[path[-1]]

    return change


def _add_unknown_field(path: FieldPath) -> Callable[[Parsed], None]:
    """Return a change that adds a field, which no tokenizer knows, next to another field."""

    def change(parsed: Parsed) -> None:
        _container(parsed, path).update(surprise=True)

    return change


def _extend_sequence(
    part: str, list_name: str, value: Parsed, *, value_is_first: bool
) -> Callable[[Parsed], None]:
    """Return a change that runs a further normalizer or pre-tokenizer before or after a file's own.

    Args:
        part: "normalizer" or "pre_tokenizer".
        list_name: Name of the list of steps in a part of the type "Sequence".
        value: The further step.
        value_is_first: Whether it runs before the file's own.
    """

    def change(parsed: Parsed) -> None:
        steps = [parsed[part]] if parsed.get(part) else []
        steps.insert(0 if value_is_first else len(steps), value)
        parsed[part] = {"type": "Sequence", list_name: steps}

    return change


# --- Changes of settings ---


def _replaced_parts() -> Iterator[Mutation]:
    """Yield changes that replace a part of the pipeline, or add a step to it."""
    for part, values in _PARTS.items():
        for value in [None, *values]:
            yield Mutation(f"{part} = {value}", _set_field((part,), value))

    yield from _extended_sequences("normalizer", "normalizers", _NORMALIZERS)
    yield from _extended_sequences("pre_tokenizer", "pretokenizers", _PRE_TOKENIZERS)


def _extended_sequences(part: str, list_name: str, steps: list[Parsed]) -> Iterator[Mutation]:
    """Yield changes that run a further step before or after a file's own; see _extend_sequence."""
    for step in steps:
        after = _extend_sequence(part, list_name, step, value_is_first=False)
        yield Mutation(f"{part} before {step}", after)
        before = _extend_sequence(part, list_name, step, value_is_first=True)
        yield Mutation(f"{part} after {step}", before)


def _changed_fields(parsed: Parsed) -> Iterator[Mutation]:
    """Yield changes of each field of a file: removed, set to another value, or with a new neighbour.

    The fields inside the vocabulary, the merges and the added tokens are left out; they have
    changes of their own.
    """
    settings = {key: value for key, value in parsed.items() if key not in ("model", "added_tokens")}
    settings["model"] = {
        key: value for key, value in parsed["model"].items() if key not in ("vocab", "merges")
    }
    fields = list(_fields(settings, ()))
    fields += [(("model", "vocab"), None), (("model", "merges"), None)]
    for path, value in fields:
        yield Mutation(f"without {path}", _remove_field(path))
        yield Mutation(f"beside {path}", _add_unknown_field(path))
        for other_value in _other_values(path[-1], value):
            yield Mutation(f"{path} = {other_value!r}", _set_field(path, other_value))


def _other_values(key: str, value: Any) -> list[Any]:
    """Return values that a field could have instead of its value; none for lists and dictionaries.

    Args:
        key: Name of the field.
        value: Its value.
    """
    # A boolean is an int for Python.
    if isinstance(value, bool):
        return [not value, None, 1]
    if isinstance(value, int | float):
        return [value + 1, 0, -1]
    if not isinstance(value, str):
        return []
    values = ["", value + "x", value.lower(), " "]
    if key == "behavior":
        values += _BEHAVIORS
    if key == "prepend_scheme":
        values += _PREPEND_SCHEMES
    return values


def _fields(value: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    """Yield the path and the value of each field of the dictionaries inside a value.

    Args:
        value: A JSON value.
        path: Its own path.
    """
    if isinstance(value, dict):
        for key, member in value.items():
            yield (*path, key), member
            yield from _fields(member, (*path, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _fields(member, (*path, index))


def _changed_patterns(parsed: Parsed) -> Iterator[Mutation]:
    """Yield changes of each regular expression that divides text into words."""
    for path, pattern in _fields(parsed.get("pre_tokenizer"), ("pre_tokenizer",)):
        if path[-1] != "Regex":
            continue
        # Of alternatives, the first that matches counts, so their order matters, too.
        branches = pattern.split("|")
        for index in range(len(branches)):
            remaining = branches[:index] + branches[index + 1 :]
            yield Mutation(f"{path} without branch {index}", _set_field(path, "|".join(remaining)))
        yield Mutation(f"{path} reversed", _set_field(path, "|".join(reversed(branches))))

        for edit in _REGEX_EDITS:
            once = pattern.replace(edit.old, edit.new, 1)
            everywhere = pattern.replace(edit.old, edit.new)
            yield Mutation(f"{path}: {edit.old} to {edit.new}", _set_field(path, once))
            yield Mutation(f"{path}: every {edit.old} to {edit.new}", _set_field(path, everywhere))


def _changed_model_settings() -> Iterator[Mutation]:
    """Yield changes of the settings of the model, whether or not a file has them."""
    for key, values in _MODEL_SETTINGS.items():
        for value in values:
            yield Mutation(f"model.{key} = {value!r}", _set_field(("model", key), value))


# --- Changes of the vocabulary and the merges ---

ModelChange = Callable[[Parsed, random.Random], None]
"""Changes a model at random."""


def _changed_vocabulary() -> Iterator[Mutation]:
    """Yield changes of the vocabulary and the merges."""
    changes: Sequence[ModelChange] = (
        _swap_merges,
        _drop_merge,
        _drop_token,
        _swap_ids,
        _share_id,
        _renumber,
        _add_token,
        _add_merge,
    )
    for number, change in product(range(_N_RANDOM_CHANGES), changes):
        name = change.__name__.strip("_")
        yield Mutation(f"{name} {number}", _seeded_change(change, number))

    yield Mutation("merges as strings", _write_merges_as_strings)
    yield Mutation("merges reversed", _reverse_merges)
    yield Mutation("no merges", _set_field(("model", "merges"), []))


def _seeded_change(change_model: ModelChange, seed: int) -> Callable[[Parsed], None]:
    """Return a change of the model with random numbers that are always the same."""

    def change(parsed: Parsed) -> None:
        change_model(parsed["model"], random.Random(seed))

    return change


def _merges(model: Parsed) -> list[list[str]]:
    """Return the merges of a model, a pair of tokens each, after writing them as lists into it.

    Older files have strings, with a space between the two tokens.
    """
    pairs: list[list[str]] = []
    for merge in model["merges"]:
        pairs.append(merge.split(" ") if isinstance(merge, str) else merge)
    model["merges"] = pairs
    return pairs


def _write_merges_as_strings(parsed: Parsed) -> None:
    """Write merges in the older form, which cannot represent tokens with spaces."""
    model = parsed["model"]
    model["merges"] = [" ".join(pair) for pair in _merges(model)]


def _reverse_merges(parsed: Parsed) -> None:
    """Reverse the merges, whose order is their priority."""
    _merges(parsed["model"]).reverse()


def _swap_merges(model: Parsed, rng: random.Random) -> None:
    """Exchange two merges, which in half of the cases are neighbours."""
    merges = _merges(model)
    first = rng.randrange(len(merges))
    second = rng.choice([rng.randrange(len(merges)), (first + 1) % len(merges)])
    merges[first], merges[second] = merges[second], merges[first]


def _drop_merge(model: Parsed, rng: random.Random) -> None:
    """Remove one merge, or 20."""
    merges = _merges(model)
    n_removed = rng.choice([1, 1, 20])
    for _ in range(n_removed):
        merges.pop(rng.randrange(len(merges)))


def _drop_token(model: Parsed, rng: random.Random) -> None:
    """Remove a token, in half of the cases one of a single character.

    Most often, the merges with this token are removed as well. If not, the file is invalid.
    """
    characters = [token for token in model["vocab"] if len(token) == 1]
    candidates = rng.choice([list(model["vocab"]), characters])
    removed = rng.choice(candidates)
    del model["vocab"][removed]

    if rng.random() < 0.8:
        remaining: list[list[str]] = []
        for merge in _merges(model):
            if removed not in merge and removed != "".join(merge):
                remaining.append(merge)
        model["merges"] = remaining


def _swap_ids(model: Parsed, rng: random.Random) -> None:
    """Exchange the ids of two tokens."""
    vocab = model["vocab"]
    first, second = rng.sample(list(vocab), 2)
    vocab[first], vocab[second] = vocab[second], vocab[first]


def _share_id(model: Parsed, rng: random.Random) -> None:
    """Give a token the id of another one."""
    first, second = rng.sample(list(model["vocab"]), 2)
    model["vocab"][first] = model["vocab"][second]


def _renumber(model: Parsed, rng: random.Random) -> None:
    """Give a token an id that is large, negative, or no integer."""
    token = rng.choice(list(model["vocab"]))
    model["vocab"][token] = rng.choice([-1, 1 << 20, 1 << 31, 1 << 33, 5_000, 1.5, None])


def _add_token(model: Parsed, rng: random.Random) -> None:
    """Add a token that no merge results in, so that only `ignore_merges` makes use of it."""
    token = rng.choice(_TOKENS_WITHOUT_MERGES)
    model["vocab"].setdefault(token, _unused_id(model))


def _add_merge(model: Parsed, rng: random.Random) -> None:
    """Add a merge of two random tokens, with the highest or the lowest priority."""
    left, right = rng.sample(list(model["vocab"]), 2)
    model["vocab"].setdefault(left + right, _unused_id(model))
    merges = _merges(model)
    index = rng.choice([0, len(merges)])
    merges.insert(index, [left, right])


def _unused_id(model: Parsed) -> int:
    """Return an id above those of the vocabulary and of a few added tokens."""
    highest: int = max(model["vocab"].values())
    return highest + 50


# --- Changes of added tokens ---


def _changed_added_tokens() -> Iterator[Mutation]:
    """Yield changes of the first, the second and the last added token: flags, fields, id and text."""
    for index, flag, value in product((0, 1, -1), _TOKEN_FLAGS, (False, True, None, 1)):
        change = _set_field(("added_tokens", index, flag), value)
        yield Mutation(f"added token {index}: {flag} = {value}", change)

    for index, key in product((0, -1), ("id", "content", *_TOKEN_FLAGS)):
        path = ("added_tokens", index, key)
        yield Mutation(f"added token {index} without {key}", _remove_field(path))
    for index in (0, -1):
        change = _add_unknown_field(("added_tokens", index, "id"))
        yield Mutation(f"added token {index} with an unknown field", change)

    for index, token_id in product((0, -1), (0, 5, 1 << 20, 99_999, -1, None)):
        change = _set_field(("added_tokens", index, "id"), token_id)
        yield Mutation(f"added token {index}: id {token_id}", change)

    for text in _TOKEN_TEXTS:
        change = _set_field(("added_tokens", 0, "content"), text)
        yield Mutation(f"added token 0: content {text!r}", change)


def _new_added_tokens() -> Iterator[Mutation]:
    """Yield changes that add a token: many texts, with all combinations of flags."""
    flag_values = list(product((False, True), repeat=len(_TOKEN_FLAGS)))
    for text, values in product(_TOKEN_TEXTS, flag_values):
        flags = dict(zip(_TOKEN_FLAGS, values, strict=True))
        yield Mutation(f"new token {text!r} {flags}", _append_token(text, flags))


def _append_token(text: str, flags: dict[str, bool]) -> Callable[[Parsed], None]:
    """Return a change that adds a token, whose id is the next free one.

    Args:
        text: The text that is found.
        flags: How it is found; see `_TOKEN_FLAGS`.
    """

    def change(parsed: Parsed) -> None:
        ids = list(parsed["model"]["vocab"].values())
        ids += [token["id"] for token in parsed["added_tokens"]]
        parsed["added_tokens"].append({"id": max(ids) + 1, "content": text, **flags})

    return change
