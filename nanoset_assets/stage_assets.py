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
    """Return which Dagster assets a step of the pipeline has, and which outputs belong to each.

    There are two kinds of steps. A corpus is a collection of documents:

        step is done for                its assets
        each data mixture, such as      one for each mixture; the partitions are its outputs, such
        writing index files             as the splits train and valid
        each corpus, such as            one for all corpora; the partitions are the corpora, which
        tokenizing                      may be added while Dagster runs

    What is returned for these two steps ("" is ALL_CORPORA, and takes the place of a name):

        {"pretrain": [Key("pretrain", "train"), Key("pretrain", "valid")]}
        {"": [Key("")]}

    Args:
        stage: The step of the pipeline.
        config: The settings of the project.

    Returns:
        Empty if the settings request no output of the step, or if its outputs are not shown in
        Dagster.
    """
    if not is_asset(stage):
        return {}
    # `stage.keys` returns the outputs of the step, for given names of the corpora. The corpora are
    # not known yet. So pretend that there is a single one, whose name is "".
    requested_keys = list(stage.keys(config, (ALL_CORPORA,)))  # one key for each output
    if is_of_corpora(stage):
        if not requested_keys:
            return {}
        return {ALL_CORPORA: [Key(ALL_CORPORA)]}

    keys_by_subject: dict[str, list[Key]] = defaultdict(list)
    for key in requested_keys:
        keys_by_subject[key.subject].append(key)
    return dict(keys_by_subject)


def key_of(context: Any, stage: Stage, subject: str) -> Key:
    """Return which output a run of a Dagster asset has to make, or has to check.

        asset                              partition    output
        index mappings of `pretrain`       "train"      Key("pretrain", "train")
        files for trainers of `pretrain`   none         Key("pretrain")
        tokens of all corpora              "web"        Key("web")

    A corpus is a collection of documents, and `pretrain` a mixture of several.

    Args:
        context: Dagster's context of the run, which has the partition.
        stage: The step of the pipeline that the asset belongs to.
        subject: What the asset is made for, such as "pretrain". It is not used for corpora, of
            which the partition is the name.
    """
    partition = context.partition_key if context.has_partition_key else None
    if is_of_corpora(stage):
        return Key(partition or "")  # "" if the run was started for no partition: it will fail
    return Key(subject, partition)


def partitions_of(
    stage: Stage, project_defs: ProjectDefs, keys: Sequence[Key]
) -> dg.PartitionsDefinition[str] | None:
    """Return the partitions of a Dagster asset, each of which is an output; None if it has none.

        asset                              partitions
        tokens of all corpora              web, books, …      (corpora can be added at any time)
        index mappings of `pretrain`       train, valid       (a fixed list)
        files for trainers of `pretrain`   None

    Args:
        stage: The step of the pipeline that the asset belongs to.
        project_defs: The names and settings of the project in Dagster.
        keys: The outputs of the asset, such as [Key("pretrain", "train"), Key("pretrain",
            "valid")].
    """
    if is_of_corpora(stage):
        return partition_set_of(project_defs.names, stage)  # corpora
    parts = [key.part for key in keys if key.part is not None]  # such as ["train", "valid"]
    if not parts:
        return None
    return dg.StaticPartitionsDefinition(parts)


def stage_asset(
    stage: Stage, project_defs: ProjectDefs, subject: str, keys: Sequence[Key]
) -> dg.AssetsDefinition:
    """Make the Dagster asset for a step of the pipeline, such as the index files of a mixture.

    An asset is a function that makes an output, with a description of it: what it is made from, how
    it looks in the UI, and so on. Dagster calls the function when somebody clicks on Materialize,
    or when a sensor requests the output.

    Args:
        stage: The step of the pipeline.
        project_defs: The names and settings of the project in Dagster.
        subject: What the asset is made for, such as the mixture "pretrain"; or ALL_CORPORA.
        keys: The outputs of the asset, which are its partitions, such as the splits train and
            valid.

    Returns:
        The asset. Each run of it makes one partition.
    """

    def make_output(
        context: dg.AssetExecutionContext, config: RunOptions
    ) -> Iterator[dg.MaterializeResult[Any]]:
        # Dagster calls this function in a run, to make the output of one partition. Each asset has
        # such a function of its own: it uses the variables `project_defs`, `stage` and `subject` of
        # the function around it, which has defined it for this asset. (It has no docstring, since
        # Dagster would show that as the description of an asset that has none.)
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

    For the asset with the shuffled order of the mixture `pretrain`, for example:

        key            pretrain/blend
        group_name     pretrain     (a box around all assets of this mixture)
        owners         ["team:data"]
        description    a text for users
        metadata       where its files are, …

    Args:
        stage: The step of the pipeline that the asset belongs to.
        project_defs: The names and settings of the project in Dagster.
        subject: What the asset is made for, such as "pretrain"; or ALL_CORPORA, for an asset whose
            partitions are corpora (collections of documents).
    """
    names = project_defs.names
    shape = shape_of(stage)
    # Dagster's graph shows only the last part of a key, such as `blend`. In a box with the name of
    # the mixture, it is clear which blend it is.
    group = GROUP if is_of_corpora(stage) else subject
    # Describe the location as a property of the asset, and not of a run, which would show the old
    # location after the project was moved.
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

    These are tags for the machine that executes a run, how many times Dagster tries it again after
    an error, whether it may end without an output, and which runs must not be executed at the same
    time.

    Args:
        stage: The step of the pipeline that the asset belongs to.
        project_defs: The settings of the project in Dagster.
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
    """Return the pool of an asset's runs: Dagster limits how many runs of a pool execute at once.

    Some steps of the pipeline, such as tokenizing, start a process for each core of the machine.
    Two such runs would only slow each other down, so all of them are in one pool.

    Args:
        shape: Says whether the step starts such processes.
        project_defs: The settings of the project in Dagster. The user can name another pool, which
            also has runs of other projects.

    Returns:
        Name of the pool; None if nothing is limited.
    """
    if not shape.uses_workers:
        return None
    return project_defs.pool or project_defs.names.path_name(WORKERS_POOL)


def _results_of(run: AssetRun) -> Iterator[dg.MaterializeResult[Any]]:
    """Make the output of a run, and yield what Dagster records of it.

    Two cases are different:

    - The settings no longer request the output, since somebody has changed them after Dagster
      loaded them. Then nothing is made, and the log says so.
    - The user has set a function `execute`, which does something before or after the output is
      made. Then this function is called in place of the usual one.

    Args:
        run: Knows the output, and how to make it.
    """
    config = run.project.config
    if _can_be_skipped(run.stage, config, run.key):
        note = f"{config.file} does not request {label_of(run.node)}: there is nothing to make"
        run.context.log.info(visible(note))
    elif run.project_defs.execute is None:
        yield from run.results()
    else:
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

    For example, `{"nanoset/stage": "mapping", "nanoset/preset": "megatron"}`: a step that makes the
    files of a data mixture, for the trainer Megatron-LM. Tags that the user has set are added, and
    replace those with the same name.

    Args:
        shape: Describes the assets of the step of the pipeline in Dagster.
        project_defs: The settings of the project, with the user's tags.
        subject: What the asset is made for, such as the mixture "pretrain".
    """
    tags: dict[str, str] = {}
    if shape.tag is not None:
        tags["nanoset/stage"] = shape.tag
    # Steps with this tag make the files of a data mixture for one trainer: name the trainer.
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
        # It lists the raw files. These are no output of the project, but assets of the user may
        # write them.
        return _landing_dependencies(project_defs)
    dependencies: list[dg.AssetDep] = []
    for asset, partitions in _partitions_read(stage, project_defs.config, keys).items():
        mapping = None  # Dagster's default: the partition of the same name, or else all of them
        if partitions:
            mapping = dg.SpecificPartitionsPartitionMapping(partitions)
        dependencies.append(dg.AssetDep(project_defs.names.asset(asset), partition_mapping=mapping))
    return dependencies


def _partitions_read(
    stage: Stage, config: ProjectConfig, keys: Sequence[Key]
) -> dict[tuple[str, ...], list[str]]:
    """Return the assets that an asset reads, with the partitions that Dagster has to be told.

    For a mixture of the corpora (collections of documents) `web` and `books`, whose datasets are
    two of the partitions of one asset:

        {("indexed_dataset",): ["web", "books"]}

    An asset that is read in the way that Dagster assumes by default has an empty list. These are
    assets without partitions, and those of which each partition is read by the one of the same
    name: the dataset of `web` is made from the tokens of `web`.

    Args:
        stage: The step of the pipeline that the reading asset belongs to.
        config: The settings of the project.
        keys: The outputs of the reading asset.

    Returns:
        Path of each asset that is read → names of its partitions, or an empty list.
    """
    partitions_by_asset: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key in keys:
        for source in Node(stage, key).direct_inputs(config):
            # Look up the list of the asset. If there is none yet, this adds an empty one.
            partitions = partitions_by_asset[asset_path(source)]
            partition = partition_of(source)  # such as "web"; None if the asset has no partitions
            if partition is not None and _reads_only_some_partitions(stage, source):
                partitions.append(partition)
    # Several outputs, such as train and valid, may read the same partition: list it once.
    return {asset: list(dict.fromkeys(names)) for asset, names in partitions_by_asset.items()}


def _reads_only_some_partitions(stage: Stage, source: Node) -> bool:
    """Return whether Dagster has to be told which partitions of an asset another asset reads.

    By default, Dagster assumes: if both assets have the same partitions, each one reads the
    partition of its own name; otherwise, it reads all partitions. That is not always right. `web`
    and `books` are collections of documents (corpora):

        reading asset              partitions that it reads      told?
        datasets: web, books       tokens: web, books            no: `web` does read `web`
        the mixture `pretrain`     datasets: web, books, …       yes: only those in the mixture
        the mixture `pretrain`     views of `web`: best, new     yes: only `best`, for example
                                   (selections of documents)

    Args:
        stage: The step of the pipeline that the reading asset belongs to.
        source: An output that it reads: one partition of the other asset.
    """
    # Views, packs and the like: other assets always read certain partitions of them (see
    # `AssetShape.is_read_by_partition`).
    if shape_of(source.stage).is_read_by_partition:
        return True
    # The partitions of the other asset are the corpora, and those of the reading asset are not.
    return is_of_corpora(source.stage) and not is_of_corpora(stage)


def _landing_dependencies(project_defs: ProjectDefs) -> list[dg.AssetDep]:
    """Return dependencies on the user's assets that write raw text, for the list of its files.

    For example, the asset `crawl` downloads the text of the corpus `web`. So Dagster draws an arrow
    from `crawl` to the asset that lists the files of all corpora. It cannot be told that `crawl`
    only writes `web`: every corpus is shown to depend on every such asset.

    Args:
        project_defs: Its `upstream` says which assets write which corpus, such as `{"web":
            (AssetKey("crawl"),)}`.
    """
    assets = dict.fromkeys(chain.from_iterable(project_defs.upstream.values()))  # each once
    return [dg.AssetDep(asset, partition_mapping=dg.AllPartitionMapping()) for asset in assets]


def _live_location(stage: Stage, config: ProjectConfig, subject: str) -> str:
    """Return where the files of an asset's current version are, for its page in Dagster's UI.

    If the names of its outputs are not known in advance, they are placeholders in angle brackets:

        on a disk      /data/outputs/datasets/<corpus>/current
        in a bucket    s3://bucket/outputs/datasets/<corpus>/<digest>      (buckets have no links)
        raw files      /data/raw/<corpus>

    Args:
        stage: The step of the pipeline that the asset belongs to.
        config: The settings when Dagster loaded them.
        subject: What the asset is made for, such as the mixture "pretrain"; or ALL_CORPORA.
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
