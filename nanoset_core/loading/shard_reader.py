"""Read a shuffled webdataset as a stream for training, divided among ranks and workers, resumed at any sample."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

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


class ShardReader:
    """Iterate over the contexts of one rank, in the manifest's order; the position can be saved and restored.

    Rank r of R takes the shards r, r + R, … of `manifest.jsonl`, and worker w of W of these every W-th from the w-th:
    unless `uneven` says otherwise, all ranks and workers together take every sample exactly once. Each iteration goes
    on where the last one, or a loaded state, stopped; after the end the next one starts anew. Where torch was imported
    before, a reader counts as one of its IterableDatasets: `DataLoader(reader, batch_size=None, num_workers=2)`;
    torchdata's StatefulDataLoader saves and restores the state of each worker.

    Args:
        folder: of the tars and their manifest.
        rank: within the data-parallel group.
        world_size: ranks of the group.
        uneven: what happens where ranks would have different numbers of samples, so that distributed training waits for
            ever at the end: an error, or `drop`: each rank takes as many as the smallest one has; `repeat`: as many as
            the largest, its own again from the start (torch's DistributedSampler has both); `keep`: what its tars hold,
            be it none.
        eod_token: what documents end with; where it is given, dictionaries with tokens, labels and boundaries of
            documents come instead of contexts, as of a `Nanoset` with inter_document_masking.

    Raises:
        MissingError: there is no manifest.
        ConfigError: the rank lies outside [0, world_size); ranks have different numbers of samples, or (unless they are
            kept) one has none.
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
            found, remedy = f"{rank} of {world_size}", "give the rank within the data-parallel group, and its size"
            raise ConfigError("no such rank", found=found, expected="0 <= rank < world_size", remedy=remedy)
        self.folder = Path(folder)
        self.rank, self.world_size, self.eod_token = rank, world_size, eod_token
        self._rows = manifest_rows(self.folder / MANIFEST_NAME)
        self._shards = _shards_of(self._rows, rank, world_size, uneven, self.folder)
        made_from = (uneven, self._rows) if uneven in ("drop", "repeat") else self._rows
        self._manifest = hashlib.sha256(repr(made_from).encode()).hexdigest()
        self._place: tuple[int, int] = (0, 0)  # shards of this worker that are done, samples of the next one
        self._loaded: tuple[int, int] | None = None  # worker and workers of a state that was loaded
        data = sys.modules.get("torch.utils.data")
        if data is not None and not isinstance(self, data.IterableDataset):
            data.IterableDataset.register(type(self))

    @property
    def samples(self) -> int:
        """Samples of this rank, all its workers together."""
        return sum(taken for *_, taken in self._shards)

    def __iter__(self) -> Iterator[Any]:
        """Yield the contexts from the current position on, each of shape (length,), or as samples with `eod_token`.

        Raises:
            StaleError: the state that was loaded is another worker's.
        """
        worker, workers = current = _torch_worker() or (0, 1)
        if self._loaded not in (None, current) and self._place != (0, 0):
            raise _foreign("worker {} of {}".format(*self._loaded), f"worker {worker} of {workers}")
        self._loaded, shards = current, self._shards[worker::workers]
        done, begin = self._place
        for number in range(done, len(shards)):
            stem, samples, taken = shards[number]
            contexts = iterate_counted(self.folder / f"{stem}.tar", samples, begin)
            for context in contexts if taken == samples else islice(contexts, taken - begin):
                begin += 1
                # The state counts a sample as soon as it is handed out.
                self._place = (number, begin) if begin < taken else (number + 1, 0)
                yield context if self.eod_token is None else bounded_sample(context, self.eod_token)
            begin = 0
        self._place = (0, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's position: the shards that are finished, and the samples taken of the one after them."""
        worker, workers = _torch_worker() or self._loaded or (0, 1)
        place = {"shard": self._place[0], "sample": self._place[1], "rank": self.rank, "world_size": self.world_size}
        return place | {"worker": worker, "workers": workers, "manifest": self._manifest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position that `state_dict` returned; raises StaleError for that of other data or ranks."""
        found = (state["rank"], state["world_size"], state["manifest"])
        if found != (self.rank, self.world_size, self._manifest):
            raise _foreign(f"rank {found[0]} of {found[1]}", f"rank {self.rank} of {self.world_size}, of this manifest")
        self._place = (int(state["shard"]), int(state["sample"]))
        self._loaded = (int(state["worker"]), int(state["workers"]))


def _shards_of(
    rows: list[tuple[str, int]], rank: int, world_size: int, uneven: Uneven, folder: Path
) -> list[tuple[str, int, int]]:
    """Return (name, samples, samples taken) of the shards of a rank, in order."""
    counts = [sum(samples for _, samples in rows[one::world_size]) for one in range(world_size)]
    own = [(stem, samples, samples) for stem, samples in rows[rank::world_size]]
    least, most = min(counts), max(counts)
    if least == most or uneven == "keep":
        return own
    if uneven == "raise" or not least:
        found = f"{len(rows):,} tars for {world_size:,} ranks: {least:,} to {most:,} samples a rank"
        more = "make more tars (a smaller samples_per_shard), equal ones (even: true), or use fewer ranks"
        raise ConfigError(
            "the ranks have different numbers of samples: distributed training would wait for ever at the end",
            where=folder / MANIFEST_NAME,
            found=found,
            expected="as many tars of equal size for each rank",
            remedy=f"{more}; uneven='keep' takes them as they are"
            if not least
            else f"give uneven='drop' (every rank "
            f"takes {least:,}), 'repeat' (every rank takes {most:,}) or 'keep'; or {more}",
        )
    left, shards = least if uneven == "drop" else most, []
    for stem, samples, _ in cycle(own):
        shards.append((stem, samples, min(samples, left)))
        left -= samples
        if left <= 0:
            return shards
    return shards


def _foreign(found: str, expected: str) -> StaleError:
    remedy = "resume with the ranks, the workers and the data with which the state was saved"
    return StaleError("the state is that of another reader", found=found, expected=expected, remedy=remedy)


def _torch_worker() -> tuple[int, int] | None:
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else (info.id, info.num_workers)


def iterate_shard(path: Path | str, begin: int = 0) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the contexts of one shard, each of shape (length,): `npy` in its own dtype, `json.gz` as int64.

    Members that webdataset passes over, such as hidden files, and those that cannot hold tokens, such as `README.md`,
    are no contexts. The first `begin` contexts are skipped unread.

    Raises:
        MissingError: there is no such file.
        FormatError: the shard is damaged.
    """
    path = Path(path)
    archive = map_archive(path)
    for member in islice(iterate_token_members(archive, path), begin, None):
        yield read_member(archive, member, path)


def iterate_shards(folder: Path | str) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the contexts of a whole dataset in the order of its `manifest.jsonl`, each of shape (length,).

    Raises MissingError where manifest or shard is not there, FormatError where a shard is not what the manifest says.
    """
    folder = Path(folder)
    for stem, samples in manifest_rows(folder / MANIFEST_NAME):
        yield from iterate_counted(folder / f"{stem}.tar", samples)


def iterate_counted(path: Path, samples: int, begin: int = 0) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the contexts [begin, samples excl) of a shard; raise FormatError where it does not hold `samples`."""
    found = begin
    for context in iterate_shard(path, begin):
        found += 1
        if found > samples:
            break
        yield context
    if found != samples:
        text = f"{found} contexts" + (" or more" if found > samples else "")
        what, remedy = "a shard does not hold what the manifest says", "make the shard again, or fetch it again"
        raise FormatError(what, where=path, found=text, expected=f"{samples} contexts", remedy=remedy)


def manifest_rows(path: Path) -> list[tuple[str, int]]:
    """Return (name without `.tar`, samples) of each shard of a manifest."""
    try:
        lines = read_regular(path).splitlines()
    except FileNotFoundError as error:
        remedy = "finish writing the dataset, or give the folder of a finished one"
        raise MissingError("no manifest of shards", where=path, remedy=remedy) from error
    rows = list[tuple[str, int]]()
    for number, line in enumerate(lines, start=1):
        try:
            row = orjson.loads(line)
            stem, count = row["shard"], row["num_sequences"]
            if not is_inside(stem) or type(count) is not int or count < 0:
                raise ValueError("shard must name a file below the manifest's folder, num_sequences be a whole number")
        except (ValueError, KeyError, TypeError) as error:
            what, remedy = "not a row of a manifest of shards", "write the manifest again"
            where, found = f"{path}, line {number}", f"{line[:80]!r} ({error})"
            raise FormatError(what, where=where, found=found, remedy=remedy) from error
        rows.append((stem, count))
    return rows
