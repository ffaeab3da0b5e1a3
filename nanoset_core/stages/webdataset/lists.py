"""Write the lists that name the tars of a webdataset, which other programs read.

- `manifest.jsonl`, for OpenLM: a line for each tar.
- `index.json`, for wids: the tars with their number of samples.
- `exp_data.json`, DCLM's record of a data set. `nanoset shuffle` can add it to a record of yours.
"""

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
from nanoset_core.stages.webdataset.tars import TarFacts
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.regular_files import read_regular

WIDS_NAME = "index.json"
EXP_DATA_NAME = "exp_data.json"
LISTS = (MANIFEST_NAME, WIDS_NAME, EXP_DATA_NAME)
"""File names of the lists."""


def write_lists(
    plan: ShufflePlan,
    tars: Sequence[TarFacts],
    folder: Path,
    *,
    name: str,
    tokenizer: str | None = None,
    sources: Sequence[SourceContexts] | None = None,
) -> dict[str, FileFact]:
    """Write the lists by which programs find the tar files of a shuffled dataset, next to the tars.

        index.json          for the library wids: the tars, with their numbers of samples
        exp_data.json       for DCLM's tools: counts and settings of the dataset
        manifest.jsonl      for OpenLM: a line for each tar

    Args:
        plan: Has the settings of the dataset.
        tars: Counts, size and sha256 of each tar, in order.
        folder: Folder of the tars.
        name: Name of the dataset.
        tokenizer: Name of the tokenizer, if it is known.
        sources: Counts of each source of text. None: those of the plan.

    Returns:
        Name of each tar and list → its size and sha256.
    """
    exp_data = _exp_data(plan, tars, name, tokenizer, sources or plan.table.sources)
    contents: dict[str, bytes] = {
        WIDS_NAME: _indented(_wids_index(tars, name)),
        EXP_DATA_NAME: _indented(exp_data),
        # This is written last, because a folder that has OpenLM's list counts as complete.
        MANIFEST_NAME: _openlm_manifest(tars),
    }

    # The tars are written already. Write the lists in this order.
    files = {f"{facts.stem}.tar": FileFact(facts.size_bytes, facts.sha256) for facts in tars}
    for file_name, content in contents.items():
        write_atomic(folder / file_name, content)
        files[file_name] = FileFact(len(content), hashlib.sha256(content).hexdigest())
    return files


def _wids_index(tars: Sequence[TarFacts], name: str) -> dict[str, Any]:
    """Return the content of index.json, by which the library wids finds the tar files of a dataset.

    An entry of its "shardlist" is

        {"url": "shard-00000000.tar", "nsamples": 8192, "filesize": 33566720}

    wids also knows a checksum, md5sum, but does not check it. So it is left out.

    Args:
        tars: Counts and size of each tar, in order.
        name: Name of the dataset.
    """
    shards: list[dict[str, Any]] = []
    for facts in tars:
        shards.append(
            {
                "url": f"{facts.stem}.tar",
                "nsamples": facts.sequences,
                "filesize": facts.size_bytes,
            }
        )
    return {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "shardlist": shards}


def _openlm_manifest(tars: Sequence[TarFacts]) -> bytes:
    """Return the content of manifest.jsonl, by which OpenLM finds the tar files of a dataset.

    Each line is a JSON object for a tar:

        {"shard":"shard-00000000","num_sequences":8192,"tokens":16785408,...}

    Args:
        tars: Counts, size and sha256 of each tar, in order.
    """
    lines: list[bytes] = []
    for facts in tars:
        row = {
            "shard": facts.stem,
            "num_sequences": facts.sequences,
            "tokens": facts.tokens,
            "pad_tokens": facts.pad_tokens,
            "bytes": facts.size_bytes,
            "sha256": facts.sha256,
        }
        # OpenLM ignores a line that does not end with a newline, so the last line needs one, too.
        lines.append(orjson.dumps(row) + b"\n")
    return b"".join(lines)


def _exp_data(
    plan: ShufflePlan,
    tars: Sequence[TarFacts],
    name: str,
    tokenizer: str | None,
    sources: Sequence[SourceContexts],
) -> dict[str, Any]:
    """Return the content of exp_data.json, the description of a dataset that DCLM's tools read.

    DCLM is a project that publishes training data. Its tools need the number of tokens, and the
    path of the list of tar files:

        {"name": "web", "manifest_url": "./manifest.jsonl", "num_tokens": 16785408, ...}

    Args:
        plan: Has the settings of the dataset.
        tars: Counts and size of each tar.
        name: Name of the dataset.
        tokenizer: Name of the tokenizer; None if it is not known.
        sources: Counts of each source of text.
    """
    return {
        "name": name,
        "dataset_url": "./",
        "manifest_url": f"./{MANIFEST_NAME}",
        "tokenized": True,
        "tokenizer": tokenizer,
        "num_tokens": sum(facts.tokens for facts in tars),
        "pad_tokens": sum(facts.pad_tokens for facts in tars),
        "num_sequences": plan.contexts,
        "sequence_length": plan.sequence_length,
        "size": sum(facts.size_bytes for facts in tars),
        "seed": plan.settings.seed,
        "eod": plan.settings.eod,
        "pad_id": plan.settings.pad_id,
        "sources": [{"name": source.name, "tokens": source.tokens_used} for source in sources],
    }


def _indented(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"


def complete_exp_data(
    folder: Location,
    record_file: Path | None,
    target: Path,
    *,
    overwrite: bool = True,
    only_check: bool = False,
) -> None:
    """Add the counts of shuffled tar files to the user's description of a dataset.

    The description is a JSON object in DCLM's format, such as {"name": "web"}. The option
    `--output-json` of the program tokshuf-rust does the same: it adds "num_tokens" and the like,
    and the addresses of the tars. Keys that the user has set stay, except the addresses
    `dataset_url` and `manifest_url`, and `tokenized`.

    Args:
        folder: Folder of the tars.
        record_file: The user's description. None: there is none.
        target: Path of the result.
        overwrite: Whether another description at `target` may be replaced.
        only_check: Write nothing. This finds mistakes before the tars are made.

    Raises:
        MissingError: The description, or `exp_data.json` next to the tars, is missing.
        FormatError: The description is not a JSON object.
        ConfigError: `target` has another description.
    """
    counts = store_of(folder).read(EXP_DATA_NAME)
    if counts is None and not only_check:
        raise MissingError(
            "no such file", where=folder / EXP_DATA_NAME, remedy="run the shuffle again"
        )
    text = _completed_record(folder, counts or b"{}", _read_record(record_file))
    if target.exists():
        if read_regular(target) == text:
            return
        if not overwrite:
            raise ConfigError(
                "another record exists already",
                where=target,
                remedy="name another --output-json, or replace this one with --overwrite",
            )
    if not only_check:
        with writing_to(target.parent):
            write_atomic(target, text)


def _completed_record(folder: Location, counts: bytes, record: Mapping[str, Any]) -> bytes:
    """Add the counts and the addresses of tar files to the user's description of a dataset.

    The description is a JSON object in DCLM's format. If a key is in several places, one of them
    takes precedence:

        our counts           {"name": "shuffled", "num_tokens": 1000}
        user's description   {"name": "web", "dataset_url": "?"}
        addresses            {"dataset_url": "/data/tars/", ...}
        result               {"name": "web", "num_tokens": 1000, "dataset_url": "/data/tars/", ...}

    Args:
        folder: Folder of the tars.
        counts: The counts, a JSON object that was written next to the tars.
        record: The user's description.

    Returns:
        The result as JSON.
    """
    url = f"{folder.absolute()}/"
    urls = {"dataset_url": url, "manifest_url": f"{url}{MANIFEST_NAME}", "tokenized": True}
    return _indented({**orjson.loads(counts), **record, **urls})


def _read_record(path: Path | None) -> dict[str, Any]:
    """Read the user's description of a dataset, to which counts are added later.

    It is a file with one JSON object, in the format of DCLM's tools, such as
    {"name": "web", "tokenizer": "llama"}.

    Args:
        path: The file. None: the user has given none, and the result is {}.

    Raises:
        MissingError: There is no such file.
        FormatError: The file is not a JSON object.
    """
    if path is None:
        return {}
    try:
        record = orjson.loads(read_regular(path))
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}")
    except FileNotFoundError as error:
        raise MissingError(
            "no such record", where=path, remedy="correct the path of --input-json"
        ) from error
    except ValueError as error:
        raise FormatError(
            "not a record",
            where=path,
            found=str(error),
            expected="one JSON object",
            remedy="give a file with one JSON object to --input-json",
        ) from error
    return record
