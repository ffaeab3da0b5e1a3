"""indexed_dataset: a corpus's shards merged into one .bin/.idx."""

import time

import dagster as dg

from nanoset_assets.metadata import result
from nanoset_assets.partitions import CORPORA
from nanoset_assets.resources import ProjectResource
from nanoset_core.pipeline import indexed


@dg.asset(
    partitions_def=CORPORA,
    deps=["tokenized_shards"],
    group_name="corpora",
    kinds={"numpy", "file"},
    code_version=str(indexed.VERSION),
    description="A corpus as one Megatron indexed dataset: the .bin and .idx that preprocess_data.py would have "
    "written for the same lines, byte for byte. Give trainers the prefix, without the ending.",
)
def indexed_dataset(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    started = time.monotonic()
    manifest = indexed.index(project.open(context), context.partition_key)
    facts = manifest.facts
    return result(
        manifest,
        time.monotonic() - started,
        {
            "dagster/row_count": facts["documents"],
            "prefix": dg.MetadataValue.path(str(manifest.path(facts["prefix"]))),
            "documents": facts["documents"],
            "sequences": facts["sequences"],
            "tokens": facts["tokens"],
            "rejected": facts["rejected"],
            "dtype": facts["dtype"],
        },
    )
