"""Plan a shuffled dataset: which context goes where, decided before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, InputError, SampleIndexError, StaleError
from nanoset_core.formats.tars.members import compressor_identity
from nanoset_core.stages.webdataset.contexts import ContextTable, SourceContexts
from nanoset_core.stages.webdataset.order import frequencies_of_weights, ranks
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TOKEN_DTYPES, TokenSource, common_dtype

_VERSION = 2
_SETTINGS = (
    *("sequence_length", "preset", "tail", "pad_id", "bos_id", "eod"),
    *("samples_per_shard", "even", "seed", "member"),
)
"""Keys of plan.json that are settings."""
_FACTS = (
    *("dtype", "compressor", "contexts", "contexts_left_out", "shards", "tokens"),
    *("tokens_dropped", "tokens_left_out", "pad_tokens", "left_out_pad_tokens"),
)
"""Keys of plan.json that follow from settings and sources."""


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Everything that decides the bytes of the shards, besides the tokens themselves."""

    settings: PlanSettings
    table: ContextTable
    """The contexts, with counts per source."""
    dtype: str
    """Name of the integer dtype that holds every source's tokens; that of `npy` members."""
    compressor: str | None
    """Identity of the compressor of `json.gz` members; None for `npy`."""
    left_out_pad_tokens: int = 0
    """Pad tokens in the contexts that are left out."""

    @property
    def sequence_length(self) -> int:
        """Tokens in a context."""
        return self.settings.sequence_length

    @property
    def row_bytes(self) -> int:
        """Bytes of one context's tokens."""
        return self.sequence_length * np.dtype(self.dtype).itemsize

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.table.contexts // self.settings.samples_per_shard)

    @property
    def shard_size(self) -> int:
        """Contexts in each shard but the last, and in the last too when `even`."""
        return self.table.contexts // self.shards if self.settings.even else self.settings.samples_per_shard

    @property
    def contexts(self) -> int:
        """Contexts in all shards; the order is that of `table.contexts`, which can be a few more (`even`)."""
        return self.shards * self.shard_size if self.settings.even else self.table.contexts

    @property
    def contexts_left_out(self) -> int:
        """Contexts, the last of the order, that no shard holds: fewer than there are shards, and 0 unless `even`."""
        return self.table.contexts - self.contexts

    @property
    def tokens(self) -> int:
        """Tokens of the sources in the shards, repetitions counted, without padding and the contexts' BOS."""
        return self.contexts * self.settings.row_tokens - self.pad_tokens

    @property
    def tokens_dropped(self) -> int:
        """Tokens of the sources that are in no row."""
        return sum(source.tokens_dropped for source in self.table.sources)

    @property
    def tokens_left_out(self) -> int:
        """Tokens of the sources in the contexts that are left out."""
        return self.contexts_left_out * self.settings.row_tokens - self.left_out_pad_tokens

    @property
    def pad_tokens(self) -> int:
        """Pad tokens in the shards."""
        return sum(source.pad_tokens for source in self.table.sources) - self.left_out_pad_tokens

    def shard_ranks(self, shard: int) -> tuple[int, int]:
        """Return the ranks (begin, end excl) that a shard holds; raise SampleIndexError where there is none."""
        if not 0 <= shard < self.shards:
            raise SampleIndexError("no such shard in the plan", found=shard, expected=f"[0, {self.shards})")
        begin = shard * self.shard_size
        return begin, min(begin + self.shard_size, self.contexts)

    def shard_contexts(self, shard: int) -> NDArray[np.int64]:
        """Return the context numbers that a shard holds, in its order, int64, shape (samples,)."""
        return ranks(self.table.contexts, self.settings.seed, *self.shard_ranks(shard))

    def check_sources(self, sources: Sequence[TokenSource]) -> None:
        """Raise StaleError where names, order, token counts or dtype of sources are not those that were planned."""
        planned = [(source.name, source.tokens) for source in self.table.sources], self.dtype
        given = [(source.name, source.count) for source in sources], common_dtype(sources)
        if planned != given:
            what, remedy = "the sources are not those of the plan", "plan the shuffle again"
            raise StaleError(what, found=given, expected=planned, remedy=remedy)

    def check_compressor(self) -> None:
        """Raise StaleError where this machine's compressor would write other bytes than the one that was planned."""
        if self.compressor not in (None, compressor_identity()):
            what = "this machine's compressor writes other bytes than the plan's"
            remedy = "install the planned version, plan the shuffle again, or use member 'npy'"
            raise StaleError(what, found=compressor_identity(), expected=self.compressor, remedy=remedy)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values, counts included."""
        return {
            "version": _VERSION,
            **{name: getattr(self.settings, name) for name in _SETTINGS},
            **{name: getattr(self, name) for name in _FACTS},
            "sources": [source.to_json() for source in self.table.sources],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShufflePlan:
        """Return the plan that `to_json` gave; raise FormatError for anything else, a changed count included."""
        try:
            sources = [SourceContexts(**source) for source in value["sources"]]
            settings = PlanSettings(
                **{name: value[name] for name in _SETTINGS},
                streams={source.name: source.streams for source in sources if source.streams is not None},
                frequencies={source.name: source.frequency for source in sources},
            )
            if value["dtype"] not in TOKEN_DTYPES or (value["compressor"] is None) != (settings.member == "npy"):
                raise ValueError("dtype, member and compressor do not go together")
            table = ContextTable([(source.name, source.tokens) for source in sources], settings)
            plan = cls(settings, table, value["dtype"], value["compressor"], value["left_out_pad_tokens"])
            if plan.to_json() != value:
                raise ValueError("its counts do not follow from its settings")
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            expected, remedy = f"what ShufflePlan.to_json gives, version {_VERSION}", "plan the shuffle again"
            raise FormatError("not a shuffle plan", found=repr(error), expected=expected, remedy=remedy) from error
        return plan


def plan_shuffle(sources: Sequence[TokenSource], settings: PlanSettings) -> ShufflePlan:
    """Plan the shards of these sources, in the order that numbers the contexts, as `plan_lengths`; reads no tokens."""
    return plan_lengths([(source.name, source.count) for source in sources], common_dtype(sources), settings)


def plan_lengths(lengths: Sequence[tuple[str, int]], dtype: str, settings: PlanSettings) -> ShufflePlan:
    """Plan the shards of sources, given by unique name and tokens, in the order that numbers the contexts.

    `dtype` is the integer dtype that holds the tokens of all of them.

    Raises:
        ConfigError: settings that do not fit these sources.
        InputError: the sources do not fill a single context.
    """
    table = ContextTable(lengths, settings)
    if settings.weights is not None:  # frequencies follow from the rows that one pass over each source gives
        rows = {source.name: source.rows for source in table.sources}
        shares = frequencies_of_weights(rows, settings.weights, settings.contexts)
        settings = replace(settings, weights=None, frequencies=dict.fromkeys(rows, 0.0) | shares)
        table = ContextTable(lengths, settings)
    if not table.contexts:
        what, expected = "the sources do not fill a single context", f"{settings.sequence_length} tokens in one source"
        remedy = "add text, lower sequence_length, or pad tails (tail='pad')"
        raise InputError(what, found=f"{list(lengths)}", expected=expected, remedy=remedy)
    limit = min(int(np.iinfo(dtype).max) + 1, settings.vocab_size or 1 << 63)
    for name in ("pad_id", "bos_id", "eod"):
        if not 0 <= (getattr(settings, name) or 0) < limit:
            what = "a token that the tokenizer or the token width does not have"
            expected, remedy = f"0 <= {name} < {limit}", "take the id from the tokenizer that made the tokens"
            raise ConfigError(what, where=name, found=getattr(settings, name), expected=expected, remedy=remedy)
    plan = ShufflePlan(settings, table, dtype, compressor_identity() if settings.member == "json.gz" else None)
    if not plan.contexts_left_out or settings.pad_id is None:
        return plan
    left_out = ranks(table.contexts, settings.seed, plan.contexts, table.contexts)
    return replace(plan, left_out_pad_tokens=table.pad_tokens(left_out))
