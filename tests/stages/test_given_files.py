"""Files that nanoset.yaml names beside the raw text."""

import os
import time

import pytest

from helpers.sample_project import write_corpus
from nanoset_core.errors import InputError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.stages.given_files import given_files


@pytest.fixture
def project(make_project):
    file = make_project()
    for number in (2, 10):
        path = file.parent / "lists" / "a" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id-{number}\n")
        os.utime(path, (1, 1))
    return Project.open(file)


@pytest.mark.parametrize(
    "pattern", ["lists/a/*.txt", "lists/**/*.txt", "lists", "lists/a", "l*/a/*", "./lists/a"]
)
def test_a_pattern_gives_files_in_natural_order(project, pattern):
    found = given_files(project, pattern, "views.clean.exclude")
    assert [path.rpartition("/")[2] for path in found.names] == ["2.txt", "10.txt"]
    assert [(found.folder / path).read_text() for path in found.names] == ["id-2\n", "id-10\n"]


def test_the_digest_is_that_of_the_content_and_a_known_file_is_not_read_again(project):
    folder = project.config.file.parent / "lists" / "a"
    before = given_files(project, "lists", "key").digest
    assert given_files(project, str(folder / "*"), "key").digest == before
    (folder / "2.txt").chmod(0)
    assert given_files(project, "lists", "key").digest == before
    (folder / "2.txt").chmod(0o600)
    (folder / "2.txt").write_text("id-3\n")
    os.utime(folder / "2.txt", (time.time() - 60,) * 2)
    assert given_files(project, "lists", "key").digest != before


def test_a_pattern_without_a_file_is_refused(project):
    with pytest.raises(
        MissingError, match=r"views.clean.exclude: .*found 'lists/\*.csv'|no file matches this path"
    ) as error:
        given_files(project, "lists/*.csv", "views.clean.exclude")
    assert error.value.found == "lists/*.csv"


@pytest.mark.parametrize("pattern", ["lists/*.txt", "lists/**/*.txt", "lists"])
def test_a_list_of_a_view_is_refused_if_a_folder_has_its_name(tmp_path, tokenizer_file, pattern):
    project = Project.open(write_corpus(tmp_path, tokenizer_file))
    lists = project.config.file.parent / "lists"
    (lists / "b.txt").mkdir(parents=True)
    (lists / "a.txt").write_text("1\n")
    with pytest.raises(InputError, match="a folder has the name of a file"):
        given_files(project, pattern, "views.x.exclude")
    (lists / "b.txt").rename(lists / "old")
    assert given_files(project, pattern, "views.x.exclude").names


def test_the_parts_of_a_table_are_found_below_its_folder(tmp_path, tokenizer_file):
    project = Project.open(write_corpus(tmp_path, tokenizer_file))
    scores = project.config.file.parent / "scores" / "x.parquet"
    scores.mkdir(parents=True)
    (scores / "part-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="a folder has the name of a file"):
        given_files(project, "scores/*.parquet", "attributes.web.files")
    assert given_files(project, "scores/**/*.parquet", "attributes.web.files").names == (
        "x.parquet/part-0.parquet",
    )
