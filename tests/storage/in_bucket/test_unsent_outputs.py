"""Outputs that are being sent to their bucket are not visible, and not disturbed by readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import buckets
from nanoset_core.errors import MissingError
from nanoset_core.outputs import root
from nanoset_core.outputs.manifest import MANIFEST, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.diff.versions import find_versions
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.stores.s3.store import S3Store

RECIPE = Recipe("datasets", "web", 1)
CONTENT = b"some bytes"


def write_output(folder: Path) -> Written:
    """Write an output of one file."""
    (folder / "a-file").write_bytes(CONTENT)
    return Written({})


@pytest.fixture
def access(place: S3Store, tmp_path: Path) -> FileAccess:
    """A bucket, and a folder for working copies of its objects."""
    return FileAccess(tmp_path / "mirror", place)


def test_an_output_is_not_disturbed_by_somebody_who_lists_versions(access, place, monkeypatch):
    real_publish = root.publish_folder

    def list_versions_and_publish(access, folder, files, manifest, **options):
        assert not list(OutputRoot(access).versions("datasets", "web"))
        real_publish(access, folder, files, manifest, **options)

    monkeypatch.setattr(root, "publish_folder", list_versions_and_publish)
    manifest = OutputRoot(access).commit(RECIPE, write_output)

    assert f"datasets/web/{manifest.digest}/{MANIFEST}" in buckets.objects(place)
    assert (manifest.folder / MANIFEST).is_file()


def test_a_working_copy_may_be_removed_once_it_was_sent(access, monkeypatch):
    real_put_file = S3Store.put_file

    def put_and_remove(store, name, path, **options):
        real_put_file(store, name, path, **options)
        path.unlink()

    monkeypatch.setattr(S3Store, "put_file", put_and_remove)
    manifest = OutputRoot(access).commit(RECIPE, write_output)

    assert manifest.stored["a-file"] == len(CONTENT)


def test_a_missing_file_outside_of_the_working_copies_is_not_looked_for_in_the_bucket(
    access, tmp_path
):
    file = tmp_path / "cache" / "file"

    assert access.fetch(file) == file
    with pytest.raises(FileNotFoundError):
        access.open_bytes(file)


def test_a_file_outside_of_the_working_copies_is_read_from_this_machine(access, tmp_path):
    file = tmp_path / "cache" / "file"
    file.parent.mkdir()
    file.write_bytes(b"local")

    assert bytes(access.open_bytes(file).buffer) == b"local"
    with pytest.raises(ValueError, match="subpath"):
        access.size(file)


def test_making_an_output_current_neither_lists_nor_sends_its_files(access, monkeypatch):
    outputs = OutputRoot(access)
    manifest = outputs.commit(RECIPE, write_output)
    requests = []

    def note_list(_store, folder=""):
        requests.append(folder)

    def note_write(_store, name, *_args, **_options):
        requests.append(name)

    # The first time, only the object that names the current output is written.
    monkeypatch.setattr(S3Store, "list", note_list)
    monkeypatch.setattr(S3Store, "put_file", note_write)
    outputs.make_current(manifest)
    current = access.store.read("datasets/web/current.json")
    assert manifest.digest in current.decode()

    # The second time, not even that.
    monkeypatch.setattr(S3Store, "put", note_write)
    outputs.make_current(manifest)
    assert not requests


def test_an_output_that_was_not_sent_is_no_version(remote_project, filled):
    project = Project.open(remote_project())
    recipe = Recipe("datasets", "web", 1, options={"of": "a build that was killed"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputRoot, "_upload", lambda outputs, folder, **options: None)
        project.outputs.local.commit(recipe, write_output)

    with pytest.raises(MissingError, match="no previous version"):
        find_versions(project, "web", None)
    current_dataset = project.outputs.current("datasets", "web")
    assert project.outputs.previous(current_dataset) is None
