"""What was found current a moment ago is not asked for again, until somebody here changes it or it
is too old.
"""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import dataclass, replace

import pytest

from nanoset_core.outputs import root as root_module
from nanoset_core.outputs.manifest import MANIFEST, Recipe, Written
from nanoset_core.outputs.root import OutputRoot, Seen
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.local import LocalStore

STAGE, NAME = "datasets", "web"


@dataclass(frozen=True, slots=True)
class CountingStore(LocalStore):
    """A store that tells what it was asked for."""

    asked: tuple[list[str], ...] = ([],)

    def read_stored(self, name):
        self.asked[0].append(name)
        return LocalStore.read_stored(self, name)

    def list(self, folder=""):
        self.asked[0].append(f"{folder}/")
        return LocalStore.list(self, folder)


@pytest.fixture
def store(tmp_path):
    (tmp_path / "bucket").mkdir()
    return CountingStore(tmp_path / "bucket", asked=([],))


@pytest.fixture
def root(store, tmp_path):
    return OutputRoot(FileAccess(tmp_path / "copies", store), seen=Seen())


def make(root, seed, name=NAME):
    def write(place):
        (place / "tokens.bin").write_bytes(b"tokens")
        return Written({"seed": seed})

    manifest = root.commit(Recipe(STAGE, name, 1, {}, {"seed": seed}), write)
    root.make_current(manifest)
    return manifest


def asked_by(store, look):
    store.asked[0].clear()
    found = look()
    return found, len(store.asked[0])


def test_a_version_is_looked_at_once(root, store):
    made = make(root, 1)
    root.forget(made.folder.parent)
    assert asked_by(store, lambda: root.require(STAGE, NAME, remedy="")) == (made, 3)
    assert asked_by(store, lambda: root.current(STAGE, NAME)) == (made, 0)
    found, asked = asked_by(store, lambda: root.current_version(STAGE, NAME))
    assert (found.manifest, found.problem, asked) == (made, None, 0)


def test_what_was_just_made_is_known(root, store):
    made = make(root, 1)
    assert asked_by(store, lambda: root.current(STAGE, NAME)) == (made, 0)
    assert asked_by(store, made.damage) == (None, 0)
    assert made.stored == root.find(Recipe(STAGE, NAME, 1, {}, {"seed": 1})).stored
    again, asked = asked_by(store, lambda: make(root, 1))
    assert (again, asked) == (made, 1), "whether the pointer stands"
    _, asked = asked_by(store, lambda: make(root, 2))
    assert asked == 1, "what is there is looked for"


def test_what_took_long_to_make_is_looked_for_again_before_it_is_sent(root, store, monkeypatch):
    monkeypatch.setattr(root_module, "SEEN_SECONDS", -1)
    assert asked_by(store, lambda: make(root, 1))[1] == 2


def test_what_is_damaged_is_looked_for_before_it_is_sent(root, store):
    place = make(root, 1).folder
    manifest = store.folder / STAGE / NAME / place.name / MANIFEST
    for harm in (lambda: manifest.write_bytes(b"{"), (manifest.parent / "tokens.bin").unlink):
        root.forget(place.parent)
        harm()
        made, asked = asked_by(store, lambda: make(root, 1))
        assert asked >= 3
        root.forget(place.parent)
        assert root.live(STAGE, NAME) == made
        assert made.damage() is None


def test_the_version_before_is_found_by_the_clock_of_the_store(root, store):
    made = [make(root, seed) for seed in range(3)]
    for second, one in enumerate(made):
        os.utime(store.folder / one.folder.relative_to(root.folder) / MANIFEST, (second, second))
    assert [root.previous(one) for one in made] == [None, *made[:2]]
    assert [one.digest for one in root.versions(STAGE, NAME)] == [one.digest for one in made[::-1]]


def test_what_is_asked_for_each_time(root, store, monkeypatch):
    def asked(outputs):
        return [asked_by(store, lambda: outputs.live(STAGE, NAME))[1] for _ in range(2)]

    assert asked(root) == [1, 1], "there is none yet"
    make(root, 1)
    assert asked(replace(root, seen=None)) == [3, 3]
    assert asked(root) == [0, 0]
    assert not pickle.loads(pickle.dumps(root.seen)), "another process sees for itself"
    monkeypatch.setattr(root_module, "SEEN_SECONDS", 0.0)
    assert asked(root) == [3, 3]


def test_what_is_made_again_is_looked_at_again(root, store):
    make(root, 1)
    (store.folder / STAGE / NAME / root.live(STAGE, NAME).digest / "tokens.bin").unlink()
    root.forget(root.folder / STAGE / NAME)
    assert root.live(STAGE, NAME).damage() == "tokens.bin is missing"
    make(replace(root, rebuild=True), 1)
    assert root.live(STAGE, NAME).damage() is None


def test_folders_of_this_machine_are_always_looked_at(tmp_path):
    root = OutputRoot(FileAccess(tmp_path), seen=Seen())
    made = make(root, 1)
    assert root.live(STAGE, NAME) == made
    (made.folder / "tokens.bin").unlink()
    assert root.live(STAGE, NAME).damage() == "tokens.bin is missing"


@pytest.mark.parametrize("seen", [None, Seen()])
def test_many_outputs_are_looked_for_together(root, store, seen):
    root = replace(root, seen=seen)
    names = ["web", "books", "gone", "cut", "torn"]
    for name in ("web", "books", "cut", "torn"):
        make(root, 1, name)
    (store.folder / STAGE / "cut" / root.live(STAGE, "cut").digest / "tokens.bin").unlink()
    (store.folder / STAGE / "torn" / "current.json").write_text("{")
    if seen is not None:
        root.forget(root.folder / STAGE / "cut")
        root.forget(root.folder / STAGE / "torn")
    one_by_one = [replace(root, seen=None).current_version(STAGE, name) for name in names]
    assert [found.problem is None for found in one_by_one] == [True, True, False, False, False]
    together, _ = asked_by(store, lambda: root.current_versions(STAGE, names))
    assert together == one_by_one
    assert all(found.manifest is None or found.manifest.access == root.access for found in together)
    assert store.asked[0][0] == f"{STAGE}/"
    if seen is not None:
        assert asked_by(store, lambda: root.live(STAGE, "books")) == (together[1].manifest, 0)


def test_what_has_lost_its_copies_is_looked_at_again(root):
    made = make(root, 1)
    root.live(STAGE, NAME)
    shutil.rmtree(root.folder)
    assert root.current_version(STAGE, NAME).manifest == root.live(STAGE, NAME) == made
    shutil.rmtree(root.folder)
    assert root.require(STAGE, NAME, remedy="").path("tokens.bin").read_bytes() == b"tokens"
