"""Datasets in buckets that an earlier version has pickled can be loaded."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path

import pytest

from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.listing import StoreListing
from nanoset_core.storage.stores.filesystems import FilesystemStore
from nanoset_core.storage.stores.s3.store import S3Store

CLASS_BY_NAME_IN_0_2_0 = {
    "nanoset_core.storage.s3.S3Store": S3Store,
    "nanoset_core.storage.filesystems.FilesystemStore": FilesystemStore,
    "nanoset_core.storage.listing.Snapshot": StoreListing,
}
"""Names that pickles of version 0.2.0 contain → the present class."""


@pytest.mark.parametrize("name", CLASS_BY_NAME_IN_0_2_0)
def test_a_name_in_old_pickles_stands_for_the_present_class(name):
    module_name, class_name = name.rsplit(".", 1)

    old_class = getattr(importlib.import_module(module_name), class_name)

    assert old_class is CLASS_BY_NAME_IN_0_2_0[name]


ACCESS_OF_0_2_0 = (
    b"\x80\x04\x95\xfc\x00\x00\x00\x00\x00\x00\x00\x8c\x1bnanoset_core.storage.access\x94"
    b"\x8c\nFileAccess\x94\x93\x94)\x81\x94]\x94(\x8c\x07pathlib\x94\x8c\tPosixPath\x94\x93\x94"
    b"\x8c\x01/\x94\x8c\x03tmp\x94\x8c\x01x\x94\x87\x94R\x94\x8c\x17nanoset_core.storage.s3\x94"
    b"\x8c\x07S3Store\x94\x93\x94)\x81\x94]\x94(\x8c\x06bucket\x94\x8c\x03a/b\x94NNN\x89"
    b"J\x00\x00\x00\x04ebN\x8c\x1cnanoset_core.storage.listing\x94\x8c\x08Snapshot\x94\x93\x94)"
    b"\x81\x94]\x94(\x8c\x03foo\x94h\x14\x8c\t_LazyTree\x94\x93\x94h\x19h\x10\x86\x94R\x94Neb"
    b"\x89Neb."
)
"""Access to s3://bucket/a/b with copies in /tmp/x, which lists the folder foo when asked.

Pickles have the values of its fields in their order, without names.
"""


def test_access_that_version_0_2_0_has_pickled_can_be_loaded():
    access = pickle.loads(ACCESS_OF_0_2_0)

    assert access == FileAccess(Path("/tmp/x"), S3Store("bucket", "a/b"))
    assert access.listing.place == "foo"
    assert not access.is_sampled
