"""<webdataset>/shuffle_plan → <webdataset>/tars → <webdataset>/manifest."""

import time

import dagster as dg

from nanoset_assets.partitions import member_corpora, shard_groups
from nanoset_assets.resources import WORKERS_POOL, ProjectResource
from nanoset_assets.ui.metadata import Before, result
from nanoset_assets.ui.webdataset import plan_metadata, tars_metadata, webdataset_metadata
from nanoset_core.config.webdataset import WebdatasetSpec
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.pipeline import shuffling

TAGS = {"nanoset/stage": "shuffling"}


def webdataset_assets(name: str, spec: WebdatasetSpec) -> list[dg.AssetsDefinition]:
    """The three assets of one webdataset."""
    return [_plan(name, spec), _tars(name, spec), _manifest(name)]


def _plan(name: str, spec: WebdatasetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "shuffle_plan"],
        deps=[member_corpora(spec.names)],
        group_name=name.replace("-", "_"),
        kinds={"numpy"},
        tags=TAGS,
        code_version=str(shuffling.VERSION),
        description=f"How {_members(spec)} become shuffled shards: contexts of {spec.sequence_length:,} "
        f"tokens in one global order (seed {spec.seed}), {spec.samples_per_shard:,} in a tar.",
    )
    def shuffle_plan(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        opened = project.open(context)
        manifest = shuffling.make_plan(opened, name)
        _, plan = shuffling.current_plan(opened, name)
        metadata = plan_metadata(plan, manifest.facts["quality"])
        return result(manifest, time.monotonic() - started, metadata)

    return shuffle_plan


def _members(spec: WebdatasetSpec) -> str:
    numbers = spec.numbers
    if numbers is None:
        return ", ".join(spec.names)
    return ", ".join(f"{corpus} ({number:g})" for corpus, number in numbers.items()) + f" by {spec.mix}"


def _tars(name: str, spec: WebdatasetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "tars"],
        deps=[dg.AssetKey([name, "shuffle_plan"])],
        partitions_def=shard_groups(spec.groups),
        pool=WORKERS_POOL,
        group_name=name.replace("-", "_"),
        kinds={"numpy", "file"},
        tags=TAGS,
        code_version=str(shuffling.VERSION),
        description=f"Shuffled tar shards with {spec.member} members, an even share of them in each partition.",
    )
    def tars(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        opened = project.open(context)
        manifest, _ = shuffling.current_plan(opened, name)
        recipe = shuffling.webdataset_recipe(Recipe(**manifest.recipe))
        before = Before.of(opened, opened.outputs.place(recipe))
        shards = shuffling.write_group(opened, name, int(context.partition_key))
        made = [shard for shard in shards if before.is_new(f"{shard.stem}.tar")]
        return dg.MaterializeResult(
            metadata=tars_metadata(shards, made, time.monotonic() - started),
            data_version=dg.DataVersion(manifest.digest),
        )

    return tars


def _manifest(name: str) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "manifest"],
        deps=[dg.AssetKey([name, "tars"])],
        group_name=name.replace("-", "_"),
        kinds={"json"},
        tags=TAGS,
        code_version=str(shuffling.VERSION),
        description="manifest.jsonl (OpenLM), index.json (wids) and exp_data.json (DCLM) beside the tars; with them "
        "the webdataset is complete. Give trainers this folder.",
    )
    def manifest(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        done = shuffling.finish(project.open(context), name)
        return result(done, time.monotonic() - started, webdataset_metadata(done))

    return manifest
