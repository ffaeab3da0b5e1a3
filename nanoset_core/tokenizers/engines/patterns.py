"""The split patterns of published tokenizers, each as a few lines of data.

All of them cut text into runs of one class of characters, and differ in which classes there are, in
what a run takes along from before it (a plain space, any white space, one symbol), in what follows
it (newlines, contractions), and in where numbers and letters of two cases are cut. Those are the
fields of `SplitPattern`, by which `splits` cuts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from nanoset_core.tokenizers.engines.classes import (
    BARE,
    DIGIT,
    DIGITS,
    IDEOGRAPH,
    IDEOGRAPH_BARE,
    IDEOGRAPH_SIGN,
    LETTER,
    LOWER,
    MARK,
    NEWLINE,
    NUMBER,
    OTHER,
    SPACE,
    UPPER,
    ClassRules,
)
from nanoset_core.tokenizers.files.sentencepiece import SPACE_SIGN
from nanoset_core.tokenizers.files.split_patterns import CL100K, CONTRACTION, PATTERNS, TAIL


@dataclass(frozen=True, slots=True)
class ContextSpans:
    """Rare text in which the class of a character depends on everything before it: left to the
    reference.
    """

    hints: tuple[bytes, ...]
    """One of these is in all such text, in UTF-8."""
    pattern: re.Pattern[bytes]
    """Matches in such text, and perhaps in other."""

    def __contains__(self, data: bytes) -> bool:
        """Tell whether a UTF-8 text may be such text."""
        return any(hint in data for hint in self.hints) and self.pattern.search(data) is not None


Prepend = Literal["never", "always", "unless there is one"]
"""When a ▁ goes before a document."""


@dataclass(frozen=True, slots=True)
class SpaceSigns:
    """How spaces are treated where there is no split pattern."""

    prepend: Prepend
    each_apart: bool = False
    """Whether every ▁ begins a piece, and not only the first of several."""

    def prepared(self, text: bytes) -> bytes:
        """Return the beginning of a document, UTF-8, with a space for each ▁."""
        text = text.replace(SPACE_SIGN.encode(), b" ")
        if (
            not text
            or self.prepend == "never"
            or (self.prepend != "always" and text.startswith(b" "))
        ):
            return text
        return b" " + text


NO_SPANS = ContextSpans((), re.compile(b"(?!)"))

Contractions = Literal["none", "exact", "any case", "suffix"]
"""`'s`, `'t`, `'re` … as pieces of their own, or at the end of a word (ignoring case)."""


@dataclass(frozen=True, slots=True)
class SplitPattern:
    """How text is cut into pre-tokens."""

    name: str
    classes: ClassRules
    """(members as in a regular expression's brackets, class): what a character is, the last that
    applies.
    """
    rest: int = OTHER
    """Class of the characters that are in none of these."""
    white_leads: bool = False
    """Letters are joined with any white space before them, symbols with a plain space; else all
    words with that.
    """
    leader: int | None = None
    """Letters are joined with one character of this class before them; of symbols only one that
    stands alone.
    """
    ascii_leader: bool = False
    """ASCII letters are joined with a lone ASCII symbol, and end where other letters begin."""
    newline_tail: bool = True
    """Symbols are joined with the newlines after them, if newlines are a class."""
    slash_tail: bool = False
    """Symbols are joined with slashes among the newlines after them."""
    contractions: Contractions = "none"
    digits: int = 0
    """Most digits in a number, 0 for any."""
    regex: tuple[str, ...] = ()
    """The pre-tokenizers that split in this way: regular expressions, or DIGITS."""
    context_spans: ContextSpans = NO_SPANS
    """Text that is left to the reference."""

    @property
    def newlines(self) -> bool:
        """Return whether white space ends with its last newline, and newlines follow symbols."""
        return any(value == NEWLINE for _, value in self.classes)

    @property
    def cased(self) -> bool:
        """Return whether words end before capital letters; what precedes a mark then makes it a
        letter or symbol.
        """
        return any(value == UPPER for _, value in self.classes)


MARKS_AFTER_SLASHES = ContextSpans(
    (b"\n/", b"\r/"), re.compile(rb"[\r\n]/[^\sA-Za-z0-9]*[\xcc-\xf4]")
)
"""A mark among symbols after a slash after a newline, where slashes are in tails and marks in
words.
"""

_WHITE, _NUMBER, _NEWLINE = (r"\s", SPACE), (r"\p{N}", NUMBER), (r"\r\n", NEWLINE)

GPT2 = SplitPattern(
    "gpt2",
    ((r"\p{L}", LETTER), _NUMBER, _WHITE),
    contractions="exact",
    regex=(PATTERNS["gpt2"].regex,),
)
"""GPT-2, GPT-NeoX: the ByteLevel pre-tokenizer's own pattern."""

GPT2_DIGITS = replace(
    GPT2,
    name="gpt2 after digits",
    classes=(*GPT2.classes, (DIGITS, DIGIT)),
    digits=1,
    regex=(DIGITS, *GPT2.regex),
)
"""SmolLM, StarCoder2, Command-R: each digit on its own, then GPT-2's pattern on what is between."""

GPT2_NUMBERS = replace(
    GPT2_DIGITS,
    name="gpt2 after numbers",
    classes=(*GPT2.classes, (r"\p{N}", DIGIT)),
    regex=(r"\p{N}", *GPT2.regex),
)
"""The same by a regular expression."""

LLAMA3 = SplitPattern(
    "llama3",
    ((r"\p{L}", LETTER), _NUMBER, _WHITE, _NEWLINE),
    white_leads=True,
    leader=OTHER,
    contractions="any case",
    digits=3,
    regex=(PATTERNS["llama3"].regex,),
)
"""Llama-3, GPT-4 (cl100k), OLMo-2, Phi-4, GLM-4."""

QWEN2 = replace(LLAMA3, digits=1, regex=(PATTERNS["qwen2"].regex,))
"""Qwen2, Qwen2.5, Qwen3, Hunyuan, Grok-2."""

PLAIN = replace(
    QWEN2,
    name="without contractions",
    contractions="none",
    regex=(QWEN2.regex[0].removeprefix(f"{CONTRACTION}|"),),
)
"""Megatron-LM's first pattern for tiktoken files."""

SEED = replace(
    QWEN2,
    name="seed",
    newline_tail=False,
    regex=(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + TAIL,),
)
"""Seed-Coder, Seed-OSS."""

LLAMA3_NUMBERS = replace(
    LLAMA3,
    name="llama3 after numbers",
    classes=((r"\p{L}", LETTER), (r"\p{N}", DIGIT), _WHITE, _NEWLINE),
    regex=(r"\p{N}{1,3}", CL100K % "+"),
)
"""MiniCPM5: numbers first."""

QWEN35 = replace(
    QWEN2,
    name="qwen3.5",
    classes=((r"\p{L}\p{M}", LETTER), _NUMBER, _WHITE, _NEWLINE),
    regex=(
        CONTRACTION
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
        + TAIL,
    ),
)

O200K = replace(
    LLAMA3,
    name="o200k",
    classes=(
        (r"\p{Lu}\p{Lt}", UPPER),
        (r"\p{Ll}", LOWER),
        (r"\p{Lm}\p{Lo}", LETTER),
        (r"\p{M}", MARK),
        _NUMBER,
        _WHITE,
        _NEWLINE,
    ),
    contractions="suffix",
    slash_tail=True,
    regex=(PATTERNS["o200k"].regex,),
    context_spans=MARKS_AFTER_SLASHES,
)
"""GPT-4o, gpt-oss, Llama-4, MiniMax."""

TEKKEN = replace(
    O200K, name="tekken", contractions="none", digits=1, regex=(PATTERNS["tekken"].regex,)
)
"""Mistral-Nemo and later, Nemotron-H and later, Apertus."""

_HAN_SIGN = rb"\xe3\x80[\x87\xa1-\xa9\xb8-\xba]"  # numerals, not counting those that are letters
LONE_HAN_SIGNS = ContextSpans(
    (b"\xe3\x80", *(bytes([0xE2, second]) for second in range(0xBA, 0xC0)), b"\xf0\x96\xbf"),
    re.compile(
        rb"(?<!\xe4[\xb8-\xbf][\x80-\xbf])(?<![\xe5-\xe8][\x80-\xbf]{2})(?<!\xe9[\x80-\xbe][\x80-\xbf])"
        rb"(?<!%b)(?:%b|\xe2[\xba-\xbf][\x80-\xbf]|\xf0\x96\xbf[\xa2\xb0\xb1])"
        % (_HAN_SIGN, _HAN_SIGN)
    ),
)
"""Han numerals, radicals and marks where no ideograph is before them: there, what is before may
take them as numbers or symbols."""

_HAN_CASED = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+%s?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*%s?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
)
KIMI = replace(
    O200K,
    name="kimi",
    classes=(*O200K.classes, (r"\p{Han}", BARE)),
    slash_tail=False,
    regex=(_HAN_CASED % (CONTRACTION, CONTRACTION) + TAIL,),
    context_spans=LONE_HAN_SIGNS,
)
"""Moonlight, Kimi-K2 and later: ideographs on their own, else as GPT-4o."""

_KANJI = "一-龥\u3040-ゟ゠-ヿ"

DEEPSEEK = replace(
    LLAMA3,
    name="deepseek",
    classes=(
        (r"\p{L}\p{M}", LETTER),
        (r"\p{P}\p{S}", OTHER),
        _WHITE,
        _NEWLINE,
        (_KANJI, IDEOGRAPH_BARE),
        (rf"{_KANJI}&&[\p{{L}}\p{{M}}]", IDEOGRAPH),
        (rf"{_KANJI}&&[\p{{P}}\p{{S}}]", IDEOGRAPH_SIGN),
        (r"\p{N}", DIGIT),
    ),
    rest=BARE,
    leader=BARE,
    ascii_leader=True,
    contractions="none",
    regex=(
        r"\p{N}{1,3}",
        f"[{_KANJI}]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ),
)
"""DeepSeek-V3 and later: numbers, then ideographs and kana, then the rest."""

_PATTERNS = (
    *(GPT2, GPT2_DIGITS, GPT2_NUMBERS, LLAMA3, LLAMA3_NUMBERS, QWEN2, QWEN35, PLAIN, SEED),
    *(O200K, TEKKEN, KIMI, DEEPSEEK),
)
_LAST_NEWLINE = r"\s*[\r\n]|\s+(?!\S)|\s+"  # white space to its last newline, as TAIL has it
_OTHER_SPELLINGS = {
    ((CL100K % "{1,3}").replace(TAIL, _LAST_NEWLINE),): LLAMA3,  # OLMo-3
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
        + _LAST_NEWLINE,
    ): QWEN2,  # Ling
}

SPLIT_PATTERNS = {pattern.regex: pattern for pattern in _PATTERNS} | _OTHER_SPELLINGS
"""By the pre-tokenizers that split in this way."""
