"""<webdataset>/shuffle_plan → <webdataset>/tars → <webdataset>/manifest."""

import time

import dagster as dg

from nanoset_assets.metadata import per_second, result, table
from nanoset_assets.partitions import member_corpora, shard_groups
from nanoset_assets.resources import ProjectResource
from nanoset_core.config import WebdatasetSpec
from nanoset_core.pipeline import shuffling

SHARDS_SHOWN = 200


def webdataset_assets(name: str, spec: WebdatasetSpec) -> list[dg.AssetsDefinition]:
    """The three assets of one webdataset."""
    return [_plan(name, spec), _tars(name, spec), _manifest(name)]


def _plan(name: str, spec: WebdatasetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "shuffle_plan"],
        deps=[member_corpora(spec.corpora)],
        group_name=name.replace("-", "_"),
        kinds={"numpy"},
        code_version=str(shuffling.VERSION),
        description=f"How {', '.join(spec.corpora)} become shuffled shards: contexts of {spec.sequence_length:,} "
        f"tokens in one global order (seed {spec.seed}), {spec.samples_per_shard:,} in a tar.",
    )
    def shuffle_plan(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        manifest = shuffling.make_plan(project.open(context), name)
        facts = manifest.facts
        names = ("contexts", "shards", "tokens", "tokens_dropped", "pad_tokens")
        metadata = {key: facts[key] for key in names} | {"sources": table(facts["sources"])}
        return result(manifest, time.monotonic() - started, metadata)

    return shuffle_plan


def _tars(name: str, spec: WebdatasetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "tars"],
        deps=[dg.AssetKey([name, "shuffle_plan"])],
        partitions_def=shard_groups(spec.groups),
        group_name=name.replace("-", "_"),
        kinds={"numpy", "file"},
        code_version=str(shuffling.VERSION),
        description=f"Shuffled tar shards with {spec.member} members, an even share of them in each partition.",
    )
    def tars(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        opened = project.open(context)
        shards = shuffling.write_group(opened, name, int(context.partition_key))
        seconds = time.monotonic() - started
        manifest, _ = shuffling.current_plan(opened, name)
        tokens = sum(shard.tokens for shard in shards)
        rows = [
            {"shard": shard.stem, "sequences": shard.sequences, "bytes": shard.size_bytes, "sha256": shard.sha256}
            for shard in shards[:SHARDS_SHOWN]
        ]
        return dg.MaterializeResult(
            metadata={
                "shards": len(shards),
                "sequences": sum(shard.sequences for shard in shards),
                "tokens": tokens,
                "size_bytes": sum(shard.size_bytes for shard in shards),
                "tokens_per_second": per_second(tokens, seconds),
                "seconds": round(seconds, 3),
                "tars": table(rows),
            },
            data_version=dg.DataVersion(manifest.digest),
        )

    return tars


def _manifest(name: str) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "manifest"],
        deps=[dg.AssetKey([name, "tars"])],
        group_name=name.replace("-", "_"),
        kinds={"json"},
        code_version=str(shuffling.VERSION),
        description="manifest.jsonl (OpenLM), index.json (wids) and exp_data.json (DCLM) beside the tars; with them "
        "the webdataset is complete. Give trainers this folder.",
    )
    def manifest(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        done = shuffling.finish(project.open(context), name)
        facts = done.facts
        names = ("shards", "sequences", "sequence_length", "tokens", "pad_tokens", "tokens_dropped")
        metadata = {key: facts[key] for key in names} | {"dagster/row_count": facts["sequences"]}
        return result(done, time.monotonic() - started, metadata)

    return manifest
