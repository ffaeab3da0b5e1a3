"""Record a folder of outputs: recipes and digests in plain text, and a checksum of each file."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from golden_outputs.projects import GOLDEN

from nanoset_core.outputs.manifest import FileFact, Recipe, StoredManifest
from nanoset_core.records.json_records import dump, from_plain

FILE = GOLDEN / "golden.json"
WRITERS = ("pyarrow", "isal")
"""Libraries on whose versions some bytes depend: documents.parquet, and members of json.gz tars."""


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative name and the path of every file, without hidden files and folders.

    Hidden files are, for example, remembered digests of raw text, which only save time.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not is_hidden:
            yield name.as_posix(), path


def checksums(folder: Path) -> dict[str, str]:
    """Return the first half of the sha256 of each file, by relative name."""
    checksum_by_name = {}
    for name, path in files(folder):
        data = _comparable_bytes(path, folder.resolve())
        checksum_by_name[name] = hashlib.sha256(data).hexdigest()[:32]
    return checksum_by_name


def recipes(folder: Path) -> dict[str, Any]:
    """Return the digest and the recipe of each output, by its relative folder."""
    recipe_by_folder = {}
    for name, path in files(folder):
        if path.name != "manifest.json":
            continue
        manifest = json.loads(_comparable_bytes(path, folder.resolve()))
        if "recipe" in manifest:
            output_folder = name.removesuffix("/manifest.json")
            recipe_by_folder[output_folder] = {"digest": manifest["digest"]} | manifest["recipe"]
    return recipe_by_folder


def _comparable_bytes(path: Path, folder: Path) -> bytes:
    """Return the bytes of a file, without what differs between two folders and two times.

    This is the path of the folder, and in manifests the engine of a shard, and what depends on the
    paths, times and inodes of the inputs of `nanoset shuffle`.
    """
    data = path.read_bytes().replace(str(folder).encode(), b"<here>")
    if path.name != "manifest.json":
        return data
    if "encoder" in json.loads(data)["facts"]:
        data = _without_encoder(json.loads(data))
    return _without_input_digest(data)


def _without_input_digest(data: bytes) -> bytes:
    """Return a manifest without the digest of its input files, and the digest that it leads to."""
    manifest = json.loads(data)
    input_digest = manifest["recipe"]["parents"].get("inputs")
    if not input_digest:
        return data
    data = data.replace(input_digest.encode(), b"<inputs>")
    return data.replace(manifest["digest"].encode(), b"<digest>")


def _without_encoder(manifest: dict[str, Any]) -> bytes:
    """Return a shard's manifest without the engine that made it, on which no digest depends."""
    facts = {name: fact for name, fact in manifest["facts"].items() if name != "encoder"}
    file_facts = {}
    for name, fact in manifest["files"].items():
        file_facts[name] = FileFact(fact["bytes"], fact.get("sha256"))
    recipe = from_plain(Recipe, manifest["recipe"])
    return dump(StoredManifest.of(recipe, facts, file_facts))


def record(folder: Path) -> dict[str, Any]:
    """Return everything that is recorded of a folder."""
    return {"recipes": recipes(folder), "files": checksums(folder)}


def writers() -> dict[str, str]:
    """Return what some bytes depend on: versions of libraries, and the kind of processor."""
    versions = {name: version(name) for name in WRITERS}
    return versions | {"machine": platform.machine()}


def is_comparable(name: str) -> bool:
    """Return whether a file or output is the same with all versions of `writers`."""
    parts = name.split("/")
    return parts[0] != "shards" and "zipped" not in parts
