"""Read files of tokens, and gather the rows of contexts out of them from front to back."""

from __future__ import annotations

import mmap
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, StaleError
from nanoset_core.formats.indexed.ids import first_foreign, foreign_id
from nanoset_core.formats.indexed.layout import bin_path, idx_path, read_idx
from nanoset_core.formats.indexed.stream import Stream, fills_bin, gathered
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.webdataset.contexts import ContextTable
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.reading import BlockFile, MappedFile
from nanoset_core.storage.regular_files import map_regular
from nanoset_core.storage.working_copies import worker_folder

STORED_ROW_BYTES = 32 << 10
"""Fetched beside a row at the most, of tokens that are in a store: rows that lie nearer are read by one request."""
_BLOCK_BYTES = 4 << 10
TOKEN_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_GAP_BYTES = STORED_ROW_BYTES - 2 * _BLOCK_BYTES
_COPY_BYTES = 1 << 20  # rows copied at once: they stay in the processor's cache on their way


@dataclass(frozen=True)
class TokenSource:
    """A file of tokens, one document after the other; opened when it is first read, and picklable."""

    name: str
    """Name of the corpus, unique within a plan."""
    path: Path
    """File that holds its tokens and nothing else."""
    dtype: str
    """Name of the tokens' dtype, one of `TOKEN_DTYPES`."""
    count: int
    """How many tokens it holds."""
    access: FileAccess | None = None
    """Where given, the file stays in its store, and blocks of it are fetched as they are needed."""
    idx: Path | None = None
    """Where given, the tokens are those of its sequences, wherever they lie in the file."""
    greatest_id: int | None = None
    """The greatest id that a token of the pair may be; None: tokens are not checked."""

    def __post_init__(self) -> None:
        if self.dtype not in TOKEN_DTYPES:
            where, expected = f"source {self.name!r}", f"one of {', '.join(TOKEN_DTYPES)}"
            raise ConfigError("tokens must be integers", where=where, found=self.dtype, expected=expected)

    def __reduce__(self) -> tuple[object, ...]:
        # Not what was opened.
        fields = (self.name, self.path, self.dtype, self.count, self.access, self.idx, self.greatest_id)
        return TokenSource, fields

    @classmethod
    def of_file(cls, name: str, path: Path, dtype: str) -> TokenSource:
        """Return a source of all tokens of a local file."""
        return cls(name, path, dtype, path.stat().st_size // np.dtype(dtype).itemsize)

    @classmethod
    def of_dataset(
        cls, name: str, prefix: Path, *, validate: bool = True, greatest_id: int | None = None
    ) -> TokenSource:
        """Return a source of all tokens of a .bin/.idx pair.

        Args:
            name: of the source.
            prefix: of the pair.
            validate: as for `MMapIndexedDataset`.
            greatest_id: of the tokenizer's vocabulary; None: a token may be any number that is not negative.
        """
        from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

        dataset = MMapIndexedDataset(prefix, validate=validate)
        if greatest_id is None and dataset.dtype.kind in "iu":
            greatest_id = int(np.iinfo(dataset.dtype).max)
        source = cls(name, bin_path(prefix), dataset.dtype.name, len(dataset.tokens), greatest_id=greatest_id)
        if fills_bin(dataset):
            return source
        count = int(dataset.sequence_lengths.sum(dtype=np.int64))
        return replace(source, count=count, idx=idx_path(prefix))

    @classmethod
    def of_output(cls, name: str, dataset: Manifest, *, is_stored: bool, is_chosen: bool = False) -> TokenSource:
        """Return a source of a dataset that was built; `is_stored`: it stays in its store; `is_chosen`: of a view."""
        facts, prefix = dataset.facts, dataset.facts["prefix"]
        path = bin_path(dataset.folder / prefix if is_stored else dataset.path(prefix))
        access, idx = dataset.access if is_stored else None, dataset.path(f"{prefix}.idx") if is_chosen else None
        return cls(name, path, facts["dtype"], facts["tokens"], access, idx)

    def sharing(self, workers: int) -> TokenSource:
        """Return the same source for so many processes, which have the room for what they fetch in common."""
        if self.access is None or self.access.capacity is None:
            return self
        return replace(self, access=replace(self.access, capacity=max(1, self.access.capacity // workers)))

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.count * np.dtype(self.dtype).itemsize

    @cached_property
    def file(self) -> MappedFile:
        """The bytes of the file, of which `prefetch` makes those of a store readable."""
        if self.access is None:
            return MappedFile(map_regular(self.path))
        folder = worker_folder() or self.access.folder
        return BlockFile(
            self.access.store, self.access.name(self.path), folder, block_bytes=_BLOCK_BYTES, gap_bytes=_GAP_BYTES
        )

    @cached_property
    def tokens(self) -> NDArray[np.integer[Any]]:
        """All tokens of the file, as a read-only map; raises StaleError where they are not as many as planned."""
        size, wanted = self.file.size, self.bytes
        if size != wanted and self.idx is None:
            what, remedy = "a source has changed", "plan the shuffle again"
            raise StaleError(what, where=self.path, found=f"{size} bytes", expected=f"{wanted} bytes", remedy=remedy)
        return np.frombuffer(self.file.buffer, self.dtype)

    @cached_property
    def stream(self) -> Stream | None:
        """Where the tokens of a view lie in the file; None for any other source."""
        if self.idx is None:
            return None
        if self.access is None:
            return Stream(read_idx(self.idx, validate=False))
        folder = worker_folder() or self.access.folder
        return Stream(read_idx(FileAccess(folder, self.access.store).fetch(folder / self.access.name(self.idx))))

    def read(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
        """Return the tokens of ranges of the source, one after the other."""
        firsts, counts = (begins, lengths) if self.stream is None else self.stream.ranges(begins, lengths)
        self.prefetch(firsts, firsts + counts)
        return gathered(self.tokens, firsts, counts)

    def prefetch(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Fetch the tokens of these ranges [begins, ends), int64, where they are in a store."""
        if self.access is not None:
            size = self.tokens.itemsize
            self.file.fetch(begins * size, np.minimum(ends * size, self.file.size))

    def check(self, tokens: NDArray[np.integer[Any]], position_of: Callable[[int], int]) -> None:
        """Raise InputError if a token is not in the vocabulary.

        Args:
            tokens: some of this source, of any shape.
            position_of: number of an element of them → number of the token within the source.
        """
        if self.greatest_id is None:
            return
        number = first_foreign(tokens, self.greatest_id)
        if number is None:
            return
        from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

        dataset = MMapIndexedDataset.below(self.access, str(self.path.with_suffix("")))
        found = int(tokens.flat[number])
        raise foreign_id(dataset, self.stream, position_of(number), found, self.greatest_id)

    def evict(self) -> None:
        """Release the memory and disk space of tokens that were read; the system may keep pages in its cache."""
        opened = vars(self).get("file")
        if isinstance(opened, BlockFile):
            opened.forget()
        elif opened is not None and isinstance(opened.buffer, mmap.mmap):
            opened.buffer.madvise(mmap.MADV_DONTNEED)


@lru_cache(maxsize=1)
def opened_once(sources: tuple[TokenSource, ...], _stamps: object) -> tuple[TokenSource, ...]:
    """Return equal sources that were passed before, which are open already; `_stamps` change when their files do."""
    return sources


def common_dtype(sources: Sequence[TokenSource]) -> str:
    """Return the name of the dtype that holds the tokens of all sources."""
    return np.result_type(*(np.dtype(source.dtype) for source in sources)).name if sources else ""


def gather(
    sources: Sequence[TokenSource],
    table: ContextTable,
    contexts: NDArray[np.int64],
    out: NDArray[np.integer[Any]] | None = None,
    places: NDArray[np.int64] | None = None,
) -> NDArray[np.integer[Any]]:
    """Gather the tokens of contexts, int64, shape (contexts,), reading files from front to back; takes 60 bytes a row.

    Args:
        sources: the table's.
        table: gives the place of each context.
        contexts: their numbers.
        out: any view of shape (contexts, sequence_length) whose dtype holds every source's; None = a new array.
        places: where given, int64, shape (contexts,), all different: row k goes to `out[places[k]]`, and `out` may have
            more rows.
    """
    settings = table.settings
    if out is None:
        out = np.empty((len(contexts), settings.sequence_length), dtype=common_dtype(sources))
    rows = out[:, settings.sequence_length - settings.row_tokens :]
    number, start, length = table.locate(contexts)
    order = np.lexsort((start, number))
    bounds = np.searchsorted(number[order], np.arange(len(sources) + 1))
    target = order if places is None else places[order]
    if settings.bos_id is not None:
        out[target, 0] = settings.bos_id
    for i in np.flatnonzero(np.diff(bounds)).tolist():
        own = order[bounds[i] : bounds[i + 1]]
        _gather_source(
            sources[i:], settings.pad_id or 0, start[own], length[own], target[bounds[i] : bounds[i + 1]], rows
        )
    return out


def _gather_source(
    sources: Sequence[TokenSource],
    pad_id: int,
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    places: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    """Copy the first source's rows that begin at `start`, ascending, to `rows[places]`; the others follow it."""
    source, width = sources[0], rows.shape[1]
    here = np.clip(source.count - start, 0, length)
    left = np.arange(len(start))
    if source.stream is None:  # whole rows lie there as they are
        source.prefetch(start, start + here)
        is_full = here == width
        _copy_full(source, start[is_full], places[is_full], rows)
        left = np.flatnonzero(~is_full)
    step = max(1, _COPY_BYTES // (width * rows.itemsize))
    for some in np.split(left, range(step, len(left), step)) if len(left) else ():
        counts, own = here[some], places[some]
        found = source.read(start[some], counts)
        source.check(found, partial(_position_in_ranges, start[some], counts))
        if (counts == width).all():
            rows[own] = found.reshape(-1, width)
            continue
        rows[own] = pad_id
        before = np.cumsum(counts) - counts
        rows[np.repeat(own, counts), np.arange(len(found)) - np.repeat(before, counts)] = found
    for row in np.flatnonzero((length == width) & (here < length)):  # at most one for each: it is carried over
        rows[places[row]] = _carried(sources, int(start[row]), width)


def _position_in_ranges(start: NDArray[np.int64], counts: NDArray[np.int64], number: int) -> int:
    """Return the position of an element of ranges that are concatenated, by the ranges' starts and lengths."""
    ends = np.cumsum(counts)
    part = int(np.searchsorted(ends, number, side="right"))
    return int(start[part] + number - (ends[part] - counts[part]))


def _position_in_rows(start: NDArray[np.int64], width: int, number: int) -> int:
    """Return the position of an element of rows of one width, by the rows' starts."""
    return int(start[number // width]) + number % width


def _copy_full(
    source: TokenSource,
    start: NDArray[np.int64],
    places: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    """Copy whole rows that begin at `start`, ascending, to `rows[places]`; InputError for a foreign token."""
    if not len(start):
        return
    tokens = source.tokens
    width = rows.shape[1]
    step = max(1, _COPY_BYTES // (width * tokens.itemsize))
    phase = int(start[0]) % width
    if (start % width == phase).all():
        # (tokens,) -> (rows, width): a view; one index copies a whole row
        matrix = tokens[phase : phase + (len(tokens) - phase) // width * width].reshape(-1, width)
        numbers = start // width
        block = np.empty((min(step, len(start)), width), dtype=tokens.dtype)
        for begin in range(0, len(start), step):
            part = numbers[begin : begin + step]
            # "clip" lets numpy write straight into the block; every number is within the matrix
            taken = np.take(matrix, part, axis=0, out=block[: len(part)], mode="clip")
            source.check(taken, partial(_position_in_rows, start[begin:], width))
            rows[places[begin : begin + step]] = taken
        return
    windows = np.lib.stride_tricks.sliding_window_view(tokens, width)
    for begin in range(0, len(start), step):
        taken = windows[start[begin : begin + step]]
        source.check(taken, partial(_position_in_rows, start[begin:], width))
        rows[places[begin : begin + step]] = taken


def _carried(sources: Sequence[TokenSource], start: int, width: int) -> NDArray[np.integer[Any]]:
    """Return a row that begins in the first source and goes on with the first tokens of those after it."""
    parts, missing = [], width
    for source in sources:
        part = source.read(np.array([start]), np.array([min(missing, source.count - start)]))
        source.check(part, partial(operator.add, start))
        parts.append(part)
        start, missing = 0, missing - len(part)
        if not missing:
            break
    return np.concatenate(parts)
