"""Write the index that Modalities keeps beside a JSONL file: where each line lies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.formats.pbin.layout import required
from nanoset_core.formats.pbin.pickle_codec import Entries, encode_index
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.regular_files import open_regular

_BLOCK_BYTES = 1 << 23
_NAMED_LINES = 100


@dataclass(frozen=True, slots=True)
class RawIndexFacts:
    """The facts of a JSONL file."""

    path: Path
    """Of the index."""
    lines: int
    documents: int
    """Lines in the index."""
    dropped: int
    """The other lines, which are no JSON."""
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
    Every line must be JSON; `drop` leaves others out. The same bytes as Modalities' `IndexGenerator`. Memory is bounded
    by a block of 8 MiB or the longest line. A `target` of None is the source's name with `.idx` for its last extension.

    Raises:
        MissingError: there is no such file.
        InputError: a line is no JSON, with `raise`.
        ConfigError: the index would replace the text.
    """
    import orjson  # not for readers: they need numpy alone

    source = Path(source)
    path = source.with_suffix(".idx") if target is None else Path(target)
    if path == source:
        raise ConfigError("the index would replace the text", where=path, remedy="give a target")
    meter = Meter(listener, "index", source.name, source.stat().st_size if source.is_file() else 0)
    total = documents = 0
    first_dropped: list[int] = []

    def entries() -> Iterator[Entries]:
        nonlocal total, documents
        with required(source, "a .jsonl file", "name a file that is there"):
            file = open_regular(source)
        with file:
            # An empty file is one empty line.
            while lines := file.readlines(_BLOCK_BYTES) or [b""] * (not total):
                sizes = np.fromiter(map(len, lines), np.int64, len(lines))
                ends, lengths = np.cumsum(sizes), sizes - 1
                offsets = file.tell() - ends[-1] + ends - sizes
                lengths[-1] += not lines[-1].endswith(b"\n")
                good = np.fromiter(map(partial(_is_json, orjson), lines), bool, len(lines))
                bad = np.flatnonzero(~good)
                if len(bad) and on_fault != "drop":
                    at = int(bad[0])
                    what = "this line is not JSON" if lines[at].strip() else "this line is blank"
                    where = f"{source}, line {total + at + 1}, byte {int(offsets[at])}"
                    expected = "one JSON value on each line of a plain (not compressed) file"
                    remedy = "make the line valid JSON, or leave such lines out: --drop-faulty (on_fault='drop')"
                    raise InputError(what, where=where, found=repr(lines[at][:80]), expected=expected, remedy=remedy)
                first_dropped.extend((total + bad[: _NAMED_LINES - len(first_dropped)] + 1).tolist())
                total, documents = total + len(lines), documents + len(lines) - len(bad)
                meter.advance(int(ends[-1]))
                yield offsets[good], lengths[good]

    with atomic_file(path) as file:
        file.writelines(encode_index(entries()))
    return RawIndexFacts(path, total, documents, total - documents, tuple(first_dropped))


def _is_json(orjson: Any, line: bytes) -> bool:
    # orjson is faster than Modalities' `json.loads`, and accepts less, but for whole numbers of more than 4,300 digits
    try:
        orjson.loads(line)
    except ValueError:
        try:
            json.loads(line.removesuffix(b"\n"))  # which may make it UTF-16 or UTF-32
        except (ValueError, RecursionError):
            return False
    return True
