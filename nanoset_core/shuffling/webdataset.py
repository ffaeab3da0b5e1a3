"""Shuffled shards that webdataset, wids and OpenLM read, with the lists that name them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from nanoset_core.errors import StaleError
from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.gather import gather
from nanoset_core.shuffling.hashed_file import hashed_file
from nanoset_core.shuffling.members import json_gz_records, member_names, npy_records
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.tar import end_of_archive
from nanoset_core.storage import write_atomic

MANIFEST_NAME = "manifest.jsonl"
WIDS_NAME = "index.json"
EXP_DATA_NAME = "exp_data.json"


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What one written shard holds."""

    shard: int
    """Its number, from 0."""
    sequences: int
    """Contexts in it."""
    tokens: int
    """Tokens of the sources in it, without padding."""
    pad_tokens: int
    """Pad tokens in it."""
    size_bytes: int
    """Size of the tar."""
    sha256: str
    """Hex digest of the tar."""
    md5: str
    """Hex digest of the tar, for wids."""

    @property
    def stem(self) -> str:
        """The shard's name without ``.tar``, as OpenLM's manifest spells it."""
        return shard_stem(self.shard)


def shard_stem(shard: int) -> str:
    """``shard-%08d``; the tar is this plus ``.tar``."""
    return f"shard-{shard:08d}"


def write_shard(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    shard: int,
    folder: Path,
    *,
    tile_bytes: int = 4 << 20,
) -> ShardFacts:
    """Write ``shard-%08d.tar`` of the plan into ``folder``, whole or not at all; shards can come in any order.

    Rows are gathered, encoded and written by tiles of ``tile_bytes`` of tokens; memory is a few tiles. Raises
    StaleError where sources or compressor are not the plan's, SampleIndexError for a shard that is not in the plan.
    """
    plan.check_sources(sources)
    plan.check_compressor()
    contexts = plan.shard_contexts(shard)
    with hashed_file(Path(folder) / f"{shard_stem(shard)}.tar") as tar:
        for records in _tiles(plan, sources, shard, contexts, tile_bytes):
            tar.write(records)
        tar.write(end_of_archive(tar.size_bytes))
    pad_tokens = plan.table.pad_tokens(contexts)
    tokens = len(contexts) * plan.sequence_length - pad_tokens
    return ShardFacts(shard, len(contexts), tokens, pad_tokens, tar.size_bytes, tar.sha256, tar.md5)


def _tiles(
    plan: ShufflePlan, sources: Sequence[TokenSource], shard: int, contexts: np.ndarray, tile_bytes: int
) -> Iterator[np.ndarray | bytes]:
    dtype = np.dtype(plan.dtype)
    rows = max(1, tile_bytes // (plan.sequence_length * dtype.itemsize))
    for begin in range(0, len(contexts), rows):
        tile = contexts[begin : begin + rows]
        names = member_names(shard, begin, begin + len(tile), plan.member)
        if plan.member == "npy":
            records, data = npy_records(names, plan.sequence_length, dtype)
            gather(sources, plan.table, tile, out=data)
            yield records
        else:
            yield json_gz_records(names, gather(sources, plan.table, tile))


def write_manifest(
    plan: ShufflePlan,
    shards: Sequence[ShardFacts],
    folder: Path,
    *,
    name: str = "nanoset",
    dataset_url: str = "./",
    tokenizer: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Write ``index.json`` (wids), ``exp_data.json`` (DCLM) and, last, ``manifest.jsonl`` (OpenLM) into ``folder``.

    Args:
        plan: the plan of all shards.
        shards: facts of every shard of the plan, in any order.
        folder: where the tars lie.
        name: of the dataset.
        dataset_url: how the trainer spells ``folder``.
        tokenizer: name to record in ``exp_data.json``.
        extra: further fields of ``exp_data.json``; they win over ours.

    Returns file name -> sha256. Raises StaleError unless the facts are those of all shards of the plan, once each.
    """
    shards = sorted(shards, key=lambda facts: facts.shard)
    _check_complete(plan, shards)
    url = dataset_url if dataset_url.endswith("/") else f"{dataset_url}/"
    texts = {
        WIDS_NAME: _pretty(_wids_index(shards, name)),
        EXP_DATA_NAME: _pretty(_exp_data(plan, shards, name, url, tokenizer) | dict(extra or {})),
        # OpenLM drops whatever follows the last newline, so the last line needs its own.
        MANIFEST_NAME: b"".join(orjson.dumps(_manifest_row(facts)) + b"\n" for facts in shards),
    }
    for file_name, text in texts.items():
        write_atomic(Path(folder) / file_name, text)
    return {file_name: hashlib.sha256(text).hexdigest() for file_name, text in texts.items()}


def _check_complete(plan: ShufflePlan, shards: Sequence[ShardFacts]) -> None:
    found = [(facts.shard, facts.sequences) for facts in shards]
    expected = [(shard, end - begin) for shard in range(plan.shards) for begin, end in [plan.shard_ranks(shard)]]
    if found != expected or sum(facts.tokens for facts in shards) != plan.tokens:
        wrong = sorted(set(found) ^ set(expected))[:5] or "the number of tokens, or a shard twice"
        raise StaleError(
            "these are not the shards of the plan",
            found=f"{len(found)} shards, {sum(facts.tokens for facts in shards)} tokens; wrong or missing: {wrong}",
            expected=f"{plan.shards} shards, {plan.tokens} tokens",
            remedy="write every shard of the plan once, then the manifest",
        )


def _manifest_row(facts: ShardFacts) -> dict[str, Any]:
    return {
        "shard": facts.stem,
        "num_sequences": facts.sequences,
        "tokens": facts.tokens,
        "pad_tokens": facts.pad_tokens,
        "bytes": facts.size_bytes,
        "sha256": facts.sha256,
    }


def _wids_index(shards: Sequence[ShardFacts], name: str) -> dict[str, Any]:
    rows = [
        {"url": f"{facts.stem}.tar", "md5sum": facts.md5, "nsamples": facts.sequences, "filesize": facts.size_bytes}
        for facts in shards
    ]
    return {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "shardlist": rows}


def _exp_data(
    plan: ShufflePlan, shards: Sequence[ShardFacts], name: str, url: str, tokenizer: str | None
) -> dict[str, Any]:
    return {
        "name": name,
        "dataset_url": url,
        "manifest_url": f"{url}{MANIFEST_NAME}",
        "tokenized": True,
        "tokenizer": tokenizer,
        "num_tokens": plan.tokens,
        "pad_tokens": plan.pad_tokens,
        "num_sequences": plan.contexts,
        "sequence_length": plan.sequence_length,
        "size": sum(facts.size_bytes for facts in shards),
        "seed": plan.seed,
        "eod": plan.eod,
        "pad_id": plan.table.pad_id,
        "sources": [{"name": source.name, "tokens": source.tokens_used} for source in plan.table.sources],
    }


def _pretty(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"
