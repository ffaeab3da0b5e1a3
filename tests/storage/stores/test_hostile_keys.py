"""Keys of objects that are not paths of files: those that lead out of a folder, or that would send
control characters to a terminal.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoset_core.errors import InputError
from nanoset_core.project.gc.bucket_copies import find_copies
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.storage.store import Stored
from nanoset_core.storage.stores.s3.store import S3Store
from nanoset_core.text.files.contents import Contents, contents_of
from nanoset_core.text.files.survey import list_corpora

DOCUMENT = b'{"text": "a"}\n'


@pytest.fixture
def raw(place: S3Store) -> RemotePath:
    """A folder of raw text in the bucket, with the corpus web of one file, fine.jsonl."""
    place.put("raw/web/fine.jsonl", DOCUMENT)
    return RemotePath(place, "raw")


@pytest.fixture
def web(place: S3Store, raw: RemotePath) -> RemotePath:
    """The folder of the corpus web."""
    return RemotePath(place, "raw/web")


def texts_of(contents: Contents) -> list[str]:
    """Return the files of text, in natural order."""
    return [file.path for file in contents.ordered]


def list_another_object(monkeypatch: pytest.MonkeyPatch, key: str, size: int) -> None:
    """Let the bucket list an object with a key that not every server accepts."""
    original_list = S3Store.list

    def list_objects(store: S3Store, folder: str = ""):
        yield from original_list(store, folder)
        yield Stored(key, size, '"an-etag"', 10**18)

    monkeypatch.setattr(S3Store, "list", list_objects)


def list_another_folder(monkeypatch: pytest.MonkeyPatch, parent: str, name: str) -> None:
    """Let the bucket list a folder with a name that not every server accepts."""
    original_level = S3Store.level

    def level(store: S3Store, path: str = ""):
        folders, files = original_level(store, path)
        if path == parent:
            folders = [*folders, name]
        return folders, files

    monkeypatch.setattr(S3Store, "level", level)


# Raw text


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("a/../../../x.jsonl", id="above the folder"),
        pytest.param("a//x.jsonl", id="empty part"),
        pytest.param("./x.jsonl", id="dot"),
        pytest.param("a\nb.jsonl", id="line break"),
        pytest.param("\x1b[2Jx.jsonl", id="escape sequence"),
        pytest.param("x" * 300 + ".jsonl", id="longer than a file name"),
    ],
)
def test_a_file_of_text_with_a_hostile_key_is_refused(web, monkeypatch, key):
    assert texts_of(contents_of(web)) == ["fine.jsonl"]
    list_another_object(monkeypatch, f"raw/web/{key}", size=len(DOCUMENT))

    with pytest.raises(InputError, match="no path of a file") as caught:
        contents_of(web)

    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("names_only", [False, True], ids=["contents", "names only"])
@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_corpus_with_a_hostile_name_is_reported(raw, monkeypatch, names_only, name):
    """Before, raw//x.jsonl, raw/./x.jsonl and raw/../x.jsonl were silently not read."""
    list_another_folder(monkeypatch, parent="raw", name=name)

    text = list_corpora(raw, names_only=names_only)

    assert list(text.corpora) == ["web"]
    assert list(text.faults) == [f"{name}/"]
    assert "no path of a file" in str(text.faults[f"{name}/"])


def test_an_empty_object_that_stands_for_a_folder_is_ignored(web, monkeypatch):
    """Some tools create an object `x/` for each folder `x`."""
    list_another_object(monkeypatch, "raw/web/x.jsonl/", size=0)

    assert texts_of(contents_of(web)) == ["fine.jsonl"]


def test_an_object_with_the_key_of_a_folder_and_content_is_refused(web, monkeypatch):
    list_another_object(monkeypatch, "raw/web/y.jsonl/", size=7)

    with pytest.raises(InputError, match="no path of a file"):
        contents_of(web)


def test_a_folder_that_is_named_like_a_file_and_has_no_text_is_reported(place, web):
    place.put("raw/web/b.jsonl/notes.txt", DOCUMENT)
    place.put("raw/web/c.jsonl/part-0.jsonl", DOCUMENT)

    notices = contents_of(web).notices()

    [text] = [notice.text for notice in notices if notice.kind == "misnamed"]
    assert text.endswith(": b.jsonl/")


def test_objects_of_a_corpus_that_are_not_read_are_reported(place, web):
    place.put("raw/web/b.doc", b"{}\n")
    place.put("raw/web/empty.json.gz", b"")

    notices = contents_of(web).notices()

    texts = [notice.text for notice in notices]
    assert texts == ["1 file is not read: 1 .doc (b.doc)", "1 file is empty: empty.json.gz"]


def test_entries_of_the_raw_folder_that_are_no_corpora_are_reported(place, raw):
    place.put("raw/c4/a.json.xz", b"{}\n")
    place.put("raw/notes.txt", b"{}\n")

    text = list_corpora(raw, names_only=True)

    assert sorted(text.unread_entries) == ["c4", "notes.txt"]


# Outputs


@pytest.fixture
def file_outside(place: S3Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file of this machine to which the key of an object leads."""
    path = tmp_path / "elsewhere" / "a-file"
    path.parent.mkdir()
    path.write_bytes(b"precious")
    list_another_object(monkeypatch, f"{'../' * 40}{path.relative_to('/')}", size=8)
    return path


def test_an_object_outside_of_the_root_is_not_listed(place, tmp_path, file_outside):
    listed_access = FileAccess(tmp_path / "mirror", place).with_store_listing()

    assert not listed_access.entries(listed_access.folder)
    assert not listed_access.listing.contents


def test_a_file_outside_of_the_copies_is_not_removed_with_them(remote_project, file_outside):
    project = Project.open(remote_project())
    project.outputs.folder.mkdir(parents=True)

    assert not find_copies(project, remove=True)

    assert file_outside.read_bytes() == b"precious"


def test_an_object_with_the_name_of_a_folder_does_not_hide_the_folder(place, tmp_path):
    for key in ("datasets", "datasets-of-others", "datasets/web", "datasets/web/current.json"):
        place.put(key, b"{}")

    listed_access = FileAccess(tmp_path / "mirror", place).with_store_listing()

    entries = listed_access.entries(listed_access.folder)
    assert [entry.name for entry in entries if entry.is_folder] == ["datasets"]
    assert listed_access.names(listed_access.folder / "datasets") == {"web"}
    assert listed_access.size(listed_access.folder / "datasets/web") is None
    assert listed_access.read_current(listed_access.folder / "datasets/web/current.json") == b"{}"
