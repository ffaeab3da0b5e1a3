"""What every output root keeps to, on a local file system and in a bucket: whole or not at all, never stale."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
import s3_server

from nanoset_core.errors import MissingError, StorageError
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage import s3 as bucket_module
from nanoset_core.storage import s3_requests as requests
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.store import in_parallel
from nanoset_core.verification.report import Report, check_files

RECIPE = Recipe("datasets", "web", 1, options={"seed": 1})
NAMES = ("tokens.bin", "sub/folder/a b.txt", "ünïcode-漢.txt", "100%+&=#?.txt", "quote'\"`.txt", "empty")


def fill(folder: Path, text: bytes = b"tokens") -> tuple[dict, dict]:
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name == "empty" else text + name.encode())
    return {"documents": 3}, {name: sha256_file(folder / name) for name in NAMES}


def checked(manifest, deep: bool) -> Report:
    report = Report("web")
    check_files(report, manifest, deep=deep)
    return report


class OutputConformance:
    """Tests of an interface; a subclass says what it is kept in."""

    def root(self, tmp_path: Path, *, rebuild: bool = False, machine: str = "one") -> OutputRoot:
        """The same outputs, as this machine sees them."""
        raise NotImplementedError

    def stored(self, root: OutputRoot) -> dict[str, str]:
        """Name → sha256 of what is stored."""
        raise NotImplementedError

    def overwrite(self, root: OutputRoot, name: str, data: bytes | None) -> None:
        """Change what is stored from outside; None removes it."""
        raise NotImplementedError

    def test_published_whole_and_found_at_once(self, tmp_path):
        root = self.root(tmp_path)
        assert root.find(RECIPE) is None
        made = root.commit(RECIPE, fill)
        root.make_current(made)
        for machine in ("one", "two"):
            other = self.root(tmp_path, machine=machine)
            found = other.find(RECIPE)
            assert found is not None
            assert other.current("datasets", "web") == found
            for name in NAMES:
                assert found.path(name).read_bytes() == (b"" if name == "empty" else b"tokens" + name.encode())
            assert not checked(found, deep=True).findings
        wanted = {f"datasets/web/{RECIPE.digest}/{name}" for name in (*NAMES, "manifest.json")}
        assert set(self.stored(root)) == wanted | {"datasets/web/current.json"}

    def test_made_once(self, tmp_path):
        self.root(tmp_path).commit(RECIPE, fill)
        self.root(tmp_path, machine="two").commit(RECIPE, lambda folder: pytest.fail("it is there"))

    def test_nothing_is_visible_of_what_failed(self, tmp_path):
        def fails(folder: Path) -> tuple[dict, dict]:
            fill(folder)
            raise RuntimeError("in the middle")

        root = self.root(tmp_path)
        with pytest.raises(RuntimeError, match="in the middle"):
            root.commit(RECIPE, fails)
        assert self.stored(root) == {}
        assert root.find(RECIPE) is None

    def test_made_again_in_the_place_of_the_old(self, tmp_path):
        before = self.stored_after(tmp_path, lambda folder: fill(folder, b"old "))
        after = self.stored_after(tmp_path, fill, rebuild=True)
        assert before.keys() == after.keys()
        assert before != after
        found = self.root(tmp_path, machine="three").find(RECIPE)
        assert found is not None
        assert found.path("tokens.bin").read_bytes() == b"tokenstokens.bin"

    def stored_after(self, tmp_path, write, *, rebuild=False):
        root = self.root(tmp_path, rebuild=rebuild)
        root.commit(RECIPE, write)
        return self.stored(root)

    @pytest.mark.parametrize("data", [None, b"short"])
    def test_missing_and_cut_files_are_seen_at_once_and_made_good(self, tmp_path, data):
        root = self.root(tmp_path)
        root.make_current(root.commit(RECIPE, fill))
        before = self.stored(root)
        self.overwrite(root, f"datasets/web/{RECIPE.digest}/tokens.bin", data)
        assert root.find(RECIPE) is None
        assert root.current("datasets", "web") is None
        with pytest.raises(MissingError, match="damaged"):
            root.require("datasets", "web", remedy="build")
        self.root(tmp_path, machine="two").commit(RECIPE, fill)
        assert self.stored(root) == before

    def test_other_bytes_of_the_same_size_are_found_by_verifying(self, tmp_path):
        root = self.root(tmp_path)
        made = root.commit(RECIPE, fill)
        self.overwrite(root, f"datasets/web/{RECIPE.digest}/tokens.bin", b"X" * made.files["tokens.bin"].size)
        assert not checked(made, deep=False).errors
        (error,) = checked(made, deep=True).errors
        assert "other bytes" in error.what

    def test_without_its_manifest_there_is_no_output(self, tmp_path):
        root = self.root(tmp_path)
        root.make_current(root.commit(RECIPE, fill))
        self.overwrite(root, f"datasets/web/{RECIPE.digest}/manifest.json", None)
        assert root.find(RECIPE) is None
        with pytest.raises(MissingError):
            root.require("datasets", "web", remedy="build")

    def test_sealed_after_its_files_were_brought_one_by_one(self, tmp_path):
        root = self.root(tmp_path)
        made = root.commit(RECIPE, fill)
        self.overwrite(root, f"datasets/web/{RECIPE.digest}/manifest.json", None)
        assert root.finalize(RECIPE, made.facts, made.files).files == made.files
        again = self.root(tmp_path, machine="two").find(RECIPE)
        assert again is not None
        assert (again.digest, again.facts, again.files) == (made.digest, made.facts, made.files)


class TestLocal(OutputConformance):
    def root(self, tmp_path, *, rebuild=False, machine="one"):
        return OutputRoot(FileAccess(tmp_path / "data"), rebuild)

    def stored(self, root):
        files = (path for path in root.folder.rglob("*") if path.is_file() and "current" not in path.parts)
        return {path.relative_to(root.folder).as_posix(): sha256_file(path) for path in files}

    def overwrite(self, root, name, data):
        (root.folder / name).unlink() if data is None else (root.folder / name).write_bytes(data)


class TestBucket(OutputConformance):
    @pytest.fixture(autouse=True)
    def _place(self, place):
        self.place = place

    def root(self, tmp_path, *, rebuild=False, machine="one"):
        return OutputRoot(FileAccess(tmp_path / machine, self.place), rebuild)

    def stored(self, root):
        return s3_server.objects(self.place)

    def overwrite(self, root, name, data):
        where = {"Bucket": self.place.bucket, "Key": self.place.key(name)}
        client = self.place.client()
        client.delete_object(**where) if data is None else client.put_object(**where, Body=data)

    def test_what_comes_with_other_bytes_is_refused(self, tmp_path):
        made = self.root(tmp_path).commit(RECIPE, fill)
        self.overwrite(None, f"datasets/web/{RECIPE.digest}/tokens.bin", b"X" * made.files["tokens.bin"].size)
        found = self.root(tmp_path, machine="two").find(RECIPE)
        with pytest.raises(StorageError, match="other bytes"):
            found.path("tokens.bin")
        assert not (found.folder / "tokens.bin").exists()

    def test_an_upload_that_the_bucket_keeps_wrong_is_an_error(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_bytes(b"right")
        monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.0)
        real = S3Store.ask

        def damaging(store, operation, name, take, body=None, **more):
            wrong = (lambda: io.BytesIO(b"wrong")) if operation == "put_object" else None
            return real(store, operation, name, take, body=wrong, **more)

        monkeypatch.setattr(S3Store, "ask", damaging)
        bucket = self.place
        with pytest.raises(StorageError, match="after 10 attempt"):
            bucket.put_file("file", tmp_path / "file")
        monkeypatch.setattr(S3Store, "ask", real)
        bucket.put_file("other", tmp_path / "file")
        assert bucket.read("other") == b"right"

    def test_killed_at_every_request(self, tmp_path):
        """Before each request that a publication sends, in a process of its own: the next one completes it."""
        whole = {f"datasets/web/{RECIPE.digest}/{name}" for name in (*NAMES, "manifest.json")}
        whole |= {"datasets/web/current.json"}
        context, number, killed = multiprocessing.get_context("spawn"), 0, True
        while killed:
            place = s3_server.new_bucket(self.place.endpoint_url, "p")
            self.place, folder = place, tmp_path / str(number)
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
