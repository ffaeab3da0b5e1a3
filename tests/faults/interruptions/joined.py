"""Builds that let a bucket join shards too large to pass through: kill -9 at any request of that, among failing ones.

Afterwards nothing is left in the bucket but the outputs: neither objects nor uploads that nobody ends.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults.interruptions.buckets import BucketPlace, count_requests, wait_for
from faults.interruptions.clusters import FAILING, IMPATIENCE
from faults.interruptions.places import conclude
from faults.interruptions.processes import start
from faults.interruptions.proxy import Plan
from faults.interruptions.servers import Store
from faults.interruptions.subject import Subject, rewrite, write_subject
from faults.interruptions.trials import Trial
from s3_server import Kept, restore
from sample_project import jsonl

from nanoset_core.storage import compose
from nanoset_core.storage.s3_digests import SHA256

_SETTINGS = """\
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
tokenization: {append_eod: true, range_mib: 0.4, workers: 1}
"""
_MEBIBYTES = (6, 1, 11, 6)
"""Tokens of each shard: some are copied whole, one is sent with the begin of the next, whose rest is copied."""
LEVELS = (compose.MOST_PARTS, 2)
"""How many parts an object may have: all shards are joined at once, or in runs first."""


@dataclass(slots=True)
class JoinedPlace(BucketPlace):
    """Buckets that hold all shards of a corpus, and nothing that is made of them."""

    raw: Path = Path()
    """text of all projects"""

    def new(self, *, workers: int = 1) -> Subject:
        subject = BucketPlace.new(self, workers=workers)
        rewrite(subject, _SETTINGS, raw=str(self.raw))
        files = {name: self.template / name for name in self.expected if not name.startswith("datasets/")}
        restore(self.bucket(subject), {name: _kept(path.read_bytes()) for name, path in files.items()})
        return subject

    def learn(self) -> None:
        """Build once, undisturbed: what a bucket joins has other manifests than a local build, and the same bytes."""
        subject = self.new()
        outcome = start(subject).wait()
        found = self.objects(subject)
        local = {name: digest for name, digest in self.expected.items() if not _is_told_otherwise(name)}
        if outcome.end != "done" or {name: found[name] for name in found if not _is_told_otherwise(name)} != local:
            raise RuntimeError(f"a build that nothing disturbed: {outcome}")
        self.expected = found


def _kept(data: bytes) -> Kept:
    return Kept(data, {SHA256: hashlib.sha256(data).hexdigest()}, (None, None))


def _is_told_otherwise(name: str) -> bool:
    return name.startswith("datasets/") and name.endswith(("/manifest.json", ".pieces"))


def joined_place(folder: Path, store: Store) -> JoinedPlace:
    """Such buckets; a project is built here first, and joined there."""
    source = write_subject(folder / "source")
    raw = source.folder / "raw"
    shutil.rmtree(raw)
    _write_text(raw / "noise")
    rewrite(source, _SETTINGS)
    if (outcome := start(source).wait()).end != "done":
        raise RuntimeError(f"a build that nothing disturbed: {outcome}")
    place = JoinedPlace(folder / "projects", store, source.root, collects=True, raw=raw)
    place.learn()
    return place


def _write_text(folder: Path) -> None:
    """Few words, each of many tokens: they are tokenized in no time."""
    folder.mkdir(parents=True)
    chosen = random.Random(0)
    words = ["".join(chosen.choices("語文字列単音節表", k=20)) for _ in range(50)]  # three tokens a character
    for number, mebibytes in enumerate(_MEBIBYTES):
        rows = [{"text": " ".join(chosen.choices(words, k=1000))} for _ in range(mebibytes * 9)]
        (folder / f"part-{number}.jsonl").write_bytes(jsonl(rows))


def count_joining(place: JoinedPlace, parts: int) -> int:
    """How many requests an undisturbed build sends; parts: see LEVELS."""
    return count_requests(place, prepare=partial(_begin, parts))


def kill_joining(place: JoinedPlace, rng: random.Random, request: int, parts: int) -> Trial:
    """Kill a build by a request, while others fail; then build once more, perhaps from another machine."""
    subject = place.new()
    hold = subject.folder / ".hold"
    build = start(subject, prepare=lambda: _begin(parts, lambda: wait_for(hold)))
    rate = rng.choice((0.0, FAILING))
    place.store.follow(Plan(rate=rate, kill=build.pid, kill_at=request, kill_after=rng.random() < 0.5))
    hold.touch()
    outcome = build.wait()
    counts = place.store.follow(Plan())
    trial = Trial(faults=sum(counts.spoiled.values()) + (outcome.end == "killed"))
    trial.ended(outcome, "killed", "done", *(["refused"] if rate else []))
    trial.details["uploads begun"] += len(place.uploads(subject))
    trial.wrong += place.look(subject)
    if rng.random() < 0.5:
        shutil.rmtree(subject.folder / ".nanoset", ignore_errors=True)  # as another machine, without copies, finds it
    return conclude(place, subject, trial)


def _begin(parts: int, wait: Callable[[], object] = lambda: None) -> None:
    importlib.import_module(IMPATIENCE)
    compose.MOST_PARTS = parts
    wait()
