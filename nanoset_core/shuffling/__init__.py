"""Shuffled webdatasets: contexts of several token streams in one global order, as tar shards.

A shard is one tar. What it holds has three names, since each file keeps that of its readers: a *context* in the code
and in plan.json, a *sample* in `samples_per_shard`, a *sequence* in OpenLM's manifest and in the facts of a shard.
"""

from nanoset_core.shuffling.contexts import ContextTable
from nanoset_core.shuffling.order import global_order
from nanoset_core.shuffling.plan import ShufflePlan, plan_shuffle
from nanoset_core.shuffling.reader import ShardReader, iterate_shard, iterate_shards
from nanoset_core.shuffling.settings import PlanSettings
from nanoset_core.shuffling.shards import TarFacts
from nanoset_core.shuffling.sources import TokenSource, gather

__all__ = [
    "ContextTable",
    "PlanSettings",
    "ShardReader",
    "ShufflePlan",
    "TarFacts",
    "TokenSource",
    "gather",
    "global_order",
    "iterate_shard",
    "iterate_shards",
    "plan_shuffle",
]
