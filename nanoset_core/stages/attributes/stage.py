"""attributes: tables that others made, joined by id → a table for each shard, row for row its
documents.

The tables of others are read into scratch files of this machine, in which its workers look the ids
of the shards up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from nanoset_core.errors import (
    ConfigError,
    InputError,
    MissingError,
    NanosetError,
    SourceChangedError,
    one_line,
    one_of,
    remedy_for_name,
)
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Meter
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.lookup import Lookup
from nanoset_core.stages.attributes.tables import AttributeTables
from nanoset_core.stages.columns.stage import (
    COLUMNS,
    ESCAPED,
    SHARDS,
    AlignedColumns,
    AlignedStage,
    publish,
)
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards.column_table import ColumnTable
from nanoset_core.stages.shards.document_table import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS
from nanoset_core.stages.shards.settings import TAKEN_COLUMNS, AttributesSpec
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import (
    InternalStage,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Summary,
    require,
)
from nanoset_core.storage.atomic import claim_scratch, sweep_abandoned
from nanoset_core.text.values import type_of

VERSION = 1
STAGE = "attributes"
COUNTS = ("missing", "without_id", "duplicates", "unmatched")
"""Facts: documents without a row, those of them without an id, those whose id has several rows; ids
of no document.
"""
_FIRST = "first_missing"
"""Fact: the first id of a document without a row."""
_MISSING = "missing"


def column_nodes(config: ProjectConfig, corpus: str, used: Collection[str]) -> dict[str, Node]:
    """Return name → the outputs that hold some columns of a corpus's documents."""
    kept, key = config.documents_of(corpus).columns, Key(corpus)
    found = {} if set(used).isdisjoint(kept) else {COLUMNS.layout.folder: Node(COLUMNS, key)}
    return found | (
        {ATTRIBUTES.layout.folder: Node(ATTRIBUTES, key)}
        if corpus in config.attributes and set(used) - {*kept}
        else {}
    )


def columns_of(
    project: Project, corpus: str, tokenized: Manifest, used: Collection[str]
) -> AlignedColumns | None:
    """Return where some columns of the documents of a corpus's set of shards are; None where there
    are none of them.

    MissingError where they were not made yet, or not of this set.
    """
    import pyarrow as pa

    fields: dict[str, Any] = {}
    tables = []
    for node in column_nodes(project.config, corpus, used).values():
        stage = cast(AlignedStage, node.stage)
        made = require(project, stage, node.key)
        if made.recipe["parents"]["tokenized"] != tokenized.digest:
            what, remedy = "these columns are of other shards of the corpus", "run `nanoset build`"
            raise MissingError(
                what, where=made.url(), expected=f"those of {tokenized.digest}", remedy=remedy
            )
        fields = {one["name"]: type_of(one["kind"]) for one in made.facts["columns"]} | fields
        tables.append((stage.tables_folder, corpus, made.facts[SHARDS]))
    return AlignedColumns(pa.schema(fields), project.outputs, tuple(tables)) if tables else None


def _spec(config: ProjectConfig, corpus: str) -> AttributesSpec:
    if (spec := config.attributes_of(corpus)) is None:
        what = "no tables of attributes are named"
        remedy = remedy_for_name(
            corpus, config.attributes, f"name some there: {{{corpus}: scores/*.parquet}}"
        )
        expected = one_of(config.attributes, "none: it is empty")
        raise ConfigError(
            what, where=f"{config.file}: attributes", found=corpus, expected=expected, remedy=remedy
        )
    return spec


def read_attributes(project: Project, corpus: str, folder: Path) -> tuple[Lookup, AttributeTables]:
    """Read the tables that are joined to a corpus into an empty folder; return their rows, and what
    was read.
    """
    spec, where = _spec(project.config, corpus), f"attributes.{corpus}"
    given = given_files(project, spec.files, f"{where}.files")
    taken = {*TAKEN_COLUMNS, *project.config.documents_of(corpus).columns}
    files = [
        stat for stat in given.stats if not stat.path.rpartition("/")[2].startswith(("_", "."))
    ]  # as Spark's marks
    tables = AttributeTables(
        given.folder, files, spec.id, spec.columns, taken, f"{project.config.file}: {where}"
    )
    meter = Meter(project.listener, STAGE, corpus, sum(stat.size for stat in files))
    return tables.read(folder, meter.advance), tables


def fill_by_id(table: ColumnTable, rows: DocumentRows, lookup: Lookup) -> Mapping[str, Any]:
    """Fill the table of a shard with the rows of its documents; return COUNTS of it but the last,
    and _FIRST.
    """
    import pyarrow as pa

    opened, counts, first = lookup.opened(), np.zeros(3, np.int64), ""
    for group in range(len(rows.groups)):
        ids = rows.columns(group, ["id"]).column("id").combine_chunks()
        found, several = opened.find(ids)
        table.add([opened.take(found)])
        counts += (found < 0).sum(), ids.null_count, several.sum()
        first = first or next(
            iter(ids.filter(pa.array(found < 0)).drop_null().slice(0, 1).to_pylist()), ""
        )
    return dict(zip(COUNTS, counts.tolist(), strict=False)) | {_FIRST: first}


class _Marking(NamedTuple):
    """Everything that a worker needs to note the ids of a shard as found."""

    root: OutputRoot
    shard: Manifest
    lookup: Lookup


def _mark(task: _Marking) -> None:
    with task.root.in_task() as root:
        shard, opened = root.rebase(task.shard), task.lookup.opened()
        rows = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
        for group in range(len(rows.groups)):
            opened.find(rows.columns(group, ["id"]).column("id").combine_chunks())


@holding
def join_attributes(project: Project, corpus: str) -> Manifest:
    """Join tables of others to the documents of a corpus's current shards by their ids; make that
    current.

    Raises:
        MissingError: it was not tokenized, or there is no such table.
        SourceChangedError: a table was changed meanwhile.
        ConfigError, FormatError, InputError: a table cannot be joined; documents or rows are as
            they may not be.
    """
    tokenized = require(project, TOKENIZED, Key(corpus))
    recipe = ATTRIBUTES.recipe(project, Key(corpus), {"tokenized": tokenized.digest})
    if not project.rebuild and (made := project.outputs.find(recipe)) is not None:
        return _judged(project, project.outputs.make_current(made))
    shards, folder = current_shards(project, tokenized), project.outputs.folder / STAGE
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    with claim_scratch(folder / "joining") as scratch:
        lookup, tables = read_attributes(project, corpus, scratch)
        if (
            ATTRIBUTES.recipe(project, Key(corpus), {"tokenized": tokenized.digest}).digest
            != recipe.digest
        ):
            what, remedy = (
                "a table of attributes changed while it was read",
                "run again when it is finished",
            )
            raise SourceChangedError(what, where=_spec(project.config, corpus).files, remedy=remedy)

        def unmatched(
            there: Sequence[int], facts: Sequence[Mapping[str, Any]]
        ) -> Mapping[str, Any]:
            tasks = (_Marking(project.outputs, shards[number], lookup) for number in there)
            for _ in run_tasks(_mark, tasks, project.config.workers):
                pass
            first = next((first for one in facts if (first := one.get(_FIRST))), "")
            escaped = {ESCAPED: tables.escaped} if tables.escaped else {}
            return {COUNTS[-1]: lookup.unfound, "rows": lookup.rows, _FIRST: first, **escaped}

        fill = partial(fill_by_id, lookup=lookup)
        # The tables lie on this machine alone, so that no workers of others are asked.
        made = publish(
            project, ATTRIBUTES, recipe, shards, tables.names, lambda number: fill, None, unmatched
        )
    return _judged(project, made)


def _judged(project: Project, made: Manifest) -> Manifest:
    """Return an output; InputError where its documents or rows are as they may not be."""
    for what, remedy in faults(project.config, made):
        raise InputError(
            what, where=f"{project.config.file}: attributes.{made.name}", remedy=remedy
        )
    return made


def faults(config: ProjectConfig, made: Manifest) -> Iterator[tuple[str, str]]:
    """Yield what fails an output, and a remedy."""
    spec, facts = config.attributes_of(made.name), made.facts
    if spec is None:
        return
    if facts["without_id"] == facts["documents"]:
        yield "no document of the corpus has an id", "name the key of their ids in documents.id_key"
        return
    missing, duplicates, _ = _counted(spec, facts)
    if facts["missing"] and spec.on_missing == "fail":
        yield missing, "add their rows, or set on_missing: keep"
    if facts["duplicates"] and spec.on_duplicate == "fail":
        yield duplicates, "leave one row of each id, or set on_duplicate: first"


def _counted(spec: AttributesSpec, facts: Mapping[str, Any]) -> tuple[str, str, str]:
    first = f", as {facts[_FIRST]!r}" if facts.get(_FIRST) else ""
    without = f"; {facts['without_id']:,} of them have no id" if facts["without_id"] else ""
    return (
        f"{facts['missing']:,} of {facts['documents']:,} documents have no row in {spec.files}{first}{without}",
        f"{facts['duplicates']:,} documents have several rows in {spec.files}, of which the first counts",
        f"{facts['unmatched']:,} ids of {spec.files} are of no document",
    )


class AttributesStage(AlignedStage, Planned):
    """Columns of external tables, joined to documents by id."""

    layout = Layout(STAGE)
    kind = STAGE
    version = VERSION
    progress_name = "document_attributes"
    tables_folder = "attribute_tables"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(corpus, requested_at=STAGE) for corpus in config.attributes]

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        spec, content = _spec(project.config, key.subject), _MISSING
        # `make` and `refusal` say what is wrong
        with contextlib.suppress(MissingError, InputError):
            content = given_files(project, spec.files, f"{STAGE}.{key.subject}.files").digest
        options = {
            "files": content,
            "id": spec.id,
            "columns": None if spec.columns is None else list(spec.columns),
        }
        return Recipe(STAGE, key.subject, VERSION, {"tokenized": parents["tokenized"]}, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return join_attributes(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.columns.verify import verify_attributes

        return verify_attributes(project, key.subject, deep)

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        found = super().fault(project, key, manifest)
        return found or next((what for what, _ in faults(project.config, manifest)), None)

    def refusal(
        self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return that a file is not there, or what fails the output that is there."""
        try:
            given_files(
                project, _spec(project.config, key.subject).files, f"{STAGE}.{key.subject}.files"
            )
            made = project.outputs.find(wanted)
            return (
                None
                if made is None
                else next((what for what, _ in faults(project.config, made)), None)
            )
        except NanosetError as error:
            return one_line(error)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        summary = super().show(project, manifest)
        spec = project.config.attributes_of(manifest.name)
        if spec is None:
            return summary
        counts = ("missing", "duplicates", "unmatched")
        texts = zip(counts, _counted(spec, manifest.facts), strict=True)
        warnings = [text for count, text in texts if manifest.facts[count]]
        return replace(summary, warnings=[*summary.warnings, *warnings])


ATTRIBUTES = AttributesStage()
ATTRIBUTE_TABLES = InternalStage(Layout(AttributesStage.tables_folder), ATTRIBUTES)
