"""Projects that earlier commits built, and what commands, readers and Dagster return for them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from operator import itemgetter
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
COMMANDS_OF_ALL = (
    "status --json",
    "verify --deep --json",
    "gc --json",
    "gc --json --keep 1 --unfinished",
    "diff web --json",
    "map --plan --json",
)
COMMANDS = {
    "2f92378": (
        *COMMANDS_OF_ALL,
        "explain pretrain train 3 --json",
        "explain plain valid 0 --json",
        "explain pretrain train --document web-3 --json",
        "explain pretrain train --file part-1/web-10.jsonl --line 2 --corpus web --json",
    ),
    "8b69ae2": (
        *COMMANDS_OF_ALL,
        "explain phased-phase-1 train 3 --json",
        "explain nanotron train 5 --json",
        "explain zipped 7 --json",
        "explain nemo train --document web-3 --json",
        "explain zipped --document web-3 --json",
    ),
}
"""Commit → the commands that are run in the folder of its project. Each prints JSON."""
COMMITS = tuple(COMMANDS)
UNSTABLE_KEYS = ("why", "note", "made_at")
"""Keys of printed JSON with a text for users, or with a time."""


def golden(commit: str) -> Path:
    """Return the file with what the commands and readers of a commit returned for its project."""
    return FOLDER / f"{commit}.json"


def unpack(commit: str, folder: Path) -> Path:
    """Unpack the project of a commit, with the times of its files, and return its folder."""
    with tarfile.open(FOLDER / f"{commit}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def printed(commit: str, folder: Path) -> dict[str, Any]:
    """Return the JSON that each command prints in the project's folder, which must be the current."""
    json_by_command = {}
    for command in COMMANDS[commit]:
        text = run(command.split()).replace(str(folder), "<here>")
        json_by_command[command] = _stable(json.loads(text))
    return json_by_command


def _stable(value: Any) -> Any:
    """Return printed JSON without what may differ between two file systems or two versions.

    Some file systems round times, and texts for users may become clearer. So it only remains whether
    there is a time or a text. Garbage is sorted, because index files have the order of their folder.
    """
    if isinstance(value, list):
        return [_stable(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    stable = {key: _stable(entry) for key, entry in value.items()}
    if "garbage" in stable:
        stable["garbage"].sort(key=itemgetter("path"))
    for key in UNSTABLE_KEYS:
        if key in value:
            stable[key] = bool(value[key])
    return stable


def read(folder: Path) -> dict[str, Any]:
    """Return what trainers read of a project.

    This is the number of samples of each dataset, and a checksum of the values of all samples.
    """
    return {name: _number_and_checksum(dataset) for name, dataset in _datasets(folder / "data")}


def _datasets(data: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name and the reader of each dataset below the folder of outputs."""
    for path in sorted(data.glob("nanosets/*/*/index_mappings/current.json")):
        plan = json.loads((path.parent / "current/plan.json").read_bytes())
        # A split without samples has no plan.
        if plan["plan"]:
            name, split = path.parts[-4:-2]
            yield f"{name}/{split}", load_nanoset(data, name, split)
    for path in sorted(data.glob("webdatasets/*/current")):
        yield path.parent.name, list(ShardReader(path))
    for path in sorted(data.glob("packed/*/current/*.pbin")):
        yield f"packed/{path.stem}", PackedDataset(path)
    for path in sorted(data.glob("datasets/*/current/*.bin")):
        corpus = path.parts[-3]
        yield f"datasets/{corpus}", MMapIndexedDataset(path.with_suffix(""))


def _number_and_checksum(dataset: Any) -> list[Any]:
    """Return the number of samples of a dataset, and a checksum of the arrays of all samples."""
    checksum = hashlib.sha256()
    for number in range(len(dataset)):
        sample = dataset[number]
        # Readers return one array, or several by their names.
        arrays = sample if isinstance(sample, dict) else {"": sample}
        for name, values in sorted(arrays.items()):
            array = np.asarray(values)
            checksum.update(f"{name} {array.dtype} {array.shape}".encode())
            checksum.update(array.tobytes())
    return [len(dataset), checksum.hexdigest()]


def defined(instance: dg.DagsterInstance) -> dict[str, Any]:
    """Return the names under which Dagster stores the history of a project.

    The environment variable NANOSET_CONFIG must name the project.
    """
    definitions = defs()
    repository = definitions.get_repository_def()
    graph = definitions.resolve_asset_graph()
    assets = {}
    for key in graph.get_all_asset_keys():
        assets[key.to_user_string()] = _asset(graph.get(key), instance)
    checks = [f"{key.asset_key.to_user_string()}: {key.name}" for key in graph.asset_check_keys]
    return {
        "assets": assets,
        "checks": sorted(checks),
        "jobs": sorted(job.name for job in repository.get_all_jobs()),
        "sensors": sorted(sensor.name for sensor in repository.sensor_defs),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
    }


def _asset(node: Any, instance: dg.DagsterInstance) -> dict[str, Any]:
    """Return what the history and the UI of Dagster know of an asset."""
    partitions = node.partitions_def
    partition_keys = None
    if partitions is not None:
        partition_keys = sorted(partitions.get_partition_keys(dynamic_partitions_store=instance))
    return {
        "group": node.group_name,
        "kinds": sorted(node.kinds),
        "parents": sorted(key.to_user_string() for key in node.parent_keys),
        "partitions": partition_keys,
        "partitions_name": getattr(partitions, "name", None),
        "pools": sorted(node.pools or ()),
    }
