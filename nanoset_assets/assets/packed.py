"""packed_dataset: a corpus as Modalities' .pbin."""

from collections.abc import Mapping
from typing import Any

from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.corpus import packed_metadata
from nanoset_assets.ui.metadata import per_second, snapshot_before
from nanoset_core.config.project import ProjectConfig
from nanoset_core.pipeline import packed


def _details(config: ProjectConfig, subject: str) -> Mapping[str, Any]:
    return {
        "kinds": {"numpy", "file"},
        "tags": {"nanoset/stage": "packed"},
        "output_required": False,
        "description": "A corpus as one Modalities .pbin, with the tokens of its indexed_dataset. Only corpora that "
        "nanoset.yaml lists under `packed`: other partitions stay missing, and a run of one makes nothing.",
    }


@page_of(packed.PACKED, _details)
def packed_dataset(work: Work) -> Mapping[str, Any]:
    """Pack a corpus, and show its counts."""
    project = work.project
    is_new = snapshot_before(project, project.outputs.folder / packed.STAGE / work.key.subject)
    manifest = work.make()
    speed = {"tokens_per_second": per_second(manifest.facts["tokens"], work.seconds)} if is_new(manifest.digest) else {}
    return packed_metadata(manifest) | speed
