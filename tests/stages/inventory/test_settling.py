"""A build waits for files that are being written, and reads the others as they are."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

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

AN_HOUR = 3600


def write_file(path: Path, data: bytes, age: float) -> None:
    """Write a file as if that had been some seconds ago."""
    path.write_bytes(data)
    modified_at = time.time() - age
    os.utime(path, (modified_at, modified_at))


def compressed_documents(count: int) -> bytes:
    """Return some documents as a gzip file."""
    return gzip.compress(jsonl(sentences("a", count)))


@pytest.fixture
def project(make_project) -> Project:
    """The sample project, with an inventory of the corpus books."""
    project = Project.open(make_project())
    path = project.config.raw_folder / "books" / "a.jsonl.gz"
    write_file(path, compressed_documents(5), AN_HOUR)
    make_inventory(project, "books")
    return project


@pytest.fixture
def books(project: Project) -> Path:
    """The folder of the corpus books."""
    return project.config.raw_folder / "books"


# A file of the last build that was just overwritten


@pytest.fixture
def overwritten_file(books: Path) -> Path:
    """A file of the inventory that was just overwritten, next to a new file of an hour ago."""
    write_file(books / "b.jsonl", jsonl(sentences("b", 5)), AN_HOUR)
    write_file(books / "a.jsonl.gz", compressed_documents(6), 1)
    return books / "a.jsonl.gz"


def test_a_corpus_waits_for_a_file_that_was_just_overwritten(project, overwritten_file):
    digest_before = current_inventory(project, "books")[0].digest

    with pytest.raises(
        SourceChangedError, match="its content of the last build was overwritten"
    ) as caught:
        survey_corpus(project, "books", settled=True)

    assert caught.value.where == str(overwritten_file)
    assert current_inventory(project, "books")[0].digest == digest_before


@pytest.mark.usefixtures("overwritten_file")
def test_a_build_that_a_user_starts_does_not_wait(project):
    assert "b.jsonl" in survey_corpus(project, "books", settled=False).files


def test_a_corpus_waits_no_longer_once_the_file_is_old(project, overwritten_file):
    os.utime(overwritten_file, (0, 0))

    assert "b.jsonl" in survey_corpus(project, "books", settled=True).files


# A damaged inventory


def rename_key(data: bytes) -> bytes:
    """Return an inventory in which a key of the first file is misspelt."""
    return data.replace(b'"digest": "', b'"digexx": "', 1)


def cut_end(data: bytes) -> bytes:
    """Return an inventory without its end."""
    return data[:-40]


@pytest.fixture(params=[rename_key, cut_end])
def damaged_project(project: Project, books: Path, request: pytest.FixtureRequest) -> Project:
    """A project with a damaged inventory, and a file that was just overwritten."""
    damage = request.param
    path = current_inventory(project, "books")[0].path(INVENTORY_FILE)
    path.write_bytes(damage(path.read_bytes()))
    write_file(books / "a.jsonl.gz", compressed_documents(6), 1)
    return project


def test_a_damaged_inventory_has_no_quiet_period(damaged_project):
    assert quiet_period_of(damaged_project, "books") is None


def test_with_a_damaged_inventory_every_file_is_read_as_it_is(damaged_project):
    inventory = survey_corpus(damaged_project, "books", settled=True)

    assert inventory.pieces == survey_corpus(damaged_project, "books").pieces
    assert inventory.awaited == ()


# A file that was renamed

MISSING = "1 file of the previous version is missing or was renamed: a.jsonl.gz"
LOCKED = "1 file accompanies the text and is not read, judging by its name: a.jsonl.gz.lock"


@pytest.fixture
def renamed_file(books: Path) -> Path:
    """A file of the inventory that was renamed, so that it is no longer read."""
    return (books / "a.jsonl.gz").rename(books / "a.jsonl.gz.lock")


def texts_of_notices(project: Project) -> list[str]:
    """Return the notices on the corpus books."""
    return [notice.text for notice in corpus_notices(project, "books")]


@pytest.mark.usefixtures("renamed_file")
def test_a_missing_file_is_reported_before_and_after_the_next_inventory(project):
    notices_before = texts_of_notices(project)
    make_inventory(project, "books")
    notices_after = texts_of_notices(project)

    assert notices_before == [MISSING, LOCKED]
    assert notices_after == [MISSING, LOCKED]


@pytest.mark.usefixtures("renamed_file")
def test_a_missing_file_is_not_reported_after_the_inventory_after_next(project, books):
    make_inventory(project, "books")
    write_file(books / "b.jsonl", jsonl(sentences("b", 5)), AN_HOUR)
    make_inventory(project, "books")

    assert texts_of_notices(project) == [LOCKED]
