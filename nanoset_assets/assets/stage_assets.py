"""Make the Dagster assets of a project, one for each stage and subject.

A *subject* is the nanoset, webdataset, … that outputs belong to. Its outputs are the partitions of
the asset, such as the splits of a nanoset. Stages whose subjects are corpora are an exception: they
have one asset for all corpora, and its partitions are the corpora. So new corpora can be added
while definitions are loaded.

    stage             subject     asset                     partitions
    DATASET           all         indexed_dataset           web, books, …
    INDEX_MAPPINGS    pretrain    pretrain/index_mappings   train, valid, test

The key, partitions and dependencies of an asset follow from its stage. Everything else, such as its
description, is listed in `table.py`.
"""

# There is no `from __future__ import annotations` here: Dagster reads the annotations of functions
# that it calls, and does not understand them as texts.

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import dagster as dg
from pydantic import Field

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.assets.output_names import (
    asset_path,
    is_asset,
    label_of,
    nodes_by_asset,
    partition_of,
)
from nanoset_assets.assets.partition_sets import partition_set_of
from nanoset_assets.assets.table import WORKERS_POOL, AssetShape, is_output_required, shape_of
from nanoset_assets.dagster_compat import has_failed_last_check, partitioned_assets_of_run
from nanoset_assets.names import Names
from nanoset_assets.project_defs import Automation, ProjectDefs, failure_without_retry
from nanoset_assets.tags import CHECK, INDIRECT
from nanoset_core.errors import InputError
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.project.graph.nodes import is_requested
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import InParts, Key, Node, Stage, current_version, is_of_corpora
from nanoset_core.untrusted import visible
from nanoset_core.wording import abbreviated

GROUP = "corpora"
"""Group of the assets whose partitions are corpora. Other assets have a group for each subject."""
ALL_CORPORA = ""
"""Takes the place of the subject for an asset whose partitions are corpora."""

_MAX_NAMES = 3
"""How many assets an error names at most."""


class RunOptions(dg.Config):
    """Options of a run of an asset, which the user may set in Dagster's Launchpad."""

    rebuild: bool = Field(default=False, description="Rebuild the output even if it is up to date.")


def asset_outputs(stage: Stage, config: ProjectConfig) -> dict[str, list[Key]]:
    """Return the Dagster assets of a pipeline step, each with the outputs that it makes.

    Writing index files, for example, has one asset for each data mixture of the settings. Its
    outputs are the splits:

        {"pretrain": [Key("pretrain", "train"), Key("pretrain", "valid")]}

    Tokenizing is done for each collection of documents (corpus), or for those that the settings
    name. It has one asset for all of them, since corpora are added while Dagster runs:
    {"": [Key("")]}. The empty name is ALL_CORPORA.

    Args:
        stage: The step of the pipeline.
        config: The settings of the project.

    Returns:
        Empty if the settings request no output of the step, or if Dagster does not show the step.
    """
    if not is_asset(stage):
        return {}  # its outputs are only used by other steps
    # Which corpora exist is not known here, so let ALL_CORPORA stand for them.
    requested_keys = list(stage.keys(config, [ALL_CORPORA]))
    if not requested_keys:
        return {}
    if is_of_corpora(stage):
        return {ALL_CORPORA: [Key(ALL_CORPORA)]}
    return _keys_by_subject(requested_keys)


def _keys_by_subject(keys: Iterable[Key]) -> dict[str, list[Key]]:
    """Group outputs by what they belong to: their `subject`, such as the data mixture "pretrain".

    Args:
        keys: The outputs, such as Key("pretrain", "train").
    """
    groups: dict[str, list[Key]] = defaultdict(list)
    for key in keys:
        groups[key.subject].append(key)
    return dict(groups)


def key_of(context: Any, stage: Stage, subject: str) -> Key:
    """Return the output that a run of a Dagster asset makes, or that it checks.

    A run is started for one partition of an asset, if the asset has partitions:

        asset                                        partition    output
        index files of the data mixture `pretrain`   "train"      Key("pretrain", "train")
        settings for the trainer of `pretrain`       none         Key("pretrain")
        tokens of all text collections (corpora)     "web"        Key("web")

    Args:
        context: Dagster's context of the run, which has the partition.
        stage: The step of the pipeline that the asset belongs to.
        subject: Name of the mixture, such as "pretrain". It is not used for an asset of corpora.
    """
    if is_of_corpora(stage):
        return Key(context.partition_key)
    partition = context.partition_key if context.has_partition_key else None
    return Key(subject, partition)


def check_partition_is_chosen(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, project_defs: ProjectDefs
) -> None:
    """Fail a run that has no partition, if one of its assets has partitions.

    Dagster allows such runs, for example by `dg launch --job corpus` without `--partition`. Each
    step and each check calls this before it does anything. That includes the steps of assets
    without partitions, since a job may also have assets with partitions:

        assets of the job `shuffled`    partitions      a run without a partition
        shuffled/shuffle_plan           none            fails here, in its first step
        shuffled/tars                   0, 1, 2, …      is not executed

    Args:
        context: Dagster's context of the run.
        project_defs: The names of the project in Dagster.

    Raises:
        dg.Failure: The run has no partition, and needs one.
    """
    if context.has_partition_key:
        return
    names = project_defs.names
    # Assets of other teams are left out: they may allow such runs.
    labels = [
        asset.to_user_string()
        for asset in partitioned_assets_of_run(context)
        if names.path(asset) is not None
    ]
    if labels:
        error = InputError(
            "the run was started without a partition, so nothing is made",
            where=abbreviated(labels, _MAX_NAMES),
            remedy="choose a partition in Dagster's UI, or start it by `dg launch --partition …`",
        )
        raise failure_without_retry(context, error)


def partitions_of(
    stage: Stage, project_defs: ProjectDefs, keys: Sequence[Key]
) -> dg.PartitionsDefinition[str] | None:
    """Return the partitions of a Dagster asset: the parts of it that can be made separately.

        asset                                        partitions
        tokens of all text collections (corpora)     web, books, …     (may be added at any time)
        index files of the data mixture `pretrain`   train, valid      (a fixed list)
        settings for the trainer of `pretrain`       None

    Args:
        stage: The step of the pipeline that the asset belongs to.
        project_defs: The names and settings of the project in Dagster.
        keys: The outputs of the asset, such as Key("pretrain", "train") for the split train.
    """
    if is_of_corpora(stage):
        return partition_set_of(project_defs.names, stage)
    split_names = [key.part for key in keys if key.part is not None]
    if not split_names:
        return None
    return dg.StaticPartitionsDefinition(split_names)


def stage_asset(
    stage: Stage,
    project_defs: ProjectDefs,
    subject: str,
    keys: Sequence[Key],
    automation: Automation = "own",
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
        automation: What builds missing and stale outputs, see `definitions_of`.

    Returns:
        The asset. Each run of it makes one partition.
    """

    # It has no docstring, since Dagster would show that as the description of the asset.
    def make_output(
        context: dg.AssetExecutionContext, config: RunOptions
    ) -> Iterator[dg.MaterializeResult[Any]]:
        check_partition_is_chosen(context, project_defs)
        run = _open_run(context, stage, project_defs, subject, rebuild=config.rebuild)
        yield from _results_of(run)

    define_asset: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
        deps=_dependencies(stage, project_defs, keys, automation),
        partitions_def=partitions_of(stage, project_defs, keys),
        code_version=str(stage.version),
        **_appearance(stage, project_defs, subject),
        **_run_settings(stage, project_defs),
    )
    return define_asset(make_output)


def _open_run(
    context: dg.AssetExecutionContext,
    stage: Stage,
    project_defs: ProjectDefs,
    subject: str,
    *,
    rebuild: bool,
) -> AssetRun:
    """Prepare a run of a Dagster asset: find out which output it has to make, and how.

    Dagster has started the run for an asset, and perhaps for a partition of it: for example, for
    the partition `train` of the index files of the data mixture `pretrain`. Nothing is made yet.

    An output that is up to date is normally not made again. It is if the user wants that, or if the
    last check of its files has found damage.

    Args:
        context: Dagster's context of the run, with its partition and its log.
        stage: The step of the pipeline that the asset belongs to, such as writing index files.
        project_defs: The names and settings of the project in Dagster.
        subject: What the asset is made for, such as the mixture "pretrain"; or ALL_CORPORA.
        rebuild: Whether the user wants the output to be made again even if it is up to date.

    Returns:
        An object that makes the output when its method `results` is called.
    """
    output = Node(stage, key_of(context, stage, subject))
    project = project_defs.open_in_run(context, rebuild=rebuild)  # reads its present settings
    if _is_repaired_by_run(context.instance, project_defs.names, project, output):
        context.log.info("The last check of this output has failed, so it is rebuilt.")
        project = replace(project, rebuild=True)
    return AssetRun(
        context=context,
        project_defs=project_defs,
        project=project,
        stage=stage,
        key=output.key,
        make_page=shape_of(stage).make_page,
    )


def _is_repaired_by_run(
    instance: dg.DagsterInstance, names: Names, project: Project, output: Node
) -> bool:
    """Return whether a run has to make an output again, since the last check of it has failed.

    After each run, a check reads the files of the output. Damaged files may have the right sizes
    and times, so that the output looks up to date. Then it must be made again all the same:
    otherwise, the check would fail each time.

    Args:
        instance: Dagster's instance, which has the results of checks.
        names: The names of the project in Dagster.
        project: The project, below whose root builds on other machines record failed checks.
        output: The output.

    Returns:
        For outputs whose check usually fails for another reason than damage, such as texts or
        settings that have to be changed, only True if a deep check has found the error.
    """
    if _has_failure_record(project, output, only_deep=True):
        return True
    if not shape_of(output.stage).is_repaired_by_rebuild:
        return False
    check = dg.AssetCheckKey(names.asset(asset_path(output)), CHECK)
    if has_failed_last_check(instance, check, partition_of(output)):
        return True
    return _has_failure_record(project, output)


def _has_failure_record(project: Project, output: Node, *, only_deep: bool = False) -> bool:
    """Return whether a file next to the outputs says that a check of an output has failed.

    Any machine may have executed the check, also one with another history of Dagster. A record of
    an earlier version of the output does not count.

    Args:
        project: The project, whose root has the records.
        output: The output. An output in parts, such as a group of tars, has no versions.
        only_deep: Whether only errors count that a check of every byte has found.
    """
    failed_checks = FailedChecks.read(project.outputs)
    folder = output.stage.layout.folder
    if not failed_checks.includes_output(folder, output.name):
        return False  # usually: then the output, which may be in a bucket, need not be read
    if only_deep and (folder, output.name) not in failed_checks.found_by_deep_check:
        return False
    if isinstance(output.stage, InParts):
        return True
    manifest = current_version(project, output.stage, output.key).manifest
    return manifest is not None and failed_checks.includes(folder, output.name, manifest.digest)


def _appearance(stage: Stage, project_defs: ProjectDefs, subject: str) -> dict[str, Any]:
    """Return how an asset looks in Dagster's UI, as arguments of `dg.asset`.

    For example, for the shuffled order of the data mixture `pretrain`:

        key            pretrain/blend
        group_name     pretrain           (Dagster draws a box around the assets of a group)
        owners         ["team:data"]
        kinds          {"numpy"}          (shown as icons)
        tags           {"nanoset/preset": "megatron", …}
        description    a text for users
        metadata       where the files are, …

    Args:
        stage: The step of the pipeline that the asset belongs to.
        project_defs: The names and settings of the project in Dagster.
        subject: What the asset is made for, such as "pretrain"; or ALL_CORPORA, for the asset of
            all text collections.
    """
    names = project_defs.names
    shape = shape_of(stage)
    # The location is shown on the page of the asset, and not of a run: after the project was moved,
    # the page of an old run would show the old folder.
    location = _current_location(stage, project_defs.config, subject)
    return {
        "key": names.asset(asset_path(Node(stage, Key(subject)))),
        "group_name": names.group(GROUP if is_of_corpora(stage) else subject),
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
        "output_required": is_output_required(stage),
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
    if _can_be_skipped(config, run.node):
        note = f"{config.file} does not request {label_of(run.node)}: there is nothing to make"
        run.context.log.info(visible(note))
    elif run.project_defs.execute is None:
        yield from run.results()
    else:
        yield from run.project_defs.execute(run)


def _can_be_skipped(config: ProjectConfig, node: Node) -> bool:
    """Return whether a run has nothing to make, because its output is no longer requested.

    This happens if somebody removes a data mixture from the settings while Dagster runs, and then
    clicks on "Materialize all": Dagster still knows the assets of that mixture, and starts runs of
    them.

    Args:
        config: The settings, as they are now.
        node: The output that the run is to make.
    """
    # Runs of some assets fail in Dagster if they make nothing. So do not skip them: the step will
    # raise an error that says why.
    if is_output_required(node.stage):
        return False
    return not is_requested(config, node)


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
    stage: Stage, project_defs: ProjectDefs, keys: Sequence[Key], automation: Automation
) -> list[dg.AssetDep]:
    """Return the assets that an asset is made from, and which of their partitions it reads.

    For example, the data mixture `pretrain` is made from the text collections `web` and `books`. So
    its asset depends on the asset of all datasets, but only on the partitions `web` and `books`.

    An asset with partitions also depends on what some of its inputs are made from. If it depends on
    an asset only for this reason, the metadata of the dependency has INDIRECT.

    Args:
        stage: The step of the pipeline that the asset belongs to.
        project_defs: The names and settings of the project in Dagster.
        keys: The outputs of the asset, such as the splits of the mixture.
        automation: What builds missing and stale outputs, see `definitions_of`.
    """
    if stage is INVENTORY:
        return _landing_dependencies(project_defs)

    config = project_defs.config
    outputs = [Node(stage, key) for key in keys]
    direct_sources = _direct_sources(outputs, config)
    has_partitions = any(partition_of(output) is not None for output in outputs)
    indirect_sources: dict[Node, None] = {}
    if has_partitions:
        followed_sources = _sources_to_follow(direct_sources, automation)
        indirect_sources = _partitions_behind(followed_sources, config)

    dependencies: list[dg.AssetDep] = []
    for asset, sources in nodes_by_asset(direct_sources | indirect_sources).items():
        is_indirect = all(source in indirect_sources for source in sources)
        dependency = dg.AssetDep(
            project_defs.names.asset(asset),
            partition_mapping=_partition_mapping(stage, sources),
            metadata={INDIRECT: True} if is_indirect else None,
        )
        dependencies.append(dependency)
    return dependencies


def _direct_sources(outputs: Iterable[Node], config: ProjectConfig) -> dict[Node, None]:
    """Return the outputs that some outputs are made from directly, each once.

    Args:
        outputs: The outputs, such as the splits of a data mixture.
        config: The settings of the project.

    Returns:
        The inputs, as the keys of a mapping: a set that keeps their order.
    """
    sources: dict[Node, None] = {}
    for output in outputs:
        sources.update(dict.fromkeys(output.direct_inputs(config)))
    return sources


def _sources_to_follow(sources: Iterable[Node], automation: Automation) -> list[Node]:
    """Return the inputs of an asset whose own inputs it has to depend on, too.

    This is for a *backfill*, which is what "Materialize all" starts in the UI. From the corpora
    that the user chooses, Dagster follows the arrows to find the partitions of other assets. There
    are two cases in which the arrows from an asset's inputs are not enough:

    1. An input has no partitions. For example, the tars of a webdataset are made from a plan:

           asset         indexed_dataset ──→ shuffle_plan ──→ tars
           partitions    web, code           none             0, 1, 2
                                └─────────────────────────→

       Dagster follows only arrows between assets with partitions. Without the lower arrow, it would
       make no tars, and the list of the tars too early.

    2. Some inputs are more steps away from the corpora than others. For example, a data mixture
       has a view of `web`, and `code`:

           asset         indexed_dataset ──→ web/views ──→ index_mappings
           partitions    web, code           clean         train, valid, test
                                └─────────────────────────→

       The lower arrow is for `code`. Dagster looks at each asset once, with the partitions found so
       far, and at the assets after `indexed_dataset` in a random order. So if the user chooses
       `web`, Dagster may come to the mixture before it has found `clean`, and leave the mixture
       out. It is always found if the lower arrow is for `web`, too.

    None of this changes what an asset waits for in the end.

    Args:
        sources: The inputs of the asset.
        automation: What builds missing and stale outputs. With `host`, the second case is ignored:
            Dagster would build the mixture as soon as the dataset of `web` changes, so before the
            view, and might not notice that the view changes afterwards. It ignores an arrow only
            as a whole, and the mixture does have to be built when `code` changes.

    Returns:
        The inputs, without those that belong to corpora, such as the dataset of `code`.
    """
    later_sources = [source for source in sources if not is_of_corpora(source.stage)]
    has_several_inputs = len(set(map(asset_path, sources))) > 1
    if has_several_inputs and automation != "host":
        return later_sources
    return [source for source in later_sources if partition_of(source) is None]


def _partitions_behind(sources: Iterable[Node], config: ProjectConfig) -> dict[Node, None]:
    """Return the partitions of other assets that some outputs are made from, each once.

    For example, a plan is made from a selection of texts (a view) `clean`, and that from the
    dataset of the corpus `web`. For the plan, the result is `clean`, and the dataset of `web`.

    Args:
        sources: The outputs, such as the plan.
        config: The settings of the project.

    Returns:
        The partitions, as the keys of a mapping: a set that keeps their order.
    """
    partitions: dict[Node, None] = {}
    for source in sources:
        partitions.update(dict.fromkeys(_partitions_upstream(source, config)))
    return partitions


def _partitions_upstream(output: Node, config: ProjectConfig) -> Iterator[Node]:
    """Yield all partitions that an output is made from, directly or through others.

    It stops at partitions that belong to corpora (text collections). For example, a plan is made
    from a selection of texts (a view) `clean`, and that from the dataset of the corpus `web`:

        dataset of web ──→ clean ──→ plan        yields clean, and the dataset of web

    Why not only `clean`? Dagster follows arrows in a random order, and looks at each asset once:
    see the second case in `_sources_to_follow`.

    Args:
        output: The output.
        config: The settings of the project.
    """
    for source in output.inputs(config).values():
        if partition_of(source) is not None:
            yield source
        if not is_of_corpora(source.stage):
            yield from _partitions_upstream(source, config)


def _partition_mapping(
    stage: Stage, sources: Sequence[Node]
) -> dg.SpecificPartitionsPartitionMapping | None:
    """Return which partitions of an asset another asset reads; None if Dagster's default is right.

    By default, if two assets have the same partitions, each partition reads the one of its own
    name. Otherwise, each reads all partitions. Corpora are text collections, such as `web`:

        reading asset                 reads                                  result
        datasets of all corpora       tokens of all corpora                  None
        a data mixture                datasets of the corpora web and books  web, books
        a mixture of selected texts   the selection `clean` of web           clean

    With the default, the mixture would read all corpora. So a new corpus `news`, which is not in
    the mixture, would make it out of date.

    Args:
        stage: The step of the pipeline that the reading asset belongs to.
        sources: The outputs that it reads: partitions of one other asset. Several splits of a
            mixture may read the same one.
    """
    source_stage = sources[0].stage
    reads_some_corpora = is_of_corpora(source_stage) and not is_of_corpora(stage)
    reads_some_partitions = shape_of(source_stage).is_read_by_partition
    if not reads_some_corpora and not reads_some_partitions:
        return None

    unique_partitions = dict.fromkeys(map(partition_of, sources))
    names = [name for name in unique_partitions if name is not None]
    if not names:
        return None  # the asset that is read has no partitions
    return dg.SpecificPartitionsPartitionMapping(names)


def _landing_dependencies(project_defs: ProjectDefs) -> list[dg.AssetDep]:
    """Return dependencies on the user's assets that write raw text, for the list of its files.

    For example, the asset `crawl` downloads the text of the corpus `web`. So Dagster draws an arrow
    from `crawl` to the asset that lists the files of all corpora.

    Args:
        project_defs: Its `upstream` says which assets write which corpus, such as `{"web":
            (AssetKey("crawl"),)}`.
    """
    writers = dict.fromkeys(chain.from_iterable(project_defs.upstream.values()))  # each once
    # Dagster cannot express that `crawl` writes only `web`. So each corpus depends on all of it.
    return [dg.AssetDep(asset, partition_mapping=dg.AllPartitionMapping()) for asset in writers]


def _current_location(stage: Stage, config: ProjectConfig, subject: str) -> str:
    """Return where the files of an asset are, for its page in Dagster's UI.

    An asset may have several outputs. So the names that differ are in angle brackets:

        on a disk      /data/outputs/datasets/<corpus>/current
        in a bucket    s3://bucket/outputs/datasets/<corpus>/<digest>

    Each version of an output has a folder named by its digest. On a disk, the link `current` leads
    to the current one. Buckets have no links.

    Args:
        stage: The step of the pipeline that the asset belongs to.
        config: The settings, with the folder or bucket of the project.
        subject: What the asset is made for, such as the mixture "pretrain". It is not used for an
            asset whose outputs are those of all corpora (text collections).
    """
    if stage is INVENTORY:
        # This step lists the raw text of a corpus. The text itself is of more use than the list.
        return f"{config.raw_folder}/<corpus>"
    output = Key("<corpus>") if is_of_corpora(stage) else Key(subject, "<split>")
    folder = stage.layout.path_of(output)
    if config.root_place is not None:
        return f"{config.root_place.url()}/{folder}/<digest>"
    return f"{config.root_folder}/{folder}/current"
