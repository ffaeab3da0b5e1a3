"""Raw files as a listing finds them, their pieces by a slow rule, and random parts of data."""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from itertools import pairwise
from pathlib import Path

from hypothesis import strategies as st

from nanoset_core.storage.file_stats import FileStat
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.inventory.pieces import Piece

HOUR_NS = 3600 * 10**9
LINE = st.binary(max_size=30).map(lambda line: line.replace(b"\n", b""))
LINES = st.lists(LINE, max_size=30)
"""Lines of a file, without their line ends."""


def write_aged(path: Path, data: bytes = b"{}\n", *, age_seconds: float = 3600) -> Path:
    """Write a file, and the folders above it, as if it was written some time ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    written_ns = time.time_ns() - int(age_seconds * 1e9)
    os.utime(path, ns=(written_ns, written_ns))
    return path


def write_old(folder: Path, name: str, data: bytes) -> FileStat:
    """Write a file as if it was written an hour ago, and return how a listing finds it."""
    write_aged(folder / name, data)
    [stat] = [file for file in contents_of(folder).ordered if file.path == name]
    return stat


def random_parts(data: bytes, rng: random.Random, max_parts: int) -> list[bytes]:
    """Divide data at random into at least one part and at most `max_parts`; some may be empty."""
    n_cuts = rng.randrange(max_parts)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(n_cuts))
    bounds = [0, *cuts, len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds)]


def cut_slowly(name: str, data: bytes, piece_bytes: int) -> list[Piece]:
    """Cut a file one line at a time: a piece ends with the first line that fills it."""
    pieces = []
    start = 0
    first_line = 1
    stop = 0
    line_number = 1
    if name.endswith(".jsonl"):  # other files are not cut
        for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
            stop += len(line)
            line_number += line.endswith(b"\n")
            if stop - start >= piece_bytes and stop < len(data):
                pieces.append(_piece(name, data, start, stop, first_line))
                start = stop
                first_line = line_number
    pieces.append(_piece(name, data, start, len(data), first_line))
    return pieces


def _piece(name: str, data: bytes, start: int, stop: int, first_line: int) -> Piece:
    """Return the piece of a file between two bytes, with its digest."""
    digest = hashlib.sha256(data[start:stop]).hexdigest()
    return Piece(name, start, stop, first_line, digest)
