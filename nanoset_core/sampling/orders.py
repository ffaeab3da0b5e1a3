"""Orders that go on: one order of a dataset's sequences and samples for all phases of a run.

The first phase that reads a dataset has the trainer's own order of the epochs that it needs. Each epoch behind these is
shuffled by itself, so that what comes first stays the same, however many phases follow. A later phase gets the whole
order, and a shuffle index that begins where the phases before it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.blending import samples_taken
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.document_index import build_document_index
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.shuffle_index import build_shuffle_index, shuffle_dtype


@dataclass(frozen=True, slots=True)
class Read:
    """Samples of an earlier phase that a run has consumed."""

    plan: SplitPlan
    """Of its train split."""
    config: NanosetConfig
    """What it was built with."""
    end: int
    """Position in the split behind the last one."""
    before: int = 0
    """The run's samples in front of the split's first one."""


def orders_after(read: Read, *, exact: bool = True) -> dict[str, Order]:
    """Return how far a run has read each dataset, of this phase and of those before it: prefix → order.

    Args:
        read: what was read of the last phase.
        exact: False gives counts within a sample or two, without walking the blend.

    Raises:
        ConfigError: fewer samples were consumed than were before this phase, or more than it has.
    """
    plan, begin = read.plan, read.config.consumed_samples
    if not begin <= read.end <= plan.samples:
        what, expected = (
            "a run of this nanoset cannot have consumed these samples",
            f"{read.before + begin:,} to {read.before + plan.samples:,}",
        )
        raise ConfigError(what, where="consumed_samples", found=f"{read.before + read.end:,}", expected=expected)
    orders = dict(read.config.orders)
    for member, count in zip(plan.members, taken_of(plan, begin, read.end, exact=exact), strict=True):
        before = orders.get(member.prefix)
        first = member.order or Order(0, member.rows, member.epochs, member.separate_last_epoch)
        taken = (0 if before is None else before.taken) + count
        orders[member.prefix] = Order(taken, first.rows, first.epochs, first.separate_last_epoch)
    return orders


def taken_of(plan: SplitPlan, begin: int, end: int, *, exact: bool) -> Sequence[int]:
    """Return how many samples the positions from `begin` to `end` (excl) of a split take of each dataset."""
    if plan.blend is None:
        return [end - begin]
    weights, whole = plan.blend.weights, float(sum(plan.blend.weights)) if plan.blend.exhaustive else 1.0
    return samples_taken(tuple(weight / whole for weight in weights), begin, end, exact=exact)


def build_ordered(
    member: MemberPlan, order: Order, config: NanosetConfig
) -> tuple[NDArray[np.int32], NDArray[np.uint32] | NDArray[np.int64]]:
    """Return (document index of the whole order, shuffle index that goes on where earlier phases stopped).

    The positions before `member.begin`, which no trainer that goes on reads, hold samples that were read before.
    """
    state, tokens, shuffle = np.random.RandomState(config.random_seed), member.tokens, config.shuffle_documents
    apart = order.separate_last_epoch
    documents = [build_document_index(order.rows, order.epochs, state, separate_last_epoch=apart, shuffle=shuffle)]
    drawn = config.samples_in(order.epochs * tokens)
    first = config.samples_in((order.epochs - 1) * tokens) if apart else drawn
    whole = np.empty(member.samples_built, shuffle_dtype(member.samples_built))
    whole[:drawn] = build_shuffle_index(drawn, first, state)
    for epoch in range(order.epochs, member.epochs):
        state = np.random.RandomState([config.random_seed, epoch])
        documents.append(build_document_index(order.rows, 1, state, separate_last_epoch=False, shuffle=shuffle))
        end = config.samples_in((epoch + 1) * tokens)
        whole[drawn:end] = build_shuffle_index(end - drawn, end - drawn, state)
        whole[drawn:end] += whole.dtype.type(drawn)
        drawn = end
    left = whole[order.taken :]
    if member.begin:
        left = np.concatenate([np.resize(whole[: max(order.taken, 1)], member.begin), left])
    return documents[0] if len(documents) == 1 else np.concatenate(documents), left[: member.samples_given]


def other_versions(orders: Mapping[str, Order], prefixes: Mapping[str, str]) -> dict[str, str]:
    """Return corpus → the prefix of another version of its dataset that was read before; `prefixes`: those of now."""
    known = {prefix.rsplit("/", 2)[0]: prefix for prefix in orders}
    now = {corpus: prefix.rsplit("/", 2)[0] for corpus, prefix in prefixes.items()}
    return {
        corpus: known[folder] for corpus, folder in now.items() if prefixes[corpus] not in orders and folder in known
    }
