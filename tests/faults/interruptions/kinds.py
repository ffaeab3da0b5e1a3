"""Every kind of fault, with as many trials as asked for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from faults.interruptions import clusters, joined, local
from faults.interruptions.buckets import (
    BucketPlace,
    count_requests,
    kill_at_request,
    spoiled_requests,
    store_down,
    two_machines,
)
from faults.interruptions.places import LocalPlace, Place, dispose
from faults.interruptions.processes import start_command
from faults.interruptions.servers import running_store
from faults.interruptions.sources import changed_while_read
from faults.interruptions.trials import Kind, Trial

CORE, WORKERS, EITHER = "core, 1 process", "core, 2 workers", "core, 1 process or 2 workers"
COMMAND = "`nanoset build`"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many trials."""

    kills: int
    """at random moments, over all kinds of builds"""
    others: int
    """of each other kind of fault"""
    command: bool
    """whether `nanoset build`, which takes seconds to start, is among the builds"""
    steps: bool = True
    """whether builds are killed at each step of publishing, too"""


@contextmanager
def kinds(folder: Path, sizes: Sizes, storage: str, seed: int = 7) -> Iterator[list[Kind]]:
    """All of them; what they need, such as servers, is there until the block ends.

    seed: of which requests fail.
    """
    place = cache(lambda: LocalPlace(folder / "local"))
    found = _local(place, sizes) if storage != "s3" else []
    if storage == "local" or find_spec("moto") is None:
        reason = "moto[server] is not installed"
        yield found if storage == "local" else [*found, Kind("all", "S3", CORE, 1, lambda _rng, _number: reason)]
        return
    with running_store(seed) as store, ExitStack() as servers:
        remote = _remote(cache(lambda: BucketPlace(folder / "s3", store, place().template)), sizes)

        @cache
        def cluster() -> clusters.ClusterPlace:
            return servers.enter_context(clusters.cluster_place(folder / "cluster", store))

        large = cache(lambda: joined.joined_place(folder / "joined", store))
        yield [*found, *remote, _joined(large, sizes), _clustered(cluster, sizes)]


def _joined(place: Callable[[], joined.JoinedPlace], sizes: Sizes) -> Kind:
    requests = cache(lambda parts: joined.count_joining(place(), parts))
    trials = sizes.others

    def run(rng: random.Random, number: int) -> Trial:
        parts = joined.LEVELS[number % len(joined.LEVELS)]
        half = requests(parts) // 2  # before that it looks what there is
        return joined.kill_joining(place(), rng, half + _spread(number, trials, half), parts)

    fault = "kill -9 at a request while shards are joined, of some builds requests fail"
    return Kind(fault, "S3", CORE, trials, run)


def _clustered(place: Callable[[], clusters.ClusterPlace], sizes: Sizes) -> Kind:
    requests = cache(lambda: count_requests(place()))

    def run(rng: random.Random, number: int) -> Trial | str:
        return clusters.missing() or clusters.kill_one(place(), rng, _spread(number, sizes.kills, requests()))

    fault = f"kill -9 of a build or a worker at a request, {clusters.FAILING:.0%} of requests fail"
    return Kind(fault, "S3", f"core, {clusters.WORKERS} machines", sizes.kills, run)


def _remote(place: Callable[[], BucketPlace], sizes: Sizes) -> list[Kind]:
    requests = cache(lambda: count_requests(place()))

    def at_request(rng: random.Random, number: int) -> Trial:
        return kill_at_request(place(), rng, _spread(number, sizes.others * 2, requests()))

    def spoiled(rate: float) -> Kind:
        fault = f"{rate:.0%} of requests fail"
        return Kind(fault, "S3", EITHER, sizes.others, lambda rng, _: spoiled_requests(place(), rng, rate=rate))

    return [
        *_kills(place, "S3", replace(sizes, steps=False)),
        Kind("kill -9 at a request", "S3", CORE, sizes.others * 2, at_request),
        spoiled(0.1),
        spoiled(0.2),
        Kind(
            "all requests fail from one on",
            "S3",
            CORE,
            max(1, sizes.others // 10),
            lambda rng, _: store_down(place(), rng),
        ),
        Kind(
            "two builds at once, from two machines", "S3", CORE, sizes.others, lambda rng, _: two_machines(place(), rng)
        ),
    ]


def _local(place: Callable[[], LocalPlace], sizes: Sizes) -> list[Kind]:
    found = _kills(place, "local", sizes)
    some = sizes.others

    def add(fault: str, run: Callable[[LocalPlace, random.Random], Trial | str], build: str = CORE) -> None:
        trials = some if build != COMMAND else max(1, some // 10)
        found.append(Kind(fault, "local", build, trials, lambda rng, _: run(place(), rng)))

    add("disk full", local.full_disk, EITHER)
    add("no inodes left", local.no_more_inodes)
    add("files limited in size", local.short_files)
    add("folders without the right to write", local.forbidden_folders)
    add("disk read-only", local.read_only_disk)
    add("clock jumps, file times lie, and kill -9", local.jumping_clock)
    add("worker killed for want of memory", local.killed_worker, WORKERS)
    add("memory refused", local.refused_memory)
    add("two builds at once", local.two_builds, EITHER)
    add("two builds at once, one killed", local.one_of_two_killed)
    sources = max(1, 2 * some - 1)
    found.append(
        Kind("source changed while read", "local", EITHER, sources, lambda rng, n: changed_while_read(place(), rng, n))
    )
    if sizes.command:
        add("two builds at once", local.two_commands, COMMAND)
        add("disk full", partial(local.full_disk, command=True), COMMAND)
    return found


def _kills(place: Callable[[], Place], storage: str, sizes: Sizes) -> list[Kind]:
    half, fault = sizes.kills / 2, "kill -9 at a random moment"
    steps = cache(lambda: local.count_steps(place()))
    seconds = cache(lambda: _command_seconds(place()))

    def at_random(share: float, build: str, **options: Any) -> Kind:
        trials = round(half * share)
        return Kind(fault, storage, build, trials, lambda rng, _: local.kill_at_random(place(), rng, **options))

    def by_command(rng: random.Random, _number: int) -> Trial:
        return local.kill_at_random(place(), rng, workers=2, seconds=seconds())

    def at_step(_rng: random.Random, number: int) -> Trial:
        return local.kill_at_step(place(), _spread(number, sizes.kills, steps()))

    found = [at_random(0.6, CORE), at_random(0.3, WORKERS, workers=2)]
    if sizes.steps:
        found.append(Kind("kill -9 before a step of publishing", storage, CORE, sizes.kills, at_step))
    if sizes.command:
        found.append(Kind(fault, storage, COMMAND, round(half * 0.1), by_command))
    return found


def _spread(number: int, count: int, steps: int) -> int:
    """Steps from 1, evenly over all, for trials from 0."""
    return 1 + number * steps // count % steps


def _command_seconds(place: Place) -> float:
    subject = place.new(workers=2)
    begun = time.monotonic()
    start_command(subject, subject.folder / ".home").wait()
    seconds = time.monotonic() - begun
    dispose(subject)
    return seconds
