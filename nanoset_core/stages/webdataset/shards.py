"""Write one shard of a shuffled webdataset: rows in, a tar out, whole or not at all.

A completion marker beside each tar says what it holds: a run that was cut off goes on after the tars that have one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.tars.members import (
    NPY_HEADER_BYTES,
    MemberCompressor,
    json_gz_records,
    member_names,
    npy_records,
)
from nanoset_core.formats.tars.tar import ARCHIVE_BYTES, BLOCK_BYTES, end_of_archive, record_bytes, rename
from nanoset_core.outputs.manifest import canonical_json
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import atomic_file, fsync_folder

MARKERS = ".shards"
"""Folder of the completion markers, within that of the tars."""

TILE_BYTES = 2 << 20
"""Bytes of tokens gathered, encoded and written at once."""
_JSON_GZ_BYTES = 2.0
"""Bytes of a token of text as gzipped JSON: 1.7 to 2.1, by vocabulary and language."""

Fill = Callable[[int, int, NDArray[np.integer[Any]]], object]
"""`fill(begin, end, out)`: put the shard's rows [begin, end excl) into `out`, shape (end - begin, sequence_length)."""


@dataclass(frozen=True, slots=True)
class TarFacts:
    """What one written shard holds."""

    shard: int
    sequences: int
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
    """Return `shard-%08d`; the tar is this plus `.tar`."""
    return f"shard-{shard:08d}"


def write_tar(plan: ShufflePlan, shard: int, contexts: NDArray[np.int64], folder: Path, fill: Fill) -> TarFacts:
    """Write a shard of contexts, int64, shape (samples,); the caller then calls `fsync_folder`, once for several."""
    size, sha256 = 0, hashlib.sha256()
    with atomic_file(folder / f"{shard_stem(shard)}.tar", sync=False) as file:
        for block in _records(plan, shard, len(contexts), fill):
            sha256.update(block)
            size += file.write(block)
        closing = end_of_archive(size)
        sha256.update(closing)
        size += file.write(closing)
    pad_tokens = plan.table.pad_tokens(contexts) if plan.pad_tokens else 0
    tokens = len(contexts) * plan.settings.row_tokens - pad_tokens
    return TarFacts(shard, len(contexts), tokens, pad_tokens, size, sha256.hexdigest())


def _records(plan: ShufflePlan, shard: int, samples: int, fill: Fill) -> Iterator[bytes | memoryview]:
    """Yield the records of a shard's members, tile by tile; the next block may overwrite the last one."""
    member, rows = plan.settings.member, min(samples, max(1, TILE_BYTES // plan.row_bytes))
    if member == "npy":
        size, dtype = member_names(shard, 0, 0, "npy").shape[1], np.dtype(plan.dtype)
        records, tile, unnamed_sum = npy_records(rows, plan.sequence_length, dtype, size)
    else:
        tile, compressor = np.empty((rows, plan.sequence_length), dtype=plan.dtype), MemberCompressor()
    for begin in range(0, samples, rows):
        end = min(begin + rows, samples)
        names, tokens = member_names(shard, begin, end, member), tile[: end - begin]
        fill(begin, end, tokens)
        if member == "npy":
            rename(records[: end - begin], names, unnamed_sum)
            yield records[: end - begin].reshape(-1).data
        else:
            yield json_gz_records(names, tokens, compressor)


def output_bytes(plan: ShufflePlan) -> tuple[int, bool]:
    """Return the bytes of all tars, and whether that is exact (`npy`) or about right for text (`json.gz`)."""
    if plan.settings.member == "npy":
        record = record_bytes(NPY_HEADER_BYTES + plan.row_bytes)
        first, last = (
            record * (end - begin) + len(end_of_archive(record * (end - begin)))
            for begin, end in (plan.shard_ranks(0), plan.shard_ranks(plan.shards - 1))
        )
        return first * (plan.shards - 1) + last, True
    body = plan.tokens / max(plan.contexts, 1) * _JSON_GZ_BYTES + BLOCK_BYTES / 2
    return int(plan.contexts * (BLOCK_BYTES + body)) + plan.shards * ARCHIVE_BYTES // 2, False


def write_markers(folder: Path, shards: Sequence[TarFacts], made_from: str, access: FileAccess) -> None:
    """Note what finished shards hold, and what they were made from, where their folder is stored.

    One that is cut off counts as none. None is written where another build completes the webdataset, and so removes all
    markers, at the same time.
    """
    paths = [folder / MARKERS / f"{facts.stem}.json" for facts in shards]
    with contextlib.suppress(FileNotFoundError):
        (folder / MARKERS).mkdir(exist_ok=True)
        for path, facts in zip(paths, shards, strict=True):
            path.write_bytes(canonical_json({**asdict(facts), "made_from": made_from}))
    access.send(path for path in paths if path.is_file())


def read_markers(folder: Path, shards: Sequence[int], made_from: str, access: FileAccess) -> dict[int, TarFacts]:
    """Return the facts of those shards whose tars are there, of the size written, and made from just this digest."""
    names = {shard: (f"{shard_stem(shard)}.tar", f"{MARKERS}/{shard_stem(shard)}.json") for shard in shards}
    sizes = access.sizes(folder, [name for pair in names.values() for name in pair])
    both = [shard for shard, pair in names.items() if sizes.keys() >= set(pair)]

    def read(shard: int) -> TarFacts | None:
        try:
            marker = json.loads(access.read_current(folder / names[shard][1]))
            facts = TarFacts(**marker) if marker.pop("made_from") == made_from else None
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return facts if facts and (facts.shard, facts.size_bytes) == (shard, sizes[names[shard][0]]) else None

    return {facts.shard: facts for facts in access.each(read, both) if facts is not None}


def clear_markers(folder: Path, access: FileAccess) -> None:
    """Remove the markers, once a manifest says what they say."""
    access.remove_all(folder / MARKERS)
    if (folder / MARKERS).is_dir():
        shutil.rmtree(folder / MARKERS, ignore_errors=True)
        fsync_folder(folder)
