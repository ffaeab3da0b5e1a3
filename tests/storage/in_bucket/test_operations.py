"""Commands on outputs in a bucket: `nanoset status`, `diff`, `gc`, `explain` and `verify` report the
same as for outputs in a local folder, and need no working copies.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import time
from collections import Counter
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

import pytest

from helpers import buckets
from helpers.buckets import count_shard_requests, remove_copies
from helpers.building import build_all, make_inventory, make_shards
from helpers.command import invoke_nanoset, messages_of, report_of
from helpers.inspecting import lineage_of, verify_at
from helpers.sample_project import outputs_of
from nanoset_core import load_nanoset
from nanoset_core.errors import NanosetError
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.storage import many_folders
from nanoset_core.storage.stores.s3.store import S3Store

COMMANDS = (
    "status --json",
    "diff web --json",
    "gc --json",
    "verify --json",
    "verify --deep --json",
    "explain pretrain train 3 --json",
    "explain pretrain train --number 5 --corpus code --json",
    "explain shuffled 3 --json",
    "explain shuffled --number 5 --corpus code --json",
)


def first_web_file(config: Path) -> Path:
    """Return a file of raw text of the corpus web."""
    return config.parent / "raw" / "web" / "part-0" / "web-0.jsonl"


# Requests


@pytest.mark.parametrize(
    ("has_copies", "expected_requests"),
    [
        pytest.param(True, {"ListObjectsV2": 2}, id="with copies"),
        pytest.param(False, {"ListObjectsV2": 2, "GetObject": 4}, id="without copies"),
    ],
)
def test_finished_shards_are_found_by_one_listing(
    remote_project, place, monkeypatch, has_copies, expected_requests
):
    # Let four shards be many, more than are ever listed one by one.
    monkeypatch.setattr(many_folders, "_FEW_FOLDERS", 3)
    monkeypatch.setattr(many_folders, "_FOLDERS_IN_MEMORY", 3)
    config = remote_project()
    project = Project.open(config)
    make_inventory(project, "web")
    tokenized = make_shards(project, "web")
    shards = current_shards(project, tokenized)
    assert len(shards) == 4
    if not has_copies:
        remove_copies(config)

    with count_shard_requests(place) as n_requests:
        tokenized_again = make_shards(Project.open(config), "web")
        shards_again = current_shards(project, tokenized)

    assert tokenized_again.digest == tokenized.digest
    digests = [shard.digest for shard in shards]
    assert [shard.digest for shard in shards_again] == digests
    # One listing for each of the two calls; without copies, each manifest is read once.
    assert n_requests == expected_requests


def count_status_requests(config: Path, place: S3Store) -> Counter[str]:
    """Return the number of requests for shards that the status of the corpus web takes.

    The corpus has rejected documents, which the status must report.
    """
    remove_copies(config)
    with count_shard_requests(place) as n_requests:
        rows = project_status(Project.open(config))
        [web] = [row for row in rows if row.label == "corpus web"]
    assert web.rejects[0].endswith("/rejects.jsonl")
    return n_requests


def test_status_does_not_list_each_shard(remote_project, filled, monkeypatch):
    monkeypatch.setattr(many_folders, "_FEW_FOLDERS", 3)
    config = remote_project()
    file = config.parent / "raw" / "web" / "zz.jsonl"

    # A fifth shard, which has a list of rejected documents.
    file.write_bytes(b"no JSON\n")
    make_inventory(Project.open(config), "web")
    make_shards(Project.open(config), "web")
    n_requests = count_status_requests(config, filled)
    assert n_requests["ListObjectsV2"] == 3
    assert n_requests["GetObject"] == 5 + 1, "each manifest once, and the list of rejects"

    # The text changed, and its shard was not rebuilt.
    with file.open("ab") as text:
        text.write(b'{"text": "one document more"}\n')
    make_inventory(Project.open(config), "web")
    n_requests = count_status_requests(config, filled)
    assert n_requests["ListObjectsV2"] == 2
    assert n_requests["GetObject"] == 5 + 1


LAST_DOCUMENT = 239
"""The last document of the corpus web, which is in the last shard."""


@pytest.fixture
def lineage(remote_project, filled):
    """Where the documents of the corpus web come from; it has four shards in a bucket."""
    project = Project.open(remote_project())
    dataset = project.outputs.current("datasets", "web")
    assert dataset.facts["documents"] == LAST_DOCUMENT + 1
    lineage = lineage_of(project, dataset)
    assert len(lineage.shards) == 4
    return lineage


@pytest.fixture
def n_fetched(lineage, monkeypatch) -> Counter[str]:
    """How many files of each name are fetched from shards.

    Each request waits until all four shards have one. So the test fails if they are not sent at the
    same time.
    """
    counts: Counter[str] = Counter()
    barrier = Barrier(4, timeout=60)
    original_fetch = S3Store.fetch

    def fetch(store, name, target, **options):
        if "/shards/" in f"/{name}":
            counts[Path(name).name] += 1
            barrier.wait()
        return original_fetch(store, name, target, **options)

    monkeypatch.setattr(S3Store, "fetch", fetch)
    return counts


def test_the_manifests_of_all_shards_are_requested_at_the_same_time(lineage, n_fetched):
    # This takes the number of documents of each shard.
    shard_number = lineage.place(LAST_DOCUMENT)[0]

    assert shard_number == 3
    assert n_fetched == {"manifest.json": 4}


def test_the_tables_of_all_shards_are_requested_at_the_same_time(lineage, n_fetched):
    # An id may be in the table of any shard.
    origins = lineage.find_id(f"web-{LAST_DOCUMENT}")

    assert [origin.document for origin in origins] == [LAST_DOCUMENT]
    assert n_fetched == {"manifest.json": 4, "documents.parquet": 4}


# Reports


class Twins(NamedTuple):
    """Two projects with the same content, given by their nanoset.yaml."""

    local: Path
    """With outputs in a local folder."""
    remote: Path
    """With outputs in a bucket, and without working copies."""


@pytest.fixture
def twins(local_copy: Path, remote_project, filled: S3Store) -> Twins:
    """Two projects that were built, changed, and built again, one of them in a bucket."""
    remote = remote_project()
    for config in (local_copy, remote):
        with first_web_file(config).open("ab") as file:
            file.write(b'{"text": "one document more"}\n')
        # A bucket stores times in whole seconds: the second version must be the newer one.
        time.sleep(1.1)
        build_all(config)
    remove_copies(remote)
    return Twins(local_copy, remote)


def test_a_bucket_is_built_reported_on_and_cleaned_like_a_folder(twins, place):
    assert buckets.objects(place) == outputs_of(twins.local)
    for command in COMMANDS:
        remove_copies(twins.remote)
        assert report_of(twins.remote, command) == report_of(twins.local, command), command

    # The garbage collection removes the same outputs from both.
    local_collection = collect(Project.open(twins.local))
    remote_project = Project.open(twins.remote)
    remote_collection = collect(remote_project)
    local_garbage = [item.output for item in local_collection.garbage]
    remote_garbage = [item.output for item in remote_collection.garbage]
    assert local_garbage
    assert remote_garbage == local_garbage
    assert buckets.objects(place) == outputs_of(twins.local)
    assert not collect(remote_project).garbage


EXPLANATIONS = tuple(command for command in COMMANDS if command.startswith("explain"))
COMMANDS_ON_LOST_FILES = (
    "status",
    "gc",
    "verify --deep --select web --select pretrain/train",
    *(command.removesuffix(" --json") for command in EXPLANATIONS),
)
"""Commands that report outputs with missing files; a quick verification would look at less."""
LOST_FILES = (
    pytest.param("datasets/web/*/manifest.json", marks=pytest.mark.slow),
    pytest.param("datasets/web/*/*.idx", marks=pytest.mark.slow),
    pytest.param("nanosets/*/cache/*document_index.npy", marks=pytest.mark.slow),
    "tokenized/web/*",
    pytest.param("shards/*/documents.parquet", marks=pytest.mark.slow),
)
"""Patterns of the names of objects that somebody deletes."""


@pytest.mark.parametrize("pattern", LOST_FILES)
def test_a_missing_object_is_reported_with_its_place_in_the_bucket(
    remote_project, filled, monkeypatch, pattern
):
    config = remote_project()
    names = [stored.name for stored in filled.list()]
    lost_names = set(fnmatch.filter(names, pattern))
    assert lost_names
    for name in lost_names:
        filled.delete(name)
    monkeypatch.chdir(config.parent)

    messages = []
    for command in COMMANDS_ON_LOST_FILES:
        messages.append(messages_of(invoke_nanoset(command.split())))
    with contextlib.suppress(NanosetError):
        outputs = Project.open(config).outputs
        for nanoset, split in (("pretrain", "train"), ("plain", "valid")):
            try:
                load_nanoset(outputs, nanoset, split)
            except NanosetError as error:
                messages.append(str(error))

    folder_of_copies = str(config.parent / ".nanoset")
    for message in messages:
        assert folder_of_copies not in message, message
    assert any(filled.url() in message for message in messages)


# Working copies


@pytest.mark.parametrize("deep", [False, True], ids=["quick", "deep"])
def test_a_truncated_copy_is_not_reported_as_damage(remote_project, filled, deep):
    project = Project.open(remote_project())
    packed = project.outputs.current("packed", "web")
    copy = packed.path(packed.facts["file"])
    os.truncate(copy, copy.stat().st_size // 2)

    report = verify_at(project, "packed/web", deep=deep)

    assert report.findings == []
