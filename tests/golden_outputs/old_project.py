"""Projects that earlier commits built: unpacked, and what commands and Dagster make of them, as
plain values.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
from golden_outputs.command import run

from helpers.locations import GOLDEN_FILES
from nanoset_assets.definitions import defs
from nanoset_core import MMapIndexedDataset, PackedDataset, load_nanoset
from nanoset_core.loading.shard_reader import ShardReader

FOLDER = GOLDEN_FILES / "projects"
_OF_ALL = (
    "status --json",
    "verify --deep --json",
    "gc --json",
    "gc --json --keep 1 --unfinished",
    "diff web --json",
    "map --plan --json",
)
COMMANDS = {
    "2f92378": (
        *_OF_ALL,
        "explain pretrain train 3 --json",
        "explain plain valid 0 --json",
        "explain pretrain train --document web-3 --json",
        "explain pretrain train --file part-1/web-10.jsonl --line 2 --corpus web --json",
    ),
    "8b69ae2": (
        *_OF_ALL,
        "explain phased-phase-1 train 3 --json",
        "explain nanotron train 5 --json",
        "explain zipped 7 --json",
        "explain nemo train --document web-3 --json",
        "explain zipped --document web-3 --json",
    ),
}
"""Commit → what is run in the folder of its project; each prints JSON and ends with 0."""
COMMITS = tuple(COMMANDS)
_PROSE = ("why", "note")


def golden(commit: str) -> Path:
    """The file of what a commit made of its own project."""
    return FOLDER / f"{commit}.json"


def unpack(commit: str, folder: Path) -> Path:
    """Unpack the project of a commit as it was left, with the times of its files; → the folder."""
    with tarfile.open(FOLDER / f"{commit}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def printed(commit: str, folder: Path) -> dict[str, Any]:
    """Command → the JSON that it prints, in the project's folder, which must be the current one."""
    texts = {
        command: run(command.split()).replace(str(folder), "<here>") for command in COMMANDS[commit]
    }
    return {command: _stable(json.loads(text)) for command, text in texts.items()}


def read(folder: Path) -> dict[str, Any]:
    """What trainers read of it: name → how many samples, and a checksum over the values of all."""
    data = folder / "data"
    datasets: dict[str, Any] = {}
    for path in sorted(data.glob("nanosets/*/*/*/current.json")):
        name, split, kind = path.parts[-4:-1]
        if (
            kind == "index_mappings"
            and json.loads((path.parent / "current/plan.json").read_bytes())["plan"]
        ):
            datasets[f"{name}/{split}"] = load_nanoset(data, name, split)
    for path in sorted(data.glob("webdatasets/*/current")):
        datasets[path.parts[-2]] = list(ShardReader(path))
    for path in sorted(data.glob("packed/*/current/*.pbin")):
        datasets[f"packed/{path.stem}"] = PackedDataset(path)
    for path in sorted(data.glob("datasets/*/current/*.bin")):
        datasets[f"datasets/{path.parts[-3]}"] = MMapIndexedDataset(path.with_suffix(""))
    return {name: _values(dataset) for name, dataset in datasets.items()}


def _values(dataset: Any) -> list[Any]:
    sha = hashlib.sha256()
    for number in range(len(dataset)):
        sample = dataset[number]
        for key, value in sorted(sample.items()) if isinstance(sample, dict) else [("", sample)]:
            array = np.asarray(value)
            sha.update(f"{key} {array.dtype} {array.shape}".encode() + array.tobytes())
    return [len(dataset), sha.hexdigest()]


def _stable(value: Any) -> Any:
    """Without times, which some file systems round, and words that people read: whether there are
    any is enough.
    """
    if isinstance(value, list):
        return [_stable(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    held = {key: _stable(entry) for key, entry in value.items()}
    if "garbage" in held:
        # index files come in the folder's order
        held["garbage"].sort(key=lambda entry: entry["path"])
    return held | {key: bool(value[key]) for key in (*_PROSE, "made_at") if key in value}


def defined(instance: dg.DagsterInstance) -> dict[str, Any]:
    """Names that Dagster's history holds on to, from the definitions of the project that
    NANOSET_CONFIG names.
    """
    definitions = defs()
    repository = definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    return {
        "assets": {
            key.to_user_string(): _asset(graph.get(key), instance)
            for key in graph.get_all_asset_keys()
        },
        "checks": sorted(
            f"{key.asset_key.to_user_string()}: {key.name}" for key in graph.asset_check_keys
        ),
        "jobs": sorted(job.name for job in repository.get_all_jobs()),
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
    }


def _asset(node: Any, instance: dg.DagsterInstance) -> dict[str, Any]:
    partitions = node.partitions_def
    return {
        "group": node.group_name,
        "kinds": sorted(node.kinds),
        "parents": sorted(key.to_user_string() for key in node.parent_keys),
        "partitions": partitions
        and sorted(partitions.get_partition_keys(dynamic_partitions_store=instance)),
        "partitions_name": getattr(partitions, "name", None),
        "pools": sorted(node.pools or ()),
    }
