"""Manifests that are kept by the hundred thousand."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from nanoset_core.outputs.compact import PackedManifests, pack, unpack
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.access import FileAccess

OPTIONS = {"tokenizer": "f" * 64, "framing": {"bos": None, "eod": 0}, "note": "ünï " * 100}
COUNTS = {"documents": 123_456, "tokens": 98_765_432, "reasons": {"blank_line": 3}, "length_histogram": [999] * 32}


@pytest.fixture
def outputs(tmp_path):
    return OutputRoot(FileAccess(tmp_path))


def shard(outputs: OutputRoot, number: int, **options) -> Manifest:
    recipe = Recipe("shards", "web", 2, {"source": f"{number:020x}"}, OPTIONS | options)
    files = {
        "tokens.bin": FileFact(number, f"{number:064x}"),
        "tokens.idx": FileFact(5),
        "x.bin": FileFact(1, None, "x.bin.pieces"),
    }
    facts = {**COUNTS, "tokens": number}
    return Manifest(outputs.place(recipe), recipe.to_json(), recipe.digest, facts, files, outputs.access)


def test_the_same_manifests_again(outputs):
    made = [shard(outputs, number) for number in range(5)]
    made += [shard(outputs, 5, note="other settings"), shard(outputs, 6)]
    kept = PackedManifests(map(pack, made), outputs)
    assert list(kept) == made
    assert (kept[-1], list(kept[1:3]), len(kept)) == (made[-1], made[1:3], len(made))
    assert kept[2].access is outputs.access
    with pytest.raises(IndexError):
        kept[len(made)]


def test_of_a_root_elsewhere(outputs, tmp_path):
    """What another process made in a folder of its own is known here by the folder of this root."""
    made = shard(outputs, 1)
    assert unpack(pack(replace(made, folder=tmp_path / "elsewhere")), outputs).folder == made.folder


def test_little_is_kept_of_each(outputs):
    tracemalloc.start()
    kept = PackedManifests((pack(shard(outputs, number)) for number in range(1000)), outputs)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < 1000 * len(kept)
