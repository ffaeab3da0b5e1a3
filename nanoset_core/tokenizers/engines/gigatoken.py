"""The `gigatoken` engine: a compiled tokenizer, which is an optional package.

It is used behind a gate (`gate`), since it may treat some text differently.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.tokenizers.cache import installed_version
from nanoset_core.tokenizers.engines.engine import Encoded, NotRecognisedError
from nanoset_core.tokenizers.files import define
from nanoset_core.tokenizers.rust_panics import panics_as_errors

# Some versions of the library keep all words that they ever saw.
_MAX_GROWTH = 192 << 20
"""Bytes by which the process may grow until the library is loaded again."""
_CHECK_INTERVAL = 16 << 20
"""Bytes of text after which the size of the process is looked at."""


class GigatokenEngine:
    """Encodes texts that passed the gate with the `gigatoken` library, on the calling thread."""

    name = "gigatoken"
    package = "gigatoken"

    def __init__(self, tokenizer_json: str | os.PathLike[str]) -> None:
        """Load the tokenizer.

        Args:
            tokenizer_json: The tokenizer's file.

        Raises:
            ConfigError: The library is not installed.
            NotRecognisedError: The library cannot load the tokenizer.
        """
        self.version = installed_version(self.package)
        self._definition = define(tokenizer_json)
        self._load()

    def _load(self) -> None:
        """Load the tokenizer into the library gigatoken, which encodes text fast.

        Some versions of the library remember all words that they ever saw, and take more and more
        memory. So `encode` looks at the memory from time to time, and calls this function again if
        it has grown too much: a new tokenizer starts with nothing. For that, the memory at the
        start is kept.

        Raises:
            ConfigError: The library is not installed.
            NotRecognisedError: The library cannot load the tokenizer.
        """
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
                tokenizer = gigatoken.Tokenizer.from_json(self._definition.json())
                # Encode one text at a time: the function for several texts starts with an empty
                # cache in each call if the tokenizer is one of SentencePiece.
                self._encode_one = tokenizer.backend.encode
        except Exception as error:
            raise NotRecognisedError(f"the library cannot load it: {error}") from error
        self._initial_memory = resident_bytes()
        self._bytes_since_check = 0

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Turn documents into token ids by the library gigatoken, one after the other.

        Args:
            texts: The documents in UTF-8. None has characters or tokens that the library is known
                to encode wrongly.

        Returns:
            The ids of all documents, in their order.
        """
        lists = [self._encode_one(text) for text in texts]  # a uint32 array for each text

        # The library remembers words, which takes memory: look at that from time to time.
        self._bytes_since_check += sum(map(len, texts))
        if self._bytes_since_check > _CHECK_INTERVAL:
            self._reload_if_grown()

        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        ids = np.concatenate([np.empty(0, np.uint32), *lists])
        return Encoded(ids.view(np.int32), lengths)

    def _reload_if_grown(self) -> None:
        """Load the tokenizer again if the caches of the library have taken much memory."""
        self._bytes_since_check = 0
        if resident_bytes() - self._initial_memory > _MAX_GROWTH:
            del self._encode_one  # frees the memory before the tokenizer is loaded again
            self._load()


def resident_bytes() -> int:
    """Return the memory that this process takes.

    Returns:
        Bytes of physical memory; 0 if the system, unlike Linux, does not report it.
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            resident_pages = int(file.read().split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def is_installed() -> bool:
    """Return whether the library can be imported."""
    return "gigatoken" in sys.modules or find_spec("gigatoken") is not None
