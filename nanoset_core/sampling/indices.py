"""Build the index arrays of a plan.

These are the document, sample and shuffle index of each dataset, and the two arrays of the blend.

**The sample index.** The documents of a split, read in the order of the document index, form one
stream of tokens, which is cut every `sequence_length` tokens. Row j of the sample index says where
sample j starts: at which position of the document index, and at which token of that document. Most
trainers give a sample one token more, which is the next sample's first. For documents of 3, 5 and 4
tokens, and samples of 4 tokens and an extra one:

    document    0 0 0 1 1 1 1 1 2 2 2 2
    sample 0    x x x x x
    sample 1            x x x x x
    rows        (0, 0) and (1, 1), and for the end of the last sample (2, 0)

Megatron-LM walks over the documents in C++. Here the running sums of the documents' sizes are
searched for all starts at once. Let `stop[d]` be the running sum up to and including document d.
Sample j starts after p = j * sequence_length tokens, which is in the first document d with `stop[d]
>= p + add_extra_token`, at token `p - (stop[d] - size[d])`.

The work is done in blocks of documents, which bounds the memory, and lets the sums of most blocks
fit into 32 bits. Most of the time is spent on gathering the sizes in the order of the document
index.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.sampling.blending import build_blending_indices, build_exhaustive_blending_indices
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.document_index import build_document_index, shuffle_in_place
from nanoset_core.sampling.orders import build_ordered
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.shuffle_index import build_shuffle_index, shuffle_dtype
from nanoset_core.sampling.splits import sample_count

_CHUNK = 1 << 20
BLOCK_DOCUMENTS = 1 << 16
_INT32_MAX = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class MemberIndices:
    """The three index arrays of one dataset's part of a split."""

    document_index: NDArray[np.int32]
    """Sequence numbers in the order of reading, shape (epochs * sequences,)."""
    sample_index: NDArray[np.int32] | NDArray[np.int64]
    """Where each sample begins, and the last one ends: (position in document_index, token offset),
    shape (samples + 1, 2).
    """
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

    One RandomState(seed) shuffles the documents, then the samples: the trainers draw in this order.

    Args:
        lengths: Tokens of each of the dataset's sequences, shape (n_sequences,).
        threads: More than one shortens the wall time; the result is the same.

    Raises:
        ConfigError: The dataset does not have the tokens that were planned with.
    """

    def sample_index_of(document_index: NDArray[np.int32]) -> NDArray[np.int32] | NDArray[np.int64]:
        return build_sample_index(
            lengths,
            document_index,
            config.step,
            member.epochs,
            member.tokens,
            config.overlap,
            drop_last_partial_sequence=config.drops_last_partial(member.split),
            empty_end=config.rules.empty_end,
            threads=threads,
        )

    # A run that continues an earlier one keeps that run's order.
    if member.order is not None:
        document_index, remaining = build_ordered(member, member.order, config)
        return MemberIndices(document_index, sample_index_of(document_index), remaining)

    state = np.random.RandomState(config.random_seed)
    document_index = build_document_index(
        member.rows,
        member.epochs,
        state,
        separate_last_epoch=member.separate_last_epoch,
        shuffle=config.shuffle_documents and not config.rules.windows,
    )
    sample_index = sample_index_of(document_index)
    samples = len(sample_index) - 1

    # Readers of windows shuffle by themselves.
    if config.rules.windows:
        return MemberIndices(
            document_index, sample_index, np.arange(samples, dtype=shuffle_dtype(samples))
        )

    if member.separate_last_epoch:
        samples_before_last_epoch = config.samples_in((member.epochs - 1) * member.tokens)
    else:
        samples_before_last_epoch = samples
    shuffle_index = build_shuffle_index(
        samples, samples_before_last_epoch, state, repeats=member.repeats
    )
    return MemberIndices(document_index, sample_index, shuffle_index)


def build_blend_indices(plan: SplitPlan) -> BlendIndices:
    """Build the arrays of a split's blend.

    Raises:
        SampleIndexError: A dataset has fewer samples than the blend takes, or there is no blend.
    """
    blend = plan.blend
    preset = get_preset(plan.preset)
    if blend is None:
        raise SampleIndexError(
            "the split is a plain dataset: there is no blend to build", where=f"split {plan.split}"
        )

    # (n_datasets,)
    samples_given = np.array([member.samples_given for member in plan.members], dtype=np.int64)
    if blend.exhaustive:
        dataset_index, sample_index = build_exhaustive_blending_indices(
            [int(weight) for weight in blend.weights]
        )
    else:
        size = blend.size if blend.seed is None else int(samples_given.sum())
        dataset_index, sample_index = build_blending_indices(blend.weights, size)

    # Check that the datasets have the samples that the blend takes, or wrap around as the trainer
    # does.
    for start in range(0, len(sample_index), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        limits = samples_given[dataset_index[chunk]]
        is_missing = sample_index[chunk] >= limits if preset.wraps == "never" else limits == 0
        if is_missing.any():
            number = int(dataset_index[chunk][np.argmax(is_missing)])
            raise _too_few_samples(plan, plan.members[number], preset.blend_margin == "surplus")
        if preset.wraps == "built":
            sample_index[chunk] %= limits

    indices = BlendIndices(dataset_index.astype(preset.blend_dtype, copy=False), sample_index)
    return indices if blend.seed is None else _shuffled(indices, blend.size, blend.seed)


def _too_few_samples(plan: SplitPlan, member: MemberPlan, has_surplus: bool) -> SampleIndexError:
    if has_surplus:
        remedy = "raise surplus, for example to 0.05"
    else:
        remedy = (
            "request another number of samples, or change the weights: "
            "this trainer's margin is fixed"
        )
    return SampleIndexError(
        "the blend takes more samples of a dataset than were built",
        where=f"split {plan.split}, {member.prefix}",
        found=f"more than {member.samples_given}",
        expected=f"{member.samples_given}, of which the blend plans {member.samples_target}",
        remedy=remedy,
    )


def _shuffled(epoch: BlendIndices, size: int, seed: int) -> BlendIndices:
    """Shuffle the blend of one epoch, and repeat it until there are `size` samples.

    Source: nanotron `nanoset.py`, `build_nanoset_index`: both arrays are shuffled with one seed,
        and all epochs are
    alike.
    """
    shuffle_in_place(epoch.dataset_index, np.random.RandomState(seed))
    shuffle_in_place(epoch.dataset_sample_index, np.random.RandomState(seed))
    return BlendIndices(
        np.resize(epoch.dataset_index, size), np.resize(epoch.dataset_sample_index, size)
    )


def build_sample_index(
    sizes: NDArray[np.int32],
    document_index: NDArray[np.int32],
    sequence_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    add_extra_token: int = 1,
    *,
    drop_last_partial_sequence: bool = True,
    empty_end: bool = False,
    threads: int = 1,
) -> NDArray[np.int32] | NDArray[np.int64]:
    """Find where every sample starts.

    Source: Megatron-LM `helpers.cpp`, `build_sample_idx`.

    Args:
        sizes: Tokens of every sequence of the dataset, shape (n_sequences,).
        document_index: Sequence numbers in the order of reading, all epochs, shape (n_positions,).
        sequence_length: Tokens of a sample, without the extra one.
        num_epochs: Number of epochs in document_index.
        tokens_per_epoch: Tokens of one epoch; num_epochs of them must be what document_index holds.
        add_extra_token: 1 if a sample has one token more, which is the next sample's first; else 0.
        drop_last_partial_sequence: False keeps a last sample that is short.
        empty_end: Allow the last, short sample to end in an empty sequence, at offset
            -add_extra_token (NeMo does).
        threads: More than one shortens the wall time; the result is the same.

    Returns:
        Shape (n_samples + 1, 2), int32, or int64 if a position or a size needs it. Row j is
        (position in document_index, token offset) at which sample j starts, and the inclusive end
        of sample j - 1: with add_extra_token=1 neighbours share a token.

    Raises:
        ConfigError: The tokens don't add up, or, without `empty_end`, the last short sample ends in
            an empty sequence (the trainer's own check refuses that, too).
    """
    # The array of an .idx is not aligned: numpy would copy all of it for every block.
    sizes = np.require(sizes, requirements="A")

    total_tokens = num_epochs * tokens_per_epoch
    full_samples = sample_count(total_tokens, sequence_length, add_extra_token)
    samples = sample_count(
        total_tokens, sequence_length, add_extra_token, drop_last_partial=drop_last_partial_sequence
    )
    longest = int(sizes.max()) if len(sizes) else 0
    index = np.empty((samples + 1, 2), dtype=_index_dtype(len(document_index), longest))
    index[0] = 0

    tokens_before = 0
    for first_position, stops in _running_sums(sizes, document_index, threads):
        _fill_rows(
            index,
            tokens_before,
            first_position,
            stops,
            sequence_length,
            add_extra_token,
            full_samples,
        )
        tokens_before += int(stops[-1])
    if tokens_before != total_tokens:
        raise ConfigError(
            "the document index holds other tokens",
            found=f"{tokens_before} tokens",
            expected=f"{num_epochs} epochs of {tokens_per_epoch} tokens",
        )

    # The end of the last, short sample is the last token of all.
    if samples > full_samples:
        last_position = len(document_index) - 1
        offset = int(sizes[document_index[last_position]]) - add_extra_token
        if offset < 0 and not empty_end:
            raise ConfigError(
                "the last, short sample would end in an empty sequence",
                found=f"sequence {document_index[last_position]}, 0 tokens, "
                "as the last one of the shuffled epoch",
                expected="a sequence with tokens",
                remedy="set drop_last_partial_validation_sequence=True, use another seed, "
                "or drop empty sequences",
            )
        index[samples] = (last_position, offset)
    return index


def _index_dtype(n_positions: int, longest: int) -> np.dtype:
    return np.dtype(np.int32 if max(n_positions, longest) <= _INT32_MAX else np.int64)


class _BlockSums(NamedTuple):
    """The running sums of the sizes in one block of the document index."""

    first_position: int
    """Where the block starts in the document index."""
    stops: NDArray[np.signedinteger]
    """A 0, and then the tokens of the block up to and including each position, shape
    (n_positions_of_block + 1,), int32 if the last one fits, else int64.
    """


def _running_sums(
    sizes: NDArray[np.int32], document_index: NDArray[np.int32], threads: int
) -> Iterator[_BlockSums]:
    """Yield the running sums of sizes in each block of the document index, in order.

    Args:
        sizes: Tokens of each sequence, shape (n_sequences,).
        document_index: Sequence numbers in the order of reading, shape (n_positions,).
        threads: Threads that compute blocks ahead of the caller; with 1, the caller's own.
    """
    # int32 sums take half the memory of int64 ones. If even a block of the longest sequences fits,
    # no block has to be summed to find out.
    longest = int(sizes.max()) if len(sizes) else 0
    all_blocks_fit_int32 = longest * BLOCK_DOCUMENTS < _INT32_MAX

    def block_sums(first_position: int) -> _BlockSums:
        sequences = document_index[first_position : first_position + BLOCK_DOCUMENTS]
        block_sizes = np.take(sizes, sequences)  # (n_positions_of_block,)
        fits_int32 = all_blocks_fit_int32 or int(block_sizes.sum(dtype=np.int64)) < _INT32_MAX
        dtype: type[np.signedinteger] = np.int32 if fits_int32 else np.int64
        stops = np.zeros(len(block_sizes) + 1, dtype)
        np.cumsum(block_sizes, dtype=stops.dtype, out=stops[1:])
        return _BlockSums(first_position, stops)

    first_positions = range(0, len(document_index), BLOCK_DOCUMENTS)
    if threads == 1:
        yield from map(block_sums, first_positions)
        return

    # `pool.map` starts all its calls at once, and would fill the memory with finished blocks. Start
    # one batch at a time: while the caller consumes a batch, the threads compute the next one.
    batch_size = 4 * threads
    with ThreadPoolExecutor(threads) as pool:
        previous_batch: Iterator[_BlockSums] = iter(())
        for start in range(0, len(first_positions), batch_size):
            running_batch = pool.map(block_sums, first_positions[start : start + batch_size])
            yield from previous_batch
            previous_batch = running_batch
        yield from previous_batch


def _fill_rows(
    index: NDArray[np.signedinteger],
    tokens_before: int,
    first_position: int,
    stops: NDArray[np.signedinteger],
    sequence_length: int,
    add_extra_token: int,
    full_samples: int,
) -> None:
    """Write the rows of the samples that start in a block.

    Args:
        index: The whole sample index, shape (n_samples + 1, 2).
        tokens_before: Tokens before the block.
        first_position: Position of the block's first document in the document index.
        stops: Running sums of the block, as `_running_sums` gives them.
    """
    start = max((tokens_before - add_extra_token) // sequence_length + 1, 1)
    stop = (
        min((tokens_before + int(stops[-1]) - add_extra_token) // sequence_length, full_samples) + 1
    )
    if start >= stop:
        return

    # (stop - start,) tokens of this block up to and including each start's (extra) token
    first_target = start * sequence_length + add_extra_token - tokens_before
    last_target = (stop - 1) * sequence_length + add_extra_token - tokens_before
    targets = np.arange(first_target, last_target + 1, sequence_length, dtype=stops.dtype)

    documents = np.searchsorted(stops[1:], targets, side="left")
    targets -= add_extra_token
    rows = index[start:stop]
    np.add(documents, first_position, out=rows[:, 0], casting="unsafe")
    np.subtract(targets, stops[documents], out=rows[:, 1], casting="unsafe")
