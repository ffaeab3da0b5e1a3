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

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.document_tables.conditions import ColumnTypeError, parse_condition
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
from nanoset_core.stages.views.names import FOLDER
from nanoset_core.stages.views.rules import (
    Budget,
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
    ViewSpec,
    ViewTopSpec,
    base_of,
    chain_of,
)
from nanoset_core.stages.views.tables import (
    DOCUMENT_COLUMNS,
    document_shards,
    joined_schema,
    origin_texts,
)
from nanoset_core.stages.views.text_values import naming_a_text


class ViewRule(NamedTuple):
    """The rule by which a view is chosen, and the lists of ids that this rule uses."""

    rule: Rule
    ids_by_key: dict[str, Ids]
    """Key and pattern in nanoset.yaml → the ids in these files."""

    def missing_id_counts(self) -> dict[str, int]:
        """Return how many ids of each list no document has, after the rule was applied."""
        return {key: ids.missing for key, ids in self.ids_by_key.items()}

    def first_missing_ids(self) -> dict[str, str]:
        """Return the first id that no document has, of each list with such ids."""
        first_missing_ids: dict[str, str] = {}
        for key, ids in self.ids_by_key.items():
            if ids.first_missing is not None:
                first_missing_ids[key] = ids.first_missing
        return first_missing_ids


@dataclass(frozen=True, slots=True)
class ChosenView:
    """What a view chooses, before its dataset is written."""

    name: str
    dataset: Manifest
    """The version of the corpus's dataset from which it chooses."""
    selection: Selection
    facts: dict[str, Any]
    """Facts of its manifest about the choice; see views/facts.py."""
    first_missing_ids: dict[str, str]
    """Key and pattern in nanoset.yaml → the first id in these files that no document has. It is not
    recorded, since outputs must not contain the id of a document that was erased by a purge.
    """


def choose(project: Project, corpus: str, names: Sequence[str], scratch: Path) -> list[ChosenView]:
    """Choose the documents of some views of a corpus, while its tables are read only once.

    A view is a dataset with some documents of a corpus. They are chosen by rules in nanoset.yaml.
    For example, two views of the corpus `web`:

        good       {of: web, where: "quality >= 3"}          reads the column `quality`
        allowed    {of: web, exclude: lists/takedown.txt}    reads a list of ids

    Args:
        project: The project.
        corpus: The corpus, a collection of documents. Its current version is used.
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
    dataset = require(project, DATASET, Key(corpus))
    cache: dict[str, _ViewSteps] = {}  # views that are chosen from the same view share its lists
    view_rules = [rule_of(project, name, steps_by_view=cache) for name in names]
    schemas = [_schema_for_view(project, dataset, name) for name in names]

    # The columns that any of the rules needs are read once, for all views together.
    work = project.progress.work(FOLDER, corpus, int(dataset.facts["documents"]))
    columns = _columns_used_by_any(project.config, names)
    document_tables = document_shards(project, corpus, dataset, columns)
    rules = [view_rule.rule for view_rule in view_rules]
    selections = select(document_tables, rules, scratch, work.advance)

    places = _places_of_large_documents(project, dataset, selections)
    chosen_views = []
    for name, view_rule, schema, selection in zip(
        names, view_rules, schemas, selections, strict=True
    ):
        empty_columns = _empty_columns_by_rule(project.config.views[name], schema)
        facts = choice_facts(selection, view_rule.missing_id_counts(), places, empty_columns)
        chosen_view = ChosenView(name, dataset, selection, facts, view_rule.first_missing_ids())
        chosen_views.append(chosen_view)
    return chosen_views


def _schema_for_view(project: Project, dataset: Manifest, name: str) -> Any:
    """Return the columns of a corpus after checking that they fit the rules of a view.

    This is `checked_schema` with one better error. For `where: quality >= 3`, a user may not know
    why the column `quality` has texts instead of numbers. So the error names a document with a
    text, such as "n/a".

    Args:
        project: The project.
        dataset: The dataset of the corpus from which the view is chosen.
        name: The view.

    Returns:
        pyarrow.Schema of the documents.

    Raises:
        ConfigError: The corpus lacks a column, or a column has values of another type.
        MissingError: The tables with the columns have not been made.
    """
    try:
        return checked_schema(project, dataset, name)
    except ColumnTypeError as error:
        raise naming_a_text(error, project, dataset) from None


def _columns_used_by_any(config: ProjectConfig, names: Sequence[str]) -> set[str]:
    """Return the columns that the rules of at least one of some views need, such as {"quality"}.

    Args:
        config: The settings of nanoset.yaml.
        names: The views.
    """
    columns: set[str] = set()
    for name in names:
        columns |= columns_used(config, name)
    return columns


def _places_of_large_documents(
    project: Project, dataset: Manifest, selections: Sequence[Selection]
) -> dict[int, str]:
    """Return the files and lines of the documents that are too large for the limit of a view.

    For example, a view may have up to 1,000 tokens. It has 600, since the next document, which is
    document 8 of the corpus, has 5,000. A warning says so, and names the file of the document:

        {8: "web/part-0.jsonl:17, id 'x1'"}

    Args:
        project: The project.
        dataset: The dataset of the corpus.
        selections: What each view has chosen. Its `gaps` have the numbers of such documents.

    Returns:
        Number of the document in the corpus → its file, line and id.
    """
    large_documents: set[int] = set()
    for selection in selections:
        large_documents.update(gap.document for gap in selection.gaps)
    return origin_texts(project, dataset, large_documents)


@contextlib.contextmanager
def trial_choice(project: Project, name: str) -> Iterator[ChosenView]:
    """Choose the documents of a view without making it: a trial of its rules.

    A view is a selection of a corpus's documents by rules in nanoset.yaml.

    Args:
        project: Its settings are read, and the current dataset of the corpus with its tables.
        name: Name of the view.

    Yields:
        The documents with their counts, and the facts that a build of the view would record. The
        list of the documents (its `selection`) can only be read until the block ends.

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
    corpus = base_of(views, name)
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as folder:
        [chosen] = choose(project, corpus, [name], scratch=Path(folder))
        yield chosen


def check_rules(project: Project, dataset: Manifest, name: str) -> None:
    """Check the rules of a view before its documents are chosen. Return if they have no mistake.

    For example, `where: quality >= 3` is a mistake if the corpus has no column `quality`.

    Args:
        project: The project.
        dataset: The dataset of the corpus from which the view is chosen.
        name: The view.

    Raises:
        NanosetError: A rule has a mistake, such as a file or a column that does not exist.
    """
    # Both read and check more than is needed here, so their results are not used.
    rule_of(project, name)  # reads the rules and files of ids
    checked_schema(project, dataset, name)  # looks up the columns


def columns_used(config: ProjectConfig, name: str) -> frozenset[str]:
    """Return the columns that the rules of a view need, except those that all documents have.

    For example, the rules `where: quality >= 3` and `order: {by: date}` need `quality` and `date`.
    All documents have columns such as `id`.

    Args:
        config: The settings of nanoset.yaml.
        name: The view. If it is chosen from another view, the rules of that one count as well.
    """
    columns: set[str] = set()
    for view in chain_of(config.views, name):
        for columns_of_rule in _columns_by_rule(config.views[view]).values():
            columns |= columns_of_rule
    return frozenset(columns - DOCUMENT_COLUMNS)


def _columns_by_rule(spec: ViewSpec) -> dict[str, set[str]]:
    """Return the columns that each rule of one view names.

    A view selects documents by rules such as these:

        where: quality >= 3               "where": {"quality"}
        split: {by: url, keep: [0, 1]}    "split": {"url"}
        top: {by: score, tokens: 1e9}     "top": {"score"}
        order: {by: date}                 "order": {"date"}

    The setting `order` is the text "stored" if documents stay as they are.
    """
    columns_by_rule: dict[str, set[str]] = {}
    if spec.where is not None:
        columns_by_rule["where"] = set(parse_condition(spec.where, "").columns)
    if spec.split is not None and spec.split.by:
        columns_by_rule["split"] = {spec.split.by}
    if spec.top is not None:
        columns_by_rule["top"] = {spec.top.by}
    if not isinstance(spec.order, str) and spec.order.by:
        columns_by_rule["order"] = {spec.order.by}
    return columns_by_rule


def _empty_columns_by_rule(spec: ViewSpec, schema: Any) -> dict[str, list[str]]:
    """Return the columns that rules of a view use although no document has a value of them.

    Perhaps their names in `documents.columns` are misspelt.

    Args:
        spec: The settings of the view.
        schema: pyarrow.Schema of the documents, with all columns that the rules name. Columns
            without a value have the type null.

    Returns:
        For example, `{"where": ["qualty"]}`; empty for most views.
    """
    from pyarrow import types

    empty_columns_by_rule: dict[str, list[str]] = {}
    for rule, columns in _columns_by_rule(spec).items():
        empty_columns = []
        for column in sorted(columns):
            if types.is_null(schema.field(column).type):
                empty_columns.append(column)
        if empty_columns:
            empty_columns_by_rule[rule] = empty_columns
    return empty_columns_by_rule


def checked_schema(project: Project, dataset: Manifest, name: str) -> Any:
    """Check that the corpus has all columns that the rules of a view name, of the right types.

        where: quality >= 3                      needs a column quality, of numbers
        top: {by: quality, documents: 1000}      needs a column quality, of numbers

    Args:
        project: The project.
        dataset: The dataset of the corpus from which the view is chosen.
        name: The view.

    Returns:
        pyarrow.Schema of the documents, with these columns.

    Raises:
        ConfigError: The corpus does not have a column, documents are ranked by texts, or a
            condition compares a column with a value of another type.
        MissingError: The tables with the columns have not been made.
    """
    needed_columns = columns_used(project.config, name)
    schema = _schema_with(needed_columns, project, dataset)
    missing_columns = sorted(needed_columns.difference(schema.names))
    if missing_columns:
        all_columns = {*schema.names, *built_columns(project, dataset.name)}
        raise _no_such_column(project.config, name, missing_columns, all_columns)
    # The view may be chosen from another view, whose rules count as well.
    for view in chain_of(project.config.views, name):
        _check_types(project.config, view, schema)
    return schema


def _check_types(config: ProjectConfig, view: str, schema: Any) -> None:
    """Check that the rules of a view fit the types of the columns that they name.

        where: quality >= 3                      an error if `quality` has texts
        top: {by: quality, documents: 1000}      an error if `quality` has texts

    Args:
        config: The settings of nanoset.yaml.
        view: The view. If it is chosen from another view, the rules of that one are not checked.
        schema: The pyarrow.Schema of the documents, with all columns that the rules name.

    Raises:
        ConfigError: Documents are ranked by texts, or a condition compares a column with a value of
            another type.
    """
    spec = config.views[view]
    if spec.where is not None:
        setting = f"{config.file}: {spec.key(view, 'where')}"  # for messages
        condition = parse_condition(spec.where, setting)
        condition.for_columns(schema)  # raises the error
    if spec.top is not None:
        _check_numbers(schema, spec.top.by, f"{config.file}: views.{view}.top.by")


def check_listed_files_exist(project: Project, name: str) -> None:
    """Check that the files of ids exist which a view, or a view that it is chosen from, names.

    Args:
        project: The project.
        name: The view.

    Raises:
        ConfigError: A pattern is not a valid place.
        MissingError: A pattern names no file.
        InputError: A folder cannot be read, or has the name of a file.
    """
    for view in chain_of(project.config.views, name):
        for key in ID_LIST_KEYS:  # include, exclude
            for pattern in project.config.views[view].files(key) or ():
                given_files(project, pattern, f"views.{view}.{key}")


def check_column_names(config: ProjectConfig, name: str) -> None:
    """Check that the documents will have all columns that the rules of a view name.

    For example, the rule `where: quality >= 3` needs a column `quality`. This looks at the settings
    alone, so a misspelt name is found before the corpus is tokenized.

    Args:
        config: The settings of nanoset.yaml.
        name: The view.

    Raises:
        ConfigError: The documents will not have a column.
    """
    columns = _columns_in_settings(config, corpus=base_of(config.views, name))
    if columns is None:
        return  # any column may exist
    missing_columns = sorted(columns_used(config, name) - columns)
    if missing_columns:
        raise _no_such_column(config, name, missing_columns, columns)


def _columns_in_settings(config: ProjectConfig, corpus: str) -> set[str] | None:
    """Return the columns that the documents of a corpus will have, by the settings alone.

        `id`, `file` and others               all documents have these
        `documents.columns`                   columns from the raw text
        `attributes.columns`                  columns from tables of attributes

    Args:
        config: The settings of nanoset.yaml.
        corpus: Name of the corpus.

    Returns:
        Names of the columns; None if there are tables of attributes whose columns are not listed.
    """
    columns = {*DOCUMENT_COLUMNS, *config.documents_of(corpus).columns}
    attributes = config.attributes_of(corpus)
    if attributes is None:
        return columns
    if attributes.columns is None:
        return None
    return columns.union(attributes.columns)


def _no_such_column(
    config: ProjectConfig, name: str, missing: Sequence[str], existing: Collection[str]
) -> ConfigError:
    """Return the error for a view whose rules name columns that its corpus does not have.

    Args:
        config: The settings of nanoset.yaml.
        name: The view.
        missing: The columns that do not exist, at least one.
        existing: All columns of the corpus.
    """
    # Sorted, so that the same name is suggested every time.
    columns = sorted(existing)
    remedy = "correct the view's rules, or add the column by documents.columns or attributes"
    return ConfigError(
        "no such column",
        where=f"{config.file}: {config.views[name].key(name)}",
        found=", ".join(missing),
        expected=f"one of {', '.join(columns)}",
        remedy=remedy_for_name(missing[0], columns, remedy),
    )


def _schema_with(columns: Collection[str], project: Project, dataset: Manifest) -> Any:
    """Return the columns of a corpus's documents and their types, as a pyarrow.Schema.

    All documents have columns such as `id`. Users can add others, such as `quality`, which are in
    other tables. These are looked up only if one of them is needed, since that takes longer.

    Args:
        columns: The columns of users that are needed. One that does not exist is not in the result.
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
    """Check that a column has numbers, so that `top` can take the documents with the best values.

    For example, `top: {by: lang, documents: 10}` is a mistake, since `lang` has texts such as "en".

    Args:
        schema: pyarrow.Schema of the documents, with the column.
        column: Name of the column. It may have no values at all.
        where: The setting that names it, for messages.

    Raises:
        ConfigError: It has texts or booleans.
    """
    from pyarrow import types

    arrow_type = schema.field(column).type
    has_no_values = types.is_null(arrow_type)
    if has_no_values or types.is_integer(arrow_type) or types.is_floating(arrow_type):
        return

    # Name the columns of numbers in the message.
    number_columns = []
    for field in schema:
        if types.is_integer(field.type) or types.is_floating(field.type):
            number_columns.append(field.name)
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
    """Translate the settings of a view into the steps that choose its documents from a corpus.

    A view can be chosen from another view, whose steps come first. For example, for `best`:

        english: {of: web, where: "lang = 'en'"}     step 1    where lang = 'en'
        best: {of: english, tokens: 1e9}             step 2    1,000,000,000 tokens

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
    for view in chain_of(project.config.views, name):  # such as english, best
        if view not in steps_by_view:
            steps_by_view[view] = _steps_of(project, view, inputs_exist=inputs_exist)
        steps += steps_by_view[view].steps
        ids_by_key |= steps_by_view[view].ids_by_key
        order_spec = project.config.views[view].order
        if order_spec != "stored":  # of several orders, the last one counts
            order = ViewOrder(order_spec.by, order_spec.descending, order_spec.seed)
    return ViewRule(Rule(tuple(steps), order), ids_by_key)


def _steps_of(project: Project, view: str, *, inputs_exist: bool) -> _ViewSteps:
    """Translate the settings of one view, which selects documents, into steps that choose them.

    Each setting becomes a step, and the steps are applied in a fixed order:

        include, exclude    keep or leave out documents with listed ids
        clean_of            leave out documents that contain texts of an evaluation
        where               keep documents by a condition
        split               keep documents by a hash
        top                 keep the documents with the best values of a column
        documents           keep a number of documents
        tokens              keep documents with a number of tokens in all
        repeat              take each document several times

    Args:
        project: The project.
        view: The view. If it is chosen from another view, the steps of that one are left out.
        inputs_exist: Whether the outputs that the view is made from have been built. One of them
            says which documents contain texts of an evaluation. Without it, the step `clean_of` is
            left out.

    Returns:
        The steps, and the ids that `include` and `exclude` list, by the settings that name them.
    """
    spec = project.config.views[view]
    listed = _listed_steps(project, view, spec)  # include and exclude
    steps = list(listed.steps)
    if inputs_exist:
        steps += _clean_steps(project, view, spec)
    if spec.where is not None:  # quality >= 3
        where = f"{project.config.file}: {spec.key(view, 'where')}"
        condition = parse_condition(spec.where, where)
        steps.append(Where(view, condition))
    if spec.split is not None:  # keep: [0, 0.01], the documents with the lowest 1 % of hashes
        start, stop = spec.split.keep
        steps.append(HashSplit(view, spec.split.by, start, stop, spec.split.seed))
    steps += _sizing_steps(view, spec)  # top, documents, tokens, repeat
    return _ViewSteps(steps, listed.ids_by_key)


def _listed_steps(project: Project, view: str, spec: ViewSpec) -> _ViewSteps:
    """Read the files of ids that a view names, and return the steps that look for these ids.

        include: [good.txt, best.txt]    keep only documents that one of the files lists: one step
        exclude: [may.txt, june.txt]     leave out the documents that each file lists: two steps

    The ids are returned as well, so that ids which do not exist can be reported.

    Args:
        project: The project.
        view: The view.
        spec: Its settings.
    """
    steps: list[Step] = []
    ids_by_key: dict[str, Ids] = {}
    for key in ID_LIST_KEYS:
        patterns = spec.files(key)
        if patterns is None:
            continue
        setting = f"views.{view}.{key}"
        id_sets = [_listed_ids(project, pattern, setting) for pattern in patterns]
        for pattern, ids in zip(patterns, id_sets, strict=True):
            ids_by_key[f"{setting}: {pattern}"] = ids
        if key == "include":
            steps.append(_include_step(view, patterns, id_sets))
        else:
            steps += _exclude_steps(view, patterns, id_sets)
    return _ViewSteps(steps, ids_by_key)


def _include_step(view: str, patterns: Sequence[str], id_sets: Sequence[Ids]) -> Listed:
    """Return the step that keeps only documents that one of some files of ids lists.

    Args:
        view: The view.
        patterns: Names of the files, or patterns that stand for several.
        id_sets: The ids of each.
    """
    return Listed(view, tuple(id_sets), keep=True, text=f"include {', '.join(patterns)}")


def _exclude_steps(view: str, patterns: Sequence[str], id_sets: Sequence[Ids]) -> list[Listed]:
    """Return a step for each of some files of ids, which leaves out the documents that it lists.

    Users see the steps, and with them how many documents each file removes.

    Args:
        view: The view.
        patterns: Names of the files, or patterns that stand for several.
        id_sets: The ids of each.
    """
    steps = []
    for pattern, ids in zip(patterns, id_sets, strict=True):
        steps.append(Listed(view, (ids,), keep=False, text=f"exclude {pattern}"))
    return steps


def _clean_steps(project: Project, view: str, spec: ViewSpec) -> list[Without]:
    """Return the steps of the key `clean_of` of a view: one for each evaluation that it names.

    Each leaves out the documents that contain texts of the evaluation, by a report that lists them.

    Args:
        project: Its outputs have the reports.
        view: The view.
        spec: Its settings.

    Raises:
        MissingError: There is no such report.
    """
    corpus = base_of(project.config.views, view)
    steps = []
    for evaluation in spec.clean_of:
        documents = contaminated_documents(project, evaluation, corpus)
        steps.append(Without(view, documents, f"clean of {evaluation}"))
    return steps


def _listed_ids(project: Project, pattern: str, setting: str) -> Ids:
    """Read the ids in the files that a pattern stands for, such as lists/takedown*.txt.

    Args:
        project: The project.
        pattern: The pattern.
        setting: The key of nanoset.yaml that has it, for messages.

    Raises:
        InputError: A file cannot be read, or has no ids.
        MissingError: There is no such file.
    """
    files = given_files(project, pattern, setting)
    files.check_readable()  # raises an InputError; `read_ids` would raise an OSError
    return read_ids(files.folder, files.names)


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
