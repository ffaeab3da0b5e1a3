"""Read the tokens that tars are made of, from local files or block by block from a store.

A source is the tokens of one corpus: a .bin, in which all documents are concatenated. If it is in a
bucket, and larger than the disk of this machine, only blocks of it are fetched when they are read.
The source of a view, which is a selection of documents, also has an .idx: it says which parts of
the .bin belong to it, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from nanoset_core.storage.copies.worker_folders import worker_folder
from nanoset_core.storage.reading.mapped_files import BlockFile, MappedFile
from nanoset_core.storage.regular_files import map_regular
from nanoset_core.tokenizers.files import stat_signature

STORED_ROW_BYTES = 32 << 10
"""At most this many bytes are fetched in addition to a row of tokens that are in a store, because
rows that are near each other share a request.
"""
_BLOCK_BYTES = 4 << 10
"""Unit in which tokens are fetched from a store."""
_GAP_BYTES = STORED_ROW_BYTES - 2 * _BLOCK_BYTES
"""Blocks this far apart are fetched by one request."""
TOKEN_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
"""Names of the dtypes that tokens may have."""


@dataclass(frozen=True)
class TokenSource:
    """The tokens of one corpus: a file in which its documents are concatenated.

    The file is opened when it is first read. Sources can be pickled; each process opens the file
    itself.
    """

    name: str
    """Name of the corpus, unique within a plan."""
    path: Path
    """File that holds its tokens and nothing else."""
    dtype: str
    """Name of the tokens' dtype, one of `TOKEN_DTYPES`."""
    count: int
    """Number of tokens."""
    access: FileAccess | None = None
    """Access to the store of the file, whose blocks are fetched when needed. None: it is local."""
    idx: Path | None = None
    """The .idx of a view, whose sequences are parts of the file in any order.

    None: the source is the whole file.
    """
    greatest_id: int | None = None
    """Greatest id that a token may have. None: tokens are not checked."""

    def __post_init__(self) -> None:
        if self.dtype not in TOKEN_DTYPES:
            raise ConfigError(
                "tokens must be integers",
                where=f"source {self.name!r}",
                found=self.dtype,
                expected=f"one of {', '.join(TOKEN_DTYPES)}",
            )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only the fields, since an open file cannot be pickled."""
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
        """Return the tokens of a file of this machine, to shuffle them.

        The file has tokens and nothing else. With the type "uint16", each is a number of 2 bytes,
        so a file of 2,001 bytes has 1,000 tokens. The last byte is no whole token, and is left out.

        Args:
            name: Name of the source, such as "web". It must be different for all sources.
            path: The file.
            dtype: Type of the tokens.

        Raises:
            OSError: The file does not exist.
            ConfigError: The type is none of `TOKEN_DTYPES`.
        """
        count = path.stat().st_size // np.dtype(dtype).itemsize
        return cls(name, path, dtype, count)

    @classmethod
    def of_dataset(
        cls, name: str, prefix: Path, *, validate: bool = True, greatest_id: int | None = None
    ) -> TokenSource:
        """Return the tokens of a dataset in Megatron's format, to shuffle them.

        The dataset is a pair of files: data/web.bin has the tokens, and data/web.idx says where
        each sequence of tokens is in the .bin.

        Args:
            name: Name of the source, such as "web".
            prefix: Path of the pair without an ending, such as data/web.
            validate: Whether the .idx is checked when it is opened.
            greatest_id: Greatest id of the vocabulary. None: tokens may have any id that is not
                negative.
        """
        from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

        dataset = MMapIndexedDataset(prefix, validate=validate)
        if fills_bin(dataset):
            # The sequences are the whole .bin, in order: read it from start to end, without .idx.
            idx = None
            n_tokens = dataset.token_count
        else:
            # The sequences are a selection of those in the .bin, or are in another order.
            idx = idx_path(prefix)
            n_tokens = int(dataset.sequence_lengths.sum(dtype=np.int64))

        if greatest_id is None:
            greatest_id = _greatest_of_dtype(dataset.dtype)
        return cls(
            name=name,
            path=bin_path(prefix),
            dtype=dataset.dtype.name,
            count=n_tokens,
            idx=idx,
            greatest_id=greatest_id,
        )

    @classmethod
    def of_output(cls, dataset: Dataset, *, is_copied: bool) -> TokenSource:
        """Return the tokens of a dataset, to shuffle them into tar files.

        A dataset is a pair of files, the tokens in web.bin and their index web.idx. They are on
        this machine or in a bucket.

        Args:
            dataset: The dataset.
            is_copied: Whether to download the tokens of a dataset in a bucket now. Otherwise, parts
                of them are downloaded when they are read.
        """
        manifest = dataset.manifest
        pair_name = manifest.facts["prefix"]  # name of both files without their endings: "web"
        is_read_from_bucket = manifest.access.takes_requests and not is_copied
        if is_read_from_bucket:
            access = manifest.access
            prefix = manifest.folder / pair_name  # says where the pair is in the bucket
        else:
            access = None
            prefix = manifest.path(pair_name)  # downloads the pair, if it is in a bucket

        # If the dataset is a selection of sequences of a larger .bin, its index says which.
        idx = None
        if not dataset.has_bin_order:
            idx = manifest.path(f"{pair_name}.idx")
        return cls(
            name=dataset.name,
            path=bin_path(prefix),
            dtype=manifest.facts["dtype"],
            count=manifest.facts["tokens"],
            access=access,
            idx=idx,
        )

    def sharing(self, workers: int) -> TokenSource:
        """Return this source with a share of the disk space for fetched blocks.

        Args:
            workers: Processes that read the source at the same time.

        Returns:
            This source itself if its file is local.
        """
        if self.access is None:
            return self
        return replace(self, access=self.access.divided(workers))

    @property
    def bytes(self) -> int:
        """Size of all tokens of the source, by their planned number."""
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
        """All tokens of the file, mapped read-only; shape (n_tokens,).

        Raises:
            StaleError: The file has another size than when the shuffle was planned.
        """
        # If the source is a selection of the sequences in the file, the file may be larger.
        is_whole_file = self.idx is None
        if is_whole_file and self.file.size != self.bytes:
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
        """Where the sequences of a view are in the file, or None if the source is a whole file."""
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
        """Return the tokens of some ranges of the source, concatenated.

        For example, the starts [0, 10] and the lengths [2, 3] give the tokens 0, 1, 10, 11 and 12.

        Args:
            starts: First token of each range, shape (n_ranges,).
            lengths: Tokens of each range, shape (n_ranges,).

        Returns:
            The dtype of the source, shape (n_tokens,).

        Raises:
            StaleError: The file has another number of tokens than the plan.
        """
        # The source may be a selection of sequences of a file. Then a range of the source is one or
        # more ranges of the file, and `stream` says which.
        file_starts = starts
        file_lengths = lengths
        if self.stream is not None:
            file_starts, file_lengths = self.stream.ranges(starts, lengths)
        self.prefetch(file_starts, file_starts + file_lengths)
        return gathered(self.tokens, file_starts, file_lengths)

    def prefetch(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Fetch the tokens that are about to be read, if the file is in a bucket such as S3.

        Many ranges are fetched at once, which is faster than one after the other. If the file is on
        this machine, nothing happens.

        Args:
            starts: First token of each range of the file, shape (n_ranges,).
            stops: Token after the last one of each range, shape (n_ranges,).
        """
        if self.access is not None:
            size = self.tokens.itemsize  # bytes of a token
            self.file.fetch(starts * size, np.minimum(stops * size, self.file.size))

    def check(self, tokens: NDArray[np.integer[Any]], position_of: Callable[[int], int]) -> None:
        """Check that tokens are in the vocabulary.

        A damaged file may have ids that are negative or too large, such as 70,000 if the vocabulary
        ends with 50,256. Such tokens must not become training data. The error names the document.

        Args:
            tokens: Some tokens of this source, in an array of any shape.
            position_of: A function that says where a token is in this source, given its index in
                `tokens`. It is only called to find the document of a wrong token.

        Raises:
            InputError: A token is not in the vocabulary.
        """
        if self.greatest_id is None:
            return
        index = first_foreign(tokens, self.greatest_id)  # of the first wrong token
        if index is None:
            return
        # Open the dataset, to find the document. (Imported here: most calls do not need it.)
        from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

        dataset = MMapIndexedDataset.below(self.access, str(self.path.with_suffix("")))
        token = int(tokens.flat[index])
        raise foreign_id(dataset, position_of(index), token, self.greatest_id)

    def evict(self) -> None:
        """Release the memory and disk space of tokens that were read.

        The operating system may keep pages of a local file in its cache.
        """
        if "file" not in vars(self):  # it was not opened in this process
            return
        self.file.forget()


def _greatest_of_dtype(dtype: np.dtype) -> int | None:
    """Return the greatest id of a dtype, so that only negative ids are refused.

    None for other types than integers, which no source may have.
    """
    if dtype.kind not in "iu":
        return None
    return int(np.iinfo(dtype).max)


_opened_sources: dict[tuple[object, object], tuple[TokenSource, ...]] = {}
"""The sources of the last call of `opened_once`, by their fields and the state of their files."""


def opened_once(sources: tuple[TokenSource, ...]) -> tuple[TokenSource, ...]:
    """Return sources of tokens that are opened already, if the last call was for the same sources.

    A worker process writes several tar files, one after the other, from the same sources. Opened
    sources may hold blocks that were fetched from a bucket, and need not be fetched again.

    Args:
        sources: The sources that are needed.

    Returns:
        The sources of the last call if they equal these, and their files have not changed since (by
        their sizes and times); otherwise these.
    """
    signatures = tuple(stat_signature(source.path) for source in sources)  # sizes and times
    key = (sources, signatures)
    sources_of_last_call = _opened_sources.get(key)
    if sources_of_last_call is not None:
        return sources_of_last_call
    _opened_sources.clear()  # remember those of one call only
    _opened_sources[key] = sources
    return sources


def common_dtype(sources: Sequence[TokenSource]) -> str:
    """Return the smallest type that can hold the tokens of all sources.

    For example, tokens of web are stored as uint16, and those of code as int32. Then a file with
    tokens of both has the type "int32".

    Args:
        sources: The sources. Without any, the result is "".
    """
    if not sources:
        return ""
    dtypes = [np.dtype(source.dtype) for source in sources]
    return np.result_type(*dtypes).name
