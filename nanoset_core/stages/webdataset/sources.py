"""Files of tokens that tars are made of: local ones, or ones that stay in a store and are fetched
block by block.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, StaleError
from nanoset_core.formats.indexed.ids import first_foreign, foreign_id
from nanoset_core.formats.indexed.layout import bin_path, idx_path, read_idx
from nanoset_core.formats.indexed.stream import Stream, fills_bin, gathered
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.reading import BlockFile, MappedFile
from nanoset_core.storage.regular_files import map_regular
from nanoset_core.storage.working_copies import worker_folder
from nanoset_core.tokenizers.files import stat_signature

STORED_ROW_BYTES = 32 << 10
"""Most bytes fetched in addition to a row of tokens that are in a store: rows nearer than that
share a request.
"""
_BLOCK_BYTES = 4 << 10
_GAP_BYTES = STORED_ROW_BYTES - 2 * _BLOCK_BYTES
TOKEN_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


@dataclass(frozen=True)
class TokenSource:
    """A file of tokens, the documents concatenated; opened when it is first read, and picklable."""

    name: str
    """Name of the corpus, unique within a plan."""
    path: Path
    """File that holds its tokens and nothing else."""
    dtype: str
    """Name of the tokens' dtype, one of `TOKEN_DTYPES`."""
    count: int
    """Number of its tokens."""
    access: FileAccess | None = None
    """If given, the file stays in its store, and blocks of it are fetched as they are needed."""
    idx: Path | None = None
    """If given, the tokens are those of its sequences, wherever these are in the file."""
    greatest_id: int | None = None
    """The greatest id that a token of the pair may be. None: tokens are not checked."""

    def __post_init__(self) -> None:
        if self.dtype not in TOKEN_DTYPES:
            raise ConfigError(
                "tokens must be integers",
                where=f"source {self.name!r}",
                found=self.dtype,
                expected=f"one of {', '.join(TOKEN_DTYPES)}",
            )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the fields alone: another process opens the file itself."""
        fields = (
            self.name,
            self.path,
            self.dtype,
            self.count,
            self.access,
            self.idx,
            self.greatest_id,
        )
        return TokenSource, fields

    @classmethod
    def of_file(cls, name: str, path: Path, dtype: str) -> TokenSource:
        """Return a source of all tokens of a local file."""
        count = path.stat().st_size // np.dtype(dtype).itemsize
        return cls(name, path, dtype, count)

    @classmethod
    def of_dataset(
        cls, name: str, prefix: Path, *, validate: bool = True, greatest_id: int | None = None
    ) -> TokenSource:
        """Return a source of all tokens of a .bin/.idx pair.

        Args:
            name: Name of the source.
            prefix: Path of the pair without an ending.
            validate: As for `MMapIndexedDataset`.
            greatest_id: Of the tokenizer's vocabulary. None: a token may be any number that is not
                negative.
        """
        from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

        # Without a tokenizer, only negative ids are refused.
        dataset = MMapIndexedDataset(prefix, validate=validate)
        if greatest_id is None and dataset.dtype.kind in "iu":
            greatest_id = int(np.iinfo(dataset.dtype).max)
        count = len(dataset.tokens)
        source = cls(name, bin_path(prefix), dataset.dtype.name, count, greatest_id=greatest_id)
        if fills_bin(dataset):
            return source
        # A view: its sequences are some of those in the file, in an order of its own.
        count = int(dataset.sequence_lengths.sum(dtype=np.int64))
        return replace(source, count=count, idx=idx_path(prefix))

    @classmethod
    def of_output(cls, dataset: Dataset, *, is_stored: bool) -> TokenSource:
        """Return a source of a dataset that was built.

        Args:
            dataset: The dataset.
            is_stored: Whether its tokens stay in their store.
        """
        manifest = dataset.manifest
        prefix = manifest.facts["prefix"]
        path = manifest.folder / prefix if is_stored else manifest.path(prefix)
        return cls(
            name=dataset.name,
            path=bin_path(path),
            dtype=manifest.facts["dtype"],
            count=manifest.facts["tokens"],
            access=manifest.access if is_stored else None,
            idx=None if dataset.has_bin_order else manifest.path(f"{prefix}.idx"),
        )

    def sharing(self, workers: int) -> TokenSource:
        """Return the same source for that many processes, which share the room for what they fetch."""
        if self.access is None or self.access.capacity is None:
            return self
        capacity = max(1, self.access.capacity // workers)
        return replace(self, access=replace(self.access, capacity=capacity))

    @property
    def bytes(self) -> int:
        """Size of the tokens."""
        return self.count * np.dtype(self.dtype).itemsize

    @cached_property
    def file(self) -> MappedFile:
        """The bytes of the file. Those in a store are readable only after `prefetch`."""
        if self.access is None:
            return MappedFile(map_regular(self.path))
        return BlockFile(
            self.access.store,
            self.access.name(self.path),
            worker_folder() or self.access.folder,
            block_bytes=_BLOCK_BYTES,
            gap_bytes=_GAP_BYTES,
        )

    @cached_property
    def tokens(self) -> NDArray[np.integer[Any]]:
        """All tokens of the file, as a read-only map.

        Raises:
            StaleError: They are not as many as planned.
        """
        if self.file.size != self.bytes and self.idx is None:
            raise StaleError(
                "a source has changed",
                where=self.path,
                found=f"{self.file.size} bytes",
                expected=f"{self.bytes} bytes",
                remedy="plan the shuffle again",
            )
        return np.frombuffer(self.file.buffer, self.dtype)

    @cached_property
    def stream(self) -> Stream | None:
        """Where the sequences of a view are in the file; None for any other source."""
        if self.idx is None:
            return None
        if self.access is None:
            return Stream(read_idx(self.idx, validate=False))
        folder = worker_folder() or self.access.folder
        index = FileAccess(folder, self.access.store).fetch(folder / self.access.name(self.idx))
        return Stream(read_idx(index))

    def read(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> NDArray[np.integer[Any]]:
        """Return the tokens of ranges of the source, concatenated; starts and lengths int64, shape
        (ranges,).
        """
        # Of a view, a range of the source may be several ranges of the file.
        if self.stream is None:
            firsts = starts
            counts = lengths
        else:
            firsts, counts = self.stream.ranges(starts, lengths)
        self.prefetch(firsts, firsts + counts)
        return gathered(self.tokens, firsts, counts)

    def prefetch(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Fetch the tokens of these ranges [start, stop), int64, shape (ranges,), if they are in a
        store.
        """
        if self.access is not None:
            size = self.tokens.itemsize
            self.file.fetch(starts * size, np.minimum(stops * size, self.file.size))

    def check(self, tokens: NDArray[np.integer[Any]], position_of: Callable[[int], int]) -> None:
        """Check that tokens are in the vocabulary.

        Args:
            tokens: Some of this source, of any shape.
            position_of: Number of an element of them → number of the token within the source.

        Raises:
            InputError: A token is not in the vocabulary.
        """
        if self.greatest_id is None:
            return
        number = first_foreign(tokens, self.greatest_id)
        if number is None:
            return
        # Only now is the dataset needed, to name the document.
        from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

        dataset = MMapIndexedDataset.below(self.access, str(self.path.with_suffix("")))
        token = int(tokens.flat[number])
        raise foreign_id(dataset, self.stream, position_of(number), token, self.greatest_id)

    def evict(self) -> None:
        """Release the memory and disk space of tokens that were read; the system may keep pages in
        its cache.
        """
        if "file" not in vars(self):  # it was not opened, and need not be
            return
        if isinstance(self.file, BlockFile):
            self.file.forget()
        elif isinstance(self.file.buffer, mmap.mmap):
            self.file.buffer.madvise(mmap.MADV_DONTNEED)


def opened_once(sources: tuple[TokenSource, ...]) -> tuple[TokenSource, ...]:
    """Return equal sources that an earlier call in this process was given, unless their files have
    changed.

    These are open already, and may hold blocks that were fetched from a store.
    """
    signatures = tuple(stat_signature(source.path) for source in sources)
    return _latest_sources(sources, signatures)


@lru_cache(maxsize=1)
def _latest_sources(
    sources: tuple[TokenSource, ...],
    _signatures: object,
) -> tuple[TokenSource, ...]:
    return sources


def common_dtype(sources: Sequence[TokenSource]) -> str:
    """Return the name of the dtype that holds the tokens of all sources."""
    if not sources:
        return ""
    dtypes = [np.dtype(source.dtype) for source in sources]
    return np.result_type(*dtypes).name
