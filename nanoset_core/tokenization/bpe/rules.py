"""The rules of a tokenizer: read strictly from its `tokenizer.json`, or not at all, and kept for the next start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args
from unicodedata import is_normalized

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.characters import Prepend, SpaceSigns
from nanoset_core.tokenization.bpe.classes import DIGITS, probe_classes
from nanoset_core.tokenization.bpe.patterns import GPT2, NO_SPANS, SPLIT_PATTERNS, ContextSpans, SplitPattern
from nanoset_core.tokenization.bpe.reference import NotRecognisedError, ReferenceEngine
from nanoset_core.tokenization.bpe.units import SAFE_CUT, Form, cuts_are_safe, no_merge_crosses_cuts
from nanoset_core.tokenization.bpe.vocabulary import Vocabulary, read_character_vocabulary, read_vocabulary
from nanoset_core.tokenization.files.sentencepiece import SPACE_SIGN
from nanoset_core.tokenization.knowledge import Arrays, from_array, to_array


@dataclass(frozen=True, slots=True)
class Rules:
    """A tokenizer that the numpy engine understands."""

    split: SplitPattern | SpaceSigns
    form: Form | None
    """The form that text is normalised to first."""
    runs: dict[str, dict[int, int]]
    """Character → length → id of the added tokens that repeat it, of all lengths from 2 (spaces) or 1 to the longest:
    spaces for a split pattern, else newlines and tabs."""
    added_tokens: tuple[str, ...]
    """Text of the other tokens that are matched before any splitting."""
    whole_words: bool
    """Whether a pre-token that is in the vocabulary is one token, whatever the merges say."""
    vocabulary: Vocabulary
    classes: NDArray[np.uint8]
    """uint8, shape (0x110000,): class of every code point."""

    def to_arrays(self) -> Arrays:
        """Return all fields as arrays."""
        split = self.split.regex if isinstance(self.split, SplitPattern) else asdict(self.split)
        runs = {character: list(runs.items()) for character, runs in self.runs.items()}
        settings = to_array([split, self.form, runs, self.added_tokens, self.whole_words])
        arrays = {name: getattr(self.vocabulary, name) for name in _ARRAYS}
        return arrays | {"settings": settings, "classes": self.classes}

    @staticmethod
    def from_arrays(arrays: Arrays) -> Rules:
        """Return the rules whose `to_arrays` gave these."""
        split, form, runs, added_tokens, whole_words = from_array(arrays["settings"])
        return Rules(
            SpaceSigns(**split) if isinstance(split, dict) else SPLIT_PATTERNS[tuple(split)],
            form,
            {character: dict(lengths) for character, lengths in runs.items()},
            tuple(added_tokens),
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
        """Return the bytes of text that the engine leaves to the reference: zero, and those without a token."""
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
_HARMLESS_POST_PROCESSORS = ("ByteLevel", "RobertaProcessing", "BertProcessing")  # these add special tokens or nothing


def compile_tokenizer(content: Mapping[str, Any], reference: ReferenceEngine) -> Rules:
    """Return the rules of a parsed `tokenizer.json`, compared with what its library does.

    Raises:
        NotRecognisedError: The numpy engine does not understand the tokenizer, or the library's Unicode tables.
    """
    rules = read_rules(content)
    for character, runs in rules.runs.items():
        for length, ident in runs.items():
            found = reference.tokenizer.token_to_id(character * length)
            if found != ident:  # the library gives added tokens ids of its own
                raise NotRecognisedError(f"added token {character * length!r}: id {ident!r}, the library's is {found}")
    if not no_merge_crosses_cuts(rules.vocabulary.boundary_pairs):
        raise NotRecognisedError("tokens across places where text is cut")
    if not cuts_are_safe(rules.classes):
        raise NotRecognisedError("the library's Unicode tables are not as they should be")
    return rules


def read_rules(tokenizer: Any) -> Rules:
    """Return the rules of a parsed `tokenizer.json`; the library is asked for the classes of characters.

    Raises:
        NotRecognisedError: It holds a setting that the numpy engine does not know, or is no tokenizer.
    """
    anything = dict.fromkeys(("truncation", "padding", "decoder", "normalizer", "pre_tokenizer", "post_processor"), ...)
    try:
        _check_members(tokenizer, "the file", version=("1.0",), model=..., added_tokens=..., **anything)
        _check_post_processor(tokenizer.get("post_processor"))
        normalizer, pre_tokenizer = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
        signs = _read_space_signs(normalizer, pre_tokenizer)
        form = None if signs else _read_normalizer(normalizer)
        split = signs or _read_pre_tokenizer(pre_tokenizer)
        vocabulary, whole_words = _read_model(tokenizer.get("model"), of_characters=signs is not None)
        runs, texts = _read_added_tokens(tokenizer.get("added_tokens"), split, form)
        pattern = split if isinstance(split, SplitPattern) else GPT2  # then only cuts are checked by its classes
        classes = probe_classes(pattern.classes, pattern.rest)
        return Rules(split, form, runs, texts, whole_words, vocabulary, classes)
    except (KeyError, TypeError, AttributeError) as error:
        raise NotRecognisedError(f"not built like a tokenizer.json: {error!r}") from error


def _check_members(value: Any, name: str, **allowed: Any) -> None:
    """Refuse members of a JSON object that are not named, or have none of the values (`...` for any)."""
    if not isinstance(value, Mapping):
        raise NotRecognisedError(f"{name} is {_shown(value)}, not an object")
    for key, options in allowed.items():
        found = value.get(key)
        if options is not ... and not any(type(found) is type(option) and found == option for option in options):
            raise NotRecognisedError(f"{key} of {name} is {_shown(found)}")
    for key in value.keys() - allowed.keys():
        raise NotRecognisedError(f"unknown setting {key!r} in {name}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _check_post_processor(value: Any) -> None:
    """Refuse post-processors that change tokens even where special tokens are not asked for."""
    kind = None if value is None else value.get("type")
    if kind == "Sequence":
        for processor in value["processors"]:
            _check_post_processor(processor)
    elif kind == "TemplateProcessing":
        sequences = [piece["Sequence"]["id"] for piece in value["single"] if "Sequence" in piece]
        if sequences != ["A"]:
            raise NotRecognisedError(f"the post-processor's template takes {sequences}")
    elif value is not None and kind not in _HARMLESS_POST_PROCESSORS:
        raise NotRecognisedError(f"post-processor {_shown(kind)}")


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
    if isinstance(value, Mapping) and value.get("type") == "Sequence":
        _check_members(value, "the pre-tokenizer", type=..., pretokenizers=...)
        members = value["pretokenizers"]
    if not members:
        raise NotRecognisedError(f"pre-tokenizer {_shown(value)}")
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
    if not all(keeps_all or pattern.covers_all for _, keeps_all in splits):
        raise NotRecognisedError(f"a split that drops what is between the matches of {pattern.name}")
    return pattern


def _read_split(value: Any) -> tuple[str, bool]:
    """Return its regular expression or DIGITS, and whether it keeps what is between the matches."""
    name = "a member of the pre-tokenizer"
    if value.get("type") == "Digits":
        _check_members(value, name, type=..., individual_digits=(True,))
        return DIGITS, True
    _check_members(value, name, type=("Split",), pattern=..., behavior=("Isolated", "Removed"), invert=_FLAG)
    _check_members(value["pattern"], "the split pattern", Regex=...)
    keeps_all = value["behavior"] == "Isolated"
    if keeps_all == bool(value.get("invert")):
        raise NotRecognisedError(f"behavior {value['behavior']} with invert {value.get('invert')} of the split")
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
    vocabulary, merges = value.get("vocab"), value.get("merges")
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise NotRecognisedError("the model has no vocabulary or no merges")
    read = read_character_vocabulary if of_characters else read_vocabulary
    return read(vocabulary, merges), bool(value.get("ignore_merges"))


def _read_added_tokens(
    value: Any, split: SplitPattern | SpaceSigns, form: Form | None
) -> tuple[dict[str, dict[int, int]], tuple[str, ...]]:
    """Return `runs` and `added_tokens` of the rules.

    What follows an added token gets a ▁ as the beginning of a document does. So where that is put before anything, a
    document with an added token is left to the reference as a whole: newlines and tabs are like all others, and the
    tokens may have any flags.
    """
    runs: dict[str, dict[int, int]] = {}
    texts: list[str] = []
    flags_of_runs = set()
    repeated = [{" "}] if isinstance(split, SplitPattern) else [{"\n"}, {"\t"}]
    is_left_whole = isinstance(split, SpaceSigns) and split.prepend != "never"
    is_free = is_left_whole or isinstance(split, SplitPattern)
    for token in value or []:
        _check_members(
            token,
            "an added token",
            **dict.fromkeys(("content", "id", "special"), ...),
            **dict.fromkeys(("lstrip", "rstrip"), _FLAG if is_free else (False, None)),
            normalized=_FLAG if is_free else (False,),
            single_word=_FLAG if is_left_whole else (False, None),
        )
        content = token["content"]
        is_run = not is_left_whole and set(content) in repeated
        if (reason := _refusal(token, split, form, may_be_anywhere=is_run or is_left_whole)) is not None:
            raise NotRecognisedError(f"added token {content!r}: {reason}")
        if is_run:
            runs.setdefault(content[0], {})[len(content)] = token["id"]
            flags_of_runs.add(token.get("normalized"))
        else:
            texts.append(content)
    for character, lengths in runs.items():
        first = 2 if character == " " else 1
        has_gaps = sorted(lengths) != list(range(first, first + len(lengths)))
        if has_gaps or len(flags_of_runs) > 1 or (character == " " and (split is not GPT2 or form == "NFKC")):
            raise NotRecognisedError(f"added tokens of {sorted(lengths)} spaces or line ends, and the form {form}")
    return runs, tuple(texts)


def _refusal(token: Any, split: SplitPattern | SpaceSigns, form: Form | None, *, may_be_anywhere: bool) -> str | None:
    """Return why an added token is not understood."""
    content = token["content"]
    if not content or not is_normalized(form or "NFC", content):
        return "it is empty, or changed by the normal form"
    if isinstance(split, SplitPattern):
        strips = token.get("lstrip") or token.get("rstrip")
        if strips and (content.isspace() or not content.isascii() or content[-1].isalnum()):
            return "lstrip or rstrip"
    elif token.get("normalized") is not False and (" " in content or SPACE_SIGN in content):
        return "it is looked for among ▁"
    if not may_be_anywhere and (content.isspace() or SAFE_CUT.search(content.encode())):
        return "white space, at which text may be cut"
    return None


_TO_SIGNS = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SIGN}
_PREPEND = {"type": "Prepend", "prepend": SPACE_SIGN}
_NO_SPACE_LEFT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_SCHEMES: dict[str, Prepend] = {"always": "unless there is one", "first": "unless there is one", "never": "never"}


def _read_space_signs(normalizer: Any, pre_tokenizer: Any) -> SpaceSigns | None:
    """Return how spaces are treated, if they become ▁ and there is no split pattern."""
    if normalizer == _TO_SIGNS and pre_tokenizer in (None, _NO_SPACE_LEFT):
        return SpaceSigns("never")
    if normalizer == {"type": "Sequence", "normalizers": [_PREPEND, _TO_SIGNS]} and pre_tokenizer is None:
        return SpaceSigns("always")
    if isinstance(pre_tokenizer, Mapping) and pre_tokenizer.get("type") == "Metaspace" and normalizer is None:
        _check_members(
            pre_tokenizer,
            "the pre-tokenizer",
            type=...,
            replacement=(SPACE_SIGN,),
            prepend_scheme=tuple(_SCHEMES),
            split=(True, False),
        )
        return SpaceSigns(_SCHEMES[pre_tokenizer["prepend_scheme"]], each_apart=pre_tokenizer["split"])
    return None
