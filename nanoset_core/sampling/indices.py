"""Build all index arrays of a planned split.

Each dataset of the split has three, and a blend has two more. A trainer finds sample k of the split
like this:

    dataset_index[k], dataset_sample_index[k]    the dataset d, and number n of a sample there
    shuffle_index[n] of d                        number j of the sample before shuffling
    sample_index[j], sample_index[j + 1]         its start and end: position and token offset
    document_index[position]                     the sequence of the dataset at this position

Each kind of array has a module of its own: `document_index.py`, `sample_index.py`,
`shuffle_index.py` and `blending.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import SampleIndexError
from nanoset_core.sampling.blending import build_blending_indices, build_exhaustive_blending_indices
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.document_index import build_document_index, shuffle_in_place
from nanoset_core.sampling.orders import build_ordered
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.sample_index import SampleIndex, build_sample_index
from nanoset_core.sampling.shuffle_index import ShuffleIndex, build_shuffle_index, shuffle_dtype

_CHUNK_SAMPLES = 1 << 20
"""Samples of a blend that are checked together."""


@dataclass(frozen=True, slots=True)
class MemberIndices:
    """The three index arrays of one dataset's part of a split."""

    document_index: NDArray[np.int32]
    """Sequence numbers in the order of reading, shape (epochs * sequences,)."""
    sample_index: SampleIndex
    """Where each sample begins, and the last one ends: (position in document_index, token offset).

    Shape (samples + 1, 2).
    """
    shuffle_index: ShuffleIndex
    """Sample numbers in the order of drawing, shape (length of the dataset,)."""


@dataclass(frozen=True, slots=True)
class BlendIndices:
    """The two index arrays of a blend."""

    dataset_index: NDArray[np.integer]
    """Number of each sample's dataset, shape (size,), in the trainer's type."""
    dataset_sample_index: NDArray[np.int64]
    """Sample number within the dataset, shape (size,)."""


def build_member_indices(
    member: MemberPlan, config: NanosetConfig, lengths: NDArray[np.int32], *, threads: int = 1
) -> MemberIndices:
    """Decide in which order training reads the documents and samples of a dataset.

    There are three arrays. For example, a dataset of two documents with 6 and 4 tokens is read
    twice, in samples of 5 tokens:

        document_index    0, 1, 1, 0                            documents in the order of reading
        sample_index      (0, 0), (0, 5), (2, 0), (3, 1), ...   where samples start: a position in
                                                                the first array, and a token there
        shuffle_index     2, 0, 3, 1                            samples in the order of training

    Args:
        member: What is planned for the dataset in a split, such as train.
        config: Configuration with which it was planned.
        lengths: Tokens of each document, shape (n_sequences,). (If documents are stored as several
            sequences, of each sequence.)
        threads: More than one shortens the wall time; the result is the same.

    Raises:
        ConfigError: The dataset does not have the tokens that were planned with.
    """
    if member.order is not None:
        # The training run has read the dataset before its weights were changed: keep the order.
        document_index, shuffle_index = build_ordered(member, member.order, config)
        sample_index = _build_planned_samples(member, config, lengths, document_index, threads)
        return MemberIndices(document_index, sample_index, shuffle_index)

    # Trainers use one generator of random numbers to shuffle first the documents and then the
    # samples. So it must be used in this order here.
    state = np.random.RandomState(config.random_seed)
    document_index = build_document_index(
        member.rows,
        member.epochs,
        state,
        separate_last_epoch=member.separate_last_epoch,
        shuffle=config.shuffle_documents and config.rules.shuffles_datasets,
    )
    sample_index = _build_planned_samples(member, config, lengths, document_index, threads)
    n_samples = len(sample_index) - 1
    shuffle_index = _build_planned_shuffle(member, config, n_samples, state)
    return MemberIndices(document_index, sample_index, shuffle_index)


def _build_planned_shuffle(
    member: MemberPlan, config: NanosetConfig, n_samples: int, state: np.random.RandomState
) -> ShuffleIndex:
    """Decide in which order training reads the samples of a dataset.

    The samples are in random order. It depends on the trainer and on the plan. For two epochs of 3
    and 2 samples:

        all samples are shuffled together                2, 4, 0, 3, 1
        the last epoch is shuffled on its own            1, 0, 2, 4, 3
        these samples are read twice (`repeats`)         2, 4, 0, 3, 1, 2, 4, 0, 3, 1
        the trainer shuffles samples later               0, 1, 2, 3, 4

    Args:
        member: What is planned for the dataset.
        config: Configuration with which it was planned.
        n_samples: Number of samples: 5.
        state: Random numbers, with which the documents were shuffled before.

    Returns:
        Numbers of samples in the order of reading.
    """
    if not config.rules.shuffles_datasets:
        # Such trainers shuffle when they mix datasets, or read samples.
        return np.arange(n_samples, dtype=shuffle_dtype(n_samples))

    n_first_group = n_samples  # the samples that are shuffled together; the others come after them
    if member.separate_last_epoch:
        n_first_group = config.samples_in((member.epochs - 1) * member.tokens)  # 3
    return build_shuffle_index(n_samples, n_first_group, state, repeats=member.repeats)


def _build_planned_samples(
    member: MemberPlan,
    config: NanosetConfig,
    lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    threads: int,
) -> SampleIndex:
    """Find where each training sample of a dataset starts.

    The documents are put one after another, and cut into samples. For example, the first document
    has 6 tokens, and samples have 5: the first sample starts at its token 0, and the second one at
    its token 5.

    Args:
        member: What is planned for the dataset.
        config: Configuration with which it was planned: the length of samples, for example.
        lengths: Tokens of each document, shape (n_sequences,). (If documents are stored as several
            sequences, of each sequence.)
        document_index: The documents in the order of reading, all epochs, shape (n_positions,).
        threads: More than one shortens the wall time.

    Returns:
        For each sample, a position in `document_index` and a token of that document: (0, 0), (0,
        5).
    """
    return build_sample_index(
        lengths,
        document_index,
        sequence_length=config.step,  # from the start of a sample to the start of the next one
        num_epochs=member.epochs,
        tokens_per_epoch=member.tokens,
        add_extra_token=config.overlap,  # 1 if a sample also has the first token of the next one
        drop_last_partial_sequence=config.drops_last_partial(member.split),
        empty_end=config.rules.empty_end,  # how the trainer treats empty documents at the end
        threads=threads,
    )


def build_blend_indices(plan: SplitPlan) -> BlendIndices:
    """Decide what each training sample is: which sample of which dataset.

    For example, the first samples of two datasets that are mixed in proportion to the weights 0.75
    and 0.25:

        dataset_index           0    1    0    0    0    1
        dataset_sample_index    0    0    1    2    3    1

    Args:
        plan: What is planned for a split of the data (such as train): the datasets, their weights,
            and the number of samples.

    Returns:
        Both rows, shape (n_samples,) each.

    Raises:
        SampleIndexError: A dataset has fewer samples than are taken of it, or there is only one
            dataset.
    """
    blend = plan.blend
    if blend is None:
        raise SampleIndexError(
            "the split is a plain dataset: there is no blend to build", where=f"split {plan.split}"
        )
    dataset_index, sample_index = _mix_datasets(plan, blend)
    sample_index = _fit_into_datasets(plan, dataset_index, sample_index)
    integer_type = get_preset(plan.preset).blend_dtype  # in which the trainer stores datasets
    indices = BlendIndices(dataset_index.astype(integer_type, copy=False), sample_index)
    if blend.seed is not None:
        # This trainer shuffles the mixture, which is one epoch of all datasets, and repeats it.
        return _shuffle_and_repeat(indices, blend.size, blend.seed)
    return indices


def _mix_datasets(plan: SplitPlan, blend: BlendPlan) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Decide which dataset each training sample is from, and which sample of it this is.

    For example, the results [0, 1, 0] and [0, 0, 1] are: the first sample of dataset 0, the first
    one of dataset 1, and the second one of dataset 0.

    Args:
        plan: What is planned for a split of the data, such as train.
        blend: How its datasets are mixed. If it has a `seed`, the trainer shuffles one epoch, and
            repeats it. The result is this epoch, not shuffled yet.

    Returns:
        Two arrays, shape (n_samples,) each.
    """
    if blend.exhaustive:
        # All samples are read once. Then the plan has the sizes of the datasets as weights.
        dataset_sizes = [int(size) for size in blend.weights]
        return build_exhaustive_blending_indices(dataset_sizes)

    n_samples = blend.size
    if blend.seed is not None:  # one epoch: as many samples as all datasets have
        n_samples = sum(member.samples_given for member in plan.members)
    return build_blending_indices(blend.weights, n_samples)


def _fit_into_datasets(
    plan: SplitPlan, dataset_index: NDArray[np.int16], sample_index: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Handle samples of a mixture that a dataset does not have, in the way of the trainer.

    For example, a dataset of 10 samples has the numbers 0 to 9, and the mixture takes its sample
    12. What happens depends on the trainer:

        `wraps`     what happens
        "never"     it is an error
        "built"     sample 2 is stored: 12 modulo 10
        "read"      12 is stored, and the trainer reads sample 2

    Args:
        plan: What is planned for a split of the data (such as train): the sizes of the datasets.
        dataset_index: Dataset of each sample, shape (n_samples,).
        sample_index: Number of each sample within its dataset, shape (n_samples,).

    Returns:
        The numbers to store, shape (n_samples,). They are changed in place.

    Raises:
        SampleIndexError: A sample does not exist ("never"), or a dataset has no samples at all.
    """
    wraps = get_preset(plan.preset).wraps
    dataset_sizes = np.array([member.samples_given for member in plan.members], dtype=np.int64)

    # Look at a million samples at a time, so that temporary arrays need little memory.
    for start in range(0, len(sample_index), _CHUNK_SAMPLES):
        chunk = slice(start, start + _CHUNK_SAMPLES)
        datasets = dataset_index[chunk]
        sizes = dataset_sizes[datasets]  # (n_in_chunk,) size of each sample's dataset
        if wraps == "never":
            is_missing = sample_index[chunk] >= sizes
        else:
            is_missing = sizes == 0
        if is_missing.any():
            first_missing = int(np.argmax(is_missing))
            raise _too_few_samples(plan, plan.members[datasets[first_missing]])
        if wraps == "built":
            sample_index[chunk] %= sizes
    return sample_index


def _too_few_samples(plan: SplitPlan, member: MemberPlan) -> SampleIndexError:
    """Return the error for a mixture that takes more samples of a dataset than were prepared.

    For example, 300 samples are planned in proportion to the dataset's weight. As the mixture is
    computed sample by sample, it may take one or two more. Trainers prepare a few more samples for
    that, such as 302, but sometimes not enough of them.

    Args:
        plan: What is planned for a split of the data, such as train.
        member: What is planned for the dataset: 300 samples (`samples_target`), of which 302 are
            prepared (`samples_given`).
    """
    remedy = (
        "request another number of samples, or change the weights: "
        "the reserve of this trainer is fixed"
    )
    if get_preset(plan.preset).blend_margin == "surplus":
        remedy = "raise surplus, for example to 0.05"

    expected = f"at most {member.samples_given}"
    n_planned = member.samples_target  # None if datasets have no weights
    has_reserve = n_planned is not None and n_planned < member.samples_given
    if has_reserve:
        expected += f", of which {n_planned} are planned and the others are a reserve"
    return SampleIndexError(
        "the blend takes more samples of a dataset than were prepared",
        where=f"split {plan.split}, {member.prefix}",
        found=f"more than {member.samples_given}",
        expected=expected,
        remedy=remedy,
    )


def _shuffle_and_repeat(epoch: BlendIndices, size: int, seed: int) -> BlendIndices:
    """Shuffle the samples of one epoch of a mixture of datasets, and repeat them in this order.

    For example, an epoch of three samples, each a dataset and a number within it, becomes 7:

        epoch       a0, a1, b0
        shuffled    b0, a0, a1
        repeated    b0, a0, a1, b0, a0, a1, b0

    Source: nanotron `nanoset.py`, `build_nanoset_index`.

    Args:
        epoch: The samples of one epoch; its arrays are shuffled in place.
        size: Number of samples of the result.
        seed: Seed of the shuffle.
    """
    # Shuffle both arrays with the same random numbers, so that they belong together afterwards.
    shuffle_in_place(epoch.dataset_index, np.random.RandomState(seed))
    shuffle_in_place(epoch.dataset_sample_index, np.random.RandomState(seed))
    # np.resize repeats an array if the new size is greater.
    return BlendIndices(
        dataset_index=np.resize(epoch.dataset_index, size),
        dataset_sample_index=np.resize(epoch.dataset_sample_index, size),
    )
