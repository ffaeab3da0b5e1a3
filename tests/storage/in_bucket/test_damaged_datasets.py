"""No output is made from a dataset that was damaged in its bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.buckets import remove_copies
from helpers.building import (
    make_corpora,
    make_derived_pbin,
    make_export,
    make_packs,
    make_pbin,
    make_view,
)
from helpers.inspecting import current_dataset
from nanoset_core.errors import StorageError
from nanoset_core.project.project import Project
from nanoset_core.storage.stores.s3.store import S3Store

SETTINGS = """\
views: {short: {of: web, where: tokens < 20}}
packs: {packed: {of: web, length: 32}}
exports:
  samples: {of: web, format: mds, sequence_length: 32}
"""


@pytest.fixture
def config(remote_project) -> Path:
    """The nanoset.yaml of a project in a bucket, whose dataset web this machine has made."""
    config: Path = remote_project()
    text = config.read_text().replace("pbin: [", "pbin: [short, ")
    config.write_text(text + SETTINGS)
    make_corpora(Project.open(config), "web")
    return config


def damage(place: S3Store, dataset: Any, ending: str) -> None:
    """Change a bit in the middle of a file of a dataset in the bucket."""
    name = f"datasets/web/{dataset.digest}/{dataset.facts['prefix']}{ending}"
    data = bytearray(place.read(name) or b"")
    data[len(data) // 2] ^= 1
    place.put(name, bytes(data))


@pytest.mark.parametrize("ending", [".bin", ".idx"])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda project: make_pbin(project, "web"), id="pbin"),
        pytest.param(lambda project: make_packs(project, "packed"), id="packs"),
        pytest.param(lambda project: make_export(project, "samples"), id="export"),
    ],
)
def test_no_output_is_made_from_damaged_bytes(
    config: Path, place: S3Store, make: Callable[[Project], Any], ending: str
) -> None:
    damage(place, current_dataset(Project.open(config), "web"), ending)
    remove_copies(config)

    with pytest.raises(StorageError, match="other bytes"):
        make(Project.open(config))


def test_a_view_of_few_documents_does_not_download_all_tokens(config):
    make_view(Project.open(config), "short")
    remove_copies(config)
    project = Project.open(config)

    make_derived_pbin(project, "short")

    view = current_dataset(project, "short")
    assert not (view.folder / f"{view.facts['prefix']}.bin").exists()
