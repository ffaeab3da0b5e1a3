"""Choosing the documents of views: their rules, and one pass over the tables of a corpus's
documents.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.execution.progress import Meter
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.column_sources import columns_of
from nanoset_core.stages.columns.aligned import AlignedColumns
from nanoset_core.stages.contamination.stage import contaminated_documents
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.shards.document_table import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.stages.shards.shard_sets import some_shards
from nanoset_core.stages.stage import Key, require
from nanoset_core.stages.views.conditions import Range, parse_condition
from nanoset_core.stages.views.ids import Ids, read_ids
from nanoset_core.stages.views.rules import (
    Budget,
    Listed,
    Order,
    Repeat,
    Rule,
    Split,
    Step,
    Where,
    Without,
)
from nanoset_core.stages.views.selection import FULL_SHARE, Selection, select
from nanoset_core.stages.views.settings import base_of, chain_of

STAGE = "views"
LISTS: tuple[Literal["include", "exclude"], ...] = ("include", "exclude")
_OWN = frozenset({"file", "line", "byte_offset", "id", "tokens"})
"""Columns that every table of documents has."""
GAPS = "budget_gaps"
"""Fact of a view: budgets that are not filled."""
_AT_ONCE = 64
"""Tables that are fetched together from a bucket."""
_BUDGET = re.compile(r"([0-9,]+) (tokens|documents)")
"""A budget in the steps of a view's facts; see `Budget.text`."""
_BAR = 20
"""Characters of a full bar."""


class _TableGroup:
    """A row group of a shard's tables."""

    def __init__(self, tables: _Tables, number: int, first: int, rows: int) -> None:
        self._tables, self._number, self.first, self.rows = tables, number, first, rows

    def read(self, columns: list[str]) -> Any:
        import pyarrow as pa

        documents, aligned, files = self._tables
        own = [name for name in columns if name in _OWN]
        table = documents.columns(self._number, own) if own else pa.table({})
        others = {} if aligned is None else aligned.read(files, self._number, columns)
        return pa.table({name: table.column(name) for name in own} | others)

    def statistics(self) -> Mapping[str, Range]:
        documents, aligned, files = self._tables
        found = statistics_of(documents.metadata(self._number))
        for group, names in aligned.statistics(files, self._number) if aligned is not None else ():
            found |= {name: known for name, known in statistics_of(group).items() if name in names}
        return found


class _Tables(NamedTuple):
    """The table of a shard's documents, and those of what else is known of them."""

    documents: DocumentRows
    aligned: AlignedColumns | None
    files: list[Any]


def statistics_of(group: Any) -> dict[str, Range]:
    """Return what the statistics of a Parquet row group say of its columns."""
    found = {}
    for number in range(group.num_columns):
        column = group.column(number)
        if (known := column.statistics) is not None:
            low, high = (known.min, known.max) if known.has_min_max else (None, None)
            nulls = known.null_count if known.has_null_count else None
            found[column.path_in_schema] = Range(low, high, nulls, group.num_rows)
    return found


def document_groups(
    project: Project, corpus: str, dataset: Manifest, used: Collection[str] = ()
) -> Iterator[_TableGroup]:
    """Yield the row groups of a dataset's tables of documents, in order; raises as `shards_of` and
    `columns_of`.

    `used`: columns beside those that every table of documents has.
    """
    tokenized, access = shards_of(project.outputs, dataset), project.outputs.access
    aligned = columns_of(project, corpus, tokenized, used)
    shards, first = some_shards(project, corpus, tokenized.facts[SHARDS]), 0

    def opened(number: int) -> _Tables:
        shard = shards[number]
        rows = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
        return _Tables(rows, aligned, [] if aligned is None else aligned.open_tables(number))

    step = _AT_ONCE if access.has_copies and access.capacity is None else 1
    for begin in range(0, len(shards), step):
        for tables in access.each(opened, range(len(shards))[begin : begin + step]):
            groups = tables.documents.groups
            for number, (start, end) in enumerate(groups):
                yield _TableGroup(tables, number, first + start, end - start)
            first += groups[-1][1] if groups else 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a view chooses, before its dataset is written."""

    name: str
    rule: Rule
    selection: Selection
    lists: Mapping[str, Ids]
    """Key of nanoset.yaml → the ids that its files hold."""
    places: Mapping[int, str] = field(default_factory=dict)
    """Number of a document that a budget has no room for → its file, line and id."""

    @property
    def facts(self) -> dict[str, Any]:
        """Counts: what each step left, the ids that no document has, and budgets that are not
        filled, if any.
        """
        steps = [
            [left.view, left.step, left.documents, left.tokens] for left in self.selection.left
        ]
        missing = {key: ids.missing for key, ids in self.lists.items() if ids.missing}
        facts: dict[str, Any] = {"steps": steps, "missing_ids": missing}
        if self.selection.gaps:
            facts[GAPS] = [
                asdict(gap) | {"place": self.places[gap.document]} for gap in self.selection.gaps
            ]
        return facts


class StepRow(NamedTuple):
    """What one rule of a view leaves."""

    view: str
    """That the rule is of; empty for the corpus."""
    step: str
    documents: int
    tokens: int
    share: float
    """Of the documents of the corpus."""

    @property
    def bar(self) -> str:
        """The share as a bar and in percent."""
        return f"{'█' * round(min(self.share, 1) * _BAR)} {self.share:.1%}"


def step_rows(facts: Mapping[str, Any]) -> list[StepRow]:
    """Return what each rule of a view leaves, by its facts."""
    total = max(facts["steps"][0][2], 1)
    return [
        StepRow(view, step, count, tokens, count / total)
        for view, step, count, tokens in facts["steps"]
    ]


def choose(project: Project, corpus: str, names: Sequence[str], scratch: Path) -> list[Chosen]:
    """Choose the documents of some views of a corpus by its current dataset, in one pass over its
    tables.

    Raises:
        MissingError: the dataset, its tables, columns, or a file of ids is not there.
        ConfigError, InputError: a condition does not fit the columns; a file of ids is not text.
    """
    dataset = require(project, DATASET, Key(corpus))
    known = dict[str, _Own]()
    rules = [rule_of(project, name, known=known) for name in names]
    meter = Meter(project.listener, STAGE, corpus, int(dataset.facts["documents"]))
    used = {column for name in names for column in columns_kept(project, dataset, name)}
    groups = document_groups(project, corpus, dataset, used)
    found = select(groups, [rule for rule, _ in rules], scratch, meter.advance)
    numbers = {gap.document for selection in found for gap in selection.gaps}
    places = _places(project, dataset, numbers) if numbers else {}
    return [
        Chosen(name, rule, selection, lists, places)
        for name, (rule, lists), selection in zip(names, rules, found, strict=True)
    ]


def _places(project: Project, dataset: Manifest, numbers: Collection[int]) -> dict[int, str]:
    """Return number of a document → its file, line and id, as text; only the row groups that hold
    one are read.
    """
    places = {}
    for group in document_groups(project, dataset.name, dataset):
        own = [
            number for number in sorted(numbers) if group.first <= number < group.first + group.rows
        ]
        if own:
            table = group.read(["file", "line", "id"])
        for number in own:
            row = table.slice(number - group.first, 1).to_pylist()[0]
            identity = "" if row["id"] is None else f", id {row['id']!r}"
            places[number] = f"{dataset.name}/{row['file']}:{row['line']}{identity}"
    return places


def gap_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a view that is not filled although more documents exist.

    Args:
        facts: of the view. Those of earlier versions do not name the document that does not fit.
        name: of the view. Budgets of the views that it is of are reported there.
    """
    for gap in facts.get(GAPS, ()):
        if gap["view"] == name:
            yield _gap_warning(gap)
    if GAPS in facts:
        return
    rows = step_rows(facts)
    for before, row in pairwise(rows):
        budget = _BUDGET.fullmatch(row.step)
        if budget is None or row.view != name:
            continue
        most = int(budget[1].replace(",", ""))
        unit = budget[2]
        reached = getattr(row, unit)
        if getattr(before, unit) > most and reached < FULL_SHARE * most:
            holds = f"its budget of {most:,} {unit} holds {reached:,} ({reached / most:.1%})"
            yield f"{holds}: the next document does not fit; `nanoset view {name}` names it"


def _gap_warning(gap: Mapping[str, Any]) -> str:
    unit = gap["unit"]
    share = f"{gap['reached'] / gap['budget']:.1%}"
    if gap["documents"] == 1:
        next_one = f"document {gap['document']:,} ({gap['place']}), of {gap['amount']:,} tokens, does not fit"
        remedy = f"leave it out (`where: tokens < {gap['amount']}`, or `exclude`)"
    else:
        same = f"{gap['documents']:,} documents or copies with the id of {gap['place']}"
        next_one = f"{same}, of {gap['amount']:,} {unit} in all, do not fit"
        remedy = "leave them out (`exclude`)"
    holds = f"its budget of {gap['budget']:,} {unit} holds {gap['reached']:,} ({share})"
    return f"{holds}, and ends where {next_one}: {remedy}, or raise `{unit}`"


def plan_view(project: Project, name: str) -> Chosen:
    """Return what a view would choose from the corpus's current dataset; nothing is written. Raises
    as `choose`.
    """
    if name not in project.config.views:
        what = "no such view"
        remedy = remedy_for_name(name, project.config.views, "correct the name, or add it there")
        expected = ", ".join(project.config.views) or "none: it is empty"
        raise ConfigError(
            what,
            where=f"{project.config.file}: views",
            found=name,
            expected=expected,
            remedy=remedy,
        )
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as folder:
        found = choose(project, base_of(project.config.views, name), [name], Path(folder))[0]
    return found


def columns_used(config: ProjectConfig, name: str) -> frozenset[str]:
    """Return the columns that the rules of a view need, beside those of every table of documents."""
    used = set[str]()
    for spec in (config.views[one] for one in chain_of(config.views, name)):
        used |= parse_condition(spec.where, "").columns if spec.where is not None else frozenset()
        order = None if isinstance(spec.order, str) else spec.order.by
        used.update(one for one in (spec.split and spec.split.by, order) if one)
    return frozenset(used - _OWN)


def columns_kept(project: Project, dataset: Manifest, name: str) -> frozenset[str]:
    """Return the columns that a view needs beside the documents' own; ConfigError where one is not
    kept.
    """
    used, corpus = columns_used(project.config, name), dataset.name
    aligned = (
        columns_of(project, corpus, shards_of(project.outputs, dataset), used) if used else None
    )
    known = () if aligned is None else aligned.schema.names
    if missing := sorted(used.difference(known)):
        what = "no such column"
        remedy = "correct the view's rules, or give the column by documents.columns or attributes"
        remedy = remedy_for_name(missing[0], sorted({*_OWN, *known}), remedy)
        where, expected = (
            f"{project.config.file}: views.{name}",
            f"one of {', '.join(sorted({*_OWN, *known}))}",
        )
        raise ConfigError(
            what, where=where, found=", ".join(missing), expected=expected, remedy=remedy
        )
    return used


def rule_of(
    project: Project, name: str, *, is_made: bool = True, known: dict[str, _Own] | None = None
) -> tuple[Rule, dict[str, Ids]]:
    """Return the steps from the corpus to a view, and the lists of ids that they look into.

    is_made: whether all that the view is made from is there; else what needs that is passed over.
    known: what each view adds, as far as it was found; views of the same one share its steps.
    """
    steps, lists, order, known = (
        list[Step](),
        dict[str, Ids](),
        None,
        {} if known is None else known,
    )
    for one in chain_of(project.config.views, name):
        if one not in known:
            known[one] = _own(project, one, is_made)
        steps += known[one].steps
        lists |= known[one].lists
        if not isinstance(by := project.config.views[one].order, str):
            order = Order(by.by, by.descending, by.seed)
    return Rule(tuple(steps), order), lists


class _Own(NamedTuple):
    """What a view adds to that which it is of."""

    steps: list[Step]
    lists: dict[str, Ids]


def _own(project: Project, one: str, is_made: bool) -> _Own:
    spec, steps, lists = project.config.views[one], list[Step](), dict[str, Ids]()
    for key in LISTS:
        for pattern in spec.files(key) or ():
            found = given_files(project, pattern, f"views.{one}.{key}")
            lists[f"views.{one}.{key}: {pattern}"] = ids = read_ids(found.folder, found.names)
            steps.append(Listed(one, ids, key == "include", f"{key} {pattern}"))
    for section in spec.clean_of if is_made else ():
        found_in = contaminated_documents(project, section, base_of(project.config.views, one))
        steps.append(Without(one, found_in, f"clean of {section}"))
    if spec.where is not None:
        steps.append(
            Where(one, parse_condition(spec.where, f"{project.config.file}: views.{one}.where"))
        )
    if spec.split is not None:
        steps.append(Split(one, spec.split.by, *spec.split.keep))
    for unit, most in (("documents", spec.documents), ("tokens", spec.tokens)):
        if most is not None:
            steps.append(Budget(one, unit, int(most)))
    if spec.repeat != 1:
        steps.append(Repeat(one, spec.repeat))
    return _Own(steps, lists)
