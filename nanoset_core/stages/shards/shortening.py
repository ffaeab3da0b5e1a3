"""A shard without some of its documents, made of the shard itself: nothing is tokenized, and no text is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError
from nanoset_core.formats.indexed.layout import Index, read_idx, write_idx
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.shards.document_table import DocumentRows, copy_without
from nanoset_core.stages.shards.facts import LENGTH_BINS, ShardFacts
from nanoset_core.stages.shards.shards import BIN, DOCUMENTS, REJECTS, TOKENS
from nanoset_core.storage.atomic import sha256_file


@dataclass(frozen=True, slots=True)
class ShortenTask:
    """Everything that a worker needs to make a shard of another one."""

    root: OutputRoot
    recipe: Recipe
    shard: Manifest
    files: Sequence[str]
    """Of its range, in order."""
    rows: NDArray[np.int64]
    """Documents that it is to lose, ascending."""


def shorten(task: ShortenTask) -> Manifest:
    """Make and store a shard without some documents of another one, or return it when it is there already.

    Its files are byte for byte those that tokenizing its range would give. Raises as the readers of these files.
    """
    with task.root.in_task() as root:
        shard = root.rebase(task.shard)
        return root.commit(task.recipe, lambda folder: _write(shard, task, folder))


def _write(shard: Manifest, task: ShortenTask, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    table = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    index = read_idx(shard.path(f"{TOKENS}.idx"))
    documents, lengths = index.document_indices, index.sequence_lengths
    counts = np.diff(documents)
    kept = np.ones(len(counts), np.bool_)
    kept[task.rows] = False
    sequences = np.repeat(kept, counts)
    with (folder / BIN).open("wb") as file:
        for block in _kept_bytes(shard, index, sequences):
            file.write(block)
    with (folder / f"{TOKENS}.idx").open("wb") as file:
        write_idx(file, index.dtype, lengths[sequences], np.append(0, np.cumsum(counts[kept])))
    copy_without(table, task.rows, folder / DOCUMENTS, task.files)
    (folder / REJECTS).write_bytes(shard.path(REJECTS).read_bytes())
    gone = np.concatenate([part[~kept[begin : begin + len(part)]] for begin, part in table.lengths()])
    facts, before = dict(shard.facts), ShardFacts.of(shard.facts)
    histogram = np.bincount(np.frexp(gone.astype(np.float64))[1], minlength=LENGTH_BINS)[:LENGTH_BINS]
    facts |= {
        "documents": before.documents - len(gone),
        "sequences": int(sequences.sum()),
        "tokens": before.tokens - int(gone.sum()),
        "length_histogram": (np.array(before.length_histogram) - histogram).tolist(),
        "purged": before.purged + len(gone),
    }
    return facts, {name: sha256_file(folder / name) for name in (BIN, f"{TOKENS}.idx", DOCUMENTS, REJECTS)}


def _kept_bytes(shard: Manifest, index: Index, kept: NDArray[np.bool_]) -> Iterator[bytes]:
    """Yield the tokens of some sequences of a shard, wherever they lie."""
    if (fact := shard.files[BIN]).within is None:
        shard.path(BIN)
    path, begin = shard.place(BIN)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]])))
    ends = np.append(index.sequence_pointers, fact.size)
    store, name = shard.access.stored_at(path, as_copy=True)
    if (stored := store.stat(name)) is None:
        raise MissingError("the tokens of a shard are gone", where=path, remedy="run `nanoset build`")
    for first, end in ends[edges.reshape(-1, 2)].tolist():
        yield from store.blocks(replace(stored, begin=begin + first, size=end - first))
