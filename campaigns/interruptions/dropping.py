"""`storage.shards: drop` in a bucket: an append, a collection and a check that reads all, killed by
a request.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from campaigns.interruptions.buckets import BucketPlace, wait_for, write_words
from campaigns.interruptions.places import Attempt, start
from campaigns.interruptions.proxy import Plan, Store
from campaigns.interruptions.subject import Subject, build_stages
from campaigns.runner import Child
from helpers.s3_server import snapshot
from nanoset_core.errors import NanosetError
from nanoset_core.outputs.manifest import Manifest, read_manifest
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project


def _check(config: Path) -> None:
    """Read all outputs, as `nanoset verify --deep`."""
    for report in verify_project(Project.open(config), deep=True):
        if not report.passed:
            raise NanosetError(
                "an output is not what it should be",
                where=report.subject,
                found=str(report.findings),
            )


WORKS: dict[str, Callable[[Path], object]] = {
    "append": build_stages,
    "gc": lambda config: collect(Project.open(config)),
    "verify": _check,
}


@dataclass(slots=True, kw_only=True, eq=False)
class DroppingPlace(BucketPlace):
    """Buckets of which shards are ranges of the dataset of a corpus that has grown since."""

    requests: dict[str, int] = field(default_factory=dict)
    """work → how many requests it takes undisturbed"""

    def look(self, subject: Subject) -> list[str]:
        """What is finished by its manifest, and has not all of its bytes."""
        project = Project.open(subject.config)
        access, wrong = project.outputs.access, list[str]()
        for stored in access.store.list():
            folder, _, name = stored.name.rpartition("/")
            if name == "manifest.json" and not any(
                part.startswith(".") for part in folder.split("/")
            ):
                manifest = read_manifest(access.folder / folder, access)
                wrong += (
                    [f"{folder}: {fault}" for fault in _faults(manifest)]
                    if manifest
                    else [f"{folder} is gone"]
                )
        return wrong


def _faults(manifest: Manifest) -> Iterator[str]:
    if fault := manifest.damage():
        yield fault
        return
    for name, fact in manifest.files.items():
        path, begin = manifest.place(name)
        if (
            fact.sha256
            and manifest.access.store.sha256_of(manifest.access.stored(path, begin, fact.size))
            != fact.sha256
        ):
            yield f"{name} has other bytes"


def dropping_place(folder: Path, store: Store, first: BucketPlace) -> DroppingPlace:
    """Buckets, whose shards are held at first, as a collection left them, and text that was
    appended since.
    """
    raw = shutil.copytree(first.raw, folder / "raw")
    about = {
        "template": first.template,
        "settings": first.settings,
        "raw": str(raw),
        "held": first.held,
    }
    place = DroppingPlace(folder / "projects", store=store, storage=", shards: drop", **about)
    subject = place.new()
    start(subject).wait().require_done()
    collect(Project.open(subject.config))
    place.held = snapshot(place.bucket(subject))
    if left := [name for name in place.held if name.endswith("tokens.bin")]:
        raise RuntimeError(f"nothing disturbed this: {left} are still there")
    write_words(raw / "noise", (6, 1), first=4)
    subject = place.new()
    for work in WORKS:
        place.store.follow(Plan())
        outcome = Child(lambda work=work: WORKS[work](subject.config)).wait()
        place.requests[work] = place.store.follow(Plan()).requests
        outcome.require_done(*place.look(subject))
    place.expected = place.objects(subject)
    return place


def kill_while_dropping(on: Attempt) -> Iterator[None]:
    """Kill one of the works, after those before it, by a request before the store has it or once it
    is done.
    """
    place, config = on.place, on.subject.config
    assert isinstance(place, DroppingPlace)
    hold = on.subject.folder / ".hold"
    *done, last = list(WORKS)[: on.step(len(WORKS))]
    for work in done:
        Child(lambda work=work: WORKS[work](config)).wait().require_done()
    child = Child(lambda: [wait_for(hold), WORKS[last](config)])
    kill_at = 1 + on.rng.randrange(place.requests[last])
    place.store.follow(Plan(kill=child.pid, kill_at=kill_at, kill_after=on.rng.random() < 0.5))
    hold.touch()
    on.wait(child, allowed=("killed", "done"))
    place.store.follow(Plan())
    on.trial.counts[f"{last} killed"] += on.trial.counts["killed"]
    if on.rng.random() < 0.5:
        shutil.rmtree(on.subject.folder / ".nanoset", ignore_errors=True)
    if on.rng.random() < 0.5:  # a collection comes before the build
        collect(Project.open(config))
        on.trial.wrong += place.look(on.subject)
    yield
