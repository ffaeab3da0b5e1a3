"""`nanoset gc --copies` finds and removes the local copies of outputs in a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import buckets
from helpers.command import invoke_nanoset, report_of
from nanoset_core.errors import ConfigError
from nanoset_core.outputs.manifest import Recipe, Written
from nanoset_core.project.gc import bucket_copies
from nanoset_core.project.gc.bucket_copies import LocalCopy, find_copies
from nanoset_core.project.project import Project
from nanoset_core.storage.in_use.leases import leased
from nanoset_core.storage.stores.s3.store import S3Store


@pytest.fixture
def project_with_copies(remote_project, other_machine, filled: S3Store) -> Project:
    """A built project in a bucket, with working copies of all outputs."""
    project = Project.open(remote_project())
    shutil.copytree(other_machine.copies, project.outputs.folder, symlinks=True)
    return project


def has_copy_of_web(copies: list[LocalCopy]) -> bool:
    """Return whether copies of outputs of the corpus web are among some copies."""
    return any("/web/" in str(copy.path) for copy in copies)


def test_copies_of_outputs_that_a_build_works_on_are_not_removed(project_with_copies):
    project = project_with_copies

    with leased(project.outputs.access, ["web"]):
        copies_removed = find_copies(project, remove=True)

    assert not has_copy_of_web(copies_removed)
    assert has_copy_of_web(find_copies(project))


def test_copies_that_were_removed_are_downloaded_again(project_with_copies, filled):
    project = project_with_copies
    objects_before = buckets.objects(filled)

    copies_removed = find_copies(project, remove=True)

    assert has_copy_of_web(copies_removed)
    assert not list(project.outputs.folder.rglob("*.bin"))
    assert not list(project.outputs.folder.rglob("*.npy"))
    assert buckets.objects(filled) == objects_before
    report_of(project.config.file, "verify --deep --json")


def erase_from_bucket(place: S3Store, folder: str) -> set[str]:
    """Delete all objects below a folder, as a purge on another machine does; return their names."""
    names = {stored.name for stored in place.list(folder)}
    for name in names:
        place.delete(name)
    return names


def names_of_erased(project: Project, copies: list[LocalCopy]) -> set[str]:
    """Return the names of the copies whose files the bucket no longer has."""
    access = project.outputs.access
    return {access.name(copy.path) for copy in copies if not copy.is_in_bucket}


def test_copies_of_a_version_that_another_machine_erased_are_listed_and_removed(
    project_with_copies, filled
):
    project = project_with_copies
    dataset = project.outputs.current("datasets", "web")
    names = erase_from_bucket(filled, f"datasets/web/{dataset.digest}")
    names |= erase_from_bucket(filled, "nanosets/pretrain/cache")

    assert names_of_erased(project, find_copies(project)) == names
    output = invoke_nanoset(["gc", "--copies", "--yes", "--config", project.config.file]).output

    assert f"; {len(names)} of files that it no longer has, " in output
    assert not dataset.folder.exists()
    assert find_copies(project) == []


def test_copies_of_an_erased_version_that_a_build_works_on_are_not_removed(
    project_with_copies, filled
):
    project = project_with_copies
    dataset = project.outputs.current("datasets", "web")
    erase_from_bucket(filled, f"datasets/web/{dataset.digest}")

    with leased(project.outputs.access, ["web"]):
        copies_removed = find_copies(project, remove=True)

    assert not has_copy_of_web(copies_removed)
    assert names_of_erased(project, find_copies(project))


def test_copies_that_another_process_removes_at_the_same_time_are_not_listed(
    project_with_copies, filled, monkeypatch
):
    erase_from_bucket(filled, "datasets")
    find_files = bucket_copies._files_of_versions

    def files_removed_meanwhile(folder: Path) -> Iterator[Path]:
        for path in find_files(folder):
            path.unlink()
            yield path

    monkeypatch.setattr(bucket_copies, "_files_of_versions", files_removed_meanwhile)

    assert names_of_erased(project_with_copies, find_copies(project_with_copies)) == set()


def test_an_output_that_a_build_has_not_uploaded_yet_is_no_copy(project_with_copies):
    project = project_with_copies
    recipe = Recipe("datasets", "web", 1, options={"of": "a running build"})

    def write(folder: Path) -> Written:
        """Write a file, and remove copies before the output is complete."""
        (folder / "web.bin").write_bytes(b"tokens")
        find_copies(project, remove=True)
        return Written({})

    with leased(project.outputs.access, ["web"]):
        manifest = project.outputs.local.commit(recipe, write)
        find_copies(project, remove=True)

    assert manifest.path("web.bin").read_bytes() == b"tokens"


def test_unfinished_files_are_no_copies(project_with_copies):
    project = project_with_copies
    digest = project.outputs.current("datasets", "web").digest
    unfinished = project.outputs.folder / "datasets/web" / f".tmp-{digest}-mark" / "web.bin"
    unfinished.parent.mkdir()
    unfinished.write_bytes(b"tokens")

    find_copies(project, remove=True)

    assert unfinished.exists()


def test_copies_are_refused_to_be_removed_if_the_outputs_are_in_a_folder(make_project):
    project = Project.open(make_project("local"))

    with pytest.raises(ConfigError, match="no copies"):
        find_copies(project)
