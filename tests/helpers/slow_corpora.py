"""A slow, obvious count of what a split reads of a corpus: one token after the other."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.layout import idx_path, read_idx
from nanoset_core.sampling.corpora import CorpusPart, CorpusParts
from nanoset_core.stages.views.writing import write_view_idx


def write_view(folder: Path, name: str, base_prefix: str, documents: Sequence[int]) -> str:
    """Write the dataset of some documents of another one, over the same tokens; return its prefix."""
    prefix = folder / name
    os.link(f"{base_prefix}.bin", f"{prefix}.bin")
    chosen = np.array(documents, np.int64)
    write_view_idx(
        idx_path(prefix),
        read_idx(idx_path(Path(base_prefix))),
        lambda: [chosen] if len(chosen) else [],
    )
    return str(prefix)


class SlowCorpora:
    """Members of one corpus, given by the documents that they hold; a `CorpusReader`."""

    def __init__(
        self, lengths: Sequence[int], documents_by_prefix: Mapping[str, Sequence[int]]
    ) -> None:
        self.lengths = lengths
        self.documents_by_prefix = documents_by_prefix

    def documents(self, prefix: str, rows: tuple[int, int]) -> list[int]:
        return list(self.documents_by_prefix[prefix])[rows[0] : rows[1]]

    def parts(self, rows_by_prefix):
        tokens_by_copies = Counter()
        for document, length in enumerate(self.lengths):
            copies = tuple(
                self.documents(prefix, rows).count(document)
                for prefix, rows in rows_by_prefix.items()
            )
            if any(copies):
                tokens_by_copies[copies] += length
        names = tuple(os.path.basename(prefix) for prefix in rows_by_prefix)
        parts = tuple(
            CorpusPart(copies, tokens)
            for copies, tokens in sorted(tokens_by_copies.items())
            if tokens
        )
        return [CorpusParts("corpus", names, tuple(rows_by_prefix), parts)]


def slow_coverage(copies_by_token: Sequence[Sequence[int]], members, config) -> dict[str, float]:
    """Return what is read of tokens, each with its copies in every member: by one look at each
    token.

    Args:
        copies_by_token: for each token of the corpus its copies in each member.
        members: (tokens, samples taken, epochs in the order, whether the last is shuffled apart) of
            each member.
        config: of the split.
    """
    length = config.sequence_length
    epochs = []
    taken = []
    read = []
    for tokens, samples, order_epochs, is_apart in members:
        samples_of_epoch = max((tokens - 1) // length, 0)
        epochs.append(samples / samples_of_epoch)
        taken.append(samples * length / tokens)
        together = order_epochs - is_apart
        drawn = (
            samples * length / tokens
            if order_epochs > 1
            else min(samples, samples_of_epoch) * length / tokens
        )
        if together > 1:
            share = min(samples / ((together * tokens - 1) // length), 1)
            drawn = 1 - (1 - share) ** together
        read.append(min(drawn, 1))

    found = {"tokens": 0.0, "unique": 0.0, "epochs": 0.0, "most_epochs": 0.0, "available": 0}
    for copies in copies_by_token:
        if not any(copies):
            continue
        own_epochs = sum(count * times for count, times in zip(copies, epochs, strict=True))
        found["available"] += 1
        found["tokens"] += sum(count * share for count, share in zip(copies, taken, strict=True))
        found["unique"] += 1 - math.prod(
            (1 - share) ** count for count, share in zip(copies, read, strict=True)
        )
        found["epochs"] += own_epochs
        found["most_epochs"] = max(found["most_epochs"], own_epochs)
    found["epochs"] /= max(found["available"], 1)
    return found
