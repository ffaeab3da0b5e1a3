"""`nanoset diff` of a view: which documents it gained and lost from one version to the other, and by which rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.stream import token_starts
from nanoset_core.lineage.documents import DocumentOrigin, Lineage
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.views.choosing import document_groups
from nanoset_core.stages.views.rules import Rows
from nanoset_core.stages.views.stage import chosen_from
from nanoset_core.stages.views.writing import documents_in, documents_with_tokens


class Documents(NamedTuple):
    """Documents that one version has and the other has not, or not so often."""

    documents: int
    """Each counted as often as it is given."""
    tokens: int
    """Also of documents whose text changed."""
    first: list[DocumentOrigin]
    """The first of them."""


@dataclass(frozen=True, slots=True)
class ViewDiff:
    """Two versions of a view, compared."""

    old: Manifest
    new: Manifest
    settings: list[str]
    """Rules, contents of lists of ids, and inputs that differ, as `name: before → after`."""
    gained: Documents
    lost: Documents

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        values: dict[str, Any] = {"view": self.new.name, "settings": self.settings}
        for side in ("old", "new"):
            one = getattr(self, side)
            counts = {name: one.facts[name] for name in ("documents", "tokens")}
            values[side] = {"digest": one.digest, "made_at": one.written_ns / 1e9, **counts}
        for side in ("gained", "lost"):
            found: Documents = getattr(self, side)
            first = [{"id": one.id, "file": one.file, "line": one.line, "tokens": one.tokens} for one in found.first]
            values[side] = {"documents": found.documents, "tokens": found.tokens, "first": first}
        return values


class _Held(NamedTuple):
    """The documents of a version, as those of its corpus."""

    documents: NDArray[np.int64]
    times: NDArray[np.int64]
    tokens: NDArray[np.int64]
    """Of all times together."""
    keys: NDArray[Any]
    """What is one document's in both versions."""


def diff_views(project: Project, old: Manifest, new: Manifest, show: int) -> ViewDiff:
    """Compare two versions of a view, and name so many documents; takes some 100 bytes of memory a document.

    Where the corpus is another by now, documents with the same id are the same, and those without one by file and line.

    Raises:
        MissingError: the dataset that one was chosen from is gone, or its shards are.
    """
    same = old.recipe["parents"]["dataset"] == new.recipe["parents"]["dataset"]
    before, after = (_held(project, one, by_number=same) for one in (old, new))
    _, places = np.unique(np.concatenate([before.keys, after.keys]), return_inverse=True)
    sides = places[: len(before.keys)], places[len(before.keys) :]
    size = int(places.max(initial=-1)) + 1
    times, tokens = (_sums(sides, size, one, other) for one, other in ((before[1], after[1]), (before[2], after[2])))
    found = []
    for view, held, own, sign in ((new, after, sides[1], 1), (old, before, sides[0], -1)):
        more = held.documents[np.flatnonzero(sign * times[own] > 0)[:show]].tolist()
        first = Lineage(project.outputs, chosen_from(project.outputs, view)).origins(more) if more else []
        documents, more_tokens = (int(np.maximum(sign * one, 0).sum()) for one in (times, tokens))
        found.append(Documents(documents, more_tokens, first))
    options = ({**one.recipe["parents"], **one.recipe["options"]} for one in (old, new))
    return ViewDiff(old, new, setting_differences(*options), *found)


def _sums(
    sides: tuple[NDArray[np.int64], NDArray[np.int64]], size: int, before: NDArray[np.int64], after: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return what values of the same document add up to afterwards, less what they did before."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, sides[1], after)
    np.subtract.at(sums, sides[0], before)
    return sums


def _held(project: Project, view: Manifest, *, by_number: bool) -> _Held:
    base = chosen_from(project.outputs, view)
    whole, own = open_dataset(base), open_dataset(view)
    numbers = [documents_in(whole, own, some) for some in documents_with_tokens(own, (0, len(own)))]
    documents, times = np.unique(np.concatenate([np.empty(0, np.int64), *numbers]), return_counts=True)
    lengths = np.diff(token_starts(whole, whole.document_indices[:]))[documents]
    keys: NDArray[Any] = documents
    if not by_number:
        groups = [Rows(group).keys() for group in document_groups(project, base.name, base)]
        keys = np.concatenate([np.empty(0, np.uint64), *groups])[documents]
    return _Held(documents, times, times * lengths, keys)
