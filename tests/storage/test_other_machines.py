"""Machines without a common disk, whose raw text and outputs lie in one bucket: what one has found
out, all know.
"""

from __future__ import annotations

import os
import shutil

import pytest
from storage.turns import rounds

from helpers.building import make_corpora
from helpers.s3_server import MEMORY, objects, upload_raw
from helpers.sample_project import jsonl as lines
from helpers.sample_project import sentences, write_raw
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.inventory.corpora import corpus_names, scan_corpora
from nanoset_core.stages.inventory.make import make_inventory, remembered_inventory
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.s3_reading import S3Reader

NAME = f"inventory/web/{MEMORY}"


@pytest.fixture
def text(place, tmp_path):
    """Raw text in the bucket."""
    write_raw(tmp_path / "raw")
    return upload_raw(tmp_path / "raw", place)


@pytest.fixture
def machine(make_project, place, text, tmp_path):
    """Sets up a machine: a project folder of its own; with `local`, it has a copy of the text."""

    def machine(name, *, local=False, fingerprint="content"):
        storage = f"storage: {{endpoint_url: {place.endpoint_url!r}, fingerprint: {fingerprint}}}"
        found = {
            "raw: raw": "raw: raw" if local else f"raw: {text.url()}",
            "root: data": f"root: {place.url()}\n{storage}",
        }
        config = make_project(name, found)
        shutil.rmtree(config.parent / "raw")
        if local:
            shutil.copytree(tmp_path / "raw", config.parent / "raw")  # with times, as rsync -a
            for path in (config.parent / "raw").rglob("*.jsonl"):
                os.utime(path, (1e9, 1e9))
        return Project.open(config)

    return machine


@pytest.fixture
def texts(monkeypatch):
    """Objects of raw text that are read."""
    found = []
    for name in ("read_range", "open_range"):
        real = getattr(S3Store, name)

        def read(store, name, *more, real=real):
            found.extend([name] if isinstance(store, S3Reader) else [])
            return real(store, name, *more)

        monkeypatch.setattr(S3Store, name, read)
    return found


def corpora(project):
    """Corpus → its state, as `nanoset status` tells it."""
    return {row.name: row.state for row in project_status(project) if row.kind == "corpus"}


def is_known(project):
    """Whether the text is known without being read."""
    return remembered_inventory(project, scan_corpora(project).corpora["web"]) is not None


UP_TO_DATE = dict.fromkeys(("books", "code", "web"), "up to date")


@pytest.mark.parametrize("fingerprint", ["content", "etag"])
def test_another_machine_reads_no_text(machine, place, texts, fingerprint):
    make_corpora(machine("first", fingerprint=fingerprint))
    before, told = objects(place), place.stat(NAME)
    assert fingerprint == "etag" or texts, "that is how it would be seen"
    other = machine("other", fingerprint=fingerprint)
    texts.clear()
    assert corpora(other) == UP_TO_DATE
    for corpus in corpus_names(other):
        make_inventory(other, corpus)
    assert not texts
    assert objects(place) == before
    assert place.stat(NAME) == told


def test_what_one_machine_adds_the_others_know(machine, text, place, texts):
    first, other = machine("first"), machine("other")
    for project in (first, other):
        make_corpora(project)
    more = lines(sentences("more", 20))
    text.put("web/new.jsonl", more)
    make_corpora(other)
    texts.clear()
    assert corpora(first) == UP_TO_DATE
    make_inventory(first, "web")
    assert not texts
    assert place.read(NAME)
    text.put("web/new.jsonl", more.replace(b"more", b"less"))
    assert corpora(first)["web"] == corpora(other)["web"] == "stale"


def test_a_root_of_before_is_told_what_a_machine_knows(machine, place):
    first = machine("first")
    make_corpora(first)
    place.delete(NAME)
    file = first.outputs.folder / NAME
    file.write_bytes(file.read_bytes().rstrip())  # as it was written before
    make_inventory(first, "web")
    assert is_known(machine("other"))


def test_machines_with_copies_of_the_text_look_once_each(machine, place):
    first, other = (machine(name, local=True) for name in ("first", "other"))
    for project in (first, other):
        make_inventory(project, "web")
    known = place.read(NAME)
    for project in (first, other):
        assert is_known(project)
        make_inventory(project, "web")
        assert place.read(NAME) == known


def test_machines_take_turns_at_one_root(place, tmp_path):
    """The same bytes as those of one machine, and nothing made twice that a manifest knew; for
    longer by hand.
    """
    assert len(list(rounds(tmp_path, place, 2, seed=13))) == 2
