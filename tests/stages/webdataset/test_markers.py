"""Tars that are sent to a bucket, and the markers next to them that say which are written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers import buckets
from nanoset_core.errors import StorageError
from nanoset_core.stages.webdataset.markers import read_markers, write_markers
from nanoset_core.stages.webdataset.tars import TarFacts
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.writing.uploads import upload_files

FACTS = TarFacts(0, 1, 1, 0, 4, hashlib.sha256(b"good").hexdigest())
"""Facts of a tar with the bytes `good`."""


class Mirror(NamedTuple):
    """A local folder of a webdataset in a bucket."""

    access: FileAccess

    @property
    def folder(self) -> Path:
        """The folder of the webdataset."""
        return self.access.folder / "webdatasets/mix/version"

    @property
    def tar(self) -> Path:
        """The path of its only tar."""
        return self.folder / f"{FACTS.stem}.tar"


@pytest.fixture
def mirror(bucket, tmp_path) -> Mirror:
    """The local folder of a webdataset without tars."""
    mirror = Mirror(FileAccess(tmp_path / "mirror", bucket))
    mirror.folder.mkdir(parents=True)
    return mirror


def test_a_tar_with_other_bytes_than_were_written_is_not_sent(bucket, mirror):
    mirror.tar.write_bytes(b"dead")

    with pytest.raises(StorageError, match="other bytes than were written"):
        upload_files(mirror.access, [mirror.tar], {mirror.tar: FACTS.sha256})

    assert not buckets.objects(bucket)


def test_the_marker_of_a_tar_that_was_sent_has_its_facts(mirror):
    mirror.tar.write_bytes(b"good")
    upload_files(mirror.access, [mirror.tar], {mirror.tar: FACTS.sha256})

    write_markers(mirror.folder, [FACTS], "plan", mirror.access)

    assert read_markers(mirror.folder, [0], "plan", mirror.access) == {0: FACTS}
