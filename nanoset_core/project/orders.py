"""Warn about sorted views whose order has no effect on training.

The settings are valid, but rarely what their author means: the trainer may shuffle the samples, or
`split` may cut off the documents at the end of the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.views.settings import ViewOrderSpec, ViewSpec, chain_of

_CUT = (
    "the view {view} is sorted by {column}, and `split: {split}` cuts it at the end of that order: "
    "{held_out} would be the documents with the {extreme} {column}, and train has none of them. "
    "Choose both by a hash instead: two views of {view}, one with "
    "`split: {{by: id, keep: [0.01, 1]}}` for train and one with "
    "`split: {{by: id, keep: [0, 0.01]}}` for {held_out}, named in `blend_per_split`"
)
_SHUFFLED = (
    "the view {view} is sorted by {column}, but the trainer shuffles the samples, "
    "so this order has no effect. Remove `order`, or train with a reader that keeps it "
    "(see docs/choosing.md, Readers that keep an order)"
)
_REORDERED = (
    "the view {view} is sorted by {column}, but {what}, so this order has no effect: remove `order`"
)
_BUDGET = (
    "`{key}` takes documents in the order of their hashes, and not the first ones by {column}: "
    "{key} is applied before the order. To keep the documents with the {best} {column}, "
    'choose them by a condition, such as `where: "{column} {sign} …"`; '
    "`nanoset view {view}` shows how many documents and tokens a condition leaves"
)


def sorting_of(views: Mapping[str, ViewSpec], name: str) -> ViewOrderSpec | None:
    """Return the column, and the direction, by which the documents of a dataset are sorted.

    Args:
        views: Name → settings of each view.
        name: Name of the dataset.

    Returns:
        The order; None if the dataset is not a view, or if its documents are in the order of the
        raw text or shuffled by a seed.
    """
    if name not in views:
        return None

    # The last view of the chain that has an order decides.
    order: ViewOrderSpec | None = None
    for view in chain_of(views, name):
        spec = views[view].order
        if not isinstance(spec, str):
            order = spec
    if order is None or order.by is None:
        return None
    return order


def nanoset_order_warnings(views: Mapping[str, ViewSpec], spec: ResolvedNanoset) -> Iterator[str]:
    """Yield a warning for each sorted view whose order spoils the splits, or is lost in training.

    Trainers that read `.bin` and `.idx` pairs cut the dataset into splits first, in the order of
    its documents, and then shuffle the samples of each split.

    Args:
        views: Name → settings of each view.
        spec: The settings of the nanoset.
    """
    for view in spec.corpora:
        order = sorting_of(views, view)
        if order is None:
            continue

        held_out = _held_out_splits(spec, view)
        if held_out:
            # The documents at the end of an ascending order have the highest values.
            extreme = "lowest" if order.descending else "highest"
            yield _CUT.format(
                view=view,
                column=order.by,
                split=spec.shares,
                held_out=" and ".join(held_out),
                extreme=extreme,
            )
        if not keeps_order(spec):
            yield _SHUFFLED.format(view=view, column=order.by)


def keeps_order(spec: ResolvedNanoset) -> bool:
    """Return whether a nanoset's trainer reads documents in the order of their dataset.

    That is so for trainers that read windows, stretches of consecutive tokens, without a shuffle.
    """
    preset = get_preset(spec.preset)
    return preset.windows and not preset.shuffles_blend


def reordering_warnings(
    views: Mapping[str, ViewSpec], names: Sequence[str], what: str
) -> Iterator[str]:
    """Yield a warning for each sorted view whose documents an output puts into another order.

    Args:
        views: Name → settings of each view.
        names: Names of the datasets that the output is made from.
        what: What the output does, as a clause.
    """
    for view in names:
        order = sorting_of(views, view)
        if order is not None:
            yield _REORDERED.format(view=view, column=order.by, what=what)


def view_order_warnings(views: Mapping[str, ViewSpec], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a sorted view, since budgets ignore the order.

    A budget is the largest number of documents or tokens that a view, or a view that it is chosen
    from, takes.

    Args:
        views: Name → settings of each view.
        name: Name of the view.
    """
    # A view may inherit its order from the view that it is chosen from. Then that one is warned of.
    order = sorting_of(views, name)
    if order is None or isinstance(views[name].order, str):
        return
    for view in chain_of(views, name):
        for key in ("documents", "tokens"):
            if getattr(views[view], key) is None:
                continue
            yield _BUDGET.format(
                key=f"views.{view}.{key}",
                column=order.by,
                best="highest" if order.descending else "lowest",
                sign=">=" if order.descending else "<=",
                view=name,
            )


def _held_out_splits(spec: ResolvedNanoset, corpus: str) -> list[SplitName]:
    """Return the splits that get the documents at the end of a dataset: valid, test or both.

    Args:
        spec: The settings of a nanoset. Its key `split`, such as "98,1,1", cuts each dataset into
            consecutive parts for train, valid and test.
        corpus: Name of the dataset.

    Returns:
        The splits; empty if the nanoset divides its data in another way.
    """
    if spec.shares is None or corpus not in corpora_of(spec.blend):
        return []
    train, *others = parse_split(spec.shares)
    if not train:
        return []
    return [split for split, share in zip(SPLITS[1:], others, strict=True) if share > 0]
