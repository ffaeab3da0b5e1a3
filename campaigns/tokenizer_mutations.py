"""A `tokenizer.json` changed in one setting: every field of it, and the settings that it might
have.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

Parsed = dict[str, Any]
Mutation = tuple[str, Callable[[Parsed], object]]
"""(what is changed, a function that changes a parsed file; whatever it raises means that there is
nothing to change)
"""

_SPLIT = {"type": "Split", "pattern": {"Regex": r"\d+"}, "behavior": "Isolated", "invert": False}
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
_TO_SIGNS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def _template(first: Any, **special: Any) -> Any:
    parts = [{"Sequence": {"id": part, "type_id": 0}} for part in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [first, parts[0]],
        "pair": parts,
        "special_tokens": special,
    }


_NORMALIZERS = [
    *(
        {"type": kind}
        for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")
    ),
    *({"type": "Strip", "strip_left": left, "strip_right": True} for left in (False, True)),
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Prepend", "prepend": "x"},
    _TO_SIGNS,
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "},
    dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True)
    | {"type": "BertNormalizer", "strip_accents": None},
    {"type": "Sequence", "normalizers": []},
    {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]},
    {"type": "Sequence", "normalizers": [_TO_SIGNS, {"type": "Prepend", "prepend": "▁"}]},
    {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _TO_SIGNS]},
]
_PRE_TOKENIZERS = [
    *(
        {"type": kind}
        for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")
    ),
    *({"type": "Digits", "individual_digits": each} for each in (False, True)),
    *(
        {"type": "Punctuation", "behavior": behavior}
        for behavior in ("Isolated", "Removed", "Contiguous")
    ),
    {"type": "CharDelimiterSplit", "delimiter": " "},
    {"type": "FixedLength", "length": 5},
    _BYTE_LEVEL,
    _BYTE_LEVEL | {"use_regex": False},
    _SPLIT,
    _SPLIT | {"pattern": {"String": " "}, "behavior": "MergedWithPrevious"},
    *(
        _METASPACE | {"prepend_scheme": scheme, "split": split}
        for scheme in ("first", "never", "always")
        for split in (False, True)
    ),
]
_PROCESSORS = [
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
        {"SpecialToken": {"id": "a", "type_id": 0}}, a={"id": "a", "ids": [1], "tokens": ["a"]}
    ),
    _template({"Sequence": {"id": "A", "type_id": 0}}),
    {"type": "Sequence", "processors": []},
]
_DECODERS = [{"type": kind} for kind in ("ByteLevel", "Fuse", "ByteFallback")]
_DECODERS += [{"type": "Metaspace", "replacement": "▁"}]
_MODEL = {
    "dropout": [None, 0.0, 0.1, 1.0],
    "unk_token": [None, "a", "nowhere", "<unk>"],
    "continuing_subword_prefix": [None, "", "##", "a"],
    "end_of_word_suffix": [None, "", "</w>", "a"],
    "fuse_unk": [False, True],
    "byte_fallback": [False, True],
    "ignore_merges": [False, True],
    "type": ["BPE", "WordPiece", "WordLevel", "Unigram", None],
}
_REGEX_EDITS = [
    *(
        ("?i:", "?:"),
        (r"\p{L}", r"\w"),
        (r"\p{N}{1,3}", r"\p{N}{1,2}"),
        (r"\p{N}{1,3}", r"\p{N}+"),
        (r"\p{N}", r"\d"),
    ),
    *(
        (r"\s+(?!\S)|", ""),
        (r"|\s+", "|\\s"),
        (r"'s|", ""),
        (r" ?[", "["),
        (r"[\r\n]*", ""),
        (r"[\r\n]*", r"[\r\n/]*"),
    ),
    *(
        (r"[\r\n]+", r"[\n]+"),
        (r"\p{M}", ""),
        (r"?\p{L}", r"\p{L}"),
        (r"\p{Lo}", ""),
        ("+", "++"),
        ("+", "+?"),
    ),
]
_CONTENTS = [
    *(
        "the",
        "e",
        " e",
        "e ",
        "e\u0301",
        "\u0301",
        "é",
        "'s",
        "  ",
        "\t",
        "\n",
        "\n\n",
        " ",
        "12",
        "1",
        ".",
        "中",
    ),
    *(
        "。",
        "🎉",
        "<mask>",
        "[MASK]",
        "<|endoftext|>x",
        "<|end",
        "|><|",
        "x y",
        "\u00a0",
        "ſ",
        "\u037e",
        "ﬁ",
        "▁",
    ),
    *("▁the", "Ġthe", "\0"),
]
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def mutations(parsed: Parsed) -> list[Mutation]:
    """Every mutation that a file is given, always in the same order."""
    return [
        *_replaced_parts(),
        *_changed_fields(parsed),
        *_changed_patterns(parsed),
        *_changed_model(),
        *_changed_tokens(),
    ]


def mutated(parsed: Parsed, mutation: Mutation) -> bytes | None:
    """The file after a mutation, None where that changes nothing."""
    changed = copy.deepcopy(parsed)
    try:
        mutation[1](changed)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    return None if changed == parsed else json.dumps(changed).encode()


def _set(*path: Any) -> Callable[[Parsed], object]:
    """Set what the path but its last part leads to, to its last part."""
    *parents, last, value = path

    def change(parsed: Parsed) -> None:
        holder: Any = parsed
        for parent in parents:
            holder = holder[parent]
        holder[last] = copy.deepcopy(value)

    return change


def _replaced_parts() -> Iterator[Mutation]:
    choices = {
        "normalizer": _NORMALIZERS,
        "pre_tokenizer": _PRE_TOKENIZERS,
        "post_processor": _PROCESSORS,
        "decoder": _DECODERS,
        "truncation": [
            {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
        ],
        "padding": [
            {"strategy": {"Fixed": 40}, "direction": "Left", "pad_to_multiple_of": None}
            | {"pad_id": 1, "pad_type_id": 0, "pad_token": "a"}
        ],
        "version": ["1.1", 1],
        "added_tokens": [],
    }
    for part, values in choices.items():
        for value in [None, *values]:
            yield f"{part} = {value}", _set(part, value)
    for part, members in (("normalizer", _NORMALIZERS), ("pre_tokenizer", _PRE_TOKENIZERS)):
        kind = f"{part.replace('_', '')}s"
        for value, first in product(members, (False, True)):
            yield (
                f"{part} {'after' if first else 'before'} {value}",
                _in_sequence(part, kind, value, first),
            )


def _in_sequence(part: str, kind: str, value: Any, first: bool) -> Callable[[Parsed], object]:
    def change(parsed: Parsed) -> None:
        old = [parsed[part]] if parsed.get(part) else []
        parsed[part] = {"type": "Sequence", kind: [value, *old] if first else [*old, value]}

    return change


def _changed_fields(parsed: Parsed) -> Iterator[Mutation]:
    """Each field that a file has: another value, none at all, and one more beside it."""
    shown = {key: value for key, value in parsed.items() if key not in ("model", "added_tokens")}
    shown["model"] = {
        key: value for key, value in parsed["model"].items() if key not in ("vocab", "merges")
    }
    for path, value in [
        *_fields(shown, ()),
        *((("model", key), None) for key in ("vocab", "merges")),
    ]:
        yield f"without {path}", lambda parsed, path=path: _holder(parsed, path).pop(path[-1])
        yield (
            f"beside {path}",
            lambda parsed, path=path: _holder(parsed, path).update(surprise=True),
        )
        others: list[Any] = []
        if isinstance(value, bool):
            others = [not value, None, 1]
        elif isinstance(value, int | float):
            others = [value + 1, 0, -1]
        elif isinstance(value, str):
            others = ["", value + "x", value.lower(), " "]
            if path[-1] == "behavior":
                others += [
                    "Removed",
                    "Isolated",
                    "MergedWithPrevious",
                    "MergedWithNext",
                    "Contiguous",
                ]
            if path[-1] == "prepend_scheme":
                others += ["first", "never", "always"]
        for other in others:
            yield f"{path} = {other!r}", _set(*path, other)


def _fields(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    members = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, member in members:
        if isinstance(value, dict):
            yield (*path, key), member
        yield from _fields(member, (*path, key))


def _holder(parsed: Parsed, path: tuple[Any, ...]) -> Any:
    holder: Any = parsed
    for part in path[:-1]:
        holder = holder[part]
    return holder


def _changed_patterns(parsed: Parsed) -> Iterator[Mutation]:
    """Every regular expression, with a part left out or changed."""
    for path, value in _fields(parsed.get("pre_tokenizer"), ("pre_tokenizer",)):
        if path[-1] != "Regex":
            continue
        branches = value.split("|")
        for place in range(len(branches)):
            yield (
                f"{path} without branch {place}",
                _set(*path, "|".join(branches[:place] + branches[place + 1 :])),
            )
        yield f"{path} reversed", _set(*path, "|".join(reversed(branches)))
        for old, new in _REGEX_EDITS:
            yield f"{path}: {old} to {new}", _set(*path, value.replace(old, new, 1))
            yield f"{path}: every {old} to {new}", _set(*path, value.replace(old, new))


def _changed_model() -> Iterator[Mutation]:
    for key, values in _MODEL.items():
        for value in values:
            yield f"model.{key} = {value!r}", _set("model", key, value)
    changes = (
        _swap_merges,
        _drop_merge,
        _drop_token,
        _swap_ids,
        _share_id,
        _renumber,
        _add_token,
        _add_merge,
    )
    for number, change in product(range(24), changes):
        act = partial(_seeded, change, number)
        yield f"{change.__name__.strip('_')} {number}", act
    yield (
        "merges as strings",
        lambda parsed: parsed["model"].update(merges=[*map(" ".join, _merges(parsed["model"]))]),
    )
    yield "merges reversed", lambda parsed: _merges(parsed["model"]).reverse()
    yield "no merges", _set("model", "merges", [])


def _seeded(change: Callable[[Parsed, random.Random], None], number: int, parsed: Parsed) -> None:
    change(parsed["model"], random.Random(number))


def _merges(model: Parsed) -> list[list[str]]:
    model["merges"] = [
        merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]
    ]
    merges: list[list[str]] = model["merges"]
    return merges


def _swap_merges(model: Parsed, rng: random.Random) -> None:
    merges = _merges(model)
    first = rng.randrange(len(merges))
    second = rng.choice([rng.randrange(len(merges)), (first + 1) % len(merges)])
    merges[first], merges[second] = merges[second], merges[first]


def _drop_merge(model: Parsed, rng: random.Random) -> None:
    merges = _merges(model)
    for _ in range(rng.choice([1, 1, 20])):
        merges.pop(rng.randrange(len(merges)))


def _drop_token(model: Parsed, rng: random.Random) -> None:
    """With its merges, or without: then the file is damaged; letters too."""
    letters = [word for word in model["vocab"] if len(word) == 1]
    word = rng.choice([rng.choice(list(model["vocab"])), rng.choice(letters)])
    del model["vocab"][word]
    if rng.random() < 0.8:
        model["merges"] = [
            merge for merge in _merges(model) if word not in (*merge, "".join(merge))
        ]


def _swap_ids(model: Parsed, rng: random.Random) -> None:
    first, second = rng.sample(list(model["vocab"]), 2)
    model["vocab"][first], model["vocab"][second] = model["vocab"][second], model["vocab"][first]


def _share_id(model: Parsed, rng: random.Random) -> None:
    first, second = rng.sample(list(model["vocab"]), 2)
    model["vocab"][first] = model["vocab"][second]


def _renumber(model: Parsed, rng: random.Random) -> None:
    model["vocab"][rng.choice(list(model["vocab"]))] = rng.choice(
        [-1, 1 << 20, 1 << 31, 1 << 33, 5_000, 1.5, None]
    )


def _add_token(model: Parsed, rng: random.Random) -> None:
    """A word that no merge makes: it counts with `ignore_merges` alone."""
    words = [
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
    model["vocab"].setdefault(rng.choice(words), max(model["vocab"].values()) + 50)


def _add_merge(model: Parsed, rng: random.Random) -> None:
    left, right = rng.sample(list(model["vocab"]), 2)
    model["vocab"].setdefault(left + right, max(model["vocab"].values()) + 50)
    _merges(model).insert(rng.choice([0, len(model["merges"])]), [left, right])


def _changed_tokens() -> Iterator[Mutation]:
    """Added tokens: each flag of those there are, and new ones of many texts with all combinations
    of flags.
    """
    for place, flag, value in product((0, 1, -1), _FLAGS, (False, True, None, 1)):
        yield f"added token {place}: {flag} = {value}", _set("added_tokens", place, flag, value)
    for place, key in product((0, -1), ("id", "content", *_FLAGS)):
        without = lambda parsed, place=place, key=key: parsed["added_tokens"][place].pop(key)  # noqa: E731
        yield f"added token {place} without {key}", without
        yield f"added token {place} beside {key}", _set("added_tokens", place, "surprise", True)
    for place, ident in product((0, -1), (0, 5, 1 << 20, 99_999, -1, None)):
        yield f"added token {place}: id {ident}", _set("added_tokens", place, "id", ident)
    for content in _CONTENTS:
        yield f"added token 0: content {content!r}", _set("added_tokens", 0, "content", content)
        for number in range(32):
            flags = {flag: bool(number >> place & 1) for place, flag in enumerate(_FLAGS)}
            yield f"new token {content!r} {flags}", _with_token(content, flags)


def _with_token(content: str, flags: dict[str, bool]) -> Callable[[Parsed], object]:
    def change(parsed: Parsed) -> None:
        ids = [
            *parsed["model"]["vocab"].values(),
            *(token["id"] for token in parsed["added_tokens"]),
        ]
        parsed["added_tokens"].append({"id": max(ids) + 1, "content": content, **flags})

    return change
