"""columns: what is known of each document beside its tokens: a table for each shard, row for row
its documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import Progress
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.text import format_count
from nanoset_core.stages.inventory.corpora import corpus_folder
from nanoset_core.stages.inventory.make import inventory_at, with_object_marks
from nanoset_core.stages.per_shard import find_existing, make_missing
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards.column_table import TABLE, ColumnTable, row_groups
from nanoset_core.stages.shards.document_table import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import (
    InternalStage,
    Key,
    Layout,
    Node,
    OutsideFiles,
    PerCorpus,
    Summary,
    require,
    size_bytes,
)
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.documents import DocumentBatch, read_documents
from nanoset_core.text.pieces import SourceRange, cut_ranges
from nanoset_core.text.values import MOST_BYTES, as_type, joined

VERSION = 1
STAGE = "columns"
SHARDS = "shards"
"""Fact of an output: digests of its tables, in the order of the corpus's shards."""
ESCAPED = "escaped"
"""Fact of an output: how many values are bytes that are not UTF-8, unless none is."""
_SMALL_DICTIONARY = 1 << 14
"""Bytes in the file."""
Fill = Callable[[ColumnTable, DocumentRows], Mapping[str, Any]]
"""Fills the table of a shard, given that of its documents; returns further facts of it."""


@dataclass(frozen=True, slots=True)
class AlignedColumns:
    """What is known of each document of a corpus beside its tokens: columns, each of one type, and
    where they are.
    """

    schema: Any
    """pyarrow.Schema of all columns."""
    outputs: OutputRoot
    tables: tuple[tuple[str, str, Sequence[str]], ...]
    """(stage, corpus, digests of a table for each shard) of each output."""

    def files_of(self, shard: int) -> list[Any]:
        """Open the tables of a shard, by its number: a pyarrow.parquet.ParquetFile each;
        MissingError, FormatError.
        """
        import pyarrow as pa

        found, remedy = [], "run `nanoset build`"
        for stage, corpus, digests in self.tables:
            manifest = self.outputs.version(
                stage, corpus, digests[shard], "a table of columns is gone", remedy
            )
            try:
                found.append(_opened(manifest.path(TABLE)))
            except (pa.ArrowException, OSError) as error:
                what, place = "this is not a table of columns", manifest.folder / TABLE
                raise FormatError(
                    what, where=place, found=str(error)[:500], remedy=remedy
                ) from error
        return found

    def read(self, files: Iterable[Any], group: int, columns: Collection[str]) -> dict[str, Any]:
        """Return name → values of columns of a row group of opened tables, by the types of
        `schema`.

        Texts of which few differ are a dictionary.
        """
        found: dict[str, Any] = {}
        for file in files:
            if names := [
                name for name in file.schema_arrow.names if name in columns and name not in found
            ]:
                table = file.read_row_group(group, columns=names)
                for name in names:
                    column, target = table.column(name), self.schema.field(name).type
                    found[name] = (
                        column if _value_type(column.type) == target else as_type(column, target)
                    )
        return found

    def statistics(self, files: Iterable[Any], group: int) -> Iterator[tuple[Any, Collection[str]]]:
        """Yield a row group of each opened table as Parquet describes it, and the columns of which
        this holds.

        It is in the order of the shard's own types, and so tells nothing of numbers that the corpus
        has as text.
        """
        import pyarrow as pa

        for file in files:
            fields = [field for field in file.schema_arrow if field.name in self.schema.names]
            targets = {field.name: self.schema.field(field.name).type for field in fields}
            same = {
                one.name
                for one in fields
                if targets[one.name] in (_value_type(one.type), pa.float64())
            }
            yield file.metadata.row_group(group), same


def _opened(path: Path) -> Any:
    """Open a table; of texts it gives a dictionary where that of the first row group is small: that
    is read faster.
    """
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    group = file.metadata.row_group(0) if file.num_row_groups else None
    parts = (
        [group.column(number) for number in range(group.num_columns)] if group is not None else []
    )
    texts = [
        part for part in parts if part.physical_type == "BYTE_ARRAY" and part.has_dictionary_page
    ]
    few = [
        one
        for one in texts
        if one.data_page_offset - one.dictionary_page_offset < _SMALL_DICTIONARY
    ]
    names = [one.path_in_schema for one in few]
    return pq.ParquetFile(path, metadata=file.metadata, read_dictionary=names) if names else file


def _value_type(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


@dataclass(frozen=True, slots=True)
class TableTask:
    """Everything that a worker needs to make the table of one shard."""

    root: OutputRoot
    recipe: Recipe
    shard: Manifest
    """Of its tokens, and of the table of its documents."""
    names: Sequence[str]
    """Of the columns."""
    fill: Fill


def make_table(task: TableTask) -> Manifest:
    """Make and store the table of one shard, or return it when it is there already.

    FormatError where it would not have the rows of the shard's documents.
    """
    with task.root.in_task() as root:
        shard = root.rebase(task.shard)

        def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
            documents = shard.facts["documents"]
            rows = DocumentRows(shard.path(DOCUMENTS), documents)
            with ColumnTable(folder / TABLE, task.names) as table:
                more = task.fill(table, rows)
            return {"documents": table.rows, "columns": table.facts, **more}, {}

        return root.commit(task.recipe, write)


def publish(
    project: Project,
    stage: AlignedStage,
    recipe: Recipe,
    shards: Sequence[Manifest],
    names: Sequence[str],
    fill_of: Callable[[int], Fill],
    executor: Executor | None,
    more: Callable[
        [Sequence[int], Sequence[Mapping[str, Any]]], Mapping[str, Any]
    ] = lambda existing, facts: {},
) -> Manifest:
    """Make the tables of a corpus's shards that do not exist yet, and the output that lists them;
    make it current.

    Args:
        project: The project.
        stage: The stage of the output.
        recipe: Recipe of the output.
        shards: The shards of the corpus.
        names: Names of the columns.
        fill_of: Returns how the table of a shard is filled, by the number of the shard.
        executor: Runs the tasks; None for processes of this machine.
        more: Returns further facts of the output, given the numbers of the shards whose tables
            existed, and the facts of all tables.
    """
    outputs = project.outputs
    corpus = recipe.name
    recipes = []
    for shard in shards:
        parents = {"shard": shard.digest}
        recipes.append(Recipe(stage.tables_folder, corpus, recipe.version, parents, recipe.options))
    facts_by_shard = find_existing(project, recipes, _facts_of)
    existing = [number for number, facts in enumerate(facts_by_shard) if facts is not None]
    missing = [number for number, facts in enumerate(facts_by_shard) if facts is None]
    n_done = len(existing)

    def task_of(number: int) -> TableTask:
        return TableTask(outputs, recipes[number], shards[number], names, fill_of(number))

    def note_table(number: int, table: Manifest) -> None:
        nonlocal n_done
        facts_by_shard[number] = _facts_of(table)
        n_done += 1
        project.listener(Progress(stage.progress_name, corpus, n_done, len(shards), "shards"))

    make_missing(project, missing, task_of, make_table, note_table, executor)
    all_facts = [facts for facts in facts_by_shard if facts is not None]
    further_facts = more(existing, all_facts)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        digests = [table_recipe.digest for table_recipe in recipes]
        return {**_added(names, all_facts), **further_facts, SHARDS: digests}, {}

    return outputs.make_current(outputs.commit(recipe, write))


def _facts_of(table: Manifest) -> Mapping[str, Any]:
    return {**table.facts, "bytes": size_bytes(table)}


def _added(names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of all tables together: the kind that a column has in all of them, and sums."""
    columns = []
    for number, name in enumerate(names):
        parts = [one["columns"][number] for one in facts]
        counts = {count: sum(part[count] for part in parts) for count in ("nulls", "left_out")}
        columns.append({"name": name, "kind": joined(part["kind"] for part in parts), **counts})
    # A rare count is a fact only of the tables in which it is not 0.
    sums: Counter[str] = Counter()
    for table_facts in facts:
        sums.update({name: value for name, value in table_facts.items() if isinstance(value, int)})
    return {"columns": columns, **sums}


@holding
def keep_columns(project: Project, corpus: str) -> Manifest:
    """Read the text of a corpus's current shards again for its columns; make these current.

    MissingError where it was not tokenized; SourceChangedError where a file is another by now.
    """
    tokenized = require(project, TOKENIZED, Key(corpus))
    recipe = COLUMNS.recipe(project, Key(corpus), {"tokenized": tokenized.digest})
    inventory = inventory_at(project.outputs, corpus, tokenized.recipe["parents"]["inventory"])
    if inventory is None:
        what, remedy = "the inventory of a corpus's shards is gone", "run `nanoset build --force`"
        raise MissingError(what, where=tokenized.url(), remedy=remedy)
    folder, options = corpus_folder(project, corpus), tokenized.recipe["options"]
    ranges, names = cut_ranges(inventory, options["range_bytes"]), tuple(recipe.options["columns"])
    keys = {name: options[name] for name in ("text_key", "id_key", "max_line_bytes")} | {
        "kept_keys": names
    }

    def fill_of(number: int) -> Fill:
        [source] = with_object_marks(project, folder, ranges[number : number + 1])
        return partial(_fill_from_text, folder=folder, source=source, keys=keys)

    return publish(
        project,
        COLUMNS,
        recipe,
        current_shards(project, tokenized),
        names,
        fill_of,
        project.executor,
    )


def _fill_from_text(
    table: ColumnTable,
    rows: DocumentRows,
    folder: RawFolder,
    source: SourceRange,
    keys: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Fill the table of a shard from its raw text; return how many values are not UTF-8, if any
    are.
    """
    n_escaped = 0

    def counted_batches() -> Iterator[DocumentBatch]:
        nonlocal n_escaped
        for batch in read_documents(folder, source, **keys):
            n_escaped += batch.escaped_values
            yield batch

    for parts in row_groups(counted_batches(), rows, source.files):
        table.add(parts)
    return {ESCAPED: n_escaped} if n_escaped else {}


class AlignedStage(PerCorpus, OutsideFiles):
    """Values of each document of a corpus: the manifest names a table for each shard, which is
    aligned with it.
    """

    progress_name: str
    """What the work is called while it runs."""
    tables_folder: str
    """Folder of the tables, one version a shard."""

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"tokenized": Node(TOKENIZED, key)}

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        def look(outputs: OutputRoot, place: Path) -> bool:
            return outputs.find_at(place) is not None

        there = project.outputs.each_version(
            look, self.tables_folder, key.subject, manifest.facts[SHARDS]
        )
        return None if all(there) else "the table of a shard is missing or damaged"

    def show(self, project: Project, manifest: Manifest) -> Summary:
        columns = manifest.facts["columns"]
        names = ", ".join(column["name"] for column in columns)
        warnings = [
            f"{column['left_out']:,} values of {column['name']!r} are longer than {MOST_BYTES:,} bytes, and left out"
            for column in columns
            if column["left_out"]
        ]
        if n_escaped := manifest.facts.get(ESCAPED):
            values = format_count(n_escaped, "value")
            warnings.append(f"{values} of bytes that are not UTF-8, which are kept as \\xNN")
        figures = {name: int(manifest.facts[name]) for name in ("documents", "bytes")}
        return Summary(figures, {"names": names}, warnings)

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        return map(str, manifest.facts[SHARDS])


class ColumnsStage(AlignedStage):
    """Values of the raw text, beside the tokens."""

    layout = Layout(STAGE)
    kind = "columns"
    version = VERSION
    progress_name = "document_columns"
    tables_folder = "column_tables"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        named = [name for name, spec in config.corpora.items() if spec.columns]
        with_columns = [
            name for name in dict.fromkeys([*corpora, *named]) if config.documents_of(name).columns
        ]
        return [Key(name, requested_at=f"corpora.{name}.columns") for name in with_columns]

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        columns = list(project.config.documents_of(key.subject).columns)
        return Recipe(
            STAGE, key.subject, VERSION, {"tokenized": parents["tokenized"]}, {"columns": columns}
        )

    def make(self, project: Project, key: Key) -> Manifest:
        return keep_columns(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.columns.verify import verify_columns

        return verify_columns(self, project, key.subject, deep)


COLUMNS = ColumnsStage()
COLUMN_TABLES = InternalStage(Layout(ColumnsStage.tables_folder), COLUMNS)
