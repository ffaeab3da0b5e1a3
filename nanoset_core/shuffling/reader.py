"""A shuffled webdataset as a stream for training: shared out among ranks and workers, resumed at any sample."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, StaleError
from nanoset_core.shuffling.reading import iterate_counted, manifest_rows
from nanoset_core.shuffling.webdataset import MANIFEST_NAME


class ShardReader:
    """Iterates the contexts of one rank, in the manifest's order; knows where it is.

    Rank r of R takes the shards r, r + R, … of ``manifest.jsonl``, and worker w of W of these every W-th from the w-th:
    all ranks and workers together take every sample exactly once. Each iteration goes on where the last one, or a
    loaded state, stopped; after the end the next one starts anew. Where torch was imported before, a reader counts as
    one of its IterableDatasets: ``DataLoader(reader, batch_size=None, num_workers=2)``; torchdata's
    StatefulDataLoader saves and restores the state of each worker.

    Raises MissingError without a manifest, ConfigError for a rank outside [0, world_size).
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

    def __iter__(self) -> Iterator[np.ndarray]:
        """The contexts from here on, each int[length].

        Raises as `iterate_shards`, and StaleError where the state that was loaded is another worker's.
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

        Raises StaleError for that of other data, of another rank, or of another number of ranks.
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
