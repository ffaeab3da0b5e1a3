"""Machines without a shared disk work on one root in a bucket: a machine that has read the raw text
stores what it learned in the bucket, so that the other machines need not read the text.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.buckets import MEMORY, objects, upload_raw
from helpers.building import make_corpora
from helpers.sample_project import jsonl, sentences, write_raw
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.inventory.corpora import corpus_names, scan_corpora
from nanoset_core.stages.inventory.make import (
    forget_digests,
    make_inventory,
    remembered_inventory,
)
from nanoset_core.storage.stores.s3.reading import S3Reader
from nanoset_core.storage.stores.s3.store import S3Store

DIGESTS_OF_WEB = f"inventory/web/{MEMORY}"
"""The file of a root with the digests of the raw text of the corpus web."""
ALL_UP_TO_DATE = {"books": "up to date", "code": "up to date", "web": "up to date"}


@pytest.fixture
def raw(place: S3Store, tmp_path: Path) -> S3Store:
    """The place of raw text in the bucket."""
    write_raw(tmp_path / "raw")
    return upload_raw(tmp_path / "raw", place)


@pytest.fixture
def new_machine(make_project, place: S3Store, raw: S3Store) -> Callable[..., Project]:
    """A function that sets up a machine: a project with raw text and outputs in the bucket."""

    def set_up(name: str, fingerprint: str = "content") -> Project:
        storage = f"storage: {{endpoint_url: {place.endpoint_url!r}, fingerprint: {fingerprint}}}"
        replacements = {
            "raw: raw": f"raw: {raw.url()}",
            "root: data": f"root: {place.url()}\n{storage}",
        }
        config = make_project(name, replacements)
        shutil.rmtree(config.parent / "raw")
        return Project.open(config)

    return set_up


@pytest.fixture
def new_machine_with_text(make_project, place: S3Store) -> Callable[[str], Project]:
    """A function that sets up a machine with its own copy of the raw text."""

    def set_up(name: str) -> Project:
        storage = f"storage: {{endpoint_url: {place.endpoint_url!r}, fingerprint: content}}"
        config = make_project(name, {"root: data": f"root: {place.url()}\n{storage}"})
        # The copies have the same times, as after `rsync -a`.
        for path in (config.parent / "raw").rglob("*.jsonl"):
            os.utime(path, (1e9, 1e9))
        return Project.open(config)

    return set_up


@pytest.fixture
def raw_objects_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each object of raw text that is read, once for each request."""
    names: list[str] = []

    def record(method: str) -> None:
        original = getattr(S3Store, method)

        def read(store, name, *arguments):
            if isinstance(store, S3Reader):
                names.append(name)
            return original(store, name, *arguments)

        monkeypatch.setattr(S3Store, method, read)

    record("read_range")
    record("open_range")
    return names


def corpus_states(project: Project) -> dict[str, str]:
    """Return the state of each corpus, as `nanoset status` shows it."""
    states: dict[str, str] = {}
    for row in project_status(project):
        if row.kind == "corpus":
            states[row.name] = row.state
    return states


def is_web_known(project: Project) -> bool:
    """Return whether the inventory of the corpus web is known without reading the text."""
    web = scan_corpora(project).corpora["web"]
    return remembered_inventory(project, web) is not None


@pytest.mark.parametrize("fingerprint", ["content", "etag"])
def test_text_that_one_machine_has_read_is_not_read_by_another(
    new_machine, place, raw_objects_read, fingerprint
):
    make_corpora(new_machine("first", fingerprint))
    if fingerprint == "content":
        assert raw_objects_read, "otherwise, the test could not see that text is read"
    objects_before = objects(place)
    digests_before = place.stat(DIGESTS_OF_WEB)
    second = new_machine("second", fingerprint)
    raw_objects_read.clear()

    assert corpus_states(second) == ALL_UP_TO_DATE
    for corpus in corpus_names(second):
        make_inventory(second, corpus)

    assert not raw_objects_read
    assert objects(place) == objects_before
    assert place.stat(DIGESTS_OF_WEB) == digests_before


def test_a_forced_build_does_not_read_objects_with_the_same_etags_again(new_machine):
    project = new_machine("first")
    make_inventory(project, "web")

    forget_digests(project, ["web"])

    assert is_web_known(project)


def test_text_that_was_added_is_read_by_one_machine_only(new_machine, raw, place, raw_objects_read):
    first = new_machine("first")
    second = new_machine("second")
    make_corpora(first)
    make_corpora(second)

    # One machine builds with another file of raw text: the other one need not read it.
    added_text = jsonl(sentences("more", 20))
    raw.put("web/new.jsonl", added_text)
    make_corpora(second)
    raw_objects_read.clear()
    assert corpus_states(first) == ALL_UP_TO_DATE
    make_inventory(first, "web")
    assert not raw_objects_read
    assert place.read(DIGESTS_OF_WEB)

    # The file is replaced by another of the same size: neither relies on the old digest.
    raw.put("web/new.jsonl", added_text.replace(b"more", b"less"))
    assert corpus_states(first)["web"] == "stale"
    assert corpus_states(second)["web"] == "stale"


def test_digests_that_an_earlier_version_kept_on_its_disk_are_stored_in_the_bucket(
    new_machine, place
):
    first = new_machine("first")
    make_corpora(first)
    # Earlier versions did not store the file in the bucket, and wrote no newline at its end.
    place.delete(DIGESTS_OF_WEB)
    local_file = first.outputs.folder / DIGESTS_OF_WEB
    local_file.write_bytes(local_file.read_bytes().rstrip())

    make_inventory(first, "web")

    assert is_web_known(new_machine("second"))


def test_machines_with_copies_of_the_text_do_not_replace_the_digests_of_each_other(
    new_machine_with_text, place
):
    """Otherwise, each machine would read its text again after a build on another one."""
    first = new_machine_with_text("first")
    second = new_machine_with_text("second")
    make_inventory(first, "web")
    make_inventory(second, "web")
    digests_before = place.read(DIGESTS_OF_WEB)

    for project in (first, second):
        assert is_web_known(project)
        make_inventory(project, "web")
        assert place.read(DIGESTS_OF_WEB) == digests_before
