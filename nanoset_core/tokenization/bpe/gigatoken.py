"""The `gigatoken` engine: a compiled tokenizer, an optional extra (`fast`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe.reference import (
    SURROGATE,
    Encoded,
    NotRecognisedError,
    not_unicode,
    panics_as_errors,
)
from nanoset_core.tokenization.files import define
from nanoset_core.tokenization.knowledge import installed_version

_MOST_GROWN_BYTES, _CHECKED_EVERY = 192 << 20, 16 << 20
"""Growth of the process after which the library is loaded again; characters after which that is looked at."""


class GigatokenEngine:
    """Encodes with the `gigatoken` library, on the calling thread; only texts that pass a `Gate`.

    Raises:
        ConfigError: The library is not installed.
        NotRecognisedError: It cannot load the tokenizer.
    """

    name = "gigatoken"
    helper = ""
    reason = "asked for"
    reference = None

    def __init__(self, tokenizer_json: str | os.PathLike[str]) -> None:
        self.version = version()
        self._definition = define(tokenizer_json)
        self._load()

    def _load(self) -> None:
        try:
            import gigatoken
        except ImportError as error:
            raise ConfigError(
                "the gigatoken engine is not installed",
                where="engine: gigatoken",
                found=str(error),
                remedy="pip install 'nanoset-platform[fast]', or set engine: auto",
            ) from error
        try:
            with panics_as_errors():
                # One text at a time: given a list, SentencePiece tokenizers forget what they learnt from earlier ones.
                self._encode = gigatoken.Tokenizer.from_json(self._definition.json()).backend.encode
        except Exception as error:
            raise NotRecognisedError(f"the library cannot load it: {error}") from error
        self._resident, self._unchecked = resident_bytes(), 0

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents; raises as `Engine.encode`."""
        try:
            lists = list(map(self._encode, texts))
        except TypeError as error:
            if any(map(SURROGATE.search, texts)):
                raise not_unicode(texts) from error
            raise
        self._unchecked += sum(map(len, texts))
        if self._unchecked > _CHECKED_EVERY:
            self._unchecked = 0
            # Some versions of the library keep all words that they ever saw.
            if resident_bytes() - self._resident > _MOST_GROWN_BYTES:
                del self._encode
                self._load()
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        return Encoded(np.concatenate([np.empty(0, np.uint32), *lists]).view(np.int32), lengths)


def resident_bytes() -> int:
    """Return the memory that this process takes; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def is_installed() -> bool:
    """Tell whether the library is there."""
    return "gigatoken" in sys.modules or find_spec("gigatoken") is not None


def version() -> str:
    """Return the version of the library that is installed."""
    return installed_version("gigatoken")
