"""packed_dataset: a corpus as Modalities' .pbin."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.metadata import Before, bytes_text, markdown, per_second, plural, size_bytes
from nanoset_core.config.project import ProjectConfig
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import packed


def _details(config: ProjectConfig, subject: str) -> Mapping[str, Any]:
    return {
        "kinds": {"numpy", "file"},
        "tags": {"nanoset/stage": "packed"},
        "output_required": False,
        "description": f"A corpus as one Modalities .pbin, with the tokens of its indexed_dataset. Only "
        f"{', '.join(config.packed)} (listed under `packed` in nanoset.yaml): other partitions stay missing, and a run "
        "of one makes nothing.",
    }


@page_of(packed.PACKED, _details)
def packed_dataset(work: Work) -> Mapping[str, Any]:
    """Pack a corpus, and show its counts."""
    before = Before.versions(work.project, packed.STAGE, work.key.subject)
    manifest = work.make()
    facts = manifest.facts
    metadata = {
        "summary": markdown(_summary(manifest)),
        "file": dg.MetadataValue.path(manifest.url(facts["file"])),
        "dagster/row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "tokens", "token_bytes", "left_out")},
    }
    if before.is_new(manifest.digest):
        metadata["tokens_per_second"] = per_second(facts["tokens"], work.seconds)
    return metadata


def _summary(manifest: Manifest) -> str:
    facts = manifest.facts
    left_out = f"; {plural(facts['left_out'], 'document')} left out" if facts["left_out"] else ""
    return (
        f"**{plural(facts['documents'], 'document')}, {plural(facts['tokens'], 'token')}** of "
        f"{facts['token_bytes']} bytes each, {bytes_text(size_bytes(manifest))}{left_out}."
    )
