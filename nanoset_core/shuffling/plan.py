"""What a shuffled dataset will be, decided before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, FormatError, InputError, SampleIndexError, StaleError
from nanoset_core.shuffling.contexts import TOKEN_DTYPES, ContextTable, SourceContexts, Tail, TokenSource, cut_contexts
from nanoset_core.shuffling.members import MAX_INDEX, MemberKind, check_kind, compressor_identity
from nanoset_core.shuffling.order import check_seed, ranks

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Everything that decides the bytes of the shards, besides the tokens themselves."""

    table: ContextTable
    """The contexts, with counts per source."""
    samples_per_shard: int
    """Contexts in each shard but the last, which holds what is left."""
    seed: int
    """Of the global order, 64 bits."""
    member: MemberKind
    """Form of a context within a shard."""
    dtype: str
    """Name of the integer dtype that holds every source's tokens; that of ``npy`` members."""
    eod: int | None
    """Token that ends each document in the sources, as far as known; recorded for readers."""
    compressor: str | None
    """Identity of the compressor of ``json.gz`` members; None for ``npy``."""

    def __post_init__(self) -> None:
        check_kind(self.member)
        check_seed(self.seed)
        if self.samples_per_shard < 1:
            raise ConfigError(
                "a shard needs at least one context",
                where="samples_per_shard",
                found=self.samples_per_shard,
                expected=">= 1",
                remedy="8192 is usual",
            )
        if self.dtype not in TOKEN_DTYPES or (self.compressor is None) != (self.member == "npy"):
            raise ConfigError(
                "settings of a plan that do not go together",
                found=f"dtype {self.dtype!r}, member {self.member!r}, compressor {self.compressor!r}",
                expected="an integer dtype, and a compressor with 'json.gz' only",
                remedy="let plan_shuffle make the plan",
            )

    @property
    def sequence_length(self) -> int:
        """Tokens in a context."""
        return self.table.sequence_length

    @property
    def contexts(self) -> int:
        """Contexts in all shards."""
        return self.table.contexts

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.contexts // self.samples_per_shard)

    @property
    def tokens(self) -> int:
        """Tokens of the sources that lie in a context, without padding."""
        return sum(source.tokens_used for source in self.table.sources)

    @property
    def tokens_dropped(self) -> int:
        """Tokens of the sources that lie in no context."""
        return sum(source.tokens_dropped for source in self.table.sources)

    @property
    def pad_tokens(self) -> int:
        """Pad tokens in all contexts."""
        return sum(source.pad_tokens for source in self.table.sources)

    def shard_ranks(self, shard: int) -> tuple[int, int]:
        """Ranks (begin, end excl) that a shard holds. Raises SampleIndexError for a shard that is not in the plan."""
        if not 0 <= shard < self.shards:
            raise SampleIndexError(
                "no such shard in the plan",
                found=shard,
                expected=f"[0, {self.shards})",
                remedy="ask for a shard below plan.shards",
            )
        begin = shard * self.samples_per_shard
        return begin, min(begin + self.samples_per_shard, self.contexts)

    def shard_contexts(self, shard: int) -> np.ndarray:
        """Context numbers that a shard holds, in its order, int64[samples]."""
        return ranks(self.contexts, self.seed, *self.shard_ranks(shard))

    def check_sources(self, sources: Sequence[TokenSource]) -> None:
        """Raises StaleError unless these sources have the names, order, token counts and dtype that were planned."""
        planned = [(source.name, source.tokens) for source in self.table.sources]
        given = [(source.name, len(source.tokens)) for source in sources]
        if planned != given or _common_dtype(sources) != self.dtype:
            raise StaleError(
                "the sources are not those of the plan",
                found=f"{given}, {_common_dtype(sources)}",
                expected=f"{planned}, {self.dtype}",
                remedy="plan the shuffle again",
            )

    def check_compressor(self) -> None:
        """Raises StaleError where this machine would write other ``json.gz`` bytes than the plan's."""
        if self.compressor is not None and self.compressor != compressor_identity():
            raise StaleError(
                "this machine's compressor writes other bytes than the plan's",
                found=compressor_identity(),
                expected=self.compressor,
                remedy="install the planned version, plan the shuffle again, or use member 'npy'",
            )

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values, counts included."""
        return {
            "version": _VERSION,
            "sequence_length": self.sequence_length,
            "tail": self.table.tail,
            "pad_id": self.table.pad_id,
            "eod": self.eod,
            "samples_per_shard": self.samples_per_shard,
            "seed": self.seed,
            "member": self.member,
            "dtype": self.dtype,
            "compressor": self.compressor,
            "contexts": self.contexts,
            "shards": self.shards,
            "tokens": self.tokens,
            "tokens_dropped": self.tokens_dropped,
            "pad_tokens": self.pad_tokens,
            "sources": [asdict(source) for source in self.table.sources],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShufflePlan:
        """The plan that ``to_json`` gave. Raises FormatError for anything else, a changed count included."""
        try:
            sources = tuple(SourceContexts(**source) for source in value["sources"])
            table = cut_contexts(
                [(source.name, source.tokens) for source in sources],
                sequence_length=value["sequence_length"],
                tail=value["tail"],
                pad_id=value["pad_id"],
            )
            names = ("samples_per_shard", "seed", "member", "dtype", "eod", "compressor")
            plan = cls(table, **{name: value[name] for name in names})
            if plan.to_json() != value:
                raise ValueError("its counts do not follow from its settings")
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise FormatError(
                "not a shuffle plan",
                found=repr(error),
                expected=f"what ShufflePlan.to_json gives, version {_VERSION}",
                remedy="plan the shuffle again",
            ) from error
        return plan


def plan_shuffle(
    sources: Sequence[TokenSource],
    *,
    sequence_length: int,
    samples_per_shard: int,
    seed: int,
    member: MemberKind = "json.gz",
    tail: Tail = "drop",
    pad_id: int | None = None,
    eod: int | None = None,
    vocab_size: int | None = None,
) -> ShufflePlan:
    """Plan the shards of these sources; reads no tokens.

    Args:
        sources: token streams, in the order that numbers the contexts; names unique.
        sequence_length: tokens in a context (a model that trains on 2048 needs 2049).
        samples_per_shard: contexts in a shard, the last may hold fewer.
        seed: of the global order, 0 <= seed < 2^64.
        member: ``json.gz`` (OpenLM) or ``npy``.
        tail: what happens to the tokens after a source's last full context: ``drop`` or ``pad``.
        pad_id: the pad token, with tail ``pad`` only.
        eod: the token that ends documents, recorded for readers; nothing is added to the streams.
        vocab_size: where given, ``pad_id`` and ``eod`` must lie below it.

    Raises ConfigError for settings that cannot be, InputError when the sources do not fill a single context.
    """
    lengths = [(source.name, len(source.tokens)) for source in sources]
    table = cut_contexts(lengths, sequence_length=sequence_length, tail=tail, pad_id=pad_id)
    if not table.contexts:
        raise InputError(
            "the sources do not fill a single context",
            found=f"{lengths}",
            expected=f"at least {sequence_length} tokens in one source",
            remedy="add text, lower sequence_length, or pad tails (tail='pad')",
        )
    check_kind(member)
    dtype = _common_dtype(sources)
    for name, token in (("pad_id", pad_id), ("eod", eod)):
        _check_token(name, token, dtype, vocab_size)
    compressor = compressor_identity() if member == "json.gz" else None
    plan = ShufflePlan(table, samples_per_shard, check_seed(seed), member, dtype, eod, compressor)
    if max(plan.shards, min(samples_per_shard, plan.contexts)) > MAX_INDEX + 1:
        raise ConfigError(
            "a member's name has eight digits for the shard and eight for the sample",
            where="samples_per_shard",
            found=f"{plan.shards} shards of {samples_per_shard}",
            expected=f"at most {MAX_INDEX + 1} of each",
            remedy="choose a number of samples per shard between the two limits",
        )
    return plan


def _common_dtype(sources: Sequence[TokenSource]) -> str:
    return np.result_type(*(source.tokens.dtype for source in sources)).name if sources else ""


def _check_token(name: str, token: int | None, dtype: str, vocab_size: int | None) -> None:
    if token is None:
        return
    limit = int(np.iinfo(dtype).max) + 1
    if vocab_size is not None:
        limit = min(limit, vocab_size)
    if not 0 <= token < limit:
        raise ConfigError(
            "a token that the tokenizer or the token width does not have",
            where=name,
            found=token,
            expected=f"0 <= {name} < {limit}",
            remedy="take the id from the tokenizer that made the tokens",
        )
