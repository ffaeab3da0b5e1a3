"""tokenized_shards: a corpus's text as token ids, one shard a source range."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.running import WORKERS_POOL
from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.corpus import tokenized_metadata
from nanoset_assets.ui.metadata import snapshot_before
from nanoset_core.config.project import ProjectConfig
from nanoset_core.pipeline import tokenization
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
    is_new = snapshot_before(opened, opened.outputs.folder / tokenization.SHARDS / work.key.subject)
    manifest = work.make()
    facts = manifest.facts
    engine = engine_choice(opened.config.tokenizer_file, opened.config.tokenization.engine)
    context.log.info(f"engine {engine}")
    if facts["rejected"] or facts["faults"]:
        context.log.warning(f"rejected {facts['rejected']:,} of {facts['lines']:,} lines: {facts['reasons']}")
    shards = tokenization.current_shards(opened, manifest)
    made = {digest for digest in facts["shards"] if is_new(digest)}
    return tokenized_metadata(opened, manifest, shards, made, seconds=work.seconds, engine=engine)
