"""A folder and a bucket that hold the same are walked through alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoset_core.errors import StorageError
from nanoset_core.storage import listing as listing_module
from nanoset_core.storage import many_folders
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.many_folders import call_for_folders
from nanoset_core.storage.removals import remove_file, withdraw_output

FILES = {
    "datasets/web/current.json": b'{"digest": "0"}',
    "datasets/web/0/manifest.json": b"{}",
    "datasets/web/0/web.bin": b"tokens",
    "datasets/web-2/0/web.bin": b"",
    "plan.json": b"[]",
}


@pytest.fixture(params=["folder", "bucket"])
def access(request, tmp_path) -> FileAccess:
    if request.param == "bucket":
        place = request.getfixturevalue("place")
        for name, data in FILES.items():
            place.put(name, data)
        return FileAccess(tmp_path / "copies", place)
    for name, data in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return FileAccess(tmp_path)


def walked(listing: FileAccess, folder: Path) -> list[tuple[str, int]]:
    found = []
    for entry in listing.entries(folder):
        path = folder / entry.name
        if entry.is_folder:
            found += walked(listing, path)
        else:
            assert entry.written_ns == listing.written_ns(path) > 0
            found.append((listing.name(path), entry.size))
    return found


def test_every_file_is_met_once_with_its_size_and_time(access):
    listing = access.listing()
    root = listing.folder
    assert sorted(walked(listing, root)) == sorted(
        (name, len(data)) for name, data in FILES.items()
    )
    assert [entry.name for entry in listing.entries(root / "datasets")] == ["web", "web-2"]
    assert listing.names(root / "datasets/web") == {"current.json", "0"}
    assert listing.entries(root / "nothing") == listing.entries(root / "plan.json") == []
    sizes = listing.sizes(root / "datasets/web", ["0/web.bin", "0", "gone"])
    assert sizes == {"0/web.bin": 6}
    assert listing.written_ns(root / "gone") == 0
    assert not listing.is_link(root / "datasets")


def test_json_is_read_and_asked_for_no_more(access):
    listing = access.listing()
    for name in (name for name in FILES if name.endswith(".json")):
        assert listing.read_current(listing.folder / name) == FILES[name]
        assert listing.read_marker(listing.folder / name)[0] == FILES[name]
    with pytest.raises(FileNotFoundError):
        listing.read_current(listing.folder / "gone.json")


def test_links_are_told_from_what_they_lead_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nothing")
    found = FileAccess(tmp_path).listing().entries(tmp_path)
    assert [(entry.name, entry.is_folder, entry.is_link) for entry in found] == [
        ("dangling", False, True),
        ("link", True, True),
        ("real", True, False),
    ]


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def forbidden(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(listing_module.os, "scandir", forbidden)
    with pytest.raises(StorageError, match="cannot be read") as caught:
        FileAccess(tmp_path).listing().entries(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_what_is_wanted_by_now_is_not_withdrawn(access):
    folder = access.folder / "datasets/web/0"
    assert withdraw_output(access, folder, "manifest.json", lambda: True) is None
    assert access.listing().names(folder) == {"manifest.json", "web.bin"}
    rest = withdraw_output(access, folder, "manifest.json", lambda: False)
    assert rest is not None
    assert all(path.name.startswith(".tmp-") for path in rest)
    assert not access.listing().entries(folder)
    assert access.listing().names(folder.parent) - {path.name for path in rest} == {"current.json"}
    remove_file(access, access.folder / "plan.json")
    assert access.size(access.folder / "plan.json") is None


@pytest.mark.parametrize(("alone", "told"), [(0, 1000), (100, 1000), (100, 3)])
def test_many_folders_of_one_parent(tmp_path, monkeypatch, alone, told):
    monkeypatch.setattr(many_folders, "_FEW_FOLDERS", alone)
    monkeypatch.setattr(many_folders, "_OBJECTS_PER_REQUEST", told)
    monkeypatch.setattr(many_folders, "_FOLDERS_IN_MEMORY", 2)
    store = LocalStore(tmp_path / "store")
    for name in ("a/m", "a-b/m", "b/x", "c/deep/x", "c/m", "current.json", "e/m"):
        store.put(f"made/web/{name}", name.encode())
    access = FileAccess(tmp_path / "copies", store)

    def look(found, folder):
        try:
            data, beside = found.read_marker(folder / "m")
        except FileNotFoundError:
            return None
        assert found.fetch(folder / "m").read_bytes() == data
        return data, beside

    folder = tmp_path / "copies" / "made" / "web"
    assert call_for_folders(access, look, folder, ["c", "a", "gone", "b", "a", "current.json"]) == [
        (b"c/m", {"m": 3, "deep/x": 8}),
        (b"a/m", {"m": 3}),
        None,
        None,
        (b"a/m", {"m": 3}),
        None,
    ]
    assert call_for_folders(access, look, folder, []) == []


def test_times_of_what_lies_in_the_folders_of_one(access):
    """As they are on this machine, in a store, and in what was listed of it."""
    folder = access.folder / "datasets/web"
    for found in (access, access.listing()):
        assert found.written_in(folder, "manifest.json").keys() == {"0"}
        assert found.written_in(folder, "manifest.json")["0"] > 0
        assert (
            found.written_in(folder, "gone.json")
            == found.written_in(access.folder / "no", "manifest.json")
            == {}
        )
