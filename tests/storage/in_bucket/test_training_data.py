"""Training data in a bucket: how often it is listed, and how a changed handoff is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from helpers.buckets import calling_for_requests
from helpers.building import make_handoff, make_nanoset
from helpers.inspecting import current_output, verify_at
from nanoset_core.outputs.root import Seen
from nanoset_core.project.project import Project
from nanoset_core.storage.stores.s3.store import S3Store


@contextmanager
def record_listings(place: S3Store, folder: str) -> Iterator[list[str]]:
    """Yield the names of the folders below a folder that are listed, relative to the root."""
    listed_folders: list[str] = []

    def record(params, model, **_):
        listed_folder = params.get("Prefix", "").removeprefix(f"{place.prefix}/")
        if model.name == "ListObjectsV2" and listed_folder.startswith(folder):
            listed_folders.append(listed_folder)

    with calling_for_requests(place, record):
        yield listed_folders


@pytest.mark.parametrize("exists", [False, True])
def test_each_step_of_training_data_lists_its_folder_once(remote_project, filled, exists):
    config = remote_project()
    if not exists:
        for stored in list(filled.list("nanosets/pretrain")):
            filled.delete(stored.name)
    project = replace(Project.open(config), seen=Seen())

    with record_listings(filled, "nanosets/pretrain/") as listed_folders:
        make_nanoset(project, "pretrain")
        make_handoff(project, "pretrain")

    # The mappings and the blend of train, valid and test, and the handoff.
    assert listed_folders == ["nanosets/pretrain/"] * 7


def test_changed_files_of_a_handoff_are_all_reported_in_their_order(remote_project, filled):
    project = Project.open(remote_project())
    handoff = current_output(project, "nanosets/pretrain/handoff")
    assert len(handoff.files) > 3
    for name, fact in handoff.files.items():
        filled.put(project.outputs.access.name(handoff.folder / name), bytes(fact.size))

    report = verify_at(project, "nanosets/pretrain/handoff")

    assert [error.where for error in report.errors] == [handoff.url(name) for name in handoff.files]
