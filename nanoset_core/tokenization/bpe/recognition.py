"""Reads a `tokenizer.json` strictly: either every setting in it is understood, or the tokenizer is not recognised."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from unicodedata import is_normalized

import orjson

from nanoset_core.tokenization.bpe.rules import Rules, SplitRule, Vocabulary
from nanoset_core.tokenization.bpe.settings import NotRecognisedError, Settings, shown
from nanoset_core.tokenization.bpe.units import SAFE_CUT
from nanoset_core.tokenization.bpe.vocabulary import read_vocabulary

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
    """Read a `tokenizer.json`; raises OSError when it cannot be read, else whatever is wrong is a reason."""
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
    """Rules of a parsed `tokenizer.json`; raises NotRecognisedError."""
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


def _read_added_tokens(value: object, split: SplitRule) -> tuple[dict[int, int], tuple[bytes, ...]]:
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
