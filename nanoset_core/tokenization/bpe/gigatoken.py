"""The `gigatoken` engine: a compiled tokenizer, an optional extra (`fast`), held to the reference's tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe.reference import Encoded, not_unicode


class GigatokenEngine:
    """Encodes with the `gigatoken` library, on the calling thread; byte-level BPE only."""

    name = "gigatoken"

    def __init__(self, tokenizer_json: str | os.PathLike[str]) -> None:
        self.reason = "asked for"
        try:
            import gigatoken
        except ImportError as error:
            raise ConfigError(
                "the gigatoken engine is not installed",
                where="engine: gigatoken",
                found=str(error),
                remedy="pip install 'nanoset-platform[fast]', or set engine: auto",
            ) from error
        self._tokenizer = gigatoken.Tokenizer(os.fspath(tokenizer_json))

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        import awkward

        try:
            data = [text.encode() for text in texts]
        except UnicodeEncodeError as error:
            raise not_unicode(texts) from error
        if not data:
            return Encoded(np.empty(0, np.int32), np.empty(0, np.int32))
        # Our parallelism is processes.
        lists = self._tokenizer.encode_batch(data, parallel=False)
        lengths = awkward.to_numpy(awkward.num(lists, axis=1))
        ids = awkward.to_numpy(awkward.flatten(lists, axis=1))
        return Encoded(ids.astype(np.int32), lengths.astype(np.int32))
