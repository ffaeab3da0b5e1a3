"""Reading samples; numpy only."""

from nanoset_core.loading.blended import BlendedNanoset
from nanoset_core.loading.builder import NanosetBuilder, open_split
from nanoset_core.loading.nanoset import Nanoset, open_nanoset
from nanoset_core.mapping.config import NanosetConfig

__all__ = ["BlendedNanoset", "Nanoset", "NanosetBuilder", "NanosetConfig", "open_nanoset", "open_split"]
