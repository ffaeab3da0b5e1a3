"""Engines that write the shards of a plan: ways to read and write, for data of any size, with identical results."""

from nanoset_core.shuffling.engines.choice import Engine, EngineChoice, Storage, choose_engine, free_memory
from nanoset_core.shuffling.engines.writing import write_shards

__all__ = ["Engine", "EngineChoice", "Storage", "choose_engine", "free_memory", "write_shards"]
