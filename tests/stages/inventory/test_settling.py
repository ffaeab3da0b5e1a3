"""Inventories that leave files as they were to which something writes: only while these can be read
so.
"""

from __future__ import annotations

import gzip
import os
import time

import pytest

from helpers.sample_project import jsonl, sentences
from nanoset_core.errors import SourceChangedError
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import (
    INVENTORY_FILE,
    current_inventory,
    make_inventory,
    quiet_period_of,
    survey_corpus,
)
from nanoset_core.stages.inventory.notices import corpus_notices


def put(path, data, age):
    path.write_bytes(data)
    written = time.time() - age
    os.utime(path, (written, written))


@pytest.fixture
def project(make_project):
    project = Project.open(make_project())
    put(
        project.config.raw_folder / "books" / "a.jsonl.gz",
        gzip.compress(jsonl(sentences("a", 5))),
        3600,
    )
    make_inventory(project, "books")
    return project


def test_a_file_that_was_written_anew_lets_its_corpus_wait(project):
    folder = project.config.raw_folder / "books"
    before = current_inventory(project, "books")[0].digest
    put(folder / "b.jsonl", jsonl(sentences("b", 5)), 3600)
    put(folder / "a.jsonl.gz", gzip.compress(jsonl(sentences("a", 6))), 1)
    with pytest.raises(
        SourceChangedError, match="its content of the last build was overwritten"
    ) as caught:
        survey_corpus(project, "books", settled=True)
    assert caught.value.where == str(folder / "a.jsonl.gz")
    assert current_inventory(project, "books")[0].digest == before
    assert "b.jsonl" in survey_corpus(project, "books").files, (
        "by hand, files are taken as they are"
    )
    os.utime(folder / "a.jsonl.gz", (0, 0))
    assert "b.jsonl" in survey_corpus(project, "books", settled=True).files


@pytest.mark.parametrize("damage", [
    lambda data: data.replace(b'"digest": "', b'"digexx": "', 1), lambda data: data[:-40],
])  # fmt: skip
def test_a_damaged_inventory_lets_every_file_be_taken_as_it_is(project, damage):
    file = current_inventory(project, "books")[0].path(INVENTORY_FILE)
    file.write_bytes(damage(file.read_bytes()))
    put(
        project.config.raw_folder / "books" / "a.jsonl.gz",
        gzip.compress(jsonl(sentences("a", 6))),
        1,
    )
    assert quiet_period_of(project, "books") is None
    taken = survey_corpus(project, "books", settled=True)
    assert (taken.pieces, taken.awaited) == (survey_corpus(project, "books").pieces, ())


def test_a_file_that_vanished_is_told_until_the_inventory_after_next(project):
    lost = project.config.raw_folder / "books" / "a.jsonl.gz"
    lost.rename(lost.with_name("a.jsonl.gz.lock"))
    gone = ["1 file of the previous version is missing or was renamed: a.jsonl.gz"]
    gone.append("1 file accompanies the text and is not read, judging by its name: a.jsonl.gz.lock")
    assert [notice.text for notice in corpus_notices(project, "books")] == gone
    make_inventory(project, "books")
    assert [notice.text for notice in corpus_notices(project, "books")] == gone
    put(lost.with_name("b.jsonl"), jsonl(sentences("b", 5)), 3600)
    make_inventory(project, "books")
    assert [notice.text for notice in corpus_notices(project, "books")] == gone[1:]
