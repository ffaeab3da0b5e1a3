"""The engine that others are held to where the tokenizer is a SentencePiece model: the `sentencepiece` package."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.metadata import version
from itertools import chain

import numpy as np

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.tokenization.bpe.reference import FlatLists, ReferenceEngine
from nanoset_core.tokenization.files import define
from nanoset_core.tokenization.files.sentencepiece import SPACE_SIGN


class SentencePieceEngine(ReferenceEngine):
    """Encodes with the `sentencepiece` package, on one thread, as Megatron-LM's wrapper does.

    Raises:
        ConfigError: the package is not installed.
        MissingError, FormatError: see load_tokenizer.
    """

    name = "sentencepiece"

    def __init__(self, tokenizer: str | os.PathLike[str], *, reason: str = "a SentencePiece model") -> None:
        super().__init__(tokenizer, reason=reason)
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise ConfigError(
                "the sentencepiece package is not installed, which gives the tokens of a SentencePiece model",
                where=tokenizer,
                found=error,
                remedy="pip install 'nanoset-platform[sentencepiece]'",
            ) from error
        self.version = version("sentencepiece")
        definition = define(tokenizer)
        try:
            self._processor = SentencePieceProcessor(model_file=os.fspath(tokenizer))
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            raise FormatError(
                "not a model that the sentencepiece package can load",
                where=tokenizer,
                found=error,
                expected="a model as sentencepiece's trainer writes it",
                remedy="fetch the file again, whole, or update the sentencepiece package",
            ) from error
        source = definition.source
        self._tokens = {name: definition.special_tokens[name] for name in source.special_tokens or ()}
        # The first in the text, and of those that begin there the one that was named first.
        self._token = re.compile("|".join(map(re.escape, self._tokens))) if self._tokens else None
        self._space = self._processor.piece_to_id(SPACE_SIGN)

    def _encode_slice(self, texts: Sequence[str]) -> FlatLists:
        for text in texts:
            text.encode()  # lone surrogates
        ids: list[list[int]]
        if self._token is None:
            ids = self._processor.encode(list(texts), out_type=int, num_threads=1)
        else:
            ids = [self._encode_between(self._token, text) for text in texts]
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths

    def locate(self, text: str) -> tuple[list[int], list[int]]:
        """(tokens of a text, character at which each begins: about, where the library would give other tokens)."""
        ids = self.encode([text]).ids.tolist()
        begins = [begin for begin, _ in self.tokenizer.encode(text, add_special_tokens=False).offsets]
        return ids, (begins + [len(text)] * len(ids))[: len(ids)]

    def _encode_between(self, token: re.Pattern[str], text: str) -> list[int]:
        """Megatron-LM's legacy wrapper: the text between special tokens is encoded by itself.

        A lone ▁ at the beginning of what is between two of them is dropped; what follows the last one keeps its own.
        """
        ids: list[int] = []
        begin = 0
        for found in token.finditer(text):
            between: list[int] = self._processor.encode(text[begin : found.start()], out_type=int)
            ids += between[1:] if begin and between[:1] == [self._space] else between
            ids.append(self._tokens[found.group()])
            begin = found.end()
        tail: list[int] = self._processor.encode(text[begin:], out_type=int)
        return ids + tail


def reference_engine(tokenizer: str | os.PathLike[str]) -> ReferenceEngine:
    """The engine that the others are held to.

    Raises:
        MissingError, FormatError, ConfigError: see load_tokenizer and SentencePieceEngine.
    """
    is_model = define(tokenizer).kind == "SentencePiece"
    return SentencePieceEngine(tokenizer) if is_model else ReferenceEngine(tokenizer)
