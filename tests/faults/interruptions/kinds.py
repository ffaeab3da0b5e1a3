"""Builds that are killed, starved, raced and misled: after each, the same digests as of an undisturbed one."""

from __future__ import annotations

import argparse
import importlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from faults.interruptions import buckets, clusters, joined, local
from faults.interruptions.places import LocalPlace, Place, dispose, start_command
from faults.interruptions.servers import Store, running_store
from faults.interruptions.sources import changed_while_read
from faults.runner import Kind, Skipped, Trial, each

from nanoset_core.storage import s3_requests

HEAD, COLUMNS = ("fault", "storage", "build"), ("faults", "killed", "refused", "done")
TRIALS = 200
"""random moments of kill -9, over all kinds of builds"""
CORE, WORKERS, EITHER = "core, 1 process", "core, 2 workers", "core, 1 process or 2 workers"
COMMAND = "`nanoset build`"
_IMPORTED = (
    *("pyarrow.compute", "pyarrow.parquet", "numpy.random", "email.parser", "isal.igzip_threaded", "isal.isal_zlib"),
    *("zstandard", "tokenizers"),
)
"""What builds import on their way, so that forks need neither time nor memory for it."""
Run = Callable[[Any, random.Random], Trial]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--others", type=int, default=20, help="trials of each fault but kill -9 at random")
    parser.add_argument("--storage", choices=("local", "s3", "both"), default="both")
    parser.add_argument("--seed", type=int, default=7, help="of which requests fail; another for trials side by side")
    parser.add_argument("--no-command", action="store_true", help="leave out builds by the `nanoset` command")
    parser.add_argument("--no-patience", action="store_true", help="send requests again at once")


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """Every kind of fault; what they need, such as servers, is there until the last is done."""
    for name in (*_IMPORTED, *(["boto3.session"] if find_spec("boto3") else [])):
        importlib.import_module(name)
    if options.no_patience:
        s3_requests.FIRST_WAIT_SECONDS = 0.005
    place = cache(lambda: LocalPlace(folder / "local"))
    if options.storage != "s3":
        yield from _kills(place, "local", options)
        yield from _local(place, options)
    if options.storage != "local" and find_spec("moto") is None:
        yield each(("all", "S3", CORE), 1, _skip("moto[server] is not installed"))
    elif options.storage != "local":
        with running_store(options.seed) as store:
            bucket = cache(lambda: buckets.BucketPlace(folder / "s3", store=store, template=place().template))
            yield from _kills(bucket, "S3", options)
            yield from _remote(bucket, options)
            yield _joined(folder, store, options.others)
            with ExitStack() as servers:
                yield _clustered(folder, store, servers, options.trials)


def _skip(reason: str) -> Callable[..., Trial]:
    def skip(*_arguments: object) -> Trial:
        raise Skipped(reason)

    return skip


def _kills(place: Callable[[], Place], storage: str, options: argparse.Namespace) -> Iterator[Kind]:
    kills, fault = options.trials, "kill -9 at a random moment"
    steps = cache(lambda: local.count_steps(place()))
    seconds = cache(lambda: _command_seconds(place()))

    def at_random(share: float, build: str, **more: Any) -> Kind:
        return each((fault, storage, build), round(kills / 2 * share), lambda rng, _: _killed(rng, **more))

    def _killed(rng: random.Random, *, by_command: bool = False, workers: int = 1) -> Trial:
        return local.kill_at_random(place(), rng, workers=workers, seconds=seconds() if by_command else 0.0)

    def at_step(_rng: random.Random, number: int) -> Trial:
        return local.kill_at_step(place(), _spread(number, kills, steps()))

    yield at_random(0.6, CORE)
    yield at_random(0.3, WORKERS, workers=2)
    if storage == "local":
        yield each(("kill -9 before a step of publishing", storage, CORE), kills, at_step)
    if not options.no_command:
        yield at_random(0.1, COMMAND, workers=2, by_command=True)


def _local(place: Callable[[], LocalPlace], options: argparse.Namespace) -> Iterator[Kind]:
    some, few = options.others, max(1, options.others // 10)
    for fault, run, build in (
        ("disk full", local.full_disk, EITHER),
        ("no inodes left", local.no_more_inodes, CORE),
        ("files limited in size", local.short_files, CORE),
        ("folders without the right to write", local.forbidden_folders, CORE),
        ("disk read-only", local.read_only_disk, CORE),
        ("clock jumps, file times lie, and kill -9", local.jumping_clock, CORE),
        ("worker killed for want of memory", local.killed_worker, WORKERS),
        ("memory refused", local.refused_memory, CORE),
        ("two builds at once", local.two_builds, EITHER),
        ("two builds at once, one killed", local.one_of_two_killed, CORE),
    ):
        yield each((fault, "local", build), some, lambda rng, _, run=run: run(place(), rng))
    changed = ("source changed while read", "local", EITHER)
    yield each(changed, max(1, 2 * some - 1), lambda rng, number: changed_while_read(place(), rng, number))
    if not options.no_command:
        yield each(("two builds at once", "local", COMMAND), few, lambda rng, _: local.two_commands(place(), rng))
        full = ("disk full", "local", COMMAND)
        yield each(full, few, lambda rng, _: local.full_disk(place(), rng, command=True))


def _remote(place: Callable[[], buckets.BucketPlace], options: argparse.Namespace) -> Iterator[Kind]:
    some, requests = options.others, cache(lambda: buckets.count_requests(place()))

    def at_request(rng: random.Random, number: int) -> Trial:
        return buckets.kill_at_request(place(), rng, _spread(number, some * 2, requests()))

    yield each(("kill -9 at a request", "S3", CORE), some * 2, at_request)
    for rate in (0.1, 0.2):
        spoiled = (f"{rate:.0%} of requests fail", "S3", EITHER)
        yield each(spoiled, some, lambda rng, _, rate=rate: buckets.spoiled_requests(place(), rng, rate=rate))
    down = ("all requests fail from one on", "S3", CORE)
    yield each(down, max(1, some // 10), lambda rng, _: buckets.store_down(place(), rng))
    two = ("two builds at once, from two machines", "S3", CORE)
    yield each(two, some, lambda rng, _: buckets.two_machines(place(), rng))


def _joined(folder: Path, store: Store, trials: int) -> Kind:
    place = cache(lambda: joined.joined_place(folder / "joined", store))
    requests = cache(lambda parts: joined.count_joining(place(), parts))

    def run(rng: random.Random, number: int) -> Trial:
        parts = joined.LEVELS[number % len(joined.LEVELS)]
        half = requests(parts) // 2  # before that it looks what there is
        return joined.kill_joining(place(), rng, half + _spread(number, trials, half), parts)

    fault = "kill -9 at a request while shards are joined, of some builds requests fail"
    return each((fault, "S3", CORE), trials, run)


def _clustered(folder: Path, store: Store, servers: ExitStack, trials: int) -> Kind:
    place = cache(lambda: servers.enter_context(clusters.cluster_place(folder / "cluster", store)))
    requests = cache(lambda: buckets.count_requests(place()))

    def run(rng: random.Random, number: int) -> Trial:
        if reason := clusters.missing():
            raise Skipped(reason)
        return clusters.kill_one(place(), rng, _spread(number, trials, requests()))

    fault = f"kill -9 of a build or a worker at a request, {clusters.FAILING:.0%} of requests fail"
    return each((fault, "S3", f"core, {clusters.WORKERS} machines"), trials, run)


def _spread(number: int, count: int, steps: int) -> int:
    """Steps from 1, evenly over all, for trials from 0."""
    return 1 + number * steps // count % steps


def _command_seconds(place: Place) -> float:
    subject, begun = place.new(workers=2), time.monotonic()
    start_command(subject).wait()
    seconds = time.monotonic() - begun
    dispose(subject)
    return seconds
