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
    """Build the arrays that say in which order a split reads one dataset's documents and samples.

    For example, 2 epochs of 3 sequences have the document index 2, 0, 1, 1, 2, 0: the sequences in
    the order of reading. The sample index has the place in them where each sample starts, and the
    shuffle index the order of the samples, such as 1, 0, 2.

    Args:
        member: Plan of this part.
        config: Configuration with which it was planned.
        lengths: Tokens of each of the dataset's sequences, shape (n_sequences,).
        threads: More than one shortens the wall time; the result is the same.

    Raises:
        ConfigError: The dataset does not have the tokens that were planned with.
    """
    if member.order is not None:
        # The run has read the dataset before, with another blend: continue that order.
        document_index, shuffle_index = build_ordered(member, member.order, config)
        sample_index = _build_planned_samples(member, config, lengths, document_index, threads)
        return MemberIndices(document_index, sample_index, shuffle_index)

    # Trainers shuffle the documents and then the samples with one generator, so that both calls
    # must use the same one, in this order.
    state = np.random.RandomState(config.random_seed)
    document_index = build_document_index(
        member.rows,
        member.epochs,
        state,
        separate_last_epoch=member.separate_last_epoch,
        shuffle=config.shuffle_documents and not config.rules.windows,
    )
    sample_index = _build_planned_samples(member, config, lengths, document_index, threads)
    n_samples = len(sample_index) - 1
    shuffle_index = _build_planned_shuffle(member, config, n_samples, state)
    return MemberIndices(document_index, sample_index, shuffle_index)


def _build_planned_shuffle(
    member: MemberPlan, config: NanosetConfig, n_samples: int, state: np.random.RandomState
) -> ShuffleIndex:
    """Build the shuffle index of one dataset's part of a split.

    Trainers that cut a dataset into windows do not shuffle it: they shuffle the blend, or the order
    in which the samples of the split are read.

    Args:
        member: Plan of this part.
        config: Configuration with which it was planned.
        n_samples: Number of samples.
        state: Random numbers, with which the documents were shuffled already.
    """
    if config.rules.windows:
        return np.arange(n_samples, dtype=shuffle_dtype(n_samples))
    # Samples of the last epoch may have to come after all others.
    n_before_last_epoch = n_samples
    if member.separate_last_epoch:
        n_before_last_epoch = config.samples_in((member.epochs - 1) * member.tokens)
    return build_shuffle_index(n_samples, n_before_last_epoch, state, repeats=member.repeats)


def _build_planned_samples(
    member: MemberPlan,
    config: NanosetConfig,
    lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    threads: int,
) -> SampleIndex:
    """Build the sample index of one dataset's part of a split.

    Args:
        member: Plan of this part.
        config: Configuration with which it was planned.
        lengths: Tokens of each of the dataset's sequences, shape (n_sequences,).
        document_index: Sequences in the order of reading, all epochs, shape (n_positions,).
        threads: More than one shortens the wall time.
    """
    return build_sample_index(
        lengths,
        document_index,
        sequence_length=config.step,
        num_epochs=member.epochs,
        tokens_per_epoch=member.tokens,
        add_extra_token=config.overlap,
        drop_last_partial_sequence=config.drops_last_partial(member.split),
        empty_end=config.rules.empty_end,
        threads=threads,
    )


def build_blend_indices(plan: SplitPlan) -> BlendIndices:
    """Build the two index arrays of a blend, which say what each sample of a split is.

    Args:
        plan: Plan of the split, which is a blend of datasets.

    Returns:
        Two arrays of the shape (n_samples,): the dataset of each sample, and the number of the
        sample within its dataset.

    Raises:
        SampleIndexError: A dataset has fewer samples than the blend takes, or there is no blend.
    """
    blend = plan.blend
    if blend is None:
        raise SampleIndexError(
            "the split is a plain dataset: there is no blend to build", where=f"split {plan.split}"
        )
    dataset_index, sample_index = _mix_datasets(plan, blend)
    sample_index = _fit_into_datasets(plan, dataset_index, sample_index)
    blend_dtype = get_preset(plan.preset).blend_dtype
    indices = BlendIndices(dataset_index.astype(blend_dtype, copy=False), sample_index)
    if blend.seed is not None:
        return _shuffle_and_repeat(indices, blend.size, blend.seed)
    return indices


def _mix_datasets(plan: SplitPlan, blend: BlendPlan) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the dataset of each sample of a blend, and its number there, before any shuffle.

    Args:
        plan: Plan of the split.
        blend: Plan of its blend.
    """
    if blend.exhaustive:
        # Every sample of every dataset is taken once. In place of weights, the plan of such a blend
        # has the sizes of its datasets.
        sizes = [int(weight) for weight in blend.weights]
        return build_exhaustive_blending_indices(sizes)

    size = blend.size
    is_shuffled = blend.seed is not None
    if is_shuffled:
        # One epoch of the blend, with as many samples as its datasets together. It is shuffled and
        # repeated afterwards.
        size = sum(member.samples_given for member in plan.members)
    return build_blending_indices(blend.weights, size)


def _fit_into_datasets(
    plan: SplitPlan, dataset_index: NDArray[np.int16], sample_index: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Check that the datasets have the samples that a blend takes, or wrap around.

    Most trainers never take a sample that a dataset does not have. Some wrap around: sample 12 of a
    dataset of 10 samples is its sample 2. Of these, some store the 2 in the index ("built"), and
    some store the 12 and wrap around when they read it ("read").

    Args:
        plan: Plan of the split.
        dataset_index: Dataset of each sample of the blend, shape (n_samples,).
        sample_index: Number of each sample within its dataset, shape (n_samples,).

    Returns:
        The numbers to store, shape (n_samples,): the same array, which may be changed in place.

    Raises:
        SampleIndexError: A dataset has too few samples, or none if the trainer wraps around.
    """
    wraps = get_preset(plan.preset).wraps
    dataset_sizes = np.array([member.samples_given for member in plan.members], dtype=np.int64)

    # Some samples at a time, which limits the memory for temporary arrays.
    for start in range(0, len(sample_index), _CHUNK_SAMPLES):
        chunk = slice(start, start + _CHUNK_SAMPLES)
        datasets = dataset_index[chunk]
        sizes = dataset_sizes[datasets]  # (n_in_chunk,) size of each sample's dataset
        if wraps == "never":
            is_missing = sample_index[chunk] >= sizes
        else:
            is_missing = sizes == 0  # a dataset with one sample can give any number of them
        if is_missing.any():
            first_missing = int(np.argmax(is_missing))
            raise _too_few_samples(plan, plan.members[datasets[first_missing]])
        if wraps == "built":
            sample_index[chunk] %= sizes
    return sample_index


def _too_few_samples(plan: SplitPlan, member: MemberPlan) -> SampleIndexError:
    """Return the error for a dataset that has fewer samples than the blend takes of it."""
    remedy = (
        "request another number of samples, or change the weights: this trainer's margin is fixed"
    )
    if get_preset(plan.preset).blend_margin == "surplus":
        remedy = "raise surplus, for example to 0.05"
    return SampleIndexError(
        "the blend takes more samples of a dataset than were built",
        where=f"split {plan.split}, {member.prefix}",
        found=f"more than {member.samples_given}",
        expected=f"{member.samples_given}, of which the blend plans {member.samples_target}",
        remedy=remedy,
    )


def _shuffle_and_repeat(epoch: BlendIndices, size: int, seed: int) -> BlendIndices:
    """Shuffle the samples of one epoch of a blend, and repeat them in the same order.

    Source: nanotron `nanoset.py`, `build_nanoset_index`.

    Args:
        epoch: The samples of one epoch, which are shuffled in place.
        size: Number of samples of the result; the last repetition may be cut.
        seed: Seed of the shuffle.
    """
    # Two generators with one seed, so that both arrays get the same order.
    shuffle_in_place(epoch.dataset_index, np.random.RandomState(seed))
    shuffle_in_place(epoch.dataset_sample_index, np.random.RandomState(seed))
    # np.resize repeats an array to fill a larger one.
    return BlendIndices(
        dataset_index=np.resize(epoch.dataset_index, size),
        dataset_sample_index=np.resize(epoch.dataset_sample_index, size),
    )
