"""A shuffled webdataset as a stream for training: shared out among ranks and workers, resumed at any sample."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, MissingError, StaleError
from nanoset_core.shuffling.members import check_member_size, decode_member
from nanoset_core.shuffling.tar import iterate_members, map_archive
from nanoset_core.shuffling.webdataset import MANIFEST_NAME
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import open_regular


class ShardReader:
    """Iterates the contexts of one rank, in the manifest's order; knows where it is.

    Rank r of R takes the shards r, r + R, … of `manifest.jsonl`, and worker w of W of these every W-th from the w-th:
    all ranks and workers together take every sample exactly once. Each iteration goes on where the last one, or a
    loaded state, stopped; after the end the next one starts anew. Where torch was imported before, a reader counts as
    one of its IterableDatasets: `DataLoader(reader, batch_size=None, num_workers=2)`; torchdata's
    StatefulDataLoader saves and restores the state of each worker.

    Raises:
        MissingError: there is no manifest.
        ConfigError: the rank lies outside [0, world_size).
    """

    def __init__(self, folder: Path | str, *, rank: int = 0, world_size: int = 1) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(
                "no such rank",
                where="rank",
                found=f"{rank} of {world_size}",
                expected="0 <= rank < world_size",
                remedy="give the rank within the data-parallel group, and its size",
            )
        self.folder = Path(folder)
        self.rank, self.world_size = rank, world_size
        self._rows = manifest_rows(self.folder / MANIFEST_NAME)
        self._manifest = hashlib.sha256(repr(self._rows).encode()).hexdigest()
        self._place: tuple[int, int] = (0, 0)  # shards of this worker that are done, samples of the next one
        self._loaded: tuple[int, int] | None = None  # worker and workers of a state that was loaded
        _register_with_torch(type(self))

    @property
    def samples(self) -> int:
        """Samples of this rank, all its workers together."""
        return sum(samples for _, samples in self._rows[self.rank :: self.world_size])

    def __iter__(self) -> Iterator[NDArray[np.integer[Any]]]:
        """The contexts from here on, each of shape (length,).

        Raises:
            MissingError, FormatError: as `iterate_shards`.
            StaleError: the state that was loaded is another worker's.
        """
        worker, workers = self._worker()
        shards = self._rows[self.rank :: self.world_size][worker::workers]
        done, begin = self._place
        for number in range(done, len(shards)):
            stem, samples = shards[number]
            for context in iterate_counted(self.folder / f"{stem}.tar", samples, begin):
                begin += 1
                # The state counts a sample as soon as it is handed out.
                self._place = (number, begin) if begin < samples else (number + 1, 0)
                yield context
            begin = 0
        self._place = (0, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where this worker is: the shards that it has finished, and the samples taken of the one after them."""
        worker, workers = _torch_worker() or self._loaded or (0, 1)
        shard, sample = self._place
        return {
            "shard": shard,
            "sample": sample,
            "rank": self.rank,
            "world_size": self.world_size,
            "worker": worker,
            "workers": workers,
            "manifest": self._manifest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a state of `state_dict`.

        Raises:
            StaleError: it is that of other data, of another rank, or of another number of ranks.
        """
        found = (state["rank"], state["world_size"], state["manifest"])
        expected = (self.rank, self.world_size, self._manifest)
        if found != expected:
            raise _foreign(f"rank {found[0]} of {found[1]}", f"rank {self.rank} of {self.world_size}, of this manifest")
        self._place = (int(state["shard"]), int(state["sample"]))
        self._loaded = (int(state["worker"]), int(state["workers"]))

    def _worker(self) -> tuple[int, int]:
        current = _torch_worker() or (0, 1)
        if self._loaded is not None and self._place != (0, 0) and self._loaded != current:
            raise _foreign("worker {} of {}".format(*self._loaded), "worker {} of {}".format(*current))
        self._loaded = current
        return current


def _foreign(found: str, expected: str) -> StaleError:
    return StaleError(
        "the state is that of another reader",
        where="load_state_dict",
        found=found,
        expected=expected,
        remedy="resume with the ranks, the workers and the data with which the state was saved",
    )


def _torch_worker() -> tuple[int, int] | None:
    """(number, how many) of the DataLoader worker that runs this; None outside of one."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else (info.id, info.num_workers)


def _register_with_torch(kind: type) -> None:
    data = sys.modules.get("torch.utils.data")
    if data is not None and not issubclass(kind, data.IterableDataset):
        data.IterableDataset.register(kind)


def iterate_shard(path: Path | str, begin: int = 0) -> Iterator[NDArray[np.integer[Any]]]:
    """Contexts of one shard in order, each of shape (length,): `npy` in its own dtype, `json.gz` as int64.

    The first `begin` are passed over unread.

    Raises:
        MissingError: there is no such shard.
        FormatError: a damaged tar, or a member that is not a context.
    """
    path = Path(path)
    archive = map_archive(path)
    for member in islice(iterate_members(archive, path), begin, None):
        check_member_size(member.name, member.size_bytes, f"{path}, offset {member.offset}")
        body = archive[member.offset : member.offset + member.size_bytes]
        yield decode_member(member.name, body, f"{path}, offset {member.offset}")


def read_shard(path: Path | str) -> NDArray[np.integer[Any]]:
    """All contexts of one shard, shape (samples, sequence_length).

    Raises:
        MissingError: there is no such shard.
        FormatError: as `iterate_shard`, or contexts of unequal lengths.
    """
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


def iterate_shards(folder: Path | str) -> Iterator[NDArray[np.integer[Any]]]:
    """Contexts of a whole dataset in the order of its `manifest.jsonl`, each of shape (length,).

    Raises:
        MissingError: the manifest or a shard is not there.
        FormatError: a shard does not hold what the manifest says.
    """
    folder = Path(folder)
    for stem, samples in manifest_rows(folder / MANIFEST_NAME):
        yield from iterate_counted(folder / f"{stem}.tar", samples)


def iterate_counted(path: Path, samples: int, begin: int = 0) -> Iterator[NDArray[np.integer[Any]]]:
    """Contexts [begin, samples excl) of a shard that holds `samples`.

    Raises:
        FormatError: it does not hold so many.
    """
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
    """(name without `.tar`, samples) of each shard of a manifest.

    Raises:
        MissingError: there is no manifest.
        FormatError: a line is no row of a manifest.
    """
    try:
        with open_regular(path) as file:
            lines = file.read().splitlines()
    except FileNotFoundError as error:
        raise MissingError(
            "no manifest of shards",
            where=path,
            remedy="finish writing the dataset, or give the folder of a finished one",
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
