"""Byte-level BPE as ranks: what .tiktoken, Megatron-LM's tiktoken JSON and tekken.json have in common.

tiktoken's library takes a piece that has a rank as one token, and else merges, again and again, the first of the two
neighbours that together have the least rank. The same in merges: every pair of tokens that makes a token, in the order
of the ranks of what they make, and whole pieces first (`ignore_merges`).
"""

from __future__ import annotations

from collections.abc import Mapping

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.tokenization.files.content import (
    NEVER_IN_TEXT,
    Content,
    added_token,
    bpe,
    byte_characters,
    byte_level,
    tokenizer_json,
)
from nanoset_core.tokenization.files.source import TokenizerFile
from nanoset_core.tokenization.files.split_patterns import BOUNDED_POSSESSIVE, NamedPattern

_WRITE_BYTES = str.maketrans(dict(enumerate(byte_characters())))


def ranks_content(
    source: TokenizerFile,
    words: Mapping[bytes, int],
    pattern: NamedPattern,
    special: Mapping[str, int],
    *,
    vocab_size: int,
    eod: str | None = None,
    from_text: bool = True,
    notice: str = "",
) -> Content:
    """Make a tokenizer of ranks; `from_text`: whether special tokens that stand in text become themselves."""
    vocabulary = {word.decode("latin-1").translate(_WRITE_BYTES): ident for word, ident in words.items()}
    merges = _merges(vocabulary)
    for name, ident in special.items():
        if from_text and name in vocabulary:
            raise FormatError(
                "a special token has the text of an ordinary one",
                where=source,
                found=repr(name),
                expected="special tokens that have no rank",
                remedy="name another special token (tokenizer.special_tokens)",
            )
        vocabulary[name if from_text else NEVER_IN_TEXT + name] = ident
    ends = ("<|endoftext|>", "<|end_of_text|>")
    split = {"type": "Split", "pattern": {"Regex": pattern.regex}, "behavior": "Isolated", "invert": False}
    added = special.items() if from_text else ()
    return Content(
        json=tokenizer_json(
            added_tokens=[added_token(name, ident, normalized=pattern.form is not None) for name, ident in added],
            normalizer={"type": pattern.form} if pattern.form else None,
            pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level(use_regex=False)]},
            decoder=byte_level(use_regex=True),
            model=bpe(vocabulary, merges, ignore_merges=True),
        ),
        meaning={
            "regex": pattern.regex,
            "form": pattern.form,
            "special_tokens": sorted(special.items(), key=lambda item: item[1]),
            "vocab_size": vocab_size,
        },
        vocab_size=vocab_size,
        max_id=max(vocabulary.values()),
        special_tokens=dict(special),
        eod=eod or next((name for name in ends if name in special), None),
        notice=notice,
    )


def _merges(vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """List every two tokens that make a third, in order of its rank."""
    rank_of = vocabulary.get
    found = []
    for word, rank in vocabulary.items():
        for cut in range(1, len(word)):
            left = rank_of(word[:cut])
            if left is not None and (right := rank_of(word[cut:])) is not None:
                found.append((rank, left, right, word[:cut], word[cut:]))
    found.sort()
    return [pair[3:] for pair in found]


def check_regex(regex: str, source: TokenizerFile) -> None:
    """Refuse a split pattern that the tokenizers library cannot read, or reads in another way than tiktoken's."""
    from tokenizers import Regex

    if (found := BOUNDED_POSSESSIVE.search(regex)) is not None:
        raise ConfigError(
            "the split pattern holds what the tokenizers library reads in another way than tiktoken's",
            where=source,
            found=f"{found.group()!r}, in character {found.start()} of {regex!r}",
            expected="a possessive repetition written as an atomic group, such as (?>\\p{N}{1,3})",
            remedy="write it so; or leave its + out, where what follows cannot match the same characters",
        )
    try:
        Regex(regex)
    except Exception as error:
        raise ConfigError(
            "the split pattern is no regular expression",
            where=source,
            found=f"{regex!r}: {error}",
            expected="a regular expression as tiktoken has, or the name of one",
            remedy="correct the pattern",
        ) from error
