"""Reading shards back: tokens in the order in which they lie."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import orjson

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.shuffling.members import check_member_size, decode_member
from nanoset_core.shuffling.tar import iterate_members, map_archive
from nanoset_core.shuffling.webdataset import MANIFEST_NAME
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import open_regular


def iterate_shard(path: Path | str, begin: int = 0) -> Iterator[np.ndarray]:
    """Contexts of one shard in order, each int[length]: ``npy`` in its own dtype, ``json.gz`` as int64.

    The first ``begin`` are passed over unread. Raises MissingError, and FormatError for a damaged tar or a member that
    is not a context.
    """
    path = Path(path)
    archive = map_archive(path)
    for member in islice(iterate_members(archive, path), begin, None):
        check_member_size(member.name, member.size_bytes, f"{path}, offset {member.offset}")
        body = archive[member.offset : member.offset + member.size_bytes]
        yield decode_member(member.name, body, f"{path}, offset {member.offset}")


def read_shard(path: Path | str) -> np.ndarray:
    """All contexts of one shard, int[samples, sequence_length]; raises as iterate_shard, and for unequal lengths."""
    contexts = list(iterate_shard(path))
    lengths = sorted({len(context) for context in contexts})
    if len(lengths) != 1:
        raise FormatError(
            "the contexts of a shard must have one length",
            where=path,
            found=f"{len(contexts)} contexts of lengths {lengths[:5]}",
            expected="at least one context, all of one length",
            remedy="read it with iterate_shard, or make the shard again",
        )
    return np.stack(contexts)


def iterate_shards(folder: Path | str) -> Iterator[np.ndarray]:
    """Contexts of a whole dataset in the order of its ``manifest.jsonl``, each int[length].

    Raises MissingError without a manifest or shard, FormatError where a shard does not hold what the manifest says.
    """
    folder = Path(folder)
    for stem, samples in manifest_rows(folder / MANIFEST_NAME):
        yield from iterate_counted(folder / f"{stem}.tar", samples)


def iterate_counted(path: Path, samples: int, begin: int = 0) -> Iterator[np.ndarray]:
    """Contexts [begin, samples excl) of a shard that holds ``samples``. Raises FormatError when it does not."""
    found = begin
    for context in iterate_shard(path, begin):
        found += 1
        if found > samples:
            break
        yield context
    if found != samples:
        raise FormatError(
            "a shard does not hold what the manifest says",
            where=path,
            found=f"{found} contexts" + (" or more" if found > samples else ""),
            expected=f"{samples} contexts",
            remedy="make the shard again, or fetch it again",
        )


def manifest_rows(path: Path) -> list[tuple[str, int]]:
    """(name without ``.tar``, samples) of each shard of a manifest. Raises MissingError, FormatError."""
    try:
        with open_regular(path) as file:
            lines = file.read().splitlines()
    except FileNotFoundError as error:
        raise MissingError(
            "no manifest of shards", where=path, remedy="finish writing the dataset, or correct the path"
        ) from error
    return [_manifest_row(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _manifest_row(line: bytes, where: str) -> tuple[str, int]:
    try:
        row = orjson.loads(line)
        stem, count = row["shard"], row["num_sequences"]
        if not is_inside(stem) or not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError("shard must name a file below the manifest's folder, num_sequences be a whole number")
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            "not a row of a manifest of shards",
            where=where,
            found=f"{line[:80]!r} ({error})",
            expected='{"shard": "shard-00000000", "num_sequences": 8192, ...}',
            remedy="write the manifest again",
        ) from error
    return stem, count
