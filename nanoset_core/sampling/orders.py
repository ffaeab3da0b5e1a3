"""Order the samples of a dataset in the same way in all phases of a run.

A run can have phases with different blends. It must not read a sample twice before it has read all
others, so all its phases read a dataset in one order:

- The first phase that reads the dataset has the trainer's own order of the epochs that it needs.
- Every epoch after these is shuffled on its own. So the order up to there stays the same, however
  many phases follow.
- A later phase gets a shuffle index that starts where the earlier phases stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.blending import samples_taken
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.document_index import build_document_index
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.shuffle_index import ShuffleIndex, build_shuffle_index, shuffle_dtype


@dataclass(frozen=True, slots=True)
class Read:
    """What a run has read of a phase: the samples of its train split up to a position."""

    plan: SplitPlan
    """Plan of the phase's train split."""
    config: NanosetConfig
    """Configuration with which it was built."""
    end: int
    """Position in the split at which the run stopped."""
    before: int = 0
    """Samples of the run before the first one of the split."""


def orders_after(read: Read, *, exact: bool = True) -> dict[str, Order]:
    """Return how far a training run has read each dataset, so that it can continue there.

    A run may change the weights of its datasets several times. For example, it has changed them
    after 50 samples, and stops after 90, to change them again:

        dataset    samples 0 to 49    samples 50 to 89    result: samples read (`taken`)
        web        50                 30                  80
        books      -                  10                  10

    Args:
        read: What was planned with the present weights, and where the run stops (`end`: 90).
        exact: False estimates the numbers, wrong by one or two for each dataset. This is faster.

    Returns:
        Path of a dataset → how many samples were read of it, and how it is shuffled. Datasets that
        were only read with earlier weights are included.

    Raises:
        ConfigError: The run cannot have stopped there: it is before the last change of weights, or
            after the last sample of the plan.
    """
    start = read.config.consumed_samples  # 50: the present weights hold from this sample on
    if not start <= read.end <= read.plan.samples:
        raise _impossible_position_error(read)
    new_samples = samples_per_dataset(read.plan, start, read.end, exact=exact)  # [30, 10]

    orders = dict(read.config.orders)  # after 50 samples: 50 of web
    for dataset, n_new in zip(read.plan.members, new_samples, strict=True):
        order = dataset.order_of_run  # `taken` is 50 for web, and 0 for books
        orders[dataset.prefix] = replace(order, taken=order.taken + n_new)
    return orders


def _impossible_position_error(read: Read) -> ConfigError:
    """Return the error for a training run that cannot have stopped after so many samples.

    A run has a new plan each time it changes the weights of its datasets. Trainers count samples
    from the start of the run or of the plan, but users always from the start of the run. For
    example, a plan for 3,000 samples was made when the run had read 1,000 (`read.before`):

                                             of the run    of the plan
        is said to have stopped after             5,000          4,000
        can have stopped after                   1,000              0
        or later, up to                          4,000          3,000

    Args:
        read: The plan, and where the run is said to have stopped.
    """
    earliest_end = read.before + read.config.consumed_samples  # 1,000
    latest_end = read.before + read.plan.samples  # 4,000
    end = read.before + read.end  # 5,000
    return ConfigError(
        "a training run of this nanoset cannot have stopped after so many samples",
        where="consumed_samples",
        found=f"{end:,}",
        expected=f"{earliest_end:,} to {latest_end:,}",
    )


def samples_per_dataset(plan: SplitPlan, start: int, stop: int, *, exact: bool) -> Sequence[int]:
    """Return how many samples of each dataset are in a range of the training samples.

    For example, training mixes two datasets with the weights 0.75 and 0.25. Of its samples 0 to 7,
    6 are from the first dataset and 2 from the second.

    Args:
        plan: What is planned for a split of the data, such as train.
        start: Number of the first sample of the range.
        stop: Number after the last sample.
        exact: False estimates the numbers, wrong by one or two. This is faster.

    Returns:
        One number for each dataset, in the order of the plan.
    """
    blend = plan.blend
    if blend is None:  # there is only one dataset
        return [stop - start]

    weights = blend.weights
    if blend.exhaustive:
        weights = _weights_of_sizes(blend.weights)
    return samples_taken(weights, start, stop, exact=exact)


def _weights_of_sizes(sizes: Sequence[float]) -> tuple[float, ...]:
    """Return the weights of datasets if each of their samples is read once: 0.75, 0.25 of 300, 100.

    A plan has their sizes in place of weights then. They are divided by their sum exactly as the
    trainer does it: rounding can decide which sample comes next.

    Args:
        sizes: Number of samples of each dataset.
    """
    total = float(sum(sizes))
    return tuple(size / total for size in sizes)


def build_ordered(
    member: MemberPlan, order: Order, config: NanosetConfig
) -> tuple[NDArray[np.int32], ShuffleIndex]:
    """Build the order in which a training run reads a dataset after its weights were changed.

    The run was stopped, and continues with other weights. It first reads the samples of the dataset
    that it has not read, and then further epochs. For example, an epoch has 5 samples, and 3 of
    them were read before the change. Now 4 more are needed:

        the first epoch, in shuffled order     2  4  0  3  1
        a second one                                          8  5  9  6  7
        read before the change                 2  4  0
        read now                                        3  1  8  5

    But the trainer does not know which samples were read. When it continues, it plans as if the new
    weights had held from the start, and skips the samples that it would have read by now. If these
    are 2 of this dataset, put any 2 samples in front for that, here two that were read before:

        result                                 2  4  3  1  8  5  9  6  7
        skipped by the trainer                 2  4
        read now                                     3  1  8  5

    Args:
        member: What is planned for the dataset with the new weights. `begin` is how many samples
            the trainer skips (2), and `samples_given` the length of the result (9).
        order: How the dataset was shuffled before the change, and how many samples were read (3).
        config: What is trained.

    Returns:
        Two arrays: the documents of all epochs in the order of reading, shape (member.epochs *
        n_sequences,); and the samples in the order of reading, shape (member.samples_given,).
    """
    shuffled = _shuffle_all_epochs(member, order, config)  # 2 4 0 3 1 8 5 9 6 7
    samples = shuffled.samples[order.taken :]  # 3 1 8 5 9 6 7

    # Put samples in front that the trainer skips: those that were read before, repeated if these
    # are too few, or only the first one if none was read.
    if member.begin > 0:
        n_available = max(order.taken, 1)
        skipped_samples = np.resize(shuffled.samples[:n_available], member.begin)  # 2 4
        samples = np.concatenate([skipped_samples, samples])
    return shuffled.document_index, samples[: member.samples_given]


class _ShuffledEpochs(NamedTuple):
    """Successive epochs of a dataset, in the order in which a training run reads them."""

    document_index: NDArray[np.int32]
    """Documents in the order of reading, shape (n_epochs * n_sequences,)."""
    samples: ShuffleIndex
    """Numbers of samples in the order of reading, shape (n_samples,)."""


def _shuffle_all_epochs(member: MemberPlan, order: Order, config: NanosetConfig) -> _ShuffledEpochs:
    """Shuffle all epochs of a dataset, for a training run that has changed its weights.

    The epochs that were needed before the change keep their order. Each epoch that is added now is
    shuffled on its own, and comes after them. For example, an epoch has 3 documents, which are cut
    into 5 samples:

        epoch                                0, before the change    1, added
        documents in the order of reading    1  2  0                 0  2  1
        samples in the order of reading      2  4  0  3  1           8  5  9  6  7

    Args:
        member: What is planned with the new weights: 2 epochs (`epochs`).
        order: How the dataset was shuffled before the change: 1 epoch.
        config: What is trained.
    """
    shuffled = [_shuffle_first_epochs(member, order, config)]
    for epoch in range(order.epochs, member.epochs):
        shuffled.append(_shuffle_added_epoch(epoch, member, order, config))
    if len(shuffled) == 1:
        return shuffled[0]  # without copying it

    # All epochs together may have so many samples that their numbers need 64 bits.
    dtype = shuffle_dtype(member.samples_built)
    return _ShuffledEpochs(
        document_index=np.concatenate([epochs.document_index for epochs in shuffled]),
        samples=np.concatenate([epochs.samples for epochs in shuffled], dtype=dtype),
    )


def _shuffle_first_epochs(
    member: MemberPlan, order: Order, config: NanosetConfig
) -> _ShuffledEpochs:
    """Shuffle the epochs of a dataset that were needed first, in the same way as the trainer.

    The trainer shuffles the documents, cuts them into samples, and shuffles these. If only a few
    samples of the last epoch are needed, this epoch is shuffled on its own. Then none of its
    samples comes before all others were read. For example, two epochs with 3 and 2 samples:

        both together                  2  4  0  3  1
        the last epoch on its own      2  0  1  4  3

    Args:
        member: What is planned for the dataset. `tokens` are those of one epoch.
        order: How many epochs there are, of which documents (`rows`: a first one, and the one after
            the last), and whether the last epoch is shuffled on its own.
        config: What is trained: the seed and the length of samples, for example.
    """
    # The trainer takes random numbers from one generator, first for documents and then for samples.
    state = np.random.RandomState(config.random_seed)
    document_index = build_document_index(
        order.rows,
        order.epochs,
        state,
        separate_last_epoch=order.separate_last_epoch,
        shuffle=config.shuffle_documents,
    )

    n_samples = config.samples_in(order.epochs * member.tokens)  # 5
    n_shuffled_together = config.samples_in(order.epochs_shuffled_together * member.tokens)  # 5, 3
    samples = build_shuffle_index(n_samples, n_shuffled_together, state)
    return _ShuffledEpochs(document_index, samples)


def _shuffle_added_epoch(
    epoch: int, member: MemberPlan, order: Order, config: NanosetConfig
) -> _ShuffledEpochs:
    """Shuffle one more epoch of a dataset on its own: its documents, and its samples.

    Samples are cut from the tokens of all epochs, one after another. So a sample may begin in one
    epoch and end in the next. It belongs to the one in which it ends. For example, epochs have 45
    tokens, and samples 10:

        epoch                                    0          1
        its tokens                               0 to 44    45 to 89
        samples that end in it                   0 to 3     4 to 8       (4 has tokens 40 to 49)
        these in random order, for epoch 1                  7, 4, 8, 6, 5

    Args:
        epoch: Number of the epoch: 1. It is part of the seed, so each epoch has another order.
        member: What is planned for the dataset. `tokens` are those of one epoch: 45.
        order: Which documents are read (`rows`: a first one, and the one after the last).
        config: What is trained: the seed and the length of samples, for example.
    """
    state = np.random.RandomState([config.random_seed, epoch])
    document_index = build_document_index(
        order.rows,
        num_epochs=1,
        state=state,
        separate_last_epoch=False,
        shuffle=config.shuffle_documents,
    )

    first_sample = config.samples_in(epoch * member.tokens)  # 4
    stop_sample = config.samples_in((epoch + 1) * member.tokens)  # 9
    return _ShuffledEpochs(document_index, _shuffled_range(first_sample, stop_sample, state))


def _shuffled_range(start: int, stop: int, state: np.random.RandomState) -> ShuffleIndex:
    """Return the numbers from `start` to `stop - 1` in random order, as the trainers shuffle them.

    Args:
        start: The first number.
        stop: The number after the last one.
        state: The random number generator.

    Returns:
        Shape (stop - start,), in the type in which the trainers store such numbers: 32 or 64 bits.
    """
    count = stop - start
    shuffled = build_shuffle_index(count, count, state)  # from 0 on
    numbers: ShuffleIndex = shuffled.astype(shuffle_dtype(stop))
    numbers += numbers.dtype.type(start)
    return numbers


def other_versions(orders: Mapping[str, Order], prefixes: Mapping[str, str]) -> dict[str, str]:
    """Return which datasets have changed since a training run read them, before it was stopped.

    Each time a dataset is built, the result gets a folder of its own. So the paths tell:

        read by the run      .../web/1a2b/web        .../books/77aa/books
        now                  .../web/3c4d/web        .../books/77aa/books
        changed              yes                     no

    Args:
        orders: Path of a dataset → how the run has read it. If the run has read several versions of
            a dataset, the last one counts.
        prefixes: Name of a dataset → its path now: {"web": ".../web/3c4d/web"}.

    Returns:
        Name of each changed dataset → path that the run has read: {"web": ".../web/1a2b/web"}.
    """
    read_prefix_by_folder = {}
    for prefix in orders:
        read_prefix_by_folder[_folder_of_versions(prefix)] = prefix

    changed = {}
    for name, current_prefix in prefixes.items():
        if current_prefix in orders:
            continue  # the run has read the present version
        read_prefix = read_prefix_by_folder.get(_folder_of_versions(current_prefix))
        if read_prefix is not None:
            changed[name] = read_prefix
    return changed


def _folder_of_versions(prefix: str) -> str:
    """Return the folder that contains all versions of a dataset.

    For example, ".../dataset/web/1a2b/web" is a version, and the folder is ".../dataset/web".

    Args:
        prefix: Path of one version without .bin and .idx.
    """
    return prefix.rsplit("/", 2)[0]
