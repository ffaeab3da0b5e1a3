"""Read a shuffled webdataset as a stream for training, divided among ranks and workers, resumed at
any sample.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, MissingError, StaleError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.samples import MANIFEST_NAME, iterate_token_members
from nanoset_core.formats.tars.tar import map_archive
from nanoset_core.loading.boundaries import bounded_sample
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import read_regular

Uneven = Literal["raise", "drop", "repeat", "keep"]
"""What happens if ranks would have different numbers of samples, see `ShardReader`."""


class ManifestRow(NamedTuple):
    """One shard of a manifest."""

    stem: str
    """Path of its tar below the manifest's folder, without `.tar`."""
    samples: int


class _RankShard(NamedTuple):
    """A shard that a rank reads."""

    stem: str
    samples: int
    """Samples of the shard."""
    taken: int
    """How many of them, from the first, the rank takes."""


class _Position(NamedTuple):
    """Where a worker is in its shards."""

    shard: int
    """Shards that are finished."""
    sample: int
    """Samples taken of the one after them."""


class _Worker(NamedTuple):
    """One of the workers of a rank."""

    number: int
    workers: int

    def __str__(self) -> str:
        return f"worker {self.number} of {self.workers}"


_START = _Position(0, 0)


class ShardReader:
    """Iterate over the contexts of one rank, in the manifest's order; the position can be saved and
    restored.

    Rank r of R takes the shards r, r + R, … of `manifest.jsonl`, and worker w of W of these every
    W-th from the w-th: unless `uneven` says otherwise, all ranks and workers together take every
    sample exactly once. Each iteration continues where the last one, or a loaded state, stopped;
    after the end the next one starts anew.

    If torch was imported before, a reader counts as one of its IterableDatasets:
    `DataLoader(reader, batch_size=None, num_workers=2)`. torchdata's StatefulDataLoader saves and
    restores the state of each worker.

    Args:
        folder: Folder of the tars and their manifest.
        rank: Rank within the data-parallel group.
        world_size: Ranks of the group.
        uneven: What happens if ranks would have different numbers of samples, so that distributed
            training would wait for ever at the end. `raise`: an error. `drop`: each rank takes as
            many as the smallest one has. `repeat`: as many as the largest, its own again from the
            start (torch's DistributedSampler has both). `keep`: what its tars hold, even if that is
            nothing.
        eod_token: What documents end with. If given, dictionaries with tokens, labels and
            boundaries of documents come instead of contexts, as of a `Nanoset` with
            inter_document_masking.

    Raises:
        MissingError: There is no manifest.
        ConfigError: The rank is outside [0, world_size); ranks have different numbers of samples,
            or (unless these are kept) one has none.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        rank: int = 0,
        world_size: int = 1,
        uneven: Uneven = "raise",
        eod_token: int | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(
                "no such rank",
                found=f"{rank} of {world_size}",
                expected="0 <= rank < world_size",
                remedy="give the rank within the data-parallel group, and its size",
            )
        self.folder = Path(folder)
        self.rank = rank
        self.world_size = world_size
        self.eod_token = eod_token
        manifest = self.folder / MANIFEST_NAME
        rows = manifest_rows(manifest)
        self._shards = _shards_of_rank(rows, _Division(rank, world_size, uneven), manifest)
        self._manifest_digest = _manifest_digest(rows, uneven)
        self._position = _START
        self._state_worker: _Worker | None = None  # of the position
        _register_with_torch(type(self))

    @property
    def samples(self) -> int:
        """Samples of this rank, all its workers together."""
        return sum(shard.taken for shard in self._shards)

    def __iter__(self) -> Iterator[Any]:
        """Yield the contexts from the current position on, each of shape (length,), or as samples
        with `eod_token`.

        Raises:
            StaleError: The state that was loaded is another worker's.
        """
        worker = _torch_worker() or _Worker(0, 1)
        # A position means something only for the worker that was there: each has other shards.
        is_started = self._position != _START
        if is_started and self._state_worker not in (None, worker):
            raise _foreign_state(str(self._state_worker), str(worker))
        self._state_worker = worker

        # Continue in the shard, and at the sample, where the position is.
        shards = self._shards[worker.number :: worker.workers]
        first_shard, sample = self._position
        for number in range(first_shard, len(shards)):
            shard = shards[number]
            contexts = iterate_counted(self.folder / f"{shard.stem}.tar", shard.samples, sample)
            if shard.taken < shard.samples:
                contexts = islice(contexts, shard.taken - sample)
            for context in contexts:
                sample += 1
                # The state counts a sample as soon as it is handed out.
                if sample < shard.taken:
                    self._position = _Position(number, sample)
                else:
                    self._position = _Position(number + 1, 0)
                yield context if self.eod_token is None else bounded_sample(context, self.eod_token)
            sample = 0
        self._position = _START

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's position: the shards that are finished, and the samples taken of the
        one after them.
        """
        worker = _torch_worker() or self._state_worker or _Worker(0, 1)
        return {
            "shard": self._position.shard,
            "sample": self._position.sample,
            "rank": self.rank,
            "world_size": self.world_size,
            "worker": worker.number,
            "workers": worker.workers,
            "manifest": self._manifest_digest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position that `state_dict` returned.

        Raises:
            StaleError: It is of other data or ranks.
        """
        rank = state["rank"]
        world_size = state["world_size"]
        is_same_rank = rank == self.rank and world_size == self.world_size
        if not is_same_rank or state["manifest"] != self._manifest_digest:
            raise _foreign_state(
                f"rank {rank} of {world_size}",
                f"rank {self.rank} of {self.world_size}, of this manifest",
            )
        self._position = _Position(int(state["shard"]), int(state["sample"]))
        self._state_worker = _Worker(int(state["worker"]), int(state["workers"]))


@dataclass(frozen=True, slots=True)
class _Division:
    """How the shards of a manifest are divided among ranks."""

    rank: int
    world_size: int
    uneven: Uneven


def _shards_of_rank(
    rows: list[ManifestRow],
    division: _Division,
    manifest: Path,
) -> list[_RankShard]:
    """Return the shards of a rank, in order.

    Raises:
        ConfigError: The ranks have different numbers of samples, and `uneven` does not say what to
            do.
    """
    world_size = division.world_size
    rank_rows = rows[division.rank :: world_size]
    shards = [_RankShard(row.stem, row.samples, taken=row.samples) for row in rank_rows]
    # Distributed training waits for the slowest rank, so all must have as many samples.
    counts = [0] * world_size  # samples of each rank
    for number, row in enumerate(rows):
        counts[number % world_size] += row.samples
    least = min(counts)
    most = max(counts)
    if least == most or division.uneven == "keep":
        return shards
    if division.uneven == "raise" or not least:
        raise _uneven_error(f"{len(rows):,} tars for {world_size:,} ranks", least, most, manifest)

    # Take shards until there are enough samples, from the start again if need be.
    missing = least if division.uneven == "drop" else most
    taken: list[_RankShard] = []
    for shard in cycle(shards):
        taken.append(shard._replace(taken=min(shard.samples, missing)))
        missing -= shard.samples
        if missing <= 0:
            break
    return taken


def _uneven_error(division: str, least: int, most: int, manifest: Path) -> ConfigError:
    """Return the error for ranks with `least` to `most` samples."""
    more_tars = (
        "make more tars (a smaller samples_per_shard), equal ones (even: true), or use fewer ranks"
    )
    if least:
        remedy = (
            f"give uneven='drop' (every rank takes {least:,}), 'repeat' (every rank takes {most:,}) "
            f"or 'keep'; or {more_tars}"
        )
    else:
        remedy = f"{more_tars}; uneven='keep' takes them as they are"
    return ConfigError(
        "the ranks have different numbers of samples: distributed training would wait for ever at the end",
        where=manifest,
        found=f"{division}: {least:,} to {most:,} samples a rank",
        expected="as many tars of equal size for each rank",
        remedy=remedy,
    )


def _manifest_digest(rows: list[ManifestRow], uneven: Uneven) -> str:
    """Return what a state is compared by: the manifest, and what changes which samples a rank
    takes.
    """
    plain_rows = [tuple(row) for row in rows]
    text = repr((uneven, plain_rows)) if uneven in ("drop", "repeat") else repr(plain_rows)
    return hashlib.sha256(text.encode()).hexdigest()


def _foreign_state(found: str, expected: str) -> StaleError:
    """Return the error for a state that another reader saved."""
    return StaleError(
        "the state is that of another reader",
        found=found,
        expected=expected,
        remedy="resume with the ranks, the workers and the data with which the state was saved",
    )


def _register_with_torch(reader: type) -> None:
    """Make readers count as torch's IterableDatasets. torch takes seconds to import, so this never
    imports it.
    """
    data = sys.modules.get("torch.utils.data")
    if data is not None and not issubclass(reader, data.IterableDataset):
        data.IterableDataset.register(reader)


def _torch_worker() -> _Worker | None:
    """Return the worker of a DataLoader that this process is, or None."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    if info is None:
        return None
    return _Worker(info.id, info.num_workers)


def iterate_shard(path: Path | str, begin: int = 0) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the contexts of one shard, each of shape (length,): `npy` in its own dtype, `json.gz`
    as int64.

    Members that webdataset passes over, such as hidden files, and those that cannot hold tokens,
    such as `README.md`, are no contexts.

    Args:
        path: Of the tar.
        begin: Contexts to skip unread.

    Raises:
        MissingError: There is no such file.
        FormatError: The shard is damaged.
    """
    path = Path(path)
    archive = map_archive(path)
    for member in islice(iterate_token_members(archive, path), begin, None):
        yield read_member(archive, member, path)


def iterate_shards(folder: Path | str) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the contexts of a whole dataset in the order of its `manifest.jsonl`, each of shape
    (length,).

    Raises:
        MissingError: The manifest or a shard is missing.
        FormatError: A shard is not what the manifest says.
    """
    folder = Path(folder)
    for row in manifest_rows(folder / MANIFEST_NAME):
        yield from iterate_counted(folder / f"{row.stem}.tar", row.samples)


def iterate_counted(path: Path, samples: int, start: int = 0) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the contexts [start, samples) of a shard that must hold `samples` contexts.

    Raises:
        MissingError: There is no such file.
        FormatError: The shard is damaged, or holds more or fewer.
    """
    # One context too many is enough to know that the shard is another one.
    count = start
    for context in iterate_shard(path, start):
        count += 1
        if count > samples:
            break
        yield context
    if count != samples:
        more = " or more" if count > samples else ""
        raise FormatError(
            "a shard does not hold what the manifest says",
            where=path,
            found=f"{count} contexts{more}",
            expected=f"{samples} contexts",
            remedy="make the shard again, or fetch it again",
        )


def manifest_rows(path: Path) -> list[ManifestRow]:
    """Return the shards of a manifest.

    Raises:
        MissingError: There is no such file.
        FormatError: A line is not a row of a manifest.
    """
    try:
        lines = read_regular(path).splitlines()
    except FileNotFoundError as error:
        raise MissingError(
            "no manifest of shards",
            where=path,
            remedy="finish writing the dataset, or give the folder of a finished one",
        ) from error
    rows: list[ManifestRow] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_parse_row(line))
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                "not a row of a manifest of shards",
                where=f"{path}, line {number}",
                found=f"{line[:80]!r} ({error})",
                remedy="write the manifest again",
            ) from error
    return rows


def _parse_row(line: bytes) -> ManifestRow:
    """Parse one line of a manifest."""
    row = orjson.loads(line)
    stem = row["shard"]
    samples = row["num_sequences"]
    # A bool is an int in Python, but no count.
    is_count = type(samples) is int and samples >= 0
    if not is_inside(stem) or not is_count:
        raise ValueError(
            "shard must name a file below the manifest's folder, num_sequences be a whole number"
        )
    return ManifestRow(stem, samples)
