"""Copies of documents are found by a hash that does not depend on chunks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from verification.conftest import write_sequences as write

from nanoset_core.verification.duplicates import SequenceHashes, duplicate_share, hash_limit, joined


def counted(dataset, chunk, limit=(1 << 64) - 1):
    hashes = SequenceHashes(dataset.sequence_lengths, limit, chunk)
    for begin in range(0, dataset.token_count, chunk):
        hashes.add(dataset.tokens[begin : begin + chunk])
    return hashes


def share(datasets, most_hashes=1 << 22):
    """Of several, whose sequences are those of one dataset."""
    limit = hash_limit(sum(map(len, datasets)), most_hashes)
    return duplicate_share(joined([counted(dataset, 512, limit).sample() for dataset in datasets]))


documents = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=30)


@settings(max_examples=80)
@given(documents=documents, chunk=st.integers(1, 40))
def test_equal_documents_have_equal_hashes_and_others_not(tmp_path_factory, documents, chunk):
    dataset = write(tmp_path_factory.mktemp("d") / "d", documents)
    hashes = np.concatenate(counted(dataset, chunk)._kept).tolist()
    filled = [tuple(document) for document in documents if document]
    assert len(hashes) == len(filled)
    assert len(set(hashes)) == len(set(filled))
    assert len(set(zip(filled, hashes, strict=True))) == len(set(filled))
    expected = 1 - len(set(filled)) / len(filled) if filled else 0.0
    assert share([dataset]) == expected
    folder = tmp_path_factory.mktemp("parts")
    assert share([write(folder / "a", documents[:7]), write(folder / "b", documents[7:])]) == expected
