"""Raw files as a listing finds them, and their pieces by the slow rule."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path

from hypothesis import strategies as st

from nanoset_core.text.contents import contents_of
from nanoset_core.text.listing import FileStat
from nanoset_core.text.pieces import Piece

HOUR_NS = 3600 * 10**9
LINES = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=30)
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
    digest = hashlib.sha256(data[start:stop]).hexdigest()
    return Piece(name, start, stop, first_line, digest)
