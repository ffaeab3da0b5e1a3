"""A version in a bucket that was found current is not looked up again for some seconds.

`Seen` remembers such versions, which spares the bucket many requests. The tests count requests.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nanoset_core.outputs import root as root_module
from nanoset_core.outputs.manifest import MANIFEST, Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot, Seen
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.stores.local import LocalStore

STAGE = "datasets"
NAME = "web"
REQUESTS_FOR_VERSION = 3
"""Requests that look up a version: for its pointer, its manifest and its files."""


@dataclass(frozen=True, slots=True)
class CountingStore(LocalStore):
    """A folder in place of a bucket, which notes the name of each object that is requested."""

    requests: tuple[list[str], ...] = ([],)

    def read_stored(self, name):
        self.requests[0].append(name)
        return LocalStore.read_stored(self, name)

    def list(self, folder=""):
        self.requests[0].append(f"{folder}/")
        return LocalStore.list(self, folder)

    def requests_of(self, action: Callable[[], Any]) -> list[str]:
        """Return what is requested while a function runs."""
        self.requests[0].clear()
        action()
        return list(self.requests[0])


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    """An empty bucket."""
    (tmp_path / "bucket").mkdir()
    return CountingStore(tmp_path / "bucket", requests=([],))


@pytest.fixture
def root(store: CountingStore, tmp_path: Path) -> OutputRoot:
    """A root in the bucket, which remembers what was found current."""
    return OutputRoot(FileAccess(tmp_path / "copies", store), seen=Seen())


def build(root: OutputRoot, seed: int = 1, name: str = NAME) -> Manifest:
    """Build a version of an output, and make it the current one.

    Args:
        root: Receives the output.
        seed: An option of the recipe: versions with different seeds are different.
        name: Name of the output.
    """

    def write(folder: Path) -> Written:
        (folder / "tokens.bin").write_bytes(b"tokens")
        return Written({"seed": seed})

    manifest = root.commit(Recipe(STAGE, name, 1, {}, {"seed": seed}), write)
    root.make_current(manifest)
    return manifest


def folder_in_store(store: CountingStore, manifest: Manifest) -> Path:
    """Return the folder of a version in the bucket."""
    return store.folder / STAGE / manifest.name / manifest.digest


# A version that was looked up, or built, is remembered


def test_a_version_is_looked_up_once(root, store):
    manifest = build(root)
    root.forget(manifest.folder.parent)

    first_requests = store.requests_of(lambda: root.require(STAGE, NAME, remedy=""))
    later_requests = store.requests_of(lambda: root.current(STAGE, NAME))

    assert len(first_requests) == REQUESTS_FOR_VERSION
    assert later_requests == []
    assert root.current(STAGE, NAME) == manifest


def test_a_remembered_version_is_returned_without_a_problem(root, store):
    manifest = build(root)

    requests = store.requests_of(lambda: root.current_version(STAGE, NAME))

    assert requests == []
    version = root.current_version(STAGE, NAME)
    assert version.manifest == manifest
    assert version.problem is None


def test_a_version_that_was_just_built_is_remembered(root, store):
    manifest = build(root)

    assert store.requests_of(lambda: root.current(STAGE, NAME)) == []
    assert root.current(STAGE, NAME) == manifest
    assert store.requests_of(manifest.damage) == []
    assert manifest.damage() is None


def test_a_version_that_was_just_built_has_the_manifest_that_is_stored(root):
    manifest = build(root)

    assert manifest.stored == root.find(Recipe(STAGE, NAME, 1, {}, {"seed": 1})).stored


def test_building_a_remembered_version_again_only_looks_up_the_pointer(root, store):
    manifest = build(root)

    requests = store.requests_of(lambda: build(root))

    assert len(requests) == 1
    assert build(root) == manifest


def test_building_another_version_only_looks_for_that_version(root, store):
    build(root, seed=1)

    requests = store.requests_of(lambda: build(root, seed=2))

    assert len(requests) == 1


def commit_after_lookup(root: OutputRoot, folder: Path) -> Manifest:
    """Look for a version in a listing of a folder, and make it later if it does not exist."""
    recipe = Recipe(STAGE, NAME, 1, {}, {"seed": 1})
    existing = root.with_listing(folder).existing_version(recipe)

    def write(folder: Path) -> Written:
        (folder / "tokens.bin").write_bytes(b"tokens")
        return Written({"seed": 1})

    return root.commit(recipe, write, existing=existing)


@pytest.mark.parametrize("exists", [False, True])
def test_a_version_that_the_caller_has_looked_for_is_not_looked_for_again(root, store, exists):
    folder = root.folder / STAGE
    if exists:
        build(root)
        root.forget(folder / NAME)

    requests = store.requests_of(lambda: commit_after_lookup(root, folder))

    listed_folders = [name for name in requests if name.endswith("/")]
    assert listed_folders == [f"{STAGE}/"]
    assert commit_after_lookup(root, folder).access.listing is None
    assert root.find(Recipe(STAGE, NAME, 1, {}, {"seed": 1})) is not None


# What must be looked up nevertheless


def test_a_version_is_no_longer_current_as_soon_as_it_was_unset(root):
    manifest = build(root)

    root.unset_current(manifest.folder.parent)

    assert root.current(STAGE, NAME) is None


def test_a_version_that_the_caller_has_looked_for_long_ago_is_looked_for_again(
    root, store, monkeypatch
):
    """Another machine may have stored it meanwhile, or deleted it."""
    monkeypatch.setattr(root_module, "SEEN_SECONDS", -1)

    requests = store.requests_of(lambda: commit_after_lookup(root, root.folder / STAGE))

    # By the caller, before the version is made, and before it is uploaded.
    assert len(requests) == 3


def test_a_version_that_took_long_to_build_is_looked_for_before_it_is_uploaded(
    root, store, monkeypatch
):
    """Another machine may have uploaded it meanwhile."""
    monkeypatch.setattr(root_module, "SEEN_SECONDS", -1)

    requests = store.requests_of(lambda: build(root))

    assert len(requests) == 2


def damage_manifest(folder: Path) -> None:
    """Damage the manifest of a version."""
    (folder / MANIFEST).write_bytes(b"{")


def delete_tokens(folder: Path) -> None:
    """Delete the tokens of a version."""
    (folder / "tokens.bin").unlink()


@pytest.mark.parametrize("damage", [damage_manifest, delete_tokens])
def test_a_damaged_version_is_replaced(root, store, damage):
    damaged = build(root)
    root.forget(damaged.folder.parent)
    damage(folder_in_store(store, damaged))

    requests = store.requests_of(lambda: build(root))

    assert len(requests) >= REQUESTS_FOR_VERSION
    root.forget(damaged.folder.parent)
    assert root.current_even_if_damaged(STAGE, NAME) == damaged
    assert root.current_even_if_damaged(STAGE, NAME).damage() is None


def test_a_version_that_does_not_exist_is_looked_for_each_time(root, store):
    for _ in range(2):
        assert len(store.requests_of(lambda: root.current_even_if_damaged(STAGE, NAME))) == 1


def test_a_root_without_memory_looks_up_a_version_each_time(root, store):
    build(root)
    forgetful_root = replace(root, seen=None)

    for _ in range(2):
        requests = store.requests_of(lambda: forgetful_root.current_even_if_damaged(STAGE, NAME))
        assert len(requests) == REQUESTS_FOR_VERSION


def test_a_version_that_was_looked_up_some_seconds_ago_is_looked_up_again(root, store, monkeypatch):
    build(root)
    monkeypatch.setattr(root_module, "SEEN_SECONDS", 0.0)

    for _ in range(2):
        requests = store.requests_of(lambda: root.current_even_if_damaged(STAGE, NAME))
        assert len(requests) == REQUESTS_FOR_VERSION


def test_another_process_looks_up_versions_itself(root):
    build(root)
    assert root.seen

    unpickled = pickle.loads(pickle.dumps(root.seen))

    assert not unpickled


def test_a_version_that_is_rebuilt_is_looked_up_again(root, store):
    manifest = build(root)
    delete_tokens(folder_in_store(store, manifest))
    root.forget(root.folder / STAGE / NAME)
    assert root.current_even_if_damaged(STAGE, NAME).damage() == "tokens.bin is missing"

    build(replace(root, rebuild=True))

    assert root.current_even_if_damaged(STAGE, NAME).damage() is None


def test_a_version_whose_local_copies_were_deleted_is_looked_up_again(root):
    manifest = build(root)
    assert root.current_even_if_damaged(STAGE, NAME) == manifest

    shutil.rmtree(root.folder)
    assert root.current_version(STAGE, NAME).manifest == manifest
    assert root.current_even_if_damaged(STAGE, NAME) == manifest

    shutil.rmtree(root.folder)
    required = root.require(STAGE, NAME, remedy="")
    assert required.path("tokens.bin").read_bytes() == b"tokens"


def test_versions_in_a_local_root_are_always_looked_up(tmp_path):
    root = OutputRoot(FileAccess(tmp_path), seen=Seen())
    manifest = build(root)
    assert root.current_even_if_damaged(STAGE, NAME) == manifest

    delete_tokens(manifest.folder)

    assert root.current_even_if_damaged(STAGE, NAME).damage() == "tokens.bin is missing"


# Several versions, and several outputs


def test_versions_are_ordered_by_the_clock_of_the_bucket(root, store):
    manifests = [build(root, seed) for seed in range(3)]
    for second, manifest in enumerate(manifests):
        os.utime(folder_in_store(store, manifest) / MANIFEST, (second, second))

    oldest, middle, newest = manifests
    assert root.previous(newest) == middle
    assert root.previous(middle) == oldest
    assert root.previous(oldest) is None
    digests = [manifest.digest for manifest in root.versions(STAGE, NAME)]
    assert digests == [newest.digest, middle.digest, oldest.digest]


OUTPUTS = ["web", "books", "missing", "incomplete", "damaged pointer"]


@pytest.fixture(params=[False, True], ids=["without memory", "with memory"])
def root_with_outputs(request, root: OutputRoot, store: CountingStore) -> OutputRoot:
    """A root with OUTPUTS: two complete ones, one that was never built, and two damaged ones."""
    has_memory = request.param
    if not has_memory:
        root = replace(root, seen=None)
    for name in ("web", "books", "incomplete", "damaged pointer"):
        build(root, name=name)
    delete_tokens(folder_in_store(store, root.current_even_if_damaged(STAGE, "incomplete")))
    (store.folder / STAGE / "damaged pointer" / "current.json").write_text("{")
    if root.seen is not None:
        root.forget(root.folder / STAGE / "incomplete")
        root.forget(root.folder / STAGE / "damaged pointer")
    return root


def test_many_outputs_are_found_together_as_one_by_one(root_with_outputs):
    root = root_with_outputs
    forgetful_root = replace(root, seen=None)
    one_by_one = [forgetful_root.current_version(STAGE, name) for name in OUTPUTS]
    assert [version.problem is None for version in one_by_one] == [True, True, False, False, False]

    together = root.current_versions(STAGE, OUTPUTS)

    assert together == one_by_one
    for version in together:
        assert version.manifest is None or version.manifest.access == root.access


def test_many_outputs_are_looked_up_by_listing_their_stage(root_with_outputs, store):
    requests = store.requests_of(lambda: root_with_outputs.current_versions(STAGE, OUTPUTS))

    assert requests[0] == f"{STAGE}/"


def test_outputs_that_were_found_together_are_remembered(root, store):
    for name in ("web", "books"):
        root.forget(build(root, name=name).folder.parent)
    _web, books = root.current_versions(STAGE, ["web", "books"])

    assert store.requests_of(lambda: root.current_even_if_damaged(STAGE, "books")) == []
    assert root.current_even_if_damaged(STAGE, "books") == books.manifest


# Versions that are not the one in use


def commit(root: OutputRoot, seed: int = 1) -> Manifest:
    """Make a version of an output, without making it the one in use."""

    def write(folder: Path) -> Written:
        (folder / "tokens.bin").write_bytes(b"tokens")
        return Written({"seed": seed})

    return root.commit(Recipe(STAGE, NAME, 1, {}, {"seed": seed}), write)


def find_versions(root: OutputRoot, digests: list[str]) -> list[Manifest | None]:
    """Return the complete versions with these digests; None for others."""
    return root.each_version(OutputRoot.find_at, STAGE, NAME, digests)


def test_a_version_that_was_just_made_is_remembered_before_it_is_in_use(root, store):
    manifest = commit(root)

    requests = store.requests_of(lambda: root.find_at(manifest.folder))

    assert requests == []
    assert root.find_at(manifest.folder) == manifest


def test_versions_that_were_just_made_are_found_together_without_requests(root, store):
    manifests = [commit(root, seed) for seed in range(3)]
    digests = [manifest.digest for manifest in manifests]

    requests = store.requests_of(lambda: find_versions(root, digests))

    assert requests == []
    assert find_versions(root, digests) == manifests


def test_if_one_of_many_versions_is_not_remembered_all_are_looked_up(root, store):
    digests = [commit(root, seed).digest for seed in range(3)]
    removed = store.folder / STAGE / NAME / ("0" * 20)

    found = find_versions(root, [*digests, removed.name])

    assert [version and version.digest for version in found] == [*digests, None]


def test_a_version_that_a_worker_has_made_is_remembered(root, store, tmp_path):
    """The worker has another memory, and its copies are in the same folder."""
    worker_root = replace(root, seen=Seen())
    manifest = commit(worker_root)

    root.note_made(manifest)

    assert store.requests_of(lambda: root.find_at(manifest.folder)) == []


def test_a_version_made_with_copies_in_another_folder_is_looked_up(root, store, tmp_path):
    """A worker of a cluster has its copies on another disk."""
    access = FileAccess(tmp_path / "copies of the worker", store)
    manifest = commit(OutputRoot(access, seen=Seen()))

    root.note_made(manifest)

    found = root.find_at(root.folder / STAGE / NAME / manifest.digest)
    assert found is not None
    assert found.path("tokens.bin").is_relative_to(root.folder)


def test_a_version_whose_manifest_was_deleted_is_missing_at_once(root):
    manifest = commit(root)

    root.invalidate(Recipe(STAGE, NAME, 1, {}, {"seed": 1}))

    assert root.find_at(manifest.folder) is None


def test_only_the_latest_versions_are_remembered(root, store, monkeypatch):
    monkeypatch.setattr(root_module, "_MOST_SEEN", 2)
    first, second, third = (commit(root, seed) for seed in range(3))

    assert store.requests_of(lambda: root.find_at(second.folder)) == []
    assert store.requests_of(lambda: root.find_at(third.folder)) == []
    assert store.requests_of(lambda: root.find_at(first.folder)) != []
