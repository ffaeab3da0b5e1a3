"""The lists that name the shards of a webdataset: for OpenLM, for wids, and DCLM's record, which can be completed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.formats.tars.samples import MANIFEST_NAME
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.stages.webdataset.contexts import SourceContexts
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.shards import TarFacts
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.regular_files import read_regular

WIDS_NAME = "index.json"
EXP_DATA_NAME = "exp_data.json"
LISTS = (MANIFEST_NAME, WIDS_NAME, EXP_DATA_NAME)
"""What names the tars."""


def write_lists(
    plan: ShufflePlan,
    shards: Sequence[TarFacts],
    folder: Path,
    *,
    name: str,
    tokenizer: str | None = None,
    sources: Sequence[SourceContexts] | None = None,
) -> dict[str, FileFact]:
    """Write `index.json` (wids), `exp_data.json` (DCLM) and, last, `manifest.jsonl` (OpenLM) beside a plan's shards.

    Args:
        plan: of the shards.
        shards: what each holds.
        folder: of the tars.
        name: of the dataset.
        tokenizer: what DCLM's record calls the tokenizer.
        sources: counts of the sources; None: those of the plan.

    Returns:
        File name → size and sha256 of all tars and lists.
    """
    # wids needs no md5sum, and checks none: the sha256 in the manifest is the one to check.
    tars = [{"url": f"{one.stem}.tar", "nsamples": one.sequences, "filesize": one.size_bytes} for one in shards]
    rows = [
        {
            "shard": facts.stem,
            "num_sequences": facts.sequences,
            "tokens": facts.tokens,
            "pad_tokens": facts.pad_tokens,
            "bytes": facts.size_bytes,
            "sha256": facts.sha256,
        }
        for facts in shards
    ]
    texts = {
        WIDS_NAME: _pretty({"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "shardlist": tars}),
        EXP_DATA_NAME: _pretty(_exp_data(plan, shards, name, tokenizer, sources or plan.table.sources)),
        # OpenLM drops what follows the last newline, so the last line needs its own.
        MANIFEST_NAME: b"".join(orjson.dumps(row) + b"\n" for row in rows),
    }
    files = {f"{facts.stem}.tar": FileFact(facts.size_bytes, facts.sha256) for facts in shards}
    for file_name, text in texts.items():
        write_atomic(folder / file_name, text)
        files[file_name] = FileFact(len(text), hashlib.sha256(text).hexdigest())
    return files


def _exp_data(
    plan: ShufflePlan,
    shards: Sequence[TarFacts],
    name: str,
    tokenizer: str | None,
    sources: Sequence[SourceContexts],
) -> dict[str, Any]:
    return {
        "name": name,
        "dataset_url": "./",
        "manifest_url": f"./{MANIFEST_NAME}",
        "tokenized": True,
        "tokenizer": tokenizer,
        "num_tokens": sum(facts.tokens for facts in shards),
        "pad_tokens": sum(facts.pad_tokens for facts in shards),
        "num_sequences": plan.contexts,
        "sequence_length": plan.sequence_length,
        "size": sum(facts.size_bytes for facts in shards),
        "seed": plan.settings.seed,
        "eod": plan.settings.eod,
        "pad_id": plan.settings.pad_id,
        "sources": [{"name": source.name, "tokens": source.tokens_used} for source in sources],
    }


def _pretty(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"


def complete_exp_data(
    folder: Location, given: Path | None, target: Path, *, overwrite: bool = True, only_check: bool = False
) -> None:
    """Complete DCLM's record of a data set with what a shuffle made of it, as tokshuf-rust's `--output-json` does.

    `dataset_url`, `manifest_url` and `tokenized` are set; our other counts are added where the record `given`, a JSON
    object, has none. With `only_check` nothing is written, but raised what would be once there are tars.
    """
    data = store_of(folder).read(EXP_DATA_NAME)
    if data is None and not only_check:
        raise MissingError("no such file", where=folder / EXP_DATA_NAME, remedy="run the shuffle again")
    try:
        record = {} if given is None else orjson.loads(read_regular(given))
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}")
    except FileNotFoundError as error:
        raise MissingError("no such record", where=given, remedy="correct the path of --input-json") from error
    except ValueError as error:
        what, remedy = "not a record", "give a file with one JSON object to --input-json"
        raise FormatError(what, where=given, found=str(error), expected="one JSON object", remedy=remedy) from error
    url = f"{folder.absolute()}/"
    set_here = {"dataset_url": url, "manifest_url": f"{url}{MANIFEST_NAME}", "tokenized": True}
    text = _pretty(orjson.loads(data or b"{}") | record | set_here)
    is_other = not target.exists() or read_regular(target) != text
    if is_other and target.exists() and not overwrite:
        remedy = "name another --output-json, or replace this one with --overwrite"
        raise ConfigError("another record is there already", where=target, remedy=remedy)
    if is_other and not only_check:
        with writing_to(target.parent):
            write_atomic(target, text)
