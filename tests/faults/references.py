"""What engines are held to: each kind of file's own library."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nanoset_core.tokenization.bpe.reference import Encoded, ReferenceEngine
from nanoset_core.tokenization.files import TokenizerFile, define
from nanoset_core.tokenization.files.split_patterns import PATTERNS

BATCH = 2_000
"""Texts that are encoded at once."""
Encode = Callable[[Sequence[str]], list[list[int]]]


class OwnLibrary:
    """The library that a tokenizer's files were made for, to which engines are held."""

    def __init__(self, source: TokenizerFile) -> None:
        own = _LIBRARIES.get(define(source).kind)
        self._encode = own(source) if own else None
        self._reference = None if own else ReferenceEngine(source)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents."""
        if self._reference is not None:
            return self._reference.encode(texts)
        ids = self._encode(texts)
        return Encoded(
            np.array([ident for one in ids for ident in one], np.int32), np.array([*map(len, ids)], np.int32)
        )


def _tiktoken(source: TokenizerFile) -> Encode:
    lines = (line.split() for line in source.path.read_bytes().splitlines())
    ranks = {base64.b64decode(word): int(rank) for word, rank in lines}
    pattern = PATTERNS[source.pattern or ""]
    return _encoding(pattern.regex, ranks, define(source).special_tokens, pattern.form)


def _megatron(source: TokenizerFile) -> Encode:
    count, size = source.num_special_tokens or 1000, source.vocab_size or 1 << 17
    entries = json.loads(source.path.read_bytes())[: size - count]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] + count for entry in entries}
    return _encoding(PATTERNS[source.pattern or "v2"].regex, ranks, define(source).special_tokens, None)


def _encoding(regex: str, ranks: dict[bytes, int], special: Mapping[str, int], form: Any) -> Encode:
    import tiktoken
    from tokenizers import normalizers

    encoding = tiktoken.Encoding("own", pat_str=regex, mergeable_ranks=ranks, special_tokens=dict(special))
    normalise = getattr(normalizers, form)().normalize_str if form else str  # Python's Unicode may be another
    return lambda texts: [encoding.encode(normalise(text), allowed_special="all") for text in texts]


def _tekken(source: TokenizerFile) -> Encode:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tokenizer = Tekkenizer.from_file(source.path)
    return lambda texts: [tokenizer.encode(text, bos=False, eos=False) for text in texts]


def _sentencepiece(source: TokenizerFile) -> Encode:
    from sentencepiece import SentencePieceProcessor

    return partial(SentencePieceProcessor(model_file=str(source.path)).encode, out_type=int, num_threads=1)


_LIBRARIES = {
    "tiktoken": _tiktoken,
    "tiktoken JSON": _megatron,
    "tekken.json": _tekken,
    "SentencePiece": _sentencepiece,
}
"""Of the other kinds it is the reference engine's."""
