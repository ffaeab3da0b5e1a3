"""Reads a `tokenizer.json` strictly: either every setting in it is understood, or the tokenizer is not recognised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args
from unicodedata import is_normalized

import orjson

from nanoset_core.tokenization.bpe.characters import Prepend, SpaceSigns
from nanoset_core.tokenization.bpe.classes import DIGITS
from nanoset_core.tokenization.bpe.patterns import GPT2, NO_SPANS, SPLIT_PATTERNS, ContextSpans, SplitPattern
from nanoset_core.tokenization.bpe.reference import NotRecognisedError
from nanoset_core.tokenization.bpe.units import SAFE_CUT, Form
from nanoset_core.tokenization.bpe.vocabulary import Vocabulary, read_character_vocabulary, read_vocabulary
from nanoset_core.tokenization.files import define
from nanoset_core.tokenization.files.sentencepiece import SPACE_SIGN


class Settings:
    """A JSON object of which every member must be understood."""

    def __init__(self, value: object, name: str) -> None:
        if not isinstance(value, Mapping):
            raise NotRecognisedError(f"{name} is {shown(value)}, not an object")
        self._left = dict(value)
        self._name = name

    def take(self, key: str, default: object = None) -> Any:
        """Return a member, for the caller to understand."""
        return self._left.pop(key, default)

    def expect(self, key: str, *allowed: object, default: object = None) -> None:
        """Refuse any other value of a member."""
        value = self.take(key, default)
        if not any(type(value) is type(option) and value == option for option in allowed):
            raise NotRecognisedError(f"{key} of {self._name} is {shown(value)}")

    def skip(self, *keys: str) -> None:
        """Accept members of any value."""
        for key in keys:
            self.take(key)

    def finish(self) -> None:
        """Refuse members that have not been taken."""
        if self._left:
            raise NotRecognisedError(f"unknown setting {next(iter(self._left))!r} in {self._name}")


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


@dataclass(frozen=True, slots=True)
class Rules:
    """A tokenizer that the numpy engine understands."""

    split: SplitPattern | SpaceSigns
    form: Form | None
    """The form that text is normalised to first."""
    space_runs: dict[int, int]
    """Length → id of added tokens of spaces; lengths 2, 3 … without a gap, or none."""
    literal_runs: dict[str, dict[int, int]]
    """The same of newlines and of tabs, by character, where there is no split pattern; lengths 1, 2 …"""
    added_tokens: tuple[bytes, ...]
    """UTF-8 text of the other tokens that are matched before any splitting."""
    normalized_tokens: tuple[bytes, ...]
    """Those of them that are looked for in normalised text, the others in the text as it is."""
    whole_words: bool
    """Whether a pre-token that is in the vocabulary is one token, whatever the merges say."""
    vocabulary: Vocabulary

    @property
    def context_spans(self) -> ContextSpans:
        """Text that the split pattern leaves to the reference."""
        return self.split.context_spans if isinstance(self.split, SplitPattern) else NO_SPANS

    @property
    def forbidden_bytes(self) -> bytes:
        """Bytes of text that the engine leaves to the reference: zero, and those without a token."""
        possible = [*range(1, 0xC0), *range(0xC2, 0xF5)]
        return bytes([0, *(byte for byte in possible if self.vocabulary.byte_tokens[byte] < 0)])

    @property
    def described(self) -> str:
        """How text is split, for logs."""
        if isinstance(self.split, SplitPattern):
            return f"{self.split.name} split pattern"
        return "SentencePiece's spaces and characters"


_HARMLESS_POST_PROCESSORS = ("ByteLevel", "RobertaProcessing", "BertProcessing")  # these add special tokens or nothing


def recognise(tokenizer_json: str | os.PathLike[str]) -> Rules:
    """Read the rules of a tokenizer's file.

    Raises:
        NotRecognisedError: It holds a setting that the numpy engine does not know, or is no tokenizer.
    """
    try:
        return read_rules(orjson.loads(define(tokenizer_json).json()))
    except orjson.JSONDecodeError as error:
        raise NotRecognisedError(f"not JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise NotRecognisedError(f"not built like a tokenizer.json: {error!r}") from error


def read_rules(tokenizer: object) -> Rules:
    """Return the rules of a parsed `tokenizer.json`; raises as `recognise`, and what a wrong structure gives."""
    settings = Settings(tokenizer, "the file")
    settings.expect("version", "1.0")
    settings.skip("truncation", "padding", "decoder")
    _check_post_processor(settings.take("post_processor"))
    normalizer, pre_tokenizer = settings.take("normalizer"), settings.take("pre_tokenizer")
    model, added_tokens = settings.take("model"), settings.take("added_tokens")
    settings.finish()
    if signs := _read_space_signs(normalizer, pre_tokenizer):
        literal_runs, texts = _read_literal_tokens(added_tokens, signs.prepend)
        return Rules(signs, None, {}, literal_runs, texts, (), False, _read_character_model(model))
    split, form = _read_pre_tokenizer(pre_tokenizer), _read_normalizer(normalizer)
    vocabulary, whole_words = _read_model(model)
    space_runs, raw, normalized = _read_added_tokens(added_tokens, split, form)
    return Rules(split, form, space_runs, {}, raw + normalized, normalized, whole_words, vocabulary)


def _check_post_processor(value: object) -> None:
    """Refuse post-processors that change tokens even where special tokens are not asked for."""
    if value is None:
        return
    settings = Settings(value, "the post-processor")
    kind = settings.take("type")
    if kind == "Sequence":
        for processor in settings.take("processors") or []:
            _check_post_processor(processor)
    elif kind == "TemplateProcessing":
        sequences = [piece["Sequence"]["id"] for piece in settings.take("single") or [] if "Sequence" in piece]
        if sequences != ["A"]:
            raise NotRecognisedError(f"the post-processor's template takes {sequences}")
    elif kind not in _HARMLESS_POST_PROCESSORS:
        raise NotRecognisedError(f"post-processor {shown(kind)}")


def _read_normalizer(value: object) -> Form | None:
    """Return NFC, NFKC or nothing; refuse all others."""
    if value is None:
        return None
    settings = Settings(value, "the normalizer")
    kind = settings.take("type")
    if kind == "Sequence":
        members = settings.take("normalizers")
        settings.finish()
        forms = [form for form in map(_read_normalizer, members) if form]
        return "NFKC" if "NFKC" in forms else "NFC" if forms else None
    if kind not in get_args(Form):
        raise NotRecognisedError(f"normalizer {shown(kind)}")
    settings.finish()
    form: Form = kind
    return form


def _read_pre_tokenizer(value: object) -> SplitPattern:
    """Read known splits and then ByteLevel, with its own pattern or without."""
    settings = Settings(value, "the pre-tokenizer")
    members = [value]
    if settings.take("type") == "Sequence":
        members = settings.take("pretokenizers")
        settings.finish()
    if not isinstance(members, list) or not members:
        raise NotRecognisedError(f"pre-tokenizer {shown(value)}")
    splits = [_read_split(member) for member in members[:-1]]
    parts = [part for part, _ in splits]
    if _read_byte_level(members[-1]):
        parts += GPT2.regex
    pattern = SPLIT_PATTERNS.get(tuple(parts))
    if pattern is None:
        raise NotRecognisedError(f"split pattern {shown(parts[0] if len(parts) == 1 else parts)}")
    if not all(keeps_all or pattern.covers_all for _, keeps_all in splits):
        raise NotRecognisedError(f"a split that drops what is between the matches of {pattern.name}")
    return pattern


def _read_byte_level(value: object) -> bool:
    """Tell whether it splits by GPT-2's pattern."""
    settings = Settings(value, "the pre-tokenizer")
    settings.expect("type", "ByteLevel")
    settings.expect("add_prefix_space", False, default=True)
    use_regex = settings.take("use_regex", True)
    settings.skip("trim_offsets")
    settings.finish()
    if not isinstance(use_regex, bool):
        raise NotRecognisedError(f"use_regex of the pre-tokenizer is {shown(use_regex)}")
    return use_regex


def _read_split(value: object) -> tuple[str, bool]:
    """Return its regular expression or DIGITS, and whether it keeps what is between the matches."""
    settings = Settings(value, "a member of the pre-tokenizer")
    kind = settings.take("type")
    if kind == "Digits":
        settings.expect("individual_digits", True)
        settings.finish()
        return DIGITS, True
    if kind != "Split":
        raise NotRecognisedError(f"pre-tokenizer {shown(kind)}")
    behavior, invert = settings.take("behavior"), settings.take("invert", False)
    pattern = Settings(settings.take("pattern"), "the split pattern")
    regex = pattern.take("Regex")
    pattern.finish()
    settings.finish()
    if (behavior, invert) not in (("Isolated", False), ("Removed", True)) or not isinstance(invert, bool):
        raise NotRecognisedError(f"behavior {shown(behavior)} with invert {shown(invert)} of the split")
    if not isinstance(regex, str):
        raise NotRecognisedError("a split by a String")
    return regex, behavior == "Isolated"


def _read_model(value: object) -> tuple[Vocabulary, bool]:
    """Return the vocabulary, and `ignore_merges`."""
    settings = Settings(value, "the model")
    settings.expect("unk_token", None)
    settings.expect("byte_fallback", False, default=False)
    whole_words = settings.take("ignore_merges", False)
    return read_vocabulary(*_read_bpe(settings)), bool(whole_words)


def _read_character_model(value: object) -> Vocabulary:
    settings = Settings(value, "the model")
    settings.skip("unk_token")  # every byte has a token
    settings.expect("byte_fallback", True)
    settings.expect("ignore_merges", False, default=False)
    return read_character_vocabulary(*_read_bpe(settings))


def _read_bpe(settings: Settings) -> tuple[dict[str, int], list[Any]]:
    """Return (vocabulary, merges) of a model; nothing else may be left in it."""
    settings.expect("type", "BPE", None)
    settings.expect("dropout", None, 0.0)
    settings.expect("continuing_subword_prefix", None, "")
    settings.expect("end_of_word_suffix", None, "")
    settings.skip("fuse_unk")  # only matters where something is unknown
    vocabulary, merges = settings.take("vocab"), settings.take("merges")
    settings.finish()
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise NotRecognisedError("the model has no vocabulary or no merges")
    return vocabulary, merges


def _read_added_tokens(
    value: Any, split: SplitPattern, form: Form | None
) -> tuple[dict[int, int], tuple[bytes, ...], tuple[bytes, ...]]:
    """Return (length → id of tokens of spaces, texts looked for in raw text, texts looked for in normalised text)."""
    runs: dict[int, int] = {}
    texts: dict[bool, list[bytes]] = {False: [], True: []}
    flags = set()
    for token in value or []:
        settings = Settings(token, "an added token")
        content, number = settings.take("content"), settings.take("id")
        normalized = settings.take("normalized", True)
        settings.expect("single_word", False, default=False)
        strips = [settings.take(flag, False) for flag in ("lstrip", "rstrip")]
        settings.skip("special")
        settings.finish()
        if not all(isinstance(flag, bool) for flag in (*strips, normalized)):
            raise NotRecognisedError(f"added token {shown(content)}: lstrip, rstrip, normalized {strips}, {normalized}")
        if not isinstance(content, str) or not content or not is_normalized(form or "NFC", content):
            raise NotRecognisedError(f"added token {content!r}")
        if any(strips) and (set(content) == {" "} or not content.isascii() or content[-1].isalnum()):
            raise NotRecognisedError(f"added token {content!r}: lstrip or rstrip")
        if set(content) == {" "}:
            runs[len(content)] = number
            flags.add(normalized)
        else:
            texts[normalized].append(_checked(content))
    if runs and (split is not GPT2 or sorted(runs) != list(range(2, len(runs) + 2)) or len(flags) > 1):
        raise NotRecognisedError(f"added tokens of {sorted(runs)} spaces")
    if runs and form == "NFKC":
        raise NotRecognisedError("added tokens of spaces, and NFKC, which makes spaces of other characters")
    return runs, tuple(texts[False]), tuple(texts[True])


def _checked(content: str) -> bytes:
    """Return the UTF-8 of an added token's text; refuse what could lie across a cut, or be in every line."""
    text = content.encode()
    if content.isspace() or SAFE_CUT.search(text):
        raise NotRecognisedError(f"added token {content!r}: white space")
    return text


_TO_SIGNS = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_SIGN}
_PREPEND = {"type": "Prepend", "prepend": SPACE_SIGN}
_NO_SPACE_LEFT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_SCHEMES: dict[str, Prepend] = {"always": "unless there is one", "first": "unless there is one", "never": "never"}


def _read_space_signs(normalizer: object, pre_tokenizer: object) -> SpaceSigns | None:
    """Return how spaces are treated, if they become ▁ and there is no split pattern."""
    if normalizer == _TO_SIGNS and pre_tokenizer in (None, _NO_SPACE_LEFT):
        return SpaceSigns("never")
    if normalizer == {"type": "Sequence", "normalizers": [_PREPEND, _TO_SIGNS]} and pre_tokenizer is None:
        return SpaceSigns("always")
    if isinstance(pre_tokenizer, Mapping) and pre_tokenizer.get("type") == "Metaspace" and normalizer is None:
        settings = Settings(pre_tokenizer, "the pre-tokenizer")
        settings.skip("type")
        settings.expect("replacement", SPACE_SIGN)
        settings.expect("prepend_scheme", *_SCHEMES)
        settings.expect("split", True, False)
        settings.finish()
        return SpaceSigns(_SCHEMES[pre_tokenizer["prepend_scheme"]], each_apart=pre_tokenizer["split"])
    return None


def _read_literal_tokens(value: Any, prepend: Prepend) -> tuple[dict[str, dict[int, int]], tuple[bytes, ...]]:
    """Return (length → id of tokens of newlines and of tabs, all others), which are matched before normalising.

    What follows an added token gets a ▁ as the beginning of a document does. So where that is put before anything, a
    document with an added token is left to the reference as a whole: newlines and tabs are like all others, and the
    tokens may have any flags.
    """
    runs: dict[str, dict[int, int]] = {}
    texts: list[bytes] = []
    allowed = (False,) if prepend == "never" else (False, True)
    for token in value or []:
        settings = Settings(token, "an added token")
        content, number = settings.take("content"), settings.take("id")
        normalized = settings.take("normalized", True)
        for flag in ("single_word", "lstrip", "rstrip"):
            settings.expect(flag, *allowed, default=False)
        settings.skip("special")
        settings.finish()
        if not isinstance(content, str) or not content or normalized not in allowed:
            raise NotRecognisedError(f"added token {content!r}")
        if normalized and (" " in content or SPACE_SIGN in content):
            raise NotRecognisedError(f"added token {content!r} is looked for among ▁")
        if set(content) not in ({"\n"}, {"\t"}):
            texts.append(_checked(content))
        elif prepend == "never":
            runs.setdefault(content[0], {})[len(content)] = number
        else:
            texts.append(content.encode())
    for character, lengths in runs.items():
        if sorted(lengths) != list(range(1, len(lengths) + 1)):
            raise NotRecognisedError(f"added tokens of {sorted(lengths)} times {character!r}")
    return runs, tuple(texts)
