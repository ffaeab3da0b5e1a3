"""The split patterns of published tokenizers, each as a few fields of data.

All of them cut text into runs of characters of one class. They differ in which classes there are,
in what a run takes along from before it (a plain space, any white space, one symbol), in what it
takes along from after it (newlines, contractions), and in where numbers and letters of two cases
are cut. `SplitPattern` has a field for each of these, and `splits` cuts text by them.

A tokenizer's pattern is recognised by its exact regular expressions: `SPLIT_PATTERNS` maps them to
the `SplitPattern` that cuts in the same way.
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
    """Rare text in which the class of a character depends on everything before it.

    Array operations cannot split such text, so the reference engine does: the tokenizers library.
    """

    hints: tuple[bytes, ...]
    """Byte strings, in UTF-8: all such text contains at least one of them. Quick to look for."""
    pattern: re.Pattern[bytes]
    """Matches in all such text. It may match in other text, which then costs time only."""

    def occurs_in(self, data: bytes) -> bool:
        r"""Return whether a text may have a rare sequence that our fast tokenizer cannot cut.

        A tokenizer cuts text into words. The fast one does so by the class of each character, such
        as letter and symbol. In rare cases, that is not enough. For example, in "\n/" followed by
        an accent, it depends on the text before the newline whether the accent is part of a word.
        Hugging Face's library then has to encode the text.

        Args:
            data: The text in UTF-8.

        Returns:
            False is certain. True may be wrong, which costs time only.
        """
        # Nearly all texts contain none of the hints, so that the slow pattern is not needed.
        has_hint = any(hint in data for hint in self.hints)
        return has_hint and self.pattern.search(data) is not None


NO_SPANS = ContextSpans((), re.compile(b"(?!)"))
"""No text at all."""

Prepend = Literal["never", "always", "unless there is one"]
"""When a ▁ is put before a document."""


@dataclass(frozen=True, slots=True)
class SpaceSigns:
    """How a tokenizer without a split pattern (SentencePiece's kind) treats spaces.

    Such tokenizers write a space as ▁. The engines do it the other way round: they replace every ▁
    by a space, which is one byte instead of three.
    """

    prepend: Prepend
    each_apart: bool = False
    """Whether every ▁ starts a piece. Otherwise only the first of several does."""

    @property
    def prepends(self) -> bool:
        """Whether a ▁ is put before documents, or before those that do not start with one."""
        return self.prepend != "never"

    def prepared(self, text: bytes) -> bytes:
        """Put a space before a document if the tokenizer does, and write each ▁ as a space.

        Some tokenizers write spaces as ▁, so that the two are the same for them. Here, a space
        stands for both. "a▁b" becomes, by `prepend`:

            "never"                  "a b"
            "always"                 " a b"
            "unless there is one"    " a b"     but " a" stays " a"

        Args:
            text: The document, or its beginning, in UTF-8.
        """
        text = text.replace(SPACE_SIGN.encode(), b" ")
        if not text or self.prepend == "never":
            return text
        if self.prepend == "unless there is one" and text.startswith(b" "):
            return text
        return b" " + text


Contractions = Literal["none", "exact", "any case", "suffix"]
"""How contractions (`'s`, `'t`, `'re` and so on) are cut.

Not at all; as pieces, in small letters only; as pieces, in letters of any case; or as the end of a
word, in letters of any case.
"""


@dataclass(frozen=True, slots=True)
class SplitPattern:
    """How text is cut into pre-tokens."""

    name: str
    """For logs."""
    classes: ClassRules
    """Which characters have which class."""
    rest: int = OTHER
    """Class of the characters to which no rule applies."""
    joins_any_space: bool = False
    """Whether letters are joined with any white space before them, and symbols with a plain space.
    Otherwise, everything is joined with a plain space only.
    """
    joins_symbols: bool = False
    """Whether letters are joined with a single symbol before them, as in "(word"."""
    joined_classes: tuple[tuple[int, int], ...] = ()
    """Pairs of classes: a character of the first one is joined with all of the second after it."""
    joins_ascii_symbols: bool = False
    """Whether ASCII letters are joined with a single ASCII symbol before them.

    Such a word ends where letters that are not ASCII begin.
    """
    newlines_end_symbols: bool = True
    """Whether symbols are joined with the newlines after them, if newlines are a class."""
    slashes_end_symbols: bool = False
    """Whether symbols are joined with slashes among the newlines after them, too."""
    contractions: Contractions = "none"
    max_digits: int = 0
    """Most digits in a number, 0 for any."""
    regex: tuple[str, ...] = ()
    """The pre-tokenizers that split in this way: regular expressions, or DIGITS."""
    context_spans: ContextSpans = NO_SPANS
    """Text that is left to the reference."""

    @property
    def has_newline_class(self) -> bool:
        """Whether newlines are a class: white space ends with its last newline."""
        return self._has_class(NEWLINE)

    @property
    def cuts_at_capitals(self) -> bool:
        """Whether words are cut before capital letters."""
        return self._has_class(UPPER)

    @property
    def number_class(self) -> int:
        """The class of the characters that `max_digits` counts."""
        return DIGIT if self._has_class(DIGIT) else NUMBER

    def _has_class(self, value: int) -> bool:
        return any(class_of_members == value for _, class_of_members in self.classes)


MARKS_AFTER_SLASHES = ContextSpans(
    (b"\n/", b"\r/"), re.compile(rb"[\r\n]/[^\sA-Za-z0-9]*[\xcc-\xf4]")
)
"""A combining mark among symbols, after a newline and a slash.

It concerns patterns whose runs of symbols end with `[\\r\\n/]*`. Whether the mark is part of a word
depends on whether the slash belongs to symbols before the newline.
"""

# Members of classes that most patterns have.
_LETTER_RULE = (r"\p{L}", LETTER)
_NUMBER_RULE = (r"\p{N}", NUMBER)
_SPACE_RULE = (r"\s", SPACE)
_NEWLINE_RULE = (r"\r\n", NEWLINE)

GPT2 = SplitPattern(
    name="gpt2",
    classes=(_LETTER_RULE, _NUMBER_RULE, _SPACE_RULE),
    contractions="exact",
    regex=(PATTERNS["gpt2"].regex,),
)
"""GPT-2, GPT-NeoX: the ByteLevel pre-tokenizer's own pattern."""

GPT2_DIGITS = replace(
    GPT2,
    name="gpt2 after digits",
    classes=(*GPT2.classes, (DIGITS, DIGIT)),
    max_digits=1,
    regex=(DIGITS, *GPT2.regex),
)
"""SmolLM, StarCoder2, Command-R: each digit is a piece, and GPT-2's pattern cuts the rest."""

GPT2_NUMBERS = replace(
    GPT2_DIGITS,
    name="gpt2 after numbers",
    classes=(*GPT2.classes, (r"\p{N}", DIGIT)),
    regex=(r"\p{N}", *GPT2.regex),
)
"""The same, if a regular expression and not the pre-tokenizer `Digits` cuts the digits out."""

LLAMA3 = SplitPattern(
    name="llama3",
    classes=(_LETTER_RULE, _NUMBER_RULE, _SPACE_RULE, _NEWLINE_RULE),
    joins_any_space=True,
    joins_symbols=True,
    contractions="any case",
    max_digits=3,
    regex=(PATTERNS["llama3"].regex,),
)
"""Llama-3, GPT-4 (cl100k), OLMo-2, Phi-4, GLM-4."""

QWEN2 = replace(LLAMA3, max_digits=1, regex=(PATTERNS["qwen2"].regex,))
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
    newlines_end_symbols=False,
    regex=(CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + TAIL,),
)
"""Seed-Coder, Seed-OSS."""

LLAMA3_NUMBERS = replace(
    LLAMA3,
    name="llama3 after numbers",
    classes=(_LETTER_RULE, (r"\p{N}", DIGIT), _SPACE_RULE, _NEWLINE_RULE),
    regex=(r"\p{N}{1,3}", CL100K % "+"),
)
"""MiniCPM5: numbers are cut out first."""

QWEN35 = replace(
    QWEN2,
    name="qwen3.5",
    classes=((r"\p{L}\p{M}", LETTER), _NUMBER_RULE, _SPACE_RULE, _NEWLINE_RULE),
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
        _NUMBER_RULE,
        _SPACE_RULE,
        _NEWLINE_RULE,
    ),
    contractions="suffix",
    slashes_end_symbols=True,
    regex=(PATTERNS["o200k"].regex,),
    context_spans=MARKS_AFTER_SLASHES,
)
"""GPT-4o, gpt-oss, Llama-4, MiniMax."""

TEKKEN = replace(
    O200K, name="tekken", contractions="none", max_digits=1, regex=(PATTERNS["tekken"].regex,)
)
"""Mistral-Nemo and later, Nemotron-H and later, Apertus."""

# In UTF-8, as regular expressions over bytes.
_HAN_NUMERAL = rb"\xe3\x80[\x87\xa1-\xa9\xb8-\xba]"  # 〇, 〡 to 〩, 〸 to 〺
_HAN_RADICAL = rb"\xe2[\xba-\xbf][\x80-\xbf]"
_HAN_MARK = rb"\xf0\x96\xbf[\xa2\xb0\xb1]"
_NOT_AFTER_HAN = (
    rb"(?<!\xe4[\xb8-\xbf][\x80-\xbf])"  # U+4E00 to U+4FFF
    rb"(?<![\xe5-\xe8][\x80-\xbf]{2})"  # U+5000 to U+8FFF
    rb"(?<!\xe9[\x80-\xbe][\x80-\xbf])"  # U+9000 to U+9FBF
    rb"(?<!%b)" % _HAN_NUMERAL
)
LONE_HAN_SIGNS = ContextSpans(
    hints=(
        b"\xe3\x80",  # numerals
        *(bytes([0xE2, second]) for second in range(0xBA, 0xC0)),  # radicals
        b"\xf0\x96\xbf",  # marks
    ),
    pattern=re.compile(_NOT_AFTER_HAN + rb"(?:%b|%b|%b)" % (_HAN_NUMERAL, _HAN_RADICAL, _HAN_MARK)),
)
"""Han numerals, radicals and marks that follow no ideograph, for Kimi's pattern.

Some of them are also numbers or symbols, so that a run of these before them may take them.
"""

_KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_REGEX = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TAIL}"
)
KIMI = replace(
    O200K,
    name="kimi",
    classes=(*O200K.classes, (r"\p{Han}", BARE)),
    slashes_end_symbols=False,
    regex=(_KIMI_REGEX,),
    context_spans=LONE_HAN_SIGNS,
)
"""Moonlight, Kimi-K2 and later: like GPT-4o, but runs of ideographs are pieces."""

_KANJI = "一-龥\u3040-ゟ゠-ヿ"  # and kana
# DeepSeek writes newlines as such, and not as \r and \n.
_DEEPSEEK_REST = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

DEEPSEEK = replace(
    LLAMA3,
    name="deepseek",
    classes=(
        (r"\p{L}\p{M}", LETTER),
        (r"\p{P}\p{S}", OTHER),
        _SPACE_RULE,
        _NEWLINE_RULE,
        (_KANJI, IDEOGRAPH_BARE),
        (rf"{_KANJI}&&[\p{{L}}\p{{M}}]", IDEOGRAPH),
        (rf"{_KANJI}&&[\p{{P}}\p{{S}}]", IDEOGRAPH_SIGN),
        (r"\p{N}", DIGIT),
    ),
    rest=BARE,
    joins_symbols=False,
    # Runs of Chinese and Japanese characters are cut out, and then split as all others are. They
    # have classes of their own here.
    joined_classes=((BARE, LETTER), (IDEOGRAPH_BARE, IDEOGRAPH)),
    joins_ascii_symbols=True,
    contractions="none",
    regex=(r"\p{N}{1,3}", f"[{_KANJI}]+", _DEEPSEEK_REST),
)
"""DeepSeek-V3 and later: numbers are cut out, then ideographs and kana; then the rest is cut."""

_PATTERNS = (
    GPT2,
    GPT2_DIGITS,
    GPT2_NUMBERS,
    LLAMA3,
    LLAMA3_NUMBERS,
    QWEN2,
    QWEN35,
    PLAIN,
    SEED,
    O200K,
    TEKKEN,
    KIMI,
    DEEPSEEK,
)

# Two tokenizers spell a pattern differently, and still cut in the same way: `\s*[\r\n]` without
# the `+` of TAIL takes all newlines, too, because `\s` matches newlines.
_TAIL_WITHOUT_PLUS = r"\s*[\r\n]|\s+(?!\S)|\s+"
_OLMO3_REGEX = (CL100K % "{1,3}").replace(TAIL, _TAIL_WITHOUT_PLUS)
_LING_REGEX = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
    + _TAIL_WITHOUT_PLUS
)

SPLIT_PATTERNS = {
    **{pattern.regex: pattern for pattern in _PATTERNS},
    (_OLMO3_REGEX,): LLAMA3,
    (_LING_REGEX,): QWEN2,
}
"""Patterns by the pre-tokenizers that cut text in this way: see `SplitPattern.regex`."""
