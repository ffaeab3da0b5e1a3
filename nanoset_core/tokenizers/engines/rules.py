"""The rules of a tokenizer: read strictly from its `tokenizer.json`, or not at all, and kept for
the next start.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args
from unicodedata import is_normalized

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bytes, Ids, Ints
from nanoset_core.tokenizers.engines.classes import DIGITS, OTHER, probe_classes
from nanoset_core.tokenizers.engines.merges import MOST_IDS, MOST_MERGES
from nanoset_core.tokenizers.engines.patterns import (
    GPT2,
    NO_SPANS,
    SPLIT_PATTERNS,
    ContextSpans,
    Prepend,
    SpaceSigns,
    SplitPattern,
)
from nanoset_core.tokenizers.engines.reference import NotRecognisedError
from nanoset_core.tokenizers.engines.units import SAFE_CUT, Form, no_merge_crosses_cuts
from nanoset_core.tokenizers.files.sentencepiece import SPACE_SIGN
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters, token_bytes
from nanoset_core.tokenizers.knowledge import Arrays, from_array, to_array


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words and merges of a BPE model."""

    data: Bytes
    """uint8, shape (bytes,): bytes of all words back to back; none of them holds a zero byte."""
    lengths: Ints
    """int64, shape (words,): bytes of each word."""
    ids: Ids
    """int32, shape (words,): token of each word."""
    byte_tokens: Ids
    """int32, shape (256,): token of each byte, -1 for none."""
    merges: Ids
    """int32, shape (merges, 3): left token, right token and what they make, in order of rank."""
    characters: Ids
    """int32, shape (characters, 2): (code point, token) where merging begins with characters, else
    none.
    """
    boundary_pairs: Ids
    """int32, shape (pairs, 2): (last code point of the left token, first of the right one) of all
    merges, where merging begins with characters."""


def read_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """Return `vocab` and `merges` of the model as arrays.

    Raises:
        NotRecognisedError: They are none of a byte-level BPE model, or larger than the engine can
            hold.
    """
    words = ((token_bytes(word), ident) for word, ident in vocabulary.items())
    byte_tokens = [vocabulary.get(character, -1) for character in byte_characters()]
    return _arrays(vocabulary, words, byte_tokens, _flattened(merges), [], [])


def read_character_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """Return the arrays of a model that begins with characters, and writes spaces as ▁: a space
    stands for each.

    Raises:
        NotRecognisedError: It has no token for some byte, or merges those, or see
            `read_vocabulary`.
    """
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    parts = _flattened(merges)
    merging = {*parts, *map(operator.add, parts[::2], parts[1::2])}
    if any(name not in vocabulary or name in merging for name in names):
        raise NotRecognisedError("tokens of single bytes that are not there, or that merge")
    if "" in merging or any(" " in part for part in parts):
        raise NotRecognisedError("a merge of nothing, or of a space")
    own = {word: ident for word, ident in vocabulary.items() if " " not in word}
    words = ((word.replace(SPACE_SIGN, " ").encode(), ident) for word, ident in own.items())
    characters = [(_point(word), ident) for word, ident in own.items() if len(word) == 1]
    boundary_pairs = {
        (_point(left[-1]), _point(right[0]))
        for left, right in zip(parts[::2], parts[1::2], strict=True)
    }
    if not no_merge_crosses_cuts(boundary_pairs):
        raise NotRecognisedError("tokens across places where text is cut")
    byte_tokens = [vocabulary[name] for name in names]
    return _arrays(
        vocabulary, words, byte_tokens, parts, sorted(characters), sorted(boundary_pairs)
    )


def _arrays(
    vocabulary: dict[str, int],
    words: Iterable[tuple[bytes | None, int]],
    byte_tokens: list[int],
    parts: list[str],
    characters: list[tuple[int, int]],
    boundary_pairs: list[tuple[int, int]],
) -> Vocabulary:
    ids = set(vocabulary.values())
    if not ids or min(ids) < 0 or max(ids) >= MOST_IDS or len(parts) >= 2 * MOST_MERGES:
        raise NotRecognisedError(
            f"{len(vocabulary)} tokens and {len(parts) // 2} merges are out of bounds"
        )
    if len(ids) != len(vocabulary):
        raise NotRecognisedError("two tokens with one id")
    kept = [(word, ident) for word, ident in words if word and b"\0" not in word]
    return Vocabulary(
        np.frombuffer(b"".join(word for word, _ in kept), np.uint8),
        np.array([len(word) for word, _ in kept], np.int64),
        np.array([ident for _, ident in kept], np.int32),
        np.array(byte_tokens, np.int32),
        _merge_table(vocabulary, parts),
        np.array(characters, np.int32).reshape(-1, 2),
        np.array(boundary_pairs, np.int32).reshape(-1, 2),
    )


def _point(character: str) -> int:
    """Return a code point, that of a space for ▁."""
    return 0x20 if character == SPACE_SIGN else ord(character)


def _merge_table(vocabulary: dict[str, int], parts: list[str]) -> Ids:
    """Return left, right, merged: int32, shape (merges, 3)."""
    lefts, rights = parts[::2], parts[1::2]
    columns = (lefts, rights, map(operator.add, lefts, rights))
    found = [
        np.fromiter(map(vocabulary.__getitem__, column), np.int32, len(lefts)) for column in columns
    ]
    table = np.stack(found, axis=1)
    if len(np.unique(table[:, 0].astype(np.int64) * MOST_IDS + table[:, 1])) != len(table):
        raise NotRecognisedError("merges that come twice")
    return table


def _flattened(merges: list[Any]) -> list[str]:
    """Return left, right, left, right … of all merges, which are written "a b" or ["a", "b"]."""
    return [
        part for merge in merges for part in (merge.split(" ") if isinstance(merge, str) else merge)
    ]


@dataclass(frozen=True, slots=True)
class Rules:
    """A tokenizer that the numpy engine understands."""

    split: SplitPattern | SpaceSigns
    form: Form | None
    """The form that text is normalised to first."""
    runs: dict[str, dict[int, int]]
    """Character → length → id of the added tokens that repeat it, of all lengths from 2 (spaces) or
    1 to the longest: spaces for a split pattern, else newlines and tabs."""
    added_tokens: tuple[str, ...]
    """Text of the other tokens that are matched before any splitting."""
    leaves_documents: bool
    """Whether a document with one of these is left to the reference as a whole, and not only the
    text around it.
    """
    whole_words: bool
    """Whether a pre-token that is in the vocabulary is one token, whatever the merges say."""
    vocabulary: Vocabulary
    classes: Bytes
    """uint8, shape (0x110000,): class of every code point; none where there is no split pattern."""

    def to_arrays(self) -> Arrays:
        """Return all fields as arrays."""
        split = self.split.regex if isinstance(self.split, SplitPattern) else asdict(self.split)
        runs = {character: list(runs.items()) for character, runs in self.runs.items()}
        settings = to_array(
            [split, self.form, runs, self.added_tokens, self.leaves_documents, self.whole_words]
        )
        arrays = {name: getattr(self.vocabulary, name) for name in _ARRAYS}
        return arrays | {"settings": settings, "classes": self.classes}

    @staticmethod
    def from_arrays(arrays: Arrays) -> Rules:
        """Return the rules whose `to_arrays` gave these."""
        split, form, runs, added_tokens, leaves_documents, whole_words = from_array(
            arrays["settings"]
        )
        return Rules(
            SpaceSigns(**split) if isinstance(split, dict) else SPLIT_PATTERNS[tuple(split)],
            form,
            {character: dict(lengths) for character, lengths in runs.items()},
            tuple(added_tokens),
            leaves_documents,
            whole_words,
            Vocabulary(*(arrays[name] for name in _ARRAYS)),
            arrays["classes"],
        )

    @property
    def context_spans(self) -> ContextSpans:
        """Return the text that the split pattern leaves to the reference."""
        return self.split.context_spans if isinstance(self.split, SplitPattern) else NO_SPANS

    @property
    def forbidden_bytes(self) -> bytes:
        """Return the bytes of text that the engine leaves to the reference: zero, and those without
        a token.
        """
        possible = [*range(1, 0xC0), *range(0xC2, 0xF5)]
        return bytes([0, *(byte for byte in possible if self.vocabulary.byte_tokens[byte] < 0)])

    @property
    def described(self) -> str:
        """Return how text is split, for logs."""
        if isinstance(self.split, SplitPattern):
            return f"{self.split.name} split pattern"
        return "SentencePiece's spaces and characters"


_ARRAYS = [field.name for field in fields(Vocabulary)]
_FLAG = (False, True, None)  # None: not there


def read_rules(tokenizer: Any) -> Rules:
    """Return the rules of a parsed `tokenizer.json` that the library reads; it is asked for the
    classes of characters.

    Raises:
        NotRecognisedError: It holds a setting that the numpy engine does not know.
    """
    anything = dict.fromkeys(
        ("truncation", "padding", "decoder", "normalizer", "pre_tokenizer", "post_processor"), ...
    )
    try:
        _check_members(
            tokenizer, "the file", version=("1.0",), model=..., added_tokens=..., **anything
        )
        normalizer, pre_tokenizer = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
        signs = _read_space_signs(normalizer, pre_tokenizer)
        form = None if signs else _read_normalizer(normalizer)
        split = signs or _read_pre_tokenizer(pre_tokenizer)
        vocabulary, whole_words = _read_model(
            tokenizer.get("model"), of_characters=signs is not None
        )
        added = _read_added_tokens(tokenizer.get("added_tokens"), split, form)
        classes = (
            probe_classes(split.classes, split.rest)
            if isinstance(split, SplitPattern)
            else np.zeros(0, np.uint8)
        )
        return Rules(split, form, *added, whole_words, vocabulary, classes)
    except (KeyError, TypeError, AttributeError) as error:
        raise NotRecognisedError(f"not built like a tokenizer.json: {error!r}") from error


def _check_members(value: Any, name: str, **allowed: Any) -> None:
    """Refuse members of a JSON object that are not named, or have none of the values (`...` for
    any).
    """
    for key, options in allowed.items():
        found = value.get(key)
        if options is not ... and not any(
            type(found) is type(option) and found == option for option in options
        ):
            raise NotRecognisedError(f"{key} of {name} is {_shown(found)}")
    for key in value.keys() - allowed.keys():
        raise NotRecognisedError(f"unknown setting {key!r} in {name}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _read_normalizer(value: Any) -> Form | None:
    """Return NFC, NFKC or nothing; refuse all others."""
    if value is None:
        return None
    if value.get("type") == "Sequence":
        _check_members(value, "the normalizer", type=..., normalizers=...)
        forms = set(map(_read_normalizer, value["normalizers"]))
        return "NFKC" if "NFKC" in forms else "NFC" if "NFC" in forms else None
    _check_members(value, "the normalizer", type=get_args(Form))
    form: Form = value["type"]
    return form


def _read_pre_tokenizer(value: Any) -> SplitPattern:
    """Read known splits and then ByteLevel, with its own pattern or without."""
    members = [value]
    if value["type"] == "Sequence":
        _check_members(value, "the pre-tokenizer", type=..., pretokenizers=...)
        members = value["pretokenizers"] or [{}]
    splits = list(map(_read_split, members[:-1]))
    parts = [part for part, _ in splits]
    _check_members(
        members[-1],
        "the pre-tokenizer",
        type=("ByteLevel",),
        add_prefix_space=(False,),
        use_regex=_FLAG,
        trim_offsets=...,
    )
    if members[-1].get("use_regex") is not False:
        parts += GPT2.regex
    pattern = SPLIT_PATTERNS.get(tuple(parts))
    if pattern is None:
        raise NotRecognisedError(f"split pattern {_shown(parts[0] if len(parts) == 1 else parts)}")
    is_between = pattern.rest != OTHER  # a character may be part of no match
    if is_between and not all(keeps_all for _, keeps_all in splits):
        raise NotRecognisedError(
            f"a split that drops what is between the matches of {pattern.name}"
        )
    return pattern


def _read_split(value: Any) -> tuple[str, bool]:
    """Return its regular expression or DIGITS, and whether it keeps what is between the matches."""
    name = "a member of the pre-tokenizer"
    if value.get("type") == "Digits":
        _check_members(value, name, type=..., individual_digits=(True,))
        return DIGITS, True
    _check_members(
        value, name, type=("Split",), pattern=..., behavior=("Isolated", "Removed"), invert=_FLAG
    )
    _check_members(value["pattern"], "the split pattern", Regex=...)
    keeps_all = value["behavior"] == "Isolated"
    if keeps_all == bool(value.get("invert")):
        raise NotRecognisedError(
            f"behavior {value['behavior']} with invert {value.get('invert')} of the split"
        )
    return value["pattern"]["Regex"], keeps_all


def _read_model(value: Any, *, of_characters: bool) -> tuple[Vocabulary, bool]:
    """Return the vocabulary, and `ignore_merges`."""
    _check_members(
        value,
        "the model",
        type=("BPE", None),
        dropout=(None, 0.0),
        continuing_subword_prefix=(None, ""),
        end_of_word_suffix=(None, ""),
        byte_fallback=(True,) if of_characters else (False, None),
        ignore_merges=(False, None) if of_characters else _FLAG,
        unk_token=... if of_characters else (None,),  # every byte has a token
        fuse_unk=...,  # only matters where something is unknown
        vocab=...,
        merges=...,
    )
    read = read_character_vocabulary if of_characters else read_vocabulary
    return read(value["vocab"], value["merges"]), bool(value.get("ignore_merges"))


def _read_added_tokens(
    value: Any, split: SplitPattern | SpaceSigns, form: Form | None
) -> tuple[dict[str, dict[int, int]], tuple[str, ...], bool]:
    """Return `runs`, `added_tokens` and `leaves_documents` of the rules.

    What follows an added token gets a ▁ as the beginning of a document does. So where that is put
    before anything, newlines and tabs are tokens like all others.
    """
    runs: dict[str, dict[int, int]] = {}
    texts: list[str] = []
    flags_of_runs = set()
    has_signs = isinstance(split, SpaceSigns)
    leaves_documents = isinstance(split, SpaceSigns) and split.prepend != "never"
    repeated = [] if leaves_documents else [{"\n"}, {"\t"}] if has_signs else [{" "}]
    for token in value or []:
        flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), _FLAG)
        _check_members(
            token, "an added token", **dict.fromkeys(("content", "id", "special"), ...), **flags
        )
        content, is_normal = token["content"], token.get("normalized")
        is_odd = any(map(token.get, ("lstrip", "rstrip", "single_word"))) or (
            has_signs and is_normal is not False
        )
        if set(content) in repeated and not is_odd:
            runs.setdefault(content[0], {})[len(content)] = token["id"]
            flags_of_runs.add(is_normal)
            continue
        texts.append(content)
        if (
            not content
            or not is_normalized(form or "NFC", content)
            or (repeated and content.isspace())
        ):
            raise NotRecognisedError(
                f"added token {content!r}: empty, white space, or changed by the normal form"
            )
        if has_signs and is_normal is not False and (" " in content or SPACE_SIGN in content):
            raise NotRecognisedError(f"added token {content!r}: it is looked for among ▁")
        leaves_documents |= is_odd or SAFE_CUT.search(content.encode()) is not None
    for character, lengths in runs.items():
        first = 2 if character == " " else 1
        has_gaps = sorted(lengths) != list(range(first, first + len(lengths)))
        if (
            has_gaps
            or len(flags_of_runs) > 1
            or (character == " " and (split is not GPT2 or form == "NFKC"))
        ):
            raise NotRecognisedError(
                f"added tokens of {sorted(lengths)} spaces or line ends, and the form {form}"
            )
    return runs, tuple(texts), leaves_documents


_TO_SIGNS = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SIGN}
_PREPEND = {"type": "Prepend", "prepend": SPACE_SIGN}
_NO_SPACE_LEFT = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
_SCHEMES: dict[str, Prepend] = {
    "always": "unless there is one",
    "first": "unless there is one",
    "never": "never",
}


def _read_space_signs(normalizer: Any, pre_tokenizer: Any) -> SpaceSigns | None:
    """Return how spaces are treated, if they become ▁ and there is no split pattern."""
    if normalizer == _TO_SIGNS and pre_tokenizer in (None, _NO_SPACE_LEFT):
        return SpaceSigns("never")
    if (
        normalizer == {"type": "Sequence", "normalizers": [_PREPEND, _TO_SIGNS]}
        and pre_tokenizer is None
    ):
        return SpaceSigns("always")
    if pre_tokenizer and pre_tokenizer["type"] == "Metaspace" and normalizer is None:
        _check_members(
            pre_tokenizer,
            "the pre-tokenizer",
            type=...,
            replacement=(SPACE_SIGN,),
            prepend_scheme=tuple(_SCHEMES),
            split=(True, False),
        )
        return SpaceSigns(
            _SCHEMES[pre_tokenizer["prepend_scheme"]], each_apart=pre_tokenizer["split"]
        )
    return None
