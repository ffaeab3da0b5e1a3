"""The jobs of a project: one for all corpora, and one for each nanoset and webdataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.names import Names
from nanoset_core.pipeline.stage import Stage

_DESCRIPTIONS = {"corpus": "One corpus, from files to .bin/.idx.", "packed": "A corpus as Modalities' .pbin."}


def job_of(stage: Stage, subject: str) -> str:
    """The job that an asset is a part of: all of a nanoset or webdataset, or one kind of all corpora."""
    return stage.kind if stage.by_corpus else subject.replace("-", "_")


def jobs_over(
    names: Names, by_job: Mapping[str, Sequence[dg.AssetsDefinition]], tags: Mapping[str, str]
) -> dict[str, Any]:
    """Job → its definition, by the name that the pipeline knows it by; `tags` are on all their runs."""
    return {
        job: dg.define_asset_job(
            names.unit(job),
            assets,
            description=_DESCRIPTIONS.get(job, f"All of {job}."),
            # Parallelism lives in worker processes of the core; a process for each step would only add seconds.
            tags=tags,
            executor_def=dg.in_process_executor,
        )
        for job, assets in by_job.items()
    }
