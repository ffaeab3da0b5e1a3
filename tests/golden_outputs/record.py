"""What is held of a folder of outputs: recipes and digests in plain text, and a checksum of every
file.
"""

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
"""Libraries whose version decides the bytes of some files: documents.parquet, and members of
json.gz tars.
"""


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of every file; not what is hidden, such as the memory of file times."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix(), path


def checksums(folder: Path) -> dict[str, str]:
    """Relative name → the first half of the sha256 of its bytes."""
    own = folder.resolve()
    return {
        name: hashlib.sha256(_stable(path, own)).hexdigest()[:32] for name, path in files(folder)
    }


def recipes(folder: Path) -> dict[str, Any]:
    """Relative folder of each output → its digest, and what its manifest says that it is made from."""
    found = {}
    for name, path in files(folder):
        if path.name == "manifest.json" and "recipe" in (
            manifest := json.loads(_stable(path, folder.resolve()))
        ):
            found[name.removesuffix("/manifest.json")] = {"digest": manifest["digest"]} | manifest[
                "recipe"
            ]
    return found


def _stable(path: Path, folder: Path) -> bytes:
    """A file's bytes, without what differs between two folders and two times.

    That is the folder's own path, the engine of a shard, and in the manifests of `nanoset shuffle`
    the digest over paths, times and inodes of its inputs, with that of the recipe which it is in.
    """
    data = path.read_bytes().replace(str(folder).encode(), b"<here>")
    if path.name == "manifest.json" and "encoder" in json.loads(data)["facts"]:
        data = _without_encoder(json.loads(data))
    if path.name == "manifest.json" and (
        inputs := json.loads(data)["recipe"]["parents"].get("inputs")
    ):
        data = data.replace(inputs.encode(), b"<inputs>").replace(
            json.loads(data)["digest"].encode(), b"<digest>"
        )
    return data


def _without_encoder(manifest: dict[str, Any]) -> bytes:
    """A shard's manifest without the fact of what made it: an engine and its version, which no
    digest depends on.
    """
    facts = {name: fact for name, fact in manifest["facts"].items() if name != "encoder"}
    files = {
        name: FileFact(fact["bytes"], fact.get("sha256"))
        for name, fact in manifest["files"].items()
    }
    recipe = from_plain(Recipe, manifest["recipe"])
    return dump(StoredManifest.of(recipe, facts, files))


def record(folder: Path) -> dict[str, Any]:
    """All that is held of one folder."""
    return {"recipes": recipes(folder), "files": checksums(folder)}


def writers() -> dict[str, str]:
    """What wrote the files: the versions that some bytes depend on, and the machine whose
    compression loops ran.
    """
    return {name: version(name) for name in WRITERS} | {"machine": platform.machine()}


def is_comparable(name: str) -> bool:
    """Whether a file or output is the same whatever the versions in `writers`."""
    place = name.split("/")
    return place[0] != "shards" and "zipped" not in place
