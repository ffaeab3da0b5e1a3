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
    """Return by which column the documents of a dataset are sorted, if they are.

    A view is a selection of documents, and may be made of another view. For example:

        views:
          good:   of: web,  order: {by: score}     sorted by score
          short:  of: good, order: stored          as in `good`, so sorted by score
          mixed:  of: good, order: {seed: 1}       shuffled

    Args:
        views: Name → settings of each view.
        name: Name of a dataset, which need not be a view.

    Returns:
        The order, such as by score. None if the dataset is not a view, or if its documents are in
        the order of the raw text, or shuffled.
    """
    if name not in views:
        return None

    # Go from the first view to this one. The last one that sets an order decides.
    order: ViewOrderSpec | None = None
    for view in chain_of(views, name):
        view_order = views[view].order
        if view_order != "stored":
            order = view_order

    is_shuffled = order is not None and order.by is None
    if is_shuffled:
        return None
    return order


def nanoset_order_warnings(views: Mapping[str, ViewSpec], spec: ResolvedNanoset) -> Iterator[str]:
    """Warn about documents that were sorted for a training, but to no good effect.

    Args:
        views: Name → settings of each view, which is a selection of documents, perhaps sorted by a
            column such as quality.
        spec: The settings of the data for a training.
    """
    for dataset in spec.corpora:
        order = sorting_of(views, dataset)
        if order is None:
            continue  # it is not sorted

        # If the data are cut into 98 % for training and 2 % for validation, all of the best (or
        # worst) documents are for validation.
        held_out_splits = _held_out_splits(spec, dataset)  # such as ["valid", "test"]
        if held_out_splits:
            yield _cut_off_warning(dataset, order, spec.shares, held_out_splits)
        # If the trainer shuffles the samples, the order has no effect.
        if not keeps_order(spec):
            yield _SHUFFLED_BY_TRAINER.format(view=dataset, column=order.by)


def _cut_off_warning(
    view: str, order: ViewOrderSpec, shares: str | None, held_out_splits: Sequence[str]
) -> str:
    """Return the warning that validation data would be the best or the worst documents.

    The documents are sorted, such as by quality, and the last ones are for validation.

    Args:
        view: Name of the view, which is a sorted selection of documents.
        order: By which column it is sorted, and whether in descending order.
        shares: How the documents are divided: "98,1,1" for train, valid and test.
        held_out_splits: The splits at the end, such as ["valid", "test"].
    """
    values_at_end = "lowest" if order.descending else "highest"
    return _CUT_OFF_IN_ORDER.format(
        view=view,
        column=order.by,
        split=shares,  # the key `split` of nanoset.yaml
        held_out=" and ".join(held_out_splits),
        extreme=values_at_end,
    )


def keeps_order(spec: ResolvedNanoset) -> bool:
    """Return whether a nanoset's trainer reads documents in the order of their dataset.

    Args:
        spec: The settings of the nanoset. Its preset names the trainer.
    """
    preset = get_preset(spec.preset)
    return not (preset.shuffles_datasets or preset.shuffles_blend)


def reordering_warnings(
    views: Mapping[str, ViewSpec], datasets: Sequence[str], what: str
) -> Iterator[str]:
    """Warn if documents are sorted in vain, since an output puts them into another order.

    For example: "the view best is sorted by quality, but packs have an order of their own, so this
    order has no effect: remove `order`".

    Args:
        views: Name → settings of each view, which is a selection of documents, perhaps sorted.
        datasets: Names of the datasets that the output is made from, which may be views.
        what: The part of the warning about the output: "packs have an order of their own".
    """
    for dataset in datasets:
        order = sorting_of(views, dataset)
        if order is not None:
            yield _REORDERED.format(view=dataset, column=order.by, what=what)


def view_order_warnings(views: Mapping[str, ViewSpec], name: str) -> Iterator[str]:
    """Warn if a selection of documents is sorted and limited, which may not mean what users think.

    For example, a user wants the 1,000 best documents, and writes

        documents: 1000
        order: {by: quality, descending: true}

    But `documents` first takes any 1,000 documents, and then these are sorted. For the best ones,
    there is the key `top`.

    Args:
        views: Name → settings of each view, which is such a selection.
        name: Name of the view.

    Yields:
        A warning for each key that limits the size.
    """
    if views[name].order == "stored":
        return  # it has the order of another view, which is warned about by itself
    order = sorting_of(views, name)
    if order is None:
        return  # it is not sorted
    has_best_documents = _is_ranked_by(views, name, order.by)
    if has_best_documents:
        return  # a key `top` has selected these by the same column
    for key in _limits(views, name):  # such as "views.best.documents"
        yield _limit_warning(key, order)


def _is_ranked_by(views: Mapping[str, ViewSpec], name: str, column: str | None) -> bool:
    """Return whether a view has the documents with the highest (or lowest) values of a column.

    A view is a selection of documents, and may be made of another view. One of them may have a key
    such as `top: {by: quality, documents: 1000}`, which keeps the 1,000 best documents.

    Args:
        views: Name → settings of each view.
        name: Name of the view.
        column: Name of the column, such as quality.
    """
    for view in chain_of(views, name):
        top = views[view].top
        if top is not None and top.by == column:
            return True
    return False


def _limits(views: Mapping[str, ViewSpec], name: str) -> Iterator[str]:
    """Yield the settings that limit the size of a view, which is a selection of documents.

    A view may be made of another view, which may have a limit, too:

        views:
          good: {of: web, documents: 1000}     "views.good.documents"
          best: {of: good, tokens: 50000}      "views.best.tokens"

    For the view `best`, both are yielded.

    Args:
        views: Name → settings of each view.
        name: Name of the view.
    """
    for view in chain_of(views, name):
        if views[view].documents is not None:
            yield f"views.{view}.documents"
        if views[view].tokens is not None:
            yield f"views.{view}.tokens"


def _limit_warning(key: str, order: ViewOrderSpec) -> str:
    """Return the warning that the size of a selection is limited before it is sorted.

    The user may have expected the best documents, but gets any documents, in sorted order. The
    warning says what to write for the best ones, such as `top: {by: quality, documents: …}`.

    Args:
        key: The key that limits the size, such as "views.best.documents".
        order: The column by which the documents are sorted, and the direction.
    """
    _, _, limit = key.rpartition(".")  # "documents" or "tokens"
    column = order.by
    if order.descending:
        extreme = "highest"
        instead = f"top: {{by: {column}, {limit}: …}}"
    else:
        extreme = "lowest"
        instead = f"top: {{by: {column}, {limit}: …, ascending: true}}"
    return (
        f"`{key}` takes documents in the order of their hashes, and not the first ones by "
        f"{column}: {key} is applied before the order. To keep the documents with the {extreme} "
        f"{column}, use `{instead}` in place of it"
    )


def _held_out_splits(spec: ResolvedNanoset, corpus: str) -> list[SplitName]:
    """Return which evaluation data are cut off at the end of a dataset: valid, test or both.

    For example, by "98,1,1", the first 98 % of the documents are for training, and the others for
    valid and test.

    Args:
        spec: The settings of the data for a training.
        corpus: Name of the dataset.

    Returns:
        The splits; none if nothing is cut off from training data.
    """
    if spec.shares is None or corpus not in corpora_of(spec.blend):
        return []  # the dataset is not divided
    share_by_split = dict(zip(SPLITS, parse_split(spec.shares), strict=True))
    if share_by_split["train"] == 0:
        return []  # such as "0,100,0": all of it is for valid
    held_out_splits: list[SplitName] = []
    for split in SPLITS[1:]:  # valid and test
        if share_by_split[split] > 0:
            held_out_splits.append(split)
    return held_out_splits
