"""The settings of a mixture: a tree of corpora with shares, floors, caps and targets.

For example, this is a mixture of two corpora and a group of two others:

    mix:
      web: 0.7
      books: {share: 0.2, max_epochs: 2}
      code: {share: 0.1, mix: {python: 3, rust: 1}}

`mixture.py` computes the weights that follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from nanoset_core.records.settings import Range

Share = Annotated[float, Range(1e-9, 1e9)]
"""A weight; only its ratio to the weights of siblings matters."""
Fraction = Annotated[float, Range(0, 1)]
"""A number from 0 to 1: which fraction of its group a part gets."""


@dataclass(frozen=True, slots=True)
class MixPart:
    """One part of a mixture: a corpus or view, or a group of parts with a `mix` of its own."""

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
    min_share: Fraction | None = None
    """Its smallest share of its parent."""
    max_share: Fraction | None = None
    """Its largest share of its parent."""
    temperature: Fraction | None = None
    """For a group: its parts without shares are read in proportion to this power of their tokens. 1
    is in proportion to their tokens, 0 gives all of them the same."""
    mix: Mapping[str, MixPart | Share] | None = None
    """The parts of the group."""
    of: str | None = None
    """In place of `mix`: a corpus or view that is divided into parts by the values of a column."""
    by: str | None = None
    """With `of`: the column."""
    values: tuple[str | int, ...] | Mapping[str, Share] | None = None
    """With `of`: the values. Each becomes a view with the documents that have it, which is a part
    of the group. With a number for each value, these are the shares."""
    others: bool | Share = False
    """With `of`: whether the documents with other values, or none, are one more part. With a number
    in place of `true`, this is its share."""

    @property
    def has_value_keys(self) -> bool:
        """Whether the part divides a corpus by the values of a column."""
        return bool(self.of or self.by or self.values or self.others)

    @property
    def parts(self) -> dict[str, MixPart]:
        """The parts of a group by name; empty for a corpus.

        A number in place of a part is its share: `{web: 0.7}` → `{"web": MixPart(share=0.7)}`.
        """
        return parts_of_mix(self.mix or {})

    @property
    def has_fixed_amount(self) -> bool:
        """Whether it is known how much is read of the part, whatever else is in the mixture.

        This is so if its settings say a number of tokens or epochs, and not a share of the group
        around it. A group also has a fixed amount if all its parts have one:

            web: {tokens: 1e9}                                      # yes
            code: {share: 0.1}                                      # no
            books: {mix: {old: {tokens: 1e8}, new: {epochs: 2}}}    # yes: the sum of both
        """
        if self.tokens is not None or self.epochs is not None:
            return True
        depends_on_siblings = (
            self.share is not None or self.min_share is not None or self.max_share is not None
        )
        if depends_on_siblings or not self.mix:
            return False
        return all(part.has_fixed_amount for part in self.parts.values())

    @property
    def corpora(self) -> tuple[str, ...]:
        """Names of all corpora and views within the group, in the order written."""
        corpora: list[str] = []
        for name, part in self.parts.items():
            if part.mix is None:
                corpora.append(name)
            else:
                corpora += part.corpora
        return tuple(corpora)

    def inner_limit(self, outer_limit: float | None) -> float | None:
        """Return how often training may read each corpus (collection of texts) within this part.

        This is its own setting `max_epochs`, or if it has none, that of the group around it:

            own `max_epochs`    of the group around it    result
            3                   1                         3
            none                1                         1
            none                none                      None: no limit

        Args:
            outer_limit: The limit of the group around the part; None for no limit.
        """
        if self.max_epochs is not None:
            return self.max_epochs
        return outer_limit

    def epoch_limits(self, outer_limit: float | None = None) -> dict[str, float]:
        """Return how often training may read each corpus (collection of texts) within a group.

        The setting `max_epochs` of a group is for all corpora within it. If a part within the group
        has its own, that one counts:

            mix:
              web: {max_epochs: 1, mix: {crawl: 0.7, news: {max_epochs: 3}}}   # crawl 1, news 3
              books: 0.1                                                       # no limit

        Args:
            outer_limit: `max_epochs` of the group around this one; None if it has none.

        Returns:
            Name of a corpus → its limit: {"crawl": 1, "news": 3}. Those without a limit are left
            out.
        """
        group_limit = self.inner_limit(outer_limit)  # its own `max_epochs`, or else that around it
        limits: dict[str, float] = {}
        for name, part in self.parts.items():
            if part.mix is not None:  # a group within this one
                limits |= part.epoch_limits(group_limit)
                continue
            limit = part.inner_limit(group_limit)
            if limit is not None:
                limits[name] = limit
        return limits

    def to_json(self) -> dict[str, Any]:
        """Return the settings of this part of a mixture as plain types, without missing ones.

        For example, for a group of two corpora (collections of texts):

            {"share": 0.7, "mix": {"web": {"share": 3.0}, "books": {"share": 1.0}}}
        """
        values = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value is not False:
                values[field.name] = value
        if self.mix:
            # The parts may be written in a short form, such as {"web": 3.0}. Write them in full.
            values["mix"] = {name: part.to_json() for name, part in self.parts.items()}
        return values


def parts_of_mix(mix: Mapping[str, MixPart | Share]) -> dict[str, MixPart]:
    """Return the parts of a mixture of corpora, also those that are written as a number.

        {"web": 0.7, "books": MixPart(share=0.3)}                     a number is the share
        {"web": MixPart(share=0.7), "books": MixPart(share=0.3)}      the result

    Args:
        mix: Name of a corpus or group → its settings, or its share alone.
    """
    parts: dict[str, MixPart] = {}
    for name, part in mix.items():
        parts[name] = MixPart(share=part) if isinstance(part, float) else part
    return parts
