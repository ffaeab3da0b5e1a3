"""Compare some of the documents that an engine encodes with the reference, while shards are made.

The faster engines are checked before they are used, but a rare text may still show a fault. So a
random share of every shard's documents is encoded twice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from nanoset_core.errors import InputError
from nanoset_core.tokenizers.engines.arrays import Ids
from nanoset_core.tokenizers.engines.engine import Encoded, EncodingError, Engine, WrongTokensError
from nanoset_core.tokenizers.rust_panics import panics_as_errors
from nanoset_core.untrusted import shortened

DEFAULT_SHARE = 0.001
"""Share of the documents that are compared by default."""
N_FIRST_DOCUMENTS = 4
"""The first documents of each shard are always compared, unless they are long."""
_MAX_FIRST_CHARACTERS = 1 << 12
"""Length of such a document. All four take the reference some ten milliseconds."""
_MAX_CHARACTERS = 1 << 20
"""Length of any document that is compared. The reference needs 130 bytes for each character."""
_N_SHOWN = 4
"""How many tokens a message shows."""


class Audit:
    """Encodes the batches of one shard, and compares some documents with the engine's reference."""

    def __init__(self, engine: Engine, share: float, seed: str) -> None:
        """Start the audit of a shard, one file of a dataset: are its tokens right?

        Documents are encoded by a fast implementation (engine) of the tokenizer. A random share of
        them is encoded again by the tokenizer's own library, the engine's reference, and compared.

        Args:
            engine: Encodes the documents. If it is the reference itself, nothing is compared.
            share: Share of the documents to compare, from 0 to 1.
            seed: Seed of the random choice of documents. The choice does not depend on how the
                documents are divided into batches.
        """
        # Imported here, since commands that do not tokenize also read `DEFAULT_SHARE`.
        from nanoset_core.tokenizers.engines.gate import GatedEngine

        if isinstance(engine, GatedEngine):
            # The engine may have encoded other shards. Its choice of a fallback must not depend on
            # these.
            engine.begin()
        self._engine = engine
        self._share = share
        self._random = random.Random(seed)
        self._n_earlier_documents = 0  # in earlier batches
        self.documents = 0
        """How many documents were compared."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode the next batch of documents, and check the tokens of some of them.

        Documents are encoded by a fast implementation of the tokenizer, the engine. To notice if it
        is wrong, some documents are also encoded by the reference, the tokenizer's own library.

        Args:
            texts: The documents.

        Returns:
            The tokens that the engine gave.

        Raises:
            WrongTokensError: The engine failed, or the reference gives other tokens for a document.
            InputError: A text is not valid Unicode (a lone surrogate).
            EncodingError: The reference fails on a document.
        """
        encoded = self._encode(texts)
        reference = self._engine.reference  # None if the engine itself is the reference
        if reference is not None and self._share > 0:
            numbers = self._choose_documents(texts)
            if numbers:
                self._compare(texts, numbers, encoded, reference)
                self.documents += len(numbers)  # those that were compared
        self._n_earlier_documents += len(texts)
        return encoded

    def _encode(self, texts: Sequence[str]) -> Encoded:
        """Encode a batch of documents, and find out whose fault it is if that fails.

        Documents are encoded by a fast implementation of the tokenizer, the engine. If it fails, it
        is at fault, unless the tokenizer's own library, the reference, fails on the documents, too.

        Args:
            texts: The documents of the batch.

        Raises:
            WrongTokensError: The engine is at fault.
            EncodingError: The reference fails, too.
            InputError: A text is not valid Unicode.
        """
        reference = self._engine.reference  # None if the engine itself is the reference
        try:
            with panics_as_errors():
                return self._engine.encode(texts)
        except EncodingError as error:
            if reference is None:
                raise
            # The reference has failed on a part of a text that the engine has left to it. Try the
            # complete documents. If that fails, too, its error names the document.
            reference.encode(texts)
            raise _engine_failure(error) from error
        except (InputError, MemoryError):
            raise  # the fault of the text, or of the machine
        except Exception as error:
            if reference is None:
                raise
            raise _engine_failure(error) from error

    def _choose_documents(self, texts: Sequence[str]) -> list[int]:
        """Choose the documents of a batch whose tokens are checked.

        They are encoded a second time, by the tokenizer's own library, which is slow. So a small
        share of all documents is chosen at random, and the first ones of each shard (file of
        tokens).

        Args:
            texts: The documents of the batch.

        Returns:
            Their numbers in the batch, ascending.
        """
        return [number for number, text in enumerate(texts) if self._is_chosen(number, text)]

    def _is_chosen(self, number: int, text: str) -> bool:
        """Return whether the tokens of a document are checked. Call this once for each document.

        Very long documents are never chosen, since the library would need too much memory or time.
        But a random number is drawn for them, too: the choice must not depend on the division into
        batches.

        Args:
            number: Number of the document in the batch.
            text: The document.
        """
        is_drawn = self._random.random() < self._share
        is_first = self._n_earlier_documents + number < N_FIRST_DOCUMENTS
        is_chosen_at_random = is_drawn and len(text) <= _MAX_CHARACTERS
        is_chosen_as_first = is_first and len(text) <= _MAX_FIRST_CHARACTERS
        return is_chosen_at_random or is_chosen_as_first

    def _compare(
        self, texts: Sequence[str], numbers: Sequence[int], encoded: Encoded, reference: Engine
    ) -> None:
        """Compare the tokens of some documents with those that the tokenizer's own library gives.

        Args:
            texts: The documents of the batch.
            numbers: Numbers of the documents to compare, such as [0, 17].
            encoded: The tokens that a faster implementation, the engine, gave for the batch.
            reference: The library, whose tokens are right.

        Raises:
            WrongTokensError: The tokens of a document differ. The error names the first such
                document, and how they differ: "from token 3 on: 11, 15, … instead of 11, 257, …".
            EncodingError: The library fails on a document.
        """
        try:
            expected_lists = reference.encode([texts[number] for number in numbers]).lists()
        except EncodingError as error:
            error.document = numbers[error.document]  # its number in the whole batch
            raise
        token_lists = encoded.lists()
        for number, expected in zip(numbers, expected_lists, strict=True):
            if not np.array_equal(token_lists[number], expected):
                raise WrongTokensError(_difference(token_lists[number], expected), number)


def _engine_failure(error: Exception) -> WrongTokensError:
    """Return the error for an engine that failed on a batch."""
    return WrongTokensError(f"it failed: {shortened(repr(error))}")


def _difference(tokens: Ids, expected: Ids) -> str:
    """Describe the first position at which two different lists of tokens differ."""
    n_common = min(len(tokens), len(expected))
    differing = np.flatnonzero(tokens[:n_common] != expected[:n_common])
    position = int(differing[0]) if len(differing) else n_common
    return (
        f"from token {position:,} on: {_excerpt(tokens, position)} "
        f"instead of {_excerpt(expected, position)}"
    )


def _excerpt(tokens: Ids, position: int) -> str:
    """Return the tokens from a position on as a text."""
    shown = tokens[position : position + _N_SHOWN].tolist()
    if not shown:
        return "nothing"
    return ", ".join(map(str, shown)) + ", …"
