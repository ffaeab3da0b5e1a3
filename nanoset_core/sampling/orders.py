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
    """Return how many samples of each dataset a training run has read when its weights are changed.

    The run is stopped, and will continue with other weights. It should not read samples again, so
    these numbers are stored. For example, the run changes its weights for the second time. Its
    first weights held for the samples 0 to 49, all of web; the second ones from sample 50 on, and
    it stops at 90:

        dataset    read with the first weights    with the second weights    result: `taken`
        web        50                             30                         80
        books      -                              10                         10

    Args:
        read: What was planned with the second weights, and where the run stopped: `read.end` is 90.
        exact: False estimates the numbers, wrong by one or two for each dataset. This is faster.

    Returns:
        Path of a dataset → its order, which says how many samples were read of it (`taken`), and
        how they are shuffled. Datasets that are only read with earlier weights are included.

    Raises:
        ConfigError: Fewer samples were read than with the weights before, or more than there are.
    """
    # The trainer counts all samples of the run, so with these weights it did not start at 0.
    start = read.config.consumed_samples  # 50
    if not start <= read.end <= read.plan.samples:
        raise _impossible_position_error(read)
    counts = samples_per_dataset(read.plan, start, read.end, exact=exact)

    # Add these (30 and 10) to the samples that were read of each dataset with other weights.
    orders = dict(read.config.orders)
    for member, count in zip(read.plan.members, counts, strict=True):
        read_before = 0
        if member.prefix in orders:
            read_before = orders[member.prefix].taken
        orders[member.prefix] = replace(_order_of(member), taken=read_before + count)
    return orders


def _impossible_position_error(read: Read) -> ConfigError:
    """Return the error for a number of samples that a training run cannot have read.

    For example, the user says that the run stopped after 5,000 samples:

        read with earlier weights     1,000              `consumed_samples`
        samples of the plan           4,000              `plan.samples`
        so it stopped somewhere in    1,000 to 4,000

    Users count all samples since the start of the run, but the plan may begin later. Then `before`
    is how many samples were read before its first one, and is added to all numbers of the message.
    """
    first = read.before + read.config.consumed_samples
    last = read.before + read.plan.samples
    return ConfigError(
        "a run of this nanoset cannot have consumed these samples",
        where="consumed_samples",
        found=f"{read.before + read.end:,}",
        expected=f"{first:,} to {last:,}",
    )


def _order_of(member: MemberPlan) -> Order:
    """Return in which order a training run reads the samples of a dataset.

    The run may change the weights of its datasets several times, but always reads a dataset in one
    order, so that no sample comes twice too early. This order is decided when the dataset is read
    for the first time:

        rows                   which documents it has, such as (0, 900)
        epochs                 how many copies of these are shuffled
        separate_last_epoch    whether the last of these copies is shuffled on its own
        taken                  how many samples were read when the present weights began: 0 here, as
                                 the dataset was not read before. (The caller counts those since.)

    Args:
        member: What is planned for the dataset with the present weights. It has an order if the
            dataset was read with earlier ones. Then that one is the result.
    """
    if member.order is not None:
        return member.order
    return Order(
        taken=0,
        rows=member.rows,
        epochs=member.epochs,
        separate_last_epoch=member.separate_last_epoch,
    )


def samples_per_dataset(plan: SplitPlan, start: int, stop: int, *, exact: bool) -> Sequence[int]:
    """Return how many samples of each dataset are in a range of the training samples.

    There are three cases. For the samples 0 to 9:

        one dataset                       all 10 are from it
        datasets with weights             the weights 0.7 and 0.3 mean 7 and 3
        all samples of all datasets       datasets of 350 and 150 samples are mixed in this
          are read once (`exhaustive`)      proportion, so also 7 and 3

    Args:
        plan: What is planned for a split of the data, such as train.
        start: Number of the first sample of the range.
        stop: Number after the last sample.
        exact: False estimates the numbers, wrong by one or two. This is faster.

    Returns:
        One number for each dataset, in the order of the plan.
    """
    blend = plan.blend
    if blend is None:
        return [stop - start]
    if not blend.exhaustive:
        return samples_taken(blend.weights, start, stop, exact=exact)

    # In this case, the plan has sizes such as 300 and 100 in place of weights. Divide them in the
    # same way as `build_exhaustive_blending_indices`: rounding can decide which sample comes next.
    dataset_sizes = blend.weights
    total = float(sum(dataset_sizes))
    weights = tuple(size / total for size in dataset_sizes)  # 0.75 and 0.25
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
    """Build the order of all epochs of a dataset, for a training run whose weights were changed.

    The order of the epochs that were read before the change must stay. More epochs may be needed
    now, and each of these is shuffled on its own. For example:

        epochs 0 and 1    needed before the change    shuffled together, as the trainer did
        epoch 2           needed now                  shuffled on its own
        epoch 3           needed now                  shuffled on its own

    Args:
        member: What is planned for the dataset with the new weights: 4 epochs.
        order: How it was shuffled before the change: 2 epochs.
        config: What is trained.
    """
    pieces = [_shuffle_first_phase(member, order, config)]
    for epoch in range(order.epochs, member.epochs):
        pieces.append(_shuffle_epoch(epoch, member, order, config))
    if len(pieces) == 1:
        return pieces[0]  # without copying it

    document_indices = [piece.document_index for piece in pieces]
    sample_numbers = [piece.samples for piece in pieces]
    # All epochs together may have so many samples that their numbers need 64 bits.
    dtype = shuffle_dtype(member.samples_built)
    return _RunOrder(
        document_index=np.concatenate(document_indices),
        samples=np.concatenate(sample_numbers, dtype=dtype),
    )


def _shuffle_first_phase(member: MemberPlan, order: Order, config: NanosetConfig) -> _RunOrder:
    """Shuffle the epochs of a dataset that a training run needed before its weights were changed.

    They are shuffled again with the same seed, and so in the same order as at that time, which is
    the trainer's: first the documents of all epochs are shuffled, and then the samples into which
    these are cut. The last epoch may be shuffled apart from the others:

        samples of the first epochs    2  0  1
        samples of the last epoch               4  3

    Args:
        member: What is planned for the dataset with the new weights.
        order: How many epochs there were, and whether the last one is shuffled on its own.
        config: What is trained.
    """
    # One generator of random numbers is used for both, so these calls must be in this order.
    state = np.random.RandomState(config.random_seed)
    document_index = build_document_index(
        order.rows,
        order.epochs,
        state,
        separate_last_epoch=order.separate_last_epoch,
        shuffle=config.shuffle_documents,
    )

    n_samples = config.samples_in(order.epochs * member.tokens)  # 5 in the example
    n_in_first_group = n_samples
    if order.separate_last_epoch:
        n_in_first_group = config.samples_in((order.epochs - 1) * member.tokens)  # 3
    samples = build_shuffle_index(n_samples, n_in_first_group, state)
    return _RunOrder(document_index, samples)


def _shuffle_epoch(
    epoch: int, member: MemberPlan, order: Order, config: NanosetConfig
) -> _RunOrder:
    """Shuffle one more epoch of a dataset, for a training run whose weights were changed.

    The run reads more epochs than it needed before the change. Each of them has its own seed. So
    its order does not depend on how many epochs there are, and stays if weights are changed again.

    All epochs are joined to one stream of tokens, which is cut into samples, so a sample can start
    in one epoch and end in the next. It belongs to the epoch in which it ends. For example, for
    epochs of 45 tokens and samples of 10 (which have no token in common):

        epoch                0                     1
        its tokens           0 to 44               45 to 89
        samples that end     0 to 3                4 to 8        sample 4 has the tokens 40 to 49
          in it

    Args:
        epoch: Number of the epoch: 1 if only epoch 0 was needed before the change.
        member: What is planned for the dataset with the new weights.
        order: How it was shuffled before the change.
        config: What is trained.

    Returns:
        The documents of this epoch in the order of reading, and the numbers of its samples (4 to 8)
        in theirs.
    """
    state = np.random.RandomState([config.random_seed, epoch])
    document_index = build_document_index(
        order.rows, 1, state, separate_last_epoch=False, shuffle=config.shuffle_documents
    )

    # Which samples end in the epoch, if they are cut from the joined epochs?
    start = config.samples_in(epoch * member.tokens)  # 4 samples end in epoch 0
    stop = config.samples_in((epoch + 1) * member.tokens)  # 9 samples end in epochs 0 and 1
    n_samples = stop - start  # so epoch 1 has the 5 samples 4 to 8
    shuffled = build_shuffle_index(n_samples, n_samples, state)  # such as [3, 0, 4, 2, 1]
    samples = shuffled.astype(shuffle_dtype(stop))
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
