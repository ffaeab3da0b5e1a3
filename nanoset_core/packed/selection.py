"""Documents picked from open `.pbin` files, in any order, and written as a new one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import Listener, Meter, silent
from nanoset_core.packed.datasets import PackedDataset
from nanoset_core.packed.pbin import common_token_bytes, encode_header
from nanoset_core.packed.writing import (
    CHUNK_TOKENS,
    PackedFacts,
    back_to_back,
    check_not_empty,
    in_chunks,
    write_index,
    write_tokens,
)
from nanoset_core.storage.atomic import atomic_file

_BLOCK_TOKENS = CHUNK_TOKENS


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Documents in the order in which they are wanted."""

    sources: NDArray[np.int32]
    """[n], number of the dataset that holds each."""
    starts: NDArray[np.int64]
    """[n], its first token there."""
    lengths: NDArray[np.int64]
    """[n], its tokens."""

    def take(self, order: NDArray[np.int64] | slice) -> Selection:
        """Those of them that `order` names, in its order."""
        return Selection(self.sources[order], self.starts[order], self.lengths[order])


def select(dataset: PackedDataset, number: int) -> Selection:
    """All documents of the dataset that has this number in the list that will be written from."""
    sources = np.broadcast_to(np.int32(number), len(dataset))
    return Selection(sources, dataset.document_starts, dataset.document_lengths)


def join_selections(parts: Sequence[Selection]) -> Selection:
    """One after the other."""
    if not parts:
        raise ConfigError("no file to take documents from", expected="one file or more")
    return Selection(
        np.concatenate([part.sources for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


def write_selection(
    datasets: Sequence[PackedDataset],
    selection: Selection,
    target: str | os.PathLike[str],
    listener: Listener = silent,
) -> PackedFacts:
    """Write the documents as a `.pbin` of layout D, published whole.

    FormatError where token sizes differ, InputError where there are no tokens at all. Memory: a chunk of tokens, or the
    longest document.
    """
    token_bytes = common_token_bytes(datasets)
    tokens = int(selection.lengths.sum())
    check_not_empty(target, tokens)
    meter = Meter(listener, "write", Path(target).name, tokens * token_bytes)
    with atomic_file(Path(target)) as file:
        file.write(encode_header(tokens * token_bytes, token_bytes))
        for first, last in _blocks(selection.lengths):
            _write_block(datasets, selection.take(slice(first, last)), token_bytes, file, meter)
        write_index(file, back_to_back(in_chunks(selection.lengths * token_bytes)))
    return PackedFacts(len(selection.lengths), tokens, token_bytes)


def _blocks(lengths: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Documents [first, last) of about a chunk of tokens, or a single longer one."""
    ends = np.cumsum(lengths)
    first = done = 0
    while first < len(lengths):
        last = max(int(np.searchsorted(ends, done + _BLOCK_TOKENS, side="right")), first + 1)
        yield first, last
        first, done = last, int(ends[last - 1])


def _write_block(
    datasets: Sequence[PackedDataset], block: Selection, token_bytes: int, file: IO[bytes], meter: Meter
) -> None:
    # Measured: a slice per document costs 0.3 µs; gathering by token numbers 3 ns a token, more from 120 tokens on.
    documents = [
        datasets[source].tokens[start : start + length]
        for source, start, length in zip(
            block.sources.tolist(), block.starts.tolist(), block.lengths.tolist(), strict=True
        )
    ]
    whole = documents[0] if len(documents) == 1 else np.concatenate(documents)
    write_tokens(file, whole, token_bytes, str(file.name), meter)
