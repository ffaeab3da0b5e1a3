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

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_NAME_DIGITS = 6
"""Digits of a hash that tell values apart whose views would have the same name."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
"""Characters that the name of a view cannot contain."""


def expand_value_groups(
    nanosets: Mapping[str, NanosetSpec], views: Mapping[str, ViewSpec], where: object
) -> ExpandedNanosets:
    """Write out settings that mix the documents of a corpus by the values of a column.

    For each value, define a view, which is a selection of documents, and name it in the settings:

        before    mix: {topics: {of: web, by: topic, values: [news, science]}}
        after     mix: {topics: {mix: {topics-news: {}, topics-science: {}}}}
                  views: {topics-news: {of: web, where: "topic = 'news'"}, topics-science: …}

    Args:
        nanosets: Name → settings of training data, as they are written.
        views: The views that are written, to which those of the values are added.
        where: Path of the nanoset.yaml, for errors.

    Returns:
        The settings that were written out, all views, and the mistakes that were found.
    """
    all_views = dict(views)
    errors: list[ConfigError] = []
    for group in _value_groups_of(nanosets, where):
        mistakes = list(_mistakes(group.part, group.where))
        if mistakes:
            errors += mistakes
            continue
        value_views = _value_views(group.name, group.part, group.key)
        clashes = list(_clashing_names(value_views, group.where))
        if clashes:
            errors += clashes
            continue
        for value_view in value_views:
            # Two groups may share a view, but another view must not have its name.
            existing_view = all_views.setdefault(value_view.name, value_view.view)
            if existing_view != value_view.view:
                errors.append(_name_is_taken(value_view, group.where))

    expanded = {name: _with_expanded_mixtures(nanoset) for name, nanoset in nanosets.items()}
    return ExpandedNanosets(FrozenDict(expanded), FrozenDict(all_views), errors)


class _ValueGroup(NamedTuple):
    """A part of a mixture that divides a corpus by the values of a column."""

    name: str
    part: MixPart
    where: str
    """Key of the part, for errors."""

    @property
    def key(self) -> str:
        """The key of the part without the file, such as "nanosets.pretrain.mix.topics"."""
        _, _, key = self.where.rpartition(": ")
        return key


def _value_groups_of(nanosets: Mapping[str, NanosetSpec], where: object) -> Iterator[_ValueGroup]:
    """Yield all settings that mix the documents of a corpus by the values of a column.

    For `mix: {topics: {of: web, by: topic, values: [news, science]}}` in the nanoset `pretrain`,
    this is the part `topics`, with its key "nanoset.yaml: nanosets.pretrain.mix.topics".

    Args:
        nanosets: Name → settings of training data. They can have a key `mix`, and so can each of
            their phases, which are parts of a training run.
        where: Path of the nanoset.yaml, for the keys.
    """
    for name, nanoset in nanosets.items():
        key = f"{where}: nanosets.{name}"
        for number, phase in enumerate(nanoset.phases):
            yield from _value_groups_in(phase.mix, f"{key}.phases[{number}].mix")
        yield from _value_groups_in(nanoset.mix, f"{key}.mix")


def _value_groups_in(mix: Mix | None, where: str) -> Iterator[_ValueGroup]:
    """Yield the parts of a mixture that divide a corpus by the values of a column.

    Of the mixture

        web: 0.7
        topics: {of: books, by: topic, values: [news]}
        other: {mix: {langs: {of: wiki, by: lang, values: [en]}}}

    these are `topics`, and `langs` in the mixture within `other`.

    Args:
        mix: Name of a part → the part, or only its share; None if there is no mixture.
        where: Key of the mixture in nanoset.yaml, for errors.
    """
    if mix is None:
        return
    for name, part in mix.items():
        if not isinstance(part, MixPart):
            continue  # only a share, such as 0.7
        if part.has_value_keys:  # of, by or values
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
    """Replace the parts of a mixture that divide a corpus by a column, such as the topic of a text.

    Such a part is a short form. It stands for a group of views, which are selections of documents:
    one for each value of the column. In this example, topics-news are the documents of web whose
    topic is "news":

        part of the mixture                                        result
        topics: {of: web, by: topic, values: [news, law]}          topics: {mix: {topics-news: {},
                                                                                  topics-law: {}}}
        code: 0.3                                                  code: 0.3

    The caller adds the views themselves to the settings.

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
    """If a part of a mixture divides a corpus by a column, list a view for each value instead.

        part      {of: web, by: topic, values: [news], temperature: 0.5}
        result    {mix: {topics-news: {}}, temperature: 0.5}

    The view topics-news, a selection of web's documents, is defined elsewhere.

    Args:
        name: Name of the part, such as "topics".
        part: The part.
    """
    if part.has_value_keys:  # of, by and values
        members: dict[str, MixPart] = {}
        for value_view in _value_views(name, part):
            members[value_view.name] = MixPart(share=value_view.share)
        return replace(part, mix=FrozenDict(members), of=None, by=None, values=None, others=False)

    # Another part stays as it is. If it consists of parts itself, these may divide a corpus.
    return replace(part, mix=_expanded(part.mix))


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
        {of: web, by: topic, values: {news: 0.7}, others: 0.3}     fine: others have a share, too
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
    share_error = _share_of_others_error(part, f"{where}.others")
    if share_error is not None:
        yield share_error


def _share_of_others_error(part: MixPart, where: str) -> ConfigError | None:
    """Return an error if only the values of a group have shares, or only the other documents.

    Either all of them have shares, or none of them has.

    Args:
        part: The group.
        where: Key of the setting `others` of the group in nanoset.yaml.
    """
    values_have_shares = isinstance(part.values, Mapping)
    others_have_share = not isinstance(part.others, bool)
    if part.others is True and values_have_shares:
        return ConfigError(
            "the other documents have no share",
            where=where,
            remedy="write their share instead of `true`, remove the key, "
            "or list the values without shares",
        )
    if others_have_share and not values_have_shares:
        return ConfigError(
            "the other documents have a share, and the values have none",
            where=where,
            found=part.others,
            remedy="write `others: true`, or a share for each value, as in values: {news: 0.7}",
        )
    return None


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
    value_text: str
    """The value in words: `'news'`; or `others` in backticks."""
    view: ViewSpec
    share: float | None
    """Its share of the group; None if the group is divided by tokens."""


def _value_views(group_name: str, group: MixPart, key: str = "") -> list[_ValueView]:
    """Return a view for each value by which a corpus is divided: the documents with this value.

    For `topics: {of: web, by: topic, values: {news: 0.7, science: 0.3}}`:

        topics-news       of web, where "topic" = 'news'         share 0.7
        topics-science    of web, where "topic" = 'science'      share 0.3

    Values that are listed without shares, as in `values: [news], others: true`, have the share
    None. With `others`, a further view has all other documents:

        topics-others     of web, where "topic" not in ('news') or "topic" is null

    Args:
        group_name: Name of the group, such as "topics".
        group: The keys of the group. If one of them is missing, there are no views.
        key: Key of the group in nanoset.yaml, for errors.
    """
    if group.of is None or group.by is None or not group.values:
        return []
    value_views: list[_ValueView] = []
    share_by_value = _share_by_value(group.values)  # a value that is listed twice counts once
    names = _view_names(group_name, tuple(share_by_value), has_others=bool(group.others))
    for value, share in share_by_value.items():
        condition = f"{_column_name(group.by)} = {_literal(value)}"
        view = ViewSpec(of=group.of, where=condition, written_at=key)
        value_views.append(_ValueView(names[value], repr(value), view, share))

    if group.others:
        name = _view_name(group_name, OTHERS)
        condition = _condition_of_others(group.by, share_by_value)
        view = ViewSpec(of=group.of, where=condition, written_at=key)
        others_share = None if group.others is True else group.others
        value_views.append(_ValueView(name, f"`{OTHERS}`", view, others_share))
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


def _view_names(
    group: str, values: Sequence[str | int], *, has_others: bool
) -> dict[str | int, str]:
    """Return the name of the view of each value. They differ, except in the case of bad luck.

    Names of views have few characters, so that several values may give the same name. Then a hash
    of the value is appended to it, unless the value is the name:

        values            names in the group `topics`
        sci-tech          topics-sci-tech
        sci/tech          topics-sci-tech-126de9
        sci tech          topics-sci-tech-3ae64d

    A value keeps its name as long as no other value gives the same.

    Args:
        group: Name of the group.
        values: The values, each once.
        has_others: Whether the name of the view with all other documents is taken, too.
    """
    n_views_by_name = Counter(_view_name(group, value) for value in values)
    if has_others:
        n_views_by_name[_view_name(group, OTHERS)] += 1

    names = {}
    for value in values:
        name = _view_name(group, value)
        is_shared = n_views_by_name[name] > 1
        if is_shared and not _keeps_name(group, value, has_others=has_others):
            name = _name_with_hash(name, value)
        names[value] = name
    return names


def _name_with_hash(name: str, value: str | int) -> str:
    """Append a hash of a value to the name of its view, as in topics-sci-tech-126de9."""
    digest = hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()
    return f"{name.rstrip('-')}-{digest[:_NAME_DIGITS]}"


def _keeps_name(group: str, value: str | int, *, has_others: bool) -> bool:
    """Return whether a value gets a view's name for itself if other values would give the same.

        "sci-tech"    yes: the name, `topics-sci-tech`, contains the text as it is
        "sci/tech"    no: a character was replaced in the name
        7             no: it is a number, and the text "7" gives the same name
        "others"      no, if there is a view with all other documents, which has this name

    Args:
        group: Name of the group, such as `topics`.
        value: The value of a column.
        has_others: Whether there is a view with all other documents.
    """
    if has_others and value == OTHERS:
        return False
    return isinstance(value, str) and _view_name(group, value) == f"{group}-{value}"


def _view_name(group: str, value: str | int) -> str:
    """Return the name of the view of one value: `topics` and "Sci & Tech" give topics-Sci-Tech."""
    return f"{group}-{_NOT_IN_NAMES.sub('-', str(value))}"


def _condition_of_others(column: str, values: Iterable[str | int]) -> str:
    """Return the condition for documents that have none of some values in a column.

    For the column `topic` and the value "news": `"topic" not in ('news') or "topic" is null`.

    Args:
        column: Name of the column.
        values: The values.
    """
    column_name = _column_name(column)
    literals = ", ".join(_literal(value) for value in values)
    return f"{column_name} not in ({literals}) or {column_name} is null"


def _column_name(column: str) -> str:
    """Return the name of a column as it is written in a condition: in double quotes."""
    return _quoted(column, '"')


def _literal(value: str | int) -> str:
    """Return a value as it is written in a condition: a text in single quotes, or a number."""
    return _quoted(value, "'") if isinstance(value, str) else str(value)


def _quoted(text: str, quote: str) -> str:
    """Return a name or a text as it is written in a condition, in quotes."""
    return quote + text.replace(quote, quote * 2) + quote


def _clashing_names(value_views: Sequence[_ValueView], where: str) -> Iterator[ConfigError]:
    """Yield an error for each name that two or more views of a group have.

    Each view has the documents with one value of a column, and is named by the value. If names
    would be equal, a hash is appended. This is for what remains, with bad luck:

        value               name of its view in the group `topics`
        sci-tech            topics-sci-tech
        sci/tech            topics-sci-tech-126de9, with its hash, since the name above is taken
        sci-tech-126de9     topics-sci-tech-126de9, the same again

    Args:
        value_views: The views of the group.
        where: Key of the group in nanoset.yaml.
    """
    values_by_name: dict[str, list[str]] = {}
    for value_view in value_views:
        values_by_name.setdefault(value_view.name, []).append(value_view.value_text)

    for name, values in values_by_name.items():
        if len(values) > 1:
            yield ConfigError(
                "several values of the column give views of the same name",
                where=where,
                found=f"{name}, from each of {', '.join(values)}",
                remedy="define views of these values yourself, and list them under `mix`",
            )


def _name_is_taken(value_view: _ValueView, where: str) -> ConfigError:
    """Return the error for a group of a mixture that needs a view whose name another view has.

    For the value "news", the group `topics` needs the view `topics-news`, a selection of documents.
    The user may have defined another view of this name.

    Args:
        value_view: The view that the group needs.
        where: Key of the group in nanoset.yaml.
    """
    return ConfigError(
        "a value of the column gives a view whose name is taken by another view",
        where=where,
        found=f"{value_view.name}, for {value_view.value_text}",
        remedy="rename the group or the other view, or define the views of these values yourself",
    )
