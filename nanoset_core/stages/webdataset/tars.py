"""Write one tar of a webdataset from its rows, whole or not at all.

A tar has a member for each sample, such as 00000007_00000042.npy with the tokens of sample 42 of
shard 7. The tokens are supplied a batch at a time. The tar appears under its name when it is
complete, and its sha256 is computed while it is written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.tars.members import (
    NPY_HEADER_BYTES,
    MemberCompressor,
    MemberKind,
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

_TAR_NAME = re.compile(r"shard-\d{8,}\.tar")
"""File names of tars; a number of more than 8 digits has all of them."""

Fill = Callable[[int, int, NDArray[np.integer[Any]]], object]
"""A function `fill(start, stop, out)` that writes the tokens of the rows [start, stop) into `out`,
which has the shape (stop - start, sequence_length).
"""


@dataclass(frozen=True, slots=True)
class TarFacts:
    """What a tar holds."""

    ignores_unknown_keys: ClassVar[bool] = True

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


def tar_name(shard: int) -> str:
    """Return the file name of a shard's tar: 7 gives `shard-00000007.tar`."""
    return f"{shard_stem(shard)}.tar"


def is_tar_name(name: str) -> bool:
    """Return whether a file name is one that `tar_name` gives, such as `shard-00000007.tar`."""
    return _TAR_NAME.fullmatch(name) is not None


def write_tar(
    plan: ShufflePlan,
    shard: int,
    contexts: NDArray[np.int64],
    folder: Path,
    fill: Fill,
) -> TarFacts:
    """Write a tar file of shuffled training samples, and return what is in it.

    For example, tar 7 has 8,192 samples of 2,049 tokens, and is written as shard-00000007.tar. Call
    `fsync_folder` after some tars, to wait until they are on the disk.

    Args:
        plan: Says which sample (context) goes into which tar (shard).
        shard: Number of the tar.
        contexts: Numbers of its samples, shape (n_samples,).
        folder: Where the tar goes.
        fill: `fill(start, stop, out)` writes the tokens of the samples [start, stop) into the array
            `out`.

    Returns:
        Counts of samples and tokens, and size and sha256 of the tar.
    """
    path = folder / tar_name(shard)
    archive = _write_archive(path, _blocks(plan, shard, len(contexts), fill))

    # Count the padding. Most plans have none, so that the samples need not be looked up.
    pad_tokens = 0
    if plan.pad_tokens > 0:
        pad_tokens = plan.table.pad_tokens(contexts)
    all_tokens = len(contexts) * plan.settings.row_tokens
    return TarFacts(
        shard=shard,
        sequences=len(contexts),
        tokens=all_tokens - pad_tokens,
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
    """Write a tar file, and compute its size and sha256 on the way, without reading it again.

    The file has a temporary name until it is complete, so that nobody takes half a tar for a whole
    one.

    Args:
        path: Path of the tar.
        blocks: Its bytes, block by block, without the bytes that end a tar, which are added here.
    """
    size_bytes = 0
    sha256 = hashlib.sha256()
    # `sync=False`: do not wait until the file is on the disk.
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
    """Return the bytes of a tar file of training samples, a block of some samples at a time.

    Each sample is a file in the tar, called a member, in one of two formats: compressed JSON such
    as [5, 9, 2], or the format of numpy. Use each block before the next one is requested, which may
    overwrite it.

    Args:
        plan: Has the format, and the number of tokens of a sample.
        shard: Number of the tar, which is part of the names of its members.
        samples: Number of samples in the tar.
        fill: `fill(start, stop, out)` writes the tokens of the samples [start, stop) into `out`.
    """
    # As many samples at a time as TILE_BYTES can hold.
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
    """Yield the bytes of a tar file whose training samples are compressed JSON, such as [5, 9, 2].

    Each sample is a file in the tar, called a member. Some members are made at a time: their tokens
    are written into an array, and converted to the bytes of the members, with a header for each.

    Args:
        plan: Has the number and the type of tokens of a sample.
        shard: Number of the tar, which is part of the names of its members.
        samples: Number of samples in the tar.
        batch_size: Number of samples to convert at a time.
        fill: `fill(start, stop, out)` writes the tokens of the samples [start, stop) into `out`.
    """
    # The tokens of every batch are written into the same array.
    buffer = np.empty((batch_size, plan.sequence_length), dtype=plan.dtype)
    compressor = MemberCompressor()
    for start in range(0, samples, batch_size):
        stop = min(start + batch_size, samples)
        tokens = buffer[: stop - start]  # the last batch may be smaller
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
    """Yield the bytes of a tar file whose training samples are .npy files, the format of numpy.

    All these files, called members, have the same size, and differ only in their names and tokens:

        header with name | numpy's header | tokens | header with name | numpy's header | tokens ...

    So there is a buffer with the bytes of some members. For each batch of samples, only the names
    and tokens in it are replaced.

    Args:
        plan: Has the number and the type of tokens of a sample.
        shard: Number of the tar, which is part of the names of its members.
        samples: Number of samples in the tar.
        batch_size: Number of samples in a batch.
        fill: `fill(start, stop, out)` writes the tokens of the samples [start, stop) into `out`.
    """
    name_length = member_names(shard, 0, 0, "npy").shape[1]  # all names have the same length
    buffer = NpyRecords(batch_size, plan.sequence_length, np.dtype(plan.dtype), name_length)
    for start in range(0, samples, batch_size):
        stop = min(start + batch_size, samples)  # the last batch may be smaller
        tokens = buffer.tokens[: stop - start]  # the part of the buffer for the tokens
        fill(start, stop, tokens)
        names = member_names(shard, start, stop, "npy")
        yield buffer.named(names)  # writes the names, and returns the bytes of these members


def output_bytes(plan: ShufflePlan) -> tuple[int, bool]:
    """Compute how large all tar files of a shuffled dataset will be, before any is written.

    That depends on the format of the training samples in the tars:

        npy         all samples have the same size, so the result is exact
        json.gz     how well the tokens can be compressed is not known, so it is an estimate

    Args:
        plan: Has the format, and says how many samples each tar has.

    Returns:
        (size in bytes, whether it is exact).
    """
    if plan.settings.member == "npy":
        # All tars have the same number of samples, except the last one, which may have fewer.
        size_of_first = _npy_tar_bytes(plan, 0)
        size_of_last = _npy_tar_bytes(plan, plan.shards - 1)
        return size_of_first * (plan.shards - 1) + size_of_last, True
    return _estimated_json_gz_bytes(plan), False


def _estimated_json_gz_bytes(plan: ShufflePlan) -> int:
    """Estimate the size of all tar files of a dataset whose samples are stored as compressed JSON.

    Args:
        plan: Has the numbers of tars, samples (contexts) and tokens.
    """
    tokens_per_context = plan.tokens / max(plan.contexts, 1)
    member_bytes = estimated_member_bytes("json.gz", tokens_per_context)

    # A tar is filled up to a multiple of ARCHIVE_BYTES (10 KiB): half of that on average.
    closing_bytes = plan.shards * ARCHIVE_BYTES // 2
    return int(plan.contexts * member_bytes) + closing_bytes


def estimated_member_bytes(member: MemberKind, n_tokens: float, token_bytes: int = 0) -> float:
    """Estimate how many bytes a training sample (context) takes in a tar.

    In a tar, each sample is a file with a header, and is filled up to whole blocks of 512 bytes:

        npy        header | tokens | filling
        json.gz    header | [5, 9, 2, ...] compressed, about 2 bytes for each token | filling

    Args:
        member: How the sample is stored.
        n_tokens: Its tokens.
        token_bytes: Bytes of a token; used for `npy` only, whose size is exact.
    """
    if member == "npy":
        return float(record_bytes(NPY_HEADER_BYTES + int(n_tokens) * token_bytes))
    # The filling is half a block on average.
    return BLOCK_BYTES + n_tokens * _JSON_GZ_BYTES_PER_TOKEN + BLOCK_BYTES / 2


def _npy_tar_bytes(plan: ShufflePlan, shard: int) -> int:
    """Return the exact size of a tar of `npy` members."""
    start, stop = plan.shard_ranks(shard)
    size = record_bytes(NPY_HEADER_BYTES + plan.row_bytes) * (stop - start)
    return size + len(end_of_archive(size))
