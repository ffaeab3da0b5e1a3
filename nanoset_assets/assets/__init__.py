"""The pages of all assets, one file a stage: importing this package registers them."""

from nanoset_assets.assets import indexed, mapping, packed, raw, shuffling, tokenization

__all__ = ["indexed", "mapping", "packed", "raw", "shuffling", "tokenization"]
