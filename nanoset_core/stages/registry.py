"""The list of all stages of the pipeline, in order.

A stage makes one kind of output, such as the packs of a corpus. Stages from outside this package
are added with `add_stage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from nanoset_core.errors import ConfigError
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

_BUILT_IN: tuple[Stage, ...] = (
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
"""The stages of this package. Each comes after the stages that its outputs are made from."""
_added: list[Stage] = []
"""Stages from outside this package, in the order in which they were added."""


def stages() -> tuple[Stage, ...]:
    """Return all stages, the added ones last."""
    return (*_BUILT_IN, *_added)


def add_stage(stage: Stage) -> None:
    """Add a stage from outside this package, so that builds and commands know its outputs.

    Args:
        stage: The stage. If it was added before, it is not added again.

    Raises:
        ConfigError: Its outputs would be stored in the folders of another stage's outputs.
    """
    if stage in stages():
        return
    check_layouts([*stages(), stage])
    _added.append(stage)


def check_layouts(all_stages: Sequence[Stage]) -> None:
    """Check that no two stages store outputs in the same folders.

    Otherwise, each would take the outputs of the other for its own, and replace them.

    Args:
        all_stages: The stages.

    Raises:
        ConfigError: Two stages store outputs in the same folders.
    """
    for stage, other in combinations(all_stages, 2):
        if not stage.layout.overlaps(other.layout) or _is_variant(stage, other):
            continue
        raise ConfigError(
            "two stages store their outputs in the same folders, and would replace each other's",
            where=f"the layout of the stage {type(other).__name__}",
            found="/".join([other.layout.folder, *other.layout.path]),
            expected=f"other folders than those of the stage {type(stage).__name__}",
            remedy="choose another folder in the layout",
        )


def _is_variant(stage: Stage, other: Stage) -> bool:
    """Return whether the class of one stage is derived from that of the other.

    Such stages divide the outputs in their folders among themselves. For example, two stages write
    `.pbin` files: one for each corpus, and the other for each view. But two stages of the same
    class would make the same outputs.
    """
    has_same_class = type(stage) is type(other)
    is_derived = isinstance(stage, type(other)) or isinstance(other, type(stage))
    return is_derived and not has_same_class


def sweep(project: Project) -> None:
    """Remove the temporary files that killed processes of a project left behind.

    Such files are, for example, the half-written tokens of a build that ran out of memory. Files of
    processes that are still running stay.

    Args:
        project: The project. Its outputs and its folder for Slurm are searched.
    """
    outputs = project.outputs
    outputs.sweep()  # unfinished versions of outputs
    sweep_abandoned(project.slurm_folder)  # keys of Dask clusters that were started on Slurm
    sweep_runs(outputs.access)  # files that builds copied for their workers
    for stage in stages():
        if isinstance(stage, Resumable):
            stage.sweep(outputs)


def stage_of(folder: str, name: str) -> Stage | None:
    """Return the stage that stores its versions in a folder of the output root, or None.

    Args:
        folder: First folder of the path below the root, such as `datasets`.
        name: The rest of the path.
    """
    for stage in stages():
        if stage.layout.folder == folder and stage.layout.key_of(name) is not None:
            return stage
    return None
