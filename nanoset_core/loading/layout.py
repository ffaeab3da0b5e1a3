"""Where the parts of a nanoset are stored below an output root, and names in their manifests."""

from __future__ import annotations

NANOSETS_FOLDER = "nanosets"
"""Folder of all nanosets below the output root."""
CACHE = "cache"
"""Folder of a nanoset with the index files of all its versions."""
MAPPINGS = "index_mappings"
"""Folder of a split with the versions of its index mappings: the samples of each dataset."""
BLEND = "blend"
"""Folder of a split with the versions of its blend: the dataset of each sample."""
HANDOFF = "handoff"
"""Folder of a nanoset with the versions of its handoff: the files that start its trainer."""
LACKING = "lacking"
"""Fact of a split that has a share of the data, but not enough for a sample: the reason."""
MASKS_OPTION = "masks"
"""Option of a handoff's recipe: those of `MASKS` that nanoset.yaml sets."""
