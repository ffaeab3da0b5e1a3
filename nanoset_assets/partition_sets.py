"""Dagster partitions that are corpora.

Stages that every corpus goes through share one set of dynamic partitions. A stage that only some
corpora go through, such as `packed_dataset`, has a separate set with the name of its asset. If it
used the shared set, Dagster would show the other corpora as missing forever, and "Materialize all"
would end as a failed backfill.
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
    """Return the stages whose assets have corpora as partitions, in the order of the pipeline."""
    return [stage for stage in stages() if is_of_corpora(stage) and is_asset(stage)]


def partition_set_of(names: Names, stage: Stage) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of a stage's asset, which are corpora.

    Args:
        names: The names of the project in Dagster.
        stage: One of `stages_of_corpora`.

    Returns:
        The set of all corpora; or a separate set, if only some corpora have the asset.
    """
    goes_through_all_corpora = isinstance(stage, CorpusStage)
    if goes_through_all_corpora:
        return names.corpora
    return names.partition_set(shape_of(stage).asset)


def corpora_by_partition_set(
    config: ProjectConfig, names: Names, corpora: Iterable[str]
) -> dict[str, set[str]]:
    """Return which corpora belong to each set of partitions in Dagster.

    One set contains all corpora. An asset that only some have, such as `.pbin` files, has its own.

    Args:
        config: The settings of nanoset.yaml, which decide which corpora have which assets.
        names: The names of the project in Dagster.
        corpora: The corpora of the raw folder.

    Returns:
        Name of the set → its corpora: `{"corpora": {"web", "books"}, "packed_dataset": {"web"}}`.
    """
    all_corpora = set(corpora)
    corpora_by_set = {names.corpora_name: all_corpora}
    for stage in stages_of_corpora():
        if isinstance(stage, CorpusStage):
            continue  # all corpora go through this stage, so it has the set of all corpora
        # Each output that nanoset.yaml requests of the stage has a key, which names its corpus.
        requested = {key.subject for key in stage.keys(config, sorted(all_corpora))}
        set_name = names.path_name(shape_of(stage).asset)
        corpora_by_set[set_name] = requested & all_corpora
    return corpora_by_set


def assets_of_partition_set(names: Names, set_name: str) -> list[dg.AssetKey]:
    """Return the assets whose partitions are the corpora of a set.

    Args:
        names: The names of the project in Dagster.
        set_name: The name of the set, a key of what `corpora_by_partition_set` returns.

    Returns:
        The keys of the assets, in the order of the pipeline.
    """
    keys: list[dg.AssetKey] = []
    for stage in stages_of_corpora():
        if partition_set_of(names, stage).name == set_name:
            keys.append(names.asset(shape_of(stage).asset))
    return keys


def register(
    instance: dg.DagsterInstance, names: Names, corpora: Collection[str], config: ProjectConfig
) -> None:
    """Register corpora as partitions of their assets; known ones are left unchanged.

    Args:
        instance: The instance of Dagster, which stores the partitions.
        names: The names of the project in Dagster.
        corpora: The corpora of the raw folder.
        config: The settings of nanoset.yaml, which decide which assets each corpus has.
    """
    from sqlalchemy.exc import IntegrityError

    for set_name, members in corpora_by_partition_set(config, names, corpora).items():
        registered = instance.get_dynamic_partitions(set_name)
        new = sorted(members.difference(registered))
        if not new:
            continue
        try:
            instance.add_dynamic_partitions(set_name, new)
        except IntegrityError:
            # Another build added some meanwhile. Dagster skips those that exist at the second call.
            instance.add_dynamic_partitions(set_name, new)
