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
    """Return how far a run has read each dataset, when it stops to continue with other weights.

    A run consists of *phases*, each with one blend. For example, the first phase took 50 samples of
    web. The second one took 30 more: then 80 were taken of web's order.

    Args:
        read: What was read of the last phase.
        exact: False estimates the samples, wrong by one or two for each dataset, without computing
            the blend.

    Returns:
        Prefix of a dataset → the order of its samples, and how many of them were taken.

    Raises:
        ConfigError: Fewer samples were consumed than before this phase, or more than it has.
    """
    # The trainer counts the samples of the whole run. The last phase started at position `start`,
    # and stopped at position `read.end`.
    start = read.config.consumed_samples
    if not start <= read.end <= read.plan.samples:
        raise _impossible_position_error(read)
    counts = samples_per_dataset(read.plan, start, read.end, exact=exact)

    # Add what this phase has read of each dataset to what earlier phases had.
    orders = dict(read.config.orders)
    for member, count in zip(read.plan.members, counts, strict=True):
        earlier_order = orders.get(member.prefix)
        taken_before = 0 if earlier_order is None else earlier_order.taken
        orders[member.prefix] = replace(_order_of(member), taken=taken_before + count)
    return orders


def _impossible_position_error(read: Read) -> ConfigError:
    """Return the error for a run that cannot have stopped in this phase at its position."""
    first = read.before + read.config.consumed_samples
    last = read.before + read.plan.samples
    return ConfigError(
        "a run of this nanoset cannot have consumed these samples",
        where="consumed_samples",
        found=f"{read.before + read.end:,}",
        expected=f"{first:,} to {last:,}",
    )


def _order_of(member: MemberPlan) -> Order:
    """Return the order in which a run reads the samples of a dataset.

    A run that continues with another blend starts a new *phase*. The first phase that reads the
    dataset decides the order. If that was an earlier phase, the plan of this one has its order.
    Otherwise it is this phase: the order shuffles the planned epochs, and no samples of it were
    taken before.

    Args:
        member: Plan of the dataset in the current phase.
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
    """Return how many samples of each dataset are in a range of a split.

    For example, the positions 0 to 10 of a blend with the weights 0.7 and 0.3 have 7 and 3 samples.

    Args:
        plan: Plan of the split.
        start: First position of the range.
        stop: End of the range, exclusive.
        exact: False estimates the numbers, wrong by one or two, without computing the blend.

    Returns:
        One number for each dataset of the plan, in their order.
    """
    # A split without a blend has a single dataset, from which all its samples come.
    if plan.blend is None:
        return [stop - start]
    if not plan.blend.exhaustive:
        return samples_taken(plan.blend.weights, start, stop, exact=exact)

    # An "exhaustive" blend takes every sample of every dataset once. In place of weights, its plan
    # has the numbers of samples, such as 300 and 100: the weights are 0.75 and 0.25. They must be
    # rounded as in `build_exhaustive_blending_indices`, or the order of the samples may differ.
    dataset_sizes = plan.blend.weights
    total = float(sum(dataset_sizes))
    shares = tuple(size / total for size in dataset_sizes)
    return samples_taken(shares, start, stop, exact=exact)


def build_ordered(
    member: MemberPlan, order: Order, config: NanosetConfig
) -> tuple[NDArray[np.int32], ShuffleIndex]:
    """Build document and shuffle index of a dataset for a run that continues with another blend.

    Each blend of a run is a *phase*, and all phases read the samples of a dataset in one order. For
    example, the first phase shuffled one epoch, which has the samples 0 to 4, and took 3 of them.
    The second phase takes 4 more, so a second epoch is appended, which has the samples 5 to 9:

        order of the run                2 4 0 3 1 | 8 5 9 6 7
        taken by the first phase        2 4 0
        taken by the second phase             3 1   8 5

    The trainer counts the samples of the whole run, so it may skip the first `member.begin` entries
    of the shuffle index. Then as many entries are inserted before the others.

    Args:
        member: Plan of the dataset's part of the split.
        order: How earlier phases read it.
        config: Configuration of this phase.

    Returns:
        The document index of all epochs, shape (member.epochs * n_sequences,), and the shuffle
        index of this phase, shape (member.samples_given,). The trainer skips its first
        `member.begin` entries.
    """
    run_order = _order_of_run(member, order, config)

    # What earlier phases did not take.
    shuffle_index = run_order.samples[order.taken :]

    # Insert the entries that the trainer skips. Any samples will do: use those that earlier phases
    # took, or the first sample if they took none.
    if member.begin > 0:
        n_repeated = max(order.taken, 1)
        skipped_entries = np.resize(run_order.samples[:n_repeated], member.begin)
        shuffle_index = np.concatenate([skipped_entries, shuffle_index])
    return run_order.document_index, shuffle_index[: member.samples_given]


class _RunOrder(NamedTuple):
    """Some epochs of a dataset in the order in which all phases of a run read them."""

    document_index: NDArray[np.int32]
    """Sequence numbers in the order of reading, shape (n_epochs * n_sequences,)."""
    samples: ShuffleIndex
    """Sample numbers in the order of drawing, shape (n_samples,)."""


def _order_of_run(member: MemberPlan, order: Order, config: NanosetConfig) -> _RunOrder:
    """Return all epochs of a dataset in the order in which a run reads them.

    A run that continues with another blend starts a new *phase*. For example, the first phase
    needed two epochs, and now three are needed: epochs 0 and 1 are shuffled together, as in the
    first phase, and epoch 2 is shuffled on its own.

    Args:
        member: Plan of the dataset's part of the split, which says how many epochs there are.
        order: How earlier phases read it.
        config: Configuration of this phase.
    """
    pieces = [_shuffle_first_phase(member, order, config)]
    for epoch in range(order.epochs, member.epochs):
        pieces.append(_shuffle_epoch(epoch, member, order, config))
    if len(pieces) == 1:
        return pieces[0]  # np.concatenate would copy it

    # Together, the epochs may have so many samples that their numbers need int64.
    return _RunOrder(
        document_index=np.concatenate([piece.document_index for piece in pieces]),
        samples=np.concatenate(
            [piece.samples for piece in pieces], dtype=shuffle_dtype(member.samples_built)
        ),
    )


def _shuffle_first_phase(member: MemberPlan, order: Order, config: NanosetConfig) -> _RunOrder:
    """Shuffle the epochs of a dataset as the trainer does: first documents, and then samples.

    These are the epochs that a run needed before it continued with another blend, in its *first
    phase*. Further epochs follow after them.

    Args:
        member: Plan of the dataset's part of the split.
        order: How many epochs the first phase had, and whether the last one was shuffled apart from
            the others.
        config: Configuration of this phase.
    """
    # The trainer uses one random state for both, so the order of these two calls matters.
    state = np.random.RandomState(config.random_seed)
    document_index = build_document_index(
        order.rows,
        order.epochs,
        state,
        separate_last_epoch=order.separate_last_epoch,
        shuffle=config.shuffle_documents,
    )

    n_samples = config.samples_in(order.epochs * member.tokens)
    n_shuffled_first = n_samples
    if order.separate_last_epoch:
        n_shuffled_first = config.samples_in((order.epochs - 1) * member.tokens)
    samples = build_shuffle_index(n_samples, n_shuffled_first, state)
    return _RunOrder(document_index, samples)


def _shuffle_epoch(
    epoch: int, member: MemberPlan, order: Order, config: NanosetConfig
) -> _RunOrder:
    """Shuffle one more epoch of a dataset, for a run that continues with another blend.

    The epochs that it needed at first, in its *first phase*, are shuffled together. Each further
    one has a seed of its own, so that its order does not depend on how many epochs follow.

    Args:
        epoch: Number of the epoch, from 0 on: 2 if the first phase had two epochs.
        member: Plan of the dataset's part of the split.
        order: How earlier phases read the dataset.
        config: Configuration of this phase.

    Returns:
        The sequences of this epoch in their new order, and the numbers of its samples in theirs.
    """
    state = np.random.RandomState([config.random_seed, epoch])
    document_index = build_document_index(
        order.rows, 1, state, separate_last_epoch=False, shuffle=config.shuffle_documents
    )

    # The samples that end in this epoch. For example, one epoch has 4 samples and two have 9: those
    # of the second epoch are 4 to 8.
    start = config.samples_in(epoch * member.tokens)  # 4
    stop = config.samples_in((epoch + 1) * member.tokens)  # 9
    n_samples = stop - start
    shuffled = build_shuffle_index(n_samples, n_samples, state)  # such as [3, 0, 4, 2, 1]
    samples = shuffled.astype(shuffle_dtype(stop))
    samples += samples.dtype.type(start)  # [7, 4, 8, 6, 5]
    return _RunOrder(document_index, samples)


def other_versions(orders: Mapping[str, Order], prefixes: Mapping[str, str]) -> dict[str, str]:
    """Return the corpora whose dataset has changed since a run read it, before it was stopped.

    Each build of a corpus is stored as a version, in a folder of its own: ".../web/1a2b/web" and
    ".../web/3c4d/web" are two versions of one dataset.

    Args:
        orders: Prefix → how earlier phases read the dataset. If they read several versions of a
            dataset, the last one counts.
        prefixes: Corpus → prefix of the current version of its dataset.

    Returns:
        Corpus → prefix of the version that earlier phases read, if it is not the current one.
    """
    read_prefix_by_folder = {_folder_of_versions(prefix): prefix for prefix in orders}
    outdated = {}
    for corpus, current_prefix in prefixes.items():
        if current_prefix in orders:
            continue  # they read the current version
        read_prefix = read_prefix_by_folder.get(_folder_of_versions(current_prefix))
        if read_prefix is not None:
            outdated[corpus] = read_prefix
    return outdated


def _folder_of_versions(prefix: str) -> str:
    """Return the folder that contains all versions of a dataset.

    For example, ".../dataset/web/1a2b/web" is a version, and the folder is ".../dataset/web".

    Args:
        prefix: Path of one version without .bin and .idx.
    """
    return prefix.rsplit("/", 2)[0]
