"""Settings of views: datasets of documents that are chosen from a corpus.

For example, these are the settings of a view `clean` of the corpus `web`, and of a view of it:

    views:
      clean: {of: web, where: "quality >= 3", exclude: takedown.txt}
      clean-small: {of: clean, tokens: 1e9}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.names import CorpusName
from nanoset_core.records.rules import Check, Section
from nanoset_core.records.settings import NOT_A_KEY, Range

ID_LIST_KEYS: tuple[Literal["include", "exclude"], ...] = ("include", "exclude")
"""Keys of a view that name files of ids."""
Share = Annotated[float, Range(0, 1)]
MAX_CHAIN_LENGTH = 16
"""Views of views of views …: how many may lead from a corpus to a view."""


@dataclass(frozen=True, slots=True)
class ViewSplitSpec(Section):
    """A share of the documents, chosen by a hash."""

    keep: tuple[Share, ...] = field(metadata={"example": "[0, 0.01]"})
    """Start and end of the share, from 0 to 1. Shares that meet, such as [0, 0.1] and [0.1, 1],
    have no document in common.
    """
    by: str = "id"
    """Column that is hashed, so that documents with the same value stay together. If the value is
    null, the document's file and line are hashed.
    """
    seed: Annotated[int, Range(0, 2**63 - 1)] | None = None
    """Chooses by another hash, so that a share of a share has the expected size. Splits with the
    same seed, or without one, choose from the same order.
    """

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error if the share is not two ascending numbers."""
        if len(self.keep) != 2 or not self.keep[0] < self.keep[1]:
            yield ConfigError(
                "the start of a share must be below its end",
                where=f"{where}.keep",
                found=list(self.keep),
                expected="two numbers, 0 to 1",
                remedy="write it as in keep: [0, 0.01]",
            )


@dataclass(frozen=True, slots=True)
class ViewTopSpec(Section):
    """The documents with the best values of a column, up to a budget."""

    by: str = field(metadata={"example": "quality"})
    """Column of numbers, such as a score. Documents without a value, or with NaN, are not chosen.
    Those with equal values are taken in the order of their hashes.
    """
    tokens: Annotated[float, Range(0, 1e15)] | None = None
    """Most tokens. A smaller number chooses a part of what a larger one chooses."""
    documents: Annotated[float, Range(0, 1e15)] | None = None
    """Most documents, in place of `tokens`."""
    share: Share | None = None
    """Share of the documents that have a value, 0 to 1, in place of `tokens`."""
    ascending: bool = False
    """Choose the lowest values instead of the highest, for example of a perplexity."""

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error unless there is exactly one limit: of tokens, documents, or a share."""
        budget_by_key = {"tokens": self.tokens, "documents": self.documents, "share": self.share}
        keys = [key for key, budget in budget_by_key.items() if budget is not None]
        if len(keys) != 1:
            yield ConfigError(
                "`top` has one budget",
                where=where,
                found=" and ".join(keys) or "none",
                expected="tokens, documents or share",
                remedy="write it as in top: {by: quality, tokens: 10e9}",
            )


@dataclass(frozen=True, slots=True)
class ViewOrderSpec(Section):
    """The order of the documents of a view."""

    by: str | None = None
    """Column by which documents are sorted, smallest values first; documents without a value come
    last.
    """
    descending: bool = False
    """Put the greatest values first."""
    seed: Annotated[int, Range(0, 2**63 - 1)] | None = None
    """Shuffle by a hash of this seed and each document. Documents that are appended later do not
    change the order of the others.
    """

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error unless there is either a column or a seed."""
        has_column = self.by is not None
        has_seed = self.seed is not None
        if has_column == has_seed:
            yield ConfigError(
                "an order is by a column or by a seed",
                where=where,
                expected="order: {by: quality} or order: {seed: 1}",
                remedy="name one of them",
            )


def check_condition(text: str, where: str) -> None:
    """Check that a text is a condition on columns.

    Args:
        text: A text such as "quality >= 3 and lang = 'en'".
        where: The setting that holds it, for messages.

    Raises:
        ConfigError: The text is no condition.
    """
    # Imported here, since most projects and commands have no conditions.
    from nanoset_core.document_tables.conditions import parse_condition

    parse_condition(text, where)


@dataclass(frozen=True, slots=True)
class ViewSpec(Section):
    """A dataset of documents that rules choose from a corpus, applied in the order below.

    It has its own index, which points to the tokens of the corpus.
    """

    of: CorpusName = field(metadata={"example": "web"})
    """The corpus, or another view."""
    include: tuple[str, ...] | str | None = None
    """Files of ids, local or s3://…; patterns are allowed. Only documents that one of the files
    lists are chosen. A file has one id on each line, or is a Parquet or Arrow table with a column
    `id`.
    """
    exclude: tuple[str, ...] | str | None = None
    """Files of ids, as for `include`: documents with these ids are left out."""
    clean_of: tuple[str, ...] = ()
    """Sections of `contamination`: documents that contain one of their texts are left out."""
    where: Annotated[str, Check(check_condition)] | None = None
    """Condition on columns, such as "quality >= 3 and lang = 'en'"; documents for which it is true
    are chosen.
    """
    split: ViewSplitSpec | None = None
    """A share of the documents. Documents that are appended later change nothing about the others.
    """
    top: ViewTopSpec | None = None
    """The documents with the best values of a column, up to a number of tokens or documents."""
    documents: Annotated[float, Range(0, 1e15)] | None = None
    """Most documents, chosen by a hash. A smaller number chooses a part of what a larger one
    chooses.
    """
    tokens: Annotated[float, Range(0, 1e15)] | None = None
    """Most tokens, chosen in the same way."""
    repeat: Annotated[float, Range(0.001, 10_000)] = 1.0
    """How often every document is given. With 2.3, each is given twice, and 30 % of them, by a
    hash, a third time.
    """
    order: ViewOrderSpec | Literal["stored"] = "stored"
    """The order of the documents of the view."""
    written_at: str = field(default="", kw_only=True, compare=False, metadata=NOT_A_KEY)
    """For a view that a mixture by a column stands for: the key of this mixture, for messages."""

    def key(self, name: str, key: str = "") -> str:
        """Return where in nanoset.yaml a setting of the view is, for messages.

            a view under `views`                 views.best.where
            a view of a mixture by a column      nanosets.pretrain.mix.topics

        Args:
            name: Name of the view.
            key: The setting, such as "where"; empty for the whole view.
        """
        if self.written_at:
            return self.written_at
        return f"views.{name}.{key}" if key else f"views.{name}"

    def files(self, key: Literal["include", "exclude"]) -> tuple[str, ...] | None:
        """Return the files of ids that the setting `include` or `exclude` of a view names.

        A single name may be written without a list: `exclude: takedown.txt`.

        Args:
            key: `include` or `exclude`.

        Returns:
            Paths of the files; None if the view does not have the key.
        """
        files = self.include if key == "include" else self.exclude
        if isinstance(files, str):
            return (files,)
        return files

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each mistake in the settings of a view that only several values show.

            tokens: 1e9, documents: 1000    only one limit is allowed
            exclude: []                     names no file

        Args:
            where: Place of the view, such as "nanoset.yaml: views.english".
        """
        if self.tokens is not None and self.documents is not None:
            yield ConfigError(
                "a budget is of tokens or of documents",
                where=f"{where}.tokens",
                remedy="keep one of them; a view that is chosen from this view may have the other",
            )
        for key in ID_LIST_KEYS:  # include, exclude
            # An empty list is probably a mistake: it would choose no document, or leave none out.
            files = self.files(key)
            if files is not None and len(files) == 0:
                yield ConfigError(
                    "include and exclude are lists of files of ids",
                    where=f"{where}.{key}",
                    found="no file",
                    remedy="name a file, or remove the key",
                )


class Derived(Protocol):
    """The settings of a dataset that is made from another one: of a view or packed dataset."""

    @property
    def of(self) -> str:
        """Name of the dataset that it is made from."""
        ...


def chain_of(views: Mapping[str, Derived], name: str) -> list[str]:
    """Return the views that lead from a corpus to a view, which is the last one.

    A view selects documents of a corpus, or of another view. For example:

        english: {of: web}          web is a corpus
        best: {of: english}         the chain of `best` is [english, best]

    By mistake, views can form a circle: a of b, and b of a. So this ends after MAX_CHAIN_LENGTH + 1
    (17) views. `view_errors` reports chains of this length.

    Args:
        views: All datasets that are made from others, by name.
        name: One of these names.
    """
    chain = [name]
    while len(chain) <= MAX_CHAIN_LENGTH:
        source = views[chain[0]].of
        if source not in views:
            break
        chain.insert(0, source)
    return chain


def base_of(views: Mapping[str, Derived], name: str) -> str:
    """Return the corpus that a dataset is made from, directly or by way of other datasets.

    For example, `b` is a selection of the documents of `a`, and `a` is a selection of those of the
    corpus `web`. Then this is `web` for all three names.

    Args:
        views: The datasets that are made from others, by name.
        name: Such a dataset, or a corpus.
    """
    if name not in views:
        return name  # a corpus
    chain = chain_of(views, name)  # such as [a, b]
    first_view = chain[0]  # a, which is made from the corpus itself
    return views[first_view].of


def view_errors(
    file: Path, views: Mapping[str, ViewSpec], corpora: Mapping[str, object]
) -> Iterator[ConfigError]:
    """Yield an error for each view that cannot be traced back to a corpus, or has the name of one.

    A view selects documents of a corpus, or of another view. These are mistakes:

        a: {of: b}, b: {of: a}          a circle: none of them is made from a corpus
        a: {of: b}, b: {of: c}, …       more than MAX_CHAIN_LENGTH (16) views
        web: {of: web}                  the same name as the corpus

    Names that do not exist are reported elsewhere.

    Args:
        file: nanoset.yaml, for messages.
        views: The section `views`: name → settings of the view.
        corpora: The section `corpora`, by name.
    """
    for name, view in views.items():
        where = f"{file}: views.{name}.of"
        chain = chain_of(views, name)  # [b, a] if a is of b; [a, b, a, b, …] for a circle
        is_circle = len(set(chain)) < len(chain)
        if is_circle:
            yield _circle_error(view, where)
        elif len(chain) > MAX_CHAIN_LENGTH:
            yield _long_chain_error(chain, where)
        if name in corpora:
            yield ConfigError(
                "a view and a corpus share a name", where=where, remedy="rename the view"
            )


def _circle_error(view: ViewSpec, where: str) -> ConfigError:
    """Return the error for a view that is chosen from itself, by way of other views.

    Args:
        view: The settings of the view.
        where: The setting that names what it is chosen from.
    """
    return ConfigError(
        "this view is of itself, by way of others",
        where=where,
        found=view.of,
        remedy="name a corpus at the end of the chain",
    )


def _long_chain_error(chain: list[str], where: str) -> ConfigError:
    """Return the error for a view of a view of a view … that is too far away from a corpus.

    A view selects documents of a corpus, or of another view.

    Args:
        chain: The views from the corpus to this one, such as [a, b, c].
        where: The setting that names what the view selects from.
    """
    from_this_view_on = reversed(chain)  # "c of b of a"
    return ConfigError(
        "too many views of views",
        where=where,
        found=" of ".join(from_this_view_on),
        remedy=f"name a view that is at most {MAX_CHAIN_LENGTH} views away from a corpus",
    )
