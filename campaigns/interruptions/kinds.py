"""All kinds of trials that disturb builds: by kills, full disks, failing requests and more.

After each trial, a build must succeed with the same bytes as a build that nothing disturbed.
"""

from __future__ import annotations

import argparse
import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
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
from campaigns.interruptions.proxy import FaultyServer, running_server
from campaigns.runner import Kind, Skipped, Trial, each
from helpers.buckets import CLOUDS
from nanoset_core.storage import requests

HEAD = ("fault", "storage", "build")
"""First columns of the table."""
COLUMNS = ("faults", "killed", "refused", "done")
"""Columns of counts, besides those of every campaign."""
TRIALS = 200
"""Default of `--trials`, from which the numbers of trials with kills follow."""
_PRELOADED = (
    "email.parser",
    "isal.igzip_threaded",
    "isal.isal_zlib",
    "numpy.random",
    "pyarrow.compute",
    "pyarrow.parquet",
    "tokenizers",
    "zstandard",
)
"""Modules that builds import while they run. They are imported once, before the trials, so that
each build, which is a fork, needs neither time nor memory for them.
"""


@dataclass(frozen=True, slots=True)
class _LocalFault:
    """A fault of one machine, as the table names it, and the function that causes it."""

    name: str
    build: str
    """How the project is built: one of the names in `places`."""
    disturb: Callable[..., Iterator[None]]
    options: dict[str, object] = field(default_factory=dict)
    """Keyword arguments of the function."""


_LOCAL_FAULTS = (
    _LocalFault("disk full", EITHER, local.full_disk),
    _LocalFault("no inodes left", CORE, local.full_disk, {"of_inodes": True}),
    _LocalFault("folders without the right to write", CORE, local.forbidden_folders),
    _LocalFault("disk read-only", CORE, local.read_only_disk),
    _LocalFault("clock jumps, file times lie, and kill -9", CORE, local.jumping_clock),
    _LocalFault("worker killed for want of memory", WORKERS, local.killed_worker),
    _LocalFault("memory refused", CORE, local.refused_memory),
    _LocalFault("two builds at once", EITHER, local.two_builds),
    _LocalFault("two builds at once, one killed", CORE, local.two_builds, {"one_killed": True}),
    _LocalFault("two builds at once", COMMAND, local.two_builds),
    _LocalFault("disk full", COMMAND, local.full_disk),
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this campaign to the command line."""
    parser.add_argument(
        "--others", type=int, default=20, help="trials of each fault except random kills"
    )
    parser.add_argument(
        "--storage",
        choices=("local", *CLOUDS, "both"),
        default="both",
        help="where the outputs are; both: in a local folder, and in a bucket of S3",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=7,
        help="decides which requests fail; use different seeds for campaigns run in parallel",
    )
    parser.add_argument(
        "--no-command", action="store_true", help="leave out builds by the `nanoset` command"
    )
    parser.add_argument(
        "--no-patience", action="store_true", help="retry failed requests without a pause"
    )


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """Yield the kinds of trials that the options select.

    Servers that they need run until the generator is closed.

    Args:
        folder: Where the trials write.
        options: Options of the command line.
    """
    for name in _PRELOADED:
        importlib.import_module(name)
    if find_spec("botocore"):
        importlib.import_module("botocore.session")
    if options.no_patience:
        requests.FIRST_WAIT_SECONDS = 0.005

    # Built when the first trial needs it: `--select` may exclude all of its kinds.
    @cache
    def local_place() -> LocalPlace:
        return LocalPlace(folder / "local")

    if options.storage in ("local", "both"):
        yield from _kills(local_place, "local", options)
        yield from _local_kinds(local_place, options)
    if options.storage == "local":
        return

    cloud_name = "s3" if options.storage == "both" else options.storage
    cloud = CLOUDS[cloud_name]
    reason = cloud.why_missing()
    if reason is not None:

        def skip(_rng: random.Random, _number: int) -> Trial:
            raise Skipped(reason)

        yield each(("all", cloud.name, CORE), 1, skip)
        return
    with running_server(options.seed, cloud_name) as store:
        yield from _bucket_kinds(folder, local_place, store, options)


def _kills(place: Callable[[], Place], storage: str, options: argparse.Namespace) -> Iterator[Kind]:
    """Yield the kinds of trials that kill builds at random moments or before certain steps.

    Args:
        place: Returns the place of the projects.
        storage: Its name in the table.
        options: Options of the command line.
    """
    n_kills = options.trials
    fault = "kill -9 at a random moment"
    disturb = local.kill_at_random
    yield trials_of(place, fault, storage, CORE, max(1, round(n_kills * 0.3)), disturb)
    yield trials_of(place, fault, storage, WORKERS, max(1, round(n_kills * 0.15)), disturb)
    if storage == "local":
        step_fault = "kill -9 before a step of publishing"
        yield trials_of(place, step_fault, storage, CORE, n_kills, local.kill_at_step)
    if not options.no_command:
        # The command takes several times as long as the core.
        yield trials_of(place, fault, storage, COMMAND, max(1, round(n_kills * 0.05)), disturb)


def _local_kinds(place: Callable[[], LocalPlace], options: argparse.Namespace) -> Iterator[Kind]:
    """Yield the kinds of trials with other faults of one machine.

    Args:
        place: Returns the place of the projects.
        options: Options of the command line.
    """
    n_trials = options.others
    n_command_trials = max(1, n_trials // 10)
    for fault in _LOCAL_FAULTS:
        is_command = fault.build == COMMAND
        if is_command and options.no_command:
            continue
        count = n_command_trials if is_command else n_trials
        yield trials_of(
            place, fault.name, "local", fault.build, count, fault.disturb, **fault.options
        )

    def change_source(rng: random.Random, number: int) -> Trial:
        return local.changed_while_read(place(), rng, number)

    cells = ("source changed while read", "local", EITHER)
    yield each(cells, max(1, 2 * n_trials - 1), change_source)


def _bucket_kinds(
    folder: Path,
    local_place: Callable[[], LocalPlace],
    store: FaultyServer,
    options: argparse.Namespace,
) -> Iterator[Kind]:
    """Yield the kinds of trials whose projects have their outputs in buckets.

    Args:
        folder: Where the trials write.
        local_place: Returns a local place, with whose outputs those in buckets are compared.
        store: The server of the buckets.
        options: Options of the command line.
    """
    with ExitStack() as servers:
        # Each place is built when the first trial needs it.
        @cache
        def bucket_place() -> Place:
            template = local_place().template
            return buckets.BucketPlace(base=folder / "buckets", store=store, template=template)

        @cache
        def joined_place() -> buckets.BucketPlace:
            return buckets.joined_place(folder / "joined", store)

        @cache
        def cluster_place() -> Place:
            return servers.enter_context(buckets.cluster_place(folder / "cluster", store))

        @cache
        def dropping_place() -> Place:
            return dropping.dropping_place(folder / "dropped", store, joined_place())

        cloud_name = store.cloud.name
        yield from _kills(bucket_place, cloud_name, options)
        yield from _request_kinds(bucket_place, cloud_name, options)
        if cloud_name != "S3":
            return
        yield _joining_kind(joined_place, options)
        yield _cluster_kind(cluster_place, options)
        yield trials_of(
            dropping_place,
            "kill -9 at a request while tokens are dropped: of an append, a collection or a check",
            "S3",
            CORE,
            options.others * 2,
            dropping.kill_while_dropping,
        )


def _request_kinds(
    place: Callable[[], Place], storage: str, options: argparse.Namespace
) -> Iterator[Kind]:
    """Yield the kinds of trials that kill builds at requests, or let requests fail.

    Args:
        place: Returns the place of the projects.
        storage: Its name in the table.
        options: Options of the command line.
    """
    n_trials = options.others
    n_outages = max(1, n_trials // 10)
    yield trials_of(
        place, "kill -9 at a request", storage, CORE, n_trials * 2, buckets.kill_at_request
    )
    fail = buckets.spoiled_requests
    yield trials_of(place, "10% of requests fail", storage, EITHER, n_trials, fail, rate=0.1)
    yield trials_of(place, "20% of requests fail", storage, EITHER, n_trials, fail, rate=0.2)
    yield trials_of(place, "all requests fail from one on", storage, CORE, n_outages, fail, rate=1)
    yield trials_of(
        place,
        "two builds at once, from two machines",
        storage,
        CORE,
        n_trials,
        buckets.two_machines,
    )


def _joining_kind(place: Callable[[], Place], options: argparse.Namespace) -> Kind:
    """Return the kind of trials that kill builds while the bucket joins shards to a dataset."""
    return trials_of(
        place,
        "kill -9 at a request while shards are joined, of some builds requests fail",
        "S3",
        CORE,
        options.others,
        buckets.kill_at_request,
        rates=(0.0, buckets.FAILING),
        part_limits=buckets.PART_LIMITS,
        # In the first half of its requests, the build only looks at what exists.
        skipped_share=0.5,
    )


def _cluster_kind(place: Callable[[], Place], options: argparse.Namespace) -> Kind:
    """Return the kind of trials that kill builds on a cluster, or workers of the cluster."""
    return trials_of(
        place,
        f"kill -9 of a build or a worker at a request, {buckets.FAILING:.0%} of requests fail",
        "S3",
        f"core, {buckets.MACHINES} machines",
        options.trials,
        buckets.kill_at_request,
        rates=(buckets.FAILING,),
    )
