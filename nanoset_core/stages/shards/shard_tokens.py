"""Where the tokens of a shard are: in its own .bin, or, once a dataset holds them, as a range of that.

The shard's manifest says which (`Manifest.place`), so every reader of a shard finds them. It is written before the .bin
goes, and after it came back: whenever a process is killed, what the manifest names is there.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from nanoset_core.errors import StorageError
from nanoset_core.outputs.manifest import MANIFEST, FileFact, Manifest, Recipe, manifest_bytes
from nanoset_core.stages.shards.shards import BIN
from nanoset_core.storage.atomic import atomic_file, sha256_file
from nanoset_core.storage.local import append_file
from nanoset_core.storage.regular_files import open_regular


def point_into(shard: Manifest, fact: FileFact) -> None:
    """Let a shard's tokens be a range of a dataset, which the caller compared by its sha256; remove its .bin."""
    _note(shard, fact)
    with contextlib.suppress(FileNotFoundError):  # it lay within another dataset
        shard.access.remove(shard.folder / BIN)


def keep_tokens(shard: Manifest) -> None:
    """Copy the tokens of a local shard back from the range of a dataset that they are; StorageError for other bytes."""
    fact, (path, begin) = shard.files[BIN], shard.place(BIN)
    with open_regular(path) as source, atomic_file(shard.folder / BIN) as target:
        append_file(source, target, fact.size, begin)
        target.flush()
        if (found := sha256_file(Path(target.name))) != fact.sha256:
            raise altered(path, f"sha256 {found} of {fact.size:,} bytes from byte {begin:,} on, not {fact.sha256}")
    _note(shard, replace(fact, within=None, begin=0))


def altered(path: Path, found: str) -> StorageError:
    """Return the error for a file in which tokens of shards are others by now."""
    what = "tokens of shards are not those that were written"
    remedy = "run `nanoset verify --deep`, delete the shards that it names, and build again: they are made anew"
    return StorageError(what, where=path, found=found, remedy=remedy)


def _note(shard: Manifest, fact: FileFact) -> None:
    data = manifest_bytes(Recipe(**shard.recipe), shard.facts, {**shard.files, BIN: fact})
    shard.access.write(shard.folder / MANIFEST, data)
