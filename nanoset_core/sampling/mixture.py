"""Compute the weights of a mixture: a tree of corpora with shares, floors, caps and targets.

Trainers know only flat weights. A mixture is written as a tree, whose parts are corpora or groups
of parts:

    mix:
      english: {share: 0.6, mix: {web: 3, books: {share: 1, max_epochs: 2}}}
      math: {tokens: 20e9}
      code: {share: 0.3}

All amounts here are shares of the samples of train, from 0 to 1. The tree is worked out in two
passes:

1. From the corpora up: which amounts can each part have? A target (`tokens`, `epochs`) fixes the
   amount of a part, and `max_epochs` limits it.
2. From the root down: the amount of a group, less the targets within it, is divided among its other
   parts in proportion to their shares. If that is outside of a part's bounds, the part gets its
   bound, and the others share the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

from nanoset_core.errors import InputError
from nanoset_core.records.settings import Range
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.epoch_limits import most_samples
from nanoset_core.sampling.split_data import LengthReader, SplitData
from nanoset_core.sampling.splits import SPLITS, plain_sum

_TOLERANCE = 1e-9
"""Difference of amounts up to which they are the same: less than a sample of any run."""
_ROUNDING_SAMPLES = 0.001
"""Samples by which amounts in epochs are lowered, since trainers round samples up."""
_TOO_MUCH = (
    "raise max_share or max_epochs, add text or parts, or ask for less of it, or for fewer samples"
)
_TOO_LITTLE = "lower tokens, epochs or min_share within it, ask for more of it, or for more samples"

MixPath = tuple[str, ...]
"""Names from the root of a tree to a part."""
Share = Annotated[float, Range(1e-9, 1e9)]
Part = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, slots=True)
class MixPart:
    """A corpus or view, by its name; or, with `mix`, a group of them, by any name."""

    share: Share | None = None
    """Its weight among its siblings. They divide what `tokens` and `epochs` leave of their parent.
    A number in place of the keys is the share. Without shares, siblings are read in proportion to
    their tokens."""
    tokens: Annotated[float, Range(1, 1e15)] | None = None
    """Tokens that train takes of it, in place of a share."""
    epochs: Annotated[float, Range(0.001, 1e6)] | None = None
    """How often train reads it, in place of a share."""
    max_epochs: Annotated[float, Range(0.001, 1e6)] | None = None
    """How often train may read each of its corpora."""
    min_share: Part | None = None
    """Its smallest share of its parent."""
    max_share: Part | None = None
    """Its largest share of its parent."""
    mix: Mapping[str, MixPart | Share] | None = None
    """The parts of the group."""

    @property
    def parts(self) -> dict[str, MixPart]:
        """Its parts by name; a corpus has none."""
        parts = {}
        for name, part in (self.mix or {}).items():
            parts[name] = MixPart(part) if isinstance(part, float) else part
        return parts

    @property
    def is_given(self) -> bool:
        """Whether its amount does not depend on its siblings: it, or each of its parts, has
        `tokens` or `epochs`.
        """
        if self.tokens is not None or self.epochs is not None:
            return True
        if self.share is not None or self.min_share is not None or self.max_share is not None:
            return False
        return bool(self.mix) and all(part.is_given for part in self.parts.values())

    @property
    def corpora(self) -> tuple[str, ...]:
        """Corpora and views, in the order written."""
        corpora: list[str] = []
        for name, part in self.parts.items():
            if part.mix is None:
                corpora.append(name)
            else:
                corpora += part.corpora
        return tuple(corpora)

    def epoch_limits(self, limit: float | None = None) -> dict[str, float]:
        """Return corpus or view → how often train may read it; those without a limit are left out.

        Args:
            limit: The limit of the group that the part is in.
        """
        limits: dict[str, float] = {}
        limit = _inner_limit(self, limit)
        for name, part in self.parts.items():
            part_limit = _inner_limit(part, limit)
            if part.mix is not None:
                limits |= part.epoch_limits(limit)
            elif part_limit is not None:
                limits[name] = part_limit
        return limits

    def to_json(self) -> dict[str, Any]:
        """Return plain types, without keys that are not set."""
        values = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                values[field.name] = value
        if self.mix:
            values["mix"] = {name: part.to_json() for name, part in self.parts.items()}
        return values


@dataclass(frozen=True, slots=True)
class MixRow:
    """What a part of a mixture gets."""

    name: str
    """Its name in the mixture."""
    depth: int
    """Number of groups around it."""
    asked: float | None
    """Amount that its share alone would give it, in what its group has; None if it has tokens or
    epochs.
    """
    given: float
    """Amount that it gets."""
    tokens: int | None
    """Tokens that train takes of it; None if no number of samples is requested."""
    epochs: float | None
    """How often train reads it, a group on average."""
    decided_by: str
    """Key that decides its amount; "size" if this is its tokens, in proportion to those of its
    siblings.
    """


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of datasets of known sizes."""

    weights: tuple[float, ...]
    """Weight of each corpus, in the order written; their sum is 1."""
    rows: tuple[MixRow, ...]
    """Each part, followed by the parts within it."""


def mixture_of(mix: MixPart, config: NanosetConfig, reader: LengthReader | None = None) -> Mixture:
    """Work out a mixture for the train split, or, if that has no share of the data, for the next
    one that has.

    Args:
        mix: The whole tree.
        config: Configuration whose datasets are those of the tree's corpora, in the order written.
        reader: Shared by nanosets that are planned with the same datasets.

    Raises:
        InputError: A corpus has no tokens in the split, or targets, floors and caps contradict each
            other.
        ConfigError: The split starts outside of a dataset.
    """
    share_by_split = dict(zip(SPLITS, config.shares(), strict=True))
    split = next(split for split, share in share_by_split.items() if share > 0)
    tokens_by_prefix = SplitData(config, split, reader or LengthReader()).tokens_by_prefix()
    for corpus, tokens in zip(mix.corpora, tokens_by_prefix.values(), strict=True):
        if tokens == 0:
            raise InputError(
                f"a corpus of the mixture has no tokens in {split}",
                where="mix",
                found=corpus,
                remedy="leave it out, add text, or change `split`",
            )

    samples = config.samples(split)
    if samples is not None:
        samples -= config.consumed_samples
    paths = _corpus_paths(mix, ())
    prefix_by_path = dict(zip(paths, tokens_by_prefix, strict=True))
    return _Mixer(config, prefix_by_path, tokens_by_prefix, samples).mix(mix)


def _corpus_paths(part: MixPart, path: MixPath) -> list[MixPath]:
    """Return the paths of the corpora within a part, in the order written."""
    if not part.parts:
        return [path]
    paths = []
    for name, child in part.parts.items():
        paths += _corpus_paths(child, (*path, name))
    return paths


def _inner_limit(part: MixPart, limit: float | None) -> float | None:
    """Return how often corpora within a part may be read, if `limit` is that of the group around
    it.
    """
    return limit if part.max_epochs is None else part.max_epochs


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of the tree, with the amounts that it can have."""

    path: MixPath
    part: MixPart
    tokens: int
    """Tokens of one epoch."""
    children: tuple[_Node, ...]
    min_amount: float
    """Smallest amount, because of targets within it."""
    max_amount: float
    """Largest amount, because corpora may be read only so often."""
    target: float | None = None
    """Amount that does not depend on its siblings, if it has one."""

    @property
    def where(self) -> str:
        """Its key in the settings of a nanoset."""
        return ".".join(("mix", *self.path))

    @property
    def corpora(self) -> list[_Node]:
        """The nodes of its corpora."""
        if not self.children:
            return [self]
        corpora = []
        for child in self.children:
            corpora += child.corpora
        return corpora


class _Bounds(NamedTuple):
    """Amounts that a part can have within its parent."""

    floor: float
    cap: float


class _Allotment(NamedTuple):
    """The amount of a part."""

    node: _Node
    parent_amount: float
    asked: float | None
    """Amount that its share alone would give it; None if it has a target."""
    amount: float


class _Mixer:
    """Works a tree out."""

    def __init__(
        self,
        config: NanosetConfig,
        prefix_by_path: Mapping[MixPath, str],
        tokens_by_prefix: Mapping[str, int],
        samples: int | None,
    ) -> None:
        """Take the datasets of the corpora.

        Args:
            config: Configuration of the nanoset.
            prefix_by_path: MixPath of each corpus in the tree → prefix of its dataset.
            tokens_by_prefix: Prefix → tokens that the split has of it.
            samples: Samples of the split that are still to be read; None if no number is requested.
        """
        self.config = config
        self.prefix_by_path = prefix_by_path
        self.tokens_by_prefix = tokens_by_prefix
        self.samples = samples

    def mix(self, mix: MixPart) -> Mixture:
        """Return the mixture of a whole tree."""
        root = self._node(mix, (), None)
        allotments = self._divide(root, 1.0)
        amounts = [allotment.amount for allotment in allotments if not allotment.node.children]
        total = plain_sum(amounts)
        weights = tuple(amount / total for amount in amounts)
        rows = tuple(self._row(allotment) for allotment in allotments)
        return Mixture(weights, rows)

    def _node(self, part: MixPart, path: MixPath, limit: float | None) -> _Node:
        """Return a part with the amounts that it can have.

        Args:
            part: The part.
            path: Its path in the tree.
            limit: How often corpora of the group around it may be read.
        """
        limit = _inner_limit(part, limit)
        node = self._group(part, path, limit) if part.parts else self._corpus(part, path, limit)
        if not part.is_given:
            return node

        target = self._target(node)
        _check(node, "its tokens or epochs are", target, node.min_amount, node.max_amount)
        return _Node(path, part, node.tokens, node.children, target, target, target)

    def _group(self, part: MixPart, path: MixPath, limit: float | None) -> _Node:
        children = []
        for name, child in part.parts.items():
            children.append(self._node(child, (*path, name), limit))
        tokens = sum(child.tokens for child in children)
        min_amount = plain_sum(child.min_amount for child in children)
        max_amount = plain_sum(child.max_amount for child in children)
        return _Node(path, part, tokens, tuple(children), min_amount, min(max_amount, 1.0))

    def _corpus(self, part: MixPart, path: MixPath, limit: float | None) -> _Node:
        prefix = self.prefix_by_path[path]
        tokens = self.tokens_by_prefix[prefix]
        max_amount = 1.0
        if limit is not None:
            order = self.config.orders.get(prefix)
            samples_before = 0 if order is None else order.taken
            max_amount = self._amount_of_epochs(tokens, limit, samples_before)
        return _Node(path, part, tokens, (), 0.0, max_amount)

    def _target(self, node: _Node) -> float:
        """Return the amount of a part that does not depend on its siblings."""
        part = node.part
        if part.tokens is not None:
            return part.tokens / self.config.step / (self.samples or 1)
        if part.epochs is not None:
            epochs = part.epochs
            return plain_sum(
                self._amount_of_epochs(corpus.tokens, epochs, 0) for corpus in node.corpora
            )
        return plain_sum(child.target or 0.0 for child in node.children)

    def _amount_of_epochs(self, tokens: int, epochs: float, samples_before: int) -> float:
        """Return the amount that is a number of epochs of a corpus, less the samples that were
        taken before.
        """
        samples = most_samples(tokens, epochs, self.config) - samples_before
        return max(samples - _ROUNDING_SAMPLES, 0.0) / (self.samples or 1)

    def _divide(self, node: _Node, amount: float) -> list[_Allotment]:
        """Divide the amount of a part among the parts within it.

        Returns:
            The parts in the order written, each followed by the parts within it.
        """
        # What targets leave is divided among the other parts.
        rest = amount - plain_sum(child.target or 0.0 for child in node.children)
        free = [child for child in node.children if child.target is None]
        weights = [_weight(child) for child in free]
        bounds = [_bounds(child, amount) for child in free]
        if node.children:
            _check_rest(node, free, bounds, rest)
        amount_by_path = {}
        asked_by_path = {}
        if free:
            amounts = _amounts_within_bounds(weights, bounds, rest)
            weight_sum = plain_sum(weights)
            for child, weight, child_amount in zip(free, weights, amounts, strict=True):
                amount_by_path[child.path] = child_amount
                asked_by_path[child.path] = rest * weight / weight_sum

        allotments = []
        for child in node.children:
            child_amount = amount_by_path.get(child.path, child.target or 0.0)
            if child_amount <= _TOLERANCE:
                raise InputError(
                    "nothing is left for a part of the mixture",
                    where=child.where,
                    found=f"{node.where} has {100 * amount:.4g}% of train",
                    remedy="lower the others, or leave it out",
                )
            allotments.append(
                _Allotment(child, amount, asked_by_path.get(child.path), child_amount)
            )
            allotments += self._divide(child, child_amount)
        return allotments

    def _row(self, allotment: _Allotment) -> MixRow:
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
            asked=allotment.asked,
            given=allotment.amount,
            tokens=tokens,
            epochs=epochs,
            decided_by=_decided_by(allotment),
        )


def _weight(node: _Node) -> float:
    """Return what a part's amount is in proportion to."""
    return float(node.tokens) if node.part.share is None else node.part.share


def _bounds(node: _Node, parent_amount: float) -> _Bounds:
    """Return the amounts that a part can have, by its own keys and by what is within it."""
    min_share = node.part.min_share or 0.0
    max_share = 1.0 if node.part.max_share is None else node.part.max_share
    floor = max(min_share * parent_amount, node.min_amount)
    cap = min(max_share * parent_amount, node.max_amount)
    return _Bounds(floor, cap)


def _check_rest(node: _Node, free: Sequence[_Node], bounds: Sequence[_Bounds], rest: float) -> None:
    """Check that what targets leave of a group can be divided among its other parts.

    Raises:
        InputError: It cannot.
    """
    for child, bound in zip(free, bounds, strict=True):
        _check(child, "floors within are", bound.floor, 0.0, bound.cap)
    what = "its parts without tokens and epochs share" if free else "no part is left for"
    floor_sum = plain_sum(bound.floor for bound in bounds)
    cap_sum = plain_sum(bound.cap for bound in bounds)
    _check(node, what, rest, floor_sum, cap_sum)


def _check(node: _Node, what: str, amount: float, minimum: float, maximum: float) -> None:
    """Check that a part can have an amount; `what` says what this amount is.

    Raises:
        InputError: It cannot.
    """
    if minimum - _TOLERANCE <= amount <= maximum + _TOLERANCE:
        return
    raise InputError(
        "the mixture is impossible",
        where=node.where,
        found=f"{what} {100 * amount:.4g}% of train",
        expected=f"{100 * minimum:.4g}% to {100 * maximum:.4g}%",
        remedy=_TOO_MUCH if amount > maximum else _TOO_LITTLE,
    )


def _decided_by(allotment: _Allotment) -> str:
    """Return the key that decides the amount of a part."""
    node = allotment.node
    part = node.part
    amount = allotment.amount
    if node.target is not None:
        if part.tokens is not None:
            return "tokens"
        return "its parts" if part.epochs is None else "epochs"
    if part.min_share and amount == part.min_share * allotment.parent_amount:
        return "min_share"
    if part.max_share is not None and amount == part.max_share * allotment.parent_amount:
        return "max_share"
    if amount == node.max_amount < 1.0:
        return "max_epochs"
    if amount == node.min_amount:
        return "its parts"
    return "size" if part.share is None else "share"


def _amounts_within_bounds(
    weights: Sequence[float], bounds: Sequence[_Bounds], total: float
) -> list[float]:
    """Return amounts that add up to a total, in proportion to weights except for those at their
    bounds.

    Each amount is level * weight, or the bound if that is outside. The sum of the amounts grows
    with the level, in straight lines between the levels at which one of them reaches a bound.

    Args:
        weights: Weight of each amount.
        bounds: Smallest and largest value of each amount.
        total: Their sum, which must be possible.
    """

    def amounts_at(level: float) -> list[float]:
        pairs = zip(weights, bounds, strict=True)
        return [min(max(level * weight, bound.floor), bound.cap) for weight, bound in pairs]

    def sum_at(level: float) -> float:
        return plain_sum(amounts_at(level))

    # The last level, of those at which an amount reaches a bound, that is not too high.
    bends = set()
    for weight, bound in zip(weights, bounds, strict=True):
        bends.add(bound.floor / weight)
        bends.add(bound.cap / weight)
    levels = sorted(bends)
    n_not_too_high = bisect_right(levels, total, key=sum_at)
    level = levels[max(n_not_too_high - 1, 0)]

    # From there on, only the amounts between their bounds grow: they divide what the others leave.
    free_weights = []
    bounded_amounts = []
    for weight, bound, amount in zip(weights, bounds, amounts_at(level), strict=True):
        if bound.floor / weight <= level < bound.cap / weight:
            free_weights.append(weight)
        else:
            bounded_amounts.append(amount)
    if free_weights:
        level = (total - plain_sum(bounded_amounts)) / plain_sum(free_weights)
    return amounts_at(level)
