"""The interface of an export format.

A format checks whether its reader can read a dataset, and shows how the reader opens an export. How
the files are written is in its two subclasses: `LinkedFormat` (`formats.py`) for formats whose file
of tokens is that of the dataset, and `SampledFormat` (`samples.py`) for all others.
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
    """Properties of a dataset that decide whether and how a reader can read it."""

    where: str
    """Name of the dataset in messages."""
    dtype: np.dtype
    """Dtype of its tokens."""
    tokens: int
    """Number of tokens."""
    vocab_size: int | None = None
    """Size of the tokenizer's vocabulary, or None if it is not known."""
    has_end: bool | None = None
    """Whether each document ends in an end token, or None if that is not known."""
    tokenizer: str | None = None
    """Name of the tokenizer for the reader."""
    sequence_length: int | None = None
    """Tokens in a sample, for formats that consist of samples."""


class ExportFormat(ABC):
    """A format of exports."""

    name: ClassVar[str]
    """Name of the format in nanoset.yaml and on the command line."""
    reader: ClassVar[str]
    """Program that reads the format, for messages."""
    needs_end: ClassVar[bool] = True
    """Whether its reader finds documents by their end tokens."""

    def check(self, dataset: DatasetTraits) -> None:
        """Check that the program that reads this format can read a dataset.

        An export has the tokens of a dataset in the files of another program, such as MosaicML's
        streaming. It would be useless if that program failed later, during training:

            a dataset without tokens              an error
            documents without an end token        an error if the program finds documents by it
            tokens of a type that it cannot read  an error

        Args:
            dataset: Properties of the dataset.

        Raises:
            ConfigError: In these cases. It says what the user can do.
        """
        if dataset.tokens == 0:
            raise self.refused(
                dataset,
                found="no tokens",
                expected="at least one token",
                remedy="add documents",
            )
        if dataset.has_end is False and self.needs_end:
            raise self.refused(
                dataset,
                found="no end tokens",
                expected="an end token after each document, by which it finds where documents end",
                remedy="set tokenization.append_eod: true",
            )
        self._check_dtype(dataset)

    @abstractmethod
    def _check_dtype(self, dataset: DatasetTraits) -> None:
        """Check the type of the tokens.

        Raises:
            ConfigError: The reader cannot read tokens of this type.
        """

    def unchecked(self, dtype: np.dtype) -> str | None:
        """Say what `check` could not check without a tokenizer, or return None if there is nothing.

        Args:
            dtype: Dtype of the dataset's tokens.
        """
        return None

    @abstractmethod
    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python that open an export with its reader.

        The long path of the export has a line of its own, so that Dagster's page is not too wide.

        Args:
            folder: Path or URL of the export.
            name: Name of its files.
            facts: Facts in its manifest.
        """

    def refused(
        self, dataset: DatasetTraits, found: str, expected: str, remedy: str
    ) -> ConfigError:
        """Return the error for a dataset that the program that reads this format could not read.

            OLMo-core cannot read this dataset
            where: nanoset.yaml: exports.web-olmo
            found: no tokens
            expected: at least one token
            remedy: add documents

        Args:
            dataset: The dataset.
            found: What is wrong with it.
            expected: What the program needs.
            remedy: What the user can do.
        """
        return ConfigError(
            f"{self.reader} cannot read this dataset",
            where=dataset.where,
            found=found,
            expected=expected,
            remedy=remedy,
        )
