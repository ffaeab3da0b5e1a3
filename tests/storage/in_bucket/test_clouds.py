"""A project whose root is in Google Storage, in Azure or in memory, as one in a local folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from helpers.buckets import objects, remove_copies
from helpers.building import build_all
from helpers.command import invoke_nanoset, messages_of, report_of
from helpers.sample_project import WITH_PBIN, outputs_of
from nanoset_core import load_nanoset
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.project import Project
from nanoset_core.project.purge.apply import purge
from nanoset_core.project.purge.plan import plan_purge
from nanoset_core.storage.location import remote_location
from nanoset_core.storage.stores.cloud_filesystem import CloudFilesystemStore

READING_COMMANDS = (
    "status --json",
    "gc --json",
    "verify --json",
    "verify --deep --json",
    "explain pretrain train 3 --json",
    "explain shuffled --number 5 --corpus code --json",
)
"""Commands that change nothing."""


@pytest.fixture
def project_in_cloud(make_project: Callable[..., Path], cloud: CloudFilesystemStore) -> Path:
    """The nanoset.yaml of a project with its root in a cloud, which is not built yet."""
    return make_project("project", {"root: data": f"root: {cloud.url()}"} | WITH_PBIN)


@pytest.fixture
def built_project_in_cloud(
    project_in_cloud: Path, cloud: CloudFilesystemStore, local_build: Path
) -> Path:
    """The nanoset.yaml of a project whose outputs another machine has put into the cloud.

    They are those of a local build: the first test compares them.
    """
    outputs = local_build.parent / "data"
    for name in outputs_of(local_build):
        cloud.put_file(name, outputs / name)
    return project_in_cloud


def append_document(config: Path) -> None:
    """Append a document to a file of raw text."""
    with (config.parent / "raw" / "web" / "part-0" / "web-0.jsonl").open("ab") as file:
        file.write(b'{"text": "one document more"}\n')


def test_outputs_in_a_cloud_have_the_bytes_of_those_in_a_local_folder(
    project_in_cloud, cloud, local_build
):
    build_all(project_in_cloud)

    assert objects(cloud) == outputs_of(local_build)


def test_commands_report_the_same_of_a_cloud_as_of_a_local_folder(
    built_project_in_cloud, local_build
):
    for command in READING_COMMANDS:
        remove_copies(built_project_in_cloud)
        remote_report = report_of(built_project_in_cloud, command)
        assert remote_report == report_of(local_build, command), command


@pytest.mark.usefixtures("built_project_in_cloud")
def test_samples_are_read_from_a_cloud(cloud, local_build):
    remote = load_nanoset(cloud.url(), "pretrain", "train")

    local = load_nanoset(local_build.parent / "data", "pretrain", "train")
    all_samples = np.arange(len(local))
    np.testing.assert_array_equal(remote.batch(all_samples), local.batch(all_samples))


def test_new_text_is_appended_and_old_outputs_are_collected_as_in_a_local_folder(
    project_in_cloud, cloud, local_copy
):
    build_all(project_in_cloud)
    for config in (project_in_cloud, local_copy):
        remove_copies(config)
        append_document(config)
        build_all(config)
        assert collect(Project.open(config)).garbage

    assert objects(cloud) == outputs_of(local_copy)


def test_documents_are_purged_as_in_a_local_folder(project_in_cloud, cloud, local_copy):
    build_all(project_in_cloud)
    remove_copies(project_in_cloud)

    for config in (project_in_cloud, local_copy):
        project = Project.open(config)
        plan = plan_purge(project, ["web-7"])
        purge(project, plan, partial(build_all, config), day="2026-01-01")

    purged = objects(cloud)
    # The receipts of the purge have the time of each.
    assert without_receipts(purged) == without_receipts(outputs_of(local_copy))
    project = Project.open(project_in_cloud)
    assert project.outputs.current("datasets", "web").facts["documents"] == 239


def without_receipts(digests: dict[str, str]) -> dict[str, str]:
    """Return the objects that are not receipts of purges."""
    return {name: digest for name, digest in digests.items() if "purge" not in name}


@pytest.mark.parametrize(
    ("cloud_of_bucket", "url"),
    [
        pytest.param("google", "gs://no-such-bucket/root", id="google"),
        pytest.param("azure", "abfs://no-such-container/root", id="azure"),
    ],
)
def test_a_missing_bucket_is_reported_without_credentials(
    request, make_project, cloud_of_bucket, url
):
    request.getfixturevalue(f"{cloud_of_bucket}_place")
    config = make_project("project", {"root: data": f"root: {url}"})

    outcome = invoke_nanoset(["build", "--config", config])

    assert outcome.exit_code != 0
    message = messages_of(outcome)
    assert "there is no such bucket" in message
    assert "create the bucket, or correct its name" in message
    assert "AccountKey" not in message


def test_a_memory_root_is_one_store_for_all_who_open_it(memory_place):
    memory_place.put("a", b"x")

    opened = remote_location(memory_place.url(), where="root").place

    assert opened.read("a") == b"x"
