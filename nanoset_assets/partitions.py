"""How the assets are cut: by corpus, by split, by group of shards."""

from __future__ import annotations

import dagster as dg

from nanoset_core.mapping.splits import SPLITS

# One shared object: two dynamic definitions of different names would silently not match.
CORPORA = dg.DynamicPartitionsDefinition(name="corpora")

SPLIT_PARTITIONS = dg.StaticPartitionsDefinition(list(SPLITS))


def shard_groups(groups: int) -> dg.StaticPartitionsDefinition:
    """Partitions "0", "1", … of a webdataset's tars."""
    return dg.StaticPartitionsDefinition([str(group) for group in range(groups)])


def member_corpora(corpora: tuple[str, ...]) -> dg.AssetDep:
    """A dependency on the datasets of some corpora, and on no others."""
    mapping = dg.SpecificPartitionsPartitionMapping(list(corpora))
    return dg.AssetDep("indexed_dataset", partition_mapping=mapping)
