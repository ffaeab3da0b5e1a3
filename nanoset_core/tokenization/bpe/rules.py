"""Reads a `tokenizer.json` strictly: either every setting in it is understood, or the tokenizer is not recognised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

import orjson

from nanoset_core.tokenization.bpe.units import SAFE_CUT
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError, Vocabulary, read_vocabulary


class Settings:
    """A JSON object of which every member must be understood."""

    def __init__(self, value: object, name: str) -> None:
        if not isinstance(value, Mapping):
            raise NotRecognisedError(f"{name} is {shown(value)}, not an object")
        self._left = dict(value)
        self._name = name

    def take(self, key: str, default: object = None) -> Any:
        """A member, for the caller to understand."""
        return self._left.pop(key, default)

    def expect(self, key: str, *allowed: object, default: object = None) -> None:
        """Refuse any other value of a member."""
        value = self.take(key, default)
        if not any(type(value) is type(option) and value == option for option in allowed):
            raise NotRecognisedError(f"{key} of {self._name} is {shown(value)}")

    def skip(self, *keys: str) -> None:
        """Members that may be anything."""
        for key in keys:
            self.take(key)

    def finish(self) -> None:
        """Refuse what has not been taken."""
        if self._left:
            raise NotRecognisedError(f"unknown setting {next(iter(self._left))!r} in {self._name}")


def shown(value: object) -> str:
    """A value for a message, not too long."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How text is cut into pre-tokens."""

    pattern: str
    """"gpt2" or "llama3"."""
    digits: int = 0
    """Most digits in a piece under "llama3"."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A tokenizer that the numpy engine understands."""

    split: SplitRule
    nfc: bool
    """Whether text is normalised to NFC first."""
    space_runs: dict[int, int]
    """Tokens of that many spaces, matched before any splitting; lengths 2, 3 … without a gap, or none."""
    added_tokens: tuple[bytes, ...]
    """UTF-8 text of the other tokens that are matched before any splitting."""
    whole_words: bool
    """Whether a pre-token that is in the vocabulary is one token, whatever the merges say."""
    vocabulary: Vocabulary

    @property
    def forbidden_bytes(self) -> bytes:
        """Bytes that text may hold and the engine leaves to the reference: zero, and those without a token."""
        possible = [*range(1, 0xC0), *range(0xC2, 0xF5)]
        return bytes([0, *(byte for byte in possible if self.vocabulary.byte_tokens[byte] < 0)])


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT_PATTERNS = {
    _GPT2: SplitRule("gpt2"),
    _LLAMA3 % "{1,3}": SplitRule("llama3", digits=3),
    _LLAMA3 % "": SplitRule("llama3", digits=1),  # Qwen2
}
"""The regular expressions that the numpy engine knows how to split by."""

_HARMLESS_POST_PROCESSORS = ("ByteLevel", "RobertaProcessing", "BertProcessing")  # these add special tokens or nothing


@dataclass(frozen=True, slots=True)
class Recognition:
    """Whether the numpy engine understands a tokenizer."""

    rules: Rules | None
    """What it understood, None when anything is left."""
    reason: str
    """Which split pattern it is, or why it was not recognised."""


def recognise(tokenizer_json: str | os.PathLike[str]) -> Recognition:
    """Read a `tokenizer.json`; whatever is wrong with its content is a reason, and no error."""
    try:
        rules = read_rules(orjson.loads(Path(tokenizer_json).read_bytes()))
    except NotRecognisedError as error:
        return Recognition(None, str(error))
    except orjson.JSONDecodeError as error:
        return Recognition(None, f"not JSON: {error}")
    except (KeyError, TypeError, AttributeError) as error:
        return Recognition(None, f"not built like a tokenizer.json: {error!r}")
    return Recognition(rules, f"{rules.split.pattern} split pattern")


def read_rules(tokenizer: object) -> Rules:
    """Rules of a parsed `tokenizer.json`.

    Raises:
        NotRecognisedError: it holds a setting that the numpy engine does not know.
    """
    settings = Settings(tokenizer, "the file")
    settings.expect("version", "1.0")
    settings.skip("truncation", "padding", "decoder")
    _check_post_processor(settings.take("post_processor"))
    split = _read_pre_tokenizer(settings.take("pre_tokenizer"))
    nfc = _read_normalizer(settings.take("normalizer"))
    vocabulary, whole_words = _read_model(settings.take("model"))
    space_runs, added_tokens = _read_added_tokens(settings.take("added_tokens"), split)
    settings.finish()
    return Rules(split, nfc, space_runs, added_tokens, whole_words, vocabulary)


def _check_post_processor(value: object) -> None:
    """Accept post-processors that change no token when special tokens are not asked for."""
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


def _read_normalizer(value: object) -> bool:
    """Whether it is NFC; none at all is the only other choice."""
    if value is None:
        return False
    settings = Settings(value, "the normalizer")
    kind = settings.take("type")
    if kind == "Sequence":
        members = settings.take("normalizers")
        settings.finish()
        return any([_read_normalizer(member) for member in members])
    if kind != "NFC":
        raise NotRecognisedError(f"normalizer {shown(kind)}")
    settings.finish()
    return True


def _read_pre_tokenizer(value: object) -> SplitRule:
    """ByteLevel with its own pattern, or Split by a known pattern and then ByteLevel without."""
    settings = Settings(value, "the pre-tokenizer")
    kind = settings.take("type")
    members = [value]
    if kind == "Sequence":
        members = settings.take("pretokenizers")
        settings.finish()
    if not isinstance(members, list) or not 1 <= len(members) <= 2:
        raise NotRecognisedError(f"pre-tokenizer {shown(value)}")
    _check_byte_level(members[-1], use_regex=len(members) == 1)
    return SPLIT_PATTERNS[_GPT2] if len(members) == 1 else _read_split(members[0])


def _check_byte_level(value: object, *, use_regex: bool) -> None:
    settings = Settings(value, "the pre-tokenizer")
    settings.expect("type", "ByteLevel")
    settings.expect("add_prefix_space", False, default=True)
    settings.expect("use_regex", use_regex, default=True)
    settings.skip("trim_offsets")
    settings.finish()


def _read_split(value: object) -> SplitRule:
    settings = Settings(value, "the pre-tokenizer's first member")
    settings.expect("type", "Split")
    settings.expect("behavior", "Isolated")
    settings.expect("invert", False, default=False)
    pattern = Settings(settings.take("pattern"), "the split pattern")
    regex = pattern.take("Regex")
    pattern.finish()
    settings.finish()
    if regex not in SPLIT_PATTERNS:
        raise NotRecognisedError(f"split pattern {shown(regex)}")
    return SPLIT_PATTERNS[regex]


def _read_model(value: object) -> tuple[Vocabulary, bool]:
    """The vocabulary, and `ignore_merges`."""
    settings = Settings(value, "the model")
    settings.expect("type", "BPE", None)
    settings.expect("dropout", None, 0.0)
    settings.expect("unk_token", None)
    settings.expect("continuing_subword_prefix", None, "")
    settings.expect("end_of_word_suffix", None, "")
    settings.expect("byte_fallback", False, default=False)
    settings.skip("fuse_unk")  # only matters with an unk_token
    whole_words = settings.take("ignore_merges", False)
    vocabulary, merges = settings.take("vocab"), settings.take("merges")
    settings.finish()
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise NotRecognisedError("the model has no vocabulary or no merges")
    return read_vocabulary(vocabulary, merges), bool(whole_words)


def _read_added_tokens(value: Any, split: SplitRule) -> tuple[dict[int, int], tuple[bytes, ...]]:
    """(length to id of tokens of spaces, text of all others)."""
    runs: dict[int, int] = {}
    texts: list[bytes] = []
    flags = set()
    for token in value or []:
        settings = Settings(token, "an added token")
        content, ident = settings.take("content"), settings.take("id")
        normalized = settings.take("normalized", True)
        for flag in ("single_word", "lstrip", "rstrip"):
            settings.expect(flag, False, default=False)
        settings.skip("special")
        settings.finish()
        if not isinstance(content, str) or not content or not is_normalized("NFC", content):
            raise NotRecognisedError(f"added token {content!r}")
        if set(content) == {" "}:
            runs[len(content)] = ident
            flags.add(normalized)
        else:
            texts.append(_checked(content))
    if runs and (split.pattern != "gpt2" or sorted(runs) != list(range(2, len(runs) + 2)) or len(flags) > 1):
        raise NotRecognisedError(f"added tokens of {sorted(runs)} spaces")
    return runs, tuple(texts)


def _checked(content: str) -> bytes:
    """UTF-8 of an added token's text; refuses what could lie across a cut, or be in every line."""
    text = content.encode()
    if content.isspace() or SAFE_CUT.search(text):
        raise NotRecognisedError(f"added token {content!r}: white space")
    return text
