"""Megatron-LM's tiktoken JSON, as its TikTokenizer takes it: a list of tokens by rank."""

from __future__ import annotations

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.tokenization.files.content import Content
from nanoset_core.tokenization.files.ranks import (
    filled_up,
    first_ranks,
    ranks_content,
    read_entries,
    read_json,
    shifted,
)
from nanoset_core.tokenization.files.source import TokenizerFile
from nanoset_core.tokenization.files.split_patterns import MEGATRON, PATTERNS

_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
_SPECIAL, _VOCABULARY = 1000, 1 << 17


def read_ranks(source: TokenizerFile) -> Content:
    """Megatron-LM's TikTokenizer: the first ids are kept for special tokens, ranks come behind them.

    Raises:
        FormatError: the file is damaged, or holds fewer ranks than its vocabulary asks for.
        ConfigError: the pattern or the special tokens are none that Megatron-LM takes.
    """
    name = source.pattern or "v2"
    if name not in MEGATRON:
        raise ConfigError(
            "not a pattern that Megatron-LM's TikTokenizer takes",
            where=source,
            found=f"tokenizer.pattern (--tiktoken-pattern): {name!r}",
            expected=" or ".join(MEGATRON),
            remedy="name one of these; Megatron-LM's default is v2",
        )
    size = source.vocab_size or _VOCABULARY
    count = _SPECIAL if source.num_special_tokens is None else source.num_special_tokens
    names = _TOKENS if source.special_tokens is None else source.special_tokens
    if not len(names) <= count < size or len(set(names)) != len(names) or not set(_TOKENS) <= set(names):
        raise ConfigError(
            "special tokens that Megatron-LM's TikTokenizer refuses",
            where=source,
            found=f"{len(names):,} names, {count:,} ids kept for them, {size:,} ids in all: {' '.join(names[:10])}",
            expected=f"different names with {' '.join(_TOKENS)} among them, and room for all",
            remedy="name them so (--tokenizer-special-tokens), or raise --tiktoken-num-special-tokens",
        )
    words = first_ranks(read_entries(read_json(source), source, _error), size - count, source, _error)
    special = filled_up(names, count)
    return ranks_content(source, shifted(words, count), PATTERNS[name], special, vocab_size=size, eod="</s>")


def _error(where: object, what: str, found: object) -> FormatError:
    return FormatError(
        what,
        where=where,
        found=found,
        expected='Megatron-LM\'s [{"rank": 0, "token_bytes": "AA==", "token_str": …}, …], ranks in order, from 0 on, '
        "the bytes 0 to 255 first",
        remedy="fetch or write the file again, or lower --vocab-size where it holds fewer tokens than that",
    )
