"""Choose the documents of views by the settings in nanoset.yaml and the tables of their corpus.

The settings of a view become the steps of its rule. For this view, for example,

    views:
      clean: {of: web, where: "quality >= 3", exclude: takedown.txt, tokens: 5e9}

the ids in takedown.txt are read, and the steps are

    Listed    leave out the documents with these ids
    Where     keep those of the others with quality >= 3
    Budget    keep as many of these, by hash, as have 5e9 tokens

A view may be chosen from another view. Its steps are then applied after those of that view. The
views from the corpus to it, such as `clean`, `clean-small`, are its *chain*.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.document_tables.relation import value_type
from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.column_sources import built_columns, columns_of
from nanoset_core.stages.contamination.stage import contaminated_documents
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.shards.document_rows import document_schema
from nanoset_core.stages.stage import Key, require
from nanoset_core.stages.views.facts import choice_facts
from nanoset_core.stages.views.ids import Ids, read_ids
from nanoset_core.stages.views.rules import (
    Budget,
    DocumentValues,
    HashSplit,
    Listed,
    Repeat,
    Rule,
    Step,
    Top,
    ViewOrder,
    Where,
    Without,
)
from nanoset_core.stages.views.selection import Selection, select
from nanoset_core.stages.views.settings import (
    ID_LIST_KEYS,
    STAGE,
    ViewSpec,
    ViewTopSpec,
    base_of,
    chain_of,
)
from nanoset_core.stages.views.tables import (
    DOCUMENT_COLUMNS,
    document_shards,
    document_values,
    joined_schema,
)


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

    A view is a dataset of documents that are chosen from a corpus by rules in nanoset.yaml.

    Args:
        project: The project.
        corpus: The corpus, whose current dataset is used.
        names: The views.
        scratch: An empty folder for scratch files. The results read them, so it must not be deleted
            before the results were used.

    Returns:
        What each view chooses, in the order of `names`.

    Raises:
        MissingError: The dataset, its tables, columns, or a file of ids is missing.
        ConfigError: A condition does not fit the columns.
        InputError: A file of ids is not text.
    """
    # What the views choose by: their rules, and the columns that these need.
    dataset = require(project, DATASET, Key(corpus))
    steps_by_view: dict[str, _ViewSteps] = {}  # shared, so that each list of ids is read once
    view_rules = [rule_of(project, name, steps_by_view=steps_by_view) for name in names]
    columns: set[str] = set()
    for name in names:
        _check_columns(project, dataset, name)
        columns |= columns_used(project.config, name)

    # Apply all rules to the tables of the documents.
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
    """Return the origins of some documents, for messages, such as `web/part-0.jsonl:17, id 'x1'`.

    Args:
        project: The project.
        dataset: The dataset of the corpus.
        documents: Numbers of documents in the corpus.

    Returns:
        Number of the document → its corpus, file, line and, if it has one, id.
    """
    origins: dict[int, str] = {}
    if not documents:
        return origins
    # Go through the tables of all documents, some at a time, and pick out the rows of these.
    for values in document_values(project, dataset.name, dataset, ["file", "line", "id"]):
        is_requested = np.isin(values.numbers, sorted(documents))
        for row in np.flatnonzero(is_requested).tolist():
            number = int(values.numbers[row])
            origins[number] = f"{dataset.name}/{_origin_of(values, row)}"
    return origins


def _origin_of(values: DocumentValues, row: int) -> str:
    """Return the file, line and, if it has one, id of a document: `part-0.jsonl:17, id 'x1'`.

    Args:
        values: Some documents, with these columns.
        row: Which of them.
    """
    file = values.columns["file"][row].as_py()
    line = values.columns["line"][row].as_py()
    document_id = values.columns["id"][row].as_py()
    origin = f"{file}:{line}"
    return origin if document_id is None else f"{origin}, id {document_id!r}"


def plan_view(project: Project, name: str) -> ChosenView:
    """Return what a view would choose from the current dataset of its corpus; write no output.

    The selection cannot be read afterwards, since its scratch files are deleted. Use its counts.

    Args:
        project: Its settings are read, and the current dataset of the corpus with its tables.
        name: Name of the view.

    Returns:
        The counts of the documents, and the facts that a build of the view would record.

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


def check_rules(project: Project, dataset: Manifest, name: str) -> None:
    """Check that the documents of a view can be chosen.

    Args:
        project: The project.
        dataset: The dataset of the view's corpus.
        name: The view.

    Raises:
        NanosetError: A rule has a mistake, such as a file or a column that does not exist.
    """
    # Both raise an error if there is a mistake. The steps of the rule are not needed here.
    rule_of(project, name)
    _check_columns(project, dataset, name)


def columns_used(config: ProjectConfig, name: str) -> frozenset[str]:
    """Return the columns that a view's rules need in addition to those that all documents have.

    For example, the rules `where: quality >= 3` and `order: {by: date}` need `quality` and `date`.

    Args:
        config: The settings of nanoset.yaml.
        name: The view. If it is chosen from another view, the rules of that one count, too.
    """
    columns: set[str] = set()
    for view in chain_of(config.views, name):
        columns |= _columns_in_rules(config.views[view])
    return frozenset(columns - DOCUMENT_COLUMNS)


def _columns_in_rules(spec: ViewSpec) -> set[str]:
    """Return the columns that the rules of one view name."""
    columns: set[str] = set()
    if spec.where is not None:
        columns |= parse_condition(spec.where, "").columns
    if spec.split is not None and spec.split.by:
        columns.add(spec.split.by)
    if spec.top is not None:
        columns.add(spec.top.by)
    if not isinstance(spec.order, str) and spec.order.by:
        columns.add(spec.order.by)
    return columns


def _check_columns(project: Project, dataset: Manifest, name: str) -> None:
    """Check that the columns exist which a view's rules need, and that it ranks by numbers.

    Args:
        project: The project.
        dataset: The dataset of the view's corpus.
        name: The view.

    Raises:
        ConfigError: The corpus does not have a column, or documents are ranked by texts.
        MissingError: The tables with the columns have not been made.
    """
    needed_columns = columns_used(project.config, name)
    schema = _schema_with(needed_columns, project, dataset)
    missing_columns = sorted(needed_columns.difference(schema.names))
    if missing_columns:
        all_columns = sorted({*schema.names, *built_columns(project, dataset.name)})
        remedy = "correct the view's rules, or add the column by documents.columns or attributes"
        raise ConfigError(
            "no such column",
            where=f"{project.config.file}: views.{name}",
            found=", ".join(missing_columns),
            expected=f"one of {', '.join(all_columns)}",
            remedy=remedy_for_name(missing_columns[0], all_columns, remedy),
        )

    # The rule `top` ranks documents by a column. The rules of views from which this one is chosen
    # apply to it, too.
    for view in chain_of(project.config.views, name):
        top = project.config.views[view].top
        if top is not None:
            _check_numbers(schema, top.by, f"{project.config.file}: views.{view}.top.by")


def _schema_with(columns: Collection[str], project: Project, dataset: Manifest) -> Any:
    """Return the pyarrow.Schema of a corpus's documents, with the columns that rules need.

    All documents have columns such as `id`. Those that users add, such as `quality`, are in other
    tables, which are only looked for if one of them is needed.

    Args:
        columns: Columns that are needed in addition to those that all documents have. One that does
            not exist is not in the result.
        project: The project.
        dataset: The dataset of the corpus.
    """
    if not columns:
        return document_schema()
    shards = shards_of(project.outputs, dataset)
    tables = columns_of(project, dataset.name, shards, columns)
    if tables is None:  # no table has any of them
        return document_schema()
    return joined_schema(tables.schema)


def _check_numbers(schema: Any, column: str, where: str) -> None:
    """Check that a column has numbers, so that its values can be ranked.

    Args:
        schema: pyarrow.Schema of the documents, with the column.
        column: Name of the column. It may have no values at all.
        where: The setting that names it, for messages.

    Raises:
        ConfigError: It has texts or booleans.
    """
    from pyarrow import types

    arrow_type = schema.field(column).type
    if types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_null(arrow_type):
        return
    number_columns = [
        field.name
        for field in schema
        if types.is_integer(field.type) or types.is_floating(field.type)
    ]
    raise ConfigError(
        "`top` ranks documents by numbers, and this column has none",
        where=where,
        found=f"{column}, a column of type {value_type(arrow_type)}",
        expected=f"a column of numbers, such as {', '.join(number_columns)}",
        remedy="name another column, or choose texts and booleans by `where`",
    )


class _ViewSteps(NamedTuple):
    """The steps of one view itself, without those of the view that it is chosen from."""

    steps: list[Step]
    ids_by_key: dict[str, Ids]
    """Key and pattern in nanoset.yaml → the ids in these files."""


def rule_of(
    project: Project,
    name: str,
    *,
    inputs_exist: bool = True,
    steps_by_view: dict[str, _ViewSteps] | None = None,
) -> ViewRule:
    """Return the steps that choose a view's documents from its corpus.

    If the view is chosen from another view, the steps of that one come first.

    Args:
        project: The project.
        name: The view.
        inputs_exist: Whether everything that the view is made from has been built; otherwise steps
            that need other outputs are left out.
        steps_by_view: A cache of the steps of each view, to which new ones are added. Pass it to
            several calls if views are chosen from the same view: its lists are then read once.

    Returns:
        The steps, the order of the documents, and the lists of ids that steps use.

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
            steps_by_view[view] = _steps_of(project, view, inputs_exist=inputs_exist)
        steps += steps_by_view[view].steps
        ids_by_key |= steps_by_view[view].ids_by_key
        # The last view of the chain that has an order decides it.
        order_spec = project.config.views[view].order
        if not isinstance(order_spec, str):
            order = ViewOrder(order_spec.by, order_spec.descending, order_spec.seed)
    return ViewRule(Rule(tuple(steps), order), ids_by_key)


def _steps_of(project: Project, view: str, *, inputs_exist: bool) -> _ViewSteps:
    """Return the steps by which the rules of one view in nanoset.yaml choose documents.

    Each rule becomes a step. For example, `where: quality >= 3` becomes a step that keeps the
    documents for which this is true.

    Args:
        project: The project.
        view: The view. If it is chosen from another view, the steps of that one are left out.
        inputs_exist: Whether reports on contamination exist; otherwise steps that need them are
            left out.

    Returns:
        The steps, in the order in which `ViewSpec` documents the rules.
    """
    spec = project.config.views[view]
    listed = _listed_steps(project, view, spec)
    steps = list(listed.steps)

    # Reports list the documents that contain a text of evaluation files.
    if inputs_exist:
        corpus = base_of(project.config.views, view)
        for section in spec.clean_of:
            documents = contaminated_documents(project, section, corpus)
            steps.append(Without(view, documents, f"clean of {section}"))

    if spec.where is not None:
        condition = parse_condition(spec.where, f"{project.config.file}: views.{view}.where")
        steps.append(Where(view, condition))
    if spec.split is not None:
        start, stop = spec.split.keep
        steps.append(HashSplit(view, spec.split.by, start, stop, spec.split.seed))
    steps += _sizing_steps(view, spec)
    return _ViewSteps(steps, listed.ids_by_key)


def _listed_steps(project: Project, view: str, spec: ViewSpec) -> _ViewSteps:
    """Return the steps of the rules `include` and `exclude`, which name files of ids.

    `include` keeps the documents with these ids, and `exclude` all others. The ids are returned,
    too, so that those of no document can be reported.

    Args:
        project: The project.
        view: The view.
        spec: Its settings.
    """
    steps: list[Step] = []
    ids_by_key: dict[str, Ids] = {}
    for key in ID_LIST_KEYS:
        for pattern in spec.files(key) or ():
            files = given_files(project, pattern, f"views.{view}.{key}")
            ids = read_ids(files.folder, files.names)
            ids_by_key[f"views.{view}.{key}: {pattern}"] = ids
            keeps_listed = key == "include"
            steps.append(Listed(view, ids, keep=keeps_listed, text=f"{key} {pattern}"))
    return _ViewSteps(steps, ids_by_key)


def _sizing_steps(view: str, spec: ViewSpec) -> Iterator[Top | Budget | Repeat]:
    """Yield the steps of a view that look at all documents together, or repeat them, in order."""
    if spec.top is not None:
        yield _top_step(view, spec.top)
    if spec.documents is not None:
        yield Budget(view, "documents", int(spec.documents))
    if spec.tokens is not None:
        yield Budget(view, "tokens", int(spec.tokens))
    if spec.repeat != 1:
        yield Repeat(view, spec.repeat)


def _top_step(view: str, spec: ViewTopSpec) -> Top:
    """Return the step of the key `top` of a view."""
    if spec.tokens is not None:
        return Top(view, spec.by, "tokens", limit=int(spec.tokens), ascending=spec.ascending)
    if spec.documents is not None:
        return Top(view, spec.by, "documents", limit=int(spec.documents), ascending=spec.ascending)
    return Top(view, spec.by, "documents", share=spec.share, ascending=spec.ascending)
