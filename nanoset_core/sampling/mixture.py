"""Compute the weights of a mixture: a tree of corpora with shares, floors, caps and targets.

Trainers know only flat weights. In nanoset.yaml a mixture is a tree, whose parts are corpora or
groups of parts:

    mix:
      english: {share: 0.6, mix: {web: 3, books: {share: 1, max_epochs: 2}}}
      math: {tokens: 20e9}
      code: {share: 0.3}

All amounts here are shares of the samples of train, from 0 to 1. They are computed in two passes:

1. From the corpora to the root: which amounts can each part have? A target (`tokens`, `epochs`)
   fixes the amount of a part, and `max_epochs` limits it.
2. From the root to the corpora: the amount of a group, less the targets within it, is divided among
   its other parts in proportion to their shares. If that is outside of a part's bounds, the part
   gets its bound, and the others share the rest (`bounded_division.py`).

If train takes 100e9 tokens in the example, and books have 5e9:

1. math has the target 0.2. books can have at most 0.1, which is two epochs.
2. The root leaves 0.8 for english and code, whose shares are 2 to 1: 0.533 and 0.267. english is
   divided 3 to 1, which would be 0.4 and 0.133. That is too much for books: they get 0.1, and web
   gets the rest, 0.433.

The weights are 0.433 for web, 0.1 for books, 0.2 for math and 0.267 for code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nanoset_core.errors import InputError
from nanoset_core.sampling.bounded_division import Bounds, divide_within_bounds
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.epoch_limits import most_samples
from nanoset_core.sampling.mix_tree import MixPart
from nanoset_core.sampling.split_data import LengthReader, SplitData
from nanoset_core.sampling.splits import SPLITS, SplitName, plain_sum

_TOLERANCE = 1e-9
"""Amounts that differ by less are equal: it is less than a sample of any run."""
_ROUNDING_SAMPLES = 0.001
"""Samples by which amounts in epochs are lowered, since trainers round samples up."""
_TOO_MUCH_REMEDY = (
    "raise max_share or max_epochs, add text or parts, or request less of it, or fewer samples"
)
_TOO_LITTLE_REMEDY = (
    "lower tokens, epochs or min_share within it, request more of it, or more samples"
)

MixPath = tuple[str, ...]
"""Names from the root of a tree to a part; empty for the root."""


@dataclass(frozen=True, slots=True)
class MixRow:
    """The amount of one part of a mixture, as plans and tables show it."""

    name: str
    """Name of the part in the mixture."""
    depth: int
    """Number of groups around it."""
    asked: float | None
    """Amount that its share would give it without bounds; None if it has tokens or epochs."""
    given: float
    """Amount that it gets."""
    tokens: int | None
    """Tokens that train takes of it; None if no number of samples is requested."""
    epochs: float | None
    """How often train reads it; for a group, the average. None if no number of samples is
    requested.
    """
    decided_by: str
    """Key that decides its amount: its own, or `temperature` of the group around it.

    It is "size" if the amount is in proportion to the tokens of siblings, and "its parts" if parts
    within a group decide it.
    """


@dataclass(frozen=True, slots=True)
class Mixture:
    """The weights of a mixture, and how they come about."""

    weights: tuple[float, ...]
    """Weight of each corpus, in the order written; their sum is 1."""
    rows: tuple[MixRow, ...]
    """The parts in the order written, each followed by the parts within it."""


def mixture_of(mix: MixPart, config: NanosetConfig, reader: LengthReader | None = None) -> Mixture:
    """Compute the weight of each corpus of a mixture, a tree of corpora and groups of corpora.

    For example, a group has half of train, and its corpora the shares 3 and 1: their weights are
    0.375 and 0.125. The sizes of the datasets are those in the first split that has a share of the
    data, mostly train.

    Args:
        mix: The whole tree.
        config: Configuration of the nanoset. It has one dataset for each corpus of the tree, in the
            order written.
        reader: Reads the datasets' `.idx` files; share it between nanosets that are planned
            together.

    Raises:
        InputError: A corpus has no tokens in the split, or targets, floors and caps contradict each
            other.
        ConfigError: A boundary of the split is outside of a dataset.
    """
    split = _first_split(config)
    data = SplitData(config, split, reader or LengthReader())
    tokens_by_prefix = data.tokens_by_prefix()
    _check_corpora_have_tokens(mix, tokens_by_prefix, split)

    # The configuration lists the datasets in the order in which the tree has the corpora.
    prefixes = list(tokens_by_prefix)
    prefix_by_path = dict(zip(_corpus_paths(mix, ()), prefixes, strict=True))
    n_samples = _samples_of_phase(config, split)
    return _Mixer(config, prefix_by_path, tokens_by_prefix, n_samples).mix(mix)


def _check_corpora_have_tokens(
    mix: MixPart, tokens_by_prefix: Mapping[str, int], split: SplitName
) -> None:
    """Check that no corpus of a mixture is empty.

    Args:
        mix: The whole tree.
        tokens_by_prefix: Prefix → tokens of each dataset, in the order of the corpora of the tree.
        split: The split that the tokens are of, for the error.

    Raises:
        InputError: A corpus has no tokens in the split.
    """
    for corpus, tokens in zip(mix.corpora, tokens_by_prefix.values(), strict=True):
        if tokens == 0:
            raise InputError(
                f"a corpus of the mixture has no tokens in {split}",
                where="mix",
                found=corpus,
                remedy="leave it out, add text, or change `split`",
            )


def _samples_of_phase(config: NanosetConfig, split: SplitName) -> int | None:
    """Return how many samples this phase of a run reads of a split; None for one epoch."""
    n_samples = config.samples(split)
    if n_samples is None:
        return None
    return n_samples - config.consumed_samples


def _first_split(config: NanosetConfig) -> SplitName:
    """Return the first split that has a share of the data."""
    for split, share in zip(SPLITS, config.shares(), strict=True):
        if share > 0:
            return split
    raise AssertionError("the shares of splits add up to 1")


def _corpus_paths(part: MixPart, path: MixPath) -> list[MixPath]:
    """Return the paths of the corpora within a part, in the order written."""
    if not part.parts:
        return [path]
    paths = []
    for name, child in part.parts.items():
        paths += _corpus_paths(child, (*path, name))
    return paths


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of the tree, with the amounts that it can have: shares of the samples of train."""

    path: MixPath
    """Its path in the tree."""
    part: MixPart
    """The settings of the part."""
    tokens: int
    """Tokens of one epoch."""
    children: tuple[_Node, ...]
    """The parts of a group; empty for a corpus."""
    min_amount: float
    """Smallest amount, so that targets within the part can be reached."""
    max_amount: float
    """Largest amount, so that no corpus is read more often than its `max_epochs`."""
    target: float | None = None
    """Amount that does not depend on its siblings, if it has one."""
    temperature: float | None = None
    """Power of its tokens that is its weight among its siblings if it has no share; None for 1."""

    @property
    def where(self) -> str:
        """The key of the part in the settings of a nanoset, such as "mix.english.books"."""
        return ".".join(("mix", *self.path))

    @property
    def corpora(self) -> list[_Node]:
        """The nodes of all corpora within the part; for a corpus, itself."""
        if not self.children:
            return [self]
        corpora = []
        for child in self.children:
            corpora += child.corpora
        return corpora


class _Allotment(NamedTuple):
    """The amount that a part of the tree gets: a share of the samples of train."""

    node: _Node
    """The part."""
    parent_amount: float
    """Amount of the group around it."""
    amount_by_share: float | None
    """Amount that its share alone would give it; None if it has a target."""
    amount: float
    """Amount that it gets."""


class _Mixer:
    """Divides the samples of train among the parts of a tree.

    Args:
        config: Configuration of the nanoset.
        prefix_by_path: Path of each corpus in the tree → prefix of its dataset.
        tokens_by_prefix: Prefix → tokens that the split has of the dataset.
        samples: Samples of the split that are still to be read; None if no number is requested.
    """

    def __init__(
        self,
        config: NanosetConfig,
        prefix_by_path: Mapping[MixPath, str],
        tokens_by_prefix: Mapping[str, int],
        samples: int | None,
    ) -> None:
        self.config = config
        self.prefix_by_path = prefix_by_path
        self.tokens_by_prefix = tokens_by_prefix
        self.samples = samples

    def mix(self, mix: MixPart) -> Mixture:
        """Return the mixture of a whole tree.

        Raises:
            InputError: No amounts fulfil all targets, floors and caps.
        """
        # First pass, from the corpora to the root: which amounts can each part have?
        root = self._node(mix, path=(), outer_limit=None)
        # Second pass, from the root to the corpora: which amount does each part get?
        allotments = self._divide(root, amount=1.0)

        rows = tuple(self._row(allotment) for allotment in allotments)
        return Mixture(_weights_of_corpora(allotments), rows)

    def _node(self, part: MixPart, path: MixPath, outer_limit: float | None) -> _Node:
        """Return a part of the tree with the smallest and the largest amount that it can have.

        An amount is a share of the samples of train, from 0 to 1.

        Args:
            part: The settings of the part.
            path: Its path in the tree.
            outer_limit: How often train may read corpora of the group around it; None for no limit.

        Raises:
            InputError: Its `tokens` or `epochs` are less or more than it can have.
        """
        # `max_epochs` of the part overrides the limit of the group around it.
        limit = part.inner_limit(outer_limit)
        is_group = bool(part.parts)
        if is_group:
            node = self._group_node(part, path, limit)
        else:
            node = self._corpus_node(part, path, limit)
        if part.has_fixed_amount:
            return _with_target(node, self._target(node))
        return node

    def _group_node(self, part: MixPart, path: MixPath, limit: float | None) -> _Node:
        """Return a group with the smallest and the largest amount that its parts can have together.

        An amount is a share of the samples of train, from 0 to 1. For example, two corpora can have
        at most 0.1 and 0.3: the group can have at most 0.4.

        Args:
            part: The settings of the group.
            path: Its path in the tree.
            limit: How often train may read each of its corpora; None for no limit.
        """
        children = []
        for name, child in part.parts.items():
            node = self._node(child, (*path, name), limit)
            # The setting `temperature` of a group is for its direct parts: it decides their
            # weights.
            children.append(replace(node, temperature=part.temperature))
        return _Node(
            path=path,
            part=part,
            tokens=sum(child.tokens for child in children),
            children=tuple(children),
            # A sum of more than 1 is impossible, and refused later.
            min_amount=plain_sum(child.min_amount for child in children),
            # Each part alone may be able to have all of train, so the sum can exceed 1.
            max_amount=min(plain_sum(child.max_amount for child in children), 1.0),
        )

    def _corpus_node(self, part: MixPart, path: MixPath, limit: float | None) -> _Node:
        """Return a corpus with the smallest and the largest amount that it can have.

        An amount is a share of the samples of train: 1.0 is all of them. For example, the corpus
        has
        100 samples and may be read twice, and train has 1,000 samples. Then it can have 0 to 0.2.

        Args:
            part: The settings of the corpus in the tree.
            path: Its path in the tree.
            limit: How often train may read it, in all phases of the run; None for no limit.
        """
        prefix = self.prefix_by_path[path]
        tokens = self.tokens_by_prefix[prefix]

        max_amount = 1.0
        if limit is not None:
            # What earlier phases of the run read of the corpus counts towards the limit.
            order = self.config.orders.get(prefix)
            samples_before = 0 if order is None else order.taken
            max_amount = self._amount_of_epochs(tokens, limit, samples_before)
        return _Node(path, part, tokens, children=(), min_amount=0.0, max_amount=max_amount)

    def _target(self, node: _Node) -> float:
        """Return the amount that `tokens` or `epochs` demand of a part: a share of train's samples.

        For example, `tokens: 20e9` is 0.2 if train has 100e9 tokens.

        Args:
            node: The part. Its settings have `tokens` or `epochs`; or it is a group, and those of
                all its parts do.
        """
        settings = node.part
        if settings.tokens is not None:
            return self._amount_of_tokens(settings.tokens)
        if settings.epochs is not None:
            return self._amount_of_corpora(node.corpora, settings.epochs)
        targets_of_parts = [child.target for child in node.children if child.target is not None]
        return plain_sum(targets_of_parts)

    def _amount_of_tokens(self, tokens: float) -> float:
        """Return the share of the samples of train that some tokens are."""
        samples = tokens / self.config.step  # samples start `step` tokens apart
        return samples / self._samples_of_train

    def _amount_of_corpora(self, corpora: Sequence[_Node], epochs: float) -> float:
        """Return the share of the samples of train that some epochs of each corpus are.

        What earlier phases of the run took does not count: `epochs` are those of this phase.
        """
        amounts = []
        for corpus in corpora:
            amounts.append(self._amount_of_epochs(corpus.tokens, epochs, samples_before=0))
        return plain_sum(amounts)

    @property
    def _samples_of_train(self) -> int:
        """Number by which samples are divided to get an amount.

        It is 1 if no number of samples is requested. A mixture then has only shares, to which this
        number does not matter.
        """
        return self.samples or 1

    def _amount_of_epochs(self, tokens: int, epochs: float, samples_before: int) -> float:
        """Return which share of the samples of train some epochs of a corpus are.

        For example, 2 epochs of a corpus of 100 samples are 0.2 of 1,000 samples; or 0.15, if
        earlier phases of the run have read 50 of them.

        Args:
            tokens: Tokens of one epoch.
            epochs: Number of epochs.
            samples_before: Samples of these epochs that earlier phases of the run took.
        """
        samples = most_samples(tokens, epochs, self.config) - samples_before
        # Slightly less, since trainers round numbers of samples up.
        return max(samples - _ROUNDING_SAMPLES, 0.0) / self._samples_of_train

    def _divide(self, node: _Node, amount: float) -> list[_Allotment]:
        """Divide the amount of a part among its children, what each gets among its own, and so on.

        Args:
            node: The part. A corpus has no children, which ends the recursion.
            amount: Its amount: a share of the samples of train, from 0 to 1.

        Returns:
            The amounts of all parts within it: its first child, the parts within that, its second
            child, and so on, in the order written.

        Raises:
            InputError: The amounts are impossible, or a part gets nothing.
        """
        allotments = []
        for allotment in self._divide_among_children(node, amount):
            child = allotment.node
            if allotment.amount <= _TOLERANCE:
                raise _nothing_left_error(child, node, amount)
            allotments.append(allotment)
            allotments += self._divide(child, allotment.amount)
        return allotments

    def _divide_among_children(self, node: _Node, amount: float) -> list[_Allotment]:
        """Divide the amount of a group among its direct children, in the order written.

        Some children have a fixed amount, their *target*. The others divide the rest. For example,
        a group has the amount 0.5, and a child has the target 0.2. The others divide 0.3.

        Args:
            node: The group, or a corpus, which has no children.
            amount: Its amount: a share of the samples of train, from 0 to 1.

        Raises:
            InputError: No amounts of the children add up to that of the group.
        """
        if not node.children:
            return []
        allotment_by_path = {}
        for allotment in _divide_by_weight(node, amount):
            allotment_by_path[allotment.node.path] = allotment
        for child in node.children:
            if child.target is not None:
                allotment_by_path[child.path] = _Allotment(
                    node=child, parent_amount=amount, amount_by_share=None, amount=child.target
                )
        return [allotment_by_path[child.path] for child in node.children]

    def _row(self, allotment: _Allotment) -> MixRow:
        """Return the amount of a part of the mixture as plans and tables show it.

        Args:
            allotment: The part, and its amount: a share of the samples of train.
        """
        node = allotment.node
        tokens = self._tokens_of(allotment.amount)  # None if the number of samples is not known
        return MixRow(
            name=node.path[-1],
            depth=len(node.path) - 1,
            asked=allotment.amount_by_share,
            given=allotment.amount,
            tokens=None if tokens is None else round(tokens),
            epochs=None if tokens is None else tokens / node.tokens,
            decided_by=_decided_by(allotment),
        )

    def _tokens_of(self, amount: float) -> float | None:
        """Return the tokens of a share of the samples of train; None if their number is unknown."""
        if self.samples is None:
            return None
        return amount * self.samples * self.config.step


def _weights_of_corpora(allotments: Sequence[_Allotment]) -> tuple[float, ...]:
    """Return the weight of each corpus of a tree: its amount, divided by the sum of all amounts.

    Args:
        allotments: All parts of the tree, in the order written; the parts without parts are the
            corpora.
    """
    amounts = [allotment.amount for allotment in allotments if not allotment.node.children]
    total = plain_sum(amounts)  # 1, except for rounding errors
    return tuple(amount / total for amount in amounts)


def _with_target(node: _Node, target: float) -> _Node:
    """Return a part of a mixture for which only one amount is possible, its target.

    Args:
        node: The part, with the smallest and largest amount that it can have.
        target: The amount that its setting `tokens` or `epochs` demands: a share of the samples of
            train, from 0 to 1.

    Raises:
        InputError: The amount is less or more than the part can have.
    """
    if not _is_within(target, node.min_amount, node.max_amount):
        raise _impossible_mixture(
            node,
            found=f"its tokens or epochs are {100 * target:.4g}% of train",
            amount=target,
            minimum=node.min_amount,
            maximum=node.max_amount,
        )
    return replace(node, min_amount=target, max_amount=target, target=target)


def _divide_by_weight(node: _Node, amount: float) -> list[_Allotment]:
    """Divide what the fixed amounts leave of a group's amount among its other parts.

    For example, parts of the weights 2 and 1 divide 0.3: they get 0.2 and 0.1. If the first may
    have at most 0.15, both get 0.15.

    Args:
        node: The group. Its parts with a `target` have a fixed amount.
        amount: Its amount: a share of the samples of train, from 0 to 1.

    Returns:
        The amounts of the parts without a target.

    Raises:
        InputError: The parts can only have more or less than that.
    """
    targets = [child.target for child in node.children if child.target is not None]
    rest = amount - plain_sum(targets)
    children = [child for child in node.children if child.target is None]
    bounds = [_bounds(child, amount) for child in children]
    _check_rest(node, children, bounds, rest)
    if not children:
        return []

    weights = [_weight(child) for child in children]
    weight_sum = plain_sum(weights)
    child_amounts = divide_within_bounds(weights, bounds, rest)
    allotments = []
    for child, weight, child_amount in zip(children, weights, child_amounts, strict=True):
        without_bounds = rest * weight / weight_sum
        allotments.append(_Allotment(child, amount, without_bounds, child_amount))
    return allotments


def _nothing_left_error(node: _Node, parent: _Node, parent_amount: float) -> InputError:
    """Return the error for a part that gets nothing of the amount of the group around it."""
    return InputError(
        "nothing is left for a part of the mixture",
        where=node.where,
        found=f"{parent.where} has {100 * parent_amount:.4g}% of train",
        remedy="lower the others, or leave it out",
    )


def _weight(node: _Node) -> float:
    """Return the weight of a part among the parts of its group: its share, or else its tokens.

    With a temperature, it is a power of its tokens: for 0.5, a corpus with 100 times the tokens of
    another one has 10 times its weight. Multilingual training does this (Conneau and Lample, 2019,
    section 3.1, https://arxiv.org/abs/1901.07291, where the temperature is called α).
    """
    if node.part.share is not None:
        return node.part.share
    if node.temperature is None:
        return float(node.tokens)
    # Weights decide digests, and powers may differ in the last digit between machines.
    power = math.pow(node.tokens, node.temperature)
    return float(f"{power:.12g}")


def _bounds(node: _Node, parent_amount: float) -> Bounds:
    """Return the smallest and largest amount that a part can have within its group.

    For example, the group has 0.5 of train, and the part `max_share: 0.4`: it gets at most 0.2, or
    less if its corpora are too small for that.

    Args:
        node: The part, with the amounts that its corpora allow.
        parent_amount: Amount of the group around it.
    """
    min_share = node.part.min_share or 0.0
    max_share = 1.0 if node.part.max_share is None else node.part.max_share
    floor = max(min_share * parent_amount, node.min_amount)
    cap = min(max_share * parent_amount, node.max_amount)
    return Bounds(floor, cap)


def _check_rest(
    node: _Node, parts_with_shares: Sequence[_Node], bounds: Sequence[Bounds], rest: float
) -> None:
    """Check that the parts of a group that have shares can divide what the other parts leave.

    For example, one part has a fixed amount of 0.4 of train, which leaves 0.6. The other parts can
    have 0.1 to 0.2 and 0 to 0.3, together at most 0.5, so that is an error.

    Args:
        node: The group.
        parts_with_shares: Its parts without a fixed amount.
        bounds: Smallest and largest amount of each of these parts, as shares of train.
        rest: The amount that they have to divide.

    Raises:
        InputError: A part needs more than it may have; or the rest is less than the parts need, or
            more than they may have.
    """
    for child, bound in zip(parts_with_shares, bounds, strict=True):
        _check_bounds(child, bound)

    floor_sum = plain_sum(bound.floor for bound in bounds)
    cap_sum = plain_sum(bound.cap for bound in bounds)
    if _is_within(rest, floor_sum, cap_sum):
        return
    if parts_with_shares:
        found = f"its parts without tokens and epochs share {100 * rest:.4g}% of train"
    else:
        found = f"no part is left for {100 * rest:.4g}% of train"
    raise _impossible_mixture(node, found, amount=rest, minimum=floor_sum, maximum=cap_sum)


def _check_bounds(node: _Node, bounds: Bounds) -> None:
    """Check that a part can have some amount: the smallest one must not exceed the largest.

    Raises:
        InputError: The part needs more than it may have.
    """
    if bounds.floor > bounds.cap + _TOLERANCE:
        raise _impossible_mixture(
            node,
            found=f"floors within are {100 * bounds.floor:.4g}% of train",
            amount=bounds.floor,
            minimum=0.0,
            maximum=bounds.cap,
        )


def _is_within(amount: float, minimum: float, maximum: float) -> bool:
    """Return whether an amount is from `minimum` to `maximum`, except for rounding errors."""
    return minimum - _TOLERANCE <= amount <= maximum + _TOLERANCE


def _impossible_mixture(
    node: _Node, found: str, amount: float, minimum: float, maximum: float
) -> InputError:
    """Return the error for a part whose amount is less or more than is possible.

    Args:
        node: The part.
        found: What the amount is, for the message.
        amount: The amount, as a fraction of train.
        minimum: Smallest possible amount.
        maximum: Largest possible amount.
    """
    return InputError(
        "the mixture is impossible",
        where=node.where,
        found=found,
        expected=f"{100 * minimum:.4g}% to {100 * maximum:.4g}%",
        remedy=_TOO_MUCH_REMEDY if amount > maximum else _TOO_LITTLE_REMEDY,
    )


def _decided_by(allotment: _Allotment) -> str:
    """Return which key of nanoset.yaml decides the amount of a part of a mixture, for tables.

    A part with `tokens` or `epochs` has a fixed amount. Others are at a bound, such as `max_share`,
    or in proportion to the share or the size of their siblings.

    Returns:
        Name of the key: `tokens`, `epochs`, `min_share`, `max_share`, `max_epochs`, `share` or
        `temperature`. Or "size", if its tokens are its weight, or "its parts", if keys of the parts
        within it decide.
    """
    settings = allotment.node.part
    if allotment.node.target is not None:
        return _key_of_target(settings)
    key_of_bound = _key_of_bound(allotment)
    if key_of_bound is not None:
        return key_of_bound
    if settings.share is not None:
        return "share"
    return "size" if allotment.node.temperature is None else "temperature"


def _key_of_target(settings: MixPart) -> str:
    """Return which key fixes the amount of a part; "its parts" if all parts within it have one."""
    if settings.tokens is not None:
        return "tokens"
    if settings.epochs is not None:
        return "epochs"
    return "its parts"


def _key_of_bound(allotment: _Allotment) -> str | None:
    """Return which key sets the bound at which the amount of a part is; None if it is at no bound.

    For example, the group has 0.5 of train, and the part `max_share: 0.4` and the amount 0.2: it is
    at the bound of `max_share`. `_bounds` computes bounds in the same way, so an amount at a bound
    equals it without rounding errors.
    """
    node = allotment.node
    settings = node.part
    amount = allotment.amount
    if settings.min_share and amount == settings.min_share * allotment.parent_amount:
        return "min_share"
    if settings.max_share is not None and amount == settings.max_share * allotment.parent_amount:
        return "max_share"
    # The largest amount is 1, all of train, unless `max_epochs` of the part or within it is less.
    if amount == node.max_amount < 1.0:
        return "max_epochs"
    # The smallest amount of a group is what the parts within it need.
    if amount == node.min_amount:
        return "its parts"
    return None
