"""Former name of `nanoset_core.formats.indexed.dataset`; pickles of earlier versions open datasets
by it.
"""

from __future__ import annotations

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset, _open_again

__all__ = ["MMapIndexedDataset", "_open_again"]
