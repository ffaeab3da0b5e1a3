"""Kill processes that work on outputs whose tokens were dropped from the bucket.

With `storage: {shards: drop}`, `nanoset gc` deletes the token files of shards, because the dataset
of the corpus, which was joined from them, has the same tokens. What reads the shards later finds
their tokens there. The trials kill an append to the corpus, a collection of garbage (`nanoset gc`),
or a check that reads all outputs (`nanoset verify --deep`), each at one of its requests.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from campaigns.interruptions.buckets import BucketPlace, wait_for, write_words
from campaigns.interruptions.places import BuildAttempt, start
from campaigns.interruptions.proxy import FaultyServer, Plan
from campaigns.interruptions.subject import Subject, build_stages
from campaigns.runner import Child
from helpers.s3_server import snapshot
from nanoset_core.errors import NanosetError
from nanoset_core.outputs.manifest import Manifest, read_manifest
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project


def _append(config: Path) -> None:
    """Build the stages; the corpus has more text than at the last build."""
    build_stages(config)


def _collect(config: Path) -> None:
    """Remove what is not needed any more, as `nanoset gc` does."""
    collect(Project.open(config))


def _verify(config: Path) -> None:
    """Read and check all outputs, as `nanoset verify --deep` does.

    Raises:
        NanosetError: An output has findings.
    """
    for report in verify_project(Project.open(config), deep=True):
        if not report.passed:
            raise NanosetError(
                "an output is not what it should be",
                where=report.output,
                found=str(report.findings),
            )


TASKS: dict[str, Callable[[Path], None]] = {
    "append": _append,
    "gc": _collect,
    "verify": _verify,
}
"""Name → function that works on the project with a nanoset.yaml. They run in this order."""


@dataclass(slots=True, kw_only=True, eq=False)
class DroppingPlace(BucketPlace):
    """Buckets whose shards have no token files, and text that was appended since."""

    requests: dict[str, int] = field(default_factory=dict)
    """Name of each task → number of requests that it sends if nothing disturbs it."""

    def look(self, subject: Subject) -> list[str]:
        """Return a message for each output that has a manifest and lacks some of its bytes."""
        access = Project.open(subject.config).outputs.access
        wrong: list[str] = []
        for stored in access.store.list():
            folder, _, name = stored.name.rpartition("/")
            is_hidden = any(part.startswith(".") for part in folder.split("/"))
            if name != "manifest.json" or is_hidden:
                continue
            manifest = read_manifest(access.folder / folder, access)
            if manifest is None:
                wrong.append(f"{folder} is gone")
            else:
                wrong += [f"{folder}: {fault}" for fault in _faults(manifest)]
        return wrong


def _faults(manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with the files of an output, also if another output has their bytes.

    Args:
        manifest: The manifest of the output, which lists its files.
    """
    damage = manifest.damage()
    if damage:
        yield damage
        return

    store = manifest.access.store
    for name, fact in manifest.files.items():
        if not fact.sha256:
            continue
        # A dropped file is a range of bytes of a file of the dataset.
        path, start_byte = manifest.place(name)
        stored = manifest.access.stored(path, start_byte, fact.size)
        if store.sha256_of(stored) != fact.sha256:
            yield f"{name} has other bytes"


def dropping_place(folder: Path, store: FaultyServer, joined: BucketPlace) -> DroppingPlace:
    """Return buckets whose shards have no token files, with text that was appended since.

    Args:
        folder: A new folder for the text and the projects.
        store: The server of the buckets.
        joined: A place whose buckets hold all shards of a corpus.
    """
    raw = shutil.copytree(joined.raw, folder / "raw")
    place = DroppingPlace(
        base=folder / "projects",
        store=store,
        storage=", shards: drop",
        template=joined.template,
        settings=joined.settings,
        raw=str(raw),
        held=joined.held,
    )

    # Build and collect once, so that the token files are dropped. Each trial starts from there.
    subject = place.new()
    start(subject).wait().require_done()
    collect(Project.open(subject.config))
    place.held = snapshot(place.bucket(subject))
    token_files = [name for name in place.held if name.endswith("tokens.bin")]
    if token_files:
        raise RuntimeError(f"nothing disturbed this: {token_files} are still there")

    # Append text. Then run all tasks undisturbed, to count their requests.
    write_words(raw / "noise", (6, 1), first_number=4)
    subject = place.new()
    for name in TASKS:
        place.store.follow(Plan())
        outcome = _start_task(name, subject.config).wait()
        place.requests[name] = place.store.follow(Plan()).requests
        outcome.require_done(*place.look(subject))
    place.expected = place.objects(subject)
    return place


def _start_task(name: str, config: Path, wait_path: Path | None = None) -> Child:
    """Start a task in a process of its own.

    Args:
        name: Name of the task in TASKS.
        config: The project's nanoset.yaml.
        wait_path: A file that must exist before the task begins; None to begin at once.
    """

    def work() -> None:
        if wait_path is not None:
            wait_for(wait_path)
        TASKS[name](config)

    return Child(work)


def kill_while_dropping(attempt: BuildAttempt) -> Iterator[None]:
    """Run the tasks in order, and kill one of them at one of its requests.

    Each trial chooses another task, and leaves out those after it.
    """
    place = attempt.place
    config = attempt.subject.config
    assert isinstance(place, DroppingPlace)
    *names_before, victim = list(TASKS)[: attempt.step(len(TASKS))]
    for name in names_before:
        _start_task(name, config).wait().require_done()

    # The task waits until the proxy, which kills it, knows its process id.
    go_ahead = attempt.subject.folder / ".hold"
    child = _start_task(victim, config, wait_path=go_ahead)
    kill_at = 1 + attempt.rng.randrange(place.requests[victim])
    kill_after = attempt.rng.random() < 0.5
    place.store.follow(Plan(kill=child.pid, kill_at=kill_at, kill_after=kill_after))
    go_ahead.touch()
    attempt.wait(child, allowed=("killed", "done"))
    place.store.follow(Plan())
    attempt.trial.counts[f"{victim} killed"] += attempt.trial.counts["killed"]

    # Sometimes another machine continues, which has no local copies.
    if attempt.rng.random() < 0.5:
        shutil.rmtree(attempt.subject.folder / ".nanoset", ignore_errors=True)

    # Sometimes garbage is collected before the next build.
    if attempt.rng.random() < 0.5:
        collect(Project.open(config))
        attempt.trial.wrong += place.look(attempt.subject)
    yield
