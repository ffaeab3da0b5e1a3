"""A file or dataset that is named twice is recognised, whichever paths, links or URLs name it."""

import os
from pathlib import Path

import pytest

from nanoset_core.formats.indexed.identity import first_repeated_dataset
from nanoset_core.storage.location import location
from nanoset_core.storage.reading.identity import file_identity, first_repeated

# Files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with files a and b, and d/c."""
    (tmp_path / "d").mkdir()
    for name in ("a", "b", "d/c"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_different_files_are_different():
    assert first_repeated([Path("a"), Path("b"), Path("d/c")]) is None


@pytest.mark.usefixtures("folder")
def test_the_same_path_is_the_same_file():
    path = Path("a")

    assert first_repeated([path, path]) == (path, path)


@pytest.mark.parametrize(
    "spelling", ["./a", "d/../a", "{folder}/a", "{folder}/./d//../a", "file://{folder}/a"]
)
def test_another_spelling_of_a_path_is_the_same_file(folder, spelling):
    other_location = location(spelling.format(folder=folder))

    assert file_identity(other_location) == file_identity(location("a"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_is_the_same_file(link):
    link("a", "link")

    assert first_repeated([Path("a"), Path("link")])
    assert first_repeated([Path("link"), Path("a")])


@pytest.mark.usefixtures("folder")
def test_a_path_through_a_linked_folder_is_the_same_file():
    os.symlink("d", "e")

    assert first_repeated([Path("d/c"), Path("e/c")])


@pytest.mark.usefixtures("folder")
def test_a_copy_is_another_file():
    Path("copy").write_bytes(Path("a").read_bytes())

    assert first_repeated([Path("a"), Path("copy")]) is None


@pytest.mark.usefixtures("folder")
def test_missing_files_are_identified_by_their_paths():
    assert first_repeated([Path("x"), Path("y")]) is None
    assert first_repeated([Path("x"), Path("d/../x")])


# URLs


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("s3://bucket/a", "s3://bucket/a/"),
        ("gs://bucket/a", "gcs://bucket/a"),
        ("abfs://box/a", "az://box/a"),
        ("https://host/a b", "https://host/a%20b"),
        ("https://host/a", "https://HOST:443/a"),
        ("http://host/a", "http://host:80/a"),
    ],
)
def test_urls_that_no_server_distinguishes_are_the_same(first, second):
    assert file_identity(location(first)) == file_identity(location(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("s3://bucket/a", "s3://bucket/A"),
        ("s3://bucket/a b", "s3://bucket/a%20b"),
        ("https://h/a", "https://h:444/a"),
    ],
)
def test_urls_that_servers_distinguish_are_different(first, second):
    assert file_identity(location(first)) != file_identity(location(second))


# Datasets


def write_pair(name, index=b"index"):
    """Write both files of a dataset in the current folder, and return its prefix."""
    Path(f"{name}.bin").write_bytes(b"tokens")
    Path(f"{name}.idx").write_bytes(index)
    return Path(name)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_linked_pair_is_the_same_dataset(link):
    prefix = write_pair("one")
    linked_prefix = Path("link")
    for ending in (".bin", ".idx"):
        link(f"one{ending}", f"link{ending}")

    repeated = first_repeated_dataset([prefix, linked_prefix])

    assert repeated == (prefix, linked_prefix)


@pytest.mark.usefixtures("folder")
def test_linked_tokens_with_a_copy_of_the_index_are_the_same_dataset():
    prefix = write_pair("one")
    os.link("one.bin", "two.bin")
    Path("two.idx").write_bytes(b"index")

    assert first_repeated_dataset([prefix, Path("two")])


@pytest.mark.usefixtures("folder")
def test_a_view_that_shares_the_tokens_is_another_dataset():
    prefix = write_pair("one")
    os.link("one.bin", "view.bin")
    Path("view.idx").write_bytes(b"other")

    assert first_repeated_dataset([prefix, Path("view")]) is None


@pytest.mark.usefixtures("folder")
def test_equal_datasets_in_different_files_are_different():
    prefixes = [write_pair("one"), write_pair("two")]

    assert first_repeated_dataset(prefixes) is None
