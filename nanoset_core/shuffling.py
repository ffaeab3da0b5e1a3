"""Deprecated: import `ShardReader`, `iterate_shard` and `iterate_shards` from `nanoset_core`."""

from __future__ import annotations

import warnings

from nanoset_core.loading.shard_reader import ShardReader
from nanoset_core.loading.tar_files import iterate_shard, iterate_shards

__all__ = ["ShardReader", "iterate_shard", "iterate_shards"]

warnings.warn(
    "nanoset_core.shuffling has moved: import from nanoset_core", DeprecationWarning, stacklevel=2
)
