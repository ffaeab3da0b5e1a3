"""Read a shuffled webdataset as a stream for training.

The stream is divided among ranks and workers, and can be resumed at any sample. For example, of the
tars 0 to 5, rank 1 of 2 reads 1, 3 and 5.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, StaleError
from nanoset_core.formats.tars.samples import MANIFEST_NAME
from nanoset_core.loading.boundaries import bounded_sample
from nanoset_core.loading.tar_files import ManifestRow, iterate_counted, manifest_rows
from nanoset_core.records.arguments import choice, plain_integer, token_id, whole_number
from nanoset_core.storage.location import path_on_this_machine

Uneven = Literal["raise", "drop", "repeat", "keep"]
"""What happens if ranks would have different numbers of samples; `ShardReader` explains it."""


class _RankShard(NamedTuple):
    """A shard that a rank reads."""

    stem: str
    """Path of its tar below the manifest's folder, without `.tar`."""
    samples_in_tar: int
    """How many samples the tar has."""
    samples_to_read: int
    """How many of them the rank reads, from the first one on: all, or fewer if ranks must read
    equally many samples.
    """


class _Position(NamedTuple):
    """How far a worker has read its shards."""

    shard: int
    """Number of shards that were read completely."""
    sample: int
    """Number of samples that were read of the next one."""


class _Worker(NamedTuple):
    """One of the processes that read the samples of a rank."""

    number: int
    """Number of this worker, from 0."""
    workers: int
    """How many workers the rank has."""

    def __str__(self) -> str:
        """Return the worker in words, for messages."""
        return f"worker {self.number} of {self.workers}"


_ONLY_WORKER = _Worker(0, 1)
"""The worker of a rank that reads everything in one process."""
_START = _Position(0, 0)
"""The position of a worker that has read nothing."""
_STATE_KEYS = ("shard", "sample", "rank", "world_size", "worker", "workers", "manifest")
"""The keys of a saved state."""
_MAX_WORKERS = 2**31 - 1
"""Largest number of workers of a rank that is accepted in a saved state."""


class ShardReader:
    """Iterate over the contexts of one rank; the position can be saved and restored.

    Rank r of R reads the shards r, r + R, … of `manifest.jsonl`, in this order. Worker w of W reads
    every W-th of these, from the w-th on. Unless `uneven` says otherwise, all ranks and workers
    together read every sample of the listed shards exactly once. Each iteration continues where the
    previous one, or a loaded state, stopped; after the end, the next iteration starts again from
    the beginning. An earlier iteration cannot be continued once the next one has begun.

    If torch was imported before, a reader counts as one of its IterableDatasets:
    `DataLoader(reader, batch_size=None, num_workers=2)`. torchdata's StatefulDataLoader saves and
    restores the state of each worker.

    Args:
        folder: Folder of the tars and their manifest.
        rank: Rank within the data-parallel group.
        world_size: Ranks of the group.
        uneven: What happens if ranks would have different numbers of samples, so that distributed
            training would hang at the end. `raise` raises an error. With `drop`, each rank reads as
            many samples as the smallest one has. With `repeat`, each rank reads as many as the
            largest one has, its own samples again from the start. (torch's DistributedSampler can
            do both.) With `keep`, each rank reads what its tars contain, even if that is nothing.
        eod_token: The token that ends documents. If given, the reader yields dictionaries with
            tokens, labels and boundaries of documents instead of contexts, like a `Nanoset` with
            inter_document_masking.

    Raises:
        MissingError: The manifest does not exist.
        FormatError: The manifest is damaged or empty.
        ConfigError: The rank is outside [0, world_size), the ranks have different numbers of
            samples, or (unless these are kept) one has none; `uneven` is something else; or
            `eod_token` is not the id of a token.
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
        """Prepare to read the training samples of one rank, a process that trains.

        The samples are in tars, which a manifest lists. Tars are dealt to the ranks in turn: of six
        tars and two ranks, rank 1 reads the tars 1, 3 and 5. No tar is opened yet.

        Args:
            folder: Folder of the tars and their manifest.
            rank: Number of this rank, from 0.
            world_size: Number of ranks.
            uneven: What happens if ranks would get different numbers of samples: "raise" an error,
                "drop" samples, "repeat" samples, or "keep" it so.
            eod_token: Id of the token at the end of documents. If given, samples are dictionaries,
                which also say where documents end; otherwise, arrays of tokens.

        Raises:
            MissingError: The manifest does not exist.
            FormatError: The manifest is damaged or empty.
            ConfigError: An argument is impossible, or ranks would get different numbers of samples
                and `uneven` does not allow this.
        """
        choice("uneven", uneven, get_args(Uneven))
        _check_rank(rank, world_size)
        # Absolute, since the caller may change the working directory before it reads.
        self.folder = path_on_this_machine(folder).absolute()
        self.rank = rank
        self.world_size = world_size
        self.eod_token = None if eod_token is None else token_id("eod_token", eod_token)

        # Which tars this rank reads.
        manifest = self.folder / MANIFEST_NAME
        rows = manifest_rows(manifest)
        self._shards = _shards_of_rank(rows, _ShardDivision(rank, world_size, uneven), manifest)

        # The position, which can be saved and loaded. With other tars, or another `uneven`, it
        # would mean another sample. So a digest of these is saved with it, and compared.
        self._position = _START
        self._manifest_digest = _manifest_digest(rows, uneven)
        self._position_worker: _Worker | None = None
        """The worker process that has read up to the position; None if nothing has been read."""

        # Without this, torch's DataLoader would ask for the length and for samples by number.
        _register_with_torch(type(self))

    @property
    def samples(self) -> int:
        """Number of samples of this rank, of all its workers together."""
        return sum(shard.samples_to_read for shard in self._shards)

    def __iter__(self) -> Iterator[Any]:
        """Yield the training samples that this process still has to read.

        The samples are in tars, called shards. A position says how far they have been read. For
        example, training is resumed at shard 2, sample 30:

            shard 0, shard 1    were read completely, and are skipped
            shard 2             is read from sample 30 on
            shard 3, …          are read from their start

        After the last shard, the position is the start again.

        Yields:
            Arrays of tokens, shape (length,), or dictionaries if there is an `eod_token`.

        Raises:
            StaleError: Another worker process has read up to the position; or, while samples are
                read, another iteration of this reader has begun, or a state was loaded.
            ConfigError: The type of the tokens has no `eod_token`.
        """
        # A DataLoader may read with several worker processes. Each of them reads other shards, so a
        # position can only be used by the worker that has read up to it.
        worker = _current_worker()
        self._check_position_is_of(worker)
        self._position_worker = worker
        shards = self._shards[worker.number :: worker.workers]

        position = self._position
        first_shard, sample = position
        for number in range(first_shard, len(shards)):
            shard = shards[number]
            for tokens in self._tokens_of_shard(shard, sample):
                self._check_position_is(position)
                # Move the position first: the state counts a sample as soon as it is yielded.
                sample += 1
                if sample < shard.samples_to_read:
                    position = _Position(number, sample)
                else:
                    position = _Position(number + 1, 0)
                self._position = position
                if self.eod_token is None:
                    yield tokens
                else:
                    yield bounded_sample(tokens, self.eod_token)
            sample = 0  # the next shard is read from its start
        self._check_position_is(position)
        self._position = _START

    def _tokens_of_shard(self, shard: _RankShard, start: int) -> Iterator[NDArray[np.integer[Any]]]:
        """Yield the samples of a tar that are still to be read.

        Usually a tar is read to its end. Then it is an error if the tar has more or fewer samples
        than the manifest says. But if ranks must read equally many samples, the last tar of a rank
        may be read in part, such as 60 of its 100 samples. Then nobody looks at the others, and
        they are not counted.

        Args:
            shard: The tar, and how many of its samples are read in total.
            start: How many samples were read before.

        Raises:
            FormatError: The tar is read to its end, and has more or fewer samples.
        """
        path = self.folder / f"{shard.stem}.tar"
        # `iterate_counted` compares the number of samples after it has yielded the last one.
        samples = iterate_counted(path, shard.samples_in_tar, start)
        if shard.samples_to_read < shard.samples_in_tar:
            return islice(samples, shard.samples_to_read - start)
        return samples

    def _check_position_is(self, position: _Position) -> None:
        """Check that no other iteration has moved the position since this one did.

        A reader has one position. If two iterations moved it, each would yield samples that the
        other one has yielded, and move the position back.

        Args:
            position: The object that this iteration has read or set, not one with equal numbers.

        Raises:
            StaleError: Another iteration has begun, or a state was loaded.
        """
        if self._position is not position:
            raise _moved_position(self.folder)

    def _check_position_is_of(self, worker: _Worker) -> None:
        """Check that a worker may continue at the current position, since it has read up to it.

        Each worker reads other shards, so a position means nothing to another one.

        Raises:
            StaleError: Another worker has read up to the position.
        """
        is_started = self._position != _START
        if is_started and self._position_worker not in (None, worker):
            raise _foreign_state(found=str(self._position_worker), expected=str(worker))

    def state_dict(self) -> dict[str, Any]:
        """Return how far this reader has read, for `load_state_dict`.

        `shard` is the number of shards (tars) that were read completely, and `sample` the number of
        samples that were read of the next one. For example, shard 2 and sample 30: two tars, and 30
        samples of the third.
        """
        worker = self._worker_at_position()
        return {
            "shard": self._position.shard,
            "sample": self._position.sample,
            "rank": self.rank,
            "world_size": self.world_size,
            "worker": worker.number,
            "workers": worker.workers,
            "manifest": self._manifest_digest,
        }

    def _worker_at_position(self) -> _Worker:
        """Return which of the processes that read for this rank has read up to the position.

        In a worker of a PyTorch DataLoader, it is this worker. Elsewhere, it may be one whose state
        was loaded. Otherwise, this is the only process that reads for this rank.
        """
        torch_worker = _torch_worker()
        if torch_worker is not None:
            return torch_worker
        if self._position_worker is not None:
            return self._position_worker
        return _ONLY_WORKER

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position that was saved before, for example when training is resumed.

        The position is "2 tars and 30 samples", for example. It means something else for another
        rank (process that trains), or with other tars. Then it is refused.

        Args:
            state: The result of `state_dict`, of a reader with the same rank, ranks and manifest.

        Raises:
            ConfigError: It is not the state of a reader.
            StaleError: The state was saved with other data or ranks.
        """
        _check_is_state(state)
        self._check_is_of_this_rank_and_data(state)

        # A rank can have several workers, processes that read for it. Only the one that has read up
        # to the position may continue there, which is checked when it starts to read.
        n_workers = whole_number("workers", state["workers"], 1, _MAX_WORKERS)
        number = whole_number("worker", state["worker"], 0, n_workers - 1)
        worker = _Worker(number, n_workers)
        self._position = self._checked_position(state, worker)
        self._position_worker = worker

    def _check_is_of_this_rank_and_data(self, state: Mapping[str, Any]) -> None:
        """Check that a position was saved by the same rank, with the same tars.

        Args:
            state: The result of `state_dict` of a reader.

        Raises:
            StaleError: It was saved with other data or ranks.
        """
        rank = state["rank"]
        world_size = state["world_size"]
        if rank != self.rank or world_size != self.world_size:
            raise _foreign_state(
                found=f"rank {rank} of {world_size}",
                expected=f"rank {self.rank} of {self.world_size}",
            )
        if state["manifest"] != self._manifest_digest:
            raise _foreign_state(
                found="other tars, or another value of `uneven`",
                expected=f"those of {self.folder / MANIFEST_NAME}",
            )

    def _checked_position(self, state: Mapping[str, Any], worker: _Worker) -> _Position:
        """Return the position in a saved state, after a check that it is one of this reader.

        For example, of 4 shards (tars) with 100 samples each, worker 1 of 2 reads the shards 1 and
        3, in its own count 0 and 1. These are valid positions:

            shard 1, sample 30     it has read shard 1, and 30 samples of shard 3
            shard 1, sample 100    it has read all samples
            shard 2, sample 0      it has read all shards

        Args:
            state: The state.
            worker: The worker that saved it: its number, and how many workers there are.

        Raises:
            ConfigError: The worker does not have such a shard, or the shard no such sample.
        """
        shards_of_worker = self._shards[worker.number :: worker.workers]
        n_shards = len(shards_of_worker)
        shard = whole_number("shard", state["shard"], minimum=0, maximum=n_shards)

        n_samples = 0  # after the last shard, there are none
        if shard < n_shards:
            n_samples = shards_of_worker[shard].samples_to_read
        sample = whole_number("sample", state["sample"], minimum=0, maximum=n_samples)
        return _Position(shard, sample)


def _check_is_state(state: Mapping[str, Any]) -> None:
    """Check that something that a user has passed is the saved state of a reader.

    Args:
        state: What the user has passed, which may be the state of something else.

    Raises:
        ConfigError: A key is missing.
    """
    has_all_keys = isinstance(state, Mapping) and all(key in state for key in _STATE_KEYS)
    if not has_all_keys:
        raise ConfigError(
            "not the state of a ShardReader",
            where="state",
            found=repr(state),
            expected=f"a dictionary with {', '.join(_STATE_KEYS)}",
            remedy="pass what state_dict() of a ShardReader returned",
        )


def _check_rank(rank: int, world_size: int) -> None:
    """Check that a process that trains exists: 0 to 7 are the possible ranks of 8 processes.

    Args:
        rank: Number of the process.
        world_size: Number of processes.

    Raises:
        ConfigError: There is no such process, or an argument is not a whole number.
    """
    are_numbers = plain_integer(rank) is not None and plain_integer(world_size) is not None
    if not are_numbers or not 0 <= rank < world_size:
        raise ConfigError(
            "no such rank",
            found=f"{rank!r} of {world_size!r}",
            expected="whole numbers, 0 <= rank < world_size",
            remedy="give the rank within the data-parallel group, and its size",
        )


@dataclass(frozen=True, slots=True)
class _ShardDivision:
    """How the shards of a manifest are divided among ranks."""

    rank: int
    """The rank whose shards are needed, from 0."""
    world_size: int
    """Number of ranks."""
    uneven: Uneven
    """What happens if ranks would have different numbers of samples."""


def _shards_of_rank(
    rows: list[ManifestRow],
    division: _ShardDivision,
    manifest: Path,
) -> list[_RankShard]:
    """Return the tars (shards) that a rank reads, and how many training samples of each.

    A rank is one of several processes that train together. Tars are dealt to them in turn. If they
    would get different numbers of samples, the setting `uneven` decides. For tars of 100, 100 and
    60 samples and two ranks:

        uneven      rank 0 reads    rank 1 reads
        "keep"      160             100
        "drop"      100             100
        "repeat"    160             160, the first 60 of its tar again
        "raise"     an error

    Args:
        rows: The tars, in the order of the manifest.
        division: The rank, the number of ranks, and `uneven`.
        manifest: Path of the manifest, for messages.

    Raises:
        ConfigError: The ranks have different numbers of samples, and `uneven` is `raise`; or a rank
            has none, and `uneven` is not `keep`.
    """
    world_size = division.world_size
    rank_rows = rows[division.rank :: world_size]
    shards = [_RankShard(row.stem, row.samples, samples_to_read=row.samples) for row in rank_rows]

    # Distributed training waits for the slowest rank, so all must have as many samples.
    samples_of_rank = [0] * world_size
    for number, row in enumerate(rows):
        samples_of_rank[number % world_size] += row.samples
    fewest_samples = min(samples_of_rank)
    most_samples = max(samples_of_rank)
    if division.uneven == "keep":
        return shards
    if most_samples == 0:
        raise ConfigError(
            "the tars have no samples",
            where=manifest,
            remedy="write the tars again; uneven='keep' reads them in spite of this",
        )
    if fewest_samples == most_samples:
        return shards
    if division.uneven == "raise" or fewest_samples == 0:
        raise _uneven_error(
            n_tars=len(rows),
            n_ranks=world_size,
            fewest_samples=fewest_samples,
            most_samples=most_samples,
            manifest=manifest,
        )
    n_samples = fewest_samples if division.uneven == "drop" else most_samples
    return _with_samples(shards, n_samples)


def _with_samples(shards: list[_RankShard], n_samples: int) -> list[_RankShard]:
    """Choose shards (tars) that have a certain number of samples together.

    If there are too many samples, the last shard is not read to its end. If there are too few, the
    first shards are read again. For example, with two shards of 5 samples each:

        8 samples     5 of shard 0, 3 of shard 1
        12 samples    5 of shard 0, 5 of shard 1, 2 of shard 0

    Args:
        shards: The shards, which are used in this order; one of them has samples.
        n_samples: Number of samples; at least 1.
    """
    chosen: list[_RankShard] = []
    n_missing = n_samples
    for shard in cycle(shards):
        chosen.append(shard._replace(samples_to_read=min(shard.samples_in_tar, n_missing)))
        n_missing -= shard.samples_in_tar
        if n_missing <= 0:
            break
    return chosen


def _uneven_error(
    *, n_tars: int, n_ranks: int, fewest_samples: int, most_samples: int, manifest: Path
) -> ConfigError:
    """Return the error for ranks of a training run that would get different numbers of samples.

    Training data is in tars, which are dealt to the ranks, the processes that train together. For
    example, 3 tars of 100 samples for 2 ranks give 200 samples to one rank and 100 to the other.
    The first one would wait forever for the other. The message lists the possible ways out.

    Args:
        n_tars: Number of tars, which are dealt to the ranks.
        n_ranks: Number of ranks.
        fewest_samples: Samples of the rank with the fewest.
        most_samples: Samples of the rank with the most.
        manifest: Path of the list of the tars.
    """
    more_tars = (
        "make more tars (a smaller samples_per_shard), equal ones (even: true), or use fewer ranks"
    )
    if fewest_samples:
        remedy = (
            f"give uneven='drop' (every rank takes {fewest_samples:,}), 'repeat' (every rank "
            f"takes {most_samples:,}) or 'keep'; or {more_tars}"
        )
    else:
        remedy = f"{more_tars}; uneven='keep' reads all tars in spite of this"
    return ConfigError(
        "the ranks have different numbers of samples: distributed training would hang at the end",
        where=manifest,
        found=f"{n_tars:,} tars for {n_ranks:,} ranks: "
        f"{fewest_samples:,} to {most_samples:,} samples a rank",
        expected="as many tars of equal size for each rank",
        remedy=remedy,
    )


def _manifest_digest(rows: list[ManifestRow], uneven: Uneven) -> str:
    """Return a digest of all that decides which training samples a rank (process) reads.

    The position of a reader can be saved, and restored when training is resumed. With another list
    of tars, or another setting, the same position would be another sample. So the digest is saved
    with it, and compared. For this reason the hashed text must not change between versions of this
    package.

    Args:
        rows: The shards (tars) that the manifest lists.
        uneven: What happens if ranks would have different numbers of samples.
    """
    plain_rows = [tuple(row) for row in rows]

    # "drop" and "repeat" make a rank skip samples, or read some twice. With the other values,
    # "raise" and "keep", it reads exactly the samples of its tars.
    if uneven in ("drop", "repeat"):
        text = repr((uneven, plain_rows))
    else:
        text = repr(plain_rows)
    return hashlib.sha256(text.encode()).hexdigest()


def _foreign_state(*, found: str, expected: str) -> StaleError:
    """Return the error for a state that a reader of other data, or of another rank, has saved.

    Args:
        found: Rank or worker of the state.
        expected: Rank or worker of this reader.
    """
    return StaleError(
        "the state is that of another reader",
        found=found,
        expected=expected,
        remedy="resume with the ranks, the workers and the data with which the state was saved",
    )


def _moved_position(folder: Path) -> StaleError:
    """Return the error for an iteration that continues after another one has begun.

    Args:
        folder: The folder of the tars.
    """
    return StaleError(
        "another iteration of this reader has begun, or a state was loaded",
        where=folder,
        expected="one iteration at a time",
        remedy="use a ShardReader for each loop over the samples",
    )


def _register_with_torch(reader: type) -> None:
    """Make readers count as torch's IterableDatasets, if torch was imported.

    torch takes seconds to import, so this never imports it.
    """
    data = sys.modules.get("torch.utils.data")
    if data is not None and not issubclass(reader, data.IterableDataset):
        data.IterableDataset.register(reader)


def _current_worker() -> _Worker:
    """Return which worker of a DataLoader this process is; outside of one, it is worker 0 of 1."""
    worker = _torch_worker()
    if worker is None:
        return _ONLY_WORKER
    return worker


def _torch_worker() -> _Worker | None:
    """Return which worker of a DataLoader this process is, or None outside of workers."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    if info is None:
        return None
    return _Worker(info.id, info.num_workers)
