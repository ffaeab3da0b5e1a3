"""Builds whose workers share nothing but the bucket: kill -9 of any process, among failing requests.

Afterwards nothing is left in the bucket but the outputs: neither objects nor uploads that nobody ends.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dask_cluster import Cluster, can_hide, running
from faults.interruptions.buckets import BucketPlace, kill_by_request
from faults.interruptions.places import conclude, start
from faults.interruptions.servers import Store
from faults.interruptions.subject import Subject, rewrite, write_subject
from faults.runner import Trial
from s3_server import new_bucket, upload_raw

from nanoset_core.pipeline.project import Project
from nanoset_core.versions.gc import collect

WORKERS = 2
IMPATIENCE = "faults.interruptions.impatience"
"""A module that lets requests be sent again at once."""
_SETTINGS = """\
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
packed: [web]
"""
FAILING = 0.2
"""share of the requests"""


def missing() -> str:
    """Why there can be no such cluster here; empty where there can."""
    if find_spec("distributed") is None:
        return "the extra `dask` is not installed"
    return "" if can_hide() else "no process may have file systems of its own"


@dataclass(slots=True, kw_only=True)
class ClusterPlace(BucketPlace):
    """Raw text and outputs in buckets; a cluster of which no worker sees the folders of the projects."""

    cluster: Cluster | None = None
    raw_url: str = ""

    def staff(self) -> list[int]:
        """See to it that all workers live; → their process ids."""
        assert self.cluster is not None
        return self.cluster.staff(WORKERS, hidden=self.base, preload=IMPATIENCE)

    def dead(self) -> list[int]:
        """Process ids of the workers that ended since they were seen to."""
        assert self.cluster is not None
        return [worker.pid for worker in self.cluster.workers if worker.poll() is not None]

    def new(self, *, workers: int = 1) -> Subject:
        assert self.cluster is not None
        self.staff()
        subject = BucketPlace.new(self, workers=workers)
        executor = f"executor: {{kind: dask, address: '{self.cluster.address}'}}\n"
        rewrite(subject, _SETTINGS + executor, raw=self.raw_url)
        return subject


@contextmanager
def cluster_place(folder: Path, store: Store) -> Iterator[ClusterPlace]:
    """A cluster, and the raw text of all projects in a bucket, until the block ends."""
    projects, machines = folder / "projects", folder / "cluster"
    projects.mkdir(parents=True)
    machines.mkdir()
    source = write_subject(folder / "source")
    rewrite(source, _SETTINGS)
    raw_text = source.folder / "raw"
    for path in [*raw_text.glob("code/*"), *raw_text.glob("books/*")]:
        path.rename(raw_text / "web" / path.name)
        path.parent.rmdir()
    start(source).wait().require_done()
    raw = upload_raw(raw_text, new_bucket(store.endpoint))
    with running(machines) as cluster:
        yield ClusterPlace(
            projects, store=store, template=source.root, collects=True, cluster=cluster, raw_url=raw.url()
        )


def kill_one(place: ClusterPlace, rng: random.Random, request: int) -> Trial:
    """Kill the build or a worker by a request, from whomever that comes, while others fail; then build once more."""
    subject, trial = kill_by_request(
        place,
        rng,
        request,
        "refused",
        rate=FAILING,
        prepare=lambda: importlib.import_module(IMPATIENCE),
        workers=place.staff(),
    )
    if not trial.counts["killed"]:
        trial.counts["workers killed"] = len(place.dead())
    if rng.random() < 0.5:  # while workers may still be at it, whom nobody told
        collect(Project.open(subject.config))
        trial.wrong += place.look(subject)
    place.staff()
    return conclude(place, subject, trial)
