"""The assets, one for each stage and subject: key, partitions and dependencies come from the stage, the rest from here.

`asset_table.py` says what each stage is in Dagster, `PAGES` how its output is made and what the UI shows of it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from pydantic import Field

from nanoset_assets.asset_table import asset_path, is_asset, label_of, partition_of, shape_of
from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.instance_state import partition_set_of, was_automatic
from nanoset_assets.ui.corpus import (
    columns_metadata,
    dataset_metadata,
    packed_metadata,
    raw_metadata,
    tokenized_metadata,
)
from nanoset_assets.ui.derived import contamination_metadata, export_metadata, pack_metadata, view_metadata
from nanoset_assets.ui.metadata import failure, per_second, result, snapshot_before
from nanoset_assets.ui.nanoset import (
    handoff_metadata,
    held_out_metadata,
    plan_metadata,
    split_metadata,
    tars_metadata,
    webdataset_metadata,
)
from nanoset_assets.ui.summary import summary_metadata
from nanoset_core.errors import FormatError, NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.disk import check_disk, stale_outputs
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.columns import stage as columns
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.inventory.make import INVENTORY_FILE, publish_inventory, survey_corpus
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS, split_of
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.pbin.stage import PBIN, PBIN_DERIVED
from nanoset_core.stages.shards.make import SHARDS, engine_choice
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, Node, Stage, is_of_corpora, settings_warnings
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.stages.webdataset.stage import SHUFFLE_PLAN, SHUFFLED_TARS, WEBDATASET
from nanoset_core.text.contents import awaited
from nanoset_core.text.pieces import Inventory
from nanoset_core.untrusted import visible

GROUP = "corpora"
"""Group of the assets whose partitions are corpora; others are in the group of their corpus, view, nanoset, …"""


class RunOptions(dg.Config):
    """What the Launchpad offers for a run of an asset."""

    rebuild: bool = Field(default=False, description="Make the output again, even where it is up to date.")


@dataclass(slots=True)
class AssetRun:
    """One run of an asset, or of one partition of it."""

    context: dg.AssetExecutionContext
    hosted: ProjectDefs
    project: Project
    stage: Stage
    key: Key
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """From the start until the output was there."""
    manifest: Manifest | None = None
    """Of the output, once it is there."""

    def make(self) -> Manifest:
        """Make the output."""
        return self.made(self.stage.make(self.project, self.key))

    def made(self, manifest: Manifest) -> Manifest:
        """Note the manifest of the output that was made, and how long that took."""
        self.manifest, self.seconds = manifest, time.monotonic() - self.started
        return manifest

    def results(self) -> Iterator[dg.MaterializeResult[Any]]:
        """Make the output as its page says, and yield what the UI shows of it."""
        # Of an output that nanoset.yaml no longer has, the stage says below what it has instead.
        if self.key in self.stage.keys(self.project.config, (self.key.subject,)):
            for warning in settings_warnings(self.stage, self.project.config, self.key):
                self.context.log.warning(visible(warning))
        self.hosted.started(Node(self.stage, self.key))
        try:
            found = PAGES.get(self.stage, _from_summary)(self)
        except Exception as error:
            self.hosted.failures.append((Node(self.stage, self.key), error))
            if isinstance(error, NanosetError):
                raise failure(error) from error
            raise
        if isinstance(found, dg.MaterializeResult):
            yield found
        elif self.manifest is not None:
            yield result(self.project, self.manifest, self.seconds, found)


def _raw_jsonl(run: AssetRun) -> Mapping[str, Any]:
    corpus, project, context = run.key.subject, run.project, run.context
    try:
        last = project.outputs.current(INVENTORY.layout.folder, corpus)
        before = None if last is None else last.load(INVENTORY_FILE, Inventory.from_json)
    except FormatError:
        before = None  # damaged; what is made now takes its place
    settled = was_automatic(run.hosted.names, context.run.tags)
    inventory = survey_corpus(project, corpus, settled=settled, executor=project.executor)
    run.made(publish_inventory(project, inventory))
    notices = [*awaited(inventory.awaited), *corpus_notices(project, corpus)]
    for notice in notices:
        context.log.warning(visible(notice.text))
    return raw_metadata(project, before, inventory, notices)


def _tokenized_shards(run: AssetRun) -> Mapping[str, Any]:
    project, context = run.project, run.context
    if run.hosted.building is None:  # `nanoset build` asked for all that it makes
        check_disk(project, stale_outputs(project, run.key.subject), context.log.info)
    is_new = snapshot_before(project, project.outputs.folder / SHARDS / run.key.subject)
    manifest = run.make()
    facts = manifest.facts
    engine = engine_choice(project.config.tokenizer_file, project.config.tokenization.engine)
    context.log.info(f"engine {engine}")
    if facts["rejected"] or facts["faults"]:
        context.log.warning(f"rejected {facts['rejected']:,} of {facts['lines']:,} lines: {facts['reasons']}")
    shards = current_shards(project, manifest)
    made = {digest for digest in facts["shards"] if is_new(digest)}
    return tokenized_metadata(project, manifest, shards, made, seconds=run.seconds, engine=engine)


def _packed_dataset(run: AssetRun) -> Mapping[str, Any]:
    project = run.project
    layout = run.stage.layout
    is_new = snapshot_before(project, project.outputs.folder / layout.folder / layout.name_of(run.key))
    manifest = run.make()
    speed = {"tokens_per_second": per_second(manifest.facts["tokens"], run.seconds)} if is_new(manifest.digest) else {}
    return packed_metadata(manifest) | speed


def _columns(run: AssetRun) -> Mapping[str, Any]:
    manifest = run.make()
    for warning in run.stage.show(run.project, manifest).warnings:
        run.context.log.warning(visible(warning))
    return columns_metadata(manifest)


def _split(run: AssetRun) -> Mapping[str, Any]:
    return split_metadata(run.project, run.make(), run.key.subject, split_of(run.key))


def _shuffle_plan(run: AssetRun) -> Mapping[str, Any]:
    manifest = run.make()
    _, plan = shuffling.current_plan(run.project, run.key.subject)
    return plan_metadata(plan, manifest.facts["quality"])


def _tars(run: AssetRun) -> dg.MaterializeResult[Any]:
    """Write one group of tars; its data version is that of the plan."""
    project, name = run.project, run.key.subject
    plan, _ = shuffling.current_plan(project, name)
    is_new = snapshot_before(project, project.outputs.place(shuffling.webdataset_recipe(name, plan.digest)))
    shards = shuffling.write_group(project, name, int(run.key.part or 0))
    run.made(plan)
    made = [shard for shard in shards if is_new(f"{shard.stem}.tar")]
    return dg.MaterializeResult(
        metadata=tars_metadata(shards, made, run.seconds), data_version=dg.DataVersion(plan.digest)
    )


def _from_summary(run: AssetRun) -> Mapping[str, Any]:
    """Make the output, and show what its stage shows of it: the page of stages without one of their own."""
    manifest = run.make()
    summary = run.stage.show(run.project, manifest)
    for warning in summary.warnings:
        run.context.log.warning(visible(warning))
    return summary_metadata(summary)


Page = Callable[[AssetRun], Mapping[str, Any] | dg.MaterializeResult[Any]]
"""Makes an output, and returns metadata for the UI, or the whole result."""

PAGES: dict[Stage, Page] = {
    INVENTORY: _raw_jsonl,
    TOKENIZED: _tokenized_shards,
    DATASET: lambda run: dataset_metadata(run.project, run.make()),
    CONTAMINATION: lambda run: contamination_metadata(run.project, run.make()),
    VIEW: lambda run: view_metadata(run.project, run.make()),
    PACKS: lambda run: pack_metadata(run.project, run.make()),
    columns.COLUMNS: _columns,
    HELD_OUT: lambda run: held_out_metadata(run.project, run.make()),
    ATTRIBUTES: _columns,
    INDEX_MAPPINGS: _split,
    BLENDED: _split,
    TRAINER_FILES: lambda run: handoff_metadata(run.project, run.make(), run.key.subject),
    SHUFFLE_PLAN: _shuffle_plan,
    SHUFFLED_TARS: _tars,
    WEBDATASET: lambda run: webdataset_metadata(run.project, run.make()),
    EXPORT: lambda run: export_metadata(run.make()),
    PBIN: _packed_dataset,
    PBIN_DERIVED: _packed_dataset,
}
"""Stage → its page; a stage without one gets the page of its summary."""


def subjects_of(stage: Stage, config: ProjectConfig) -> dict[str, list[Key]]:
    """Return subject → outputs of each asset of a stage; "" stands for all corpora."""
    keys: dict[str, list[Key]] = {}
    for key in stage.keys(config, ("",)) if is_asset(stage) else ():
        keys.setdefault("" if is_of_corpora(stage) else key.subject, []).append(key)
    return {"": [Key("")]} if keys and is_of_corpora(stage) else keys


def key_of(context: Any, stage: Stage, subject: str) -> Key:
    """Return the output that a run of an asset, or of its check, is about."""
    part = context.partition_key if context.has_partition_key else None
    return Key(part or "") if is_of_corpora(stage) else Key(subject, part)


def partitions_of(stage: Stage, hosted: ProjectDefs, keys: Sequence[Key]) -> dg.PartitionsDefinition[str] | None:
    """Return the partitions of an asset; None for an asset without."""
    if is_of_corpora(stage):
        return partition_set_of(hosted.names, stage)
    parts = [key.part for key in keys if key.part is not None]
    return dg.StaticPartitionsDefinition(parts) if parts else None


def _dependencies_of(stage: Stage, hosted: ProjectDefs, keys: Sequence[Key]) -> list[dg.AssetDep]:
    """List what an asset depends on: of the assets of corpora, on no other corpora than it is made of."""
    if stage is INVENTORY:
        # Which of its corpora an asset lands is no partition mapping that Dagster could show: that of all is shown.
        landing = dict.fromkeys(key for keys in hosted.upstream.values() for key in keys)
        return [dg.AssetDep(key, partition_mapping=dg.AllPartitionMapping()) for key in landing]
    corpora: dict[tuple[str, ...], dict[str, None]] = {}
    for node in (node for key in keys for node in Node(stage, key).direct_inputs(hosted.config)):
        named = corpora.setdefault(asset_path(node), {})
        partition = partition_of(node)
        is_some_of_many = node.stage in (VIEW, PACKS, CONTAMINATION)
        if partition is not None and (is_some_of_many or (is_of_corpora(node.stage) and not is_of_corpora(stage))):
            named[partition] = None
    return [
        dg.AssetDep(
            hosted.names.asset(asset),
            partition_mapping=dg.SpecificPartitionsPartitionMapping(list(named)) if named else None,
        )
        for asset, named in corpora.items()
    ]


def _live_place(stage: Stage, config: ProjectConfig, subject: str) -> str:
    """Return where the live versions of an asset's outputs are, as nanoset.yaml said when it was loaded."""
    key = Key("<corpus>") if is_of_corpora(stage) else Key(subject, "<split>")
    if stage is INVENTORY:
        return f"{config.raw_folder}/{key.subject}"
    if config.root_place is not None:
        return f"{config.root_place.url()}/{stage.layout.folder}/{stage.layout.name_of(key)}/<digest>"
    return f"{config.root_folder}/{stage.layout.folder}/{stage.layout.name_of(key)}/current"


def stage_asset(stage: Stage, hosted: ProjectDefs, subject: str, keys: Sequence[Key]) -> dg.AssetsDefinition:
    """Make the asset of a stage: of one nanoset or webdataset, or of all corpora; `keys` are its outputs."""
    names = hosted.names
    shape = shape_of(stage)
    details = dict(shape.details)
    # Computed here, where the project lies now: what a run recorded stays as it was when the project is moved.
    details["metadata"] = {"dagster/uri": _live_place(stage, hosted.config, subject)} | details.get("metadata", {})
    if "pool" in details:
        details["pool"] = hosted.pool or names.path_name(details["pool"])
    tags = {} if shape.tag is None else {"nanoset/stage": shape.tag}
    if shape.tag == "mapping":
        tags["nanoset/preset"] = hosted.config.nanosets[subject].preset

    decorate = dg.asset(
        key=names.asset(asset_path(Node(stage, Key(subject)))),
        deps=_dependencies_of(stage, hosted, keys),
        partitions_def=partitions_of(stage, hosted, keys),
        # Dagster's graph shows only the last part of a key: what has a subject is in a group named like it, so that
        # the views of two corpora can be told apart.
        group_name=names.group(GROUP if is_of_corpora(stage) else subject),
        code_version=str(stage.version),
        op_tags=dict(hosted.op_tags),
        retry_policy=dg.RetryPolicy(hosted.retries) if hosted.retries else None,
        owners=list(hosted.owners),
        kinds=set(shape.kinds),
        tags={**tags, **hosted.tags},
        description=shape.description and shape.description.replace("{subject}", subject),
        **details,
    )

    def asset(context: dg.AssetExecutionContext, config: RunOptions) -> Iterator[dg.MaterializeResult[Any]]:
        key, opened = key_of(context, stage, subject), hosted.open_in_run(context, rebuild=config.rebuild)
        # Where an output is required, making one that nanoset.yaml does not name says what it names instead.
        if not details.get("output_required", True) and key not in stage.keys(opened.config, (key.subject,)):
            context.log.info(
                visible(f"{opened.config.file} does not ask for {label_of(Node(stage, key))}: nothing to make")
            )
            return
        run = AssetRun(context, hosted, opened, stage, key)
        yield from run.results() if hosted.execute is None else hosted.execute(run)

    definition: dg.AssetsDefinition = decorate(asset)
    return definition
