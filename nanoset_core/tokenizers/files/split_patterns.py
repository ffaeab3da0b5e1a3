"""Published split patterns by name: tiktoken's files of ranks do not contain their pattern.

A tokenizer splits text by its pattern before it merges bytes. Each pattern below splits text like
the one that the tokenizer was published with, but is written as the `tokenizers` library writes
it, so that the engines recognise it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
"""English contractions, the first alternative of most patterns."""

TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
"""White space, the last alternatives of most patterns."""

CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
"""A template: `%s` is the repetition of digits, such as `{1,3}` for up to three in one piece."""

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# A template for patterns that split words where lower case changes to upper case. The first two
# `%s` are the contraction that may follow a word, the last is the repetition of digits.
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    rf"|\p{{N}}%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MEGATRON_V1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_O200K = _CASED % (f"{CONTRACTION}?", f"{CONTRACTION}?", "{1,3}")
_TEKKEN = _CASED % ("", "", "")


@dataclass(frozen=True, slots=True)
class NamedPattern:
    """A split pattern, with the facts of the vocabulary that was published with it."""

    regex: str
    """As the `tokenizers` library reads it."""
    form: str | None = None
    """Unicode normal form that text is brought into before it is split."""
    ranks: int | None = None
    """Number of ranks in the published vocabulary, or None if it is not known."""
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Name → id of that vocabulary's special tokens."""


def _number_from(first_id: int, names: list[str]) -> dict[str, int]:
    """Give names consecutive ids."""
    return {name: token_id for token_id, name in enumerate(names, start=first_id)}


def _llama3_tokens() -> dict[str, int]:
    """Return the special tokens of Llama 3: name → id."""
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(251)]
    names = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        *reserved[:4],
        "<|start_header_id|>",
        "<|end_header_id|>",
        reserved[4],
        "<|eot_id|>",
        *reserved[5:],
    ]
    return _number_from(128000, names)


def _qwen_tokens() -> dict[str, int]:
    extra = [f"<|extra_{number}|>" for number in range(205)]
    return _number_from(151643, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *extra])


def _harmony_tokens() -> dict[str, int]:
    """Return the special tokens of o200k_harmony, the vocabulary of gpt-oss: name → id.

    Their order is that of the published vocabulary, and of each tokenizer.json that is made from
    it: do not sort them.
    """
    first_reserved_ids = [200000, 200001, 200004, 200009, 200010, 200011]
    last_reserved_ids = [token_id for token_id in range(200013, 201088) if token_id != 200018]
    return {
        "<|startoftext|>": 199998,
        "<|endoftext|>": 199999,
        **_reserved_tokens(first_reserved_ids),
        "<|return|>": 200002,
        "<|constrain|>": 200003,
        "<|channel|>": 200005,
        "<|start|>": 200006,
        "<|end|>": 200007,
        "<|message|>": 200008,
        "<|call|>": 200012,
        **_reserved_tokens(last_reserved_ids),
        "<|endofprompt|>": 200018,
    }


def _reserved_tokens(ids: Iterable[int]) -> dict[str, int]:
    """Return the special tokens of o200k_harmony that have no meaning yet: name → id.

    Args:
        ids: Their ids: 200000 for "<|reserved_200000|>".
    """
    return {f"<|reserved_{token_id}|>": token_id for token_id in ids}


_CL100K_TOKENS = {
    "<|endoftext|>": 100257,
    "<|fim_prefix|>": 100258,
    "<|fim_middle|>": 100259,
    "<|fim_suffix|>": 100260,
    "<|endofprompt|>": 100276,
}
_O200K_TOKENS = {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}

PATTERNS = {
    "gpt2": NamedPattern(_GPT2, None, 50256, {"<|endoftext|>": 50256}),
    "r50k": NamedPattern(_GPT2, None, 50256, {"<|endoftext|>": 50256}),
    "p50k": NamedPattern(_GPT2, None, 50280, {"<|endoftext|>": 50256}),
    "cl100k": NamedPattern(CL100K % "{1,3}", None, 100256, _CL100K_TOKENS),
    "o200k": NamedPattern(_O200K, None, 199998, _O200K_TOKENS),
    "o200k_harmony": NamedPattern(_O200K, None, 199998, _harmony_tokens()),
    "llama3": NamedPattern(CL100K % "{1,3}", None, 128000, _llama3_tokens()),
    "qwen2": NamedPattern(CL100K % "", "NFC", 151643, _qwen_tokens()),
    "tekken": NamedPattern(_TEKKEN),
    "v1": NamedPattern(_MEGATRON_V1),
    "v2": NamedPattern(_TEKKEN),
}
"""Pattern by the name that the setting `pattern` of nanoset.yaml takes."""

MEGATRON = ("v1", "v2")
"""Names that Megatron-LM's --tiktoken-pattern takes; they apply only to its JSON of ranks."""

BOUNDED_POSSESSIVE = re.compile(r"\{\d*,?\d*\}\+")
"""A repetition that the two libraries read differently, such as `{1,3}+`.

tiktoken's library takes it for a possessive repetition, and the `tokenizers` library for a repeated
one.
"""
