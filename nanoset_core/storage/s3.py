"""Former name of `stores/s3/store.py`; pickles of datasets in buckets contain it."""

from __future__ import annotations

from nanoset_core.storage.stores.s3.store import S3Store

__all__ = ["S3Store"]
