"""What every engine gives, and the engine that the others are held to: Hugging Face's `tokenizers` library."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, InputError
from nanoset_core.tokenization.files import TokenizerPath, as_source, define, stamp
from nanoset_core.tokenization.files.tokenizer_json import check_merges

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SURROGATE = re.compile("[\ud800-\udfff]")

BATCH_CHARACTERS = 1 << 18
"""Characters handed to the library at once: its encodings cost some 50 bytes of memory a character."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a batch of documents, without added special tokens."""

    ids: NDArray[np.int32]
    """int32, shape (tokens,): token ids of all documents, back to back."""
    lengths: NDArray[np.int32]
    """int32, shape (documents,): tokens of each document."""


FlatLists: TypeAlias = tuple[NDArray[np.int32], NDArray[np.integer[Any]]]
"""Lists of tokens back to back: ids int32, shape (tokens,); tokens in each list, shape (lists,)."""


class Engine(Protocol):
    """Text to token ids. Every engine gives the same ids for the same `tokenizer.json`."""

    reason: str
    """Why this engine was chosen, for logs and metadata."""

    @property
    def name(self) -> str:
        """One of KINDS, without `auto`."""
        ...

    @property
    def version(self) -> str:
        """Of the code that encodes."""
        ...

    @property
    def helper(self) -> str:
        """Name and version of an engine beside the reference that may encode what this one leaves aside; or nothing."""
        ...

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        ...


class ReferenceEngine:
    """Encodes with the `tokenizers` library, on one thread; any `tokenizer.json`."""

    name = "tokenizers"
    helper = ""

    def __init__(self, tokenizer_json: str | os.PathLike[str], *, reason: str = "asked for") -> None:
        self.reason = reason
        self.version = version("tokenizers")
        self.tokenizer = load_tokenizer(tokenizer_json)
        _engines[_identity(tokenizer_json)] = self
        self._normalizer = self.tokenizer.normalizer
        self._pre_tokenizer = self.tokenizer.pre_tokenizer
        # Our parallelism is processes; the library would warn about forks, or start threads in each of them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        try:
            parts = [self._encode_slice(texts[begin:end]) for begin, end in slices(texts)]
        except UnicodeEncodeError as error:
            raise not_unicode(texts) from error
        if not parts:
            return Encoded(np.empty(0, np.int32), np.empty(0, np.int32))
        ids, lengths = zip(*parts, strict=True)
        return Encoded(np.concatenate(ids), np.concatenate(lengths))

    def locate(self, text: str) -> tuple[list[int], list[int]]:
        """(tokens of a text, character at which each begins)."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, [begin for begin, _ in encoding.offsets]

    def normalise(self, text: str) -> str:
        """A text as the tokenizer's normalizer leaves it."""
        return text if self._normalizer is None else self._normalizer.normalize_str(text)

    def split(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """Pieces that the pre-tokenizer makes of a text, with their (begin, end excl) in characters."""
        pieces: list[tuple[str, tuple[int, int]]] = self._pre_tokenizer.pre_tokenize_str(text)
        return pieces

    def encode_words(self, words: list[bytes]) -> FlatLists:
        """Tokens of words that the split pattern made of normalised text.

        A word on its own splits into nothing but itself, and is in normal form if the text is, so asking for it as a
        document gives its tokens.
        """
        encoded = self.encode([word.decode() for word in words])
        return encoded.ids, encoded.lengths

    def encode_pieces(self, words: list[bytes]) -> FlatLists:
        """Tokens of words with a space for each ▁, by the model alone: nothing is put before them."""
        model = self.tokenizer.model
        ids = [[token.id for token in model.tokenize(word.decode().replace(" ", "▁"))] for word in words]
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths

    def _encode_slice(self, texts: Sequence[str]) -> FlatLists:
        """Tokens of a few documents."""
        for text in texts:
            text.encode()  # older versions of the library would replace lone surrogates and say nothing
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths


_engines: WeakValueDictionary[object, ReferenceEngine] = WeakValueDictionary()
"""Those in use, by file."""


def _identity(tokenizer: str | os.PathLike[str]) -> object:
    source = as_source(tokenizer)
    return replace(source, path=source.path.absolute()), stamp(source)


def load_tokenizer(tokenizer_json: str | os.PathLike[str]) -> Tokenizer:
    """The library's tokenizer, with truncation and padding off; of whatever kind the files are.

    Raises:
        MissingError: there is no such file.
        FormatError: it is no tokenizer, or one that would end the process.
        ConfigError: see define.
    """
    from tokenizers import Tokenizer

    definition = define(tokenizer_json)
    if definition.content is None:
        check_merges(definition.json(), definition.source)
    try:
        if definition.content is None:
            tokenizer = Tokenizer.from_file(str(definition.source))
        else:
            tokenizer = Tokenizer.from_buffer(definition.content.json)
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise FormatError(
            "not a tokenizer that the tokenizers library can load",
            where=definition.source,
            found=error,
            expected="a tokenizer.json as written by tokenizers or transformers' save_pretrained",
            remedy="name another file, write it again with tokenizer.save(...), or update the tokenizers package",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def shared_tokenizer(tokenizer: TokenizerPath) -> Tokenizer:
    """The library's tokenizer to ask and not to change: an engine's that is in use, since loading it takes long.

    Raises:
        MissingError, FormatError, ConfigError: see load_tokenizer.
    """
    engine = _engines.get(_identity(tokenizer))
    return load_tokenizer(tokenizer) if engine is None else engine.tokenizer


def is_panic(error: BaseException) -> bool:
    """Whether an error is what a panic in a library written in Rust arrives as, which is no Exception."""
    return type(error).__name__ == "PanicException"


def slices(texts: Sequence[str] | Sequence[bytes], limit: int = BATCH_CHARACTERS) -> Iterator[tuple[int, int]]:
    """(begin, end excl) of runs of documents that hold `limit` characters or little more."""
    begin = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size >= limit:
            yield begin, index + 1
            begin, size = index + 1, 0
    if begin < len(texts):
        yield begin, len(texts)


def not_unicode(texts: Sequence[str]) -> InputError:
    """The error for the first of `texts` that holds a lone surrogate, as one of them does."""
    index, found = next((index, found) for index, text in enumerate(texts) if (found := SURROGATE.search(text)))
    return InputError(
        "a document is not valid Unicode",
        where=f"document {index}, character {found.start()}",
        found=repr(found.group()),
        expected="characters that UTF-8 can carry",
        remedy="reject the line, or replace lone surrogates before tokenising",
    )
