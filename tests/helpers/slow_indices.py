"""Blends and index arrays as plain loops, close to the trainers' own code: the kernels must return
the same.
"""

from __future__ import annotations

import numpy as np


def slow_blend(weights, size):
    """Return (dataset, number within it) of each sample; `helpers.cpp`, `build_blending_indices`."""
    counts = [0] * len(weights)
    picks = []
    numbers = []
    for sample in range(size):
        time = max(float(sample), 1.0)
        errors = [
            weight * time - float(count) for weight, count in zip(weights, counts, strict=True)
        ]
        dataset = errors.index(max(errors))
        picks.append(dataset)
        numbers.append(counts[dataset])
        counts[dataset] += 1
    return picks, numbers


def slow_blend_of_many_datasets(weights, size):
    """Return what `slow_blend` returns, with numpy over the datasets."""
    weights = np.array(weights)
    counts = np.zeros(len(weights))
    picks = np.empty(size, np.int64)
    numbers = np.empty(size, np.int64)
    for sample in range(size):
        dataset = int(np.argmax(weights * float(max(sample, 1)) - counts))
        picks[sample] = dataset
        numbers[sample] = counts[dataset]
        counts[dataset] += 1
    return picks, numbers


def slow_exhaustive_blend(sizes):
    """Return (dataset, number within it) of each sample; `helpers.cpp`,
    `build_exhaustive_blending_indices`.
    """
    counts = [0] * len(sizes)
    picks = []
    numbers = []
    for sample in range(sum(sizes)):
        time = max(float(sample), 1.0)
        errors = {
            dataset: size / float(sum(sizes)) * time - float(counts[dataset])
            for dataset, size in enumerate(sizes)
            if counts[dataset] < size
        }
        dataset = max(errors, key=errors.get)  # the first of the largest
        picks.append(dataset)
        numbers.append(counts[dataset])
        counts[dataset] += 1
    return picks, numbers


def slow_document_index(documents, epochs, state, separate_last_epoch):
    """Return the documents in the order of reading; `gpt_dataset.py`, `_build_document_index`."""
    if separate_last_epoch and epochs > 1:
        first = slow_document_index(documents, epochs - 1, state, False)
        last = slow_document_index(documents, 1, state, False)
        return np.concatenate([first, last])
    index = np.array(list(documents) * epochs, np.int32)
    state.shuffle(index)
    return index


def slow_sample_index(sizes, documents, length, total, extra, drop_last):
    """Return (position in documents, token) of each sample's start, by a walk over the documents.

    This is `helpers.cpp`, `build_sample_idx`, with the number of samples counted in integers.
    """
    usable = max(total - extra, 0)
    samples = usable // length if drop_last else -(-usable // length)
    rows = [(0, 0)]
    position = 0
    offset = 0
    while len(rows) <= samples:
        remaining = length + extra
        while remaining > 0:
            size = int(sizes[documents[position]])
            remaining -= size - offset
            if remaining <= 0:
                offset = size + remaining - extra
            elif position == len(documents) - 1:
                offset = size - extra  # the last sample is short
                break
            else:
                position += 1
                offset = 0
        rows.append((position, offset))
    return np.array(rows)


def slow_shuffle_index(first, total, state):
    """Return the samples in the order of drawing; `gpt_dataset.py`, `_build_shuffle_index`."""
    head = np.arange(first, dtype=np.uint32)
    state.shuffle(head)
    if first == total:
        return head
    tail = np.arange(first, total, dtype=np.uint32)
    state.shuffle(tail)
    return np.concatenate([head, tail])
