"""One shard of a shuffled webdataset: rows in, a tar out, whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.gather import gather
from nanoset_core.shuffling.members import NpyTile, json_gz_records, member_names
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.tar import ARCHIVE_BYTES, BLOCK_BYTES, end_of_archive, record_bytes
from nanoset_core.storage.atomic import atomic_file

TILE_BYTES = 2 << 20
"""Bytes of tokens gathered, encoded and written at once."""

Fill = Callable[[int, int, NDArray[np.integer[Any]]], object]
"""`fill(begin, end, out)`: put the shard's rows [begin, end excl) into `out`, shape (end - begin, sequence_length)."""


@dataclass(frozen=True, slots=True)
class TarFacts:
    """What one written shard holds."""

    shard: int
    """Its number, from 0."""
    sequences: int
    """Contexts in it."""
    tokens: int
    """Tokens of the sources in it, without padding and BOS."""
    pad_tokens: int
    """Pad tokens in it."""
    size_bytes: int
    """Size of the tar."""
    sha256: str
    """Hex digest of the tar."""

    @property
    def stem(self) -> str:
        """The shard's name without `.tar`, as OpenLM's manifest spells it."""
        return shard_stem(self.shard)


def shard_stem(shard: int) -> str:
    """`shard-%08d`; the tar is this plus `.tar`."""
    return f"shard-{shard:08d}"


def write_shard(
    plan: ShufflePlan, sources: Sequence[TokenSource], shard: int, folder: Path, *, tile_bytes: int = TILE_BYTES
) -> TarFacts:
    """Write `shard-%08d.tar` of the plan into `folder`, whole or not at all; shards can come in any order.

    Rows are gathered, encoded and written by tiles of `tile_bytes` of tokens; memory is a few tiles.

    Raises:
        StaleError: sources or compressor are not the plan's.
        SampleIndexError: the plan has no such shard.
    """
    plan.check_sources(sources)
    contexts = plan.shard_contexts(shard)

    def fill(begin: int, end: int, out: NDArray[np.integer[Any]]) -> None:
        gather(sources, plan.table, contexts[begin:end], out=out)

    return write_rows(plan, shard, contexts, folder, fill, tile_bytes=tile_bytes)


def write_rows(
    plan: ShufflePlan,
    shard: int,
    contexts: NDArray[np.int64],
    folder: Path,
    fill: Fill,
    *,
    tile_bytes: int = TILE_BYTES,
    sync: bool = True,
) -> TarFacts:
    """Write a shard out of rows that a function gives.

    Args:
        plan: decides the bytes.
        shard: its number.
        contexts: numbers of the contexts that it holds, int64, shape (samples,).
        folder: where the tar goes.
        fill: gives the rows.
        tile_bytes: tokens gathered, encoded and written at once.
        sync: False leaves it to the caller to call `fsync_folder`, once for several shards.

    Raises:
        StaleError: this machine's compressor is not the plan's.
    """
    plan.check_compressor()
    rows = min(len(contexts), max(1, tile_bytes // (plan.sequence_length * np.dtype(plan.dtype).itemsize)))
    write = _write_npy if plan.member == "npy" else _write_json_gz
    with hashed_file(Path(folder) / f"{shard_stem(shard)}.tar", sync=sync) as tar:
        write(plan, shard, len(contexts), rows, fill, tar)
        tar.write(end_of_archive(tar.size_bytes))
        size_bytes, sha256 = tar.size_bytes, tar.sha256
    pad_tokens = plan.table.pad_tokens(contexts) if plan.pad_tokens else 0
    tokens = len(contexts) * plan.table.row_tokens - pad_tokens
    return TarFacts(shard, len(contexts), tokens, pad_tokens, size_bytes, sha256)


def _write_npy(plan: ShufflePlan, shard: int, samples: int, rows: int, fill: Fill, tar: HashedFile) -> None:
    """Two tiles by turns: one is filled while the other is hashed."""
    name_bytes = member_names(shard, 0, 0, "npy").shape[1]
    tiles = [NpyTile(rows, plan.sequence_length, np.dtype(plan.dtype), name_bytes) for _ in range(2)]
    hashed: list[Future[None] | None] = [None, None]
    for turn, begin in enumerate(range(0, samples, rows)):
        end = min(begin + rows, samples)
        if (busy := hashed[turn % 2]) is not None:
            busy.result()
        records, data = tiles[turn % 2].name(member_names(shard, begin, end, "npy"))
        fill(begin, end, data)
        hashed[turn % 2] = tar.write(records)


def _write_json_gz(plan: ShufflePlan, shard: int, samples: int, rows: int, fill: Fill, tar: HashedFile) -> None:
    tile = np.empty((rows, plan.sequence_length), dtype=plan.dtype)
    for begin in range(0, samples, rows):
        end = min(begin + rows, samples)
        fill(begin, end, tile[: end - begin])
        tar.write(json_gz_records(member_names(shard, begin, end, "json.gz"), tile[: end - begin]))


class HashedFile:
    """A binary file under construction: its size and sha256 so far."""

    __slots__ = ("_file", "_hasher", "_hashing", "_sha256", "size_bytes")

    def __init__(self, file: BinaryIO, hasher: ThreadPoolExecutor) -> None:
        self._file = file
        self._hasher = hasher
        self._hashing: Future[None] | None = None
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes | NDArray[np.uint8]) -> Future[None]:
        """Append bytes, or an array that is contiguous; it must stay as it is until the future is done (hashed)."""
        view = memoryview(data).cast("B") if isinstance(data, bytes) else data.reshape(-1).view(np.uint8).data
        self._hashing = self._hasher.submit(self._sha256.update, view)
        self._file.write(view)
        self.size_bytes += view.nbytes
        return self._hashing

    @property
    def sha256(self) -> str:
        """Hex digest of what was written."""
        if self._hashing is not None:
            self._hashing.result()
        return self._sha256.hexdigest()


@contextlib.contextmanager
def hashed_file(path: Path, *, sync: bool = True) -> Iterator[HashedFile]:
    """Write `path` under a temporary name beside it; flush, fsync and rename when the block ends well.

    `sync=False` leaves it to the caller to call `fsync_folder`, once for several files.
    When the block fails, nothing is left behind. Two writers of one path don't disturb each other: the last one stays.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="sha256") as hasher, atomic_file(path, sync=sync) as file:
        yield HashedFile(file, hasher)


_NPY_HEADER_BYTES = 128
_JSON_GZ_BYTES = 2.0
"""Bytes of a token of text as gzipped JSON: 1.7 to 2.1, by vocabulary and language."""


def output_bytes(plan: ShufflePlan) -> tuple[int, bool]:
    """Bytes of all tars, and whether that is exact (`npy`) or about right for text (`json.gz`)."""
    if plan.member == "npy":
        record = record_bytes(_NPY_HEADER_BYTES + plan.sequence_length * np.dtype(plan.dtype).itemsize)
        sizes = {end - begin for begin, end in (plan.shard_ranks(0), plan.shard_ranks(plan.shards - 1))}
        weight = {count: record * count + len(end_of_archive(record * count)) for count in sizes}
        first, last = (end - begin for begin, end in (plan.shard_ranks(0), plan.shard_ranks(plan.shards - 1)))
        return weight[first] * (plan.shards - 1) + weight[last], True
    body = plan.tokens / max(plan.contexts, 1) * _JSON_GZ_BYTES + BLOCK_BYTES / 2
    return int(plan.contexts * (BLOCK_BYTES + body)) + plan.shards * ARCHIVE_BYTES // 2, False
