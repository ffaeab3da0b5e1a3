"""tokenized_shards: a corpus's text as token ids, one shard a source range."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.resources import WORKERS_POOL
from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.file_tables import tokenized_files
from nanoset_assets.ui.metadata import ROWS_SHOWN, Before, bytes_text, markdown, per_second, plural, size_bytes, table
from nanoset_assets.ui.pictures import length_histogram
from nanoset_assets.ui.previews import first_rejects
from nanoset_core.config.project import ProjectConfig
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.tokenization.shards import engine_choice

COLUMNS = dg.TableSchema(
    [
        dg.TableColumn("file", "string", description="relative to the corpus's folder"),
        dg.TableColumn("line", "int64", description="from 1; in a Parquet or Arrow file the row"),
        dg.TableColumn("byte_offset", "int64", description="of the line in the decompressed file; -1 for a row"),
        dg.TableColumn("id", "string", description="the document's own id, where it has one"),
        dg.TableColumn("tokens", "int32", description="of the document, special ones included"),
    ]
)
"""Of documents.parquet, which lies beside the tokens of every shard."""


def _details(config: ProjectConfig, subject: str) -> Mapping[str, Any]:
    return {
        "kinds": {"numpy", "huggingface", "parquet"},
        "tags": {"nanoset/stage": "tokenization"},
        "metadata": {"dagster/column_schema": COLUMNS},
        "pool": WORKERS_POOL,
        "description": "A corpus tokenized: content-addressed shards, each with its tokens, its table of documents "
        "(file, line, byte offset, id, tokens) and its rejected lines. Only ranges whose files changed are tokenized "
        "again.",
    }


@page_of(tokenization.TOKENIZED, _details)
def tokenized_shards(work: Work) -> Mapping[str, Any]:
    """Tokenize a corpus, and show its counts, rejects, files and shards."""
    opened, context = work.project, work.context
    before = Before.versions(opened, tokenization.SHARDS, work.key.subject)
    manifest = work.make()
    seconds = work.seconds
    facts = manifest.facts
    engine = engine_choice(opened.config.tokenizer_file, opened.config.tokenization.engine)
    context.log.info(f"engine {engine}")
    if facts["rejected"] or facts["faults"]:
        context.log.warning(f"rejected {facts['rejected']:,} of {facts['lines']:,} lines: {facts['reasons']}")
    shards = tokenization.current_shards(opened, manifest)
    made = [shard for shard in shards if before.is_new(shard.digest)]
    return {
        "summary": markdown(_summary(manifest), _work(shards, made, seconds)),
        "token_lengths": length_histogram(facts["length_histogram"], facts["tokens"]),
        **_rejects(manifest, shards),
        **_files(opened, manifest, shards),
        "dagster/row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "tokens", "lines", "skipped", "rejected")},
        "unreadable_files": facts["faults"],
        "rejected_fraction": round(facts["rejected"] / max(facts["lines"], 1), 6),
        "tokens_per_document": round(facts["tokens"] / max(facts["documents"], 1), 1),
        "read_bytes": facts["read_bytes"],
        "size_bytes": sum(size_bytes(shard) for shard in shards),
        "shards_made": len(made),
        **_speed(made, seconds),
        "engine": engine,
        "shards": table([_row(shard) for shard in shards[:ROWS_SHOWN]], len(shards)),
    }


def _summary(manifest: Manifest) -> str:
    facts = manifest.facts
    parts = [f"{facts['rejected']:,} of {plural(facts['lines'], 'line')} rejected"]
    parts += [f"{plural(facts['faults'], 'file')} not readable to the end"] if facts["faults"] else []
    parts += [f"{plural(facts['skipped'], 'document')} without tokens skipped"] if facts["skipped"] else []
    return (
        f"**{plural(facts['documents'], 'document')}, {plural(facts['tokens'], 'token')}** of "
        f"{bytes_text(facts['read_bytes'])} of lines; {', '.join(parts)}."
    )


def _work(shards: list[Manifest], made: list[Manifest], seconds: float) -> str:
    if not made:
        return f"Nothing was tokenized: {plural(len(shards), 'shard')} had been made before."
    tokens = sum(shard.facts["tokens"] for shard in made)
    return (
        f"{len(made):,} of {plural(len(shards), 'shard')} made in {seconds:,.1f} s, "
        f"{per_second(tokens, seconds):,.0f} tokens a second."
    )


def _speed(made: list[Manifest], seconds: float) -> dict[str, float]:
    """Nothing where there was no work: a plot over time shows speeds only."""
    if not made:
        return {}
    return {"tokens_per_second": per_second(sum(shard.facts["tokens"] for shard in made), seconds)}


def _rejects(manifest: Manifest, shards: list[Manifest]) -> dict[str, dg.MetadataValue]:
    reasons = manifest.facts["reasons"]
    if not reasons:
        return {}
    return {
        "rejects": table([{"reason": reason, "lines": f"{count:,}"} for reason, count in reasons.items()]),
        "first_rejected": first_rejects(shards),
    }


def _files(project: Project, manifest: Manifest, shards: list[Manifest]) -> dict[str, dg.MetadataValue]:
    """What became of each file, unless the raw folder was surveyed anew meanwhile."""
    inventory_manifest, inventory = raw.current_inventory(project, manifest.name)
    if inventory_manifest.digest != manifest.recipe["parents"]["inventory"]:
        return {}
    files = tokenized_files(inventory, manifest, shards)
    return {} if files is None else {"files": files}


def _row(shard: Manifest) -> dict[str, object]:
    names = ("documents", "tokens", "rejected", "stored_bytes")
    return {"shard": shard.digest, **{name: f"{shard.facts[name]:,}" for name in names}}
