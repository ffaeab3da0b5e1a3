"""Write one tar of a webdataset from its rows, whole or not at all.

A tar has a member for each sample, such as 00000007_00000042.npy with the tokens of sample 42 of
shard 7. The tokens are supplied a batch at a time. The tar appears under its name when it is
complete, and its sha256 is computed while it is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.tars.members import (
    NPY_HEADER_BYTES,
    MemberCompressor,
    NpyRecords,
    json_gz_records,
    member_names,
)
from nanoset_core.formats.tars.tar import ARCHIVE_BYTES, BLOCK_BYTES, end_of_archive, record_bytes
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.storage.atomic import atomic_file

TILE_BYTES = 2 << 20
"""Bytes of tokens gathered, encoded and written at once."""
_JSON_GZ_BYTES_PER_TOKEN = 2.0
"""Bytes of a token of text as gzipped JSON: 1.7 to 2.1, by vocabulary and language."""

Fill = Callable[[int, int, NDArray[np.integer[Any]]], object]
"""A function `fill(start, stop, out)` that writes the tokens of the rows [start, stop) into `out`,
which has the shape (stop - start, sequence_length).
"""


@dataclass(frozen=True, slots=True)
class TarFacts:
    """What a tar holds."""

    shard: int
    """Number of the shard."""
    sequences: int
    """Number of contexts."""
    tokens: int
    """Tokens of the sources in it, without padding and BOS."""
    pad_tokens: int
    size_bytes: int
    sha256: str

    @property
    def stem(self) -> str:
        """The shard's name without `.tar`, as OpenLM's manifest spells it."""
        return shard_stem(self.shard)


def shard_stem(shard: int) -> str:
    """Return the name of a shard's tar without its ending.

    Args:
        shard: Number of the shard: 7 gives `shard-00000007`.
    """
    return f"shard-{shard:08d}"


def write_tar(
    plan: ShufflePlan,
    shard: int,
    contexts: NDArray[np.int64],
    folder: Path,
    fill: Fill,
) -> TarFacts:
    """Write the tar of a shard, and return what it contains.

    The tar may not be on the disk yet: call `fsync_folder` after some tars, which is faster than to
    wait for each.

    Args:
        plan: Says which context (sample) goes into which tar.
        shard: Number of the shard.
        contexts: Number of each context of the shard, shape (n_samples,).
        folder: Where the tar goes.
        fill: Supplies the tokens of these contexts.

    Returns:
        Counts of the tokens, and size and sha256 of the tar.
    """
    path = folder / f"{shard_stem(shard)}.tar"
    archive = _write_archive(path, _blocks(plan, shard, len(contexts), fill))

    # Most plans have no padding, and then the contexts need not be looked up.
    pad_tokens = 0
    if plan.pad_tokens:
        pad_tokens = plan.table.pad_tokens(contexts)
    return TarFacts(
        shard=shard,
        sequences=len(contexts),
        tokens=len(contexts) * plan.settings.row_tokens - pad_tokens,
        pad_tokens=pad_tokens,
        size_bytes=archive.size_bytes,
        sha256=archive.sha256,
    )


class _WrittenArchive(NamedTuple):
    """A file that was written."""

    size_bytes: int
    sha256: str
    """Hex digest of its bytes."""


def _write_archive(path: Path, blocks: Iterable[bytes | memoryview]) -> _WrittenArchive:
    """Write a tar, and compute its digest on the way, so that it need not be read again.

    Args:
        path: Path of the tar.
        blocks: The bytes of its members. The end of the tar is added.
    """
    size_bytes = 0
    sha256 = hashlib.sha256()
    with atomic_file(path, sync=False) as file:
        for block in blocks:
            sha256.update(block)
            size_bytes += file.write(block)
        closing = end_of_archive(size_bytes)
        sha256.update(closing)
        size_bytes += file.write(closing)
    return _WrittenArchive(size_bytes, sha256.hexdigest())


def _blocks(
    plan: ShufflePlan,
    shard: int,
    samples: int,
    fill: Fill,
) -> Iterator[bytes | memoryview]:
    """Return the bytes of a tar, a batch of members at a time.

    A member of the tar is a file with the tokens of one sample. The bytes are valid only until the
    next ones are requested, which may overwrite them.

    Args:
        plan: Says which context (sample) goes into which tar.
        shard: Number of the tar, which is part of the names of its members.
        samples: Number of samples in the tar.
        fill: `fill(start, stop, out)` writes the tokens of the samples [start, stop) into `out`.
    """
    batch_size = min(samples, max(1, TILE_BYTES // plan.row_bytes))
    if plan.settings.member == "npy":
        return _npy_blocks(plan, shard, samples, batch_size, fill)
    return _json_gz_blocks(plan, shard, samples, batch_size, fill)


def _json_gz_blocks(
    plan: ShufflePlan,
    shard: int,
    samples: int,
    batch_size: int,
    fill: Fill,
) -> Iterator[bytes]:
    """Yield the bytes of a tar of `.json.gz` members, a batch of members at a time.

    Args:
        plan: Says which context (sample) goes into which tar.
        shard: Number of the tar, which is part of the names of its members.
        samples: Number of samples in the tar. Each becomes a member.
        batch_size: Number of members in a batch; the last may have fewer.
        fill: `fill(start, stop, out)` writes the tokens of the samples [start, stop) into `out`.
    """
    # The tokens of every batch are written into the same array.
    buffer = np.empty((batch_size, plan.sequence_length), dtype=plan.dtype)
    compressor = MemberCompressor()
    for start in range(0, samples, batch_size):
        stop = min(start + batch_size, samples)
        tokens = buffer[: stop - start]
        fill(start, stop, tokens)
        names = member_names(shard, start, stop, "json.gz")
        yield json_gz_records(names, tokens, compressor)


def _npy_blocks(
    plan: ShufflePlan,
    shard: int,
    samples: int,
    batch_size: int,
    fill: Fill,
) -> Iterator[memoryview]:
    """Yield the bytes of a tar of `.npy` members, a batch of members at a time.

    All members have the same size. So the bytes of a batch are prepared once, and for each batch
    only the tokens and the names are replaced.

    Args:
        plan: Says which context (sample) goes into which tar.
        shard: Number of the tar, which is part of the names of its members.
        samples: Number of samples in the tar. Each becomes a member.
        batch_size: Number of members in a batch; the last may have fewer.
        fill: `fill(start, stop, out)` writes the tokens of the samples [start, stop) into `out`.
    """
    name_bytes = member_names(shard, 0, 0, "npy").shape[1]
    batch = NpyRecords(batch_size, plan.sequence_length, np.dtype(plan.dtype), name_bytes)
    for start in range(0, samples, batch_size):
        stop = min(start + batch_size, samples)
        fill(start, stop, batch.tokens[: stop - start])
        # `named` returns the bytes of as many members as it gets names.
        yield batch.named(member_names(shard, start, stop, "npy"))


def output_bytes(plan: ShufflePlan) -> tuple[int, bool]:
    """Return the size of all tars of a plan, and whether this size is exact.

    It is exact if the contexts are stored as `.npy`. If they are stored as compressed JSON, it is
    an estimate.

    Args:
        plan: Says which context (sample) goes into which tar.

    Returns:
        (size in bytes, whether it is exact).
    """
    if plan.settings.member == "npy":
        # All tars except the last one have the same number of contexts, and so the same size.
        first_size = _npy_tar_bytes(plan, 0)
        last_size = _npy_tar_bytes(plan, plan.shards - 1)
        return first_size * (plan.shards - 1) + last_size, True
    return _estimated_json_gz_bytes(plan), False


def _estimated_json_gz_bytes(plan: ShufflePlan) -> int:
    """Estimate the size of all tars of a plan whose members are compressed JSON."""
    # A member has a header of one block, and a body that is filled up to whole blocks. So half a
    # block is added to a body on average.
    tokens_per_context = plan.tokens / max(plan.contexts, 1)
    header_bytes = BLOCK_BYTES
    body_bytes = tokens_per_context * _JSON_GZ_BYTES_PER_TOKEN + BLOCK_BYTES / 2
    member_bytes = int(plan.contexts * (header_bytes + body_bytes))

    # A tar is filled up to a multiple of 10 KiB. So half of that is added to a tar on average.
    closing_bytes = plan.shards * ARCHIVE_BYTES // 2
    return member_bytes + closing_bytes


def _npy_tar_bytes(plan: ShufflePlan, shard: int) -> int:
    """Return the exact size of a tar of `npy` members."""
    start, stop = plan.shard_ranks(shard)
    size = record_bytes(NPY_HEADER_BYTES + plan.row_bytes) * (stop - start)
    return size + len(end_of_archive(size))
