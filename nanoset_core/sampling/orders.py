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

    For example, the run has changed the weights of its datasets after 50 samples, and stops after
    90. It will continue with other weights again:

        dataset    samples 0 to 49    samples 50 to 89    result (`taken`)
        web        50                 30                  80
        books      -                  10                  10

    Args:
        read: What was planned with the present weights, and where the run stops (`end`: 90).
        exact: False estimates the numbers, wrong by one or two for each dataset. This is faster.

    Returns:
        Path of a dataset → its `Order`: how many samples were read of it (`taken`), of which
        documents (`rows`), and how many epochs were shuffled, the last one together with the others
        or on its own. Datasets that were only read with earlier weights are included.

    Raises:
        ConfigError: The run cannot have stopped there: it is before the last change of weights, or
            after the last sample of the plan.
    """
    start = read.config.consumed_samples  # 50: the present weights hold from this sample on
    if not start <= read.end <= read.plan.samples:
        raise _impossible_position_error(read)
    counts = samples_per_dataset(read.plan, start, read.end, exact=exact)  # web 30, books 10

    orders = dict(read.config.orders)  # those of samples 0 to 49: web has taken=50
    for member, count in zip(read.plan.members, counts, strict=True):
        order = member.order
        if order is None:
            # The weights were never changed: the dataset was read from its start on, and shuffled
            # as planned.
            order = Order(
                taken=0,
                rows=member.rows,
                epochs=member.epochs,
                separate_last_epoch=member.separate_last_epoch,
            )
        orders[member.prefix] = replace(order, taken=order.taken + count)  # web: 50 + 30
    return orders


def _impossible_position_error(read: Read) -> ConfigError:
    """Return the error for a training run that cannot have stopped after so many samples.

    For example, the run has read 1,000 samples, changed the weights of its datasets, and planned
    3,000 more. Then it cannot have stopped after 5,000. Users count samples from the start of the
    run, but some trainers from the start of a plan:

                                         of the run    of the plan
        it can have stopped after            1,000              0    `consumed_samples`
        or later, up to                      4,000          3,000    `plan.samples`
        but is said to have stopped after    5,000          4,000    `end`

    Args:
        read: The plan, and how the trainer counts: `before` is the difference of both columns. It
            is 0 for trainers that count from the start of the run.
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
        # Each sample is read once. Then the plan has the sizes of the datasets in place of weights,
        # such as 300 and 100. Divide them by their sum exactly as the trainer does: rounding can
        # decide which sample comes next.
        total = float(sum(weights))
        weights = tuple(size / total for size in weights)  # 0.75 and 0.25
    return samples_taken(weights, start, stop, exact=exact)


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
    run_order = _order_of_run(member, order, config)  # 2 4 0 3 1 8 5 9 6 7
    samples = run_order.samples[order.taken :]  # 3 1 8 5 9 6 7

    # Put samples in front that the trainer skips: those that were read before, repeated if these
    # are too few, or only the first one if none was read.
    if member.begin > 0:
        n_available = max(order.taken, 1)
        skipped_samples = np.resize(run_order.samples[:n_available], member.begin)  # 2 4
        samples = np.concatenate([skipped_samples, samples])
    return run_order.document_index, samples[: member.samples_given]


class _RunOrder(NamedTuple):
    """Some epochs of a dataset in the order in which all phases of a run read them."""

    document_index: NDArray[np.int32]
    """Sequence numbers in the order of reading, shape (n_epochs * n_sequences,)."""
    samples: ShuffleIndex
    """Sample numbers in the order of drawing, shape (n_samples,)."""


def _order_of_run(member: MemberPlan, order: Order, config: NanosetConfig) -> _RunOrder:
    """Build the order of all epochs of a dataset, for a training run that has changed its weights.

    The epochs that were needed before the change keep their order. Each epoch that is added now is
    shuffled on its own, and comes after them. For example, an epoch has 3 documents and 5 samples:

        epoch                0, before the change    1, added
        document_index       1  2  0                 0  2  1             documents in random order
        samples              2  4  0  3  1           8  5  9  6  7       samples in random order

    Sample 0 starts with the first document of `document_index`, and so on. Samples are numbered
    through all epochs.

    Args:
        member: What is planned with the new weights: 2 epochs with 10 samples (`samples_built`).
        order: How the dataset was shuffled before the change: 1 epoch.
        config: What is trained.
    """
    orders_of_epochs = [_shuffle_first_epochs(member, order, config)]  # those before the change
    for epoch in range(order.epochs, member.epochs):
        orders_of_epochs.append(_shuffle_epoch(epoch, member, order, config))
    if len(orders_of_epochs) == 1:
        return orders_of_epochs[0]  # without copying it

    document_indices = [part.document_index for part in orders_of_epochs]
    sample_numbers = [part.samples for part in orders_of_epochs]
    # All epochs together may have so many samples that their numbers need 64 bits.
    dtype = shuffle_dtype(member.samples_built)
    return _RunOrder(
        document_index=np.concatenate(document_indices),
        samples=np.concatenate(sample_numbers, dtype=dtype),
    )


def _shuffle_first_epochs(member: MemberPlan, order: Order, config: NanosetConfig) -> _RunOrder:
    """Shuffle the first epochs of a dataset in the same way as the trainer.

    The trainer puts the documents of all epochs into random order, cuts them into samples, and
    shuffles these. If only a few samples of the last epoch are needed, it shuffles them on their
    own. Then no sample of this epoch comes before all others were read. For two epochs of 3 and 2
    samples:

        all together                2  4  0  3  1
        last epoch on its own       2  0  1  4  3

    Args:
        member: What is planned for the dataset.
        order: The documents that are read (`rows`: a first and a last one), the number of epochs,
            and whether the last one is shuffled on its own.
        config: What is trained: the seed and the length of samples, for example.
    """
    # One generator of random numbers is used for both arrays. So first the documents are shuffled,
    # as in the trainer, and then the samples.
    state = np.random.RandomState(config.random_seed)
    document_index = build_document_index(
        order.rows,
        order.epochs,
        state,
        separate_last_epoch=order.separate_last_epoch,
        shuffle=config.shuffle_documents,
    )

    n_samples = config.samples_in(order.epochs * member.tokens)  # 5
    n_together = n_samples  # how many samples are shuffled together; the others come after them
    if order.separate_last_epoch:
        n_together = config.samples_in((order.epochs - 1) * member.tokens)  # 3
    samples = build_shuffle_index(n_samples, n_together, state)
    return _RunOrder(document_index, samples)


def _shuffle_epoch(
    epoch: int, member: MemberPlan, order: Order, config: NanosetConfig
) -> _RunOrder:
    """Shuffle one epoch of a dataset on its own: its documents, and its samples.

    The tokens of all epochs are concatenated, and cut into samples. So a sample may begin in one
    epoch and end in the next. It belongs to the epoch in which it ends. For example, epochs have 45
    tokens, and samples 10, so that sample 4 has the tokens 40 to 49:

        epoch                     0          1
        tokens                    0 to 44    45 to 89
        samples that end in it    0 to 3     4 to 8
        result                               7, 4, 8, 6, 5    samples in random order

    Args:
        epoch: Number of the epoch: 1. It is part of the seed, so each epoch has another order.
        member: What is planned for the dataset.
        order: Which documents of it are read (`rows`: a first and a last one).
        config: What is trained: the seed and the length of samples, for example.
    """
    state = np.random.RandomState([config.random_seed, epoch])
    document_index = build_document_index(
        order.rows,
        1,  # epoch
        state,
        separate_last_epoch=False,
        shuffle=config.shuffle_documents,
    )

    # Which samples end in this epoch?
    tokens_of_epoch = member.tokens  # 45
    start = config.samples_in(epoch * tokens_of_epoch)  # 4 samples end before it
    stop = config.samples_in((epoch + 1) * tokens_of_epoch)  # 9 samples end before the next one

    # Shuffle the numbers from 0 on, and add that of the first sample.
    n_samples = stop - start
    shuffled = build_shuffle_index(n_samples, n_samples, state)  # [3, 0, 4, 2, 1]
    samples = shuffled.astype(shuffle_dtype(stop))  # a type that has room for `stop`
    samples += samples.dtype.type(start)  # [7, 4, 8, 6, 5]
    return _RunOrder(document_index, samples)


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
