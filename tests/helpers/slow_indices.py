"""Blends and index arrays as plain loops, close to the trainers' own code.

The kernels in `nanoset_core/sampling` must return the same numbers.
"""

from __future__ import annotations

import numpy as np

# Blends: both functions return `dataset_index`, the dataset of each sample, and
# `dataset_sample_index`, its number among the samples of that dataset.


def slow_blend(weights, size):
    """Take samples one by one, each of the dataset that is furthest behind its weight.

    This is `build_blending_indices` in Megatron-LM's `helpers.cpp`. With the weights 0.7 and 0.3,
    five samples are of the datasets 0, 1, 0, 0, 1.
    """
    n_taken = [0] * len(weights)  # of each dataset
    dataset_index = []
    dataset_sample_index = []
    for sample in range(size):
        time = max(float(sample), 1.0)
        deficits = []
        for weight, count in zip(weights, n_taken, strict=True):
            deficits.append(weight * time - float(count))
        dataset = deficits.index(max(deficits))  # the first of the largest

        dataset_index.append(dataset)
        dataset_sample_index.append(n_taken[dataset])
        n_taken[dataset] += 1
    return dataset_index, dataset_sample_index


def slow_blend_of_many_datasets(weights, size):
    """Return what `slow_blend` returns; numpy looks at all datasets at once."""
    weights = np.array(weights)
    n_taken = np.zeros(len(weights))
    dataset_index = np.empty(size, np.int64)
    dataset_sample_index = np.empty(size, np.int64)
    for sample in range(size):
        time = float(max(sample, 1))
        dataset = int(np.argmax(weights * time - n_taken))  # the first of the largest

        dataset_index[sample] = dataset
        dataset_sample_index[sample] = n_taken[dataset]
        n_taken[dataset] += 1
    return dataset_index, dataset_sample_index


def slow_exhaustive_blend(sizes):
    """Take every sample of every dataset, in the proportion of their sizes.

    This is `build_exhaustive_blending_indices` in Megatron-LM's `helpers.cpp`: `slow_blend`, in
    which datasets that are used up are left out.
    """
    n_samples = sum(sizes)
    n_taken = [0] * len(sizes)  # of each dataset
    dataset_index = []
    dataset_sample_index = []
    for sample in range(n_samples):
        time = max(float(sample), 1.0)
        deficits = {}  # by dataset
        for dataset, size in enumerate(sizes):
            if n_taken[dataset] < size:
                weight = size / float(n_samples)
                deficits[dataset] = weight * time - float(n_taken[dataset])
        dataset = max(deficits, key=deficits.get)  # the first of the largest

        dataset_index.append(dataset)
        dataset_sample_index.append(n_taken[dataset])
        n_taken[dataset] += 1
    return dataset_index, dataset_sample_index


# Index arrays of a single dataset


def slow_document_index(documents, epochs, state, separate_last_epoch):
    """Return the documents in the order of reading.

    This is `_build_document_index` in Megatron-LM's `gpt_dataset.py`.

    Args:
        documents: Numbers of the documents of an epoch.
        epochs: How many times each document is read.
        state: The random numbers, as `np.random.RandomState`.
        separate_last_epoch: Whether the last epoch is shuffled by itself, after all others.
    """
    if separate_last_epoch and epochs > 1:
        first_epochs = slow_document_index(documents, epochs - 1, state, False)
        last_epoch = slow_document_index(documents, 1, state, False)
        return np.concatenate([first_epochs, last_epoch])
    document_index = np.array(list(documents) * epochs, np.int32)
    state.shuffle(document_index)
    return document_index


def slow_sample_index(sizes, document_index, length, n_tokens, extra, drop_last):
    """Return where each sample starts, and where the last one ends, by a walk over the documents.

    This is `build_sample_idx` in Megatron-LM's `helpers.cpp`, except that the number of samples is
    counted in integers. For example, let the documents 0, 1 and 2 have 3, 4 and 2 tokens, ABC, DEFG
    and HI, and let the order of reading be 2 0 1:

        tokens    H I A B C D E F G
        samples   H I A B, C D E F      length 4; the extra tokens are C and G
        result    (0, 0)                H is the first token of entry 0, document 2
                  (1, 2)                C is the third token of entry 1, document 0
                  (2, 3)                G is the fourth token of entry 2, document 1

    Args:
        sizes: Tokens of each document.
        document_index: Documents in the order of reading.
        length: Tokens of a sample, without the extra one.
        n_tokens: Tokens of all documents in this order.
        extra: 1 if a sample needs the token after it as a label, otherwise 0.
        drop_last: Whether to leave out a last sample that is short.

    Returns:
        Shape (n_samples + 1, 2): entry of the document index, and token in that document.
    """
    # The extra token of a sample is the first one of the next, so only one is not counted.
    n_usable = max(n_tokens - extra, 0)
    n_samples = n_usable // length
    if not drop_last and n_usable % length > 0:
        n_samples += 1

    starts = [(0, 0)]
    entry = 0
    offset = 0  # tokens of the document that were read
    for _ in range(n_samples):
        # Read whole documents, as long as the sample needs more.
        n_missing = length + extra
        while n_missing > 0:
            size = int(sizes[document_index[entry]])
            n_missing -= size - offset
            if n_missing <= 0:
                # The sample ends in this document. The next one starts at its extra token.
                offset = size + n_missing - extra
            elif entry == len(document_index) - 1:
                # The documents end: the last sample is short.
                offset = size - extra
                break
            else:
                entry += 1
                offset = 0
        starts.append((entry, offset))
    return np.array(starts)


def slow_shuffle_index(n_first, n_samples, state):
    """Return the samples in the order of drawing.

    This is `_build_shuffle_index` in Megatron-LM's `gpt_dataset.py`.

    Args:
        n_first: Samples that are shuffled together. The others, which are those of the last epoch,
            come after them, and are shuffled by themselves.
        n_samples: All samples.
        state: The random numbers, as `np.random.RandomState`.
    """
    first_samples = np.arange(n_first, dtype=np.uint32)
    state.shuffle(first_samples)
    if n_first == n_samples:
        return first_samples
    last_samples = np.arange(n_first, n_samples, dtype=np.uint32)
    state.shuffle(last_samples)
    return np.concatenate([first_samples, last_samples])
