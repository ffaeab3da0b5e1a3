"""indexed_dataset: a corpus's shards merged into one .bin/.idx."""

from collections.abc import Mapping
from typing import Any

from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.corpus import dataset_metadata
from nanoset_core.config.project import ProjectConfig
from nanoset_core.pipeline import indexed


def _details(config: ProjectConfig, subject: str) -> Mapping[str, Any]:
    return {
        "kinds": {"numpy", "file"},
        "tags": {"nanoset/stage": "indexed"},
        "description": "A corpus as one Megatron indexed dataset: the .bin and .idx that preprocess_data.py would have "
        "written for the same lines, byte for byte. Give trainers the prefix in its folder, without the ending.",
    }


@page_of(indexed.DATASET, _details)
def indexed_dataset(work: Work) -> Mapping[str, Any]:
    """Merge a corpus's shards, and show its first documents and counts."""
    return dataset_metadata(work.project, work.make())
