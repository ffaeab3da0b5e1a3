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
    """Key that decides its amount; "size" if the amount is in proportion to the tokens of siblings,
    and "its parts" if parts within a group decide it.
    """


@dataclass(frozen=True, slots=True)
class Mixture:
    """The weights of a mixture, and how they come about."""

    weights: tuple[float, ...]
    """Weight of each corpus, in the order written; their sum is 1."""
    rows: tuple[MixRow, ...]
    """The parts in the order written, each followed by the parts within it."""


def mixture_of(mix: MixPart, config: NanosetConfig, reader: LengthReader | None = None) -> Mixture:
    """Compute the weights of a mixture for the datasets of a nanoset.

    The sizes of the datasets are those of train, or, if train has no share of the data, of the next
    split that has.

    Args:
        mix: The whole tree.
        config: Configuration of the nanoset. It has one dataset for each corpus of the tree, in the
            order written.
        reader: Reads the datasets' `.idx` files; share it between nanosets that are planned
            together.

    Raises:
        InputError: A corpus has no tokens in the split, or targets, floors and caps contradict each
            other.
        ConfigError: The split starts outside of a dataset.
    """
    split = _first_split(config)
    data = SplitData(config, split, reader or LengthReader())

    # Corpora and datasets have the same order, so they are matched by their positions.
    tokens_by_prefix = data.tokens_by_prefix()
    for corpus, tokens in zip(mix.corpora, tokens_by_prefix.values(), strict=True):
        if tokens == 0:
            raise InputError(
                f"a corpus of the mixture has no tokens in {split}",
                where="mix",
                found=corpus,
                remedy="leave it out, add text, or change `split`",
            )
    corpus_paths = _corpus_paths(mix, ())
    prefix_by_path = dict(zip(corpus_paths, tokens_by_prefix.keys(), strict=True))

    # Samples that this phase of a run reads; None for one epoch.
    n_samples = config.samples(split)
    if n_samples is not None:
        n_samples -= config.consumed_samples
    return _Mixer(config, prefix_by_path, tokens_by_prefix, n_samples).mix(mix)


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

        # The parts without parts are the corpora.
        amounts = [allotment.amount for allotment in allotments if not allotment.node.children]
        total = plain_sum(amounts)
        weights = tuple(amount / total for amount in amounts)
        rows = tuple(self._row(allotment) for allotment in allotments)
        return Mixture(weights, rows)

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
        if not part.has_fixed_amount:
            return node

        # `tokens` or `epochs` leave only one amount, which is then the smallest and the largest.
        target = self._target(node)
        if not _is_within(target, node.min_amount, node.max_amount):
            raise _impossible_mixture(
                node,
                found=f"its tokens or epochs are {100 * target:.4g}% of train",
                amount=target,
                minimum=node.min_amount,
                maximum=node.max_amount,
            )
        return replace(node, min_amount=target, max_amount=target, target=target)

    def _group_node(self, part: MixPart, path: MixPath, limit: float | None) -> _Node:
        """Return a group with the smallest and the largest amount that its parts can have together.

        An amount is a share of the samples of train, from 0 to 1.

        Args:
            part: The settings of the group.
            path: Its path in the tree.
            limit: How often train may read each of its corpora; None for no limit.
        """
        children = []
        for name, child in part.parts.items():
            children.append(self._node(child, (*path, name), limit))

        # Each part alone may be able to have all of train, so the sum can exceed 1.
        max_amount = min(plain_sum(child.max_amount for child in children), 1.0)
        # This sum is not limited: if it exceeds 1, the mixture is impossible, and refused later.
        min_amount = plain_sum(child.min_amount for child in children)
        return _Node(
            path=path,
            part=part,
            tokens=sum(child.tokens for child in children),
            children=tuple(children),
            min_amount=min_amount,
            max_amount=max_amount,
        )

    def _corpus_node(self, part: MixPart, path: MixPath, limit: float | None) -> _Node:
        """Return a corpus with the smallest and the largest amount that it can have.

        An amount is a share of the samples of train: 1.0 is all of them.

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
        """Return the fixed amount of a part: a share of the samples of train, from 0 to 1.

        Args:
            node: The part. Its settings have `tokens` or `epochs`; or it is a group, and those of
                all its parts do.
        """
        settings = node.part
        if settings.tokens is not None:
            # Samples start `step` tokens apart.
            samples = settings.tokens / self.config.step
            return samples / self._samples_of_train

        # A group is read some epochs if each of its corpora is. What earlier phases of the run took
        # does not count: the setting is for this phase.
        if settings.epochs is not None:
            amounts = []
            for corpus in node.corpora:
                amount = self._amount_of_epochs(corpus.tokens, settings.epochs, samples_before=0)
                amounts.append(amount)
            return plain_sum(amounts)

        # A group whose parts all have fixed amounts.
        return plain_sum(child.target or 0.0 for child in node.children)

    @property
    def _samples_of_train(self) -> int:
        """Number by which samples are divided to get an amount.

        It is 1 if no number of samples is requested. A mixture then has only shares, to which this
        number does not matter.
        """
        return self.samples or 1

    def _amount_of_epochs(self, tokens: int, epochs: float, samples_before: int) -> float:
        """Return the amount of a number of epochs of a corpus, without what was read before.

        Args:
            tokens: Tokens of one epoch.
            epochs: Number of epochs.
            samples_before: Samples of these epochs that earlier phases of the run took.
        """
        samples = most_samples(tokens, epochs, self.config) - samples_before
        return max(samples - _ROUNDING_SAMPLES, 0.0) / self._samples_of_train

    def _divide(self, node: _Node, amount: float) -> list[_Allotment]:
        """Divide the amount of a part among all parts within it.

        Args:
            node: The part.
            amount: Its amount.

        Returns:
            The parts in the order written, each followed by the parts within it; none for a corpus.

        Raises:
            InputError: The amounts are impossible, or a part gets nothing.
        """
        allotments = []
        for allotment in self._divide_among_children(node, amount):
            child = allotment.node
            if allotment.amount <= _TOLERANCE:
                raise InputError(
                    "nothing is left for a part of the mixture",
                    where=child.where,
                    found=f"{node.where} has {100 * amount:.4g}% of train",
                    remedy="lower the others, or leave it out",
                )
            allotments.append(allotment)
            allotments += self._divide(child, allotment.amount)
        return allotments

    def _divide_among_children(self, node: _Node, amount: float) -> list[_Allotment]:
        """Divide the amount of a group among its direct children, in the order written.

        Some children have a fixed amount, their *target*. The others divide the rest in proportion
        to their weights, unless that is outside of their bounds. For example, a group has the
        amount 0.5, and a child has the target 0.2. Two children of the weights 2 and 1 divide 0.3:
        they get 0.2 and 0.1. If the first may have at most 0.15, both get 0.15.

        Args:
            node: The group, or a corpus, which has no children.
            amount: Its amount: a share of the samples of train, from 0 to 1.

        Raises:
            InputError: No amounts of the children add up to that of the group.
        """
        if not node.children:
            return []

        # Divide what the targets leave.
        rest = amount - plain_sum(child.target or 0.0 for child in node.children)
        sharing = [child for child in node.children if child.target is None]
        weights = [_weight(child) for child in sharing]
        bounds = [_bounds(child, amount) for child in sharing]
        _check_rest(node, sharing, bounds, rest)
        child_amounts = []
        if sharing:
            child_amounts = divide_within_bounds(weights, bounds, rest)

        # Collect both kinds of children by their paths.
        allotment_by_path = {}
        weight_sum = plain_sum(weights)
        for child, weight, child_amount in zip(sharing, weights, child_amounts, strict=True):
            allotment_by_path[child.path] = _Allotment(
                node=child,
                parent_amount=amount,
                amount_by_share=rest * weight / weight_sum,  # without bounds
                amount=child_amount,
            )
        for child in node.children:
            if child.target is not None:
                allotment_by_path[child.path] = _Allotment(
                    node=child, parent_amount=amount, amount_by_share=None, amount=child.target
                )
        # Return them in the order written.
        return [allotment_by_path[child.path] for child in node.children]

    def _row(self, allotment: _Allotment) -> MixRow:
        """Return the amount of a part as plans and tables show it."""
        node = allotment.node
        tokens = None
        epochs = None
        if self.samples is not None:
            exact_tokens = allotment.amount * self.samples * self.config.step
            tokens = round(exact_tokens)
            epochs = exact_tokens / node.tokens
        return MixRow(
            name=node.path[-1],
            depth=len(node.path) - 1,
            asked=allotment.amount_by_share,
            given=allotment.amount,
            tokens=tokens,
            epochs=epochs,
            decided_by=_decided_by(allotment),
        )


def _weight(node: _Node) -> float:
    """Return the weight of a part among its siblings: its share, or by default its tokens."""
    return float(node.tokens) if node.part.share is None else node.part.share


def _bounds(node: _Node, parent_amount: float) -> Bounds:
    """Return the smallest and largest amount that a part can have within its parent.

    They follow from its `min_share` and `max_share`, and from the parts within it.
    """
    min_share = node.part.min_share or 0.0
    max_share = 1.0 if node.part.max_share is None else node.part.max_share
    floor = max(min_share * parent_amount, node.min_amount)
    cap = min(max_share * parent_amount, node.max_amount)
    return Bounds(floor, cap)


def _check_rest(
    node: _Node, sharing: Sequence[_Node], bounds: Sequence[Bounds], rest: float
) -> None:
    """Check that the parts of a group that have shares can divide what the other parts leave.

    The other parts have a fixed amount, given by `tokens` or `epochs`. For example, if one part
    has 40% of train, the rest of 60% must be possible for the parts with shares.

    Args:
        node: The group.
        sharing: Its parts with shares.
        bounds: Smallest amount, `floor`, and largest amount, `cap`, of each of these parts. Amounts
            are shares of train, from 0 to 1.
        rest: The amount that they have to divide.

    Raises:
        InputError: A part needs more than it may have; or the rest is less than the parts need, or
            more than they may have.
    """
    # Each part must be able to have some amount.
    for child, bound in zip(sharing, bounds, strict=True):
        if bound.floor > bound.cap + _TOLERANCE:
            raise _impossible_mixture(
                child,
                found=f"floors within are {100 * bound.floor:.4g}% of train",
                amount=bound.floor,
                minimum=0.0,
                maximum=bound.cap,
            )

    # Their amounts must be able to add up to the rest.
    floor_sum = plain_sum(bound.floor for bound in bounds)
    cap_sum = plain_sum(bound.cap for bound in bounds)
    if not _is_within(rest, floor_sum, cap_sum):
        if sharing:
            found = f"its parts without tokens and epochs share {100 * rest:.4g}% of train"
        else:
            found = f"no part is left for {100 * rest:.4g}% of train"
        raise _impossible_mixture(
            node, found=found, amount=rest, minimum=floor_sum, maximum=cap_sum
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
    """Return which key of nanoset.yaml decides the amount of a part, for `MixRow.decided_by`.

    Returns:
        Name of the key. "size" if the part has no share: its tokens are its weight. "its parts" if
        the parts within it decide the amount.
    """
    node = allotment.node
    settings = node.part

    # The amount is fixed by the settings of the part, or of all parts within it.
    if node.target is not None:
        if settings.tokens is not None:
            return "tokens"
        if settings.epochs is not None:
            return "epochs"
        return "its parts"

    # The amount is at a bound. Then both are equal, without rounding errors: `_bounds` computes the
    # bound in the same way.
    amount = allotment.amount
    if settings.min_share and amount == settings.min_share * allotment.parent_amount:
        return "min_share"
    if settings.max_share is not None and amount == settings.max_share * allotment.parent_amount:
        return "max_share"
    # The largest amount is 1, all of train, unless `max_epochs` of the part or within it is less.
    is_limited_by_epochs = node.max_amount < 1.0
    if is_limited_by_epochs and amount == node.max_amount:
        return "max_epochs"
    # The smallest amount of a group is what the parts within it need.
    if amount == node.min_amount:
        return "its parts"

    # The amount is in proportion to that of the siblings.
    return "size" if settings.share is None else "share"
