"""The list of all stages of the pipeline, in order."""

from __future__ import annotations

from nanoset_core.execution.compatibility import sweep_runs
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.stage import ATTRIBUTE_TABLES, ATTRIBUTES
from nanoset_core.stages.columns.stage import COLUMN_TABLES, COLUMNS
from nanoset_core.stages.contamination.stage import CONTAMINATION, INTERNAL
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.held_out import stage as held_out
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.pbin.stage import PBIN, PBIN_DERIVED
from nanoset_core.stages.shards.stage import SHARD, TOKENIZED
from nanoset_core.stages.stage import Resumable, Stage
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.webdataset.stage import SHUFFLE_PLAN, SHUFFLED_TARS, WEBDATASET
from nanoset_core.storage.atomic import sweep_abandoned

_OURS: tuple[Stage, ...] = (
    INVENTORY,
    SHARD,
    TOKENIZED,
    DATASET,
    COLUMN_TABLES,
    COLUMNS,
    ATTRIBUTE_TABLES,
    ATTRIBUTES,
    *INTERNAL,
    CONTAMINATION,
    VIEW,
    PACKS,
    EXPORT,
    held_out.TOKEN_HASHES,
    held_out.HELD_OUT,
    INDEX_MAPPINGS,
    BLENDED,
    TRAINER_FILES,
    SHUFFLE_PLAN,
    SHUFFLED_TARS,
    WEBDATASET,
    PBIN,
    PBIN_DERIVED,
)
_added: list[Stage] = []


def stages() -> tuple[Stage, ...]:
    """Return all stages; added ones come last."""
    return (*_OURS, *_added)


def add_stage(stage: Stage) -> None:
    """Add a stage from outside this package to the graph."""
    if stage not in stages():
        _added.append(stage)


def sweep(project: Project) -> None:
    """Remove unfinished files of killed processes, wherever outputs are made, and keys of their
    clusters.
    """
    outputs = project.outputs
    outputs.sweep()
    sweep_abandoned(project.slurm_folder)
    sweep_runs(outputs.access)
    for stage in stages():
        if isinstance(stage, Resumable):
            stage.sweep(outputs)


def stage_of(folder: str, name: str) -> Stage | None:
    """Return the stage whose versions are in `<folder>/<name>` below the root, or None if no stage
    has such outputs.
    """
    for stage in stages():
        if stage.layout.folder == folder and stage.layout.key_of(name) is not None:
            return stage
    return None
