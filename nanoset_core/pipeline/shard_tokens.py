"""Where the tokens of a shard are: in its own .bin, or, once a dataset holds them, as a range of that.

The shard's manifest says which (`Manifest.place`), so every reader of a shard finds them. It is written before the .bin
goes, and after it came back: whenever a process is killed, what the manifest names is there.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from nanoset_core.outputs.manifest import MANIFEST, FileFact, Manifest, Recipe, manifest_bytes
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.local import append_file
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.tokenization.shards import BIN


def point_into(shard: Manifest, fact: FileFact) -> None:
    """Let a shard's tokens be a range of a dataset, which the caller compared by its sha256; remove its .bin."""
    _note(shard, fact)
    with contextlib.suppress(FileNotFoundError):  # it lay within another dataset
        shard.access.remove(shard.folder / BIN)


def keep_tokens(shard: Manifest) -> None:
    """Copy the tokens of a local shard back from the range of a dataset that they are."""
    fact, (path, begin) = shard.files[BIN], shard.place(BIN)
    with open_regular(path) as source, atomic_file(shard.folder / BIN) as target:
        append_file(source, target, fact.size, begin)
    _note(shard, replace(fact, within=None, begin=0))


def _note(shard: Manifest, fact: FileFact) -> None:
    data = manifest_bytes(Recipe(**shard.recipe), shard.facts, {**shard.files, BIN: fact})
    shard.access.write(shard.folder / MANIFEST, data)
