"""Tasks of making single shards."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from helpers.building import output_root
from helpers.locations import GOLDEN_FILES
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.stages.shards.framing import Framing
from nanoset_core.stages.shards.one_shard import ShardSettings, ShardTask
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.text.inventory.take import take_inventory
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

GOLDEN = GOLDEN_FILES / "tokenization"
FILES_OF_SHARD = [
    "documents.parquet",
    "manifest.json",
    "rejects.jsonl",
    "tokens.bin",
    "tokens.idx",
]
"""Names of the files of a shard, sorted."""


def task_for(
    corpus: Path, out: Path, source: SourceRange | None = None, **changes: Any
) -> ShardTask:
    """Return the task of making one shard.

    Args:
        corpus: The folder of the raw text.
        out: The root of the outputs.
        source: The text of the shard; by default all of the corpus.
        changes: Settings that are not as usual.
    """
    source = source or SourceRange(take_inventory(corpus, "web").pieces)
    facts = tokenizer_facts(GOLDEN / "tokenizer.json")
    settings = ShardSettings(
        tokenizer_file=facts.file,
        engine="tokenizers",
        dtype=facts.dtype.name,
        max_id=facts.max_id,
        framing=Framing(after=(0,)),
        text_key="text",
        max_line_bytes=1 << 20,
        fail_on_reject=False,
    )
    recipe = Recipe("shards", "web", 1, {"source": source.digest}, {"tokenizer": facts.fingerprint})
    return ShardTask(
        root=output_root(out),
        recipe=recipe,
        folder=corpus,
        source=source,
        settings=dataclasses.replace(settings, **changes),
    )


def json_lines(*texts: str) -> bytes:
    """Return texts as JSON lines in ASCII."""
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def bytes_by_path(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder, by relative path."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
