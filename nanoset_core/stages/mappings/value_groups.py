"""Mix a corpus by the values of one of its columns: the keys `of`, `by` and `values` of a mixture.

A group of a mixture may divide a corpus by a column, instead of listing its parts:

    mix:
      topics: {of: web, by: topic, values: [news, science], others: true, temperature: 0.5}

This is a shorthand for views of the corpus, one for each value, and a group of them:

    views:
      topics-news:    {of: web, where: "topic = 'news'"}
      topics-science: {of: web, where: "topic = 'science'"}
      topics-others:  {of: web, where: "topic not in ('news', 'science') or topic is null"}
    mix:
      topics: {temperature: 0.5, mix: {topics-news: {}, topics-science: {}, topics-others: {}}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.sampling.mix_tree import MixPart
from nanoset_core.stages.mappings.mix_settings import Mix
from nanoset_core.stages.mappings.settings import ExpandedNanosets, NanosetSpec
from nanoset_core.stages.views.settings import ViewSpec

OTHERS = "others"
"""End of the name of the view that has all documents with other values."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
"""Characters that the name of a view cannot contain."""


def expand_value_groups(
    nanosets: Mapping[str, NanosetSpec], views: Mapping[str, ViewSpec], where: object
) -> ExpandedNanosets:
    """Replace corpora that mixtures divide by a column by groups of views.

    Args:
        nanosets: Name → settings, as they are written.
        views: The views that are written.
        where: The nanoset.yaml, for errors.
    """
    expansion = _Expansion(dict(views))
    expanded_nanosets: dict[str, NanosetSpec] = {}
    for name, nanoset in nanosets.items():
        key = f"{where}: nanosets.{name}"
        phases = []
        for number, phase in enumerate(nanoset.phases):
            phase_mix = expansion.expand(phase.mix, f"{key}.phases[{number}].mix")
            phases.append(replace(phase, mix=phase_mix))
        mix = expansion.expand(nanoset.mix, f"{key}.mix")
        expanded_nanosets[name] = replace(nanoset, mix=mix, phases=tuple(phases))
    return ExpandedNanosets(
        nanosets=FrozenDict(expanded_nanosets),
        views=FrozenDict(expansion.views),
        errors=expansion.errors,
    )


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Expands mixtures, and collects the views and mistakes of all of them."""

    views: dict[str, ViewSpec]
    errors: list[ConfigError] = field(default_factory=list)

    def expand(self, mix: Mix | None, where: str) -> Mix | None:
        """Return a mixture with groups of views in place of corpora that are divided by a column.

        Args:
            mix: Name of a part → the part; None if the nanoset has no mixture.
            where: Key of the mixture, for errors.
        """
        if mix is None:
            return None
        parts: dict[str, MixPart | float] = {}
        for name, part in mix.items():
            if isinstance(part, MixPart):
                parts[name] = self._expand_part(name, part, f"{where}.{name}")
            else:
                parts[name] = part  # only a share
        return FrozenDict(parts)

    def _expand_part(self, name: str, part: MixPart, where: str) -> MixPart:
        """Return one part of a mixture, expanded; mistakes are collected.

        Args:
            name: Name of the part, with which the names of its views begin.
            part: The part.
            where: Key of the part, for errors.
        """
        if not part.has_value_keys:
            return replace(part, mix=self.expand(part.mix, where))

        mistakes = list(_mistakes(part, where))
        if mistakes:
            self.errors.extend(mistakes)
            return part
        members: dict[str, MixPart | float] = {}
        for member in _members_of(name, part):
            # Another mixture may divide the corpus in the same way, and share the view.
            existing_view = self.views.setdefault(member.name, member.view)
            if existing_view != member.view:
                self.errors.append(_name_is_taken(member.name, where))
            members[member.name] = MixPart(share=member.share)
        return replace(part, of=None, by=None, values=None, others=False, mix=FrozenDict(members))


def _mistakes(part: MixPart, where: str) -> Iterator[ConfigError]:
    """Yield the errors of a part that divides a corpus by a column."""
    keys = {"of": part.of, "by": part.by, "values": part.values}
    missing = [key for key, value in keys.items() if not value]
    if missing:
        yield ConfigError(
            "a corpus is divided by the values of a column",
            where=where,
            found=f"no {' and no '.join(missing)}",
            expected="of, by and values",
            remedy="write it as in {of: web, by: topic, values: [news, science]}; "
            "`nanoset columns CORPUS` shows the values",
        )
        return
    if part.mix is not None:
        yield ConfigError(
            "`values` and `mix` each say which parts the group has",
            where=where,
            remedy="keep one of them",
        )
    if part.others and isinstance(part.values, Mapping):
        yield ConfigError(
            "the other documents have no share",
            where=f"{where}.others",
            remedy="remove it, or list the values without shares",
        )


class _ValueView(NamedTuple):
    """The documents with one value of the column, as a part of the group."""

    name: str
    """Name of the view, such as "topics-news"."""
    view: ViewSpec
    share: float | None
    """Its share of the group; None if the group is divided by tokens."""


def _members_of(name: str, part: MixPart) -> list[_ValueView]:
    """Return the parts into which a group divides its corpus.

    Args:
        name: Name of the group, such as "topics".
        part: The group, without mistakes.
    """
    assert part.of is not None
    assert part.by is not None
    column = _quoted(part.by, '"')
    share_by_value: dict[str | int, float | None] = {}
    if isinstance(part.values, Mapping):
        share_by_value.update(part.values)
    else:
        share_by_value.update(dict.fromkeys(part.values or ()))

    members: list[_ValueView] = []
    literals: list[str] = []
    for value, share in share_by_value.items():
        literal = _quoted(value, "'") if isinstance(value, str) else str(value)
        literals.append(literal)
        view = ViewSpec(of=part.of, where=f"{column} = {literal}")
        members.append(_ValueView(_view_name(name, value), view, share))

    if part.others:
        condition = f"{column} not in ({', '.join(literals)}) or {column} is null"
        view = ViewSpec(of=part.of, where=condition)
        members.append(_ValueView(_view_name(name, OTHERS), view, share=None))
    return members


def _view_name(group: str, value: str | int) -> str:
    """Return the name of the view of one value: `topics` and "Sci & Tech" give topics-Sci-Tech."""
    return f"{group}-{_NOT_IN_NAMES.sub('-', str(value))}"


def _quoted(text: str, quote: str) -> str:
    """Return a name or a text as it is written in a condition, in quotes."""
    return quote + text.replace(quote, quote * 2) + quote


def _name_is_taken(view_name: str, where: str) -> ConfigError:
    """Return the error for a view of a mixture whose name another view has."""
    return ConfigError(
        "a value of the column gives a view whose name is taken by another view",
        where=where,
        found=view_name,
        remedy="rename the group or the other view, or define the views of these values yourself",
    )
