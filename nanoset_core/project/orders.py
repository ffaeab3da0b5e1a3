"""Warn about sorted views whose order has no effect on training.

A view is a selection of the documents of a corpus, which `order: {by: score}` sorts by a column.
The settings are valid, but rarely what their author means: the trainer may shuffle the samples, or
`split` may cut off the documents at the end of the order, those with the highest scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.views.settings import ViewOrderSpec, ViewSpec, chain_of

_CUT_OFF_IN_ORDER = (
    "the view {view} is sorted by {column}, and `split: {split}` cuts it at the end of that order: "
    "{held_out} would be the documents with the {extreme} {column}, and train has none of them. "
    "Choose both by a hash instead: two views of {view}, one with "
    "`split: {{by: id, keep: [0.01, 1]}}` for train and one with "
    "`split: {{by: id, keep: [0, 0.01]}}` for {held_out}, named in `blend_per_split`"
)
_SHUFFLED_BY_TRAINER = (
    "the view {view} is sorted by {column}, but the trainer shuffles the samples, "
    "so this order has no effect. Remove `order`, or train with a reader that keeps it "
    "(see docs/choosing.md, Readers that keep an order)"
)
_REORDERED = (
    "the view {view} is sorted by {column}, but {what}, so this order has no effect: remove `order`"
)


def sorting_of(views: Mapping[str, ViewSpec], name: str) -> ViewOrderSpec | None:
    """Return by which column a view is sorted, and whether in descending order.

    Args:
        views: Name → settings of each view, a selection of documents.
        name: Name of a dataset, which may be a view.

    Returns:
        The order, such as by "score", descending; None if the dataset is not a view, or if its
        documents are in the order of the raw text or shuffled by a seed.
    """
    if name not in views:
        return None

    # A view may be a selection from another view, and so on. The last one that sets an order
    # decides; `order: stored` keeps that of the view before it.
    order: ViewOrderSpec | None = None
    for view in chain_of(views, name):
        view_order = views[view].order
        if view_order != "stored":
            order = view_order

    is_shuffled = order is not None and order.by is None
    return None if is_shuffled else order


def nanoset_order_warnings(views: Mapping[str, ViewSpec], spec: ResolvedNanoset) -> Iterator[str]:
    """Yield a warning for each sorted view that does not suit the trainer of a nanoset.

    Args:
        views: Name → settings of each view, a selection of documents.
        spec: The settings of the nanoset.
    """
    for dataset in spec.corpora:
        order = sorting_of(views, dataset)
        if order is None:
            continue  # not a view, or not sorted

        # The trainer cuts a dataset into splits in the order of its documents. If a view is sorted
        # by quality, the best or the worst documents become the split for validation.
        held_out_splits = _held_out_splits(spec, dataset)
        if held_out_splits:
            yield _cut_off_warning(dataset, order, spec.shares, held_out_splits)

        # Most trainers then shuffle the samples of each split, so that sorting was in vain.
        if not keeps_order(spec):
            yield _SHUFFLED_BY_TRAINER.format(view=dataset, column=order.by)


def _cut_off_warning(
    view: str, order: ViewOrderSpec, shares: str | None, held_out_splits: Sequence[str]
) -> str:
    """Return the warning that splits for evaluation are cut off at the end of a sorted view.

    Args:
        view: Name of the view.
        order: Its order. At the end of an ascending one are the documents with the highest values.
        shares: The key `split` of the nanoset, such as "98,1,1".
        held_out_splits: The splits that are cut off.
    """
    return _CUT_OFF_IN_ORDER.format(
        view=view,
        column=order.by,
        split=shares,
        held_out=" and ".join(held_out_splits),
        extreme="lowest" if order.descending else "highest",
    )


def keeps_order(spec: ResolvedNanoset) -> bool:
    """Return whether a nanoset's trainer reads documents in the order of their dataset.

    Args:
        spec: The settings of the nanoset. Its preset names the trainer. Those that read windows,
            stretches of consecutive tokens, without a shuffle keep the order.
    """
    preset = get_preset(spec.preset)
    return preset.windows and not preset.shuffles_blend


def reordering_warnings(
    views: Mapping[str, ViewSpec], datasets: Sequence[str], what: str
) -> Iterator[str]:
    """Yield a warning for each sorted view whose documents an output puts into another order.

    Args:
        views: Name → settings of each view, a selection of documents.
        datasets: Names of the datasets that the output is made from. Those that are not sorted
            views give no warning.
        what: What the output does with the documents, as a clause such as "packs have an order of
            their own".
    """
    for dataset in datasets:
        order = sorting_of(views, dataset)
        if order is not None:
            yield _REORDERED.format(view=dataset, column=order.by, what=what)


def view_order_warnings(views: Mapping[str, ViewSpec], name: str) -> Iterator[str]:
    """Yield a warning for each limit on the size of a sorted view, since it ignores the order.

    Users may expect `order: {by: quality}` with `documents: 1000` to take the 1,000 best documents.
    But the limit takes any 1,000 documents, which are sorted afterwards. The rule `top` takes the
    best ones.

    Args:
        views: Name → settings of each view, a selection of documents.
        name: Name of the view.
    """
    if views[name].order == "stored":
        return  # it keeps the order of another view, which gets the warning
    order = sorting_of(views, name)
    if order is None:
        return  # it is not sorted
    if _is_ranked_by(views, name, order.by):
        return  # it uses `top`
    for key in _limits(views, name):
        yield _limit_warning(key, order)


def _is_ranked_by(views: Mapping[str, ViewSpec], name: str, column: str | None) -> bool:
    """Return whether a view, or one that it is chosen from, has a rule `top` by a column.

    Such a rule keeps the documents with the highest values of the column, as an order does not.

    Args:
        views: Name → settings of each view.
        name: Name of the view.
        column: Name of the column.
    """
    for view in chain_of(views, name):
        top = views[view].top
        if top is not None and top.by == column:
            return True
    return False


def _limits(views: Mapping[str, ViewSpec], name: str) -> Iterator[str]:
    """Yield the keys that limit the size of a view, or of the views that it is chosen from.

    Args:
        views: Name → settings of each view.
        name: Name of the view.

    Yields:
        Paths in nanoset.yaml, such as "views.best.documents".
    """
    for view in chain_of(views, name):
        if views[view].documents is not None:
            yield f"views.{view}.documents"
        if views[view].tokens is not None:
            yield f"views.{view}.tokens"


def _limit_warning(key: str, order: ViewOrderSpec) -> str:
    """Return the warning that a limit on the size of a sorted view ignores the order.

    Args:
        key: Path of the limit in nanoset.yaml, such as "views.best.documents".
        order: The order of the view.
    """
    _, _, limit = key.rpartition(".")  # "documents" or "tokens"
    column = order.by
    best = "highest" if order.descending else "lowest"

    # What to write instead, such as {by: score, documents: …, ascending: true}.
    rule = f"by: {column}, {limit}: …"
    if not order.descending:
        rule += ", ascending: true"
    return (
        f"`{key}` takes documents in the order of their hashes, and not the first ones by "
        f"{column}: {key} is applied before the order. To keep the documents with the {best} "
        f"{column}, use `top: {{{rule}}}` in place of it"
    )


def _held_out_splits(spec: ResolvedNanoset, corpus: str) -> list[SplitName]:
    """Return the splits that get the documents at the end of a dataset: valid, test or both.

    Args:
        spec: The settings of a nanoset. Its key `split`, such as "98,1,1", cuts each dataset into
            consecutive parts for train, valid and test.
        corpus: Name of the dataset.

    Returns:
        The splits, such as ["valid", "test"]; empty if the nanoset does not cut this dataset.
    """
    if spec.shares is None or corpus not in corpora_of(spec.blend):
        return []
    train_share, *other_shares = parse_split(spec.shares)
    if train_share == 0:
        return []  # all documents are for evaluation, so none are cut off from training
    return [split for split, share in zip(SPLITS[1:], other_shares, strict=True) if share > 0]
