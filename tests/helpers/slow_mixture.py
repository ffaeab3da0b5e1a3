"""The amounts of a mixture's parts, computed slowly: the module `mixture.py` must return the same.

A part of the tree is a dictionary as in nanoset.yaml, such as `{"share": 2, "max_epochs": 1}` for a
corpus, or `{"share": 1, "mix": {name: part, …}}` for a group of parts. All amounts are shares of
train, from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import assume

TOLERANCE = 1e-9
"""Amounts that differ by less are equal."""
SHARE_KEYS = {"share", "min_share", "max_share"}

Part = Mapping[str, Any]


class ImpossibleMixtureError(Exception):
    """The targets and bounds of a mixture contradict each other."""


class SlowMixture:
    """Divides train among the corpora of a mixture."""

    def __init__(self, tokens: Mapping[str, int], n_samples: int, length: int) -> None:
        """Remember what is divided.

        Args:
            tokens: Tokens of each corpus.
            n_samples: Samples of train.
            length: Tokens of a sample.
        """
        self.tokens = tokens
        self.length = length
        self.tokens_of_train = n_samples * length

    def amounts(self, tree: Mapping[str, Part]) -> dict[str, float]:
        """Return the amount of each corpus, in the order written.

        Raises:
            ImpossibleMixtureError: There are no such amounts.
        """
        root = {"mix": tree}
        self.largest("", root, None)  # checks all targets
        return self.divide("", root, 1.0, None)

    def divide(self, name: str, part: Part, amount: float, limit: float | None) -> dict[str, float]:
        """Divide the amount of a part among its corpora.

        Args:
            name: Name of the part.
            part: Its keys.
            amount: What it gets.
            limit: `max_epochs` of the groups around it, or None.
        """
        if "mix" not in part:
            return {name: amount}
        limit = part.get("max_epochs", limit)

        # Parts with a target get it. The others are free: they divide the rest.
        amounts: dict[str, float] = {}
        free_parts: dict[str, Part] = {}
        for inner_name, inner_part in part["mix"].items():
            target = self.target(inner_name, inner_part)
            if target is None:
                free_parts[inner_name] = inner_part
            else:
                amounts[inner_name] = target
        rest = amount - sum(amounts.values())

        # The bounds and the weight of each free part.
        low: dict[str, float] = {}
        high: dict[str, float] = {}
        weights: dict[str, float] = {}
        for inner_name, inner_part in free_parts.items():
            floor = inner_part.get("min_share", 0) * amount
            cap = inner_part.get("max_share", 1) * amount
            low[inner_name] = max(floor, self.smallest(inner_name, inner_part))
            high[inner_name] = min(cap, self.largest(inner_name, inner_part, limit))
            if low[inner_name] > high[inner_name] + TOLERANCE:
                raise ImpossibleMixtureError
            weights[inner_name] = self.weight(inner_name, inner_part, part.get("temperature", 1))
        if not sum(low.values()) - TOLERANCE <= rest <= sum(high.values()) + TOLERANCE:
            raise ImpossibleMixtureError

        amounts |= divide_by_level(weights, low, high, rest)
        # A part must get something. Leave out cases in which rounding decides that.
        assume(not any(TOLERANCE / 10 < share < TOLERANCE * 10 for share in amounts.values()))
        if min(amounts.values()) <= TOLERANCE:
            raise ImpossibleMixtureError

        amount_by_corpus = {}
        for inner_name, inner_part in part["mix"].items():
            amount_by_corpus |= self.divide(inner_name, inner_part, amounts[inner_name], limit)
        return amount_by_corpus

    def target(self, name: str, part: Part) -> float | None:
        """Return the amount that `tokens` or `epochs` of a part fix, or None."""
        if "tokens" in part:
            target: float = part["tokens"] / self.tokens_of_train
            return target
        if "epochs" in part:
            corpora = self.corpora(name, part)
            return sum(self.amount_of_epochs(corpus, part["epochs"]) for corpus in corpora)

        # A group has a target if all of its parts have, and no share of its own.
        if "mix" not in part or SHARE_KEYS & part.keys():
            return None
        total = 0.0
        for inner_name, inner_part in part["mix"].items():
            inner_target = self.target(inner_name, inner_part)
            if inner_target is None:
                return None
            total += inner_target
        return total

    def smallest(self, name: str, part: Part) -> float:
        """Return the amount that the targets within a part need."""
        if "mix" not in part:
            return self.target(name, part) or 0.0
        total = 0.0
        for inner_name, inner_part in part["mix"].items():
            inner_target = self.target(inner_name, inner_part)
            if inner_target is None:
                total += self.smallest(inner_name, inner_part)
            else:
                total += inner_target
        return total

    def largest(self, name: str, part: Part, limit: float | None) -> float:
        """Return the amount that a part can have at most.

        Raises:
            ImpossibleMixtureError: It cannot have its target, or a part within it cannot.
        """
        limit = part.get("max_epochs", limit)
        amount = 1.0
        if "mix" in part:
            inner_amounts = []
            for inner_name, inner_part in part["mix"].items():
                inner_amounts.append(self.largest(inner_name, inner_part, limit))
            amount = min(1.0, sum(inner_amounts))
        elif limit is not None:
            amount = self.amount_of_epochs(name, limit)

        target = self.target(name, part)
        if target is None:
            return amount
        if not self.smallest(name, part) - TOLERANCE <= target <= amount + TOLERANCE:
            raise ImpossibleMixtureError
        return target

    def weight(self, name: str, part: Part, temperature: float) -> float:
        """Return the weight of a part among its siblings: its share, or a power of its tokens."""
        if "share" in part:
            share: float = part["share"]
            return share
        n_tokens: float = sum(self.tokens[corpus] for corpus in self.corpora(name, part))
        return n_tokens**temperature

    def amount_of_epochs(self, corpus: str, epochs: float) -> float:
        """Return the amount that some epochs of a corpus are, in whole samples."""
        n_tokens = int(self.tokens[corpus] * epochs)
        n_samples = (n_tokens - 1) // self.length  # the last token is only a label
        return n_samples * self.length / self.tokens_of_train

    def corpora(self, name: str, part: Part) -> list[str]:
        """Return the corpora within a part; a corpus is its own only one."""
        if "mix" not in part:
            return [name]
        corpora = []
        for inner_name, inner_part in part["mix"].items():
            corpora += self.corpora(inner_name, inner_part)
        return corpora


def divide_by_level(
    weights: Mapping[str, float], low: Mapping[str, float], high: Mapping[str, float], total: float
) -> dict[str, float]:
    """Divide a total in proportion to weights, within bounds.

    Each part gets the level times its weight, or the bound that this exceeds. The level at which
    the amounts add up to the total is found by halving an interval.
    """
    lower = 0.0
    upper = 1e12
    amounts: dict[str, float] = {}
    for _ in range(90):
        level = (lower + upper) / 2
        for name, weight in weights.items():
            amounts[name] = min(max(level * weight, low[name]), high[name])
        if sum(amounts.values()) < total:
            lower = level
        else:
            upper = level
    return amounts
