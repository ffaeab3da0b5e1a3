"""Text to look at: decoded from tokens, and read again from the raw files that they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, InputError, MissingError, NanosetError, SourceChangedError
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.shards.framing import Framing
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.contents import stat_file
from nanoset_core.text.documents import DocumentBatch, RowReader
from nanoset_core.text.endings import is_cuttable, is_table
from nanoset_core.text.fingerprints import WINDOW_BYTES, FingerprintMemory
from nanoset_core.text.lines import LineBlock, read_lines
from nanoset_core.text.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.text.pieces import Inventory, Piece, StoredPiece, blocks_of, is_same_object, open_raw, status_of
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables import TooFarError, read_table
from nanoset_core.tokenizers.engines import ReferenceEngine, reference_engine
from nanoset_core.tokenizers.engines.reference import EncodingError, decode_tokens
from nanoset_core.tokenizers.files import TokenizerPath, stat_signature
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

SHOWN_CHARACTERS = 160
MOST_LINE_BYTES = 64 << 20
"""Longer lines are not held in memory."""
MOST_SKIPPED_BYTES = 256 << 20
"""How far into compressed text is decompressed by default: a second, about."""
MOST_HASHED_BYTES = 256 << 20
_DECODED_TOKENS = 96
_MOST_CHARACTERS = 4 << 20  # longer texts are not tokenized again for an excerpt

SourceState = Literal["unchanged", "changed", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class SourceExcerpt:
    """The raw text at the place of some tokens."""

    state: SourceState
    """`unchanged`: the line gives the same tokens; `unknown`: it was not tokenized again."""
    text: str | None
    """The raw text of the tokens, its beginning; None where it was changed, or not read."""
    note: str
    """What is behind the state, or why nothing was read."""


class Retokenizer(NamedTuple):
    """Tokenize texts by the reference engine, under the options that a dataset was made with."""

    reference: ReferenceEngine
    framing: Framing

    def encode(self, text: str) -> tuple[NDArray[np.int64], list[int]]:
        """Return a document's ids, int64, shape (tokens,), and the character of the text at which each begins."""
        ids, places = self.reference.locate(text)
        framed = bool(ids) or self.framing.empty == "sequence"
        before, after = (self.framing.before, self.framing.after) if framed else ((), ())
        begins = [0] * len(before) + places + [len(text)] * len(after)
        return np.array([*before, *ids, *after], np.int64), begins

    def decode(self, tokens: NDArray[Any]) -> str:
        """Return the text of tokens, special ones spelled out."""
        return decode_tokens(self.reference.tokenizer, tokens.tolist(), self.reference.file)


def retokenizer(tokenizer_file: TokenizerPath | None, options: Mapping[str, Any]) -> Retokenizer | None:
    """Return the retokenizer of a dataset with these options; None where the tokenizer at hand is another one."""
    if tokenizer_file is None or tokenizer_facts(tokenizer_file).fingerprint != options["tokenizer"]:
        return None
    framing = options["framing"]
    parts = tuple(framing["before"]), tuple(framing["after"])
    return Retokenizer(_loaded(tokenizer_file, stat_signature(tokenizer_file)), Framing(*parts, framing["empty"]))


@lru_cache(maxsize=2)
def _loaded(file: TokenizerPath, _stamp: object) -> ReferenceEngine:
    return reference_engine(file)


class Excerpts:
    """Excerpts for the documents of one dataset."""

    def __init__(self, context: InspectionContext, dataset: Manifest) -> None:
        self._config, self._options = context.config, dataset.recipe["options"]
        self._retokenizer = retokenizer(context.tokenizer_file, self._options)

    def decoded(self, tokens: NDArray[Any]) -> str | None:
        """Return the beginning of some tokens as text; None without their tokenizer."""
        if self._retokenizer is None:
            return None
        return shorten(self._retokenizer.decode(tokens[:_DECODED_TOKENS]), len(tokens) > _DECODED_TOKENS)

    def source(
        self, origin: DocumentOrigin, tokens: NDArray[Any] | None, span: tuple[int, int]
    ) -> SourceExcerpt | None:
        """Return what the raw file has now at the tokens `span` of a document; None without the raw folder.

        `tokens` are all of the document's; None where they are not at hand.
        """
        if self._config is None:
            return None
        folder = self._config.corpus_folder(origin.corpus)
        (text,) = read_texts(folder, [origin], self._options["text_key"])
        if isinstance(text, MissingError):
            return SourceExcerpt("gone", None, f"{folder / origin.file} is not there any more")
        if isinstance(text, NanosetError):
            state: SourceState = "changed" if isinstance(text, FormatError) else "unknown"
            return SourceExcerpt(state, None, f"{text.what}: {text.found}")
        if self._retokenizer is None or tokens is None or len(text) > _MOST_CHARACTERS:
            return SourceExcerpt("unknown", shorten(text, False), "from the document's beginning")
        try:
            again, begins = self._retokenizer.encode(text)
        except EncodingError as error:
            return SourceExcerpt("unknown", shorten(text, False), f"{error.what}: {error.found}")
        if not np.array_equal(again, tokens):
            return SourceExcerpt("changed", None, "the text there gives other tokens now")
        begin, end = (begins[at] if at < len(begins) else len(text) for at in span)
        return SourceExcerpt("unchanged", shorten(text[begin:end], False), "the line gives the same tokens")


def shorten(text: str, more: bool) -> str:
    """Return the first characters of a text, with an ellipsis where there are more."""
    return text if len(text) <= SHOWN_CHARACTERS and not more else text[:SHOWN_CHARACTERS] + "…"


class NotReadError(InputError):
    """Text that would be slow or large to read; it may well be unchanged."""


def read_texts(
    folder: RawFolder,
    origins: Iterable[DocumentOrigin],
    text_key: str,
    *,
    most_skipped_bytes: int | None = MOST_SKIPPED_BYTES,
) -> Iterator[str | NanosetError]:
    """Yield the text of each of many documents, as it is in its file now, or the error that says why there is none.

    Documents of a file that follow one another, in its order, are read in one pass over it. Errors are MissingError
    (the file is gone), FormatError (there is no document at that place any more), NotReadError (it is too long, or more
    than `most_skipped_bytes` into compressed text or rows' text) and InputError (the file cannot be read).
    """
    fields = Fields(text_key, "")
    for file, own in groupby(origins, attrgetter("file")):
        lines = _Lines(folder, file, fields, most_skipped_bytes)
        for origin in (asked := list(own)):
            byte = f" (byte {origin.byte_offset:,})" if origin.byte_offset >= 0 else ""
            where = f"{folder / file}:{origin.line}{byte}"
            try:
                yield lines.row(origin.line, asked) if is_table(file) else lines.text(origin.byte_offset)
            except NanosetError as error:
                yield error
            except TooFarError as error:
                yield NotReadError("the text was not read again", where=where, found=str(error))
            except (NotADocumentError, FaultError) as error:
                what, remedy = "the document is not at its place any more", "run `nanoset build`: the file has changed"
                yield FormatError(what, where=where, found=f"{error.reason}: {error.detail}", remedy=remedy)


class _Held(StoredPiece):
    """A piece whose bytes are at hand."""

    def __init__(self, folder: RawFolder, piece: Piece, data: bytes) -> None:
        super().__init__(folder, piece)
        self._data = data

    def blocks(self) -> Iterator[bytes]:
        yield self._data


class _Lines:
    """Read lines or rows of a file: a compressed one, or a table, once if they are asked for in its order."""

    def __init__(self, folder: RawFolder, file: str, fields: Fields, most: int | None) -> None:
        self._folder, self._file, self._fields, self._most = folder, file, fields, most
        self._blocks: Iterator[Any] = iter(())
        self._block: LineBlock | None = None
        self._fault: list[FaultError] = []
        self._row: tuple[int, DocumentBatch | TooFarError] = 0, DocumentBatch()

    def _whole(self) -> StoredPiece:
        with open_raw(self._folder / self._file) as opened:
            size = status_of(opened).st_size
        return StoredPiece(self._folder, Piece(self._file, 0, size, 1, ""))

    def _restart(self, stored: StoredPiece) -> LineBlock:
        self._blocks, self._fault = read_lines(stored, MOST_LINE_BYTES), []
        return LineBlock([], 1, stored.piece.begin, stored.piece.begin)

    def _line_at(self, offset: int) -> StoredPiece:
        """Return the line at a byte, with the end of the line before; a short one of an object is one request."""
        begin, length = max(offset - 1, 0), WINDOW_BYTES
        while True:
            with open_raw(self._folder / self._file, begin=begin, end=begin + length) as file:
                last = min(status_of(file).st_size, offset + MOST_LINE_BYTES + 2)
                data = next(blocks_of(file, begin, min(begin + length, last), length), b"")
            end = data.find(b"\n", offset - begin) + 1
            if end or begin + len(data) >= last:
                data = data[:end] if end else data
                return _Held(self._folder, Piece(self._file, begin, begin + len(data), 1, ""), data)
            length *= 8

    def _next(self) -> Any:
        """Return the next lines, or row, None at the end; raise the fault that ends them each time."""
        try:
            if not self._fault:
                return next(self._blocks, None)
        except FaultError as error:
            self._fault.append(error)
        raise self._fault[0]

    def text(self, offset: int) -> str:
        """Return the text of the line at a byte of the decompressed file."""
        if is_cuttable(self._file):
            block = self._restart(self._line_at(offset))
        elif self._most is not None and offset > self._most:
            raise TooFarError(f"{offset:,} bytes into compressed text")
        else:
            is_ahead = self._block is not None and offset >= self._block.begin
            block = self._block if self._block is not None and is_ahead else self._restart(self._whole())
        while block.end <= offset:
            block = self._block = self._next() or _gone("no_line", "the text ends before that byte")
        if block.long_bytes:
            raise TooFarError(f"a line of more than {MOST_LINE_BYTES:,} bytes")
        *begins, end = accumulate((len(line) + 1 for line in block.lines), initial=block.begin)
        if offset not in begins:
            _gone("no_line", "no line begins there")
        if end > block.end:
            self._next()  # the last line has no end: a fault may have cut it
        return parse_line(block.lines[begins.index(offset)], self._fields)[0]

    def row(self, number: int, asked: Iterable[DocumentOrigin]) -> str:
        """Return the text of a row of a table, from 1; `asked`: all documents of it whose texts are asked for."""
        row, found = self._row
        if not 0 < row <= number:
            numbers = sorted({origin.line for origin in asked if origin.line >= number})
            self._blocks, self._fault, row = self._rows(numbers), [], 0
        while row < number:
            row, found = self._row = self._next() or _gone("no_row", "the table ends before that row")
        if isinstance(found, TooFarError):
            raise found
        return found.texts[0] if found.texts else _gone(found.rejects[0].reason, found.rejects[0].detail)

    def _rows(self, numbers: Sequence[int]) -> Iterator[tuple[int, DocumentBatch | TooFarError]]:
        reader, path = RowReader(self._file, self._fields, MOST_LINE_BYTES), self._folder / self._file

        def convert(rows: Any, row: int) -> tuple[int, DocumentBatch | TooFarError]:
            return row, rows if isinstance(rows, TooFarError) else reader.documents(rows, row)

        return read_table(path, reader.choose, convert, rows=numbers, most_skipped_bytes=self._most)


def _gone(reason: str, detail: str) -> NoReturn:
    raise NotADocumentError(reason, detail)


def file_state(
    inventory: Inventory | None, memory: FingerprintMemory, folder: RawFolder, file: str, byte: int
) -> SourceState:
    """Tell whether a file, or the piece of it that holds a byte, is as the inventory says.

    Nothing is read if size and times are those of when the file was hashed, as the memory of the folder holds them.
    Otherwise the piece is hashed again, unless it is above 256 MiB (`unknown`, as a file without an inventory is).
    Of a compressed file or table any byte will do.
    """
    if not (folder / file).is_file():
        return "gone"
    if inventory is None:
        return "unknown"
    pieces = [piece for piece in inventory.pieces if piece.path == file]
    stat = stat_file(folder, file)
    if not pieces or stat.size < pieces[-1].end:
        return "changed"
    if (known := memory.recall(stat)) is not None:
        return "unchanged" if known == pieces or is_same_object(known[0], pieces[0]) else "changed"
    piece = next((piece for piece in pieces if piece.begin <= byte < piece.end), pieces[0])
    if piece.size > MOST_HASHED_BYTES:
        return "unknown"
    try:
        StoredPiece(folder, piece).check()
    except SourceChangedError:
        return "changed"
    return "unchanged"
