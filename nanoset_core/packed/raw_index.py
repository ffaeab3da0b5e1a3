"""The index that Modalities keeps beside a JSONL file: where each line lies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.packed.pickle_reader import Entries
from nanoset_core.packed.writing import write_index
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.regular_files import open_regular

_BLOCK_BYTES = 1 << 23


@dataclass(frozen=True, slots=True)
class RawIndexFacts:
    """What was found in a JSONL file."""

    path: Path
    """Of the index."""
    lines: int
    """Lines of the file."""
    documents: int
    """Lines in the index."""
    dropped: int
    """Lines that are no JSON, and were left out: lines = documents + dropped."""
    first_dropped: tuple[int, ...]
    """1-based numbers of the first hundred of them."""


def create_raw_index(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    on_fault: Literal["raise", "drop"] = "raise",
    listener: ProgressCallback = silent,
) -> RawIndexFacts:
    """Write the `.idx` of a plain JSONL file: a pickled list of its lines' (byte offset, length); published whole.

    A line ends with a line feed, which does not count (a carriage return does), the last one also with the file.
    Every line must be JSON. The same bytes as Modalities' `IndexGenerator`. Memory is bounded by a block of 8 MiB
    or the longest line.

    Args:
        source: the text.
        target: where to; None is the source's name with `.idx` for its last extension.
        on_fault: whether to `raise` at the first line that is no JSON, a blank one included, or to `drop` such lines.
        listener: hears the progress.

    Raises:
        MissingError: there is no such file.
        InputError: a line is no JSON, with `raise`.
        ConfigError: there is no such policy, or the index would replace the text.
    """
    if on_fault not in ("raise", "drop"):
        raise ConfigError(
            "no such policy",
            where="on_fault",
            found=repr(on_fault),
            expected="'raise' or 'drop'",
            remedy="choose one of them",
        )
    source = Path(source)
    path = source.with_suffix(".idx") if target is None else Path(target)
    if path == source:
        raise ConfigError(
            "the index would replace the text", where=path, expected="another name", remedy="give a target"
        )
    size = source.stat().st_size if source.is_file() else 0
    scan = _Scan(source, Meter(listener, "index", source.name, size), drop=on_fault == "drop")
    with atomic_file(path) as file:
        write_index(file, scan.entries())
    return RawIndexFacts(path, scan.lines, scan.lines - scan.dropped, scan.dropped, tuple(scan.first_dropped))


class _Scan:
    """One pass over a file's lines."""

    def __init__(self, source: Path, meter: Meter, *, drop: bool) -> None:
        self._source = source
        self._meter = meter
        self._drop = drop
        self.lines = 0
        self.dropped = 0
        self.first_dropped: list[int] = []

    def entries(self) -> Iterator[Entries]:
        """(offsets, lengths) of the lines in bytes, a block at a time."""
        is_json = json_test()
        for begin, lines in _line_blocks(self._source):
            lengths = np.fromiter(map(len, lines), np.int64, len(lines))
            ends = np.cumsum(lengths + 1)
            offsets = begin + ends - lengths - 1
            good = np.fromiter(map(is_json, lines), bool, len(lines))
            if not good.all():
                self._fault(lines, offsets, good)
                offsets, lengths = offsets[good], lengths[good]
            self.lines += len(lines)
            self._meter.advance(int(ends[-1]))
            yield offsets, lengths

    def _fault(self, lines: list[bytes], offsets: NDArray[np.int64], good: NDArray[np.bool_]) -> None:
        bad = np.flatnonzero(~good)
        if not self._drop:
            at = int(bad[0])
            raise InputError(
                "this line is not JSON" if lines[at].strip() else "this line is blank",
                where=f"{self._source}, line {self.lines + at + 1}, byte {int(offsets[at])}",
                found=repr(lines[at][:80]),
                expected="one JSON value on each line of a plain (not compressed) file",
                remedy="make the line valid JSON, or leave such lines out with on_fault='drop'",
            )
        self.dropped += len(bad)
        self.first_dropped += (self.lines + bad[: 100 - len(self.first_dropped)] + 1).tolist()


def json_test() -> Callable[[bytes], bool]:
    """A function that tells whether Python's `json.loads`, which Modalities asks, takes a line.

    orjson is asked first, for speed. It takes less, but for whole numbers of more than 4,300 digits.
    """
    import orjson

    def is_json(line: bytes) -> bool:
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError:
            try:
                json.loads(line)
            except (ValueError, RecursionError):
                return False
        return True

    return is_json


def _line_blocks(source: Path) -> Iterator[tuple[int, list[bytes]]]:
    """(offset of the first line, whole lines without their line feeds); an empty file is one empty line."""
    try:
        file = open_regular(source)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise MissingError(
            "no such file", where=source, expected="a .jsonl file", remedy="name a file that is there"
        ) from error
    with file:
        begin, held = 0, [b""]
        while block := file.read(_BLOCK_BYTES):
            first, *lines = block.split(b"\n")
            held.append(first)
            if lines:
                lines.insert(0, b"".join(held))
                held = [lines.pop()]
                yield begin, lines
                begin = file.tell() - len(held[0])
        last = b"".join(held)
        if last or file.tell() == 0:
            yield begin, [last]
