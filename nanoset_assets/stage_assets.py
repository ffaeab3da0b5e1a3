"""Make the Dagster assets of a project, one for each stage and subject.

A *subject* is the nanoset, webdataset, … that outputs belong to. Its outputs are the partitions of
the asset, such as the splits of a nanoset. Stages whose subjects are corpora are an exception: they
have one asset for all corpora, and its partitions are the corpora. So new corpora can be added
while definitions are loaded.

    stage             subject     asset                     partitions
    DATASET           all         indexed_dataset           web, books, …
    INDEX_MAPPINGS    pretrain    pretrain/index_mappings   train, valid, test

The key, partitions and dependencies of an asset follow from its stage. Everything else, such as its
description, is listed in `asset_table.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import dagster as dg
from pydantic import Field

from nanoset_assets.asset_names import asset_path, input_label, is_asset, label_of, partition_of
from nanoset_assets.asset_run import AssetRun
from nanoset_assets.asset_table import WORKERS_POOL, AssetShape, shape_of
from nanoset_assets.partition_sets import partition_set_of
from nanoset_assets.project_defs import ProjectDefs
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import Key, Node, Stage, is_of_corpora
from nanoset_core.untrusted import visible

GROUP = "corpora"
"""Group of the assets whose partitions are corpora. Other assets have a group for each subject."""
ALL_CORPORA = ""
"""Takes the place of the subject for an asset whose partitions are corpora."""


class RunOptions(dg.Config):
    """Options of a run of an asset, which the user may set in Dagster's Launchpad."""

    rebuild: bool = Field(default=False, description="Rebuild the output even if it is up to date.")


def asset_outputs(stage: Stage, config: ProjectConfig) -> dict[str, list[Key]]:
    """Return the assets of a stage of the pipeline in Dagster, and the outputs of each.

    Most assets belong to one *subject*, such as a nanoset, which is a mixture of data for training.
    Its outputs are then the partitions of the asset. A stage that works on corpora, such as the
    tokenizer, has a single asset for all of them, whose partitions are added as corpora appear:

        index mappings of the nanoset `pretrain`    {"pretrain": [Key("pretrain", "train"), …]}
        tokens of all corpora                       {ALL_CORPORA: [Key(ALL_CORPORA)]}

    Args:
        stage: The stage.
        config: The settings of the project.

    Returns:
        Subject → keys of the outputs. Empty if the settings request no output of the stage, or if
        its outputs are not shown as assets.
    """
    if not is_asset(stage):
        return {}
    # The corpora are not known yet. So ask for the outputs of a project whose only corpus has the
    # name "" (`ALL_CORPORA`).
    requested_keys = list(stage.keys(config, (ALL_CORPORA,)))
    if is_of_corpora(stage):
        if not requested_keys:
            return {}
        return {ALL_CORPORA: [Key(ALL_CORPORA)]}

    keys_by_subject: dict[str, list[Key]] = defaultdict(list)
    for key in requested_keys:
        keys_by_subject[key.subject].append(key)
    return dict(keys_by_subject)


def key_of(context: Any, stage: Stage, subject: str) -> Key:
    """Return which output a run of an asset has to make, or has to check.

        asset                              partition    output
        index mappings of `pretrain`       "train"      Key("pretrain", "train")
        files for trainers of `pretrain`   none         Key("pretrain")
        tokens of all corpora              "web"        Key("web")

    Args:
        context: The context of the run in Dagster, which has the partition.
        stage: The step of the pipeline that the asset belongs to.
        subject: What the asset is of, such as the nanoset `pretrain`; not used for assets of
            corpora.
    """
    partition = context.partition_key if context.has_partition_key else None
    if is_of_corpora(stage):
        return Key(partition or "")  # "" if the run was started for no partition: it will fail
    return Key(subject, partition)


def partitions_of(
    stage: Stage, project_defs: ProjectDefs, keys: Sequence[Key]
) -> dg.PartitionsDefinition[str] | None:
    """Return the partitions of an asset, or None for an asset without partitions.

    Args:
        stage: The step of the pipeline that makes the outputs of the asset.
        project_defs: The names and settings of the project in Dagster.
        keys: The outputs of the asset.

    Returns:
        The corpora, which may be added at any time; or a fixed list, such as train, valid and test.
    """
    if is_of_corpora(stage):
        return partition_set_of(project_defs.names, stage)  # corpora
    # Parts are the splits of a nanoset or the groups of tars of a webdataset, for example.
    parts = [key.part for key in keys if key.part is not None]
    return dg.StaticPartitionsDefinition(parts) if parts else None


def stage_asset(
    stage: Stage, project_defs: ProjectDefs, subject: str, keys: Sequence[Key]
) -> dg.AssetsDefinition:
    """Make the asset of a stage for one nanoset, webdataset, …, or for all corpora.

    Args:
        stage: The stage, which makes one kind of output, such as index mappings.
        project_defs: The names and settings of the project in Dagster.
        subject: The subject of all outputs of the asset, or `ALL_CORPORA`.
        keys: The outputs of the asset, which are its partitions.

    Returns:
        The asset. A run of it makes the output of one partition.
    """

    def make_output(
        context: dg.AssetExecutionContext, config: RunOptions
    ) -> Iterator[dg.MaterializeResult[Any]]:
        # Dagster calls this function in a run, to make the output of one partition. (Dagster would
        # show a docstring as the description of an asset that has none.)
        project = project_defs.open_in_run(context, rebuild=config.rebuild)
        run = AssetRun(
            context=context,
            project_defs=project_defs,
            project=project,
            stage=stage,
            key=key_of(context, stage, subject),
            make_page=shape_of(stage).make_page,
            input_label=input_label,
        )
        yield from _results_of(run)

    define_asset: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
        deps=_dependencies(stage, project_defs, keys),
        partitions_def=partitions_of(stage, project_defs, keys),
        code_version=str(stage.version),
        **_appearance(stage, project_defs, subject),
        **_run_settings(stage, project_defs),
    )
    return define_asset(make_output)


def _appearance(stage: Stage, project_defs: ProjectDefs, subject: str) -> dict[str, Any]:
    """Return how an asset looks in Dagster's UI, as arguments of `dg.asset`.

    These are its name, a group (which the UI draws as a box around several assets), owners, icons,
    tags, a description, and where its files are.

    Args:
        stage: The step of the pipeline that the asset belongs to.
        project_defs: The names and settings of the project in Dagster.
        subject: What the asset is of, such as the nanoset `pretrain`; or `ALL_CORPORA`.
    """
    names = project_defs.names
    shape = shape_of(stage)
    # Dagster's graph shows only the last part of a key, such as `blend` of `pretrain/blend`. So
    # each subject has a group of its own, which the graph shows as a box with the name.
    group = GROUP if is_of_corpora(stage) else subject
    # The location is metadata of the definition, not of materialisations: if the project is moved,
    # a materialisation would still show the old location.
    location = _live_location(stage, project_defs.config, subject)
    return {
        "key": names.asset(asset_path(Node(stage, Key(subject)))),
        "group_name": names.group(group),
        "owners": list(project_defs.owners),
        "kinds": set(shape.kinds),
        "tags": _tags(shape, project_defs, subject),
        "description": shape.describe(subject),
        "metadata": {"dagster/uri": location, **shape.metadata},
    }


def _run_settings(stage: Stage, project_defs: ProjectDefs) -> dict[str, Any]:
    """Return how Dagster executes the runs of an asset, as arguments of `dg.asset`.

    Args:
        stage: The step of the pipeline that makes the outputs of the asset.
        project_defs: The settings of the project in Dagster, such as the number of retries.
    """
    shape = shape_of(stage)
    retries = project_defs.retries
    return {
        "op_tags": dict(project_defs.op_tags),
        "retry_policy": dg.RetryPolicy(retries) if retries else None,
        "output_required": shape.is_output_required,
        "pool": _pool_of(shape, project_defs),
    }


def _pool_of(shape: AssetShape, project_defs: ProjectDefs) -> str | None:
    """Return the pool that limits how many runs of an asset execute at once, or None.

    Stages with worker processes take all cores, so they share a pool.

    Args:
        shape: How the assets of the stage appear in Dagster.
        project_defs: The project, which may name a pool of the host.
    """
    if not shape.uses_workers:
        return None
    return project_defs.pool or project_defs.names.path_name(WORKERS_POOL)


def _results_of(run: AssetRun) -> Iterator[dg.MaterializeResult[Any]]:
    """Make the output of a run, unless it is no longer requested, and yield its materialisation.

    Args:
        run: The run of an asset, which knows the output and how to make it.
    """
    config = run.project.config
    if _can_be_skipped(run.stage, config, run.key):
        note = f"{config.file} does not request {label_of(run.node)}: there is nothing to make"
        run.context.log.info(visible(note))
    elif run.project_defs.execute is None:
        yield from run.results()
    else:
        # The host has set a function that does more than make the output.
        yield from run.project_defs.execute(run)


def _can_be_skipped(stage: Stage, config: ProjectConfig, key: Key) -> bool:
    """Return whether a run has nothing to make, because its output is no longer requested.

    This happens if somebody removes a nanoset from `nanoset.yaml` while Dagster runs, and then
    clicks on "Materialize all": Dagster still knows the assets of that nanoset, and starts runs of
    them.

    Args:
        stage: The step of the pipeline that the asset belongs to.
        config: The settings, as they are now.
        key: The output that the run is to make.
    """
    if shape_of(stage).is_output_required:
        # A run without an output fails in Dagster. So let the stage raise its error, which says
        # that the output is not requested.
        return False
    requested_keys = stage.keys(config, (key.subject,))
    return key not in requested_keys


def _tags(shape: AssetShape, project_defs: ProjectDefs, subject: str) -> dict[str, str]:
    """Return the tags of an asset, by which users can search for it in Dagster's UI.

    For example, `{"nanoset/stage": "mapping", "nanoset/preset": "megatron"}`, and tags that the
    project which uses this package has set. The latter take precedence.

    Args:
        shape: How the assets of the stage appear in Dagster.
        project_defs: The project, with the tags that are set for it.
        subject: What the asset is of, such as a nanoset.
    """
    tags: dict[str, str] = {}
    if shape.tag is not None:
        tags["nanoset/stage"] = shape.tag
    # Stages with this tag make the files of a nanoset, a data mixture for one trainer: name it.
    if shape.tag == "mapping":
        tags["nanoset/preset"] = project_defs.config.nanosets[subject].preset
    return {**tags, **project_defs.tags}


def _dependencies(
    stage: Stage, project_defs: ProjectDefs, keys: Sequence[Key]
) -> list[dg.AssetDep]:
    """Return the assets that an asset is made from, and which of their partitions it reads.

    For example, the nanoset `pretrain` mixes the corpora `web` and `books`. So its asset depends on
    the asset of all datasets, but only on the partitions `web` and `books` of it.

    Args:
        stage: The step of the pipeline that the asset belongs to.
        project_defs: The names and settings of the project in Dagster.
        keys: The outputs of the asset.
    """
    if stage is INVENTORY:
        # It lists the raw files, which are not an output. But assets of the host may write them.
        return _landing_dependencies(project_defs)
    dependencies: list[dg.AssetDep] = []
    for asset, partitions in _partitions_read(stage, project_defs.config, keys).items():
        # Without a mapping, Dagster assumes that each partition reads the one of the same name, or
        # else all of them.
        mapping = dg.SpecificPartitionsPartitionMapping(partitions) if partitions else None
        dependencies.append(dg.AssetDep(project_defs.names.asset(asset), partition_mapping=mapping))
    return dependencies


def _partitions_read(
    stage: Stage, config: ProjectConfig, keys: Sequence[Key]
) -> dict[tuple[str, ...], list[str]]:
    """Return the assets that an asset reads, and which partitions of each.

    For a mixture of the corpora `web` and `books`, whose datasets are partitions of one asset:

        {("indexed_dataset",): ["web", "books"]}

    The list is empty if Dagster gets it right by itself. By default, it assumes that each partition
    reads the one of the same name, such as the dataset of `web` the tokens of `web`; and if there
    is none, that all partitions are read.

    Args:
        stage: The step of the pipeline that the asset belongs to.
        config: The settings of the project.
        keys: The outputs of the asset.

    Returns:
        Path of an asset → names of its partitions.
    """
    partitions_by_asset: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key in keys:
        for source in Node(stage, key).direct_inputs(config):
            partitions = partitions_by_asset[asset_path(source)]
            partition = partition_of(source)
            if partition is not None and _reads_only_some_partitions(stage, source):
                partitions.append(partition)
    # Several outputs, such as train and valid, may read the same partition: list it once.
    return {asset: list(dict.fromkeys(names)) for asset, names in partitions_by_asset.items()}


def _reads_only_some_partitions(stage: Stage, source: Node) -> bool:
    """Return whether Dagster has to be told which partitions of an asset are read.

    Args:
        stage: The step of the pipeline that the reading asset belongs to.
        source: An output that it reads, which is a partition of another asset.
    """
    if shape_of(source.stage).is_read_by_partition:
        return True
    # A nanoset reads only some corpora. An asset whose own partitions are corpora reads the corpus
    # of the same name, which Dagster assumes by itself.
    return is_of_corpora(source.stage) and not is_of_corpora(stage)


def _landing_dependencies(project_defs: ProjectDefs) -> list[dg.AssetDep]:
    """Return dependencies on the assets of the host that land raw text.

    Dagster has no partition mapping for "this asset lands the text of these corpora", so every
    corpus is shown to depend on all of them.
    """
    assets = dict.fromkeys(chain.from_iterable(project_defs.upstream.values()))  # each once
    return [dg.AssetDep(asset, partition_mapping=dg.AllPartitionMapping()) for asset in assets]


def _live_location(stage: Stage, config: ProjectConfig, subject: str) -> str:
    """Return the path or URL of the current versions of an asset's outputs.

    Args:
        stage: The step of the pipeline that makes the outputs of the asset.
        config: The configuration when the definitions were loaded.
        subject: What the asset is of, such as a nanoset; or `ALL_CORPORA`.

    Returns:
        Such as `/data/outputs/datasets/<corpus>/current`, with placeholders in angle brackets.
    """
    if stage is INVENTORY:
        # An inventory lists raw files: show their folder rather than the list.
        return f"{config.raw_folder}/<corpus>"
    key = Key("<corpus>") if is_of_corpora(stage) else Key(subject, "<split>")
    path = f"{stage.layout.folder}/{stage.layout.name_of(key)}"
    # Locally, `current` is a link to the folder of the current version. A bucket has no links.
    if config.root_place is not None:
        return f"{config.root_place.url()}/{path}/<digest>"
    return f"{config.root_folder}/{path}/current"
