"""Write the index of a JSONL file that Modalities needs: where each line starts, and its length."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.execution.progress import SILENT, Progress, RunningWork
from nanoset_core.formats.pbin.pickle_codec import Entries, encode_index
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.regular_files import open_regular, required

_BLOCK_BYTES = 1 << 23
"""Bytes of text that are read at once."""
_MAX_NAMED_LINES = 100
"""Largest number of lines in `RawIndexFacts.first_dropped`."""


@dataclass(frozen=True, slots=True)
class RawIndexFacts:
    """Counts of the lines in a text and in its index."""

    path: Path
    """Path of the index."""
    lines: int
    """Lines of the text."""
    documents: int
    """Lines in the index."""
    dropped: int
    """Lines that are not in the index, since they are not JSON."""
    first_dropped: tuple[int, ...]
    """1-based numbers of the first hundred lines that are not JSON."""


def create_raw_index(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    on_fault: Literal["raise", "drop"] = "raise",
    progress: Progress = SILENT,
) -> RawIndexFacts:
    """Write where each line of a JSONL file starts, and how long it is, for the trainer Modalities.

    In a JSONL file, each line is a document. Modalities needs this index (`.idx`) to read any of
    them without a search. For a file with the lines `{"text": "a"}` and `{"text": "bc"}`, it is

        [(0, 13), (14, 14)]        (start, length), in bytes; line feeds are not counted

    as a pickled list, byte for byte as Modalities' `IndexGenerator` writes it.

    Args:
        source: The text, which must not be compressed. It is read in blocks of 8 MiB, or of a
            longer line.
        target: The index; by default the source's name with `.idx` in place of its last extension.
        on_fault: `raise`: a line that is not JSON is an error; `drop`: it is left out of the index.
        progress: Shows how far the work has come.

    Raises:
        MissingError: The text does not exist.
        InputError: A line is not JSON, and `on_fault` is "raise".
        ConfigError: The index would replace the text.
    """
    source = Path(source)
    path = source.with_suffix(".idx") if target is None else Path(target)
    if path == source:
        raise ConfigError("the index would replace the text", where=path, remedy="give a target")
    work = progress.work("index", source.name, _size_if_file(source))
    lines = _Lines(source, on_fault, work)
    with atomic_file(path) as file:
        file.writelines(encode_index(lines.entries()))
    return lines.facts(path)


def _size_if_file(path: Path) -> int:
    """Return the size of a file for the progress bar, 0 if it is missing."""
    return path.stat().st_size if path.is_file() else 0


@dataclass(slots=True)
class _Lines:
    """Reads the lines of a text, and counts them on the way."""

    source: Path
    """The text."""
    on_fault: Literal["raise", "drop"]
    """Whether a line that is not JSON is an error, or is left out of the index."""
    work: RunningWork
    """Shows how many bytes were read."""
    total: int = 0
    """Lines that were read so far."""
    documents: int = 0
    """Lines that are JSON."""
    first_dropped: list[int] = field(default_factory=list)
    """1-based numbers of the first lines that are not JSON."""

    def entries(self) -> Iterator[Entries]:
        """Yield where each line of the text that is JSON starts, and how many bytes it has.

        The text is read in blocks of about 8 MiB. Lines that are not JSON are left out, or raise an
        error: the user chooses that by `on_fault`, which is "drop" or "raise". All lines are
        counted in `total`, and those that are JSON in `documents`.

        Yields:
            The starts and lengths of the JSON lines of a block, in bytes. The lines `{}` and `[1]`
            give the starts 0, 3 and the lengths 2, 3.

        Raises:
            MissingError: The text does not exist.
            InputError: A line is not JSON, and `on_fault` is "raise".
        """
        is_json = _json_test()  # a function that tests whether a line is JSON
        # If the file is missing, this raises an error with the advice to name one that exists.
        with required(self.source, "a .jsonl file", "name a file that exists"):
            file = open_regular(self.source)

        block_start = 0  # byte of the text
        with file:
            for lines in _blocks(file):
                yield self._entries_of_json(lines, block_start, is_json)
                block_bytes = sum(len(line) for line in lines)
                self.work.advance(block_bytes)  # the progress bar
                block_start += block_bytes

    def _entries_of_json(
        self, lines: list[bytes], block_start: int, is_json: Callable[[bytes], bool]
    ) -> Entries:
        """Count some lines of a text, and return where those that are JSON start.

        For example, `{}` and `[1]` are JSON and `no json` is not, so their three lines give the
        starts 0, 11 and the lengths 2, 3:

            line         {}    no json    [1]
            starts at    0     3          11

        Args:
            lines: The lines, with their line feeds.
            block_start: The byte of the text at which the first line starts.
            is_json: Tells whether a line is JSON.

        Raises:
            InputError: A line is not JSON, and `on_fault` is "raise".
        """
        entries = _entries_of(lines, block_start)
        is_document = np.fromiter(map(is_json, lines), bool, len(lines))  # (n_lines,)
        self._count_lines(lines, entries, is_document)
        return Entries(entries.offsets[is_document], entries.lengths[is_document])

    def facts(self, path: Path) -> RawIndexFacts:
        """Return the counts of the lines that were read, and the path of their index."""
        return RawIndexFacts(
            path=path,
            lines=self.total,
            documents=self.documents,
            dropped=self.total - self.documents,
            first_dropped=tuple(self.first_dropped),
        )

    def _count_lines(
        self, lines: list[bytes], entries: Entries, is_document: NDArray[np.bool_]
    ) -> None:
        """Count the next lines of a text, and note the numbers of those that are not JSON.

        For example, if the third line of the text is not JSON, 3 is noted for the report. If the
        user does not want to drop such lines, it is an error instead.

        Args:
            lines: The lines, with their line feeds.
            entries: Where they are in the text.
            is_document: Whether each line is JSON, shape (n_lines,).

        Raises:
            InputError: A line is not JSON, and `on_fault` is "raise".
        """
        first_number = self.total + 1  # of the first of these lines in the text, from 1 on
        faulty = np.flatnonzero(~is_document)  # indices in `lines`
        if len(faulty) and self.on_fault == "raise":
            index = int(faulty[0])
            raise self._not_json(lines[index], first_number + index, int(entries.offsets[index]))

        # Store the numbers of the first dropped lines only: there may be very many.
        dropped = (first_number + faulty).tolist()
        self.first_dropped = [*self.first_dropped, *dropped][:_MAX_NAMED_LINES]
        self.total += len(lines)
        self.documents += len(lines) - len(faulty)

    def _not_json(self, line: bytes, line_number: int, offset: int) -> InputError:
        """Return the error for a line that is not JSON.

        Args:
            line: The line.
            line_number: Its number, from 1 on.
            offset: The byte of the text at which it starts.
        """
        is_blank = not line.strip()
        return InputError(
            "this line is blank" if is_blank else "this line is not JSON",
            where=f"{self.source}, line {line_number}, byte {offset}",
            found=repr(line[:80]),
            expected="one JSON value on each line of a plain (not compressed) file",
            remedy="make the line valid JSON, "
            "or leave such lines out: --drop-faulty (on_fault='drop')",
        )


def _entries_of(lines: list[bytes], block_start: int) -> Entries:
    """Return where each line of a text starts, and its length without the line feed.

        line                  {}    no json    [1]
        with line feed        3     8          4
        starts at             0     3          11
        length                2     7          3

    Args:
        lines: Consecutive lines, with their line feeds. Only the last line of a text may have none.
        block_start: The byte of the text at which the first line starts.
    """
    sizes = np.fromiter(map(len, lines), np.int64, len(lines))  # (n_lines,) with line feeds
    stops = block_start + np.cumsum(sizes)
    lengths = sizes - 1
    if not lines[-1].endswith(b"\n"):
        lengths[-1] = sizes[-1]
    return Entries(stops - sizes, lengths)


def _blocks(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines of a file in blocks; an empty file is one empty line."""
    lines = file.readlines(_BLOCK_BYTES) or [b""]
    while lines:
        yield lines
        lines = file.readlines(_BLOCK_BYTES)


def _json_test() -> Callable[[bytes], bool]:
    """Return a function that tells whether a line is JSON for Modalities, which uses `json.loads`.

    It is created once for all lines, since it imports a library.
    """
    # Imported here, since readers of .pbin files need numpy alone.
    import orjson

    return partial(_is_json, orjson.loads)


def _is_json(fast_loads: Callable[[bytes], object], line: bytes) -> bool:
    """Return whether a line is JSON for Python's json module, which the trainer Modalities uses.

    A faster parser is tried first. It refuses a few things that Python's module accepts, such as
    NaN, so Python's module has the last word.

    Args:
        fast_loads: The faster parser, `orjson.loads`.
        line: The line, with its line feed.
    """
    try:
        fast_loads(line)
        return True
    except ValueError:
        pass  # Python's module accepts more, such as NaN and other encodings than UTF-8

    # Without its line feed: this is a single byte, and so it would be wrong in UTF-16 or UTF-32,
    # which use two or four bytes for each character.
    try:
        json.loads(line.removesuffix(b"\n"))
        return True
    except (ValueError, RecursionError):
        return False
