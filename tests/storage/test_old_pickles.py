"""Datasets in buckets that an earlier version has pickled can be loaded."""

from __future__ import annotations

import importlib

import pytest

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
