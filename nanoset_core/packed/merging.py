"""Joining `.pbin` files into one of layout D; of one file it makes a copy with a sound index."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nanoset_core.errors import ConfigError, SourceChangedError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.packed.index import IndexFacts, document_entries, scan_index
from nanoset_core.packed.layout import PackedFile, common_token_bytes, encode_header, open_packed
from nanoset_core.packed.pickle_reader import Entries
from nanoset_core.packed.writing import PackedFacts, check_not_empty, copy_tokens, write_index, write_tokens
from nanoset_core.storage.atomic import atomic_file


def merge_packed(
    paths: Iterable[str | os.PathLike[str]], target: str | os.PathLike[str], *, listener: ProgressCallback = silent
) -> PackedFacts:
    """Join `.pbin` files of any layout, in the order given, into one of layout D; published whole.

    The tokens are those of Modalities' `merge_packed_data`, the index is right (there, the documents of file k are
    12 (k - 1) bytes off), and files with that fault are repaired. Memory is bounded by a chunk.

    Raises:
        ConfigError: the list is empty.
        FormatError: a file is damaged, or token sizes differ.
        InputError: there are no tokens at all.
    """
    parts = [_Part.scan(path) for path in paths]
    if not parts:
        raise ConfigError("nothing to merge", where=target, expected="one file or more", remedy="name a .pbin")
    token_bytes = common_token_bytes(parts)
    data_bytes = sum(part.data_bytes for part in parts)
    check_not_empty(target, data_bytes)
    meter = Meter(listener, "merge", Path(target).name, data_bytes)
    with atomic_file(Path(target)) as file:
        file.write(encode_header(data_bytes, token_bytes))
        for part in parts:
            _append_tokens(part.open(), file, meter)
        write_index(file, _joined_entries(parts))
    documents = sum(part.facts.documents for part in parts)
    return PackedFacts(documents, data_bytes // token_bytes, token_bytes)


def repair_packed(
    path: str | os.PathLike[str], target: str | os.PathLike[str] | None = None, *, listener: ProgressCallback = silent
) -> PackedFacts:
    """Write a `.pbin` again, as layout D with a sound index: what Modalities' own reader needs.

    A file that is sound already comes out byte for byte the same, unless another program pickled its index.

    Args:
        path: the file.
        target: where to; None replaces the file.
        listener: hears the progress.

    Raises:
        MissingError, FormatError, InputError: as merge_packed.
    """
    return merge_packed([path], path if target is None else target, listener=listener)


@dataclass(frozen=True, slots=True)
class _Part:
    """One input. It is opened for each pass anew: thousands of them would use up the process's open files."""

    path: Path
    """Of the file."""
    token_bytes: int
    """Bytes of one token."""
    data_bytes: int
    """Bytes of all tokens."""
    facts: IndexFacts
    """Of its index."""

    @classmethod
    def scan(cls, path: str | os.PathLike[str]) -> _Part:
        packed = open_packed(path)
        return cls(packed.path, packed.token_bytes, packed.data_bytes, scan_index(packed))

    def open(self) -> PackedFile:
        packed = open_packed(self.path)
        if (packed.token_bytes, packed.data_bytes) != (self.token_bytes, self.data_bytes):
            raise SourceChangedError(
                "the file changed while it was being merged",
                where=f"{self.path}, byte 0",
                found=f"{packed.data_bytes} bytes of tokens",
                expected=f"{self.data_bytes}",
                remedy="run again once nothing writes to it any more",
            )
        return packed


def _append_tokens(part: PackedFile, file: IO[bytes], meter: Meter) -> None:
    if part.layout.byte_order == "<":
        copy_tokens(part.path, part.layout.header_bytes, part.data_bytes, file, meter)
    else:
        write_tokens(file, part.tokens, part.token_bytes, str(part.path), meter)


def _joined_entries(parts: list[_Part]) -> Iterator[Entries]:
    begin = 0
    for part in parts:
        for starts, lengths in document_entries(part.open(), part.facts):
            yield starts + begin, lengths
        begin += part.data_bytes
