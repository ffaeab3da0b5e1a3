"""Outputs in a local folder and in a bucket appear as a whole, and are seen by all machines."""

from __future__ import annotations

import io
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers import buckets, s3_server
from helpers.child_processes import forking_context
from nanoset_core.errors import FormatError, MissingError, StorageError
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.checking import check_files
from nanoset_core.stages.report import Report
from nanoset_core.storage import requests
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore
from nanoset_core.storage.stores.s3 import requests as s3_requests
from nanoset_core.storage.stores.s3 import store as bucket_module
from nanoset_core.storage.stores.s3.store import S3Store

RECIPE = Recipe("datasets", "web", 1, options={"seed": 1})
OUTPUT = f"datasets/web/{RECIPE.digest}"
NAMES = (
    "tokens.bin",
    "sub/folder/a b.txt",
    "ünïcode-漢.txt",
    "100%+&=#?.txt",
    "quote'\"`.txt",
    "empty",
)
STORED_NAMES = {f"{OUTPUT}/{name}" for name in (*NAMES, "manifest.json")}
"""The objects of the output."""
CURRENT = "datasets/web/current.json"


def content_of(name: str, text: bytes = b"tokens") -> bytes:
    """Return the content of a file of the output, which begins with a text unless it is empty."""
    return b"" if name == "empty" else text + name.encode()


def write_output(folder: Path, text: bytes = b"tokens") -> Written:
    """Write the files of the output, with their digests."""
    sha256_by_name = {}
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content_of(name, text))
        sha256_by_name[name] = sha256_file(path)
    return Written({"documents": 3}, sha256_by_name)


def report_of(manifest: Manifest, *, deep: bool) -> Report:
    """Return the report of a check of the files of an output."""
    report = Report("web")
    check_files(report, manifest, deep=deep)
    return report


class SharedOutputs:
    """Outputs in a local folder, or in a bucket that several machines use."""

    def __init__(self, folder: Path, place: S3Store | None) -> None:
        """Begin without outputs.

        Args:
            folder: Folder for the outputs, or for each machine's copies of those in a bucket.
            place: The bucket; None for a local folder.
        """
        self.folder = folder
        self.place = place
        self.store: Store = place or LocalStore(folder / "data")

    def root(self, *, rebuild: bool = False, machine: str = "one") -> OutputRoot:
        """Return the outputs as a machine sees them."""
        folder = self.folder / machine
        if self.place is None:
            folder = self.folder / "data"
        return OutputRoot(FileAccess(folder, self.place), rebuild)

    def digests(self) -> dict[str, str | None]:
        """Return the sha256 of all stored files, by name, except those of the links `current`."""
        names = [stored.name for stored in self.store.list() if "/current/" not in stored.name]
        return {name: self.store.sha256(name) for name in names}

    def replace(self, name: str, data: bytes) -> None:
        """Write other bytes to a file of the output."""
        self.store.put(f"{OUTPUT}/{name}", data)

    def remove(self, name: str) -> None:
        """Remove a file of the output."""
        self.store.delete(f"{OUTPUT}/{name}")


@pytest.fixture(params=["folder", "bucket"])
def outputs(request: pytest.FixtureRequest, tmp_path: Path) -> SharedOutputs:
    """Outputs in a folder, and in a bucket."""
    place = None
    if request.param == "bucket":
        place = request.getfixturevalue("place")
    return SharedOutputs(tmp_path, place)


@pytest.fixture
def outputs_in_bucket(place: S3Store, tmp_path: Path) -> SharedOutputs:
    """Outputs in a bucket."""
    return SharedOutputs(tmp_path, place)


# Publication


def test_an_output_that_was_not_built_is_not_found(outputs):
    assert outputs.root().find(RECIPE) is None


def test_an_output_has_its_files_and_a_manifest_and_becomes_the_current_one(outputs):
    root = outputs.root()

    root.make_current(root.commit(RECIPE, write_output))

    assert set(outputs.digests()) == STORED_NAMES | {CURRENT}


@pytest.mark.parametrize("machine", ["one", "two"])
def test_an_output_is_found_by_all_machines_at_once(outputs, machine):
    builder = outputs.root(machine="one")
    builder.make_current(builder.commit(RECIPE, write_output))

    reader = outputs.root(machine=machine)
    manifest = reader.find(RECIPE)

    assert manifest is not None
    assert reader.current("datasets", "web") == manifest
    for name in NAMES:
        assert manifest.path(name).read_bytes() == content_of(name)
    assert not report_of(manifest, deep=True).findings


def test_an_output_that_exists_is_not_written_again_by_another_machine(outputs):
    outputs.root().commit(RECIPE, write_output)

    outputs.root(machine="two").commit(RECIPE, lambda folder: pytest.fail("it exists"))


def test_nothing_is_visible_of_an_output_that_failed(outputs):
    def fail(folder: Path) -> Written:
        write_output(folder)
        raise RuntimeError("in the middle")

    root = outputs.root()
    with pytest.raises(RuntimeError, match="in the middle"):
        root.commit(RECIPE, fail)

    assert outputs.digests() == {}
    assert root.find(RECIPE) is None


def test_a_rebuilt_output_replaces_the_old_one(outputs):
    outputs.root().commit(RECIPE, lambda folder: write_output(folder, b"old "))
    digests_before = outputs.digests()

    outputs.root(rebuild=True).commit(RECIPE, write_output)

    digests = outputs.digests()
    assert digests.keys() == digests_before.keys()
    assert digests != digests_before
    manifest = outputs.root(machine="three").find(RECIPE)
    assert manifest is not None
    assert manifest.path("tokens.bin").read_bytes() == content_of("tokens.bin")


def test_an_output_whose_files_are_stored_can_be_completed_by_its_manifest(outputs):
    """A webdataset is completed so: several processes write its tars."""
    root = outputs.root()
    manifest = root.commit(RECIPE, write_output)
    outputs.remove("manifest.json")

    assert root.finalize(RECIPE, manifest.facts, manifest.files).files == manifest.files

    read_manifest = outputs.root(machine="two").find(RECIPE)
    assert read_manifest is not None
    assert read_manifest.digest == manifest.digest
    assert read_manifest.facts == manifest.facts
    assert read_manifest.files == manifest.files


# Damaged outputs


def remove_tokens(outputs: SharedOutputs) -> None:
    """Remove a file."""
    outputs.remove("tokens.bin")


def cut_tokens(outputs: SharedOutputs) -> None:
    """Replace a file by a shorter one."""
    outputs.replace("tokens.bin", b"short")


def remove_manifest(outputs: SharedOutputs) -> None:
    """Remove the manifest."""
    outputs.remove("manifest.json")


def cut_manifest(outputs: SharedOutputs) -> None:
    """Replace the manifest by its first byte."""
    outputs.replace("manifest.json", b"{")


@pytest.mark.parametrize("damage", [remove_tokens, cut_tokens, remove_manifest, cut_manifest])
def test_an_output_with_a_missing_or_cut_file_is_found_to_be_damaged_and_rebuilt(outputs, damage):
    root = outputs.root()
    root.make_current(root.commit(RECIPE, write_output))
    digests_before = outputs.digests()
    damage(outputs)

    # It does not count as built, and is not used.
    assert root.find(RECIPE) is None
    with pytest.raises((MissingError, FormatError), match=r"damaged|not a manifest"):
        root.require("datasets", "web", remedy="build")

    # The next build repairs it.
    outputs.root(machine="two").commit(RECIPE, write_output)
    assert outputs.digests() == digests_before


def test_other_bytes_of_the_same_size_are_found_by_a_deep_check_only(outputs):
    manifest = outputs.root().commit(RECIPE, write_output)
    outputs.replace("tokens.bin", b"X" * manifest.files["tokens.bin"].size)

    assert not report_of(manifest, deep=False).errors
    [error] = report_of(manifest, deep=True).errors

    assert "other bytes" in error.what


def test_a_file_with_other_bytes_is_not_downloaded(outputs_in_bucket):
    written = outputs_in_bucket.root().commit(RECIPE, write_output)
    outputs_in_bucket.replace("tokens.bin", b"X" * written.files["tokens.bin"].size)
    manifest = outputs_in_bucket.root(machine="two").find(RECIPE)
    assert manifest is not None

    with pytest.raises(StorageError, match="other bytes"):
        manifest.path("tokens.bin")

    assert not (manifest.folder / "tokens.bin").exists()


# Uploads that are damaged or interrupted


def test_an_upload_that_arrives_with_other_bytes_is_retried_and_then_an_error(
    place, tmp_path, monkeypatch
):
    (tmp_path / "file").write_bytes(b"right")
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.0)
    real_ask = S3Store.ask

    def open_wrong_body():
        return io.BytesIO(b"wrong")

    def damage_body(store, operation, name, read_answer, body=None, **options):
        wrong_body = open_wrong_body if operation == "put_object" else None
        return real_ask(store, operation, name, read_answer, body=wrong_body, **options)

    with monkeypatch.context() as patch:
        patch.setattr(S3Store, "ask", damage_body)
        with pytest.raises(StorageError, match="after 10 attempt"):
            place.put_file("file", tmp_path / "file")

    # Once nothing damages it, an upload succeeds.
    place.put_file("other", tmp_path / "file")
    assert place.read("other") == b"right"


def publish_and_die(folder: Path, place: S3Store, n_requests: int) -> None:
    """Publish the output, but end this process when it would send one request more than allowed.

    Args:
        folder: Folder for working copies.
        place: The bucket.
        n_requests: Number of requests that are sent.
    """
    real_with_retries = s3_requests.with_retries
    n_sent = 0

    def counted_with_retries(request, where, **options):
        nonlocal n_sent
        n_sent += 1
        if n_sent > n_requests:
            os._exit(9)
        return real_with_retries(request, where, **options)

    s3_requests.with_retries = counted_with_retries
    bucket_module.with_retries = counted_with_retries

    # Send one request at a time, so that their order is the same each time.
    def single_thread(_threads: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    requests.ThreadPoolExecutor = single_thread
    root = OutputRoot(FileAccess(folder, place))
    root.make_current(root.commit(RECIPE, write_output))


def test_a_publication_that_is_killed_at_any_request_is_completed_by_the_next_one(place, tmp_path):
    n_requests = 0
    was_killed = True
    while was_killed:
        # Publish to a new bucket in another process, which dies after some requests.
        place = s3_server.new_bucket(place.endpoint_url, "p")
        folder = tmp_path / str(n_requests)
        arguments = (folder, place, n_requests)
        process = forking_context().Process(target=publish_and_die, args=arguments)
        process.start()
        process.join()
        was_killed = process.exitcode == 9
        assert was_killed or process.exitcode == 0

        # If a reader finds the output, it is complete.
        reader_folder = tmp_path / "reader"
        manifest = OutputRoot(FileAccess(reader_folder, place)).find(RECIPE)
        if manifest is not None:
            assert not report_of(manifest, deep=True).findings
        shutil.rmtree(reader_folder, ignore_errors=True)

        # The next publication completes it.
        root = OutputRoot(FileAccess(folder, place))
        root.make_current(root.commit(RECIPE, write_output))
        assert set(buckets.objects(place)) == STORED_NAMES | {CURRENT}

        # Look at each of the first requests, and then at every fourth one, to save time.
        n_requests += 4 if n_requests > 2 else 1

    # Otherwise, nothing was tested.
    assert n_requests > 8
