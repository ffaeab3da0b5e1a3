"""Split patterns by name: what tiktoken's ranks do not say of themselves.

Each gives the pieces of the pattern that the tokenizer was published with, as the `tokenizers`
library spells it, so that engines know it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
"""With a place for how many digits go together."""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
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
    """A published pre-tokenization pattern, with the normal form and special tokens that belong to
    it.
    """

    regex: str
    """As the `tokenizers` library reads it."""
    form: str | None = None
    """Unicode normal form of text before it is cut."""
    ranks: int | None = None
    """Ranks of the vocabulary that is published with it."""
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Those of that vocabulary."""


def _numbered(first: int, *names: str) -> dict[str, int]:
    return {name: first + number for number, name in enumerate(names)}


def _reserved(*numbers: int) -> list[str]:
    return [f"<|reserved_special_token_{number}|>" for number in range(*numbers)]


_LLAMA3_TOKENS = (
    *(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        *_reserved(4),
        "<|start_header_id|>",
        "<|end_header_id|>",
    ),
    *("<|reserved_special_token_4|>", "<|eot_id|>", *_reserved(5, 251)),
)
_QWEN_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|extra_{number}|>" for number in range(205)),
)
_CL100K_TOKENS = {
    **_numbered(100257, "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    "<|endofprompt|>": 100276,
}
_HARMONY_TOKENS = {
    **_numbered(199998, "<|startoftext|>", "<|endoftext|>"),
    **{
        f"<|reserved_{ident}|>": ident for ident in (200000, 200001, 200004, 200009, 200010, 200011)
    },
    **{"<|return|>": 200002, "<|constrain|>": 200003, "<|channel|>": 200005, "<|start|>": 200006},
    **{"<|end|>": 200007, "<|message|>": 200008, "<|call|>": 200012},
    **{f"<|reserved_{ident}|>": ident for ident in range(200013, 201088) if ident != 200018},
    "<|endofprompt|>": 200018,
}

PATTERNS = {
    "gpt2": NamedPattern(_GPT2, None, 50256, {"<|endoftext|>": 50256}),
    "r50k": NamedPattern(_GPT2, None, 50256, {"<|endoftext|>": 50256}),
    "p50k": NamedPattern(_GPT2, None, 50280, {"<|endoftext|>": 50256}),
    "cl100k": NamedPattern(CL100K % "{1,3}", None, 100256, _CL100K_TOKENS),
    "o200k": NamedPattern(
        _O200K, None, 199998, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    ),
    "o200k_harmony": NamedPattern(_O200K, None, 199998, _HARMONY_TOKENS),
    "llama3": NamedPattern(CL100K % "{1,3}", None, 128000, _numbered(128000, *_LLAMA3_TOKENS)),
    "qwen2": NamedPattern(CL100K % "", "NFC", 151643, _numbered(151643, *_QWEN_TOKENS)),
    "tekken": NamedPattern(_TEKKEN),
    "v1": NamedPattern(_MEGATRON_V1),
    "v2": NamedPattern(_TEKKEN),
}
"""By the name that `pattern:` takes."""

MEGATRON = ("v1", "v2")
"""Those that Megatron-LM's --tiktoken-pattern takes."""

BOUNDED_POSSESSIVE = re.compile(r"\{\d*,?\d*\}\+")
"""What tiktoken's library takes for a possessive repetition, and the `tokenizers` library for a
repeated one.
"""
