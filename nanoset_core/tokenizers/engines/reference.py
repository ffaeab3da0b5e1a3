"""The engines that all others have to match: the tokenizer's own libraries.

For most kinds of files, this is Hugging Face's `tokenizers`. For a SentencePiece model, it is the
`sentencepiece` package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.execution.resources import free_memory
from nanoset_core.tokenizers.engines.arrays import FlatLists
from nanoset_core.tokenizers.engines.engine import Encoded, EncodingError, encode_utf8, slices
from nanoset_core.tokenizers.engines.tokenizers_library import (
    encode_text,
    encoding_error,
    load_tokenizer,
)
from nanoset_core.tokenizers.files import TokenizerPath, as_source, define, stat_signature
from nanoset_core.tokenizers.files.sentencepiece import SPACE_SIGN
from nanoset_core.tokenizers.rust_panics import panics_as_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MEMORY_PER_BYTE = 160
"""Bytes of memory that the library takes for each byte of a text: 130, and more as lists grow."""
_LONG_TEXT = 1 << 20
"""Bytes of a text above which the free memory is checked before it is encoded."""


class _Failure(NamedTuple):
    """A document on which the library fails."""

    document: int
    """Number of the document within its batch."""
    error: Exception
    """What the library raised."""


class ReferenceEngine:
    """Encodes with the `tokenizers` library, on one thread; supports every `tokenizer.json`."""

    name = "tokenizers"
    helper = ""
    reference = None

    def __init__(self, tokenizer_json: str | os.PathLike[str]) -> None:
        """Load the tokenizer.

        Args:
            tokenizer_json: The tokenizer's file.

        Raises:
            MissingError: The file does not exist.
            FormatError: The file is no tokenizer.
            ConfigError: The tokenizer cannot be used.
        """
        self.reason = "requested"
        self.version = version("tokenizers")
        self.tokenizer = load_tokenizer(tokenizer_json)
        self.file = as_source(tokenizer_json)
        _engines_in_use[_identity(tokenizer_json)] = self
        self._normalizer = self.tokenizer.normalizer
        self._pre_tokenizer = self.tokenizer.pre_tokenizer
        # Documents are encoded in several processes. In each of them, the library would start
        # threads, too, or warn about a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents with Hugging Face's tokenizers library.

        The library takes some 50 bytes of memory for each character, so it gets some documents at a
        time.

        Args:
            texts: The documents, such as ["the cat", "a"].

        Returns:
            The token ids of all documents, one after another, and the number of tokens of each
            document.

        Raises:
            InputError: A text is not valid Unicode (a lone surrogate).
            EncodingError: The library fails on a text.
            MemoryError: The free memory does not suffice for a text.
        """
        self._check_texts(texts)
        ids = [np.empty(0, np.int32)]  # in case that there are no documents
        lengths = [np.empty(0, np.int32)]
        for start, stop in slices(texts):
            encoded = _concatenated(self._encode_checked(texts, start, stop))
            ids.append(encoded.ids)
            lengths.append(encoded.lengths)
        return Encoded(np.concatenate(ids), np.concatenate(lengths))

    def _check_texts(self, texts: Sequence[str]) -> None:
        """Check texts for what the library itself would not notice.

        It may silently replace what is not valid Unicode, and a very long text needs more memory
        than there is.

        Args:
            texts: The texts.

        Raises:
            InputError: A text is not valid Unicode.
            MemoryError: The free memory does not suffice for the longest text.
        """
        sizes = [len(data) for data in encode_utf8(texts)]  # in bytes
        self._check_memory(max(sizes, default=0))

    def _check_memory(self, longest: int) -> None:
        """Check that the free memory is enough to encode the longest text.

        Hugging Face's library takes up to 160 bytes for each byte of a text. If that is more than
        there is, the operating system would kill the process.

        Args:
            longest: Bytes of the longest text. Texts up to 1 MiB are not checked.

        Raises:
            MemoryError: The library may take more memory than is free.
        """
        if longest <= _LONG_TEXT:
            return
        needed = longest * MEMORY_PER_BYTE
        free = free_memory()
        if needed > free:
            raise MemoryError(
                f"{longest:,} bytes of text, for which the {self.name} library may take "
                f"{needed:,} bytes of memory; {free:,} bytes are free"
            )

    def _encode_checked(self, texts: Sequence[str], start: int, stop: int) -> list[list[int]]:
        """Encode some documents; if Hugging Face's library fails, find out on which one it does.

        Args:
            texts: All documents of a batch.
            start: Number of the first document to encode.
            stop: Number of the document after the last one to encode.

        Returns:
            The token ids of each document.

        Raises:
            EncodingError: The library fails on a document. The error names the first such one.
        """
        try:
            with panics_as_errors():
                return self._encode_slice(texts[start:stop])
        except MemoryError:
            raise
        except Exception as error:
            # The library does not say which document is the cause, so each is tried on its own.
            failure = self._first_failure(texts, start, stop)
            if failure is None:  # none of them fails on its own: name the first one
                failure = _Failure(start, error)
            raise self._error_of(failure) from error

    def _first_failure(self, texts: Sequence[str], start: int, stop: int) -> _Failure | None:
        """Find the first of some documents on which Hugging Face's library fails.

        When it fails on a batch, it does not say which document is the cause. So they are tried one
        by one.

        Args:
            texts: All documents of a batch.
            start: Number of the first document to try.
            stop: Number of the document after the last one to try.

        Returns:
            The document, and the library's error; None if no document fails on its own.
        """
        for number in range(start, stop):
            try:
                with panics_as_errors():
                    self._encode_slice(texts[number : number + 1])
            except Exception as error:  # noqa: BLE001 - the library raises plain Exceptions
                return _Failure(number, error)
        return None

    def _error_of(self, failure: _Failure) -> EncodingError:
        """Return the error that names the document on which the library failed."""
        error = encoding_error(
            self.file, failure.error, where=f"document {failure.document}", library=self.name
        )
        error.document = failure.document
        return error

    def _encode_slice(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each document; raise whatever the library does."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def locate(self, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a text, and the character at which each starts.

        For "the cat", these may be the tokens of "the" and " cat", which start at 0 and 3.

        Args:
            text: The text.

        Returns:
            (token ids, position of each token's first character), of the same length. No special
            tokens are added.

        Raises:
            EncodingError: The library fails on the text.
        """
        encoding = encode_text(self.tokenizer, text, self.file)
        return encoding.ids, [start for start, _ in encoding.offsets]

    def normalise(self, text: str) -> str:
        """Return a text as the tokenizer's normalizer leaves it, before it is split into words.

        Args:
            text: The text, such as `Ａ`, which NFKC turns into `A`.

        Returns:
            The text itself if the tokenizer has no normalizer.
        """
        return text if self._normalizer is None else self._normalizer.normalize_str(text)

    def split(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """Split a text into the words and symbols that the tokenizer encodes one by one.

        "the cat" gives [("the", (0, 3)), ("Ġcat", (3, 7))], for example: most vocabularies write a
        space as Ġ.

        Args:
            text: A text as the tokenizer's normalizer leaves it.

        Returns:
            (word, its (start, stop) in characters) for each one, in order. The word is written as
            in the tokenizer's vocabulary. If the tokenizer does not split text, it is the whole
            text.
        """
        if self._pre_tokenizer is None:
            return [(text, (0, len(text)))]
        pieces: list[tuple[str, tuple[int, int]]] = self._pre_tokenizer.pre_tokenize_str(text)
        return pieces

    def encode_words(self, words: list[bytes]) -> FlatLists:
        """Return the tokens of words into which a tokenizer splits text, such as "the" and " cat".

        A word on its own is not split further, so it can be encoded as a document.

        Args:
            words: The words in UTF-8, as in the text.

        Returns:
            (ids of all words, concatenated; number of tokens of each word), both int32.

        Raises:
            EncodingError: The library fails on a word.
        """
        return self.encode([word.decode() for word in words])

    def encode_pieces(self, words: list[bytes]) -> FlatLists:
        """Return the tokens of words of a tokenizer that writes spaces as ▁, such as "▁cat".

        The tokenizer as a whole would put another ▁ before each word. So only the part of it is
        used that splits a word into tokens, its model.

        Args:
            words: The words in UTF-8, with a space for each ▁: " cat".
        """
        model = self.tokenizer.model
        lists = []
        for word in words:
            tokens = model.tokenize(word.decode().replace(" ", SPACE_SIGN))
            lists.append([token.id for token in tokens])
        return _concatenated(lists)


class SentencePieceEngine(ReferenceEngine):
    """Encodes with the `sentencepiece` package, on one thread, as Megatron-LM's wrapper does."""

    name = "sentencepiece"

    def __init__(self, tokenizer: str | os.PathLike[str]) -> None:
        """Load the tokenizer.

        Args:
            tokenizer: The file of the SentencePiece model.

        Raises:
            ConfigError: The package sentencepiece is not installed.
            MissingError: The file does not exist.
            FormatError: The file is no SentencePiece model.
        """
        super().__init__(tokenizer)
        self.reason = "a SentencePiece model"
        definition = define(tokenizer)
        self._processor = _load_processor(tokenizer)
        self.version = version("sentencepiece")
        self._space_id = self._processor.piece_to_id(SPACE_SIGN)

        # Finds the special tokens in a text. If several start at the same place, the one that the
        # user named first is found, since a regular expression tries alternatives in their order.
        names = definition.source.special_tokens or ()
        self._special_tokens = {name: definition.special_tokens[name] for name in names}
        self._special_pattern = None
        if names:
            self._special_pattern = re.compile("|".join(map(re.escape, names)))

    def locate(self, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a text, and about at which character each starts.

        The package sentencepiece does not return positions. Those of Hugging Face's library, for
        the same model, are nearly right. If the library gives fewer tokens, the last ones are said
        to start at the end of the text. If it gives more, their positions are dropped.

        Args:
            text: The text.

        Returns:
            (token ids, position of each token's first character), of the same length.
        """
        ids = self.encode([text]).ids.tolist()
        encoding = encode_text(self.tokenizer, text, self.file)
        starts = [start for start, _ in encoding.offsets]
        n_missing = max(len(ids) - len(starts), 0)
        starts += [len(text)] * n_missing
        return ids, starts[: len(ids)]

    def _encode_slice(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each document; raise whatever the package does."""
        if self._special_pattern is not None:
            return [self._encode_between(self._special_pattern, text) for text in texts]
        ids: list[list[int]] = self._processor.encode(list(texts), out_type=int, num_threads=1)
        return ids

    def _encode_between(self, special_pattern: re.Pattern[str], text: str) -> list[int]:
        """Encode a text with special tokens, as Megatron-LM does it with a SentencePiece model.

        The text between special tokens is encoded piece by piece. SentencePiece may begin each
        piece with the token ▁, which stands for a space. Megatron-LM drops it, except from the
        first and the last piece:

            text             a      <sep>  b    <sep>  c
            SentencePiece    ▁ a           ▁ b         ▁ c
            result           ▁ a    <sep>  b    <sep>  ▁ c

        Args:
            special_pattern: Matches the special tokens.
            text: The text.

        Returns:
            The ids of the tokens.
        """
        ids: list[int] = []
        piece_start = 0
        for match in special_pattern.finditer(text):
            piece_ids = self._encode_piece(text[piece_start : match.start()])
            is_first_piece = piece_start == 0
            if piece_ids[:1] == [self._space_id] and not is_first_piece:
                piece_ids = piece_ids[1:]
            ids += piece_ids
            ids.append(self._special_tokens[match.group()])
            piece_start = match.end()

        last_piece_ids = self._encode_piece(text[piece_start:])
        return ids + last_piece_ids

    def _encode_piece(self, piece: str) -> list[int]:
        """Return the tokens of a text without special tokens."""
        ids: list[int] = self._processor.encode(piece, out_type=int)
        return ids


def _load_processor(model: str | os.PathLike[str]) -> Any:
    """Load a model with the `sentencepiece` package, which is not a requirement of nanoset.

    Args:
        model: The file of the SentencePiece model.

    Returns:
        The sentencepiece.SentencePieceProcessor.

    Raises:
        ConfigError: The package is not installed.
        FormatError: The file is no SentencePiece model.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise ConfigError(
            "the sentencepiece package is not installed, which is needed to encode "
            "with a SentencePiece model",
            where=model,
            found=error,
            remedy="pip install 'nanoset-platform[sentencepiece]'",
        ) from error
    try:
        return SentencePieceProcessor(model_file=os.fspath(model))
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise FormatError(
            "not a model that the sentencepiece package can load",
            where=model,
            found=error,
            expected="a model as sentencepiece's trainer writes it",
            remedy="download the complete file again, or update the sentencepiece package",
        ) from error


def reference_engine(tokenizer: str | os.PathLike[str]) -> ReferenceEngine:
    """Return the engine whose tokens are right: the library that a tokenizer was made for.

    An engine turns text into tokens. Faster ones are compared with this one before they are used.

    Args:
        tokenizer: The tokenizer's file, or the folder that contains it.

    Returns:
        For a SentencePiece model, the engine of the `sentencepiece` package; otherwise that of
        Hugging Face's `tokenizers`.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer.
        ConfigError: The package sentencepiece is needed, but not installed; or a setting of the
            tokenizer is missing or does not apply.
    """
    if define(tokenizer).kind == "SentencePiece":
        return SentencePieceEngine(tokenizer)
    return ReferenceEngine(tokenizer)


_engines_in_use: WeakValueDictionary[object, ReferenceEngine] = WeakValueDictionary()
"""Engines that some code still holds, by the identity of their file."""


def shared_tokenizer(tokenizer: TokenizerPath) -> Tokenizer:
    """Return a tokenizer of Hugging Face's library, loaded from a file or from memory.

    Loading takes seconds. So if the same tokenizer is already in use elsewhere in this process,
    that one is returned, and the caller must not change it. It counts as the same as long as its
    path, settings, and the size and time of its file are the same.

    Args:
        tokenizer: The tokenizer's file, with settings or without.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer that the library can load.
    """
    engine = _engines_in_use.get(_identity(tokenizer))
    if engine is not None:
        return engine.tokenizer
    return load_tokenizer(tokenizer)


def _identity(tokenizer: str | os.PathLike[str]) -> object:
    """Return a key that changes with the file's path, settings or content."""
    source = as_source(tokenizer)
    return replace(source, path=source.path.absolute()), stat_signature(source)


def _concatenated(lists: Sequence[Sequence[int]]) -> Encoded:
    """Return lists of tokens as arrays."""
    lengths = np.fromiter(map(len, lists), np.int32, len(lists))
    ids = np.fromiter(chain.from_iterable(lists), np.int32, int(lengths.sum()))
    return Encoded(ids, lengths)
