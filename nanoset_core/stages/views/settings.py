"""Settings of views: datasets that are chosen from a corpus's documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from nanoset_core.errors import ConfigError, raised
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.records.parsing import broken
from nanoset_core.records.settings import Range
from nanoset_core.stages.views.conditions import parse_condition

Share = Annotated[float, Range(0, 1)]
MOST_VIEWS_DEEP = 16

_TEXTS = {
    "circle": ("this view is of itself, by way of others", "name a corpus at the end of the chain"),
    "depth": (
        "too many views of views",
        f"name a view that is at most {MOST_VIEWS_DEEP} views away from a corpus",
    ),
    "keep": (
        "a share must have a beginning below its end",
        "write it as in keep: [0, 0.01]",
        "two numbers, 0 to 1",
    ),
    "both": (
        "a budget is of tokens or of documents",
        "keep one of them; a view of this view may have the other",
    ),
    "name": ("a view and a corpus share a name", "rename the view"),
    "order": (
        "an order is by a column or by a seed",
        "name one of them",
        "order: {by: quality} or order: {seed: 1}",
    ),
    "nothing": ("include and exclude are lists of files of ids", "name a file, or remove the key"),
}
"""Rule of a view → what is wrong, and the remedy; see `broken`."""


@dataclass(frozen=True, slots=True)
class ViewSplitSpec:
    """A share of the documents, by a hash."""

    keep: tuple[Share, ...] = field(metadata={"example": "[0, 0.01]"})
    """Beginning and end of the share, 0 to 1; shares that meet have no document in common."""
    by: str = "id"
    """Column whose hash decides, so that documents with the same value stay together; where it is
    null, the document's file and line decide."""


@dataclass(frozen=True, slots=True)
class ViewOrderSpec:
    """In which order documents lie in the view."""

    by: str | None = None
    """Column whose values ascend; documents without one come last."""
    descending: bool = False
    """Greatest values first."""
    seed: Annotated[int, Range(0, 2**63 - 1)] | None = None
    """Shuffled by a hash of this seed and each document; an appended one changes the order of no
    others.
    """


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """A dataset that is chosen from a corpus: its own index over the same tokens. Rules apply in
    the order below.
    """

    of: str = field(metadata={"example": "web"})
    """The corpus, or another view."""
    include: tuple[str, ...] | str | None = None
    """Files of ids, local or s3://…; patterns may be given: only documents with these ids are
    chosen. A file has one id a line, or is a Parquet or Arrow table with a column `id`."""
    exclude: tuple[str, ...] | str | None = None
    """Files of ids of documents that are left out."""
    clean_of: tuple[str, ...] = ()
    """Sections of `contamination` whose texts no document may hold."""
    where: str | None = None
    """Condition on columns, such as "quality >= 3 and lang = 'en'"; a document is chosen where it
    is true.
    """
    split: ViewSplitSpec | None = None
    """A share of the documents, which an append does not change."""
    documents: Annotated[float, Range(0, 1e15)] | None = None
    """Most documents, chosen by hash; a smaller number gives a part of what a larger one gives."""
    tokens: Annotated[float, Range(0, 1e15)] | None = None
    """Most tokens, chosen in the same way."""
    repeat: Annotated[float, Range(0.001, 10_000)] = 1.0
    """How often every document is given; of a fraction that share of the documents, by hash, once
    more.
    """
    order: ViewOrderSpec | Literal["stored"] = "stored"
    """In which order documents lie in the view."""

    def files(self, key: Literal["include", "exclude"]) -> tuple[str, ...] | None:
        """Return the files of ids that a key names; None without it."""
        given = getattr(self, key)
        return (given,) if isinstance(given, str) else given


class Derived(Protocol):
    """A view, or packs."""

    @property
    def of(self) -> str:
        """The corpus, view or packs that it is of."""
        ...


def chain_of(views: Mapping[str, Derived], name: str) -> list[str]:
    """Return the views from the one that is of a corpus down to this one; at most MOST_VIEWS_DEEP
    and one more.
    """
    chain = [name]
    while (above := views[chain[0]].of) in views and len(chain) <= MOST_VIEWS_DEEP:
        chain.insert(0, above)
    return chain


def base_of(views: Mapping[str, Derived], name: str) -> str:
    """Return the corpus that a view, or packs, are of at last; of a corpus itself."""
    return views[chain_of(views, name)[0]].of if name in views else name


def view_errors(
    file: Path, views: Mapping[str, ViewSpec], corpora: Mapping[str, object]
) -> Iterator[ConfigError]:
    """Yield an error for each view that cannot be, and for each condition that cannot be parsed."""
    for name, view in views.items():
        where = f"{file}: views.{name}"
        yield from raised(check_corpus_name, name, where)
        yield from raised(check_corpus_name, view.of, f"{where}.of")
        chain = chain_of(views, name)
        is_order, keep = (
            view.order != "stored",
            (0.0, 1.0) if view.split is None else view.split.keep,
        )
        by, seed = (None, None) if isinstance(view.order, str) else (view.order.by, view.order.seed)
        yield from broken(
            f"{where}.",
            _TEXTS,
            (len(set(chain)) < len(chain), "circle", "of", view.of),
            (
                len(set(chain)) == len(chain) > MOST_VIEWS_DEEP,
                "depth",
                "of",
                " of ".join(reversed(chain)),
            ),
            (len(keep) != 2 or not keep[0] < keep[-1], "keep", "split.keep", list(keep)),
            (view.tokens is not None and view.documents is not None, "both", "tokens", None),
            (name in corpora, "name", "of", None),
            (is_order and (by is None) == (seed is None), "order", "order", None),
            (() in (view.files("include"), view.files("exclude")), "nothing", "exclude", "no file"),
        )
        if view.where is not None:
            yield from raised(parse_condition, view.where, f"{where}.where")
