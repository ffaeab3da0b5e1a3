"""What a shuffled dataset will be, decided before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from nanoset_core.errors import ConfigError, FormatError, InputError, SampleIndexError, StaleError
from nanoset_core.shuffling.contexts import (
    TOKEN_DTYPES,
    ContextTable,
    SourceContexts,
    Tail,
    TokenSource,
    cut_contexts,
    source_json,
)
from nanoset_core.shuffling.members import MAX_INDEX, MemberKind, check_kind, compressor_identity
from nanoset_core.shuffling.order import check_seed, ranks
from nanoset_core.shuffling.sampling import frequencies_of_weights

Preset = Literal["default", "tokshuf"]

_VERSION = 2
_STORED = ("samples_per_shard", "seed", "member", "dtype", "eod", "compressor", "even", "preset", "left_out_pad_tokens")


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Everything that decides the bytes of the shards, besides the tokens themselves."""

    table: ContextTable
    """The contexts, with counts per source."""
    samples_per_shard: int
    """Contexts in each shard but the last, which holds what is left; the most that a shard holds when ``even``."""
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
    even: bool = False
    """Whether all shards hold equally many contexts, and the last few of the order are left out."""
    preset: Preset = "default"
    """Whose set of contexts this is; recorded for readers."""
    left_out_pad_tokens: int = 0
    """Pad tokens in the contexts that are left out."""

    def __post_init__(self) -> None:
        check_kind(self.member)
        check_seed(self.seed)
        if self.preset not in get_args(Preset):
            raise ConfigError(
                "no such preset",
                where="preset",
                found=repr(self.preset),
                expected=" or ".join(get_args(Preset)),
                remedy="choose one of them",
            )
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
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.table.contexts // self.samples_per_shard)

    @property
    def shard_size(self) -> int:
        """Contexts in each shard but the last, and in the last too when ``even``."""
        return self.table.contexts // self.shards if self.even else self.samples_per_shard

    @property
    def contexts(self) -> int:
        """Contexts in all shards; the order is that of ``table.contexts``, which can be a few more (``even``)."""
        return self.shards * self.shard_size if self.even else self.table.contexts

    @property
    def contexts_left_out(self) -> int:
        """Contexts, the last of the order, that no shard holds: fewer than there are shards, and 0 unless ``even``."""
        return self.table.contexts - self.contexts

    @property
    def tokens(self) -> int:
        """Tokens of the sources in the shards, repetitions counted, without padding and the contexts' BOS."""
        return self.contexts * self.table.row_tokens - self.pad_tokens

    @property
    def tokens_dropped(self) -> int:
        """Tokens of the sources that lie in no row."""
        return sum(source.tokens_dropped for source in self.table.sources)

    @property
    def tokens_left_out(self) -> int:
        """Tokens of the sources in the contexts that are left out."""
        return self.contexts_left_out * self.table.row_tokens - self.left_out_pad_tokens

    @property
    def pad_tokens(self) -> int:
        """Pad tokens in the shards."""
        return sum(source.pad_tokens for source in self.table.sources) - self.left_out_pad_tokens

    def shard_ranks(self, shard: int) -> tuple[int, int]:
        """Ranks (begin, end excl) that a shard holds. Raises SampleIndexError for a shard that is not in the plan."""
        if not 0 <= shard < self.shards:
            raise SampleIndexError(
                "no such shard in the plan",
                found=shard,
                expected=f"[0, {self.shards})",
                remedy="ask for a shard below plan.shards",
            )
        begin = shard * self.shard_size
        return begin, min(begin + self.shard_size, self.contexts)

    def shard_contexts(self, shard: int) -> np.ndarray:
        """Context numbers that a shard holds, in its order, int64[samples]."""
        return ranks(self.table.contexts, self.seed, *self.shard_ranks(shard))

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
            "preset": self.preset,
            "tail": self.table.tail,
            "pad_id": self.table.pad_id,
            "bos_id": self.table.bos_id,
            "eod": self.eod,
            "samples_per_shard": self.samples_per_shard,
            "even": self.even,
            "seed": self.seed,
            "member": self.member,
            "dtype": self.dtype,
            "compressor": self.compressor,
            "contexts": self.contexts,
            "contexts_left_out": self.contexts_left_out,
            "shards": self.shards,
            "tokens": self.tokens,
            "tokens_dropped": self.tokens_dropped,
            "tokens_left_out": self.tokens_left_out,
            "pad_tokens": self.pad_tokens,
            "left_out_pad_tokens": self.left_out_pad_tokens,
            "sources": [source_json(source) for source in self.table.sources],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShufflePlan:
        """The plan that ``to_json`` gave. Raises FormatError for anything else, a changed count included."""
        try:
            plan = cls(_table_from_json(value), **{name: value[name] for name in _STORED})
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


def _table_from_json(value: Mapping[str, Any]) -> ContextTable:
    sources = [SourceContexts(**source) for source in value["sources"]]
    return cut_contexts(
        [(source.name, source.tokens) for source in sources],
        sequence_length=value["sequence_length"],
        tail=value["tail"],
        pad_id=value["pad_id"],
        bos_id=value["bos_id"],
        streams={source.name: source.streams for source in sources if source.streams is not None},
        frequencies={source.name: source.frequency for source in sources},
        seed=check_seed(value["seed"]),
    )


def plan_shuffle(sources: Sequence[TokenSource], **settings: Any) -> ShufflePlan:
    """Plan the shards of these sources, in the order that numbers the contexts; reads no tokens.

    For the settings, and what is raised, see `plan_lengths`.
    """
    return plan_lengths([(source.name, len(source.tokens)) for source in sources], _common_dtype(sources), **settings)


def plan_lengths(
    lengths: Sequence[tuple[str, int]],
    dtype: str,
    *,
    sequence_length: int,
    samples_per_shard: int,
    seed: int,
    member: MemberKind = "json.gz",
    tail: Tail = "drop",
    pad_id: int | None = None,
    bos_id: int | None = None,
    eod: int | None = None,
    vocab_size: int | None = None,
    streams: Mapping[str, Sequence[int]] | None = None,
    frequencies: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    contexts: int | None = None,
    even: bool = False,
    preset: Preset = "default",
) -> ShufflePlan:
    """Plan the shards of sources of which only the sizes need be known.

    Args:
        lengths: name, unique, and tokens of each source, in the order that numbers the contexts.
        dtype: the integer dtype that holds the tokens of all of them.
        sequence_length: tokens in a context (a model that trains on 2048 needs 2049).
        samples_per_shard: contexts in a shard, the last may hold fewer.
        seed: of the global order and of the choice of contexts, 0 <= seed < 2^64.
        member: ``json.gz`` (OpenLM) or ``npy``.
        tail: what happens to the tokens after a stream's last full row: see `cut_contexts`.
        pad_id: the pad token, with the tails that pad only.
        bos_id: token in front of every context, as the first of its ``sequence_length``; None = none.
        eod: the token that ends documents, recorded for readers; nothing is added to the streams.
        vocab_size: where given, ``pad_id``, ``bos_id`` and ``eod`` must lie below it.
        streams: name -> tokens of each stream of a source, such as its files, to cut them on their own.
        frequencies: name -> how often each context of a source occurs: 1 where absent, 0.5 half of them, 2 each twice.
        weights: name -> share of the contexts, instead of frequencies; sources without one are left out.
        contexts: with weights, how many in all; None: as many as repeat no source.
        even: equal shards of at most ``samples_per_shard``: fewer contexts than there are shards are left out.
        preset: whose set of contexts this is, recorded for readers.

    Raises ConfigError for settings that cannot be, InputError when the sources do not fill a single context.
    """
    cut: dict[str, Any] = {"sequence_length": sequence_length, "tail": tail, "pad_id": pad_id, "bos_id": bos_id}
    cut |= {"streams": streams, "seed": check_seed(seed)}
    table = cut_contexts(lengths, frequencies=frequencies, **cut)
    if weights is not None:
        table = cut_contexts(lengths, frequencies=_weighted(table, weights, contexts, frequencies), **cut)
    if not table.contexts:
        raise InputError(
            "the sources do not fill a single context",
            found=f"{list(lengths)}",
            expected=f"at least {sequence_length} tokens in one source",
            remedy="add text, lower sequence_length, or pad tails (tail='pad')",
        )
    check_kind(member)
    for name, token in (("pad_id", pad_id), ("bos_id", bos_id), ("eod", eod)):
        _check_token(name, token, dtype, vocab_size)
    compressor = compressor_identity() if member == "json.gz" else None
    plan = ShufflePlan(table, samples_per_shard, seed, member, dtype, eod, compressor, even, preset)
    if max(plan.shards, plan.shard_size if plan.shards > 1 else plan.contexts) > MAX_INDEX + 1:
        raise ConfigError(
            "a member's name has eight digits for the shard and eight for the sample",
            where="samples_per_shard",
            found=f"{plan.shards} shards of {samples_per_shard}",
            expected=f"at most {MAX_INDEX + 1} of each",
            remedy="choose a number of samples per shard between the two limits",
        )
    return replace(plan, left_out_pad_tokens=_left_out_pad_tokens(plan))


def _weighted(
    table: ContextTable, weights: Mapping[str, float], contexts: int | None, frequencies: Mapping[str, float] | None
) -> dict[str, float]:
    names = [source.name for source in table.sources]
    if frequencies is not None or not weights or not set(weights) <= set(names) or min(weights.values()) <= 0:
        raise ConfigError(
            "weights that cannot be",
            where="weights",
            found=f"{dict(weights)}" + (" beside frequencies" if frequencies is not None else ""),
            expected=f"numbers above 0 for some of {', '.join(names)}, and no frequencies",
            remedy="correct them",
        )
    given = frequencies_of_weights({source.name: source.rows for source in table.sources}, dict(weights), contexts)
    return dict.fromkeys(names, 0.0) | given


def _left_out_pad_tokens(plan: ShufflePlan) -> int:
    if not plan.contexts_left_out or plan.table.pad_id is None:
        return 0
    return plan.table.pad_tokens(ranks(plan.table.contexts, plan.seed, plan.contexts, plan.table.contexts))


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
