"""Where outputs are kept, and how they are looked at: a bucket, reached through the proxy."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.interruptions.local import together
from faults.interruptions.places import Place, conclude, start
from faults.interruptions.proxy import Plan
from faults.interruptions.servers import Store
from faults.interruptions.subject import Subject, differences, visible, write_subject
from faults.runner import Trial
from s3_server import new_bucket

from nanoset_core.pipeline.project import Project
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.store import Stored
from nanoset_core.versions.gc import collect

_PREFIX = "some/prefix"


@dataclass(slots=True, kw_only=True)
class BucketPlace(Place):
    """Outputs in buckets, one for each project."""

    store: Store
    template: Path
    """outputs of an undisturbed build into a local folder"""
    collects: bool = False
    """whether outputs are judged after a collection, when what is left over has no other reason to go"""
    _buckets: dict[Path, S3Store] = field(default_factory=dict)
    _needs: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        files = {name: path for name, path in visible(self.template).items() if not path.is_symlink()}
        self.expected = {name: _md5(path.read_bytes()) for name, path in files.items()}
        self._needs = {name: _needs(path, self.template) for name, path in files.items()}

    def new(self, *, workers: int = 1) -> Subject:
        return self._write(new_bucket(self.store.endpoint, _PREFIX), workers)

    def elsewhere(self, subject: Subject) -> Subject:
        """The same project on another machine: its outputs are the same, its copies of them are not."""
        return self._write(self._buckets[subject.folder], 1)

    def _write(self, bucket: S3Store, workers: int) -> Subject:
        storage = f"storage: {{endpoint_url: {self.store.spoiled!r}}}"
        folder = self.base / f"project-{next(self._numbers)}"
        subject = write_subject(folder, workers=workers, root=bucket.url(), storage=storage)
        self._buckets[folder] = bucket
        return subject

    def bucket(self, subject: Subject) -> S3Store:
        """Where the outputs of a project are."""
        return self._buckets[subject.folder]

    def look(self, subject: Subject) -> list[str]:
        shown = {name: digest for name, digest in self.objects(subject).items() if not _is_hidden(name)}
        wrong = [f"{name} is of no finished run" for name, digest in shown.items() if self.expected.get(name) != digest]
        needs = {need: name for name in shown for need in self._needs.get(name, ())}
        return wrong + [f"{name} needs {need}, which is not there" for need, name in needs.items() if need not in shown]

    def judge(self, subject: Subject) -> list[str]:
        left = []
        if self.collects:
            collect(Project.open(subject.config))
            left = [f"{name} is an upload left over" for name in self.uploads(subject)]
        return differences(self.objects(subject), self.expected) + self.look(subject) + left

    def objects(self, subject: Subject) -> dict[str, str]:
        """Name → md5 of every object of a project, as the server has made it of the bytes that it holds, or we do."""
        store = self._buckets[subject.folder]
        return {found.name: _digest(store, found) for found in store.list()}

    def uploads(self, subject: Subject) -> list[str]:
        """Keys of uploads in parts that nobody has ended."""
        bucket = self._buckets[subject.folder]
        answer = bucket.client().list_multipart_uploads(Bucket=bucket.bucket)
        return [upload["Key"] for upload in answer.get("Uploads", ())]


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _digest(store: S3Store, found: Stored) -> str:
    mark = found.mark.strip('"')
    return mark if "-" not in mark else _md5(store.read_range(found.name, 0, found.size))  # it came in parts


def _md5(data: bytes) -> str:
    """What a bucket gives as the ETag of an object that came in one part."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _needs(path: Path, root: Path) -> list[str]:
    """Names that a manifest, or a pointer to one, promises."""
    if path.name == "manifest.json":
        return [(path.parent / file).relative_to(root).as_posix() for file in json.loads(path.read_bytes())["files"]]
    if path.name == "current.json":
        return [(path.parent / json.loads(path.read_bytes())["digest"] / "manifest.json").relative_to(root).as_posix()]
    return []


def spoiled_requests(place: BucketPlace, rng: random.Random, *, rate: float) -> Trial:
    """Build through a proxy that spoils a share of all requests; then, where that failed, without."""
    subject = place.new(workers=rng.choice((1, 1, 2)))
    place.store.follow(Plan(rate=rate))
    outcome = start(subject).wait()
    counts = place.store.follow(Plan())
    trial = Trial(counts.spoiled + Counter(faults=sum(counts.spoiled.values()), requests=counts.requests))
    trial.ended(outcome, "done", "refused")
    trial.wrong += place.judge(subject) if outcome.end == "done" else place.look(subject)
    return conclude(place, subject, trial)


def store_down(place: BucketPlace, rng: random.Random) -> Trial:
    """Every request fails from a random one on, until the build gives up; then none does."""
    subject = place.new()
    place.seconds(1)
    build = start(subject)
    time.sleep(rng.uniform(0, place.seconds(1)))
    place.store.follow(Plan(rate=1.0, faults=(rng.choice(("500", "503", "reset")),)))
    trial = together(place, subject, build)
    trial.counts["faults"] = sum(place.store.follow(Plan()).spoiled.values())
    return conclude(place, subject, trial)


def count_requests(place: BucketPlace, prepare: Callable[[], object] = lambda: None) -> int:
    """How many requests an undisturbed build sends; prepare: see `start`."""
    subject = place.new()
    place.store.follow(Plan())
    outcome = start(subject, prepare=prepare).wait()
    requests = place.store.follow(Plan()).requests
    outcome.require_done(*place.judge(subject))
    return requests


def kill_by_request(
    place: BucketPlace,
    rng: random.Random,
    request: int,
    *allowed: str,
    rate: float = 0.0,
    prepare: Callable[[], object] = lambda: None,
    workers: Sequence[int] = (),
) -> tuple[Subject, Trial]:
    """Kill a build, or one of its workers, by a request, before the store has it or once it is done.

    Args:
        place: where the build is.
        rng: chooses whom, and whether before or after.
        request: its number, from 1.
        allowed: how the build may end but by the kill or well.
        rate: share of the requests that fail meanwhile.
        prepare: see `start`.
        workers: process ids.
    """
    subject = place.new()
    hold = subject.folder / ".hold"

    def begin() -> None:
        prepare()
        while not hold.exists():
            time.sleep(0.002)

    build = start(subject, prepare=begin)
    victim = rng.choice([build.pid, *workers])
    place.store.follow(Plan(rate=rate, kill=victim, kill_at=request, kill_after=rng.random() < 0.5))
    hold.touch()
    outcome = build.wait()
    faults = sum(place.store.follow(Plan()).spoiled.values()) + (outcome.end == "killed")
    trial = Trial(Counter(faults=faults))
    trial.ended(outcome, "killed", "done", *allowed)
    trial.wrong += place.look(subject)
    return subject, trial


def as_another_machine(subject: Subject, rng: random.Random) -> None:
    """Half of the time, remove this machine's copies."""
    if rng.random() < 0.5:
        shutil.rmtree(subject.folder / ".nanoset", ignore_errors=True)


def kill_at_request(place: BucketPlace, rng: random.Random, request: int) -> Trial:
    """Kill a build by its request of a number; another machine may take over."""
    subject, trial = kill_by_request(place, rng, request)
    as_another_machine(subject, rng)
    return conclude(place, subject, trial)


def two_machines(place: BucketPlace, rng: random.Random) -> Trial:
    """Two builds of the same thing into one bucket, from two machines; half of them under faults."""
    first = place.new()
    second = place.elsewhere(first)
    place.store.follow(Plan(rate=rng.choice((0.0, 0.1))))
    build = start(first, rebuild=rng.random() < 0.3)
    time.sleep(rng.choice((0.0, rng.uniform(0, place.seconds(1)))))
    trial = together(place, first, build, start(second, rebuild=rng.random() < 0.3))
    place.store.follow(Plan())
    trial = conclude(place, second, trial, keep=True)
    return conclude(place, first, trial)
