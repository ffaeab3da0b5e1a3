"""Tars as Python's tarfile writes them, with members of any name, kind and content."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import ArrayLike, DTypeLike

from nanoset_core.formats.tars.tar import Archive, TarMember, iterate_entries


class TarEntry(NamedTuple):
    """A member of a tar."""

    name: str
    body: bytes = b""
    """Content, if it is a file."""
    kind: bytes = tarfile.REGTYPE
    """Whether it is a file, a folder or something else."""
    target: str = ""
    """Where it leads, if it is a link."""


def tar_bytes(entries: Iterable[TarEntry], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return a tar with these members.

    Args:
        entries: The members.
        format: One of the formats of tarfile, which differ in how they store long names.
    """
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=format) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type = entry.kind
            info.linkname = entry.target
            info.size = len(entry.body)
            archive.addfile(info, io.BytesIO(entry.body))
    return output.getvalue()


def write_tar(path: Path, entries: Iterable[TarEntry], format: int = tarfile.USTAR_FORMAT) -> Path:
    """Write a tar with these members, and return its path."""
    path.write_bytes(tar_bytes(entries, format))
    return path


def iterate_members(archive: Archive, where: object) -> Iterator[TarMember]:
    """Yield the files of an archive in order; all other entries are left out.

    Args:
        archive: Bytes of the archive.
        where: Name of the archive, for messages.

    Raises:
        FormatError: As for `iterate_entries`.
    """
    for entry in iterate_entries(archive, where):
        if entry.is_file:
            yield entry


def json_gz_bytes(tokens: Sequence[int]) -> bytes:
    """Return tokens as the content of a member `.json.gz`."""
    return gzip.compress(orjson.dumps(tokens), mtime=0)


def npy_bytes(tokens: ArrayLike, dtype: DTypeLike | None = None) -> bytes:
    """Return an array as the content of a member `.npy`."""
    output = io.BytesIO()
    np.save(output, np.array(tokens, dtype))
    return output.getvalue()
