"""What a format of exports is: what it must know of a dataset, and which datasets its reader cannot
read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nanoset_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTraits:
    """What a format must know of a dataset."""

    where: str
    """The dataset, for messages."""
    dtype: np.dtype
    """Of its tokens."""
    tokens: int
    """Number of tokens."""
    vocab_size: int | None = None
    """Size of the tokenizer's vocabulary, or None if it is not known."""
    has_end: bool | None = None
    """Whether each document ends in an end token, or None if that is not known."""
    tokenizer: str | None = None
    """What the reader is to call the tokenizer."""
    sequence_length: int | None = None
    """Tokens of a sample, for a format of samples."""


class ExportFormat(ABC):
    """One format."""

    name: ClassVar[str]
    reader: ClassVar[str]
    """What reads it, for messages."""
    needs_end: ClassVar[bool] = True
    """Whether its reader finds documents by their end tokens."""

    def check(self, dataset: DatasetTraits) -> None:
        """Check that the reader can read a dataset as it is.

        Raises:
            ConfigError: It cannot.
        """
        if dataset.tokens == 0:
            raise self.refused(dataset, "no tokens", "at least one token", "add documents")
        if dataset.has_end is False and self.needs_end:
            raise self.refused(
                dataset,
                "no end tokens",
                "an end token behind each document, by which it finds where documents end",
                "set tokenization.append_eod: true",
            )
        self._check_dtype(dataset)

    @abstractmethod
    def _check_dtype(self, dataset: DatasetTraits) -> None:
        """Check the type of the tokens.

        Raises:
            ConfigError: The reader needs tokens of other types.
        """

    @abstractmethod
    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python by which the reader opens an export.

        Args:
            folder: Path or URL of the export.
            name: Of its files.
            facts: Of its manifest.
        """

    def refused(
        self, dataset: DatasetTraits, found: str, expected: str, remedy: str
    ) -> ConfigError:
        """Return the error for a dataset that the reader cannot read."""
        return ConfigError(
            f"{self.reader} cannot read this dataset",
            where=dataset.where,
            found=found,
            expected=expected,
            remedy=remedy,
        )
