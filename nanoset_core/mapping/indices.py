"""Build the index arrays of a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import SampleIndexError
from nanoset_core.mapping.blending import build_blending_indices, build_exhaustive_blending_indices
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.document_index import build_document_index
from nanoset_core.mapping.planned import MemberPlan, SplitPlan
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.sample_index import build_sample_index
from nanoset_core.mapping.shuffle_index import build_shuffle_index

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class MemberIndices:
    """The three index arrays of one dataset's part of a split."""

    document_index: NDArray[np.int32]
    """Sequence numbers in the order of reading, shape (epochs * sequences,)."""
    sample_index: NDArray[np.int32] | NDArray[np.int64]
    """(position in document_index, token offset) of every sample's begin, shape (samples + 1, 2)."""
    shuffle_index: NDArray[np.uint32] | NDArray[np.int64]
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
    """Build the arrays of one dataset's part of a split.

    One RandomState(seed) shuffles documents, then samples: the trainers' order of draws.

    Args:
        member: plan of the dataset.
        config: that it was planned with.
        lengths: tokens of every sequence of the dataset, shape (sequences,).
        threads: more than one shortens the wall time; the result is the same.

    Raises:
        ConfigError: the dataset does not hold the tokens that were planned with.
    """
    state = np.random.RandomState(config.random_seed)
    apart, shuffle = member.separate_last_epoch, config.shuffle_documents
    document_index = build_document_index(member.rows, member.epochs, state, separate_last_epoch=apart, shuffle=shuffle)
    sample_index = build_sample_index(
        lengths,
        document_index,
        config.sequence_length,
        member.epochs,
        member.tokens,
        int(config.add_extra_token),
        drop_last_partial_sequence=config.drops_last_partial(member.split),
        empty_end=config.rules.empty_end,
        threads=threads,
    )
    samples = len(sample_index) - 1
    first = config.samples_in((member.epochs - 1) * member.tokens) if apart else samples
    shuffle_index = build_shuffle_index(samples, first, state, repeats=member.repeats)
    return MemberIndices(document_index, sample_index, shuffle_index)


def build_blend_indices(plan: SplitPlan) -> BlendIndices:
    """Build the arrays of a split's blend.

    Raises:
        SampleIndexError: a dataset is too short for it, or there is no blend.
    """
    blend, preset, where = plan.blend, get_preset(plan.preset), f"split {plan.split}"
    if blend is None:
        raise SampleIndexError("the split is a plain dataset: there is no blend to build", where=where)
    if blend.exhaustive:
        dataset_index, numbers = build_exhaustive_blending_indices([int(length) for length in blend.weights])
    else:
        dataset_index, numbers = build_blending_indices(blend.weights, blend.size)
    lengths = np.array([member.samples_given for member in plan.members], dtype=np.int64)
    for begin in range(0, len(numbers), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        limits = lengths[dataset_index[chunk]]
        beyond = numbers[chunk] >= limits if preset.wraps == "never" else limits == 0
        if beyond.any():
            member = plan.members[int(dataset_index[chunk][np.argmax(beyond)])]
            raise SampleIndexError(
                "the blend takes more samples of a dataset than were built",
                where=f"{where}, {member.prefix}",
                found=f"more than {member.samples_given}",
                expected=f"{member.samples_given}, of which the blend plans {member.samples_target}",
                remedy=preset.oversampling_remedy,
            )
        if preset.wraps == "built":
            numbers[chunk] %= limits
    return BlendIndices(dataset_index.astype(preset.blend_dtype, copy=False), numbers)
