"""Outputs in a bucket, reached through the proxy: requests that fail, and kills by requests.

Shards that are too large to pass through are joined by the bucket, and workers of a cluster may
share nothing but it. Afterwards nothing is left there but the outputs: neither objects nor
unfinished uploads.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from campaigns.interruptions.places import Attempt, Place, start
from campaigns.interruptions.proxy import Plan, Store
from campaigns.interruptions.subject import Subject, differences, rewrite, visible, write_subject
from campaigns.runner import Skipped
from helpers.dask_cluster import Cluster, can_hide, running
from helpers.s3_server import Kept, new_bucket, restore, upload_raw
from helpers.sample_project import jsonl
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.storage import s3_joining
from nanoset_core.storage.s3 import SHA256, S3Store
from nanoset_core.storage.store import Stored

MACHINES = 2
"""workers of the cluster"""
IMPATIENCE = "campaigns.interruptions.impatience"
"""A module that lets requests be sent again at once."""
FAILING = 0.2
"""share of the requests"""
LEVELS = (s3_joining.MAX_PARTS, 2)
"""How many parts an object may have: all shards are joined at once, or in runs first."""
_JOINED = """\
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
tokenization: {append_eod: true, range_mib: 0.4, workers: 1}
"""
_MEBIBYTES = (6, 1, 11, 6)
"""Tokens of each shard: some are copied whole, one is sent with the begin of the next, whose rest
is copied.
"""
_CLUSTERED = """\
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
    """Outputs in buckets, one for each project."""

    store: Store
    template: Path
    """outputs of an undisturbed build into a local folder"""
    settings: str = ""
    """of its projects, where they are others"""
    raw: str = "raw"
    """where their text is"""
    storage: str = ""
    """more of `storage`, after a comma"""
    held: Mapping[str, Kept] = field(default_factory=dict)
    """what each bucket holds at first"""
    cluster: Cluster | None = None
    """of which no worker sees the folders of the projects"""
    _buckets: dict[Path, S3Store] = field(default_factory=dict)
    _needs: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        files = {
            name: path for name, path in visible(self.template).items() if not path.is_symlink()
        }
        self.expected = {name: _md5(path.read_bytes()) for name, path in files.items()}
        self._needs = {name: _needs(path, self.template) for name, path in files.items()}

    def new(self, *, workers: int = 1) -> Subject:
        self.staff()
        return self._write(new_bucket(self.store.endpoint, "some/prefix"), workers)

    def elsewhere(self, subject: Subject) -> Subject:
        """The same project on another machine: its outputs are the same, its copies of them are
        not.
        """
        return self._write(self.bucket(subject), 1)

    def _write(self, bucket: S3Store, workers: int) -> Subject:
        storage = f"storage: {{endpoint_url: {self.store.spoiled!r}{self.storage}}}"
        folder = self.base / f"project-{next(self._numbers)}"
        subject = write_subject(folder, workers=workers, root=bucket.url(), storage=storage)
        if self.settings:
            executor = (
                f"executor: {{kind: dask, address: '{self.cluster.address}'}}\n"
                if self.cluster
                else ""
            )
            rewrite(subject, self.settings + executor, raw=self.raw)
        restore(bucket, self.held)
        self._buckets[folder] = bucket
        return subject

    def staff(self) -> list[int]:
        """See to it that all workers of the cluster live; → their process ids."""
        return (
            self.cluster.staff(MACHINES, hidden=self.base, preload=IMPATIENCE)
            if self.cluster
            else []
        )

    def look(self, subject: Subject) -> list[str]:
        shown = {
            name: digest for name, digest in self.objects(subject).items() if not _is_hidden(name)
        }
        wrong = [
            f"{name} is of no finished run"
            for name, digest in shown.items()
            if self.expected.get(name) != digest
        ]
        needs = {need: name for name in shown for need in self._needs.get(name, ())}
        return wrong + [
            f"{name} needs {need}, which is not there"
            for need, name in needs.items()
            if need not in shown
        ]

    def judge(self, subject: Subject) -> list[str]:
        left = []
        if self.settings:  # what is left over has no other reason to go
            collect(Project.open(subject.config))
            left = [f"{name} is an upload left over" for name in self.uploads(subject)]
        return differences(self.objects(subject), self.expected) + self.look(subject) + left

    def objects(self, subject: Subject) -> dict[str, str]:
        """Name → md5 of every object of a project, as the server has made it of the bytes that it
        holds, or we do.

        Without what is remembered of raw text, which is another's on another machine.
        """
        store = self.bucket(subject)
        found = (one for one in store.list() if not one.name.endswith(".fingerprints.json"))
        return {one.name: _digest(store, one) for one in found}

    def bucket(self, subject: Subject) -> S3Store:
        """That of a project, reached without the proxy."""
        return self._buckets[subject.folder]

    def uploads(self, subject: Subject) -> list[str]:
        """Keys of unfinished uploads in parts."""
        bucket = self.bucket(subject)
        answer = bucket.client().list_multipart_uploads(Bucket=bucket.bucket)
        return [upload["Key"] for upload in answer.get("Uploads", ())]


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _digest(store: S3Store, found: Stored) -> str:
    mark = found.mark.strip('"')
    # it came in parts
    return mark if "-" not in mark else _md5(store.read_range(found.name, 0, found.size))


def _md5(data: bytes) -> str:
    """What a bucket gives as the ETag of an object that came in one part."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _needs(path: Path, root: Path) -> list[str]:
    """Names that a manifest, or a pointer to one, promises."""
    if path.name == "manifest.json":
        return [
            (path.parent / file).relative_to(root).as_posix()
            for file in json.loads(path.read_bytes())["files"]
        ]
    if path.name == "current.json":
        return [
            (path.parent / json.loads(path.read_bytes())["digest"] / "manifest.json")
            .relative_to(root)
            .as_posix()
        ]
    return []


def joined_place(folder: Path, store: Store) -> BucketPlace:
    """Buckets that hold all shards of a corpus, and nothing that is made of them."""
    source = write_subject(folder / "source")
    raw = source.folder / "raw"
    shutil.rmtree(raw)
    write_words(raw / "noise", _MEBIBYTES)
    rewrite(source, _JOINED)
    start(source).wait().require_done()
    files = (
        path for name, path in visible(source.root).items() if not name.startswith("datasets/")
    )
    held = {
        path.relative_to(source.root).as_posix(): _kept(path.read_bytes())
        for path in files
        if path.is_file()
    }
    template = {"store": store, "template": source.root, "settings": _JOINED, "raw": str(raw)}
    place = BucketPlace(folder / "projects", held=held, **template)
    # What a bucket joins has other manifests than a local build, and the same bytes.
    subject = place.new()
    outcome = start(subject).wait()
    found = place.objects(subject)
    local, others = (
        {name: of[name] for name in of if not _is_told_otherwise(name)}
        for of in (place.expected, found)
    )
    outcome.require_done(*differences(others, local))
    place.expected = found
    return place


def _kept(data: bytes) -> Kept:
    return Kept(data, {SHA256: hashlib.sha256(data).hexdigest()}, (None, None))


def _is_told_otherwise(name: str) -> bool:
    return name.startswith("datasets/") and name.endswith(("/manifest.json", ".pieces"))


def write_words(folder: Path, sizes: Sequence[int], *, first: int = 0) -> None:
    """Few words, each of many tokens: they are tokenized in no time; files from number `first`, of
    MiB of tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = random.Random(first)
    # three tokens a character
    words = ["".join(chosen.choices("語文字列単音節表", k=20)) for _ in range(50)]
    for number, mebibytes in enumerate(sizes, first):
        rows = [{"text": " ".join(chosen.choices(words, k=1000))} for _ in range(mebibytes * 9)]
        (folder / f"part-{number}.jsonl").write_bytes(jsonl(rows))


@contextmanager
def cluster_place(folder: Path, store: Store) -> Iterator[BucketPlace]:
    """A cluster, and the raw text of all projects in a bucket, until the block ends; raises
    Skipped.
    """
    if find_spec("distributed") is None or not can_hide():
        raise Skipped(
            "the extra `dask` is not installed, or no process may have file systems of its own"
        )
    projects, machines = folder / "projects", folder / "cluster"
    projects.mkdir(parents=True)
    machines.mkdir()
    source = write_subject(folder / "source")
    rewrite(source, _CLUSTERED)
    raw_text = source.folder / "raw"
    for path in [*raw_text.glob("code/*"), *raw_text.glob("books/*")]:
        path.rename(raw_text / "web" / path.name)
        path.parent.rmdir()
    start(source).wait().require_done()
    raw = upload_raw(raw_text, new_bucket(store.endpoint)).url()
    with running(machines) as cluster:
        yield BucketPlace(
            projects,
            store=store,
            template=source.root,
            settings=_CLUSTERED,
            raw=raw,
            cluster=cluster,
        )


def _begin(parts: int) -> None:
    importlib.import_module(IMPATIENCE)
    s3_joining.MAX_PARTS = parts


@cache
def _requests(place: BucketPlace, parts: int) -> int:
    """How many requests an undisturbed build sends."""
    subject = place.new()
    place.store.follow(Plan())
    outcome = start(subject, lambda: _begin(parts)).wait()
    requests = place.store.follow(Plan()).requests
    outcome.require_done(*place.judge(subject))
    return requests


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    while not path.exists():
        time.sleep(0.002)


def kill_at_request(
    on: Attempt,
    *,
    rates: Sequence[float] = (0.0,),
    levels: Sequence[int] = LEVELS[:1],
    first: float = 0.0,
) -> Iterator[None]:
    """Kill a build, or a worker of its cluster, by a request, before the store has it or once it is
    done.

    Another machine may take over, or a collection come before.

    Args:
        on: the attempt.
        rates: shares of the requests that fail meanwhile, of which one is drawn.
        levels: of LEVELS, likewise.
        first: share of the requests before the first one that may kill.
    """
    place, parts, rate = on.place, on.rng.choice(levels), on.rng.choice(rates)
    assert isinstance(place, BucketPlace)
    requests, hold = _requests(place, parts), on.subject.folder / ".hold"
    skipped = int(requests * first)

    def begin() -> None:
        _begin(parts)
        wait_for(hold)

    workers = place.staff()
    build = on.start(begin)
    plan = {
        "kill": on.rng.choice([build.pid, *workers]),
        "kill_at": skipped + on.step(requests - skipped),
    }
    place.store.follow(Plan(rate=rate, kill_after=on.rng.random() < 0.5, **plan))
    hold.touch()
    on.wait(build, allowed=("killed", "done", "refused") if rate else ("killed", "done"))
    on.trial.counts["faults"] += sum(place.store.follow(Plan()).spoiled.values())
    on.trial.counts["uploads begun"] += len(place.uploads(on.subject))
    if place.cluster is not None:
        on.trial.counts["workers killed"] += sum(
            worker.poll() is not None for worker in place.cluster.workers
        )
        if on.rng.random() < 0.5:  # while workers may still be at work
            collect(Project.open(on.subject.config))
            on.trial.wrong += place.look(on.subject)
        place.staff()
    elif on.rng.random() < 0.5:
        shutil.rmtree(on.subject.folder / ".nanoset", ignore_errors=True)
    yield


def spoiled_requests(on: Attempt, *, rate: float) -> Iterator[None]:
    """Build through a proxy that spoils a share of all requests, from a random one on if that is 1;
    then without.
    """
    all_fail, build = rate == 1, None
    if all_fail:
        build = on.start()
        on.sleep()
    on.place.store.follow(
        Plan(
            rate=rate, **({"faults": (on.rng.choice(("500", "503", "reset")),)} if all_fail else {})
        )
    )
    on.wait(build or on.start())
    counts = on.place.store.follow(Plan())
    spoiled = Counter(
        faults=sum(counts.spoiled.values()) - on.trial.counts["faults"], requests=counts.requests
    )
    on.trial.counts.update(counts.spoiled + spoiled)
    if on.trial.counts["done"]:
        on.trial.wrong += on.place.judge(on.subject)
    yield


def two_machines(on: Attempt) -> Iterator[None]:
    """Two builds of the same thing into one bucket, from two machines; half of them under faults."""
    second = Attempt(on.place, on.place.elsewhere(on.subject), on.rng, on.share, trial=on.trial)
    on.place.store.follow(Plan(rate=on.rng.choice((0.0, 0.1))))
    build = on.start(rebuild=on.rng.random() < 0.3)
    if on.rng.random() < 0.5:
        on.sleep()
    on.wait(build, second.start(rebuild=on.rng.random() < 0.3))
    on.trial.counts["faults"] = 1
    on.place.store.follow(Plan())
    second.conclude()
    yield
