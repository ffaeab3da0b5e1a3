"""The context table: how the token streams of several sources are cut into rows of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from nanoset_core.errors import ConfigError, SampleIndexError

Tail = Literal["drop", "pad"]

TOKEN_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


@dataclass(frozen=True, slots=True, eq=False)
class TokenSource:
    """One stream of tokens, usually the memory map of a merged dataset's ``.bin``."""

    name: str
    """Name of the corpus, unique within a plan."""
    tokens: np.ndarray
    """Flat, contiguous integer array, int or uint [tokens]; all documents one after the other."""

    def __post_init__(self) -> None:
        tokens = self.tokens
        if tokens.ndim != 1 or not tokens.flags.c_contiguous or tokens.dtype.name not in TOKEN_DTYPES:
            raise ConfigError(
                "the tokens of a source must be one flat, contiguous array of integers",
                where=f"source {self.name!r}",
                found=f"shape {tokens.shape}, dtype {tokens.dtype}, contiguous {tokens.flags.c_contiguous}",
                expected=f"shape (tokens,), dtype one of {', '.join(TOKEN_DTYPES)}",
                remedy="pass the flat memory map of a .bin",
            )


@dataclass(frozen=True, slots=True)
class SourceContexts:
    """What became of the tokens of one source: ``tokens == tokens_used + tokens_dropped``."""

    name: str
    """Name of the source."""
    tokens: int
    """Tokens in the source."""
    contexts: int
    """Contexts cut from it."""
    tokens_used: int
    """Tokens of the source that lie in a context."""
    tokens_dropped: int
    """Tokens at the end of the source that lie in none (below ``sequence_length``; 0 when padded)."""
    pad_tokens: int
    """Pad tokens added after the last token of the source (below ``sequence_length``; 0 when dropped)."""


@dataclass(frozen=True, slots=True)
class ContextTable:
    """Contexts of all sources, numbered in source order; rows are computed, never stored.

    Context ``first_contexts[i] + j`` holds tokens ``[j * sequence_length, (j + 1) * sequence_length)`` of source ``i``.
    """

    sequence_length: int
    """Tokens in a context, the full row: 2049 for a model that trains on 2048."""
    tail: Tail
    """What happens to the tokens after the last full context of a source."""
    pad_id: int | None
    """Token that fills the last context of a source; None when tails are dropped."""
    sources: tuple[SourceContexts, ...]
    """Counts per source, in the order that numbers the contexts."""

    @property
    def contexts(self) -> int:
        """Number of contexts of all sources."""
        return sum(source.contexts for source in self.sources)

    @property
    def first_contexts(self) -> np.ndarray:
        """int64[sources + 1]: number of the first context of each source; the last entry is the total."""
        counts = np.array([source.contexts for source in self.sources], dtype=np.int64)
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])

    def locate(self, contexts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Place of each context: (source number, first token within the source, real tokens), each int64[C].

        The length is ``sequence_length`` except in a padded last context. Raises SampleIndexError outside the table.
        """
        contexts = np.asarray(contexts, dtype=np.int64)
        first = self.first_contexts
        if contexts.size and (contexts.min() < 0 or contexts.max() >= first[-1]):
            raise SampleIndexError(
                "context number outside the table",
                found=f"[{contexts.min()}, {contexts.max()}]",
                expected=f"[0, {first[-1]})",
                remedy="take context numbers from the global order of this table",
            )
        source = np.searchsorted(first, contexts, side="right") - 1
        start = (contexts - first[source]) * self.sequence_length
        used = np.array([counts.tokens_used for counts in self.sources], dtype=np.int64)
        return source, start, np.minimum(used[source] - start, self.sequence_length)

    def pad_tokens(self, contexts: np.ndarray) -> int:
        """Pad tokens within these contexts, int64[C]."""
        _, _, length = self.locate(contexts)
        return int(length.size * self.sequence_length - length.sum())


def cut_contexts(
    sources: Sequence[tuple[str, int]], *, sequence_length: int, tail: Tail = "drop", pad_id: int | None = None
) -> ContextTable:
    """Context table of ``(name, tokens)`` pairs: each source is one stream across its documents, cut at every row.

    A source without tokens has no context under either tail. Raises ConfigError for arguments that cannot be.
    """
    if sequence_length < 1:
        raise ConfigError(
            "a context needs at least one token",
            where="sequence_length",
            found=sequence_length,
            expected=">= 1",
            remedy="give the length of a row, 2049 to train on 2048",
        )
    if tail not in get_args(Tail):
        raise ConfigError(
            "no such rule for tails",
            where="tail",
            found=repr(tail),
            expected="'drop' or 'pad'",
            remedy="choose one of the two",
        )
    if (tail == "pad") != (pad_id is not None):
        raise ConfigError(
            "a pad token goes with tail 'pad', and only with it",
            where="pad_id",
            found=f"tail {tail!r}, pad_id {pad_id}",
            expected="both or neither",
            remedy="give the tokenizer's pad token with tail='pad', or leave pad_id out with tail='drop'",
        )
    names = [name for name, _ in sources]
    if len(set(names)) != len(names):
        raise ConfigError(
            "two sources have the same name",
            where="sources",
            found=names,
            expected="unique names",
            remedy="name each source once",
        )
    counts = tuple(_cut_source(name, tokens, sequence_length, tail) for name, tokens in sources)
    return ContextTable(sequence_length, tail, pad_id, counts)


def _cut_source(name: str, tokens: int, sequence_length: int, tail: Tail) -> SourceContexts:
    full, rest = divmod(tokens, sequence_length)
    if tail == "pad" and rest:
        return SourceContexts(name, tokens, full + 1, tokens, 0, sequence_length - rest)
    return SourceContexts(name, tokens, full, tokens - rest, rest, 0)
