"""Sets of partitions whose keys are corpora.

A stage that every corpus has shares one set. A stage that only some corpora have, such as
`packed_dataset`, has a set of its own, named like its asset: the other partitions of the shared set
would stay missing forever, and "Materialize all" would end as a failed backfill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import dagster as dg

from nanoset_assets.asset_names import is_asset
from nanoset_assets.asset_table import shape_of
from nanoset_assets.names import Names
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import CorpusStage, Stage, is_of_corpora


def stages_of_corpora() -> list[Stage]:
    """Return the stages whose assets have corpora as partitions."""
    return [stage for stage in stages() if is_of_corpora(stage) and is_asset(stage)]


def partition_set_of(names: Names, stage: Stage) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of the asset of a stage whose partitions are corpora."""
    if isinstance(stage, CorpusStage) or not is_asset(stage):
        return names.corpora
    return names.partition_set(shape_of(stage).asset)


def corpora_by_partition_set(
    config: ProjectConfig, names: Names, corpora: Iterable[str]
) -> dict[str, set[str]]:
    """Return name of each set of partitions → those of some corpora that belong to it."""
    present = set(corpora)
    corpora_by_set = {names.corpora_name: present}
    for stage in stages_of_corpora():
        if isinstance(stage, CorpusStage):
            continue
        requested = {key.subject for key in stage.keys(config, sorted(present))}
        set_name = partition_set_of(names, stage).name or ""
        corpora_by_set[set_name] = requested & present
    return corpora_by_set


def assets_of_partition_set(names: Names, set_name: str) -> list[dg.AssetKey]:
    """Return the assets whose partitions are those of a set."""
    keys: list[dg.AssetKey] = []
    for stage in stages_of_corpora():
        if partition_set_of(names, stage).name == set_name:
            keys.append(names.asset(shape_of(stage).asset))
    return keys


def register(
    instance: dg.DagsterInstance, names: Names, corpora: Collection[str], config: ProjectConfig
) -> None:
    """Add corpora that the instance does not know as partitions of the assets that they have."""
    from sqlalchemy.exc import IntegrityError

    for set_name, members in corpora_by_partition_set(config, names, corpora).items():
        registered = instance.get_dynamic_partitions(set_name)
        new = sorted(members.difference(registered))
        if not new:
            continue
        try:
            instance.add_dynamic_partitions(set_name, new)
        except IntegrityError:  # another build added some of them at this very moment
            instance.add_dynamic_partitions(set_name, new)
