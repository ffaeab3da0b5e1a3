"""Markers of the tars that are written, next to tars in a bucket."""

from __future__ import annotations

import hashlib

import pytest

from helpers import s3_server
from nanoset_core.errors import StorageError
from nanoset_core.stages.webdataset.markers import read_markers, write_markers
from nanoset_core.stages.webdataset.tars import TarFacts
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.uploads import upload_files


def test_a_tar_that_is_not_as_it_was_noted_is_not_sent(bucket, tmp_path):
    access = FileAccess(tmp_path / "mirror", bucket)
    folder = access.folder / "webdatasets/mix/version"
    noted = TarFacts(0, 1, 1, 0, 4, hashlib.sha256(b"good").hexdigest())
    tar = folder / f"{noted.stem}.tar"
    folder.mkdir(parents=True)
    tar.write_bytes(b"dead")
    with pytest.raises(StorageError, match="other bytes than were written"):
        upload_files(access, [tar], {tar: noted.sha256})
    assert not s3_server.objects(bucket)
    tar.write_bytes(b"good")
    upload_files(access, [tar], {tar: noted.sha256})
    write_markers(folder, [noted], "plan", access)
    assert read_markers(folder, [0], "plan", access) == {0: noted}
