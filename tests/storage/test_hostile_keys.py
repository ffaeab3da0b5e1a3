"""Keys that would lead out of a folder, or steer a terminal."""

from __future__ import annotations

import pytest

from nanoset_core.errors import InputError
from nanoset_core.project.bucket_copies import find_copies
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import RemoteFolder
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.store import Stored
from nanoset_core.text.contents import contents_of
from nanoset_core.text.survey import list_corpora

KEYS = [
    "a/../../../x.jsonl",
    "a//x.jsonl",
    "./x.jsonl",
    "a\nb.jsonl",
    "\x1b[2Jx.jsonl",
    "x" * 300 + ".jsonl",
]


@pytest.mark.parametrize("key", KEYS)
def test_raw_text_under_such_a_key_is_refused(place, monkeypatch, key):
    place.put("raw/web/fine.jsonl", b'{"text": "a"}\n')
    folder = RemoteFolder(place, "raw/web")
    assert [file.path for file in contents_of(folder).ordered] == ["fine.jsonl"]
    _add(monkeypatch, f"raw/web/{key}")
    with pytest.raises(InputError, match="no path of a file") as caught:
        contents_of(folder)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("names_only", [False, True])
@pytest.mark.parametrize(("folder", "named"), [("", "/"), (".", "./"), ("..", "../")])
def test_a_key_beside_the_corpora_that_no_folder_could_hold_is_named(
    place, monkeypatch, names_only, folder, named
):
    """raw//x.jsonl, raw/./x.jsonl and raw/../x.jsonl were not read, without a word."""
    place.put("raw/web/fine.jsonl", b'{"text": "a"}\n')
    level = S3Store.level

    def more(bucket: S3Store, path: str = ""):
        folders, files = level(bucket, path)
        return ([*folders, folder], files) if path == "raw" else (folders, files)

    monkeypatch.setattr(S3Store, "level", more)
    text = list_corpora(RemoteFolder(place, "raw"), names_only=names_only)
    assert list(text.corpora) == ["web"]
    assert list(text.faults) == [named]
    assert "no path of a file" in str(text.faults[named])


def test_a_mark_of_a_folder_that_holds_bytes_is_named(place, monkeypatch):
    place.put("raw/web/fine.jsonl", b'{"text": "a"}\n')
    _add(monkeypatch, "raw/web/x.jsonl/", size=0)
    assert [file.path for file in contents_of(RemoteFolder(place, "raw/web")).ordered] == [
        "fine.jsonl"
    ]
    _add(monkeypatch, "raw/web/y.jsonl/", size=7)
    with pytest.raises(InputError, match="no path of a file"):
        contents_of(RemoteFolder(place, "raw/web"))


def test_a_folder_that_is_named_like_a_file_is_named(place):
    for key in ("a.jsonl", "b.jsonl/notes.txt", "c.jsonl/part-0.jsonl"):
        place.put(f"raw/web/{key}", b'{"text": "a"}\n')
    contents = contents_of(RemoteFolder(place, "raw/web"))
    [said] = [notice.text for notice in contents.notices() if notice.kind == "misnamed"]
    assert said.endswith(": b.jsonl/")


def test_what_lies_in_a_bucket_beside_text_is_told(place):
    for key in ("web/a.jsonl", "web/b.txt", "c4/a.json.bz2", "notes.txt"):
        place.put(f"raw/{key}", b"{}\n")
    place.put("raw/web/empty.json.gz", b"")
    contents = contents_of(RemoteFolder(place, "raw/web"))
    texts = [notice.text for notice in contents.notices()]
    assert texts == ["1 file is not read: 1 .txt (b.txt)", "1 file is empty: empty.json.gz"]
    assert sorted(list_corpora(RemoteFolder(place, "raw"), names_only=True).unread_entries) == [
        "c4",
        "notes.txt",
    ]


def test_a_collection_touches_nothing_outside(remote_project, place, monkeypatch, tmp_path):
    victim = tmp_path / "victim" / "a-file"
    victim.parent.mkdir()
    victim.write_bytes(b"precious")
    _add(monkeypatch, f"{'../' * 40}{victim.relative_to('/')}", size=8)
    listing = FileAccess(tmp_path / "mirror", place).listing()
    assert not listing.entries(listing.folder)
    assert not listing.snapshot.contents
    project = Project.open(remote_project())
    project.outputs.folder.mkdir(parents=True)
    assert not find_copies(project, remove=True)
    assert victim.read_bytes() == b"precious"


def test_a_key_that_is_also_a_folder_hides_nothing_from_a_collection(place, tmp_path):
    for key in ("datasets", "datasets-of-others", "datasets/web", "datasets/web/current.json"):
        place.put(key, b"{}")
    listing = FileAccess(tmp_path / "mirror", place).listing()
    assert [entry.name for entry in listing.entries(listing.folder) if entry.is_folder] == [
        "datasets"
    ]
    assert listing.names(listing.folder / "datasets") == {"web"}
    assert listing.size(listing.folder / "datasets/web") is None
    assert listing.read_current(listing.folder / "datasets/web/current.json") == b"{}"


def _add(monkeypatch: pytest.MonkeyPatch, key: str, size: int | None = None) -> None:
    """Let the bucket list one object more; servers differ in which of such keys they can be made to
    take.
    """
    listed = S3Store.list

    def more(bucket: S3Store, folder: str = ""):
        found = list(listed(bucket, folder))
        yield from found
        yield Stored(key, found[0].size if size is None else size, '"an-etag"', 10**18)

    monkeypatch.setattr(S3Store, "list", more)
