"""A mixture: a tree of corpora with shares, floors, caps and targets → the flat weights that a trainer is given."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from nanoset_core.errors import InputError
from nanoset_core.records.settings import Range
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.epoch_limits import most_samples
from nanoset_core.sampling.plan import LengthReader, tokens_in
from nanoset_core.sampling.splits import SPLITS, plain_sum

_NEAR = 1e-9
"""Part of a run within which two amounts are the same: below a sample of any run."""
_TOO_MUCH = "raise max_share or max_epochs, add text or parts, or ask for less of it, or for fewer samples"
_TOO_LITTLE = "lower tokens, epochs or min_share within it, ask for more of it, or for more samples"
Share = Annotated[float, Range(1e-9, 1e9)]
Part = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, slots=True)
class MixPart:
    """A corpus or a view, by its name; or, with `mix`, a group of them, by any name."""

    share: Share | None = None
    """Its weight beside its siblings, which share what `tokens` and `epochs` leave of their parent; a number alone
    means this key. Where no sibling has one: in proportion to tokens."""
    tokens: Annotated[float, Range(1, 1e15)] | None = None
    """Tokens that train takes of it, in place of a share."""
    epochs: Annotated[float, Range(0.001, 1e6)] | None = None
    """How often train reads it, in place of a share."""
    max_epochs: Annotated[float, Range(0.001, 1e6)] | None = None
    """How often train may read each of its corpora at most."""
    min_share: Part | None = None
    """Least part of its parent."""
    max_share: Part | None = None
    """Greatest part of its parent."""
    mix: Mapping[str, MixPart | Share] | None = None
    """What the group consists of."""

    @property
    def parts(self) -> dict[str, MixPart]:
        """Its parts by name; none of a corpus."""
        return {name: MixPart(part) if isinstance(part, float) else part for name, part in (self.mix or {}).items()}

    @property
    def is_given(self) -> bool:
        """Whether its amount does not depend on its siblings: it, or all of its parts, have `tokens` or `epochs`."""
        has_share = self.share is not None or self.min_share is not None or self.max_share is not None
        within = bool(self.mix) and not has_share and all(part.is_given for part in self.parts.values())
        return self.tokens is not None or self.epochs is not None or within

    @property
    def corpora(self) -> tuple[str, ...]:
        """Corpora and views, in the order written."""
        parts = self.parts.items()
        return tuple(leaf for name, part in parts for leaf in ((name,) if part.mix is None else part.corpora))

    def epoch_limits(self, limit: float | None = None) -> dict[str, float]:
        """Return corpus or view → how often train may read it at most; those without a limit are left out.

        Args:
            limit: of the group around it.
        """
        limits: dict[str, float] = {}
        limit = limit if self.max_epochs is None else self.max_epochs
        for name, part in self.parts.items():
            if part.mix is not None:
                limits |= part.epoch_limits(limit)
                continue
            own = limit if part.max_epochs is None else part.max_epochs
            if own is not None:
                limits[name] = own
        return limits

    def to_json(self) -> dict[str, Any]:
        """Return plain types, without keys that say nothing."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}
        return plain | ({"mix": {name: part.to_json() for name, part in self.parts.items()}} if self.mix else {})


@dataclass(frozen=True, slots=True)
class MixRow:
    """What a part of a mixture gets."""

    name: str
    """As it is written."""
    depth: int
    """Groups around it."""
    asked: float | None
    """Part of train by its share alone, in what its group has; None where its tokens or epochs are given."""
    given: float
    """Part of train that it gets."""
    tokens: int | None
    """Tokens that train takes of it; None where no number of samples is asked for."""
    epochs: float | None
    """How often train reads it, a group on the average."""
    decided_by: str
    """Key by which it gets that; "size" is its tokens beside those of its siblings."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of datasets of known sizes."""

    weights: tuple[float, ...]
    """Of each corpus, in the order written; their sum is 1."""
    rows: tuple[MixRow, ...]
    """Each part, before the parts within it."""


@dataclass(slots=True)
class _Node:
    path: tuple[str, ...]
    part: MixPart
    held: int
    """Tokens of an epoch."""
    within: list[_Node]
    low: float = 0.0
    """Least part of train that it can be, since tokens or epochs are given within."""
    high: float = 1.0
    """Greatest part, since corpora may be read so often at most."""
    given: float | None = None
    """Its part, where that does not depend on its siblings."""

    @property
    def where(self) -> str:
        """Its place in the settings of a nanoset."""
        return ".".join(("mix", *self.path))

    @property
    def corpora(self) -> Iterator[_Node]:
        """The nodes of its corpora."""
        yield from (leaf for node in self.within for leaf in node.corpora) if self.within else (self,)


def mixture_of(mix: MixPart, config: NanosetConfig, reader: LengthReader | None = None) -> Mixture:
    """Work a mixture out for the train split; where that has no share of the data, for the next one that has.

    Args:
        mix: the whole tree.
        config: whose datasets are those of the tree's corpora, in the order written.
        reader: shared with others that plan with the same datasets.

    Raises:
        ConfigError, InputError: a corpus has no tokens in the split, or targets, floors and caps contradict each other.
    """
    split = next(split for split, share in zip(SPLITS, config.shares(), strict=True) if share > 0)
    held, samples = tokens_in(config, split, reader or LengthReader()), config.samples(split)
    if 0 in held.values():
        what, remedy = f"a corpus of the mixture has no tokens in {split}", "leave it out, add text, or change `split`"
        raise InputError(what, where="mix", found=mix.corpora[[*held.values()].index(0)], remedy=remedy)
    return _Compiler(config, held, None if samples is None else samples - config.consumed_samples).compile(mix)


class _Compiler:
    def __init__(self, config: NanosetConfig, held: Mapping[str, int], samples: int | None) -> None:
        self.config, self.samples = config, samples
        self.left = iter(held.items())  # datasets of the corpora that are still to come
        self.amounts: list[float] = []
        self.rows: list[MixRow] = []

    def compile(self, mix: MixPart) -> Mixture:
        self._divide(self._node(mix, (), None), 1.0)
        whole = plain_sum(self.amounts)
        return Mixture(tuple(amount / whole for amount in self.amounts), tuple(self.rows))

    def _node(self, part: MixPart, path: tuple[str, ...], limit: float | None) -> _Node:
        """Return a part with the least and the greatest amount that it can be; `limit`: of epochs, of its group."""
        limit = limit if part.max_epochs is None else part.max_epochs
        within = [self._node(one, (*path, name), limit) for name, one in part.parts.items()]
        node = _Node(path, part, sum(one.held for one in within), within)
        if not within:
            prefix, node.held = next(self.left)
            if limit is not None:
                order = self.config.orders.get(prefix)
                node.high = self._epochs(node, limit, 0 if order is None else order.taken)
        else:
            node.low = plain_sum(one.low for one in within)
            node.high = min(plain_sum(one.high for one in within), 1.0)
        if part.is_given:
            self._give(node)
        return node

    def _give(self, node: _Node) -> None:
        part = node.part
        if part.tokens is not None:
            node.given = part.tokens / self.config.step / (self.samples or 1)
        elif part.epochs is not None:
            node.given = plain_sum(self._epochs(one, part.epochs, 0) for one in node.corpora)
        else:
            node.given = plain_sum(one.given or 0.0 for one in node.within)
        _check(node, "its tokens or epochs are", node.given, node.low, node.high)
        node.low = node.high = node.given

    def _epochs(self, corpus: _Node, epochs: float, before: int) -> float:
        """Return the part of train that is so many epochs of a corpus, less the samples that were taken before."""
        samples = most_samples(corpus.held, epochs, self.config) - before
        return max(samples - 0.001, 0.0) / (self.samples or 1)  # a trifle less, since trainers round up

    def _divide(self, node: _Node, amount: float) -> None:
        """Give each part within its amount, in the order written."""
        if not node.within:
            self.amounts.append(amount)
            return
        rest = amount - plain_sum(one.given or 0.0 for one in node.within)
        free = [one for one in node.within if one.given is None]
        low = [max((one.part.min_share or 0.0) * amount, one.low) for one in free]
        high = [min(_or(one.part.max_share, 1.0) * amount, one.high) for one in free]
        for one, least, most in zip(free, low, high, strict=True):
            _check(one, "floors within are", least, 0.0, most)
        what = "its parts without tokens and epochs share" if free else "no part is left for"
        _check(node, what, rest, plain_sum(low), plain_sum(high))
        weights = [_or(one.part.share, float(one.held)) for one in free]
        filled = _level(weights, low, high, rest) if free else []
        found = dict(zip((one.path for one in free), zip(weights, filled, strict=True), strict=True))
        for one in node.within:
            weight, value = found.get(one.path, (0.0, one.given or 0.0))
            asked = None if one.given is not None else rest * weight / plain_sum(weights)
            if value <= _NEAR:
                what, has = (
                    "nothing is left for a part of the mixture",
                    f"{node.where} has {100 * amount:.4g}% of train",
                )
                raise InputError(what, where=one.where, found=has, remedy="lower the others, or leave it out")
            self._row(one, asked, value, _decided_by(one, amount, value))
            self._divide(one, value)

    def _row(self, node: _Node, asked: float | None, given: float, decided_by: str) -> None:
        tokens = None if self.samples is None else given * self.samples * self.config.step
        epochs = None if tokens is None else tokens / node.held
        whole = None if tokens is None else round(tokens)
        self.rows.append(MixRow(node.path[-1], len(node.path) - 1, asked, given, whole, epochs, decided_by))


def _check(node: _Node, what: str, amount: float, low: float, high: float) -> None:
    """Raise InputError for an amount that a part cannot have."""
    if not low - _NEAR <= amount <= high + _NEAR:
        raise InputError(
            "the mixture is impossible",
            where=node.where,
            found=f"{what} {100 * amount:.4g}% of train",
            expected=f"{100 * low:.4g}% to {100 * high:.4g}%",
            remedy=_TOO_MUCH if amount > high else _TOO_LITTLE,
        )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _decided_by(node: _Node, amount: float, value: float) -> str:
    """Return what decides the amount of a part."""
    part = node.part
    if node.given is not None:
        return "tokens" if part.tokens is not None else "epochs" if part.epochs is not None else "its parts"
    if part.min_share and value == part.min_share * amount:
        return "min_share"
    if part.max_share is not None and value == part.max_share * amount:
        return "max_share"
    if value == node.high < 1.0:
        return "max_epochs"
    return "its parts" if value == node.low else "size" if part.share is None else "share"


def _level(weights: Sequence[float], low: Sequence[float], high: Sequence[float], amount: float) -> list[float]:
    """Return amounts in proportion to weights, but for bounds, that add up to an amount within the sums of these."""
    bounded = list(zip(weights, low, high, strict=True))

    def at(level: float) -> list[float]:
        return [min(max(level * weight, least), most) for weight, least, most in bounded]

    levels = sorted({bound / weight for weight, *bounds in bounded for bound in bounds})
    level = levels[max(bisect_right(levels, amount, key=lambda one: plain_sum(at(one))) - 1, 0)]
    free = [least / weight <= level < most / weight for weight, least, most in bounded]
    if any(free):
        held = plain_sum(one for one, is_free in zip(at(level), free, strict=True) if not is_free)
        level = (amount - held) / plain_sum(weight for weight, is_free in zip(weights, free, strict=True) if is_free)
    return at(level)
