"""What callers ask about the files of outputs, on a disk and in a store with limited copies."""

from pathlib import Path

import pytest

from nanoset_core.outputs.manifest import Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.stores.local import LocalStore
from nanoset_core.storage.stores.memory import MemoryStore


@pytest.fixture
def on_disk(tmp_path: Path) -> FileAccess:
    """Access to a local folder."""
    return FileAccess(tmp_path)


@pytest.fixture
def in_store(tmp_path: Path, memory_place: MemoryStore) -> FileAccess:
    """Access to a store, with 400 bytes of disk space for copies."""
    return FileAccess(tmp_path, memory_place, capacity=400)


def test_a_quarter_of_limited_space_is_for_what_is_kept(on_disk, in_store):
    assert in_store.has_room_to_keep(100)
    assert not in_store.has_room_to_keep(101)
    assert on_disk.has_room_to_keep(1 << 60)


def test_processes_divide_limited_space_but_none_gets_nothing(on_disk, in_store):
    assert in_store.divided(4).capacity == 100
    assert in_store.divided(1000).capacity == 1
    assert on_disk.divided(4) == on_disk


def test_a_file_of_a_store_is_here_once_it_has_a_copy(on_disk, in_store):
    path = in_store.folder / "a.bin"
    assert not in_store.is_here(path)
    assert on_disk.is_here(path), "a file on a disk needs no copy, and a missing one no download"

    in_store.store.put("a.bin", b"tokens")
    in_store.fetch(path)

    assert in_store.is_here(path)


def test_only_copies_of_a_store_may_be_lost(on_disk, in_store):
    copy = str(in_store.folder / "a.bin")
    assert in_store.may_have_lost(copy)
    assert in_store.may_have_lost(in_store.store.url("a.bin"))
    assert not in_store.may_have_lost("/elsewhere/a.bin")
    assert not on_disk.may_have_lost(copy)


def test_a_large_file_is_written_to_the_folder_that_becomes_the_output(on_disk, tmp_path):
    recipe = Recipe("datasets", "web", 1, {}, {})
    draft = tmp_path / "draft"

    store, name = OutputRoot(on_disk).place_of_large_file(recipe, draft, "web.bin")

    assert (store, name) == (LocalStore(draft), "web.bin")


def test_a_large_file_is_written_to_its_place_in_a_store_whose_old_version_is_withdrawn(in_store):
    outputs = OutputRoot(in_store)
    recipe = Recipe("datasets", "web", 1, {}, {})
    folder = in_store.name(outputs.place(recipe))
    in_store.store.put(f"{folder}/manifest.json", b"{}")

    store, name = outputs.place_of_large_file(recipe, in_store.folder / "draft", "web.bin")

    assert (store, name) == (in_store.store, f"{folder}/web.bin")
    assert in_store.store.stat(f"{folder}/manifest.json") is None
