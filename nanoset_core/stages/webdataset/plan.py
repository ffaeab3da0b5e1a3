"""Plan a shuffled dataset: decide which context goes into which tar, before any tar is written.

A plan needs only the number of tokens of each source. It is a small JSON file: the place of each
context is computed from its counts and its seed, so that any process can write any tar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, InputError, SampleIndexError, StaleError
from nanoset_core.formats.tars.members import MemberKind, compressor_identity
from nanoset_core.records.json_records import JsonForm, Record
from nanoset_core.stages.webdataset.contexts import ContextTable, SourceContexts
from nanoset_core.stages.webdataset.order import frequencies_of_weights, ranks
from nanoset_core.stages.webdataset.plan_settings import PlanSettings, PlanTail
from nanoset_core.stages.webdataset.settings import ShufflePreset
from nanoset_core.stages.webdataset.sources import TOKEN_DTYPES, TokenSource, common_dtype

_VERSION = 2
"""Version of plan.json."""
_SETTINGS = (
    "sequence_length",
    "preset",
    "tail",
    "pad_id",
    "bos_id",
    "eod",
    "samples_per_shard",
    "even",
    "seed",
    "member",
)
"""Keys of plan.json that are settings, in the order in which they are written."""
_FACTS = (
    "dtype",
    "compressor",
    "contexts",
    "contexts_left_out",
    "shards",
    "tokens",
    "tokens_dropped",
    "tokens_left_out",
    "pad_tokens",
    "left_out_pad_tokens",
)
"""Keys of plan.json that follow from settings and sources."""


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Everything that decides the bytes of the shards, except the tokens themselves."""

    settings: PlanSettings
    table: ContextTable
    """The contexts, with counts per source."""
    dtype: str
    """Name of the integer dtype that holds the tokens of all sources, which `npy` members have."""
    compressor: str | None
    """Library and processor that compress `json.gz` members, or None for `npy`."""
    left_out_pad_tokens: int = 0
    """Pad tokens in the contexts that are in no shard."""

    @property
    def sequence_length(self) -> int:
        """Tokens in a context."""
        return self.settings.sequence_length

    @property
    def row_bytes(self) -> int:
        """Size of the tokens of one context."""
        return self.sequence_length * np.dtype(self.dtype).itemsize

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.table.contexts // self.settings.samples_per_shard)

    @property
    def shard_size(self) -> int:
        """Contexts in each shard. The last shard may have fewer, unless shards must be even."""
        if self.settings.even:
            return self.table.contexts // self.shards
        return self.settings.samples_per_shard

    @property
    def contexts(self) -> int:
        """Contexts in all shards.

        With `even`, the order has a few contexts more (`table.contexts`), which are left out.
        """
        if self.settings.even:
            return self.shards * self.shard_size
        return self.table.contexts

    @property
    def contexts_left_out(self) -> int:
        """Contexts at the end of the order that are in no shard.

        They are fewer than there are shards, and 0 unless shards must be even.
        """
        return self.table.contexts - self.contexts

    @property
    def tokens(self) -> int:
        """Tokens of the sources in all shards, repetitions counted.

        Padding and the BOS of the contexts are not counted.
        """
        return self.contexts * self.settings.row_tokens - self.pad_tokens

    @property
    def tokens_dropped(self) -> int:
        """Tokens of the sources that are in no row."""
        return sum(source.tokens_dropped for source in self.table.sources)

    @property
    def tokens_left_out(self) -> int:
        """Tokens of the sources in the contexts that are in no shard."""
        return self.contexts_left_out * self.settings.row_tokens - self.left_out_pad_tokens

    @property
    def pad_tokens(self) -> int:
        """Pad tokens in all shards."""
        return sum(source.pad_tokens for source in self.table.sources) - self.left_out_pad_tokens

    def shard_ranks(self, shard: int) -> tuple[int, int]:
        """Return which part of the shuffled order of contexts (rows of tokens) a shard contains.

        Args:
            shard: Number of the shard.

        Returns:
            (rank of its first context, rank after its last one).

        Raises:
            SampleIndexError: The plan has no such shard.
        """
        if not 0 <= shard < self.shards:
            raise SampleIndexError(
                "no such shard in the plan",
                found=shard,
                expected=f"[0, {self.shards})",
            )
        start = shard * self.shard_size
        return start, min(start + self.shard_size, self.contexts)

    def shard_contexts(self, shard: int) -> NDArray[np.int64]:
        """Return which contexts (rows of tokens) are written to a shard, which is a tar.

        Args:
            shard: Number of the shard.

        Returns:
            Numbers of the contexts in the order of the shard, int64, shape (n_samples,).

        Raises:
            SampleIndexError: The plan has no such shard.
        """
        start, stop = self.shard_ranks(shard)
        return ranks(self.table.contexts, self.settings.seed, start, stop)

    def check_sources(self, sources: Sequence[TokenSource]) -> None:
        """Check that sources are those that were planned.

        A dataset may have been built again since the plan was made.

        Args:
            sources: The sources from which tars are to be written.

        Raises:
            StaleError: Their names, order, token counts or dtype differ.
        """
        # Names, order and lengths decide the numbers of the contexts. The dtype decides the bytes
        # of `.npy` files.
        planned = [(source.name, source.tokens) for source in self.table.sources]
        present = [(source.name, source.count) for source in sources]
        dtype = common_dtype(sources)
        if planned != present or self.dtype != dtype:
            raise StaleError(
                "the sources are not those of the plan",
                found=(present, dtype),
                expected=(planned, self.dtype),
                remedy="plan the shuffle again",
            )

    def check_compressor(self) -> None:
        """Check that this machine's compressor writes the same bytes as the one that was planned.

        Raises:
            StaleError: The compressor of this machine writes other bytes.
        """
        if self.compressor not in (None, compressor_identity()):
            raise StaleError(
                "this machine's compressor writes other bytes than the plan's",
                found=compressor_identity(),
                expected=self.compressor,
                remedy="install the planned version, plan the shuffle again, or use member 'npy'",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShufflePlan(Record):
    """The content of plan.json: settings, sources, and the counts that follow from them."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not a shuffle plan",
        remedy="plan the shuffle again",
        indent=1,
        ends_with_newline=True,
    )

    version: int
    """Version of this format."""
    sequence_length: int
    preset: ShufflePreset
    tail: PlanTail
    pad_id: int | None
    bos_id: int | None
    eod: int | None
    samples_per_shard: int
    even: bool
    seed: int
    member: MemberKind
    dtype: str
    compressor: str | None
    contexts: int
    contexts_left_out: int
    shards: int
    tokens: int
    tokens_dropped: int
    tokens_left_out: int
    pad_tokens: int
    left_out_pad_tokens: int
    sources: tuple[SourceContexts, ...]

    @classmethod
    def of(cls, plan: ShufflePlan) -> StoredShufflePlan:
        """Return what plan.json stores of a plan.

        Args:
            plan: Says which context (sample) goes into which tar.

        Returns:
            Its settings, its sources with their counts, and the counts of all together.
        """
        settings = {name: getattr(plan.settings, name) for name in _SETTINGS}
        counts = {name: getattr(plan, name) for name in _FACTS}
        sources = tuple(plan.table.sources)
        return cls(version=_VERSION, sources=sources, **settings, **counts)

    def check(self, value: dict[str, Any]) -> None:
        """Check that the counts of a plan.json follow from the settings and sources in it.

        A record's `check` is called with the parsed file, which is not needed here.

        Args:
            value: The parsed file.

        Raises:
            ValueError: They do not, or the settings are impossible.
        """
        # Plan again with these settings and sources, and compare the result.
        try:
            planned_again = StoredShufflePlan.of(self.plan())
        except (LookupError, TypeError, ArithmeticError) as error:
            raise ValueError(repr(error)) from error
        if planned_again != self:
            raise ValueError(f"other counts or settings than those of a plan, version {_VERSION}")

    def plan(self) -> ShufflePlan:
        """Return the plan that this plan.json describes.

        Its counts are computed from the settings and sources, rather than taken from the file.

        Raises:
            ValueError: The settings are impossible.
        """
        self._check_formats()
        token_counts = [(source.name, source.tokens) for source in self.sources]
        settings = self._settings()
        table = ContextTable(token_counts, settings)
        return ShufflePlan(settings, table, self.dtype, self.compressor, self.left_out_pad_tokens)

    def _check_formats(self) -> None:
        """Raise ValueError unless the dtype exists, and a compressor is named if one is used."""
        uses_compressor = self.member == "json.gz"
        names_compressor = self.compressor is not None
        if names_compressor != uses_compressor or self.dtype not in TOKEN_DTYPES:
            raise ValueError("dtype, member and compressor do not go together")

    def _settings(self) -> PlanSettings:
        """Return the settings by which the tars were planned."""
        streams: dict[str, Sequence[int]] = {}  # source → tokens of each of its streams
        frequencies: dict[str, float] = {}
        for source in self.sources:
            frequencies[source.name] = source.frequency
            if source.streams is not None:
                streams[source.name] = source.streams
        stored_settings = {name: getattr(self, name) for name in _SETTINGS}
        return PlanSettings(**stored_settings, streams=streams, frequencies=frequencies)


def plan_shuffle(sources: Sequence[TokenSource], settings: PlanSettings) -> ShufflePlan:
    """Decide which rows of tokens go into which shard, without reading the tokens.

    Each source, which is a dataset, is cut into rows of one length. A seed decides their order.

    Args:
        sources: Sources in the order that numbers the contexts.
        settings: Settings of the plan, such as the length of contexts.

    Raises:
        ConfigError: Settings do not fit these sources.
        InputError: The sources do not fill a single context.
    """
    lengths = [(source.name, source.count) for source in sources]
    return plan_lengths(lengths, common_dtype(sources), settings)


def plan_lengths(
    lengths: Sequence[tuple[str, int]],
    dtype: str,
    settings: PlanSettings,
) -> ShufflePlan:
    """Decide which rows of tokens go into which shard, by the lengths of the sources alone.

    Sources of 10,000 and 5,000 tokens, cut into rows of 1,000, give 15 rows; with 8 of them in a
    shard, there are two shards.

    Args:
        lengths: Name and number of tokens of each source, in the order that numbers the contexts.
            Names are unique.
        dtype: Name of the integer dtype that holds the tokens of all sources.
        settings: Settings of the plan, such as the length of contexts.

    Raises:
        ConfigError: Settings do not fit these sources.
        InputError: The sources do not fill a single context.
    """
    table = ContextTable(lengths, settings)
    if settings.weights is not None:
        # Now that the rows of each source are counted, convert the weights to frequencies.
        settings = _with_frequencies(settings, settings.weights, table)
        table = ContextTable(lengths, settings)
    if not table.contexts:
        raise _no_context_error(lengths, settings)
    _check_special_tokens(settings, dtype)

    # Compressed bytes depend on the library and the processor, so the plan records both.
    compressor = compressor_identity() if settings.member == "json.gz" else None
    plan = ShufflePlan(settings, table, dtype, compressor)
    if plan.contexts_left_out and settings.pad_id is not None:
        plan = replace(plan, left_out_pad_tokens=_left_out_pad_tokens(plan))
    return plan


def _no_context_error(lengths: Sequence[tuple[str, int]], settings: PlanSettings) -> InputError:
    """Return the error for sources with fewer tokens than one context (sample) has.

    Args:
        lengths: Name and number of tokens of each source.
        settings: Settings of the plan, such as the length of contexts.
    """
    return InputError(
        "the sources do not fill a single context",
        found=f"{list(lengths)}",
        expected=f"{settings.sequence_length} tokens in one source",
        remedy="add text, lower sequence_length, or pad tails (tail='pad')",
    )


def _with_frequencies(
    settings: PlanSettings, weights: Mapping[str, float], table: ContextTable
) -> PlanSettings:
    """Return settings with frequencies instead of weights.

    A weight is the share of a source in the mix. A frequency says how often each of its rows
    occurs: for equal weights, a source of half the size gets twice the frequency.

    Args:
        settings: The settings.
        weights: Source → its weight in the mix. Other sources get the frequency 0.
        table: The sources, cut into rows.
    """
    rows = {source.name: source.rows for source in table.sources}
    frequencies = dict.fromkeys(rows, 0.0)
    frequencies |= frequencies_of_weights(rows, weights, settings.contexts)
    return replace(settings, weights=None, frequencies=frequencies)


def _left_out_pad_tokens(plan: ShufflePlan) -> int:
    """Return the number of pad tokens in contexts that are in no shard.

    With the setting `even`, these are the last contexts of the order.
    """
    all_contexts = plan.table.contexts
    left_out = ranks(all_contexts, plan.settings.seed, plan.contexts, all_contexts)
    return plan.table.pad_tokens(left_out)


def _check_special_tokens(settings: PlanSettings, dtype: str) -> None:
    """Check that the special tokens are in the vocabulary, and fit the type of the tokens.

    For example, the id 50,256 of a pad token does not fit a vocabulary of 32,000 ids.

    Args:
        settings: Settings of the plan, with the ids of the special tokens.
        dtype: Name of the integer dtype that holds the tokens of all sources.

    Raises:
        ConfigError: A special token is not in the vocabulary, or its id is too large for the dtype.
    """
    # With the preset tokshuf there is no vocabulary size: its pad token may be outside.
    limit = int(np.iinfo(dtype).max) + 1
    if settings.vocab_size:
        limit = min(limit, settings.vocab_size)
    for name in ("pad_id", "bos_id", "eod"):
        token = getattr(settings, name)
        if token is not None and not 0 <= token < limit:
            raise ConfigError(
                "a token that the tokenizer or the token width does not have",
                where=name,
                found=token,
                expected=f"0 <= {name} < {limit}",
                remedy="take the id from the tokenizer that made the tokens",
            )
