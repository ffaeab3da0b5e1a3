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
from nanoset_core.formats.pbin.layout import required
from nanoset_core.formats.pbin.pickle_codec import Entries, encode_index
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.regular_files import open_regular

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
    """Write the `.idx` of an uncompressed JSONL file.

    It is a pickled list with the (byte offset, length) of each line, byte for byte as Modalities'
    `IndexGenerator` writes it. The length does not include the line feed at the end of a line, but
    a carriage return before it. The last line may lack its line feed. It takes memory for 8 MiB of
    text, or for the longest line. The index appears once it is complete.

    Args:
        source: The text.
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

    text_bytes = source.stat().st_size if source.is_file() else 0
    lines = _Lines(source, on_fault, progress.work("index", source.name, text_bytes))
    with atomic_file(path) as file:
        file.writelines(encode_index(lines.entries()))
    return RawIndexFacts(
        path=path,
        lines=lines.total,
        documents=lines.documents,
        dropped=lines.total - lines.documents,
        first_dropped=tuple(lines.first_dropped),
    )


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
        """Yield the entries of the lines that are JSON, block by block."""
        is_json = _json_test()
        with required(self.source, "a .jsonl file", "name a file that exists"):
            file = open_regular(self.source)
        with file:
            for lines in _blocks(file):
                # (n_lines,) bytes of each line, with and without its line feed; only the last line
                # of the file may have none
                sizes = np.fromiter(map(len, lines), np.int64, len(lines))
                lengths = sizes - 1
                if not lines[-1].endswith(b"\n"):
                    lengths[-1] += 1
                # The file was read up to the end of the last line.
                block_start = file.tell() - sizes.sum()
                stops = block_start + np.cumsum(sizes)
                entries = Entries(stops - sizes, lengths)

                is_document = np.fromiter(map(is_json, lines), bool, len(lines))
                self._count(lines, entries, is_document)
                self.work.advance(int(sizes.sum()))
                yield Entries(entries.offsets[is_document], entries.lengths[is_document])

    def _count(self, lines: list[bytes], entries: Entries, is_document: NDArray[np.bool_]) -> None:
        """Count the lines of a block.

        Args:
            lines: The lines, with their line feeds.
            entries: Where they are in the text.
            is_document: Whether each line is JSON, shape (n_lines,).

        Raises:
            InputError: A line is not JSON, and `on_fault` is "raise".
        """
        faulty = np.flatnonzero(~is_document)
        if len(faulty) and self.on_fault == "raise":
            first_faulty = int(faulty[0])
            line = lines[first_faulty]
            is_blank = not line.strip()
            raise InputError(
                "this line is blank" if is_blank else "this line is not JSON",
                where=f"{self.source}, line {self.total + first_faulty + 1}, "
                f"byte {int(entries.offsets[first_faulty])}",
                found=repr(line[:80]),
                expected="one JSON value on each line of a plain (not compressed) file",
                remedy="make the line valid JSON, "
                "or leave such lines out: --drop-faulty (on_fault='drop')",
            )
        n_unnamed = _MAX_NAMED_LINES - len(self.first_dropped)
        self.first_dropped.extend((self.total + 1 + faulty[:n_unnamed]).tolist())
        self.total += len(lines)
        self.documents += len(lines) - len(faulty)


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
    """Return whether a line is JSON for Python's json module.

    Args:
        fast_loads: A faster parser, `orjson.loads`, which is tried first.
        line: The line, with its line feed.
    """
    # What orjson accepts, json accepts, too, except for integers of more than 4,300 digits.
    try:
        fast_loads(line)
    except ValueError:
        try:
            # json also reads UTF-16 and UTF-32, which a line feed of one byte would make invalid.
            json.loads(line.removesuffix(b"\n"))
        except (ValueError, RecursionError):
            return False
    return True
