"""Builds that let a bucket join shards too large to pass through: kill -9 at any request of that, among failing ones.

Afterwards nothing is left in the bucket but the outputs: neither objects nor uploads that nobody ends.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults.interruptions.buckets import BucketPlace, as_another_machine, count_requests, kill_by_request
from faults.interruptions.clusters import FAILING, IMPATIENCE
from faults.interruptions.places import conclude, start
from faults.interruptions.servers import Store
from faults.interruptions.subject import Subject, differences, rewrite, write_subject
from faults.runner import Trial
from s3_server import Kept, restore
from sample_project import jsonl

from nanoset_core.storage import s3_joining
from nanoset_core.storage.s3 import SHA256

_SETTINGS = """\
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
tokenization: {append_eod: true, range_mib: 0.4, workers: 1}
"""
_MEBIBYTES = (6, 1, 11, 6)
"""Tokens of each shard: some are copied whole, one is sent with the begin of the next, whose rest is copied."""
LEVELS = (s3_joining.MOST_PARTS, 2)
"""How many parts an object may have: all shards are joined at once, or in runs first."""


@dataclass(slots=True, kw_only=True)
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
        others = {name: digest for name, digest in found.items() if not _is_told_otherwise(name)}
        outcome.require_done(*differences(others, local))
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
    start(source).wait().require_done()
    place = JoinedPlace(folder / "projects", store=store, template=source.root, collects=True, raw=raw)
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
    rate = rng.choice((0.0, FAILING))
    refused = ["refused"] if rate else []
    subject, trial = kill_by_request(place, rng, request, *refused, rate=rate, prepare=partial(_begin, parts))
    trial.counts["uploads begun"] += len(place.uploads(subject))
    as_another_machine(subject, rng)
    return conclude(place, subject, trial)


def _begin(parts: int) -> None:
    importlib.import_module(IMPATIENCE)
    s3_joining.MOST_PARTS = parts
