"""What every engine gives, and the engines that the others have to match: the tokenizer's own
library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np
import orjson

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.execution.resources import free_memory
from nanoset_core.tokenizers.engines.arrays import FlatLists, Ids
from nanoset_core.tokenizers.files import TokenizerPath, as_source, define, stat_signature
from nanoset_core.tokenizers.files.sentencepiece import SPACE_SIGN

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

SURROGATE = re.compile("[\ud800-\udfff]")
_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
BYTES_OF_ONE = 160
"""Bytes of memory that the library takes for each of a text: 130, and more while its lists grow."""
_LONG = 1 << 20
"""Bytes of a text, above which it is asked first whether there is memory for it."""
BATCH_CHARACTERS = 1 << 18
"""Characters handed to the library at once: its encodings cost some 50 bytes of memory a character."""


class Encoded(NamedTuple):
    """Token ids of a batch of documents, without added special tokens."""

    ids: Ids
    """int32, shape (tokens,): token ids of all documents, back to back."""
    lengths: Ids
    """int32, shape (documents,): tokens of each document."""

    def lists(self) -> list[Ids]:
        """Return the token ids of each document."""
        return np.split(self.ids, np.cumsum(self.lengths)[:-1])


class Engine(Protocol):
    """Turns texts into token ids. Every engine gives the same ids for the same tokenizer."""

    name: str
    """One of KINDS, without `auto`."""
    version: str
    """Version of the code that encodes."""
    reason: str
    """Why this engine was chosen, for logs and metadata."""
    helper: str
    """Name and version of another engine, not the reference, that encodes a part of the texts; or
    nothing.
    """

    @property
    def reference(self) -> Engine | None:
        """Return the engine whose ids this one has to give; None where it is the reference itself."""
        ...

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: A text is not valid Unicode (a lone surrogate).
        """
        ...


class NotRecognisedError(Exception):
    """An engine does not support the tokenizer; the message says why."""


class WrongTokensError(Exception):
    """An engine gave other tokens than the reference."""

    def __init__(self, what: str, document: int = 0) -> None:
        """document: Its number within the batch."""
        super().__init__(what)
        self.document = document


class EncodingError(InputError):
    """The tokenizer's library failed on a document, as it does with some normalizers and split
    patterns.
    """

    document: int = 0
    """The document's number within the batch."""


class LibraryPanicError(RuntimeError):
    """A library written in Rust panicked."""


class ReferenceEngine:
    """Encodes with the `tokenizers` library, on one thread; supports every `tokenizer.json`."""

    name = "tokenizers"
    helper = ""
    reference = None

    def __init__(self, tokenizer_json: str | os.PathLike[str]) -> None:
        self.reason = "asked for"
        self.version = version("tokenizers")
        self.tokenizer = load_tokenizer(tokenizer_json)
        self.file = as_source(tokenizer_json)
        _engines[_identity(tokenizer_json)] = self
        self._normalizer = self.tokenizer.normalizer
        self._pre_tokenizer = self.tokenizer.pre_tokenizer
        # Work is spread over processes; the library would warn about forks, or start threads in
        # each of them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: A text is not valid Unicode (a lone surrogate).
            EncodingError: The library fails on a text.
        """
        try:
            # older versions replace lone surrogates silently
            sizes = [len(text.encode()) for text in texts]
        except UnicodeEncodeError as error:
            raise not_unicode(texts) from error
        if (longest := max(sizes, default=0)) > _LONG and longest * BYTES_OF_ONE > (
            free := free_memory()
        ):
            raise MemoryError(
                f"{longest:,} bytes of text, for each of which the {self.name} library may take {BYTES_OF_ONE} of "
                f"memory; {free:,} bytes are free"
            )
        parts = [_flat(self._encode_checked(texts, begin, end)) for begin, end in slices(texts)]
        return Encoded(*map(np.concatenate, zip(_flat([]), *parts, strict=True)))

    def _encode_checked(self, texts: Sequence[str], begin: int, end: int) -> list[list[int]]:
        """Encode the documents [begin, end); raise EncodingError with the number of the first that
        fails.
        """
        try:
            with panics_as_errors():
                return self._encode_slice(texts[begin:end])
        except MemoryError:
            raise
        except Exception as error:
            number, cause = self._first_failure(texts, begin, end) or (begin, error)
            failure = encoding_error(
                self.file, cause, where=f"document {number}", library=self.name
            )
            failure.document = number
            raise failure from error

    def _first_failure(
        self, texts: Sequence[str], begin: int, end: int
    ) -> tuple[int, Exception] | None:
        """Encode documents one by one; return the number of the first that fails, and the error."""
        for number in range(begin, end):
            try:
                with panics_as_errors():
                    self._encode_slice(texts[number : number + 1])
            except Exception as error:  # noqa: BLE001 - the library raises plain Exceptions
                return number, error
        return None

    def locate(self, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a text, and the character at which each begins; raises as `encode`."""
        encoding = encode_text(self.tokenizer, text, self.file)
        return encoding.ids, [begin for begin, _ in encoding.offsets]

    def normalise(self, text: str) -> str:
        """Return a text as the tokenizer's normalizer leaves it."""
        return text if self._normalizer is None else self._normalizer.normalize_str(text)

    def split(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """Return the pre-tokens of a text, with their (begin, end excl) in characters."""
        if self._pre_tokenizer is None:
            return [(text, (0, len(text)))]
        pieces: list[tuple[str, tuple[int, int]]] = self._pre_tokenizer.pre_tokenize_str(text)
        return pieces

    def encode_words(self, words: list[bytes]) -> FlatLists:
        """Return the tokens of pre-tokens of normalised text.

        A pre-token on its own is split into nothing but itself, so it can be encoded as a document.
        """
        return self.encode([word.decode() for word in words])

    def encode_pieces(self, words: list[bytes]) -> FlatLists:
        """Return the tokens of words with a space for each ▁, by the model alone: nothing is put
        before them.
        """
        model = self.tokenizer.model
        return _flat(
            [
                [token.id for token in model.tokenize(word.decode().replace(" ", SPACE_SIGN))]
                for word in words
            ]
        )

    def _encode_slice(self, texts: Sequence[str]) -> list[list[int]]:
        return [
            encoding.ids
            for encoding in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ]


class SentencePieceEngine(ReferenceEngine):
    """Encodes with the `sentencepiece` package, on one thread, as Megatron-LM's wrapper does.

    Raises:
        ConfigError: The package is not installed.
        MissingError, FormatError: See load_tokenizer.
    """

    name = "sentencepiece"

    def __init__(self, tokenizer: str | os.PathLike[str]) -> None:
        super().__init__(tokenizer)
        self.reason = "a SentencePiece model"
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
        names = definition.source.special_tokens or ()
        self._tokens = {name: definition.special_tokens[name] for name in names}
        # The first in the text, and of those that begin there the one that was named first.
        self._token = re.compile("|".join(map(re.escape, self._tokens))) if self._tokens else None
        self._space = self._processor.piece_to_id(SPACE_SIGN)

    def _encode_slice(self, texts: Sequence[str]) -> list[list[int]]:
        if self._token is not None:
            return [self._encode_between(self._token, text) for text in texts]
        ids: list[list[int]] = self._processor.encode(list(texts), out_type=int, num_threads=1)
        return ids

    def locate(self, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a text, and about at which character each begins."""
        ids = self.encode([text]).ids.tolist()
        begins = [begin for begin, _ in encode_text(self.tokenizer, text, self.file).offsets]
        return ids, (begins + [len(text)] * len(ids))[: len(ids)]

    def _encode_between(self, token: re.Pattern[str], text: str) -> list[int]:
        """Encode the text between special tokens by itself, as Megatron-LM's legacy wrapper does.

        A lone ▁ at the beginning of what is between two of them is dropped; what follows the last
        one keeps its own.
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
    """Return the engine that the others have to match."""
    is_model = define(tokenizer).kind == "SentencePiece"
    return SentencePieceEngine(tokenizer) if is_model else ReferenceEngine(tokenizer)


_engines: WeakValueDictionary[object, ReferenceEngine] = WeakValueDictionary()
"""Engines in use, by file."""


def _identity(tokenizer: str | os.PathLike[str]) -> object:
    source = as_source(tokenizer)
    return replace(source, path=source.path.absolute()), stat_signature(source)


def load_tokenizer(tokenizer_json: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer, of whatever kind its files are, with truncation and padding off.

    Raises:
        MissingError: There is no such file.
        FormatError: It is no tokenizer.
        ConfigError: See define.
    """
    from tokenizers import Tokenizer

    if os.environ.get("RUST_BACKTRACE") != "full":
        # A panic of the library becomes an error; a backtrace on the terminal would hide it.
        os.environ["RUST_BACKTRACE"] = "0"
    definition = define(tokenizer_json)
    content = definition.json()
    try:
        if _PREFIX.search(content) is not None:
            _check_merges(orjson.loads(content)["model"])
        with panics_as_errors():
            tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:
        raise FormatError(
            "not a tokenizer that the tokenizers library can load",
            where=definition.source,
            found=error,
            expected="a tokenizer.json as written by tokenizers or transformers' save_pretrained",
            remedy="name another file, write it again with tokenizer.save(...), or update the tokenizers package",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "alpha", None) is not None:
        tokenizer.model.alpha = None  # unigram models: random segmentations
    return tokenizer


def _check_merges(model: Mapping[str, Any]) -> None:
    """Raise ValueError for a merge that does not fit the prefix of continuing subwords: the library
    may abort there.
    """
    prefix = model["continuing_subword_prefix"]
    for merge in model.get("merges") or ():  # a WordPiece model has none
        second = (merge.split(" ") if isinstance(merge, str) else merge)[1]
        if not second.startswith(prefix):
            raise ValueError(
                f"merge {merge!r}, whose second token lacks model.continuing_subword_prefix {prefix!r}"
            )


def shared_tokenizer(tokenizer: TokenizerPath) -> Tokenizer:
    """Return the library's tokenizer for reading only: an engine's that is in use, since loading
    takes long.
    """
    engine = _engines.get(_identity(tokenizer))
    return load_tokenizer(tokenizer) if engine is None else engine.tokenizer


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn panics of libraries written in Rust, which are no Exceptions, into LibraryPanicErrors."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LibraryPanicError(str(error)) from error


def encoding_error(
    file: TokenizerPath, error: Exception, *, where: object = None, library: str = "tokenizers"
) -> EncodingError:
    """Return the error for a text that a tokenizer's library fails on.

    Args:
        file: Where the tokenizer is.
        error: What the library raised.
        where: The text's place; default: the tokenizer's file.
        library: Its name.
    """
    return EncodingError(
        f"the {library} library failed to encode a text",
        where=file if where is None else where,
        found=f"{str(error) or repr(error)}, with the tokenizer {file}",
        expected="a tokenizer that gives tokens for any text",
        remedy="correct or replace the tokenizer, whose normalizer, split pattern or model fails on this text; or "
        "remove the text",
    )


def encode_text(
    tokenizer: Tokenizer, text: str, file: TokenizerPath, *, add_special_tokens: bool = False
) -> Encoding:
    """Encode a text with the library's tokenizer of a file; EncodingError if it fails."""
    try:
        with panics_as_errors():
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except MemoryError:
        raise
    except Exception as error:
        raise encoding_error(file, error) from error


def decode_tokens(tokenizer: Tokenizer, ids: Sequence[int], file: TokenizerPath) -> str:
    """Return the text of tokens, special ones spelled out; FormatError if the library fails."""
    try:
        with panics_as_errors():
            return str(tokenizer.decode(ids, skip_special_tokens=False))
    except MemoryError:
        raise
    except Exception as error:
        raise FormatError(
            "the tokenizers library failed to decode tokens",
            where=file,
            found=f"{str(error) or repr(error)}, for {len(ids):,} tokens from {', '.join(map(str, ids[:8]))} on",
            expected="a tokenizer whose decoder turns any of its tokens into text",
            remedy="correct or replace the tokenizer's decoder",
        ) from error


def slices(
    texts: Sequence[str] | Sequence[bytes], limit: int = BATCH_CHARACTERS
) -> Iterator[tuple[int, int]]:
    """Yield (begin, end excl) of runs of documents that hold `limit` characters or little more."""
    begin = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size >= limit:
            yield begin, index + 1
            begin, size = index + 1, 0
    if begin < len(texts):
        yield begin, len(texts)


def not_unicode(texts: Sequence[str]) -> InputError:
    """Return the error for the first of `texts` that holds a lone surrogate, as one of them does."""
    index, found = next(
        (index, found) for index, text in enumerate(texts) if (found := SURROGATE.search(text))
    )
    return InputError(
        "a document is not valid Unicode",
        where=f"document {index}, character {found.start()}",
        found=repr(found.group()),
        expected="characters that UTF-8 can carry",
        remedy="reject the line, or replace lone surrogates before tokenising",
    )


def _flat(lists: Sequence[Sequence[int]]) -> Encoded:
    lengths = np.fromiter(map(len, lists), np.int32, len(lists))
    return Encoded(np.fromiter(chain.from_iterable(lists), np.int32, int(lengths.sum())), lengths)
