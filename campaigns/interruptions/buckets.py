"""Disturb builds whose outputs are in a bucket: requests fail, or a build is killed at a request.

Builds reach the bucket through the proxy of `proxy.py`, which does both. In some trials, the shards
are so large that the bucket joins them to a dataset by itself, so that their bytes are not
downloaded. In others, the workers of a cluster share no folder, only the bucket.

When all is done, the bucket must contain the outputs and nothing else: neither other objects, nor
multipart uploads that nobody has completed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from campaigns.interruptions.places import BuildAttempt, Place, start
from campaigns.interruptions.proxy import FaultyServer, Plan
from campaigns.interruptions.subject import Subject, differences, rewrite, visible, write_subject
from campaigns.runner import Child, Skipped
from helpers.buckets import storage_settings, upload_raw
from helpers.dask_cluster import Cluster, can_hide, running
from helpers.s3_server import StoredObject, restore
from helpers.sample_project import jsonl
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.project import Project
from nanoset_core.storage.store import Store, Stored
from nanoset_core.storage.stores.s3 import joining as s3_joining
from nanoset_core.storage.stores.s3.store import SHA256, S3Store

MACHINES = 2
"""Number of workers of the cluster."""
IMPATIENCE = "campaigns.interruptions.impatience"
"""A module that lets the process that imports it retry requests at once."""
FAILING = 0.2
"""Share of the requests that fail in some trials."""
PART_LIMITS = (s3_joining.MAX_PARTS, 2)
"""How many parts a multipart upload may have.

With the limit of S3, all shards are joined in one upload. With a limit of 2, groups of shards are
joined first, and then the groups.
"""
_JOINED_SETTINGS = """\
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
tokenization: {append_eod: true, range_mib: 0.4, workers: 1}
"""
_SHARD_MEBIBYTES = (6, 1, 11, 6)
"""Size of the tokens of each shard.

S3 can copy parts of 5 MiB or more from object to object. So some of these shards are copied whole.
The small one is sent together with the first bytes of the next shard, whose other bytes are copied.
"""
_CLUSTER_SETTINGS = """\
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
documents: {max_rejected_fraction: 0.2}
tokenization: {append_eod: true, range_mib: 0.02, workers: 1}
nanosets:
  pretrain:
    blend: {web: 0.7, tables: 0.3}
    sequence_length: 32
    split: "80,20"
    seed: 7
    samples: {train: 400}
    trainer_path: /lustre/data
webdatasets:
  shuffled:
    corpora: [web, tables]
    sequence_length: 33
    samples_per_shard: 128
    seed: 5
    member: npy
    groups: 2
pbin: [web]
"""


@dataclass(slots=True, kw_only=True, eq=False)
class BucketPlace(Place):
    """Projects that have their outputs in buckets, each in a bucket of its own."""

    store: FaultyServer
    """The server of the buckets, with the proxy."""
    template: Path
    """Local outputs of a build that nothing disturbed."""
    settings: str = ""
    """Settings of the projects; empty for those that `write_subject` writes."""
    raw: str = "raw"
    """Where the text of the projects is."""
    storage: str = ""
    """More settings of the section `storage`, after a comma, such as `, shards: drop`."""
    held: Mapping[str, StoredObject] = field(default_factory=dict)
    """The objects that each new bucket contains, by key."""
    cluster: Cluster | None = None
    """The Dask cluster that builds. None of its workers can read the folders of the projects."""
    _buckets: dict[Path, Store] = field(default_factory=dict)
    """Folder of a project → its bucket, without the proxy."""
    _needs: dict[str, list[str]] = field(default_factory=dict)
    """Name of an output → names of those that it refers to."""

    def __post_init__(self) -> None:
        """Read which outputs the template has, and which of them need which others."""
        for name, path in visible(self.template).items():
            # A bucket has no links.
            if not path.is_symlink():
                self.expected[name] = _md5(path.read_bytes())
                self._needs[name] = _referenced_files(path, self.template)

    def new(self, *, workers: int = 1) -> Subject:
        """Write another project with a new bucket, and return it; it is not built yet."""
        self.staff()
        bucket = self.store.cloud.new_bucket(self.store.endpoint, "some/prefix")
        return self._write(bucket, workers)

    def elsewhere(self, subject: Subject) -> Subject:
        """Return the same project as another machine has it.

        It has the same bucket, but another folder, and so other local copies of the outputs.
        """
        return self._write(self.bucket(subject), 1)

    def _write(self, bucket: Store, workers: int) -> Subject:
        """Write a project whose outputs are in a bucket, and fill the bucket."""
        folder = self.base / f"project-{next(self._numbers)}"
        storage = storage_settings(bucket, self.store.proxy_endpoint, self.storage)
        subject = write_subject(folder, workers=workers, root=bucket.url(), storage=storage)
        environment = self.store.cloud.environment(self.store.proxy_endpoint)
        subject = replace(subject, environment=environment)
        if self.settings:
            settings = self.settings
            if self.cluster is not None:
                settings += f"executor: {{kind: dask, address: '{self.cluster.address}'}}\n"
            rewrite(subject, settings, raw=self.raw)
        if self.held:
            assert isinstance(bucket, S3Store)
            restore(bucket, self.held)
        self._buckets[folder] = bucket
        return subject

    def staff(self) -> list[int]:
        """Replace the dead workers of the cluster, and return the process ids of all workers.

        Without a cluster, there are none.
        """
        if self.cluster is None:
            return []
        return self.cluster.staff(MACHINES, hidden=self.base, preload=IMPATIENCE)

    def look(self, subject: Subject) -> list[str]:
        """Return what is wrong with the outputs that readers see; a build may be running.

        Each object must be one of a finished build, and all objects that it refers to must exist.
        """
        digests: dict[str, str] = {}
        for name, digest in self.objects(subject).items():
            if not _is_hidden(name):
                digests[name] = digest

        wrong: list[str] = []
        for name, digest in digests.items():
            if self.expected.get(name) != digest:
                wrong.append(f"{name} is of no finished run")
        for name in digests:
            for needed_name in self._needs.get(name, ()):
                if needed_name not in digests:
                    wrong.append(f"{name} needs {needed_name}, which is not there")
        return wrong

    def judge(self, subject: Subject) -> list[str]:
        """Return what is wrong with the outputs after a build that succeeded."""
        messages: list[str] = []
        if self.settings:
            # Here, nothing but a garbage collection removes what dead builds have left.
            collect(Project.open(subject.config))
            messages = [f"{key} is an upload left over" for key in self.uploads(subject)]
        return differences(self.objects(subject), self.expected) + self.look(subject) + messages

    def objects(self, subject: Subject) -> dict[str, str]:
        """Return the md5 digest of each object of a project, by name.

        The remembered times and digests of the raw text are left out: they differ from machine to
        machine.
        """
        bucket = self.bucket(subject)
        digests: dict[str, str] = {}
        for stored in bucket.list():
            if not stored.name.endswith(".fingerprints.json"):
                digests[stored.name] = _object_md5(bucket, stored)
        return digests

    def bucket(self, subject: Subject) -> Store:
        """Return the bucket of a project, which is reached without the proxy."""
        return self._buckets[subject.folder]

    def uploads(self, subject: Subject) -> list[str]:
        """Return the keys of multipart uploads that nobody has completed; only S3 lists them."""
        bucket = self.bucket(subject)
        if not isinstance(bucket, S3Store):
            return []
        response = bucket.client().list_multipart_uploads(Bucket=bucket.bucket)
        return [upload["Key"] for upload in response.get("Uploads", ())]


def _is_hidden(name: str) -> bool:
    """Return whether the name of an object, or of a folder in it, begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))


def _object_md5(bucket: Store, stored: Stored) -> str:
    """Return the md5 digest of an object's bytes."""
    # A listing does not have it for objects that were sent or joined in parts.
    if stored.md5 is None:
        return _md5(bucket.read_range(stored.name, 0, stored.size))
    return stored.md5


def _md5(data: bytes) -> str:
    """Return the md5 digest of bytes, which S3 uses as the ETag of an object sent at once."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _referenced_files(path: Path, root: Path) -> list[str]:
    """Return the files that must exist if an output exists, by their path below the root.

    Args:
        path: The output. A manifest refers to the files that it lists, a `current.json` to the
            manifest of the current version. Other files refer to none.
        root: Root of the outputs.
    """
    if path.name == "manifest.json":
        file_names = json.loads(path.read_bytes())["files"]
        return [(path.parent / name).relative_to(root).as_posix() for name in file_names]
    if path.name == "current.json":
        digest = json.loads(path.read_bytes())["digest"]
        manifest = path.parent / digest / "manifest.json"
        return [manifest.relative_to(root).as_posix()]
    return []


def joined_place(folder: Path, store: FaultyServer) -> BucketPlace:
    """Return a place whose buckets hold all shards of a corpus, but no dataset.

    A build then has nothing to do except join the shards to the dataset.

    Args:
        folder: A new folder for the text and the projects.
        store: The server of the buckets.
    """
    # Build the shards, and the dataset as the template, in a local folder.
    source = write_subject(folder / "source")
    raw = source.folder / "raw"
    shutil.rmtree(raw)
    write_words(raw / "noise", _SHARD_MEBIBYTES)
    rewrite(source, _JOINED_SETTINGS)
    start(source).wait().require_done()

    # Each bucket gets all outputs except the dataset.
    objects: dict[str, StoredObject] = {}
    for name, path in visible(source.root).items():
        if path.is_file() and not name.startswith("datasets/"):
            data = path.read_bytes()
            metadata = {SHA256: hashlib.sha256(data).hexdigest()}
            objects[name] = StoredObject(data, metadata, checksum={})
    place = BucketPlace(
        base=folder / "projects",
        store=store,
        template=source.root,
        settings=_JOINED_SETTINGS,
        raw=str(raw),
        held=objects,
    )

    # A dataset that a bucket has joined has the same bytes as a local one, but another manifest and
    # list of pieces. So the outputs of a build in a bucket are those to compare with.
    subject = place.new()
    outcome = start(subject).wait()
    digests = place.objects(subject)
    outcome.require_done(
        *differences(_without_lists_of_pieces(digests), _without_lists_of_pieces(place.expected))
    )
    place.expected = digests
    return place


def _without_lists_of_pieces(digests: Mapping[str, str]) -> dict[str, str]:
    """Return digests by name, without the files that say how a dataset was joined."""
    others: dict[str, str] = {}
    for name, digest in digests.items():
        says_pieces = name.endswith(("/manifest.json", ".pieces"))
        if not (name.startswith("datasets/") and says_pieces):
            others[name] = digest
    return others


def write_words(folder: Path, sizes: Sequence[int], *, first_number: int = 0) -> None:
    """Write text that has many tokens and takes little time to tokenize.

    It consists of 50 words, and each of their characters makes three tokens.

    Args:
        folder: The folder of the corpus.
        sizes: For each file, the size of its tokens in MiB, roughly.
        first_number: Number in the name of the first file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(first_number)
    words = ["".join(rng.choices("語文字列単音節表", k=20)) for _ in range(50)]
    for number, mebibytes in enumerate(sizes, first_number):
        rows = [{"text": " ".join(rng.choices(words, k=1000))} for _ in range(mebibytes * 9)]
        (folder / f"part-{number}.jsonl").write_bytes(jsonl(rows))


@contextmanager
def cluster_place(folder: Path, store: FaultyServer) -> Iterator[BucketPlace]:
    """Run a Dask cluster, and yield a place whose projects are built on it.

    The raw text of all projects is in a bucket, too, since the workers share no folder.

    Args:
        folder: A new folder for the cluster and the projects.
        store: The server of the buckets.

    Raises:
        Skipped: Dask is not installed, or folders cannot be hidden from the workers.
    """
    if find_spec("distributed") is None or not can_hide():
        raise Skipped(
            "the extra `dask` is not installed, or no process may have file systems of its own"
        )
    projects = folder / "projects"
    machines = folder / "cluster"
    projects.mkdir(parents=True)
    machines.mkdir()

    # Build the template. The settings name two corpora: move the text of the others to one of them.
    source = write_subject(folder / "source")
    rewrite(source, _CLUSTER_SETTINGS)
    raw_text = source.folder / "raw"
    for path in [*raw_text.glob("code/*"), *raw_text.glob("books/*")]:
        path.rename(raw_text / "web" / path.name)
        path.parent.rmdir()
    start(source).wait().require_done()

    raw_bucket = upload_raw(raw_text, store.cloud.new_bucket(store.endpoint, ""))
    with running(machines) as cluster:
        yield BucketPlace(
            base=projects,
            store=store,
            template=source.root,
            settings=_CLUSTER_SETTINGS,
            raw=raw_bucket.url(),
            cluster=cluster,
        )


def _prepare_process(part_limit: int) -> None:
    """Let this process retry requests at once, and join so many parts in one upload."""
    importlib.import_module(IMPATIENCE)
    s3_joining.MAX_PARTS = part_limit


@cache
def _count_requests(place: BucketPlace, part_limit: int) -> int:
    """Return the number of requests that a build sends if nothing disturbs it.

    Args:
        place: Where the project is built.
        part_limit: How many parts a multipart upload may have.
    """
    subject = place.new()
    place.store.follow(Plan())
    outcome = start(subject, lambda: _prepare_process(part_limit)).wait()
    n_requests = place.store.follow(Plan()).requests
    outcome.require_done(*place.judge(subject))
    return n_requests


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    while not path.exists():
        time.sleep(0.002)


def kill_at_request(
    attempt: BuildAttempt,
    *,
    rates: Sequence[float] = (0.0,),
    part_limits: Sequence[int] = PART_LIMITS[:1],
    skipped_share: float = 0.0,
) -> Iterator[None]:
    """Kill a build, or a worker of its cluster, just before or after the store does a request.

    Args:
        attempt: The build.
        rates: Shares of requests that fail, of which one is drawn.
        part_limits: How many parts a multipart upload may have, of which one is drawn.
        skipped_share: Share of the requests, at the start of a build, that never kill.
    """
    place = attempt.place
    assert isinstance(place, BucketPlace)
    part_limit = attempt.rng.choice(part_limits)
    rate = attempt.rng.choice(rates)
    n_requests = _count_requests(place, part_limit)
    n_skipped = int(n_requests * skipped_share)
    go_ahead = attempt.subject.folder / ".hold"

    def prepare() -> None:
        # The build waits until the proxy, which kills it, knows its process id.
        _prepare_process(part_limit)
        wait_for(go_ahead)

    worker_pids = place.staff()
    build = attempt.start(prepare)
    plan = Plan(
        rate=rate,
        kill=attempt.rng.choice([build.pid, *worker_pids]),
        kill_at=n_skipped + attempt.step(n_requests - n_skipped),
        kill_after=attempt.rng.random() < 0.5,
    )
    place.store.follow(plan)
    go_ahead.touch()
    if rate > 0:
        attempt.wait(build, allowed=("killed", "done", "refused"))
    else:
        attempt.wait(build, allowed=("killed", "done"))

    counts = place.store.follow(Plan())
    attempt.trial.counts["faults"] += counts.spoiled.total()
    attempt.trial.counts["uploads begun"] += len(place.uploads(attempt.subject))
    if place.cluster is not None:
        _count_dead_workers(attempt, place.cluster)
        # Sometimes garbage is collected while workers may still be writing.
        if attempt.rng.random() < 0.5:
            collect(Project.open(attempt.subject.config))
            attempt.trial.wrong += place.look(attempt.subject)
        place.staff()
    elif attempt.rng.random() < 0.5:
        # Another machine continues, which has no local copies.
        shutil.rmtree(attempt.subject.folder / ".nanoset", ignore_errors=True)
    yield


def _count_dead_workers(attempt: BuildAttempt, cluster: Cluster) -> None:
    """Add the number of workers that have been killed to the counts of a trial."""
    for worker in cluster.workers:
        # `poll` returns None while a process runs.
        if worker.poll() is not None:
            attempt.trial.counts["workers killed"] += 1


def spoiled_requests(attempt: BuildAttempt, *, rate: float) -> Iterator[None]:
    """Build while a share of the requests fails, then while none fails.

    Args:
        attempt: The build.
        rate: Share of the requests that fail. If it is 1, all requests fail from a random moment
            of the build on.
    """
    assert isinstance(attempt.place, BucketPlace)
    store = attempt.place.store
    build: Child | None = None
    plan = Plan(rate=rate)
    if rate == 1:
        build = attempt.start()
        attempt.sleep()
        # All requests of an outage fail in the same way.
        fault = attempt.rng.choice(("500", "503", "reset"))
        plan = Plan(rate=rate, faults=(fault,))
    store.follow(plan)
    attempt.wait(build or attempt.start())

    # `wait` has counted a build that failed as one fault. Count requests that failed instead.
    counts = store.follow(Plan())
    n_build_faults = attempt.trial.counts["faults"]
    attempt.trial.counts["faults"] = max(n_build_faults, counts.spoiled.total())
    attempt.trial.counts["requests"] += counts.requests
    attempt.trial.counts.update(counts.spoiled)
    if attempt.trial.counts["done"]:
        attempt.trial.wrong += attempt.place.judge(attempt.subject)
    yield


def two_machines(attempt: BuildAttempt) -> Iterator[None]:
    """Build a project on two machines at the same time, in half of the trials with failing requests.

    The machines share the bucket, and each has a folder of its own.
    """
    place = attempt.place
    assert isinstance(place, BucketPlace)
    second = BuildAttempt(
        place=place,
        subject=place.elsewhere(attempt.subject),
        rng=attempt.rng,
        share=attempt.share,
        trial=attempt.trial,
    )
    place.store.follow(Plan(rate=attempt.rng.choice((0.0, 0.1))))
    build = attempt.start(rebuild=attempt.rng.random() < 0.3)
    if attempt.rng.random() < 0.5:
        attempt.sleep()
    second_build = second.start(rebuild=attempt.rng.random() < 0.3)
    attempt.wait(build, second_build)
    attempt.trial.counts["faults"] = 1
    place.store.follow(Plan())
    second.conclude()
    yield
