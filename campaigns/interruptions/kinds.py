"""Builds that are killed, starved, raced and misled: after each, the same digests as of an
undisturbed one.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from campaigns.interruptions import buckets, dropping, local
from campaigns.interruptions.places import (
    COMMAND,
    CORE,
    EITHER,
    WORKERS,
    LocalPlace,
    Place,
    trials_of,
)
from campaigns.interruptions.proxy import running_store
from campaigns.runner import Kind, Skipped, Trial, each
from nanoset_core.storage import s3_requests

HEAD, COLUMNS = ("fault", "storage", "build"), ("faults", "killed", "refused", "done")
TRIALS = 200
"""random moments of kill -9, over all kinds of builds"""
_IMPORTED = (
    *(
        "pyarrow.compute",
        "pyarrow.parquet",
        "numpy.random",
        "email.parser",
        "isal.igzip_threaded",
        "isal.isal_zlib",
    ),
    *("zstandard", "tokenizers"),
)
"""What builds import on their way, so that forks need neither time nor memory for it."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--others", type=int, default=20, help="trials of each fault but kill -9 at random"
    )
    parser.add_argument("--storage", choices=("local", "s3", "both"), default="both")
    parser.add_argument(
        "--seed",
        type=int,
        default=7,
        help="of which requests fail; another for trials side by side",
    )
    parser.add_argument(
        "--no-command", action="store_true", help="leave out builds by the `nanoset` command"
    )
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
        yield each(("all", "S3", CORE), 1, _skip)
    elif options.storage != "local":
        with running_store(options.seed) as store, ExitStack() as servers:
            bucket = cache(
                lambda: buckets.BucketPlace(folder / "s3", store=store, template=place().template)
            )
            joined = cache(lambda: buckets.joined_place(folder / "joined", store))
            cluster = cache(
                lambda: servers.enter_context(buckets.cluster_place(folder / "cluster", store))
            )
            yield from _kills(bucket, "S3", options)
            yield from _remote(bucket, joined, cluster, options)
            dropped = cache(lambda: dropping.dropping_place(folder / "dropped", store, joined()))
            fault = (
                "kill -9 at a request while tokens are dropped: of an append, a collection or a "
                "check"
            )
            yield trials_of(
                dropped, fault, "S3", CORE, options.others * 2, dropping.kill_while_dropping
            )


def _skip(*_arguments: object) -> Trial:
    raise Skipped("moto[server] is not installed")


def _kills(place: Callable[[], Place], storage: str, options: argparse.Namespace) -> Iterator[Kind]:
    kills, fault = options.trials, "kill -9 at a random moment"
    yield trials_of(place, fault, storage, CORE, round(kills * 0.3), local.kill_at_random)
    yield trials_of(place, fault, storage, WORKERS, round(kills * 0.15), local.kill_at_random)
    if storage == "local":
        yield trials_of(
            place, "kill -9 before a step of publishing", storage, CORE, kills, local.kill_at_step
        )
    if not options.no_command:
        yield trials_of(place, fault, storage, COMMAND, round(kills * 0.05), local.kill_at_random)


def _local(place: Callable[[], LocalPlace], options: argparse.Namespace) -> Iterator[Kind]:
    some, few = options.others, max(1, options.others // 10)
    for fault, build, damage, more in (
        ("disk full", EITHER, local.full_disk, {}),
        ("no inodes left", CORE, local.full_disk, {"of_inodes": True}),
        ("folders without the right to write", CORE, local.forbidden_folders, {}),
        ("disk read-only", CORE, local.read_only_disk, {}),
        ("clock jumps, file times lie, and kill -9", CORE, local.jumping_clock, {}),
        ("worker killed for want of memory", WORKERS, local.killed_worker, {}),
        ("memory refused", CORE, local.refused_memory, {}),
        ("two builds at once", EITHER, local.two_builds, {}),
        ("two builds at once, one killed", CORE, local.two_builds, {"one_killed": True}),
        ("two builds at once", COMMAND, local.two_builds, {}),
        ("disk full", COMMAND, local.full_disk, {}),
    ):
        if build != COMMAND or not options.no_command:
            yield trials_of(
                place, fault, "local", build, few if build == COMMAND else some, damage, **more
            )
    changed = ("source changed while read", "local", EITHER)
    yield each(
        changed,
        max(1, 2 * some - 1),
        lambda rng, number: local.changed_while_read(place(), rng, number),
    )


def _remote(
    place: Callable[[], Place],
    joined: Callable[[], Place],
    cluster: Callable[[], Place],
    options: argparse.Namespace,
) -> Iterator[Kind]:
    some, failing = options.others, f"{buckets.FAILING:.0%} of requests fail"
    yield trials_of(place, "kill -9 at a request", "S3", CORE, some * 2, buckets.kill_at_request)
    for fault, rate, build, count in (
        ("10% of requests fail", 0.1, EITHER, some),
        ("20% of requests fail", 0.2, EITHER, some),
        ("all requests fail from one on", 1, CORE, max(1, some // 10)),
    ):
        yield trials_of(place, fault, "S3", build, count, buckets.spoiled_requests, rate=rate)
    yield trials_of(
        place, "two builds at once, from two machines", "S3", CORE, some, buckets.two_machines
    )
    # before, it looks what there is
    late = {"rates": (0.0, buckets.FAILING), "levels": buckets.LEVELS, "first": 0.5}
    fault = "kill -9 at a request while shards are joined, of some builds requests fail"
    yield trials_of(joined, fault, "S3", CORE, some, buckets.kill_at_request, **late)
    fault, build = (
        f"kill -9 of a build or a worker at a request, {failing}",
        f"core, {buckets.MACHINES} machines",
    )
    rates = (buckets.FAILING,)
    yield trials_of(
        cluster, fault, "S3", build, options.trials, buckets.kill_at_request, rates=rates
    )
