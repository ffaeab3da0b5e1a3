"""Read the index of a `.pbin`: check it, count from the first token, and correct the offsets of Modalities' merge.

The fault that is corrected: `join_embedded_stream_data` of Modalities (`modalities data merge_packed_data`) shifts the
entries of file k by 12 (k - 1) bytes too little, the headers that the merged file does not have. The tokens are right
and all there, so every document lies just after the one before it. An index is taken for a merged one when the
lengths add up to the tokens and every offset is right or a multiple of 12 too low. No other index is like that:
in one of documents in another order, some offset is too high.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.packed.layout import HEADER_BYTES, REMEDY, PackedFile
from nanoset_core.packed.pickle_codec import decode_index
from nanoset_core.packed.pickle_reader import Entries

_MAX_OFFSET = 1 << 62  # keeps sums from wrapping around


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """The facts of an index."""

    documents: int
    """Entries of the index."""
    tokens: int
    """Tokens of all documents; those of the file, unless documents overlap or leave some out."""
    empty_documents: int
    """Entries without tokens."""
    is_contiguous: bool
    """Whether each document begins where the one before it ends, the first and the last at the ends of the tokens."""
    merge_faults: int
    """Places after which Modalities' merge put the offsets too low; 0 in a sound index."""


def scan_index(packed: PackedFile) -> IndexFacts:
    """Check every entry of the index; no more than one chunk of entries is in memory, unless another pickler wrote it.

    An index whose opcodes are not those of Python's own pickler is read whole: some 150 bytes an entry.

    Raises:
        FormatError: an entry is wrong; the message names the byte or the document.
    """
    scan = _Scan(packed)
    for offsets, lengths in _relative_entries(packed):
        scan.feed(offsets, lengths)
    return scan.finish()


def document_entries(packed: PackedFile, facts: IndexFacts) -> Iterator[Entries]:
    """Yield (starts, lengths) in bytes from the first token, corrected, in chunks; `facts` are those of the scan."""
    begin = 0
    for offsets, lengths in _relative_entries(packed):
        if facts.merge_faults:
            offsets = begin + np.cumsum(lengths) - lengths
            begin = int(offsets[-1] + lengths[-1])
        yield offsets, lengths


def load_index(packed: PackedFile) -> tuple[IndexFacts, NDArray[np.int64], NDArray[np.int64]]:
    """Return the whole index, checked and corrected. Memory: 32 bytes a document while it is read, then 16.

    Returns:
        (facts of the index; the number of each document's first token, and how many tokens it has, both
        int64, shape (documents,))

    Raises:
        FormatError: as scan_index.
    """
    scan = _Scan(packed)
    parts: list[Entries] = []
    for offsets, lengths in _relative_entries(packed):
        scan.feed(offsets, lengths)
        parts.append((offsets // packed.token_bytes, lengths // packed.token_bytes))
    facts = scan.finish()
    none = np.empty(0, np.int64)
    starts = np.concatenate([none, *(part[0] for part in parts)])
    lengths = np.concatenate([none, *(part[1] for part in parts)])
    if facts.merge_faults:
        starts = np.cumsum(lengths) - lengths
    return facts, starts, lengths


def _relative_entries(packed: PackedFile) -> Iterator[Entries]:
    for offsets, lengths in decode_index(packed.view, packed.index_begin, str(packed.path)):
        yield offsets - packed.layout.first_offset if packed.layout.first_offset else offsets, lengths


class _Scan:
    """The check of all entries, which are given in chunks."""

    def __init__(self, packed: PackedFile) -> None:
        self._packed = packed
        self._documents = self._bytes = self._empty = 0
        self._shift = 0
        """How many bytes the last offset is too low for documents back to back."""
        self._shifts = 0
        """How often that changed."""
        self._mergeable = True
        """Whether Modalities' merge makes every shift so far."""
        self._outside: FormatError | None = None
        """Of the first document that is not within the tokens."""

    def feed(self, offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Check the next entries, in bytes from the first token."""
        size, data_bytes = self._packed.token_bytes, self._packed.data_bytes
        wrong = (lengths < 0) | (lengths > data_bytes) | (lengths % size != 0)
        wrong |= (offsets % size != 0) | (offsets > _MAX_OFFSET) | (offsets < -_MAX_OFFSET)
        if wrong.any():
            raise self._misplaced(int(np.argmax(wrong)), offsets, lengths)
        ends = np.cumsum(lengths)
        if (ends < 0).any() or self._bytes + int(ends[-1]) > _MAX_OFFSET:
            raise self._misplaced(len(ends) - 1, offsets, lengths)
        shifts = self._bytes + ends - lengths - offsets
        changes = np.flatnonzero(np.diff(shifts, prepend=self._shift))
        if len(changes):
            self._shifts += len(changes)
            self._mergeable &= not ((shifts < 0) | (shifts % HEADER_BYTES != 0)).any()
            self._shift = int(shifts[-1])
        if self._outside is None:
            outside = (offsets < 0) | (offsets > data_bytes - lengths)
            if outside.any():
                self._outside = self._misplaced(int(np.argmax(outside)), offsets, lengths)
        self._empty += int(np.count_nonzero(lengths == 0))
        self._documents += len(offsets)
        self._bytes += int(ends[-1])

    def finish(self) -> IndexFacts:
        """Return the facts.

        Raises:
            FormatError: a document lies outside the tokens, which Modalities' merge does not explain.
        """
        packed = self._packed
        whole = self._bytes == packed.data_bytes
        contiguous = whole and self._shifts == 0
        faulty = whole and self._shifts > 0 and self._mergeable and packed.layout.first_offset == 0
        if packed.layout.first_offset and not contiguous:
            raise FormatError(
                f"the index is not that of a file of layout {packed.layout.name}",
                where=f"{packed.path}, byte {packed.index_begin}",
                found=f"{self._documents} documents of {self._bytes} bytes, {self._shifts} of them out of place",
                expected=f"documents back to back, {packed.data_bytes} bytes from byte {packed.layout.first_offset}",
                remedy=REMEDY,
            )
        if self._outside is not None and not faulty:
            raise self._outside
        faults = self._shifts if faulty else 0
        return IndexFacts(self._documents, self._bytes // packed.token_bytes, self._empty, contiguous or faulty, faults)

    def _misplaced(self, at: int, offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> FormatError:
        packed = self._packed
        return FormatError(
            "a document lies where no tokens are",
            where=f"{packed.path}, entry {self._documents + at} of the index at byte {packed.index_begin}",
            found=f"{lengths[at]} bytes from byte {offsets[at]} of the tokens",
            expected=f"within [0, {packed.data_bytes}), in multiples of {packed.token_bytes}, the bytes of one token",
            remedy=REMEDY,
        )
