"""A file or dataset that is named twice is recognised, by whatever path, link or URL."""

import os
from pathlib import Path

import pytest

from nanoset_core.formats.indexed.identity import first_repeated_dataset
from nanoset_core.storage.identity import file_identity, first_repeated
from nanoset_core.storage.location import location


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with files a and b, and d/c; it is the current one."""
    (tmp_path / "d").mkdir()
    for name in ("a", "b", "d/c"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_different_files_are_different(folder):
    assert first_repeated([Path("a"), Path("b"), Path("d/c")]) is None


def test_the_same_path_is_the_same_file(folder):
    path = Path("a")
    assert first_repeated([path, path]) == (path, path)


@pytest.mark.parametrize(
    "spelling", ["./a", "d/../a", "{folder}/a", "{folder}/./d//../a", "file://{folder}/a"]
)
def test_another_spelling_of_a_path_is_the_same_file(folder, spelling):
    other = location(spelling.format(folder=folder))
    assert file_identity(location("a")) == file_identity(other)


def test_links_lead_to_the_same_file(folder):
    os.symlink("a", "symbolic")
    os.link("a", "hard")
    os.symlink("d", "e")
    assert first_repeated([Path("a"), Path("symbolic")])
    assert first_repeated([Path("hard"), Path("a")])
    assert first_repeated([Path("d/c"), Path("e/c")])


def test_a_copy_is_another_file(folder):
    Path("copy").write_bytes(Path("a").read_bytes())
    assert first_repeated([Path("a"), Path("copy")]) is None


def test_missing_files_are_known_by_their_paths(folder):
    assert first_repeated([Path("x"), Path("y")]) is None
    assert first_repeated([Path("x"), Path("d/../x")])


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


def pair(name, index=b"index"):
    Path(f"{name}.bin").write_bytes(b"tokens")
    Path(f"{name}.idx").write_bytes(index)
    return Path(name)


def test_a_linked_pair_is_the_same_dataset(folder):
    pair("one")
    for link, name in ((os.symlink, "symbolic"), (os.link, "hard")):
        for ending in (".bin", ".idx"):
            link(f"one{ending}", f"{name}{ending}")
        assert first_repeated_dataset([Path("one"), Path(name)]) == (Path("one"), Path(name))


def test_a_linked_bin_with_a_copy_of_the_index_is_the_same_dataset(folder):
    pair("one")
    os.link("one.bin", "two.bin")
    Path("two.idx").write_bytes(b"index")
    assert first_repeated_dataset([Path("one"), Path("two")])


def test_views_share_their_tokens_and_are_different_datasets(folder):
    pair("one")
    os.link("one.bin", "view.bin")
    Path("view.idx").write_bytes(b"other")
    assert first_repeated_dataset([Path("one"), Path("view")]) is None


def test_datasets_of_equal_documents_are_different(folder):
    assert first_repeated_dataset([pair("one"), pair("two")]) is None
