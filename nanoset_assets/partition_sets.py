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
    """Return the set of Dagster partitions of a pipeline step that is done for corpora.

    A corpus is a collection of documents. In Dagster, it is a partition of each asset that is made
    of it. Most steps are done for all corpora, and share one set. A few are only done for some,
    such as writing a `.pbin`, and each of these has a set of its own:

        step                    partitions
        tokenized_shards        web, books, code     (the common set `corpora`)
        packed_dataset          web                  (the set `packed_dataset`)

    Args:
        names: Knows the names of the project in Dagster.
        stage: The step of the pipeline.
    """
    is_done_for_all_corpora = isinstance(stage, CorpusStage)
    if is_done_for_all_corpora:
        return names.corpora
    return names.partition_set(shape_of(stage).asset)


def corpora_by_partition_set(
    config: ProjectConfig, names: Names, corpora: Iterable[str]
) -> dict[str, set[str]]:
    """Return which corpora belong to which set of partitions in Dagster.

    A corpus is a collection of documents. In Dagster, an asset such as the dataset is divided into
    partitions, one for each corpus. Which partitions an asset has is a set with a name:

        "corpora"           web, books    used by the assets that are made of every corpus
        "packed_dataset"    web           used by the asset packed_dataset, which the settings
                                          request only for web

    Args:
        config: The settings, which say which asset is made of which corpora.
        names: Knows the names of the project in Dagster.
        corpora: Names of all corpora.

    Returns:
        Name of each set → the corpora in it.
    """
    all_corpora = set(corpora)
    corpora_by_set = {names.corpora_name: all_corpora}
    for stage in stages_of_corpora():  # the steps of the pipeline that are done for corpora
        if isinstance(stage, CorpusStage):
            continue  # this step is done for every corpus, so its asset uses the first set
        # For which corpora do the settings request this step? `stage.keys` names its outputs: the
        # subject of each is the corpus.
        requested = {key.subject for key in stage.keys(config, sorted(all_corpora))}
        set_name = names.path_name(shape_of(stage).asset)  # such as "packed_dataset"
        corpora_by_set[set_name] = requested & all_corpora
    return corpora_by_set


def assets_of_partition_set(names: Names, set_name: str) -> list[dg.AssetKey]:
    """Return the Dagster assets that have a certain set of corpora as partitions.

    For example:

        corpora           raw_jsonl, tokenized_shards, indexed_dataset     (made of every corpus)
        packed_dataset    packed_dataset                                   (made of some corpora)

    Args:
        names: Knows the names of the project in Dagster.
        set_name: Name of the set, such as "corpora".

    Returns:
        The keys of the assets, in the order in which they are made.
    """
    keys: list[dg.AssetKey] = []
    for stage in stages_of_corpora():
        if partition_set_of(names, stage).name == set_name:
            keys.append(names.asset(shape_of(stage).asset))
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
