"""What a reader of tokens is: what it must know of a dataset, and what it refuses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nanoset_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a format must know of a dataset."""

    where: str
    """The dataset, for messages."""
    dtype: np.dtype
    tokens: int
    vocab_size: int | None = None
    """Tokens that its tokenizer has; None where that is not known."""
    has_end: bool | None = None
    """Whether an end token is behind each document; None where that is not known."""
    tokenizer: str | None = None
    """What the reader is to call the tokenizer."""
    sequence_length: int | None = None
    """Tokens of a sample, for a format of samples."""


class ExitFormat(ABC):
    """One format."""

    name: ClassVar[str]
    reader: ClassVar[str]
    """What reads it, in words."""
    needs_end: ClassVar[bool] = True
    """Whether it finds documents by their end tokens."""

    def check(self, tokens: Tokens) -> None:
        """Raise ConfigError where the reader would not read the dataset as it is."""
        if tokens.tokens == 0:
            raise self.refused(tokens, "no tokens", "at least one token", "add documents")
        if tokens.has_end is False and self.needs_end:
            expected = "an end token behind each document, by which it finds where documents end"
            raise self.refused(tokens, "no end tokens", expected, "set tokenization.append_eod: true")
        self._check_type(tokens)

    @abstractmethod
    def _check_type(self, tokens: Tokens) -> None:
        """Raise ConfigError where the reader takes tokens of other types."""

    @abstractmethod
    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python by which the reader opens an export."""

    def refused(self, tokens: Tokens, found: str, expected: str, remedy: str) -> ConfigError:
        """Return the error of a dataset that the reader would not read."""
        what = f"{self.reader} cannot read this dataset as it is"
        return ConfigError(what, where=tokens.where, found=found, expected=expected, remedy=remedy)
