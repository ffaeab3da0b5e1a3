"""What a `.pbin` holds, in a few lines."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from nanoset_core.packed.datasets import PackedDataset

_WRITTEN = {
    "A": "written by Modalities before 2024-01-30",
    "B": "written by Modalities from 2024-01-30 to 2024-04-02",
    "C": "written by Modalities from 2024-04-03 to 2024-06-24",
    "D": "the present one",
}
_REPAIR = "`nanoset pack repair` writes it so that Modalities can"


def describe_packed(path: str | os.PathLike[str]) -> Iterator[str]:
    """Lines for a person: counts, token size, layout, and what is wrong with the index. Raises as PackedDataset."""
    dataset = PackedDataset(path)
    facts, lengths = dataset.index_facts, dataset.document_lengths
    yield f"{path}: {facts.documents:,} documents, {len(dataset.tokens):,} tokens of {dataset.token_bytes} byte(s)"
    old = "" if dataset.layout == "D" else f"; Modalities' present reader cannot read it: {_REPAIR}"
    yield f"layout {dataset.layout}, {_WRITTEN[dataset.layout]}{old}"
    if facts.merge_faults:
        yield (
            f"the index has the fault of Modalities' merge at {facts.merge_faults:,} place(s), after which documents "
            f"begin a multiple of 12 bytes too early. It is read here as it was meant; {_REPAIR}"
        )
    elif not facts.is_contiguous:
        yield f"the index does not go through the tokens from end to end: its documents have {facts.tokens:,} of them"
    if len(lengths):
        yield (
            f"a document has {lengths.min():,} to {lengths.max():,} tokens, {np.median(lengths):,.0f} in the middle"
            + (f"; {facts.empty_documents:,} have none" if facts.empty_documents else "")
        )
