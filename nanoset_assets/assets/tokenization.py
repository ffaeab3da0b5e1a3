"""tokenized_shards: a corpus's text as token ids, one shard a source range."""

import time

import dagster as dg

from nanoset_assets.metadata import histogram, per_second, result, size_bytes, table
from nanoset_assets.partitions import CORPORA
from nanoset_assets.resources import ProjectResource
from nanoset_core.manifest import Manifest
from nanoset_core.pipeline import tokenization
from nanoset_core.tokenization.shards import engine_choice

SHARDS_SHOWN = 200


@dg.asset(
    partitions_def=CORPORA,
    deps=["raw_jsonl"],
    group_name="corpora",
    kinds={"numpy", "huggingface"},
    code_version=str(tokenization.VERSION),
    description="A corpus tokenized: content-addressed shards, each with its tokens, its table of documents (file, "
    "line, byte offset, id, tokens) and its rejected lines. Only ranges whose files changed are tokenized again.",
)
def tokenized_shards(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    started = time.monotonic()
    opened = project.open(context)
    manifest = tokenization.tokenize(opened, context.partition_key)
    seconds = time.monotonic() - started
    facts = manifest.facts
    engine = engine_choice(opened.config.tokenizer_file, opened.config.tokenization.engine)
    context.log.info(f"engine {engine}")
    if facts["rejected"] or facts["faults"]:
        context.log.warning(f"rejected {facts['rejected']:,} of {facts['lines']:,} lines: {facts['reasons']}")
    shards = tokenization.current_shards(opened, manifest)
    return result(
        manifest,
        seconds,
        {
            "dagster/row_count": facts["documents"],
            "documents": facts["documents"],
            "tokens": facts["tokens"],
            "lines": facts["lines"],
            "skipped": facts["skipped"],
            "rejected": facts["rejected"],
            "unreadable_files": facts["faults"],
            "rejects": table([{"reason": reason, "lines": count} for reason, count in facts["reasons"].items()]),
            "read_bytes": facts["read_bytes"],
            "size_bytes": sum(size_bytes(shard) for shard in shards),
            "tokens_per_second": per_second(facts["tokens"], seconds),
            "engine": engine,
            "token_lengths": histogram(facts["length_histogram"]),
            "shards": table([_row(shard) for shard in shards[:SHARDS_SHOWN]]),
        },
    )


def _row(shard: Manifest) -> dict[str, object]:
    names = ("documents", "tokens", "rejected", "stored_bytes")
    return {"shard": shard.digest, **{name: shard.facts[name] for name in names}}
