"""Build the index arrays of a plan.

The sample index says at which document, and at which token of it, every sample begins. The tokens of an epoch, read
along the document index, form one long line that is cut every `sequence_length` tokens. With end = inclusive running
sum of the documents' sizes, the border p = j * sequence_length of sample j lies in the first document d with end[d] >=
p + add_extra_token, at offset p - (end[d] - size[d]). Work goes in blocks of documents, so that scratch is bounded and,
in most blocks, sums fit 32 bits; the random gather of sizes is what takes the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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
    """Build the arrays of one dataset's part of a split; `lengths` are the tokens of its sequences.

    One RandomState(seed) shuffles documents, then samples: the trainers' order of draws. ConfigError where the dataset
    does not hold the tokens that were planned with.
    """

    def samples_along(document_index: NDArray[np.int32]) -> NDArray[np.int32] | NDArray[np.int64]:
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

    if member.order is not None:
        document_index, left = build_ordered(member, member.order, config)
        return MemberIndices(document_index, samples_along(document_index), left)
    state = np.random.RandomState(config.random_seed)
    apart, shuffle = member.separate_last_epoch, config.shuffle_documents and not config.rules.windows
    document_index = build_document_index(member.rows, member.epochs, state, separate_last_epoch=apart, shuffle=shuffle)
    sample_index = samples_along(document_index)
    samples = len(sample_index) - 1
    if config.rules.windows:
        return MemberIndices(document_index, sample_index, np.arange(samples, dtype=shuffle_dtype(samples)))
    first = config.samples_in((member.epochs - 1) * member.tokens) if apart else samples
    shuffle_index = build_shuffle_index(samples, first, state, repeats=member.repeats)
    return MemberIndices(document_index, sample_index, shuffle_index)


def build_blend_indices(plan: SplitPlan) -> BlendIndices:
    """Build the arrays of a split's blend; SampleIndexError where a dataset is too short, or there is no blend."""
    blend, preset, where = plan.blend, get_preset(plan.preset), f"split {plan.split}"
    if blend is None:
        raise SampleIndexError("the split is a plain dataset: there is no blend to build", where=where)
    lengths = np.array([member.samples_given for member in plan.members], dtype=np.int64)
    if blend.exhaustive:
        dataset_index, numbers = build_exhaustive_blending_indices([int(length) for length in blend.weights])
    else:
        size = blend.size if blend.seed is None else int(lengths.sum())
        dataset_index, numbers = build_blending_indices(blend.weights, size)
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
                remedy="raise surplus, for example to 0.05"
                if preset.blend_margin == "surplus"
                else "ask for another number of samples or change the weights: this trainer's margin is fixed",
            )
        if preset.wraps == "built":
            numbers[chunk] %= limits
    found = BlendIndices(dataset_index.astype(preset.blend_dtype, copy=False), numbers)
    return found if blend.seed is None else _shuffled(found, blend.size, blend.seed)


def _shuffled(epoch: BlendIndices, size: int, seed: int) -> BlendIndices:
    """Shuffle the blend of one epoch, and repeat it until there are `size` samples.

    Source: nanotron `nanoset.py`, `build_nanoset_index`: both arrays are shuffled with one seed, and epochs are alike.
    """
    for array in (epoch.dataset_index, epoch.dataset_sample_index):
        shuffle_in_place(array, np.random.RandomState(seed))
    return BlendIndices(np.resize(epoch.dataset_index, size), np.resize(epoch.dataset_sample_index, size))


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
    """Find where every sample begins.

    Source: Megatron-LM `helpers.cpp`, `build_sample_idx`.

    Args:
        sizes: tokens of every sequence of the dataset, shape (sequences,).
        document_index: sequence numbers in the order of reading, all epochs, shape (positions,).
        sequence_length: tokens of a sample, without the extra one.
        num_epochs: in document_index.
        tokens_per_epoch: num_epochs of them must be what document_index holds.
        add_extra_token: 1 where a sample has one token more, which is the next one's first; else 0.
        drop_last_partial_sequence: without it the last sample may be short.
        empty_end: the last, short sample may end in an empty sequence, at offset -add_extra_token (as NeMo has it).
        threads: more than one shortens the wall time; the result is the same.

    Returns:
        Shape (samples + 1, 2), int32, or int64 where a position or a size needs it. Row j is (position in
        document_index, token offset) at which sample j begins, and the inclusive end of sample j - 1: with
        add_extra_token=1 neighbours share a token.

    Raises:
        ConfigError: the tokens don't add up, or, without `empty_end`, the last short sample ends in an empty sequence
            (the peer's own check refuses it too).
    """
    sizes = np.require(sizes, requirements="A")  # those of an .idx are not: numpy would copy all of them for each block
    total = num_epochs * tokens_per_epoch
    full = sample_count(total, sequence_length, add_extra_token)
    rows = sample_count(total, sequence_length, add_extra_token, drop_last_partial=drop_last_partial_sequence)
    index = np.empty((rows + 1, 2), dtype=_index_dtype(len(document_index), int(sizes.max()) if len(sizes) else 0))
    index[0] = 0
    base = 0
    for first, ends in _block_ends(sizes, document_index, threads):
        _fill_rows(index, base, first, ends, sequence_length, add_extra_token, full)
        base += int(ends[-1])
    if base != total:
        expected = f"{num_epochs} epochs of {tokens_per_epoch} tokens"
        raise ConfigError("the document index holds other tokens", found=f"{base} tokens", expected=expected)
    if rows > full:
        last = len(document_index) - 1
        offset = int(sizes[document_index[last]]) - add_extra_token
        if offset < 0 and not empty_end:
            raise ConfigError(
                "the last, short sample would end in an empty sequence",
                found=f"sequence {document_index[last]}, 0 tokens, as the last one of the shuffled epoch",
                expected="a sequence with tokens",
                remedy="set drop_last_partial_validation_sequence=True, use another seed, or drop empty sequences",
            )
        index[rows] = last, offset
    return index


def _index_dtype(documents: int, longest: int) -> np.dtype:
    return np.dtype(np.int32 if max(documents, longest) <= _INT32_MAX else np.int64)


def _block_ends(
    sizes: NDArray[np.int32], document_index: NDArray[np.int32], threads: int
) -> Iterator[tuple[int, NDArray[np.signedinteger]]]:
    """Yield (first position, running sums of the sizes of a block with a 0 in front), in order."""
    narrow = len(sizes) == 0 or int(sizes.max()) * BLOCK_DOCUMENTS < _INT32_MAX

    def sums(first: int) -> tuple[int, NDArray[np.signedinteger]]:
        # (documents of the block,)
        block = np.take(sizes, document_index[first : first + BLOCK_DOCUMENTS])
        fits = narrow or int(block.sum(dtype=np.int64)) < _INT32_MAX
        kind: type[np.signedinteger] = np.int32 if fits else np.int64
        ends = np.zeros(len(block) + 1, kind)
        np.cumsum(block, dtype=ends.dtype, out=ends[1:])
        return first, ends

    firsts = range(0, len(document_index), BLOCK_DOCUMENTS)
    if threads == 1:
        yield from map(sums, firsts)
        return
    with ThreadPoolExecutor(threads) as pool:
        window = 4 * threads
        ahead = pool.map(sums, firsts[:window])
        for begin in range(window, len(firsts) + window, window):
            ready, ahead = ahead, pool.map(sums, firsts[begin : begin + window])
            yield from ready


def _fill_rows(
    index: NDArray[np.signedinteger],
    base: int,
    first: int,
    ends: NDArray[np.signedinteger],
    sequence_length: int,
    add_extra_token: int,
    full: int,
) -> None:
    """Write the rows whose border lies in this block; `base` tokens lie in front of it, `ends` as of `_block_ends`."""
    begin = max((base - add_extra_token) // sequence_length + 1, 1)
    stop = min((base + int(ends[-1]) - add_extra_token) // sequence_length, full) + 1
    if begin >= stop:
        return
    # (stop - begin,): tokens of this block up to and with the border's (extra) token
    targets = np.arange(
        begin * sequence_length + add_extra_token - base,
        stop * sequence_length + add_extra_token - base - sequence_length + 1,
        sequence_length,
        dtype=ends.dtype,
    )
    documents = np.searchsorted(ends[1:], targets, side="left")
    part = index[begin:stop]
    targets -= add_extra_token
    np.add(documents, first, out=part[:, 0], casting="unsafe")
    np.subtract(targets, ends[documents], out=part[:, 1], casting="unsafe")
