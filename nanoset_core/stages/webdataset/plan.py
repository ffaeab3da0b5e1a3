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
from nanoset_core.rounding import ceil_division
from nanoset_core.stages.webdataset.contexts import ContextTable, SourceContexts
from nanoset_core.stages.webdataset.order import frequencies_of_weights, ranks
from nanoset_core.stages.webdataset.plan_settings import PlanSettings, PlanTail
from nanoset_core.stages.webdataset.settings import ShufflePreset
from nanoset_core.stages.webdataset.sources import TOKEN_DTYPES, TokenSource, common_dtype

_VERSION = 2
"""Version of plan.json."""


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
        return ceil_division(self.table.contexts, self.settings.samples_per_shard)

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
        """Return which part of the shuffled order of all training samples a tar file contains.

        The samples are shuffled, and then divided among tars (shards) in this order. With 20
        samples, and 8 in a tar:

            tar                       0      1       2
            positions of its samples  0-7    8-15    16-19
            result                    0, 8   8, 16   16, 20

        Args:
            shard: Number of the tar.

        Returns:
            (position of its first sample, position after its last one).

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
        """Return which training samples are written to a tar file (shard).

        If the shuffled order of all samples is [4, 1, 5, 0, 3, 2], and a tar has 2 of them, tar 1
        has the samples [5, 0]. Only this part of the order is computed.

        Args:
            shard: Number of the tar.

        Returns:
            Numbers of the samples (contexts), in the order of the tar, int64, shape (n_samples,).

        Raises:
            SampleIndexError: The plan has no such shard.
        """
        start, stop = self.shard_ranks(shard)  # positions in the order: 2 and 4
        n_samples = self.table.contexts  # 6
        return ranks(n_samples, self.settings.seed, start, stop)  # the samples at these positions

    def check_sources(self, sources: Sequence[TokenSource]) -> None:
        """Check that the datasets to read are those for which a shuffle was planned.

        The plan says, for example, that a sample has the tokens 4,096 to 6,143 of the dataset web.
        If web was built anew since, with other texts, these would be other tokens.

        Args:
            sources: The datasets from which samples are to be read.

        Raises:
            StaleError: Their names, their order, their numbers of tokens or the type of tokens
            differ.
        """
        # The type decides the bytes of `.npy` files: 2 or 4 for a token.
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
        """Check that this machine compresses data to the same bytes as the machine of the plan.

        Different versions of the compression library write different bytes for the same data. If
        several machines wrote the files of one dataset, their checksums would depend on the
        machine. So the plan records the library and the processor.

        Raises:
            StaleError: The compressor of this machine writes other bytes.
        """
        if self.compressor is None:
            return  # the format `npy` is not compressed
        if self.compressor != compressor_identity():
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
        """Return the content of plan.json, the file in which the plan of a shuffle is stored.

        The plan says which training sample goes into which tar file. All of it follows from some
        settings and the counts of each source of text. Counts of all sources are stored as well,
        for readers of the file.

        Args:
            plan: The plan.
        """
        settings = plan.settings
        return cls(
            version=_VERSION,
            sequence_length=settings.sequence_length,
            preset=settings.preset,
            tail=settings.tail,
            pad_id=settings.pad_id,
            bos_id=settings.bos_id,
            eod=settings.eod,
            samples_per_shard=settings.samples_per_shard,
            even=settings.even,
            seed=settings.seed,
            member=settings.member,
            dtype=plan.dtype,
            compressor=plan.compressor,
            contexts=plan.contexts,
            contexts_left_out=plan.contexts_left_out,
            shards=plan.shards,
            tokens=plan.tokens,
            tokens_dropped=plan.tokens_dropped,
            tokens_left_out=plan.tokens_left_out,
            pad_tokens=plan.pad_tokens,
            left_out_pad_tokens=plan.left_out_pad_tokens,
            sources=tuple(plan.table.sources),
        )

    def check(self, value: dict[str, Any]) -> None:
        """Check that the counts in a plan.json follow from the settings and sources in it.

        If it says that 8,000 tokens give 9 samples of 1,000 tokens, it was damaged or edited, or
        another version of the program wrote it. This is called when the file is read.

        Args:
            value: The parsed file. It is not needed here, since this record has the same values.

        Raises:
            ValueError: The counts are wrong, or the settings are impossible.
        """
        try:
            # Plan again with these settings and sources.
            planned_again = StoredShufflePlan.of(self.plan())
        except (LookupError, TypeError, ArithmeticError) as error:  # impossible values
            raise ValueError(repr(error)) from error
        if planned_again != self:
            raise ValueError(f"other counts or settings than those of a plan, version {_VERSION}")

    def plan(self) -> ShufflePlan:
        """Return the plan of a shuffle that a file plan.json describes.

        Everything in a plan follows from the settings and the number of tokens of each source of
        text, so it is computed from these. The file also has results, such as the number of
        samples. They are for readers of the file, and are not used here.

        Raises:
            ValueError: The settings are impossible, or do not fit together.
        """
        self._check_formats()
        token_counts = [(source.name, source.tokens) for source in self.sources]
        settings = self._settings()
        table = ContextTable(token_counts, settings)
        return ShufflePlan(settings, table, self.dtype, self.compressor, self.left_out_pad_tokens)

    def _check_formats(self) -> None:
        """Check that the formats in a plan.json fit together; otherwise the file is damaged.

        Training samples are stored as compressed JSON or as .npy. Only the first needs a
        compressor:

            "member": "json.gz", "compressor": "isal ..."     correct
            "member": "npy", "compressor": null               correct
            "member": "npy", "compressor": "isal ..."         wrong

        Also, the type of the tokens must be one of those that are supported, such as "uint16".

        Raises:
            ValueError: They do not fit.
        """
        uses_compressor = self.member == "json.gz"
        names_compressor = self.compressor is not None
        if names_compressor != uses_compressor or self.dtype not in TOKEN_DTYPES:
            raise ValueError("dtype, member and compressor do not go together")

    def _settings(self) -> PlanSettings:
        """Return the settings of a shuffle that are stored in its plan.json.

        Two of them are stored with each source of text: how often it is read, and how many tokens
        each of its files has, if they are cut into samples separately. For example:

            {"seed": 42, ..., "sources": [{"name": "web", "frequency": 1.0, "streams": [6, 4]}]}
        """
        frequencies: dict[str, float] = {}  # {"web": 1.0}
        streams: dict[str, Sequence[int]] = {}  # {"web": [6, 4]}
        for source in self.sources:
            frequencies[source.name] = source.frequency
            if source.streams is not None:
                streams[source.name] = source.streams
        return PlanSettings(
            sequence_length=self.sequence_length,
            preset=self.preset,
            tail=self.tail,
            pad_id=self.pad_id,
            bos_id=self.bos_id,
            eod=self.eod,
            samples_per_shard=self.samples_per_shard,
            even=self.even,
            seed=self.seed,
            member=self.member,
            streams=streams,
            frequencies=frequencies,
        )


def plan_shuffle(sources: Sequence[TokenSource], settings: PlanSettings) -> ShufflePlan:
    """Decide which training sample of some datasets goes into which tar file.

    The datasets (sources) hold tokens. Each is cut into samples of one length, and a seed decides
    their shuffled order. No token is read, since the number of tokens of each dataset is enough:

        web: 10,000 tokens, code: 5,000 tokens, samples of 1,000 tokens   →   15 samples
        8 samples in a tar                                                →   2 tars

    Args:
        sources: The datasets. Their order decides the numbers of the samples.
        settings: Settings such as the length of samples, and the seed.

    Raises:
        ConfigError: Settings do not fit these sources.
        InputError: The sources do not fill a single sample.
    """
    lengths = [(source.name, source.count) for source in sources]
    return plan_lengths(lengths, common_dtype(sources), settings)


def plan_lengths(
    lengths: Sequence[tuple[str, int]],
    dtype: str,
    settings: PlanSettings,
) -> ShufflePlan:
    """Decide which training sample goes into which tar file, by the lengths of the texts alone.

    The texts (sources) are sequences of tokens. Each is cut into rows of one length, and a sample
    (context) is one occurrence of a row. For rows of 1,000 tokens, and 8 samples in a tar:

        source    tokens    rows    is read    samples
        web       10,000    10      once       10
        code      5,000     5       twice      10         →    20 samples in 3 tars

    Args:
        lengths: Name and number of tokens of each source. Their order decides the numbers of the
            samples. Names are unique.
        dtype: Type of the tokens of all sources, such as "uint16".
        settings: Settings such as the length of samples, and how often each source is read.

    Raises:
        ConfigError: Settings do not fit these sources.
        InputError: The sources do not fill a single sample.
    """
    table = ContextTable(lengths, settings)
    if settings.weights is not None:
        # The user wants the sources mixed in some proportions. How often each must be read for that
        # depends on how many rows it has. This is known now, so make the table again.
        settings = _with_frequencies(settings, settings.weights, table)
        table = ContextTable(lengths, settings)
    if table.contexts == 0:
        raise _no_context_error(lengths, settings)
    _check_special_tokens(settings, dtype)

    # Compressed bytes depend on the library and the processor, so the plan records both.
    compressor = compressor_identity() if settings.member == "json.gz" else None
    plan = ShufflePlan(settings, table, dtype, compressor)

    # If all tars must have the same number of samples, a few samples at the end of the order may be
    # in no tar. Some of their tokens may be padding, which is not in the tars then.
    if plan.contexts_left_out > 0 and settings.pad_id is not None:
        plan = replace(plan, left_out_pad_tokens=_left_out_pad_tokens(plan))
    return plan


def _no_context_error(lengths: Sequence[tuple[str, int]], settings: PlanSettings) -> InputError:
    """Return the error for texts that have fewer tokens than a single training sample.

    For example, there are only 500 tokens of web and 300 of code, and a sample has 2,049 tokens.

    Args:
        lengths: Name and number of tokens of each text, [("web", 500), ("code", 300)].
        settings: Settings such as the length of samples.
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
    """Replace the weights of texts in a mix by how often each text has to be read for that.

    For equal shares, a text of half the size must be read twice as often. Texts are cut into rows
    of tokens. If web has 100 rows, code 50, and news 80:

        weights        {"web": 1, "code": 1}                       equal shares of web and code
        frequencies    {"web": 0.5, "code": 1.0, "news": 0.0}      50 rows of each, none of news

    Args:
        settings: The settings.
        weights: Name of a text (source) → its weight in the mix. Other texts are left out.
        table: The rows of all texts.
    """
    n_rows = {source.name: source.rows for source in table.sources}
    frequencies = dict.fromkeys(n_rows, 0.0)
    frequencies |= frequencies_of_weights(n_rows, weights, settings.contexts)
    return replace(settings, weights=None, frequencies=frequencies)


def _left_out_pad_tokens(plan: ShufflePlan) -> int:
    """Return how many pad tokens are in the training samples that are in no tar file.

    With the setting `even`, all tars must have the same number of samples. With 10 samples in 3
    tars, each has 3, and the last sample of the shuffled order is left out. It may have padding.

    Args:
        plan: Says which sample goes into which tar.
    """
    all_contexts = plan.table.contexts  # 10
    left_out = ranks(all_contexts, plan.settings.seed, plan.contexts, all_contexts)  # from 9 to 10
    return plan.table.pad_tokens(left_out)


def _check_special_tokens(settings: PlanSettings, dtype: str) -> None:
    """Check that the special tokens are in the vocabulary, and can be stored as tokens.

    The user may give ids of tokens for padding, and for the start and the end of a document. For
    example, the id 50,256 is wrong for a vocabulary of 32,000 tokens. And without a vocabulary, the
    id 100,000 is wrong if tokens are stored in 16 bits, whose greatest number is 65,535.

    Args:
        settings: Settings with the special tokens, and with the size of the vocabulary.
        dtype: Type of the stored tokens, such as "uint16".

    Raises:
        ConfigError: A special token is not in the vocabulary, or its id is too large for the type.
    """
    limit = int(np.iinfo(dtype).max) + 1
    # The size is not given for the preset tokshuf, whose pad token may be outside the vocabulary.
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
