"""The context table: how the token streams of several sources are cut into rows of one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.shuffling.cutting import Cut, RowLayout, cut_streams
from nanoset_core.shuffling.order import check_seed
from nanoset_core.shuffling.sampling import Choice, choice_seed, sampled_contexts
from nanoset_core.shuffling.settings import PlanSettings, Tail
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.block_file import BlockFile
from nanoset_core.storage.workplace import own_folder

BLOCK_BYTES = 32 << 10
"""Brought at once at least, of tokens that live in a store: about a row."""
TOKEN_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


@dataclass(frozen=True, slots=True, eq=False)
class TokenSource:
    """One stream of tokens, usually the memory map of a merged dataset's `.bin`."""

    name: str
    """Name of the corpus, unique within a plan."""
    tokens: NDArray[np.integer[Any]]
    """All documents one after the other, contiguous, of one of `TOKEN_DTYPES`, shape (tokens,)."""
    path: Path | None = None
    """The file that holds just these tokens, so that worker processes can open it; None where there is none."""
    access: FileAccess | None = None
    """How the file is reached, where its tokens live in a store and come as they are needed; see `bring`."""
    blocks: BlockFile | None = None
    """Brings them."""

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

    @classmethod
    def of_dataset(cls, name: str, prefix: Path, *, validate: bool = True) -> TokenSource:
        """All tokens of a .bin/.idx pair; `validate` as for `MMapIndexedDataset`.

        Raises:
            ConfigError: its tokens are no integers.
        """
        from nanoset_core.indexed.dataset import MMapIndexedDataset
        from nanoset_core.indexed.layout import bin_path

        tokens = MMapIndexedDataset(prefix, validate=validate).tokens
        return cls(name, tokens, bin_path(prefix))

    @classmethod
    def stored(cls, name: str, access: FileAccess, path: Path, dtype: np.dtype) -> TokenSource:
        """All tokens of a .bin that lives in a store; no more of it is brought than is asked for.

        Raises:
            FileNotFoundError: it is not there.
        """
        folder = own_folder() or access.folder
        blocks = BlockFile(access.store, access.name(path), folder, block_bytes=BLOCK_BYTES)
        tokens = np.frombuffer(blocks.buffer, dtype, blocks.size // dtype.itemsize)
        return cls(name, tokens, path, access, blocks)

    def bring(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """See to it that the tokens of these ranges [begins, ends), int64, can be read."""
        if self.blocks is not None:
            size = self.tokens.itemsize
            self.blocks.fetch(begins * size, np.minimum(ends * size, self.blocks.size))

    def forget(self) -> None:
        """Give back the room of tokens that were brought."""
        if self.blocks is not None:
            self.blocks.forget()


@dataclass(frozen=True, slots=True)
class SourceContexts:
    """What became of the tokens of one source.

    One pass over it gives `rows` rows, of which the table holds `contexts`: `frequency` times as many.
    """

    name: str
    """Name of the source."""
    tokens: int
    """Tokens in the source."""
    contexts: int
    """Contexts of the table that begin in it, repetitions counted."""
    tokens_used: int
    """Tokens in these contexts, repetitions counted, without BOS and padding."""
    tokens_dropped: int
    """Tokens of the source that lie in no row (below a row's length for each stream; 0 when padded)."""
    pad_tokens: int
    """Pad tokens in these contexts."""
    rows: int = -1
    """Rows that one pass gives; -1 when made by hand: as many as contexts."""
    frequency: float = 1.0
    """How often each row occurs."""
    tokens_carried: int = 0
    """Tokens of the source in rows that began in an earlier one (tail `carry`)."""
    streams: tuple[int, ...] | None = None
    """Tokens of each stream that is cut on its own, such as a file; None = the source is one stream."""

    def __post_init__(self) -> None:
        if self.rows < 0:
            object.__setattr__(self, "rows", self.contexts)

    @property
    def repeats(self) -> int:
        """How often every row occurs."""
        return sampled_contexts(self.rows, self.frequency)[0]

    @property
    def chosen(self) -> int:
        """How many of the rows occur once more than that."""
        return sampled_contexts(self.rows, self.frequency)[1]


@dataclass(frozen=True, slots=True)
class ContextTable:
    """Contexts of all sources, numbered in source order; rows are computed, never stored.

    A source's contexts are its rows in order, `repeats` times, and then its chosen rows in order. Row `j` of a
    stream holds its tokens `[j * row_tokens, (j + 1) * row_tokens)`, behind a BOS token where there is one.
    """

    sequence_length: int
    """Tokens in a context, the full row: 2049 for a model that trains on 2048."""
    tail: Tail
    """What happens to the tokens after the last full row of a stream."""
    pad_id: int | None
    """Token that fills short rows; None when there are none."""
    sources: tuple[SourceContexts, ...]
    """Counts per source, in the order that numbers the contexts."""
    bos_id: int | None = None
    """Token in front of every context, one of its `sequence_length`; None = none."""
    seed: int = 0
    """Of the choice among rows of sources whose frequency is no whole number."""
    _layout: RowLayout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cuts = cut_streams(_streams(self.sources), self.row_tokens, self.tail)
        choices = tuple(Choice(each.rows, each.chosen, choice_seed(self.seed, each.name)) for each in self.sources)
        layout = RowLayout.of(cuts, [source.repeats for source in self.sources], choices)
        object.__setattr__(self, "_layout", layout)

    @property
    def row_tokens(self) -> int:
        """Tokens of a stream in a context: all but the BOS."""
        return self.sequence_length - (self.bos_id is not None)

    @property
    def contexts(self) -> int:
        """Number of contexts of all sources."""
        return int(self._layout.first_contexts[-1])

    @property
    def first_contexts(self) -> NDArray[np.int64]:
        """Number of the first context of each source, int64, shape (sources + 1,); the last is the total."""
        return self._layout.first_contexts

    def locate(self, contexts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Where each context lies.

        Args:
            contexts: context numbers, int64, shape (contexts,).

        Returns:
            (number of the source, its first token within the source, its tokens of the source), each int64, shape
            (contexts,). The last is `row_tokens` except in padded rows, where it can be 0. Under the tail `carry` a row
            can run over the end of its source: its tokens go on with the first of the next ones.

        Raises:
            SampleIndexError: a context number outside the table.
        """
        contexts = np.asarray(contexts, dtype=np.int64)
        first = self._layout.first_contexts
        if contexts.size and (contexts.min() < 0 or contexts.max() >= first[-1]):
            raise SampleIndexError(
                "context number outside the table",
                found=f"[{contexts.min()}, {contexts.max()}]",
                expected=f"[0, {first[-1]})",
                remedy="take context numbers from the global order of this table",
            )
        source = np.searchsorted(first, contexts, side="right") - 1
        row = self._layout.rows_of(source, contexts - first[source])
        return (source, *self._layout.place(source, row, self.row_tokens))

    def holding(self, source: int, begin: int, end: int) -> NDArray[np.int64]:
        """Contexts that hold any of a source's tokens [begin, end excl), int64, shape (contexts,); see `locate`."""
        found = [np.empty(0, dtype=np.int64)]
        before = 0  # tokens from the beginning of `number` to that of `source`
        for number in range(source, -1 if self.tail == "carry" else source - 1, -1):
            before += self.sources[number].tokens if number < source else 0
            rows = self._layout.rows_holding(number, begin + before, end + before, self.row_tokens)
            found.append(self._layout.contexts_of(number, rows))
        return np.concatenate(found)

    def pad_tokens(self, contexts: NDArray[np.int64]) -> int:
        """Pad tokens within these contexts, int64, shape (contexts,)."""
        _, _, length = self.locate(contexts)
        return int(length.size * self.row_tokens - length.sum())


def _streams(sources: Sequence[SourceContexts]) -> list[Sequence[int]]:
    return [(source.tokens,) if source.streams is None else source.streams for source in sources]


def cut_contexts(sources: Sequence[tuple[str, int]], settings: PlanSettings) -> ContextTable:
    """Cut each source, one stream across its documents, into rows of one length.

    Args:
        sources: name and tokens of each source, in the order that numbers the contexts. One without tokens has no
            context, except under the tail `pad_always`.
        settings: length, tail, pad and BOS token, streams, frequencies and seed are used.

    Raises:
        ConfigError: two sources have one name, or the streams of a source are not all of it.
    """
    names = [name for name, _ in sources]
    if len(set(names)) != len(names):
        raise ConfigError(
            "two sources have the same name",
            where="sources",
            found=names,
            expected="unique names",
            remedy="name each source once",
        )
    streams = {name: tuple(map(int, lengths)) for name, lengths in (settings.streams or {}).items()}
    _check_streams(dict(sources), streams)
    cuts = cut_streams([streams.get(name, (tokens,)) for name, tokens in sources], settings.row_tokens, settings.tail)
    counts = tuple(
        _count(name, tokens, cut, streams.get(name), settings)
        for (name, tokens), cut in zip(sources, cuts, strict=True)
    )
    return ContextTable(
        settings.sequence_length, settings.tail, settings.pad_id, counts, settings.bos_id, check_seed(settings.seed)
    )


def _count(name: str, tokens: int, cut: Cut, streams: tuple[int, ...] | None, settings: PlanSettings) -> SourceContexts:
    frequency = (settings.frequencies or {}).get(name, 1.0)
    rows = int(cut.rows.sum())
    repeats, chosen = sampled_contexts(rows, frequency)
    holds = Choice(rows, chosen, choice_seed(settings.seed, name)).holds(cut.short_rows)
    pads = int((cut.short_pads * (repeats + holds)).sum())
    contexts = repeats * rows + chosen
    used = contexts * settings.row_tokens - pads
    return SourceContexts(name, tokens, contexts, used, cut.dropped, pads, rows, frequency, cut.carried, streams)


def _check_streams(sources: Mapping[str, int], streams: Mapping[str, tuple[int, ...]]) -> None:
    for name, lengths in streams.items():
        if sources.get(name) != sum(lengths) or any(length < 0 for length in lengths):
            raise ConfigError(
                "the streams of a source are not all of it",
                where=f"source {name!r}",
                found=f"{len(lengths)} streams, {sum(lengths)} tokens",
                expected=f"{sources.get(name)} tokens",
                remedy="give the tokens of each file, in order",
            )


def source_json(source: SourceContexts) -> dict[str, Any]:
    """The counts as JSON values."""
    values = {name: getattr(source, name) for name in SourceContexts.__slots__}
    return values | {"streams": None if source.streams is None else list(source.streams)}
