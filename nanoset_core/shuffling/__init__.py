"""Shuffled webdatasets: contexts of several token streams in one global order, as tar shards.

A shard is one tar. What it holds has three names, since each file keeps that of its readers: a *context* in the code
and in plan.json, a *sample* in `samples_per_shard`, a *sequence* in OpenLM's manifest and in the facts of a shard.
"""

from nanoset_core.shuffling.contexts import ContextTable, SourceContexts, TokenSource, cut_contexts
from nanoset_core.shuffling.gather import gather
from nanoset_core.shuffling.members import compressor_identity
from nanoset_core.shuffling.order import global_order, ranks
from nanoset_core.shuffling.plan import ShufflePlan, plan_shuffle
from nanoset_core.shuffling.quality import ShuffleQuality, shuffle_quality
from nanoset_core.shuffling.reader import ShardReader, iterate_shard, iterate_shards, read_shard
from nanoset_core.shuffling.settings import PlanSettings
from nanoset_core.shuffling.shards import TarFacts, shard_stem, write_shard
from nanoset_core.shuffling.webdataset import write_manifest

__all__ = [
    "ContextTable",
    "PlanSettings",
    "ShardReader",
    "ShufflePlan",
    "ShuffleQuality",
    "SourceContexts",
    "TarFacts",
    "TokenSource",
    "compressor_identity",
    "cut_contexts",
    "gather",
    "global_order",
    "iterate_shard",
    "iterate_shards",
    "plan_shuffle",
    "ranks",
    "read_shard",
    "shard_stem",
    "shuffle_quality",
    "write_manifest",
    "write_shard",
]
