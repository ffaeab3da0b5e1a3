"""What every output root keeps to, on a local file system and in a bucket: whole or not at all,
never stale.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from helpers import s3_server
from nanoset_core.errors import FormatError, MissingError, StorageError
from nanoset_core.outputs.manifest import Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.checking import check_files
from nanoset_core.stages.report import Report
from nanoset_core.storage import s3 as bucket_module
from nanoset_core.storage import s3_requests as requests
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.store import Store, in_parallel

RECIPE = Recipe("datasets", "web", 1, options={"seed": 1})
NAMES = (
    "tokens.bin",
    "sub/folder/a b.txt",
    "ünïcode-漢.txt",
    "100%+&=#?.txt",
    "quote'\"`.txt",
    "empty",
)


def fill(folder: Path, text: bytes = b"tokens") -> Written:
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name == "empty" else text + name.encode())
    return Written({"documents": 3}, {name: sha256_file(folder / name) for name in NAMES})


def checked(manifest, deep: bool) -> Report:
    report = Report("web")
    check_files(report, manifest, deep=deep)
    return report


class Kept:
    """Outputs on a file system, or in a bucket that any machine reaches."""

    def __init__(self, folder: Path, place: S3Store | None) -> None:
        self.folder, self.place = folder, place
        self.store: Store = place or LocalStore(folder / "data")

    def root(self, *, rebuild: bool = False, machine: str = "one") -> OutputRoot:
        """The outputs as a machine sees them."""
        here = "data" if self.place is None else machine
        return OutputRoot(FileAccess(self.folder / here, self.place), rebuild)

    def stored(self) -> dict[str, str | None]:
        """Name → sha256 of what is stored, but for the links."""
        names = (found.name for found in self.store.list() if "/current/" not in found.name)
        return {name: self.store.sha256(name) for name in names}

    def overwrite(self, name: str, data: bytes | None) -> None:
        """Change a file of the output from outside; None removes it."""
        path = f"datasets/web/{RECIPE.digest}/{name}"
        self.store.delete(path) if data is None else self.store.put(path, data)


@pytest.fixture(params=["folder", "bucket"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(tmp_path, request.getfixturevalue("place") if request.param == "bucket" else None)


@pytest.fixture
def in_bucket(place: S3Store, tmp_path: Path) -> Kept:
    return Kept(tmp_path, place)


def test_published_whole_and_found_at_once(kept):
    root = kept.root()
    assert root.find(RECIPE) is None
    made = root.commit(RECIPE, fill)
    root.make_current(made)
    for machine in ("one", "two"):
        other = kept.root(machine=machine)
        found = other.find(RECIPE)
        assert found is not None
        assert other.current("datasets", "web") == found
        for name in NAMES:
            assert found.path(name).read_bytes() == (
                b"" if name == "empty" else b"tokens" + name.encode()
            )
        assert not checked(found, deep=True).findings
    wanted = {f"datasets/web/{RECIPE.digest}/{name}" for name in (*NAMES, "manifest.json")}
    assert set(kept.stored()) == wanted | {"datasets/web/current.json"}


def test_made_once(kept):
    kept.root().commit(RECIPE, fill)
    kept.root(machine="two").commit(RECIPE, lambda folder: pytest.fail("it is there"))


def test_nothing_is_visible_of_what_failed(kept):
    def fails(folder: Path) -> Written:
        fill(folder)
        raise RuntimeError("in the middle")

    root = kept.root()
    with pytest.raises(RuntimeError, match="in the middle"):
        root.commit(RECIPE, fails)
    assert kept.stored() == {}
    assert root.find(RECIPE) is None


def test_made_again_in_the_place_of_the_old(kept):
    kept.root().commit(RECIPE, lambda folder: fill(folder, b"old "))
    before = kept.stored()
    kept.root(rebuild=True).commit(RECIPE, fill)
    assert before.keys() == kept.stored().keys()
    assert before != kept.stored()
    found = kept.root(machine="three").find(RECIPE)
    assert found is not None
    assert found.path("tokens.bin").read_bytes() == b"tokenstokens.bin"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tokens.bin", None),
        ("tokens.bin", b"short"),
        ("manifest.json", None),
        ("manifest.json", b"{"),
    ],
)
def test_missing_and_cut_files_are_seen_at_once_and_made_good(kept, name, data):
    root = kept.root()
    root.make_current(root.commit(RECIPE, fill))
    before = kept.stored()
    kept.overwrite(name, data)
    assert root.find(RECIPE) is None
    with pytest.raises((MissingError, FormatError), match=r"damaged|not a manifest"):
        root.require("datasets", "web", remedy="build")
    kept.root(machine="two").commit(RECIPE, fill)
    assert kept.stored() == before


def test_other_bytes_of_the_same_size_are_found_by_verifying(kept):
    root = kept.root()
    made = root.commit(RECIPE, fill)
    kept.overwrite("tokens.bin", b"X" * made.files["tokens.bin"].size)
    assert not checked(made, deep=False).errors
    (error,) = checked(made, deep=True).errors
    assert "other bytes" in error.what


def test_sealed_after_its_files_were_brought_one_by_one(kept):
    root = kept.root()
    made = root.commit(RECIPE, fill)
    kept.overwrite("manifest.json", None)
    assert root.finalize(RECIPE, made.facts, made.files).files == made.files
    again = kept.root(machine="two").find(RECIPE)
    assert again is not None
    assert (again.digest, again.facts, again.files) == (made.digest, made.facts, made.files)


def test_what_comes_with_other_bytes_is_refused(in_bucket):
    made = in_bucket.root().commit(RECIPE, fill)
    in_bucket.overwrite("tokens.bin", b"X" * made.files["tokens.bin"].size)
    found = in_bucket.root(machine="two").find(RECIPE)
    with pytest.raises(StorageError, match="other bytes"):
        found.path("tokens.bin")
    assert not (found.folder / "tokens.bin").exists()


def test_an_upload_that_the_bucket_keeps_wrong_is_an_error(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"right")
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.0)
    real = S3Store.ask

    def damaging(store, operation, name, take, body=None, **more):
        wrong = (lambda: io.BytesIO(b"wrong")) if operation == "put_object" else None
        return real(store, operation, name, take, body=wrong, **more)

    monkeypatch.setattr(S3Store, "ask", damaging)
    with pytest.raises(StorageError, match="after 10 attempt"):
        place.put_file("file", tmp_path / "file")
    monkeypatch.setattr(S3Store, "ask", real)
    place.put_file("other", tmp_path / "file")
    assert place.read("other") == b"right"


def test_killed_at_every_request(place, tmp_path):
    """Before each request that a publication sends, in a process of its own: the next one completes
    it.
    """
    whole = {f"datasets/web/{RECIPE.digest}/{name}" for name in (*NAMES, "manifest.json")}
    whole |= {"datasets/web/current.json"}
    context, number, killed = multiprocessing.get_context("spawn"), 0, True
    while killed:
        place = s3_server.new_bucket(place.endpoint_url, "p")
        folder = tmp_path / str(number)
        process = context.Process(target=publish_until, args=(folder, place, number))
        process.start()
        process.join()
        killed = process.exitcode == 9
        assert killed or process.exitcode == 0
        found = OutputRoot(FileAccess(tmp_path / "reader", place)).find(RECIPE)
        if found is not None:
            assert not checked(found, deep=True).findings
        root = OutputRoot(FileAccess(folder, place))
        root.make_current(root.commit(RECIPE, fill))
        assert set(s3_server.objects(place)) == whole
        shutil.rmtree(tmp_path / "reader", ignore_errors=True)
        number += 4 if number > 2 else 1
    assert number > 8


def publish_until(folder: Path, place, requests_left: int) -> None:
    """Publish, and die before request `requests_left` + 1."""
    real, sent = requests.with_retries, [0]

    def counted(request, where, **options):
        sent[0] += 1
        if sent[0] > requests_left:
            os._exit(9)
        return real(request, where, **options)

    bucket_module.with_retries = requests.with_retries = counted
    in_parallel.__defaults__ = (1,)
    root = OutputRoot(FileAccess(folder, place))
    root.make_current(root.commit(RECIPE, fill))
