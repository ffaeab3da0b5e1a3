"""The files and folders below a root are listed alike in a local folder and in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoset_core.errors import StorageError
from nanoset_core.storage import listing as listing_module
from nanoset_core.storage import many_folders
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.many_folders import call_for_folders
from nanoset_core.storage.removing.removals import remove_file, withdraw_output
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore

FILES = {
    "datasets/web/current.json": b'{"digest": "0"}',
    "datasets/web/0/manifest.json": b"{}",
    "datasets/web/0/web.bin": b"tokens",
    "datasets/web-2/0/web.bin": b"",
    "plan.json": b"[]",
}


@pytest.fixture(params=["folder", "bucket"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> FileAccess:
    """A root with the files `FILES`: a local folder, and a bucket."""
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


# One listing of a root


def sizes_below(listing: FileAccess, folder: Path) -> list[tuple[str, int]]:
    """Return name and size of each file below a folder, as a listing reports them."""
    sizes: list[tuple[str, int]] = []
    for entry in listing.entries(folder):
        path = folder / entry.name
        if entry.is_folder:
            sizes += sizes_below(listing, path)
        else:
            assert entry.written_ns == listing.written_ns(path) > 0
            sizes.append((listing.name(path), entry.size))
    return sizes


def test_a_listing_has_every_file_once_with_its_size_and_time(access):
    listing = access.with_store_listing()
    expected_sizes = [(name, len(data)) for name, data in FILES.items()]

    sizes = sizes_below(listing, listing.folder)

    assert sorted(sizes) == sorted(expected_sizes)


def test_a_listing_has_the_files_and_folders_of_a_folder(access):
    listing = access.with_store_listing()
    datasets = listing.folder / "datasets"

    assert [entry.name for entry in listing.entries(datasets)] == ["web", "web-2"]
    assert listing.names(datasets / "web") == {"current.json", "0"}
    assert not listing.is_link(datasets)


def test_a_missing_folder_and_a_file_have_no_entries(access):
    listing = access.with_store_listing()

    assert listing.entries(listing.folder / "nothing") == []
    assert listing.entries(listing.folder / "plan.json") == []


def test_a_listing_reports_the_sizes_of_files_that_exist(access):
    listing = access.with_store_listing()
    names = ["0/web.bin", "0", "missing"]  # the second one is a folder

    assert listing.sizes(listing.folder / "datasets/web", names) == {"0/web.bin": 6}


def test_a_missing_file_was_never_written(access):
    listing = access.with_store_listing()

    assert listing.written_ns(listing.folder / "missing") == 0


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_a_listing_reads_json(access, name):
    listing = access.with_store_listing()

    assert listing.read_current(listing.folder / name) == FILES[name]
    assert listing.read_marker(listing.folder / name)[0] == FILES[name]


def test_json_that_was_not_listed_is_missing(access):
    listing = access.with_store_listing()

    with pytest.raises(FileNotFoundError):
        listing.read_current(listing.folder / "missing.json")


@pytest.mark.parametrize("is_listing", [False, True], ids=["without listing", "with listing"])
def test_files_of_one_name_in_neighbouring_folders_have_times(access, is_listing):
    if is_listing:
        access = access.with_store_listing()
    folder = access.folder / "datasets/web"

    written_ns_by_folder = access.written_in(folder, "manifest.json")

    assert written_ns_by_folder.keys() == {"0"}
    assert written_ns_by_folder["0"] > 0
    assert access.written_in(folder, "missing.json") == {}
    assert access.written_in(access.folder / "missing", "manifest.json") == {}


def test_a_listing_tells_links_from_folders_and_files(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nothing")

    entries = FileAccess(tmp_path).with_store_listing().entries(tmp_path)

    kinds = {entry.name: {"folder": entry.is_folder, "link": entry.is_link} for entry in entries}
    assert [entry.name for entry in entries] == ["dangling", "link", "real"]
    assert kinds == {
        "dangling": {"folder": False, "link": True},
        "link": {"folder": True, "link": True},
        "real": {"folder": True, "link": False},
    }


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    def refuse(_folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(listing_module.os, "scandir", refuse)

    with pytest.raises(StorageError, match="cannot be read") as caught:
        FileAccess(tmp_path).with_store_listing().entries(tmp_path)

    assert str(tmp_path) in str(caught.value)


# Copies of small files


@pytest.fixture
def copied_manifest(any_bucket: Store, tmp_path: Path) -> FileAccess:
    """A bucket with a manifest, of which this machine has a copy."""
    name = "datasets/web/0/manifest.json"
    any_bucket.put(name, b"{}")
    copy = tmp_path / "copies" / name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"{}")
    return FileAccess(tmp_path / "copies", any_bucket)


def test_a_copy_with_the_bytes_of_the_listed_file_is_not_read_again(copied_manifest, monkeypatch):
    """The listing of a bucket has the MD5 of each small object."""
    folder = copied_manifest.folder / "datasets/web/0"

    def refuse(store, *_arguments):
        raise AssertionError("the file need not be read")

    store_class = type(copied_manifest.store)
    for method in ("read", "read_stored", "read_range"):
        monkeypatch.setattr(store_class, method, refuse)

    assert copied_manifest.read_marker(folder / "manifest.json") == (b"{}", {"manifest.json": 2})


def test_a_copy_with_other_bytes_than_the_listed_file_is_replaced(copied_manifest, any_bucket):
    manifest = copied_manifest.folder / "datasets/web/0/manifest.json"
    any_bucket.put("datasets/web/0/manifest.json", b"[]")

    assert copied_manifest.read_marker(manifest) == (b"[]", {"manifest.json": 2})

    assert manifest.read_bytes() == b"[]"


# Removals


def test_an_output_that_is_in_use_is_not_withdrawn(access):
    folder = access.folder / "datasets/web/0"

    assert withdraw_output(access, folder, "manifest.json", lambda: True) is None

    assert access.with_store_listing().names(folder) == {"manifest.json", "web.bin"}


def test_a_withdrawn_output_is_not_seen_before_its_files_are_deleted(access):
    folder = access.folder / "datasets/web/0"

    remains = withdraw_output(access, folder, "manifest.json", lambda: False)

    assert remains is not None
    names_of_remains = {path.name for path in remains}
    assert all(name.startswith(".tmp-") for name in names_of_remains)
    assert not access.with_store_listing().entries(folder)
    assert access.with_store_listing().names(folder.parent) - names_of_remains == {"current.json"}


def test_a_removed_file_has_no_size(access):
    remove_file(access, access.folder / "plan.json")

    assert access.size(access.folder / "plan.json") is None


# Many folders with the same parent


@pytest.mark.parametrize(
    ("few_folders", "objects_per_request"),
    [
        pytest.param(0, 1000, id="many folders are listed at once"),
        pytest.param(100, 1000, id="few objects are listed at once"),
        pytest.param(100, 3, id="few folders are listed one by one"),
    ],
)
def test_a_function_is_called_for_each_of_many_folders(
    tmp_path, monkeypatch, few_folders, objects_per_request
):
    monkeypatch.setattr(many_folders, "_FEW_FOLDERS", few_folders)
    monkeypatch.setattr(many_folders, "_OBJECTS_PER_REQUEST", objects_per_request)
    monkeypatch.setattr(many_folders, "_FOLDERS_IN_MEMORY", 2)
    store = LocalStore(tmp_path / "store")
    for name in ("a/m", "a-b/m", "b/x", "c/deep/x", "c/m", "current.json", "e/m"):
        store.put(f"made/web/{name}", name.encode())
    access = FileAccess(tmp_path / "copies", store)

    def read_m(files: FileAccess, folder: Path) -> object:
        """Return the content of the file m, and the sizes of all files; None if m is missing."""
        try:
            data, sizes = files.read_marker(folder / "m")
        except FileNotFoundError:
            return None
        assert files.fetch(folder / "m").read_bytes() == data
        return data, sizes

    parent = access.folder / "made" / "web"
    names = ["c", "a", "missing", "b", "a", "current.json"]
    assert call_for_folders(access, read_m, parent, names) == [
        (b"c/m", {"m": 3, "deep/x": 8}),
        (b"a/m", {"m": 3}),
        None,
        None,
        (b"a/m", {"m": 3}),
        None,
    ]
    assert call_for_folders(access, read_m, parent, []) == []
