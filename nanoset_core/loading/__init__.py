"""Reading samples; numpy only."""

from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.nanoset import BlendedNanoset, Nanoset, open_nanoset, open_split
from nanoset_core.mapping.config import NanosetConfig

__all__ = ["BlendedNanoset", "Nanoset", "NanosetBuilder", "NanosetConfig", "open_nanoset", "open_split"]
