"""What a shuffled dataset will be, decided before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.config.webdataset import MemberKind, ShufflePreset
from nanoset_core.errors import ConfigError, FormatError, InputError, SampleIndexError, StaleError
from nanoset_core.shuffling.contexts import (
    TOKEN_DTYPES,
    ContextTable,
    SourceContexts,
    TokenSource,
    cut_contexts,
    source_json,
)
from nanoset_core.shuffling.members import MAX_INDEX, compressor_identity
from nanoset_core.shuffling.order import ranks
from nanoset_core.shuffling.sampling import frequencies_of_weights
from nanoset_core.shuffling.settings import PlanSettings

_VERSION = 2
_SETTINGS = (
    "sequence_length",
    "samples_per_shard",
    "seed",
    "member",
    "tail",
    "pad_id",
    "bos_id",
    "eod",
    "even",
    "preset",
)
"""Keys of plan.json that are settings, as they are."""


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Everything that decides the bytes of the shards, besides the tokens themselves."""

    table: ContextTable
    """The contexts, with counts per source."""
    samples_per_shard: int
    """Contexts in each shard but the last, which holds what is left; the most that a shard holds when `even`."""
    seed: int
    """Of the global order, 64 bits."""
    member: MemberKind
    """Form of a context within a shard."""
    dtype: str
    """Name of the integer dtype that holds every source's tokens; that of `npy` members."""
    eod: int | None
    """Token that ends each document in the sources, as far as known; recorded for readers."""
    compressor: str | None
    """Identity of the compressor of `json.gz` members; None for `npy`."""
    even: bool = False
    """Whether all shards hold equally many contexts, and the last few of the order are left out."""
    preset: ShufflePreset = "default"
    """Whose set of contexts this is; recorded for readers."""
    left_out_pad_tokens: int = 0
    """Pad tokens in the contexts that are left out."""

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
        """Contexts in each shard but the last, and in the last too when `even`."""
        return self.table.contexts // self.shards if self.even else self.samples_per_shard

    @property
    def contexts(self) -> int:
        """Contexts in all shards; the order is that of `table.contexts`, which can be a few more (`even`)."""
        return self.shards * self.shard_size if self.even else self.table.contexts

    @property
    def contexts_left_out(self) -> int:
        """Contexts, the last of the order, that no shard holds: fewer than there are shards, and 0 unless `even`."""
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
        """Ranks (begin, end excl) that a shard holds.

        Raises:
            SampleIndexError: the plan has no such shard.
        """
        if not 0 <= shard < self.shards:
            raise SampleIndexError(
                "no such shard in the plan",
                found=shard,
                expected=f"[0, {self.shards})",
                remedy="ask for a shard below plan.shards",
            )
        begin = shard * self.shard_size
        return begin, min(begin + self.shard_size, self.contexts)

    def shard_contexts(self, shard: int) -> NDArray[np.int64]:
        """Context numbers that a shard holds, in its order, int64, shape (samples,)."""
        return ranks(self.table.contexts, self.seed, *self.shard_ranks(shard))

    def check_sources(self, sources: Sequence[TokenSource]) -> None:
        """Compare names, order, token counts and dtype of sources with those that were planned.

        Raises:
            StaleError: they differ.
        """
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
        """Compare this machine's compressor with the one that was planned.

        Raises:
            StaleError: it would write other `json.gz` bytes.
        """
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
        """The plan that `to_json` gave.

        Raises:
            FormatError: anything else, a changed count included.
        """
        try:
            plan = _plan_from_json(value)
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


def _plan_from_json(value: Mapping[str, Any]) -> ShufflePlan:
    sources = [SourceContexts(**source) for source in value["sources"]]
    settings = PlanSettings(
        **{name: value[name] for name in _SETTINGS},
        streams={source.name: source.streams for source in sources if source.streams is not None},
        frequencies={source.name: source.frequency for source in sources},
    )
    dtype, compressor = value["dtype"], value["compressor"]
    if dtype not in TOKEN_DTYPES or (compressor is None) != (settings.member == "npy"):
        raise ValueError("dtype, member and compressor do not go together")
    table = cut_contexts([(source.name, source.tokens) for source in sources], settings)
    return replace(_assemble(table, dtype, settings, compressor), left_out_pad_tokens=value["left_out_pad_tokens"])


def plan_shuffle(sources: Sequence[TokenSource], settings: PlanSettings) -> ShufflePlan:
    """Plan the shards of these sources, in the order that numbers the contexts; reads no tokens.

    Raises:
        ConfigError, InputError: as `plan_lengths`.
    """
    return plan_lengths([(source.name, len(source.tokens)) for source in sources], _common_dtype(sources), settings)


def plan_lengths(lengths: Sequence[tuple[str, int]], dtype: str, settings: PlanSettings) -> ShufflePlan:
    """Plan the shards of sources of which only the sizes need be known.

    Args:
        lengths: name, unique, and tokens of each source, in the order that numbers the contexts.
        dtype: the integer dtype that holds the tokens of all of them.
        settings: everything else that decides the plan.

    Raises:
        ConfigError: settings that do not fit these sources, or more shards than names can count.
        InputError: the sources do not fill a single context.
    """
    table = cut_contexts(lengths, settings)
    if settings.weights is not None:
        table = cut_contexts(lengths, _by_frequency(table, settings, settings.weights))
    if not table.contexts:
        raise InputError(
            "the sources do not fill a single context",
            found=f"{list(lengths)}",
            expected=f"at least {settings.sequence_length} tokens in one source",
            remedy="add text, lower sequence_length, or pad tails (tail='pad')",
        )
    for name, token in (("pad_id", settings.pad_id), ("bos_id", settings.bos_id), ("eod", settings.eod)):
        _check_token(name, token, dtype, settings.vocab_size)
    plan = _assemble(table, dtype, settings, compressor_identity() if settings.member == "json.gz" else None)
    if max(plan.shards, plan.shard_size if plan.shards > 1 else plan.contexts) > MAX_INDEX + 1:
        raise ConfigError(
            "a member's name has eight digits for the shard and eight for the sample",
            where="samples_per_shard",
            found=f"{plan.shards} shards of {settings.samples_per_shard}",
            expected=f"at most {MAX_INDEX + 1} of each",
            remedy="choose a number of samples per shard between the two limits",
        )
    return replace(plan, left_out_pad_tokens=_left_out_pad_tokens(plan))


def _assemble(table: ContextTable, dtype: str, settings: PlanSettings, compressor: str | None) -> ShufflePlan:
    return ShufflePlan(
        table=table,
        samples_per_shard=settings.samples_per_shard,
        seed=settings.seed,
        member=settings.member,
        dtype=dtype,
        eod=settings.eod,
        compressor=compressor,
        even=settings.even,
        preset=settings.preset,
    )


def _by_frequency(table: ContextTable, settings: PlanSettings, weights: Mapping[str, float]) -> PlanSettings:
    """The settings with weights turned into frequencies, by the rows that one pass over each source gives."""
    rows = {source.name: source.rows for source in table.sources}
    if not set(weights) <= set(rows):
        raise ConfigError(
            "these weights are not valid",
            where="weights",
            found=", ".join(weights),
            expected=f"weights of {', '.join(rows)}",
            remedy="give weights to sources of this shuffle only",
        )
    frequencies = dict.fromkeys(rows, 0.0) | frequencies_of_weights(rows, dict(weights), settings.contexts)
    return replace(settings, weights=None, frequencies=frequencies)


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
