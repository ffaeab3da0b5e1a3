"""Dagster partitions that are corpora.

Stages that every corpus goes through share one set of dynamic partitions. A stage that only some
corpora go through, such as `packed_dataset`, has a separate set with the name of its asset. If it
used the shared set, Dagster would show the other corpora as missing forever, and "Materialize all"
would end as a failed backfill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import dagster as dg

from nanoset_assets.assets.output_names import is_asset
from nanoset_assets.assets.table import shape_of
from nanoset_assets.names import Names
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import CorpusStage, Stage, is_of_corpora


def stages_of_corpora() -> list[Stage]:
    """Return the stages whose assets have corpora as partitions, in the order of the pipeline."""
    return [stage for stage in stages() if is_of_corpora(stage) and is_asset(stage)]


def partition_set_of(names: Names, stage: Stage) -> dg.DynamicPartitionsDefinition:
    """Return the set of Dagster partitions of a pipeline step that is done for text collections.

    Each collection (corpus) is a partition. Most steps are done for all corpora, and share one set.
    Others are done only for some corpora, and have a set of their own:

        step                       set                partitions
        tokenizing                 corpora            web, books, code
        writing a .pbin            packed_dataset     web

    Args:
        names: Knows the names of the project in Dagster.
        stage: The step of the pipeline.
    """
    is_done_for_all_corpora = isinstance(stage, CorpusStage)
    if is_done_for_all_corpora:
        return names.corpora
    asset_name = shape_of(stage).asset  # such as "packed_dataset"
    return names.partition_set(asset_name)


def corpora_by_partition_set(
    config: ProjectConfig, names: Names, corpora: Iterable[str]
) -> dict[str, set[str]]:
    """Return which text collections (corpora) are in each set of partitions in Dagster.

    One set has all corpora. Each step that is only done for some corpora has a set of its own:

        {"corpora": {"web", "books"}, "packed_dataset": {"web"}}

    Args:
        config: The settings, which say for which corpora a step is done.
        names: Knows the names of the project in Dagster.
        corpora: Names of all corpora.

    Returns:
        Name of each set → the corpora in it.
    """
    all_corpora = set(corpora)
    corpora_by_set = {names.corpora_name: all_corpora}
    for stage in stages_of_corpora():
        is_done_for_all_corpora = isinstance(stage, CorpusStage)
        if is_done_for_all_corpora:
            continue
        requested_keys = stage.keys(config, sorted(all_corpora))  # such as [Key("web")]
        requested_corpora = {key.subject for key in requested_keys}
        set_name = names.path_name(shape_of(stage).asset)  # such as "packed_dataset"
        corpora_by_set[set_name] = requested_corpora & all_corpora
    return corpora_by_set


def assets_of_partition_set(names: Names, set_name: str) -> list[dg.AssetKey]:
    """Return the Dagster assets that have a certain set of partitions.

    For example, the set `corpora` of all text collections belongs to the assets raw_jsonl,
    tokenized_shards and indexed_dataset.

    Args:
        names: Knows the names of the project in Dagster.
        set_name: Name of the set.

    Returns:
        The keys of the assets, in the order in which they are made.
    """
    keys: list[dg.AssetKey] = []
    for stage in stages_of_corpora():  # each of these steps has one asset
        if partition_set_of(names, stage).name == set_name:
            asset_name = shape_of(stage).asset
            keys.append(names.asset(asset_name))
    return keys


def register(
    instance: dg.DagsterInstance, names: Names, corpora: Collection[str], config: ProjectConfig
) -> None:
    """Make sure that Dagster knows each corpus as a partition of the assets that are made of it.

    A corpus is a collection of documents. When a new one appears, say `news`, it has to be added to
    Dagster's sets of partitions before a run can build it. Corpora that Dagster knows are left as
    they are.

    Args:
        instance: The Dagster instance, which stores the sets.
        names: Knows the names of the project in Dagster.
        corpora: Names of all corpora.
        config: The settings, which say which asset is made of which corpora.
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
            # Another process has just added one of them. Call again: Dagster looks up which exist
            # when it is called, and skips them.
            instance.add_dynamic_partitions(set_name, new)
