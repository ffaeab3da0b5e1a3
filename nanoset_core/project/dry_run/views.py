"""What the views would choose that a build is going to make, for a dry run.

A view is a selection of the documents of a corpus by rules, such as `top: {by: score, documents:
1000}`. The result for a view is how many documents and tokens it would have: it is chosen, but not
written.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoset_core.errors import NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.stage import Key, Node, ReadingBudget, require
from nanoset_core.stages.views.stage import VIEW

MAX_DOCUMENTS = 4_000_000
"""Documents of a corpus up to which a dry run chooses its views: this takes some seconds."""
_LENGTH_BYTES = 4
"""Bytes of memory for the length of a document."""


@dataclass(frozen=True, slots=True)
class PlannedView:
    """What a view would choose from the current dataset of its corpus."""

    documents: int
    tokens: int
    cuts: tuple[str, ...]
    """For each rule `top`, a sentence that says where it ends."""
    manifest: Manifest | None = field(default=None, compare=False, repr=False)
    """What would be recorded about it, to plan nanosets that read it; None if none does."""

    def to_json(self) -> dict[str, Any]:
        """Return the view as plain values."""
        return {"documents": self.documents, "tokens": self.tokens, "cuts": list(self.cuts)}


def planned_views(
    graph: Graph,
    due: set[Node],
    views_of_nanosets: Collection[str],
    reader: LengthReader,
    budget: ReadingBudget,
) -> dict[str, PlannedView]:
    """Find out how large selections of documents will be, before they are built.

    A view is a selection of the documents of a text collection (corpus), by rules such as "score at
    least 0.5". A dry run (`nanoset build --dry-run`) shows what a build would make, so users see
    whether a rule is too strict:

        best-web: 120,000 documents, 90,000,000 tokens

    Args:
        graph: The outputs of the project, with what each is made from.
        due: The outputs that the build would make.
        views_of_nanosets: Names of datasets that nanosets read. The views among them get a
            manifest.
        reader: Gets the lengths of the documents of these views.
        budget: How many bytes these lengths may take.

    Returns:
        Name of the view → what it would have. A view is left out if its documents change in the
        same build, if reading the tables takes too long, or if a rule has a mistake, which the
        build will report.
    """
    project = graph.project
    is_in_bucket = project.outputs.access.takes_requests
    if is_in_bucket:
        return {}  # the tables would have to be downloaded

    views: dict[str, PlannedView] = {}
    for corpus, names in _views_from_existing_inputs(graph, due).items():
        with contextlib.suppress(NanosetError):
            views.update(_choose_views(project, corpus, names, views_of_nanosets, reader, budget))
    return views


def _views_from_existing_inputs(graph: Graph, due: set[Node]) -> dict[str, list[str]]:
    """Return the views that a build would make from what exists already.

    A view is a selection of the documents of a text collection (corpus). If the build also makes
    the corpus's dataset anew, it is not known yet which documents there will be:

        view of web          the dataset of web is up to date    returned
        view of that view    the dataset of web is up to date    returned: it is chosen by the rules
                                                                 of both, from the dataset
        view of code         the dataset of code is rebuilt      left out

    Args:
        graph: The outputs of the project, with what each is made from.
        due: The outputs that the build would make.

    Returns:
        Name of the corpus → names of its views.
    """
    names_by_corpus: dict[str, list[str]] = {}
    for node in graph.nodes():  # a node is one output
        is_due_view = node in due and node.stage is VIEW
        if not is_due_view:
            continue
        inputs = graph.inputs(node).values()
        if due.isdisjoint(inputs):
            name = VIEW.layout.name_of(node.key)
            names_by_corpus.setdefault(node.key.subject, []).append(name)
    return names_by_corpus


def _choose_views(
    project: Project,
    corpus: str,
    names: Collection[str],
    views_of_nanosets: Collection[str],
    reader: LengthReader,
    budget: ReadingBudget,
) -> dict[str, PlannedView]:
    """Find out how many documents some views will have, for a preview of a build.

    A view is a selection of the documents of a text collection (corpus). The documents are chosen
    as a build would, but only counted.

    Args:
        project: The project, whose output folder has the dataset of the corpus.
        corpus: Name of the corpus.
        names: Names of the views. Those whose rules have a mistake are left out.
        views_of_nanosets: Names of the datasets that nanosets read.
        reader: Gets the lengths of the documents of views that nanosets read.
        budget: How many bytes these lengths may take.

    Returns:
        Name of the view → numbers of documents and tokens, and sentences on where rules such as
        "the best by quality" end. Empty if the corpus has more than MAX_DOCUMENTS (4 million),
        since that would take long.

    Raises:
        NanosetError: The dataset is missing, or a table cannot be read.
    """
    # Imported here, since what chooses documents is slow to import.
    from nanoset_core.stages.views.choosing import choose
    from nanoset_core.stages.views.facts import TOPS, cut_text
    from nanoset_core.stages.views.make import manifest_if_built

    dataset = require(project, DATASET, Key(corpus))
    if dataset.facts["documents"] > MAX_DOCUMENTS:
        return {}

    correct_names = [name for name in names if _has_correct_rules(project, dataset, name)]
    views: dict[str, PlannedView] = {}
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as scratch:
        for chosen in choose(project, corpus, correct_names, Path(scratch)):
            # Without the rules of views that it is chosen from: their numbers are others.
            rules_on_best = chosen.facts.get(TOPS, [])  # none for most views
            sentences = tuple(
                cut_text(rule) for rule in rules_on_best if rule["view"] == chosen.name
            )
            n_documents = chosen.selection.documents
            n_tokens = chosen.selection.tokens
            manifest = None
            is_read = chosen.name in views_of_nanosets
            if is_read and budget.spend(n_documents * _LENGTH_BYTES):
                with contextlib.suppress(NanosetError):  # the build will report a damaged .idx
                    manifest = manifest_if_built(project, chosen, reader)
            views[chosen.name] = PlannedView(n_documents, n_tokens, sentences, manifest)
    return views


def _has_correct_rules(project: Project, dataset: Manifest, view: str) -> bool:
    """Return whether the rules of a view, which is a selection of documents, can be applied.

    For example, the rule "score at least 0.5" cannot if the documents have no column `score`.

    Args:
        project: Its nanoset.yaml has the rules.
        dataset: Manifest of the dataset from which the documents are selected.
        view: Name of the view.
    """
    from nanoset_core.stages.views.choosing import check_rules

    try:
        check_rules(project, dataset, view)
    except NanosetError:
        return False
    return True
