"""Choose the documents of views by the settings in nanoset.yaml and the tables of their corpus."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.column_sources import columns_of
from nanoset_core.stages.contamination.stage import contaminated_documents
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.stage import Key, require
from nanoset_core.stages.views.facts import choice_facts
from nanoset_core.stages.views.ids import Ids, read_ids
from nanoset_core.stages.views.rules import (
    Budget,
    HashSplit,
    Listed,
    Repeat,
    Rule,
    Step,
    ViewOrder,
    Where,
    Without,
)
from nanoset_core.stages.views.selection import Selection, select
from nanoset_core.stages.views.settings import base_of, chain_of
from nanoset_core.stages.views.tables import DOCUMENT_COLUMNS, document_groups, document_shards

STAGE = "views"
ID_LIST_KEYS: tuple[Literal["include", "exclude"], ...] = ("include", "exclude")
"""Keys of a view that name files of ids."""


class ViewRule(NamedTuple):
    """The rule by which a view is chosen, and the lists of ids that this rule uses."""

    rule: Rule
    ids_by_key: dict[str, Ids]
    """Key and pattern in nanoset.yaml → the ids in these files."""


@dataclass(frozen=True, slots=True)
class ChosenView:
    """What a view chooses, before its dataset is written."""

    name: str
    selection: Selection
    facts: dict[str, Any]
    """Facts of its manifest about the choice; see views/facts.py."""


def choose(project: Project, corpus: str, names: Sequence[str], scratch: Path) -> list[ChosenView]:
    """Choose the documents of some views of a corpus, in one pass over the corpus's tables.

    Args:
        project: The project.
        corpus: The corpus, whose current dataset is used.
        names: The views.
        scratch: An empty folder, which is needed as long as the selections are used.

    Returns:
        What each view chooses, in the order of `names`.

    Raises:
        MissingError: The dataset, its tables, columns, or a file of ids is missing.
        ConfigError: A condition does not fit the columns.
        InputError: A file of ids is not text.
    """
    dataset = require(project, DATASET, Key(corpus))
    steps_by_view: dict[str, _ViewSteps] = {}  # shared, so that each list of ids is read once
    view_rules = [rule_of(project, name, steps_by_view=steps_by_view) for name in names]
    columns: set[str] = set()
    for name in names:
        columns |= columns_kept(project, dataset, name)

    work = project.progress.work(STAGE, corpus, int(dataset.facts["documents"]))
    shards = document_shards(project, corpus, dataset, columns)
    rules = [view_rule.rule for view_rule in view_rules]
    selections = select(shards, rules, scratch, work.advance)

    # If a large document leaves much of a budget unused, a warning names the file and line of it.
    large_documents: set[int] = set()
    for selection in selections:
        large_documents.update(gap.document for gap in selection.gaps)
    places = _places_of(project, dataset, large_documents)

    chosen_views = []
    for name, view_rule, selection in zip(names, view_rules, selections, strict=True):
        n_missing_ids = {key: ids.missing for key, ids in view_rule.ids_by_key.items()}
        facts = choice_facts(selection, n_missing_ids, places)
        chosen_views.append(ChosenView(name, selection, facts))
    return chosen_views


def _places_of(project: Project, dataset: Manifest, documents: Collection[int]) -> dict[int, str]:
    """Return the file, line and id of documents as messages name them, by number in the corpus.

    Only the row groups that contain one of the documents are read.
    """
    places: dict[int, str] = {}
    if not documents:
        return places
    for group in document_groups(project, dataset.name, dataset):
        in_group = range(group.first, group.first + group.rows)
        numbers = [number for number in sorted(documents) if number in in_group]
        if not numbers:
            continue
        table = group.read(["file", "line", "id"])
        for number in numbers:
            [row] = table.slice(number - group.first, 1).to_pylist()
            place = f"{dataset.name}/{row['file']}:{row['line']}"
            if row["id"] is not None:
                place += f", id {row['id']!r}"
            places[number] = place
    return places


def plan_view(project: Project, name: str) -> ChosenView:
    """Return what a view would choose from the current dataset of its corpus; write no output.

    The selection cannot be read afterwards, since its scratch files are deleted. Use its counts.

    Raises:
        ConfigError: There is no such view, or a condition does not fit the columns.
        MissingError: The dataset, its tables, columns, or a file of ids is missing.
        InputError: A file of ids is not text.
    """
    views = project.config.views
    if name not in views:
        raise ConfigError(
            "no such view",
            where=f"{project.config.file}: views",
            found=name,
            expected=", ".join(views) or "none: it is empty",
            remedy=remedy_for_name(name, views, "correct the name, or add it there"),
        )
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as folder:
        [chosen] = choose(project, base_of(views, name), [name], Path(folder))
    return chosen


def columns_used(config: ProjectConfig, name: str) -> frozenset[str]:
    """Return the columns that a view needs in addition to `DOCUMENT_COLUMNS`."""
    columns: set[str] = set()
    for view in chain_of(config.views, name):
        spec = config.views[view]
        if spec.where is not None:
            columns |= parse_condition(spec.where, "").columns
        if spec.split is not None and spec.split.by:
            columns.add(spec.split.by)
        if not isinstance(spec.order, str) and spec.order.by:
            columns.add(spec.order.by)
    return frozenset(columns - DOCUMENT_COLUMNS)


def columns_kept(project: Project, dataset: Manifest, name: str) -> frozenset[str]:
    """Return the columns of `columns_used`, after a check that tables of the corpus have them.

    Raises:
        ConfigError: A column is neither one of the documents' columns nor an attribute.
        MissingError: The tables of the columns have not been made.
    """
    needed = columns_used(project.config, name)
    known: set[str] = set()
    if needed:
        tokenized = shards_of(project.outputs, dataset)
        aligned = columns_of(project, dataset.name, tokenized, needed)
        if aligned is not None:
            known.update(aligned.schema.names)

    missing = sorted(needed - known)
    if missing:
        all_columns = sorted(DOCUMENT_COLUMNS | known)
        remedy = "correct the view's rules, or add the column by documents.columns or attributes"
        raise ConfigError(
            "no such column",
            where=f"{project.config.file}: views.{name}",
            found=", ".join(missing),
            expected=f"one of {', '.join(all_columns)}",
            remedy=remedy_for_name(missing[0], all_columns, remedy),
        )
    return needed


class _ViewSteps(NamedTuple):
    """The steps of one view itself, without those of the view that it is chosen from."""

    steps: list[Step]
    ids_by_key: dict[str, Ids]
    """Key and pattern in nanoset.yaml → the ids in these files."""


def rule_of(
    project: Project,
    name: str,
    *,
    is_built: bool = True,
    steps_by_view: dict[str, _ViewSteps] | None = None,
) -> ViewRule:
    """Return the steps that lead from a corpus to a view, and the lists of ids that they use.

    Args:
        project: The project.
        name: The view.
        is_built: Whether everything that the view is made from has been built; otherwise steps
            that need other outputs are left out.
        steps_by_view: A cache of the steps of each view, to which new ones are added. Pass it to
            several calls if views are chosen from the same view: its lists are then read once.

    Raises:
        ConfigError: A condition is wrong, or a pattern is not a valid place.
        MissingError: A pattern names no file, or documents were not compared with a section.
        InputError: A file of ids cannot be read.
    """
    if steps_by_view is None:
        steps_by_view = {}
    steps: list[Step] = []
    ids_by_key: dict[str, Ids] = {}
    order = None
    for view in chain_of(project.config.views, name):
        if view not in steps_by_view:
            steps_by_view[view] = _steps_of(project, view, is_built)
        steps += steps_by_view[view].steps
        ids_by_key |= steps_by_view[view].ids_by_key
        # The last view of the chain that has an order decides it.
        order_spec = project.config.views[view].order
        if not isinstance(order_spec, str):
            order = ViewOrder(order_spec.by, order_spec.descending, order_spec.seed)
    return ViewRule(Rule(tuple(steps), order), ids_by_key)


def _steps_of(project: Project, view: str, is_built: bool) -> _ViewSteps:
    """Return the steps of one view, in the order in which `ViewSpec` documents them."""
    spec = project.config.views[view]
    steps: list[Step] = []
    ids_by_key: dict[str, Ids] = {}
    for key in ID_LIST_KEYS:
        for pattern in spec.files(key) or ():
            files = given_files(project, pattern, f"views.{view}.{key}")
            ids = read_ids(files.folder, files.names)
            ids_by_key[f"views.{view}.{key}: {pattern}"] = ids
            keeps_listed = key == "include"
            steps.append(Listed(view, ids, keep=keeps_listed, text=f"{key} {pattern}"))

    # Reports on contamination are outputs, and may not have been built yet.
    if is_built:
        corpus = base_of(project.config.views, view)
        for section in spec.clean_of:
            documents = contaminated_documents(project, section, corpus)
            steps.append(Without(view, documents, f"clean of {section}"))

    if spec.where is not None:
        condition = parse_condition(spec.where, f"{project.config.file}: views.{view}.where")
        steps.append(Where(view, condition))
    if spec.split is not None:
        start, stop = spec.split.keep
        steps.append(HashSplit(view, spec.split.by, start, stop))
    if spec.documents is not None:
        steps.append(Budget(view, "documents", int(spec.documents)))
    if spec.tokens is not None:
        steps.append(Budget(view, "tokens", int(spec.tokens)))
    if spec.repeat != 1:
        steps.append(Repeat(view, spec.repeat))
    return _ViewSteps(steps, ids_by_key)
