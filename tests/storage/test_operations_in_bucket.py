"""`nanoset status`, `diff`, `gc`, `explain` and `verify` say of a bucket what they say of a folder,
without copies.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest

from helpers import s3_server
from helpers.building import build_all, make_inventory, make_shards
from helpers.command import invoke_nanoset, told_by
from helpers.inspecting import lineage_of, verify_at
from helpers.sample_project import outputs_of
from nanoset_core import load_nanoset
from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.project.bucket_copies import find_copies
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.storage import many_folders
from nanoset_core.storage.leases import leased
from nanoset_core.storage.s3 import S3Store

QUESTIONS = (
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


@pytest.fixture
def twins(local_copy, remote_project, filled):
    """Two projects, alike but for their roots: built, changed, built again; the bucket's without
    copies.
    """
    remote = remote_project()
    for config in (local_copy, remote):
        with (config.parent / "raw" / "web" / "part-0" / "web-0.jsonl").open("ab") as file:
            file.write(b'{"text": "one document more"}\n')
        time.sleep(1.1)  # a bucket tells when versions were made by the second
        build_all(config)
    forget_copies(remote)
    return local_copy, remote


@pytest.mark.parametrize("copies", [True, False])
def test_finished_shards_are_found_by_one_listing(remote_project, place, monkeypatch, copies):
    monkeypatch.setattr(many_folders, "_FEW_FOLDERS", 3)
    monkeypatch.setattr(many_folders, "_FOLDERS_IN_MEMORY", 3)
    config = remote_project()
    project = Project.open(config)
    make_inventory(project, "web")
    made = make_shards(project, "web")
    shards = current_shards(project, made)
    assert len(shards) == 4
    if not copies:
        forget_copies(config)
    with shard_requests(place) as asked:
        assert make_shards(Project.open(config), "web").digest == made.digest
        found = current_shards(project, made)
    assert [shard.digest for shard in found] == [shard.digest for shard in shards]
    assert asked == {"ListObjectsV2": 2} | ({} if copies else {"GetObject": len(shards)})


@contextmanager
def shard_requests(place: S3Store) -> Iterator[Counter[str]]:
    """Operations of the bucket that shards of the corpus web were asked for."""
    asked: Counter[str] = Counter()

    def count(params, model, **_):
        if "/shards/web" in params.get("Key", params.get("Prefix", "")):
            asked[model.name] += 1

    events = place.client().meta.events
    events.register("before-parameter-build.s3", count)
    try:
        yield asked
    finally:
        events.unregister("before-parameter-build.s3", count)


def test_status_lists_all_shards_together(remote_project, filled, monkeypatch):
    monkeypatch.setattr(many_folders, "_FEW_FOLDERS", 3)
    config, lists = remote_project(), list[int]()
    file = config.parent / "raw" / "web" / "zz.jsonl"
    for added, is_built in ((b"no JSON\n", True), (b'{"text": "one document more"}\n', False)):
        with file.open("ab") as text:
            text.write(added)
        make_inventory(Project.open(config), "web")
        if is_built:
            make_shards(Project.open(config), "web")
        forget_copies(config)
        with shard_requests(filled) as asked:
            row = next(
                row for row in project_status(Project.open(config)) if row.label == "corpus web"
            )
        assert row.rejects[0].endswith("/rejects.jsonl")
        assert asked["GetObject"] == 5 + 1, "each manifest once, and the one list of rejects"
        lists.append(asked["ListObjectsV2"])
    assert lists == [5, 3], "not one for each of the five shards as well"


def test_shards_that_hold_documents_are_looked_into_at_once(remote_project, filled, monkeypatch):
    project = Project.open(remote_project())
    dataset = project.outputs.current("datasets", "web")
    lineage = lineage_of(project, dataset)
    fetched: Counter[str] = Counter()
    real = S3Store.fetch
    together = Barrier(len(lineage.shards), timeout=60)

    def fetch(store, name, target, **options):
        if "/shards/" in f"/{name}":
            fetched[name.rpartition("/")[2]] += 1
            together.wait()  # for a request of every other shard
        return real(store, name, target, **options)

    monkeypatch.setattr(S3Store, "fetch", fetch)
    last = dataset.facts["documents"] - 1
    assert lineage.place(last)[0] == len(lineage.shards) - 1 == 3
    assert fetched == {"manifest.json": 4}
    assert [origin.document for origin in lineage.find_id(f"web-{last}")] == [last]
    assert fetched == {"manifest.json": 4, "documents.parquet": 4}


def forget_copies(config: Path) -> None:
    shutil.rmtree(config.parent / ".nanoset", ignore_errors=True)


def said(config: Path, question: str) -> str:
    """What is said, without where outputs are and when they were made."""
    answer = invoke_nanoset([*question.split(), "--config", str(config)], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    text = answer.output
    project = Project.open(config).config
    for place in (project.root_folder, config.parent, project.root if project.root_place else ""):
        text = text.replace(str(place) or "<place>", "<place>")
    return re.sub(r'"(made_at|seconds)": [^,}]*', "", text)


def test_told_of_and_collected_like_a_folder(twins, place):
    for question in QUESTIONS:
        forget_copies(twins[1])
        local, remote = (said(config, question) for config in twins)
        assert remote == local, question
    local, remote = map(Project.open, twins)
    before = collect(local)
    assert before.garbage
    after = collect(remote)
    assert [item.output for item in after.garbage] == [item.output for item in before.garbage]
    assert s3_server.objects(place) == outputs_of(twins[0])
    assert not collect(remote).garbage
    forget_copies(twins[1])
    assert said(twins[1], "verify --deep --json") == said(twins[0], "verify --deep --json")


def test_a_copy_that_was_cut_is_no_damage(remote_project, filled):
    project = Project.open(remote_project())
    made = project.outputs.current("packed", "web")
    copy = made.path(made.facts["file"])
    os.truncate(copy, copy.stat().st_size // 2)
    for deep in (False, True):
        assert verify_at(project, "packed/web", deep=deep).findings == []


def test_copies_go_and_come_back(remote_project, make_project, there, filled):
    config = remote_project()
    project = Project.open(config)
    shutil.copytree(there.copies, project.outputs.folder, symlinks=True)
    before = s3_server.objects(filled)
    with leased(project.outputs.access, ["web"]):
        held = find_copies(project, remove=True)
    gone = held | find_copies(project, remove=True)
    assert any("/web/" in str(path) for path in gone)
    assert not any("/web/" in str(path) for path in held)
    assert not list(project.outputs.folder.rglob("*.bin"))
    assert not list(project.outputs.folder.rglob("*.npy"))
    assert s3_server.objects(filled) == before
    said(config, "verify --deep --json")
    build_all(config)
    assert s3_server.objects(filled) == before
    with pytest.raises(ConfigError, match="no copies"):
        find_copies(Project.open(make_project("local")))


LOST = (
    "datasets/web/*/manifest.json",
    "datasets/web/*/*.idx",
    "nanosets/*/cache/*document_index.npy",
    "tokenized/web/*",
    "shards/*/documents.parquet",
)


@pytest.mark.parametrize("lost", LOST)
def test_what_is_lost_is_named_by_its_place_in_the_bucket(
    remote_project, filled, monkeypatch, lost
):
    config, places = (
        remote_project(),
        set(fnmatch.filter([found.name for found in filled.list()], lost)),
    )
    assert places
    for name in places:
        filled.delete(name)
    monkeypatch.chdir(config.parent)
    asked = [
        words.removesuffix(" --json").split()
        for words in QUESTIONS
        if words not in ("diff web --json", "verify --json")
    ]
    said = [invoke_nanoset(words) for words in asked]
    texts = [told_by(outcome) for outcome in said]
    with contextlib.suppress(NanosetError):
        outputs = Project.open(config).outputs
        for name, split in (("pretrain", "train"), ("plain", "valid")):
            try:
                load_nanoset(outputs, name, split)
            except NanosetError as error:
                texts.append(str(error))
    for text in texts:
        assert str(config.parent / ".nanoset") not in text, text
    assert any(filled.url() in text for text in texts)
