"""Mix a corpus by the values of one of its columns: the keys `of`, `by` and `values` of a mixture.

A mixture says which share of the training data comes from which corpus or view. Its parts can be
groups of further parts. A *value group* divides a corpus by a column, instead of listing its parts:

    mix:
      topics: {of: web, by: topic, values: [news, science], others: true, temperature: 0.5}

This is a shorthand for views of the corpus, one for each value, and a usual group of them:

    views:
      topics-news:    {of: web, where: "topic = 'news'"}
      topics-science: {of: web, where: "topic = 'science'"}
      topics-others:  {of: web, where: "topic not in ('news', 'science') or topic is null"}
    mix:
      topics: {temperature: 0.5, mix: {topics-news: {}, topics-science: {}, topics-others: {}}}

`expand_value_groups` writes it out in this way, so that all other code knows usual groups only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    """Replace settings that divide a corpus by the values of a column, by selections of its
    documents.

    A mixture says which shares of the training data are read of which corpora (collections of
    texts). It may divide a corpus by a column such as the topic. A view, which is a selection of
    documents, is defined for each value:

        mix: {topics: {of: web, by: topic, values: [news, science]}}
        →     {topics: {mix: {topics-news: {}, topics-science: {}}}}

    Args:
        nanosets: Name → settings of training data, as they are written. Each may have a mixture.
        views: The views that are written.
        where: The nanoset.yaml, for errors.

    Returns:
        The settings with the new groups, all views, and the mistakes in the settings.
    """
    # Define a view for each value. Two groups that divide a corpus in the same way share views.
    all_views = dict(views)
    errors: list[ConfigError] = []
    for group in _value_groups_of(nanosets, where):
        mistakes = list(_mistakes(group.part, group.where))
        errors += mistakes
        if mistakes:
            continue
        for value_view in _value_views(group.name, group.part):
            # Add the view, unless there is one of this name. That one has to be equal.
            existing_view = all_views.setdefault(value_view.name, value_view.view)
            if existing_view != value_view.view:
                errors.append(_name_is_taken(value_view.name, group.where))

    # Name the views in the mixtures, in place of the columns and values.
    expanded = {name: _with_expanded_mixtures(nanoset) for name, nanoset in nanosets.items()}
    return ExpandedNanosets(FrozenDict(expanded), FrozenDict(all_views), errors)


class _ValueGroup(NamedTuple):
    """A part of a mixture that divides a corpus by the values of a column."""

    name: str
    part: MixPart
    where: str
    """Key of the part, for errors."""


def _value_groups_of(nanosets: Mapping[str, NanosetSpec], where: object) -> Iterator[_ValueGroup]:
    """Yield the parts of mixtures that divide a corpus by the values of a column.

    Such a part is `topics: {of: web, by: topic, values: [news, science]}`.

    Args:
        nanosets: Name → settings. A nanoset, or each phase of its run, can have a mixture.
        where: The nanoset.yaml, for errors.
    """
    for name, nanoset in nanosets.items():
        key = f"{where}: nanosets.{name}"
        for number, phase in enumerate(nanoset.phases):
            yield from _value_groups_in(phase.mix, f"{key}.phases[{number}].mix")
        yield from _value_groups_in(nanoset.mix, f"{key}.mix")


def _value_groups_in(mix: Mix | None, where: str) -> Iterator[_ValueGroup]:
    """Yield the parts of a mixture of texts that divide a text by the values of a column.

    A part of a mixture has a share of the training data. It can be a text, a mixture again, or a
    text that is divided by a column:

        web: 0.7                                                  a text: not yielded
        topics: {of: books, by: topic, values: [news]}            divided by a column: yielded
        other: {mix: {langs: {of: wiki, by: lang, …}, …}}         a mixture again: yields `langs`

    Args:
        mix: Name of a part → the part, or only its share; None if there is no mixture.
        where: Key of the mixture in nanoset.yaml, for errors.
    """
    for name, part in (mix or {}).items():
        if not isinstance(part, MixPart):
            continue  # only a share
        if part.has_value_keys:
            yield _ValueGroup(name, part, f"{where}.{name}")
        else:
            yield from _value_groups_in(part.mix, f"{where}.{name}")


def _with_expanded_mixtures(nanoset: NanosetSpec) -> NanosetSpec:
    """Return a nanoset in whose mixtures each part is a corpus, a view, or a group of these.

    Parts that divide a corpus by a column become groups of views. A nanoset has a mixture, or each
    of its phases has one.

    Args:
        nanoset: The settings as they are written.
    """
    phases = [replace(phase, mix=_expanded(phase.mix)) for phase in nanoset.phases]
    return replace(nanoset, mix=_expanded(nanoset.mix), phases=tuple(phases))


def _expanded(mix: Mix | None) -> Mix | None:
    """Return a mixture in which each part is a corpus, a view, or a group of these.

        topics: {of: web, by: topic, values: [news]}     becomes topics: {mix: {topics-news: {}}}
        code: 0.3                                        stays as it is

    Args:
        mix: Name of a part → the part, or only its share, a number; None if there is no mixture.
    """
    if mix is None:
        return None
    parts: dict[str, MixPart | float] = {}
    for name, part in mix.items():
        parts[name] = _expanded_part(name, part) if isinstance(part, MixPart) else part
    return FrozenDict(parts)


def _expanded_part(name: str, part: MixPart) -> MixPart:
    """Replace a part of a mixture that divides a corpus by a column, by a group of selections.

    A mixture is a tree of shares of training data. A part may say "the corpus web, by topic".
    Trainers only know datasets, so it becomes a group of views, which select documents of web:

        topics: {of: web, by: topic, values: [news], temperature: 0.5}
        →        {mix: {topics-news: {}}, temperature: 0.5}

    Args:
        name: Name of the part, such as "topics".
        part: The part. A plain corpus or view stays as it is; of a usual group, the parts are
            replaced.
    """
    if not part.has_value_keys:
        # A corpus or view, or a usual group, whose own parts may divide a corpus.
        return replace(part, mix=_expanded(part.mix))

    # The views replace the keys that say how the corpus is divided. Other keys stay.
    members = {view.name: MixPart(share=view.share) for view in _value_views(name, part)}
    return replace(part, mix=FrozenDict(members), of=None, by=None, values=None, others=False)


def _mistakes(part: MixPart, where: str) -> Iterator[ConfigError]:
    """Yield the mistakes in a setting that divides a corpus by the values of a column.

    A mixture says which shares of the training data are read of which corpora (collections of
    texts). One of its parts may be a group that stands for a corpus, divided by a column such as
    the topic:

        mix:
          code: {share: 0.3}
          topics: {share: 0.7, of: web, by: topic, values: [news, science]}

    Without the keys that matter elsewhere, correct and wrong groups are:

        {of: web, by: topic, values: [news, science]}              fine
        {of: web, by: topic, values: {news: 0.7, science: 0.3}}    fine: a share for each
        {of: web, by: topic, values: [news], others: true}         fine: and all other documents
        {of: web, values: [news]}                                  an error: by which column?
        {of: web, by: topic, values: {news: 0.7}, others: true}    an error: others have no share
        {of: web, by: topic, values: [news], mix: {books: {}}}     an error: two lists of parts

    Args:
        part: The group.
        where: Its key in nanoset.yaml, such as "nanosets.pretrain.mix.topics", for the errors.
    """
    setting_by_key = {"of": part.of, "by": part.by, "values": part.values}
    missing_keys = [key for key, setting in setting_by_key.items() if not setting]
    if missing_keys:
        yield _missing_keys_error(where, missing_keys)
        return
    if part.mix is not None:
        yield ConfigError(
            "`values` and `mix` each say which parts the group has",
            where=where,
            remedy="keep one of them",
        )
    # If the values have shares, there is no share for the documents with other values.
    values_have_shares = isinstance(part.values, Mapping)
    if part.others and values_have_shares:
        yield ConfigError(
            "the other documents have no share",
            where=f"{where}.others",
            remedy="remove it, or list the values without shares",
        )


def _missing_keys_error(where: str, missing_keys: Sequence[str]) -> ConfigError:
    """Return the error for a part of a mixture that divides a corpus, but does not say how.

    For example, `{of: web, values: [news]}` lacks the column, which is the key `by`.

    Args:
        where: Key of the part.
        missing_keys: Names of the keys that it lacks, of "of", "by" and "values".
    """
    return ConfigError(
        "a corpus is divided by the values of a column",
        where=where,
        found=f"no {' and no '.join(missing_keys)}",
        expected="of, by and values",
        remedy="write it as in {of: web, by: topic, values: [news, science]}; "
        "`nanoset columns CORPUS` shows the values",
    )


class _ValueView(NamedTuple):
    """A view with the documents that have one value of a column."""

    name: str
    """Such as "topics-news"."""
    view: ViewSpec
    share: float | None
    """Its share of the group; None if the group is divided by tokens."""


def _value_views(group_name: str, group: MixPart) -> list[_ValueView]:
    """Return the views into which a group of a mixture divides its corpus, one for each value.

    For `topics: {of: web, by: topic, values: [news], others: true}`, these are two views of `web`:

        topics-news      where "topic" = 'news'
        topics-others    where "topic" not in ('news') or "topic" is null

    Args:
        group_name: Name of the group, such as "topics".
        group: The keys of the group. If one of them is missing, there are no views.
    """
    if group.of is None or group.by is None or not group.values:
        return []
    value_views: list[_ValueView] = []
    column = _quoted(group.by, '"')
    shares = _share_by_value(group.values)  # a value that is listed twice counts once
    for value, share in shares.items():
        view = ViewSpec(of=group.of, where=f"{column} = {_literal(value)}")
        value_views.append(_ValueView(_view_name(group_name, value), view, share))

    if group.others:
        literals = ", ".join(_literal(value) for value in shares)
        condition = f"{column} not in ({literals}) or {column} is null"
        view = ViewSpec(of=group.of, where=condition)
        value_views.append(_ValueView(_view_name(group_name, OTHERS), view, share=None))
    return value_views


def _share_by_value(
    values: tuple[str | int, ...] | Mapping[str, float],
) -> dict[str | int, float | None]:
    """Return which values of a column a group consists of, each with its share, or None.

    A group divides a corpus (a collection of texts) by a column such as the topic:

        values: [news, science]                 → {"news": None, "science": None}
        values: {news: 0.7, science: 0.3}       → {"news": 0.7, "science": 0.3}

    Args:
        values: The key `values` of the group. Without shares, the values are read in proportion to
            their tokens.
    """
    shares: dict[str | int, float | None] = dict.fromkeys(values)
    if isinstance(values, Mapping):
        shares.update(values)
    return shares


def _view_name(group: str, value: str | int) -> str:
    """Return the name of the view of one value: `topics` and "Sci & Tech" give topics-Sci-Tech."""
    return f"{group}-{_NOT_IN_NAMES.sub('-', str(value))}"


def _literal(value: str | int) -> str:
    """Return a value as it is written in a condition: a text in single quotes, or a number."""
    return _quoted(value, "'") if isinstance(value, str) else str(value)


def _quoted(text: str, quote: str) -> str:
    """Return a name or a text as it is written in a condition, in quotes."""
    return quote + text.replace(quote, quote * 2) + quote


def _name_is_taken(view_name: str, where: str) -> ConfigError:
    """Return the error for a view of a mixture whose name another view has.

    The group `topics` with the value "news" needs the view `topics-news`. The user may have defined
    another view of this name, or have two groups `topics` that divide different corpora.

    Args:
        view_name: Name of the view.
        where: Key of the group.
    """
    return ConfigError(
        "a value of the column gives a view whose name is taken by another view",
        where=where,
        found=view_name,
        remedy="rename the group or the other view, or define the views of these values yourself",
    )
