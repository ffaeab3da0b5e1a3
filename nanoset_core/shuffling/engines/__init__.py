"""Engines that write the shards of a plan: ways to read and write, for data of any size, with identical results."""

from nanoset_core.shuffling.engines.choice import EngineChoice, EngineName, Storage, choose_engine, free_memory
from nanoset_core.shuffling.engines.run import WriteOptions, write_shards

__all__ = ["EngineChoice", "EngineName", "Storage", "WriteOptions", "choose_engine", "free_memory", "write_shards"]
