"""Find which sequences of its datasets a split has, and how many tokens these are.

Only the `.idx` files of the datasets are read. For example, train has a share of 0.9 of a dataset
of 1,000 sequences: these are the sequences 0 to 900, and the `.idx` has their lengths.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.formats.indexed.dataset import index_here
from nanoset_core.formats.indexed.layout import idx_path, map_file, read_idx
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.splits import (
    SPLITS,
    Rows,
    SplitName,
    rows_by_bookends,
    rows_by_cuts,
    split_bookends,
)
from nanoset_core.storage.access import FileAccess


class DatasetLengths(NamedTuple):
    """What planning needs to know of a dataset's `.idx` file."""

    lengths: NDArray[np.int32]
    """Tokens of every sequence, shape (n_sequences,)."""
    idx_sha256: str
    """Digest of the file."""


class LengthReader:
    """Reads the `.idx` file of each dataset once, for splits that are planned together.

    Args:
        access: Fetches files from a store, or None to read them from this machine.
    """

    def __init__(self, access: FileAccess | None = None) -> None:
        self._access = access
        self._lengths_by_prefix: dict[str, DatasetLengths] = {}

    def read(self, prefix: str) -> DatasetLengths:
        """Return how many tokens each document of a dataset has, from its `.idx` file.

        The file is read only once, since train, valid and test need the same numbers.

        Args:
            prefix: Path of the dataset without .bin and .idx.

        Returns:
            The lengths (of the sequences, if a document is stored as several ones), and a digest,
            by which it is noticed later that the file has changed.

        Raises:
            MissingError: The file is missing.
            FormatError: The file is damaged.
        """
        if prefix not in self._lengths_by_prefix:
            path = self._local_path(prefix)
            lengths = read_idx(path).sequence_lengths  # mapped into memory, not copied
            if self._access is not None and self._access.is_space_limited:
                # The cache of downloaded files deletes this one when it needs room. But as long as
                # a file is mapped, its space is not free.
                lengths = lengths.copy()
            idx_sha256 = hashlib.sha256(map_file(path)).hexdigest()
            self._lengths_by_prefix[prefix] = DatasetLengths(lengths, idx_sha256)
        return self._lengths_by_prefix[prefix]

    def tokens_of(self, prefix: str, rows: Rows) -> int:
        """Return how many tokens some successive documents of a dataset have together.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            rows: The first document, and the one after the last: (0, 900).

        Raises:
            MissingError: The `.idx` file is missing.
            FormatError: It is damaged.
        """
        start, stop = rows
        lengths = self.read(prefix).lengths[start:stop]
        return int(lengths.sum(dtype=np.int64))

    def _local_path(self, prefix: str) -> Path:
        """Return the path of the `.idx` file on this machine; it is downloaded if necessary."""
        if self._access is None:
            return index_here(prefix)
        return self._access.fetch(idx_path(prefix))

    def suppose(self, prefix: str, lengths: NDArray[np.int32]) -> None:
        """Set the lengths of a dataset that is not built yet, so that splits of it can be planned.

        Args:
            prefix: Path that the dataset will have, without .bin and .idx.
            lengths: Tokens of every sequence, shape (n_sequences,).
        """
        self._lengths_by_prefix[prefix] = DatasetLengths(lengths, "")


class DatasetPart(NamedTuple):
    """The sequences of one dataset that belong to a split."""

    rows: Rows
    """The numbers of these sequences: a half-open range."""
    tokens: int
    """Tokens of these sequences together."""
    idx_sha256: str
    """Digest of the dataset's `.idx` file."""

    @property
    def is_empty(self) -> bool:
        """Whether no sequence of the dataset belongs to the split."""
        start, stop = self.rows
        return start == stop


class SplitData:
    """Finds the sequences that one split of a nanoset has of each dataset.

    Args:
        config: Configuration of the nanoset.
        split: The split.
        reader: Reads the datasets' `.idx` files.
    """

    def __init__(self, config: NanosetConfig, split: SplitName, reader: LengthReader) -> None:
        self.config = config
        self.split = split
        self.reader = reader
        self.shares: tuple[float, float, float] | None = None
        """Shares of train, valid and test in each dataset; None if each split has a blend of its
        own, and so all sequences of its datasets.
        """
        if config.blend_per_split is None:
            self.shares = config.shares()

    @property
    def prefixes(self) -> list[str]:
        """Paths of the split's datasets without .bin and .idx; empty if the split has no data."""
        blend = self.config.blend(self.split)
        if blend is None:
            return []
        prefixes, _ = blend
        return prefixes

    @property
    def has_own_blend(self) -> bool:
        """Whether the split does not share its datasets with the other splits."""
        return self.shares is None

    @property
    def has_share(self) -> bool:
        """Whether the split has a share of the datasets that all splits have in common."""
        if self.shares is None:
            return False
        return self.shares[SPLITS.index(self.split)] > 0

    def part_of(self, prefix: str) -> DatasetPart:
        """Return which documents the split (train, valid or test) has of a dataset.

        For example, train has 0.9 of a dataset of 1,000 documents: the documents 0 to 899, with
        412,000 tokens together. `rows` of the result is (0, 900).

        Args:
            prefix: Path of the dataset without .bin and .idx.

        Raises:
            ConfigError: The split would begin outside of the dataset. Some trainers round so if the
                dataset has very few documents.
            MissingError: The `.idx` file, which has the lengths of all documents, is missing.
            FormatError: It is damaged.
        """
        lengths, idx_sha256 = self.reader.read(prefix)
        n_documents = len(lengths)
        start, stop = self._rows(n_documents)  # 0, 900
        if not 0 <= start <= n_documents:
            raise ConfigError(
                "the split begins outside of the dataset",
                where=f"split {self.split}",
                found=f"{prefix}: row {start}",
                expected="more sequences",
            )
        # Due to rounding, a split without documents may end before it begins.
        rows = (start, max(start, stop))
        return DatasetPart(rows, self.reader.tokens_of(prefix, rows), idx_sha256)

    def tokens_by_prefix(self) -> dict[str, int]:
        """Return how many tokens the split (train, valid or test) has of each of its datasets.

        Returns:
            Path of each dataset → tokens: {"data/web": 412000}.

        Raises:
            ConfigError: The split would begin outside of a dataset that has very few documents.
            MissingError: An `.idx` file is missing.
            FormatError: An `.idx` file is damaged.
        """
        return {prefix: self.part_of(prefix).tokens for prefix in self.prefixes}

    def _rows(self, n_documents: int) -> Rows:
        """Return which documents of a dataset the split has: the first, and the one after the last.

        For example, train, valid and test have the shares 0.5, 0.3 and 0.2 of 17 documents. A
        trainer follows one of two rules. It rounds the borders between the splits ("bookends"), or
        the number of documents of each ("cuts"):

            rule         exact               rounded    train     valid      test
            bookends     8.5 and 13.6        8, 14      (0, 8)    (8, 14)    (14, 17)
            cuts         8.5, 5.1 and 3.4    8, 5, 3    (0, 9)    (9, 14)    (14, 17)

        By the second rule, train also gets the document that is left over: 8 + 5 + 3 is only 16.

        Args:
            n_documents: Number of documents: 17. (If they are stored as several sequences, it is
                the number of these.)

        Returns:
            A column of the table. With few documents, this may be outside of the dataset.
        """
        if self.shares is None:
            return 0, n_documents  # the split does not share its datasets with others

        split_number = SPLITS.index(self.split)  # valid: 1
        if self.config.rules.split_rule == "cuts":
            return rows_by_cuts(self.shares, n_documents)[split_number]

        borders = split_bookends(self.shares)[split_number]  # valid: (0.5, 0.8)
        if borders is None:
            return 0, 0  # the split has no share
        return rows_by_bookends(borders, n_documents)
