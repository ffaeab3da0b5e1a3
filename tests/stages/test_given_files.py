"""Files that nanoset.yaml names in addition to the raw text, such as lists of ids."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nanoset_core.errors import InputError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.stages import given_files as given_files_module
from nanoset_core.stages.given_files import given_files, is_given_file


@pytest.fixture
def project(make_project) -> Project:
    """A project with two lists of ids, which were written long ago."""
    file = make_project()
    folder = file.parent / "lists" / "a"
    folder.mkdir(parents=True)
    for number in (2, 10):
        path = folder / f"{number}.txt"
        path.write_text(f"id-{number}\n")
        os.utime(path, (1, 1))
    return Project.open(file)


@pytest.fixture
def lists(project: Project) -> Path:
    """The folder of the lists."""
    return project.config.file.parent / "lists" / "a"


@pytest.mark.parametrize(
    "pattern", ["lists/a/*.txt", "lists/**/*.txt", "lists", "lists/a", "l*/a/*", "./lists/a"]
)
def test_a_pattern_stands_for_files_in_natural_order(project, pattern):
    files = given_files(project, pattern, "views.clean.exclude")

    names = [path.rpartition("/")[2] for path in files.names]
    contents = [(files.folder / path).read_text() for path in files.names]
    assert names == ["2.txt", "10.txt"]
    assert contents == ["id-2\n", "id-10\n"]


def test_a_pattern_without_a_file_is_refused(project):
    with pytest.raises(MissingError, match="no file matches this path or pattern") as caught:
        given_files(project, "lists/*.csv", "views.clean.exclude")

    assert str(caught.value.where).endswith("nanoset.yaml: views.clean.exclude")
    assert caught.value.found == "lists/*.csv"


# Digests


def test_the_digest_does_not_depend_on_the_pattern(project, lists):
    by_folder = given_files(project, "lists", "key")
    by_pattern = given_files(project, f"{lists}/*", "key")

    assert by_pattern.digest == by_folder.digest


def test_a_changed_file_changes_the_digest(project, lists):
    digest_before = given_files(project, "lists", "key").digest
    (lists / "2.txt").write_text("id-3\n")
    a_minute_ago = time.time() - 60
    os.utime(lists / "2.txt", (a_minute_ago, a_minute_ago))

    assert given_files(project, "lists", "key").digest != digest_before


def test_a_file_is_read_again_only_if_it_has_changed(project, lists, monkeypatch):
    read_paths = []
    fingerprint = given_files_module.fingerprint

    def record_path(folder, stat):
        read_paths.append(stat.path)
        return fingerprint(folder, stat)

    monkeypatch.setattr(given_files_module, "fingerprint", record_path)

    digest = given_files(project, "lists/a/*", "key").digest
    repeated_digest = given_files(project, "lists/a/*", "key").digest

    assert read_paths == ["2.txt", "10.txt"]
    assert repeated_digest == digest


def test_names_are_found_without_reading_or_writing_files(project, monkeypatch):
    def refuse_to_read(folder, stat):
        raise AssertionError(f"{stat.path} is read")

    monkeypatch.setattr(given_files_module, "fingerprint", refuse_to_read)

    files = given_files(project, "lists/a/*", "key")

    assert files.names == ("2.txt", "10.txt")
    assert not project.outputs.folder.exists()


# Folders that are named like files


@pytest.fixture
def empty_project(make_project) -> Project:
    """A project without any such files."""
    return Project.open(make_project())


@pytest.fixture
def folder_named_as_list(empty_project: Project) -> Path:
    """A folder with the name of a list, next to a list."""
    folder = empty_project.config.file.parent / "lists" / "b.txt"
    folder.mkdir(parents=True)
    folder.with_name("a.txt").write_text("1\n")
    return folder


@pytest.mark.parametrize("pattern", ["lists/*.txt", "lists/**/*.txt", "lists"])
@pytest.mark.usefixtures("folder_named_as_list")
def test_a_folder_with_the_name_of_a_list_is_refused(empty_project, pattern):
    with pytest.raises(InputError, match="a folder has the name of a file"):
        given_files(empty_project, pattern, "views.x.exclude")


@pytest.mark.parametrize("pattern", ["lists/*.txt", "lists/**/*.txt", "lists"])
def test_a_folder_with_another_name_is_ignored(empty_project, folder_named_as_list, pattern):
    folder_named_as_list.rename(folder_named_as_list.with_name("old"))

    assert given_files(empty_project, pattern, "views.x.exclude").names


@pytest.fixture
def divided_table(empty_project: Project) -> Path:
    """A table as Spark writes it: a folder with the name of a table, and its parts in it."""
    folder = empty_project.config.file.parent / "scores" / "x.parquet"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"PAR1")
    return folder


@pytest.mark.usefixtures("divided_table")
def test_a_pattern_that_matches_the_folder_of_a_table_is_refused(empty_project):
    with pytest.raises(InputError, match="a folder has the name of a file"):
        given_files(empty_project, "scores/*.parquet", "attributes.web.files")


@pytest.mark.usefixtures("divided_table")
def test_a_pattern_for_all_folders_finds_the_parts_of_a_table(empty_project):
    files = given_files(empty_project, "scores/**/*.parquet", "attributes.web.files")

    assert files.names == ("x.parquet/part-0.parquet",)


# Whether a pattern stands for a file


@pytest.mark.parametrize(
    ("pattern", "is_given"),
    [
        pytest.param("lists/a/new.txt", True, id="the file"),
        pytest.param("./lists/../lists/a/new.txt", True, id="the file by another path"),
        pytest.param("lists/a/*.txt", True, id="a pattern"),
        pytest.param("lists/**/new.*", True, id="a pattern of any depth"),
        pytest.param("lists", True, id="a folder"),
        pytest.param("lists/a/2.txt", False, id="another file"),
        pytest.param("lists/*.txt", False, id="a pattern of another folder"),
        pytest.param("other/*.txt", False, id="a pattern of a folder that does not exist"),
        pytest.param("list", False, id="the beginning of its path"),
        pytest.param("s3://bucket/lists/a/new.txt", False, id="an object in a bucket"),
    ],
)
def test_a_pattern_stands_for_a_file_that_may_be_written_later(project, lists, pattern, is_given):
    file = lists / "new.txt"

    assert is_given_file(project, pattern, "views.clean.exclude", file) is is_given


@pytest.mark.parametrize("pattern", ["lists/link.txt", "lists/*.txt", "lists"])
def test_a_pattern_stands_for_a_link_to_a_file_elsewhere(project, lists, tmp_path, pattern):
    target = tmp_path / "elsewhere.txt"
    target.touch()
    link = lists.parent / "link.txt"
    link.symlink_to(target)

    assert is_given_file(project, pattern, "views.clean.exclude", link)
