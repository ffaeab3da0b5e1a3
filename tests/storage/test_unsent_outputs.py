"""Outputs that are made, and not yet in their bucket, while others look at it."""

from __future__ import annotations

import pytest

from helpers import s3_server
from helpers.building import build_all
from nanoset_core.errors import MissingError
from nanoset_core.outputs import root
from nanoset_core.outputs.manifest import MANIFEST, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.find_versions import find_versions
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.s3 import S3Store


def write(folder):
    (folder / "a-file").write_bytes(b"some bytes")
    return Written({})


def test_looking_at_versions_takes_nothing_from_a_build(place, tmp_path, monkeypatch):
    outputs = OutputRoot(FileAccess(tmp_path / "mirror", place))
    publish = root.publish_folder

    def looked_at_meanwhile(access, folder, files, manifest, **how):
        assert not list(OutputRoot(access).versions("datasets", "web"))
        publish(access, folder, files, manifest, **how)

    monkeypatch.setattr(root, "publish_folder", looked_at_meanwhile)
    made = outputs.commit(Recipe("datasets", "web", 1), write)
    assert f"datasets/web/{made.digest}/{MANIFEST}" in s3_server.objects(place)
    assert (made.folder / MANIFEST).is_file()


def test_copies_may_go_once_they_were_sent(place, tmp_path, monkeypatch):
    put_file = S3Store.put_file

    def put_and_removed_meanwhile(store, name, path, **how):
        put_file(store, name, path, **how)
        path.unlink()

    monkeypatch.setattr(S3Store, "put_file", put_and_removed_meanwhile)
    made = OutputRoot(FileAccess(tmp_path / "mirror", place)).commit(
        Recipe("datasets", "web", 1), write
    )
    assert made.stored["a-file"] == len(b"some bytes")


def test_files_outside_of_the_copies_are_those_of_this_machine(place, tmp_path):
    access, file = FileAccess(tmp_path / "mirror", place), tmp_path / "cache" / "file"
    assert access.fetch(file) == file
    with pytest.raises(FileNotFoundError):
        access.open_bytes(file)
    file.parent.mkdir()
    file.write_bytes(b"here")
    assert bytes(access.open_bytes(file).buffer) == b"here"
    with pytest.raises(ValueError, match="subpath"):
        access.size(file)


def test_what_is_made_current_is_sent_by_its_bytes_and_only_where_they_differ(
    place, tmp_path, monkeypatch
):
    outputs = OutputRoot(FileAccess(tmp_path / "mirror", place))
    made = outputs.commit(Recipe("datasets", "web", 1), write)
    asked = []
    monkeypatch.setattr(S3Store, "list", lambda store, folder="": asked.append(folder))
    monkeypatch.setattr(S3Store, "put_file", lambda store, name, *how, **more: asked.append(name))
    outputs.make_current(made)
    monkeypatch.setattr(S3Store, "put", lambda store, name, *how, **more: asked.append(name))
    outputs.make_current(made)
    assert not asked
    assert made.digest in (outputs.access.store.read("datasets/web/current.json") or b"").decode()


def test_what_was_not_sent_is_no_version(remote_project, place):
    config = remote_project()
    build_all(config)
    project = Project.open(config)
    unsent = project.outputs.local
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputRoot, "_upload", lambda outputs, folder, **how: None)
        unsent.commit(
            Recipe("datasets", "web", 1, options={"of": "a build that was killed"}), write
        )
    with pytest.raises(MissingError, match="no previous version"):
        find_versions(project, "web", None)
    assert project.outputs.previous(project.outputs.current("datasets", "web")) is None
