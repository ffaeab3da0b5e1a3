"""Reading samples; numpy only."""

from nanoset_core.loading.blended import BlendedNanoset
from nanoset_core.loading.builder import NanosetBuilder, open_split
from nanoset_core.loading.config import NanosetConfig
from nanoset_core.loading.nanoset import Nanoset, open_nanoset

__all__ = ["BlendedNanoset", "Nanoset", "NanosetBuilder", "NanosetConfig", "open_nanoset", "open_split"]
