"""Former name of `stores/filesystems.py`; pickles of datasets in buckets contain it."""

from __future__ import annotations

from nanoset_core.storage.stores.filesystems import FilesystemStore

__all__ = ["FilesystemStore"]
