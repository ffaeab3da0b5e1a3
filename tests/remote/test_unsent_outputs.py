"""Outputs that are made, and not yet in their bucket, while others look at it."""

from __future__ import annotations

import pytest
import s3_server
from sample_project import build_all

from nanoset_core.errors import MissingError
from nanoset_core.inspection.files import previous_version
from nanoset_core.manifest import MANIFEST, OutputRoot, Recipe
from nanoset_core.operations.diff_versions import find_versions
from nanoset_core.pipeline.project import Project
from nanoset_core.remote.mirror import Mirror, bring_manifests


def write(folder):
    (folder / "a-file").write_bytes(b"some bytes")
    return {}, {}


def test_looking_at_versions_takes_nothing_from_a_build(place, tmp_path, monkeypatch):
    outputs = OutputRoot(tmp_path / "mirror", remote=place)
    publish = Mirror.publish

    def looked_at_meanwhile(mirror, folder, files, manifest):
        bring_manifests(mirror.folder, MANIFEST)
        publish(mirror, folder, files, manifest)

    monkeypatch.setattr(Mirror, "publish", looked_at_meanwhile)
    made = outputs.publish(Recipe("datasets", "web", 1), write)
    assert f"datasets/web/{made.digest}/{MANIFEST}" in s3_server.objects(place)
    assert (made.folder / MANIFEST).is_file()


def test_what_was_not_sent_is_no_version(remote_project, place):
    config = remote_project()
    build_all(config)
    project = Project.open(config)
    unsent = OutputRoot(project.outputs.folder, remote=project.outputs.remote, here=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputRoot, "_send", lambda outputs, folder: None)
        unsent.publish(Recipe("datasets", "web", 1, options={"of": "a build that was killed"}), write)
    with pytest.raises(MissingError, match="no previous version"):
        find_versions(project, "web", None)
    assert previous_version(project.outputs.current("datasets", "web")) is None
