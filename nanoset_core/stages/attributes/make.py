"""Join attribute tables to the documents of a corpus by their ids.

An attribute table has, for example, the columns `id` and `quality`. The result is a table for each
shard of the corpus, with the quality of each document in the order of the shard.

The attribute tables are read once, into files of this machine. The worker processes, all on this
machine, look the ids of the shards' documents up in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import InputError, MissingError, SourceChangedError
from nanoset_core.execution.processes import run_tasks
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.given_tables import attributes_spec, files_setting
from nanoset_core.stages.attributes.lookup import Lookup, MatchingRows
from nanoset_core.stages.attributes.names import (
    DUPLICATES,
    FIRST_MISSING,
    FOLDER,
    MISSING,
    PROGRESS_NAME,
    ROWS,
    TABLES_FOLDER,
    UNMATCHED,
    VERSION,
    WITHOUT_ID,
)
from nanoset_core.stages.attributes.policies import check_policies
from nanoset_core.stages.attributes.schema import AttributeSchema
from nanoset_core.stages.attributes.tables import AttributeTables, ReadAttributes
from nanoset_core.stages.columns.column_table import ColumnTable
from nanoset_core.stages.columns.tables import (
    ESCAPED,
    Fill,
    TablesOfShards,
    make_tables,
    record_tables,
)
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.settings import TAKEN_COLUMNS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, require
from nanoset_core.storage.atomic import claim_scratch, sweep_abandoned

_NO_FILES = "missing"
"""Stands for the digest of the files in a recipe if there are none."""


def attributes_recipe(project: Project, corpus: str, tokenized_digest: str) -> Recipe:
    """Return everything on which the attributes of documents depend, with a digest of it.

    Attributes are values that other tables have for documents, such as scores of a classifier. If
    one of these changes, the digest does, and the attributes are read again:

        tokenized    the documents
        files        a digest of the tables; "missing" if there are none, which is no error yet
        id           the column of the tables that has the documents' ids
        columns      the columns that are read, or None for all

    Args:
        project: The project, whose settings name the tables.
        corpus: Name of the collection of documents.
        tokenized_digest: Digest of these documents.

    Raises:
        ConfigError: nanoset.yaml names no attribute tables for the corpus.
    """
    spec = attributes_spec(project.config, corpus)
    try:
        files_digest = given_files(project, spec.files, files_setting(corpus)).digest
    except (MissingError, InputError):
        files_digest = _NO_FILES  # "missing"
    options = {
        "files": files_digest,
        "id": spec.id,
        "columns": None if spec.columns is None else list(spec.columns),
    }
    return Recipe(FOLDER, corpus, VERSION, {"tokenized": tokenized_digest}, options)


def read_attributes(project: Project, corpus: str, folder: Path) -> ReadAttributes:
    """Read the attribute tables of a corpus into files in which rows can be looked up by id.

    Attributes are values of documents that other tables have, such as scores of a classifier:

        id        score
        doc-17    0.91
        doc-18    0.12

    Args:
        project: The project, whose settings name the tables, and whose progress is shown.
        corpus: Name of the corpus.
        folder: An empty folder, which receives the files.

    Returns:
        The rows, the names of the columns that were read, and how many values are not UTF-8.

    Raises:
        ConfigError: A column is missing, or has a name that documents have already.
        FormatError: A file is not a table, is damaged, or has other columns than the first one.
        InputError: A column cannot be kept, or there are no tables.
        MissingError: No file matches the settings of the corpus's attributes.
        StorageError: A bucket cannot be reached.
    """
    spec = attributes_spec(project.config, corpus)
    named_files = given_files(project, spec.files, files_setting(corpus))  # such as *.parquet
    table_files = [file for file in named_files.stats if not _is_hidden(file.path)]
    n_bytes = sum(file.size for file in table_files)

    schema = _new_schema(project.config, corpus)
    tables = AttributeTables(named_files.folder, table_files, schema)
    work = project.progress.work(FOLDER, corpus, n_bytes)
    return tables.read(folder, on_read=work.advance)


def _new_schema(config: ProjectConfig, corpus: str) -> AttributeSchema:
    """Return which columns tables of attributes must have, as far as the settings say it.

    Such tables have values of documents, such as scores, found by the documents' ids:

        attributes: {web: {files: "scores/*.parquet", id: doc_id, columns: [score]}}

    So there must be a column `doc_id`, and one named `score`. Without `columns`, all columns are
    read. None of them may have the name of a value that documents have already, such as "tokens".

    Args:
        config: The settings of nanoset.yaml.
        corpus: Name of the corpus, the collection of texts with these documents.
    """
    spec = attributes_spec(config, corpus)
    columns_of_text = config.documents_of(corpus).columns
    return AttributeSchema(
        id=spec.id,
        columns=spec.columns,
        reserved={*TAKEN_COLUMNS, *columns_of_text},
        setting=f"{config.file}: {FOLDER}.{corpus}",  # for messages
    )


def _is_hidden(path: str) -> bool:
    """Return whether a file is no table, but one that Spark writes next to its tables.

    Args:
        path: Path of the file, such as "scores/_SUCCESS" or "scores/._SUCCESS.crc".
    """
    file_name = path.rpartition("/")[2]
    return file_name.startswith(("_", "."))


@holding
def join_attributes(project: Project, corpus: str) -> Manifest:
    """Give each document of a corpus the values that other tables have for its id.

    For example, a classifier has rated documents, and its scores are in a table:

        the table               documents        result
        doc-17    0.7           doc-18           0.2
        doc-18    0.2           doc-17           0.7
                                doc-99           null: not in the table

    If this was done before, and neither the documents nor the tables have changed, nothing is read.

    Args:
        project: The project, whose settings name the tables.
        corpus: Name of the corpus, the collection of the documents.

    Returns:
        Manifest of the result, a record that lists its files.

    Raises:
        MissingError: The corpus was not tokenized, or there are no attribute tables.
        SourceChangedError: A table was changed while it was read.
        ConfigError: A column is missing, or has a name that documents have already.
        FormatError: A file is not a table, is damaged, or has other columns than the first one.
        InputError: A column cannot be kept, or documents have no values although they must.
    """
    outputs = project.outputs
    tokenized = require(project, TOKENIZED, Key(corpus))
    recipe = attributes_recipe(project, corpus, tokenized.digest)
    existing = None if project.rebuild else outputs.find(recipe)
    if existing is None:
        attributes = _join(project, tokenized, recipe)
    else:
        attributes = outputs.make_current(existing)

    # Also check an existing result: `on_missing: fail` may be set only now.
    check_policies(project.config, attributes)
    return attributes


def _join(project: Project, tokenized: Manifest, recipe: Recipe) -> Manifest:
    """Read the attribute tables of a corpus, and give each document the values for its id.

    Args:
        project: The project.
        tokenized: The record of the corpus's documents.
        recipe: What the result depends on, with a digest of the tables as they are now.

    Returns:
        Manifest of the result, a record that lists its files.

    Raises:
        SourceChangedError: A table was changed while it was read.
    """
    shards = current_shards(project, tokenized)  # the documents are in several parts

    folder = project.outputs.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)  # remove temporary files that killed processes have left behind
    with claim_scratch(folder / "joining") as scratch:  # a folder that is deleted at the end
        attributes = read_attributes(project, tokenized.name, scratch)
        _check_unchanged(project, recipe)
        return _join_to_shards(project, shards, attributes, recipe, scratch)


def _check_unchanged(project: Project, recipe: Recipe) -> None:
    """Refuse attribute tables that were changed while they were read.

    Perhaps the program that writes them has not finished. The values that were read would be a mix
    of old and new ones.

    Args:
        project: The project, whose settings name the tables.
        recipe: What the attributes depend on, with a digest of the tables before they were read.

    Raises:
        SourceChangedError: The tables have another digest now.
    """
    corpus = recipe.name
    recipe_now = attributes_recipe(project, corpus, recipe.parents["tokenized"])
    if recipe_now.digest != recipe.digest:
        raise SourceChangedError(
            "a table of attributes changed while it was read",
            where=attributes_spec(project.config, corpus).files,
            remedy="run again when it is finished",
        )


def _join_to_shards(
    project: Project,
    shards: Sequence[Manifest],
    attributes: ReadAttributes,
    recipe: Recipe,
    scratch: Path,
) -> Manifest:
    """Write tables with the attributes of all documents, one for each shard (a part of them).

    Attributes are values that other tables have for the ids of documents, such as scores.

    Args:
        project: The project.
        shards: The shards.
        attributes: The other tables, in which rows are found by ids.
        recipe: What the result depends on.
        scratch: A folder of this machine for temporary files.

    Returns:
        Manifest of the result, a record that lists the tables.
    """
    tables = _JoinedTables(
        root=project.outputs,
        output_recipe=recipe,
        folder=TABLES_FOLDER,
        corpus_shards=shards,
        names=attributes.names,
        lookup=attributes.lookup,
        scratch=scratch,
    )
    # The files of `attributes` are on this machine, so the tables are made here, too.
    shard_tables = make_tables(project, tables, PROGRESS_NAME, executor=None)

    # Tables that existed are not made again. Look up the ids of their documents only now: then it
    # is known which ids belong to no document.
    _look_up_ids(project, tables.shards_not_looked_up(), attributes.lookup)
    further_facts = _facts_of(attributes, shard_tables.results)
    return record_tables(project, tables, shard_tables.results, further_facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _JoinedTables(TablesOfShards):
    """Tables with the attributes of documents: values that other tables have for their ids."""

    lookup: Lookup
    """The other tables, in which rows are found by ids."""
    scratch: Path
    """Folder for an empty file of each shard, which says that its ids were looked up."""

    def fill_of(self, shard: int) -> Fill:
        """Return a function that fills the table of a shard, and then creates its empty file."""
        return partial(fill_and_mark, lookup=self.lookup, marker=self._marker(shard))

    def shards_not_looked_up(self) -> list[Manifest]:
        """Return the shards whose tables existed already, so that no ids were looked up."""
        return [
            manifest
            for shard, manifest in enumerate(self.corpus_shards)
            if not self._marker(shard).exists()
        ]

    def _marker(self, shard: int) -> Path:
        """Return the path of the empty file of a shard."""
        return self.scratch / f"matched-{shard}"


def _facts_of(
    attributes: ReadAttributes, facts_by_shard: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what is recorded about attribute tables that were joined to the documents of a corpus.

        {"rows": 2000,                   of the tables
         "unmatched": 12,                ids of the tables that no document has
         "first_missing": "doc-17",      the first document whose id is in no table, or ""
         "escaped": 3}                   values whose bytes are not UTF-8; only if there are some

    Args:
        attributes: The attribute tables.
        facts_by_shard: What was recorded for each part of the documents; each has a
            "first_missing" of its own.
    """
    first_missing_id = ""
    for facts_of_shard in facts_by_shard:
        first_missing_id = facts_of_shard.get(FIRST_MISSING, "")
        if first_missing_id:
            break

    facts = {
        UNMATCHED: attributes.lookup.count_unmatched(),
        ROWS: attributes.lookup.n_rows,
        FIRST_MISSING: first_missing_id,
    }
    if attributes.n_escaped:
        facts[ESCAPED] = attributes.n_escaped
    return facts


def fill_and_mark(
    table: ColumnTable, documents: DocumentRows, lookup: Lookup, marker: Path
) -> Mapping[str, Any]:
    """Fill a table with the attributes of documents, and create an empty file when it is done.

    The file tells the main process that the ids of these documents were looked up. Tables that
    exist from an earlier build are not filled again, so their documents have no such file.

    Args:
        table: Gets a row for each document.
        documents: Some documents of the corpus.
        lookup: The attributes, such as scores, by id.
        marker: Path of the empty file.

    Returns:
        Counts, for example of documents without attributes; see `fill_by_id`.
    """
    facts = fill_by_id(table, documents, lookup)
    marker.touch()
    return facts


def fill_by_id(table: ColumnTable, documents: DocumentRows, lookup: Lookup) -> Mapping[str, Any]:
    """Fill a table with the attributes of documents: values that other tables have for their ids.

        id of the document    its row in the other tables    score
        doc-18                1                              0.2
        doc-99                -1, since there is none        null

    Args:
        table: Gets a row for each document.
        documents: Some documents of the corpus.
        lookup: The other tables, in which rows are found by ids.

    Returns:
        How many documents have no row, no id, or an id that several rows have, and the first id
        without a row: `{"missing": 3, "without_id": 1, "duplicates": 0, "first_missing":
        "doc-99"}`.
    """
    open_lookup = lookup.open_files()
    counts = _MatchCounts()
    for group in range(len(documents.groups)):  # some ten thousand documents at a time
        ids = _ids_of(documents, group)  # (n_documents,)
        matches = open_lookup.find(ids)  # the row of each id
        columns = open_lookup.take(matches.rows)
        table.add([columns])
        counts.add(ids, matches)
    return counts.facts()


@dataclass(slots=True)
class _MatchCounts:
    """Counts of documents whose id is in no row of the attribute tables, or in several rows."""

    n_missing: int = 0
    """Documents without a row, with those that have no id."""
    n_without_id: int = 0
    """Documents without an id, so that they cannot have a row."""
    n_duplicates: int = 0
    """Documents whose id is in several rows."""
    first_missing_id: str = ""
    """The first id without a row, or empty."""

    def add(self, ids: Any, matches: MatchingRows) -> None:
        """Count how many of some documents have no row, no id, or an id that several rows have.

            id of the document      doc-17    doc-18    null     doc-19
            its row                     -1         5      -1          7     (-1: there is none)
            is repeated                 no        no      no        yes

        Here, 2 documents have no row, 1 of them has no id, and 1 other id is repeated.

        Args:
            ids: Their ids, an Arrow array of strings, shape (n_documents,); null for a document
                without an id.
            matches: The rows of these ids.
        """
        import pyarrow as pa

        has_no_row = matches.rows == -1  # (n_documents,)
        self.n_missing += int(np.count_nonzero(has_no_row))
        self.n_without_id += ids.null_count
        self.n_duplicates += int(np.count_nonzero(matches.is_repeated))

        if not self.first_missing_id:  # not known from earlier documents
            missing_ids = ids.filter(pa.array(has_no_row)).drop_null()
            if len(missing_ids):
                self.first_missing_id = missing_ids[0].as_py()

    def facts(self) -> dict[str, Any]:
        """Return the counts by the names that they have in manifests."""
        return {
            MISSING: self.n_missing,
            WITHOUT_ID: self.n_without_id,
            DUPLICATES: self.n_duplicates,
            FIRST_MISSING: self.first_missing_id,
        }


@dataclass(frozen=True, slots=True)
class _LookupTask:
    """Everything that a worker needs to look up the ids of one shard's documents."""

    root: OutputRoot
    """The outputs of the project."""
    shard: Manifest
    """The shard."""
    lookup: Lookup
    """The rows of the attribute tables, whose index marks the ids that were looked up."""


def _look_up_ids(project: Project, shards: Sequence[Manifest], lookup: Lookup) -> None:
    """Look up the ids of documents in other tables, only to note which ids were looked up.

    Those that were not looked up at the end belong to no document, and users are told how many
    there are.

    Args:
        project: The project.
        shards: Parts of a corpus, each with a table of its documents.
        lookup: The other tables, in which rows are found by ids.
    """
    tasks = (_LookupTask(project.outputs, shard, lookup) for shard in shards)
    for _ in run_tasks(_look_up_ids_of_shard, tasks, project.config.workers):
        pass  # the result of a task is in a file that all processes share


def _look_up_ids_of_shard(task: _LookupTask) -> None:
    """Look up the ids of the documents of one shard, which marks them as looked up."""
    with task.root.in_task() as root:
        shard = root.rebase(task.shard)
        open_lookup = task.lookup.open_files()
        documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
        for group in range(len(documents.groups)):
            open_lookup.find(_ids_of(documents, group))


def _ids_of(documents: DocumentRows, group: int) -> Any:
    """Return the ids of the documents of a row group.

    Args:
        documents: The table of a shard's documents.
        group: Number of the row group.

    Returns:
        An Arrow array of strings, null for documents without an id.
    """
    return documents.columns(group, ["id"]).column("id").combine_chunks()
