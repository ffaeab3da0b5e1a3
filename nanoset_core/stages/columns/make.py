"""Read the values of the raw text that are kept for each document, in addition to its tokens.

For example, with `columns: [language]` in nanoset.yaml, the language of each document is stored, as
the key `language` of its line has it. The tokens were made before, so the text is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project, holding
from nanoset_core.stages.columns.alignment import values_by_row_group
from nanoset_core.stages.columns.column_table import ColumnTable
from nanoset_core.stages.columns.names import FOLDER, PROGRESS_NAME, TABLES_FOLDER, VERSION
from nanoset_core.stages.columns.tables import (
    ESCAPED,
    Fill,
    TablesOfShards,
    make_tables,
    record_tables,
)
from nanoset_core.stages.inventory.corpora import corpus_folder
from nanoset_core.stages.inventory.make import inventory_of, with_object_marks
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.shard_sets import current_shards, ranges_of_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, require
from nanoset_core.storage.location import Location
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.files.endings import CsvValues
from nanoset_core.text.inventory.pieces import Inventory, SourceRange


def columns_recipe(project: Project, corpus: str, tokenized_digest: str) -> Recipe:
    """Return what the columns of a corpus depend on, with a digest of it.

    Columns are values that the raw text has for each document, such as its language. They are read
    again only if this digest changes: if the documents are others, or the settings name other
    values.

    Args:
        project: The project, whose settings name the values.
        corpus: Name of the corpus.
        tokenized_digest: Digest of the documents.
    """
    documents = project.config.documents_of(corpus)
    options: dict[str, Any] = {"columns": list(documents.columns)}
    # This option is newer than the others. With its default, "text", it is left out, so that the
    # digests of existing columns did not change.
    if documents.csv_values != "text":
        options["csv_values"] = documents.csv_values
    return Recipe(FOLDER, corpus, VERSION, {"tokenized": tokenized_digest}, options)


@holding
def keep_columns(project: Project, corpus: str) -> Manifest:
    """Store further values of each document, such as its language, to choose documents by them.

    Lines of raw text may have more than a text: `{"text": "…", "language": "en"}`. The setting
    `columns: [language]` says what is stored. The raw text, which was tokenized before, is read a
    second time for that. Meanwhile, `nanoset gc` deletes nothing that is needed (`holding`).

    Args:
        project: The project, with this setting.
        corpus: Name of the corpus, a collection of texts.

    Returns:
        Manifest, a record that lists the tables with the values.

    Raises:
        MissingError: The corpus was not tokenized, or the list of its files was deleted.
        SourceChangedError: A file has changed since it was tokenized.
    """
    tokenized = require(project, TOKENIZED, Key(corpus))
    tables = _tables_from_text(project, tokenized)

    # Make the tables that do not exist yet. Then record all of them, with their counts.
    made_tables = make_tables(project, tables, PROGRESS_NAME, project.executor)
    return record_tables(project, tables, table_facts=made_tables.results)


def _tables_from_text(project: Project, tokenized: Manifest) -> _TablesFromText:
    """Return what the tables of a corpus's columns are made from, without making them.

    The corpus was tokenized in parts, called shards. Each was made from a range of the files, and
    gets a table with the values of its documents:

        shard 0    a.jsonl, and the first 40 MB of b.jsonl
        shard 1    the rest of b.jsonl, and c.jsonl

    The ranges follow from a list of the files that was stored then.

    Args:
        project: The project, whose settings name the values, such as the language of documents.
        tokenized: The record of the shards, with a digest of the list.

    Raises:
        MissingError: The list of files was deleted.
        FormatError: The shards were not made from these files.
    """
    corpus = tokenized.name
    recipe = columns_recipe(project, corpus, tokenized.digest)
    keys = _text_keys(recipe, tokenized)
    return _TablesFromText(
        root=project.outputs,
        output_recipe=recipe,
        folder=TABLES_FOLDER,
        corpus_shards=current_shards(project, tokenized),
        names=keys.columns,  # ("language",)
        project=project,
        text_folder=corpus_folder(project, corpus),
        ranges=ranges_of_shards(_inventory_of(project, tokenized), tokenized),
        keys=keys,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TablesFromText(TablesOfShards):
    """Tables with values of the raw text, as it was when the shards were made from it.

    If it has changed since, reading it is an error: other documents would be found.
    """

    project: Project
    """The project."""
    text_folder: Location
    """Folder of the corpus."""
    ranges: Sequence[SourceRange]
    """The range of the text that each shard was made from, by the number of the shard."""
    keys: TextKeys
    """Which values of each line are read."""

    def fill_of(self, shard: int) -> Fill:
        """Return a function that fills the table of a shard from its range of the text."""
        # A mark is a value that changes with each version of an object in a bucket. It is compared
        # when a Parquet file is read, so that a changed file is an error.
        [source] = with_object_marks(self.project, self.text_folder, [self.ranges[shard]])
        return partial(_fill_from_text, folder=self.text_folder, source=source, keys=self.keys)


def _inventory_of(project: Project, tokenized: Manifest) -> Inventory:
    """Return the list of files that a corpus was tokenized from.

    It has the size and a digest of each file, so that a file that has changed since is noticed when
    it is read again.

    Args:
        project: The project.
        tokenized: The record of the tokenized corpus, with a digest of the list.

    Raises:
        MissingError: The list was deleted.
    """
    inventory = inventory_of(project.outputs, tokenized)
    if inventory is None:
        raise MissingError(
            "the inventory of a corpus's shards was deleted",
            where=tokenized.url(),
            remedy="run `nanoset build --force`",
        )
    return inventory


@dataclass(frozen=True, slots=True)
class TextKeys:
    """Which values of a line of raw text are read."""

    text_key: str
    """Key of the text."""
    id_key: str
    """Key of the document's id."""
    columns: tuple[str, ...]
    """Keys of the values that are kept."""
    csv_values: CsvValues
    """What these values are in CSV files."""
    max_line_bytes: int
    """A longer line is rejected."""


def _text_keys(recipe: Recipe, tokenized: Manifest) -> TextKeys:
    """Return which values of each line of raw text are read, to store values such as languages.

        {"id": "doc-17", "text": "the cat", "language": "en"}

    Text and id are read as they were when the text was tokenized, so that the same lines count as
    documents again.

    Args:
        recipe: Names the values that are to be stored, such as "language".
        tokenized: The record of the tokenized text, with the keys of text and id, and the length of
            the longest line.
    """
    options = tokenized.recipe["options"]
    return TextKeys(
        text_key=options["text_key"],
        id_key=options["id_key"],
        columns=tuple(recipe.options["columns"]),
        csv_values=recipe.options.get("csv_values", "text"),  # or "json"
        max_line_bytes=options["max_line_bytes"],
    )


def _fill_from_text(
    table: ColumnTable,
    documents: DocumentRows,
    folder: Location,
    source: SourceRange,
    keys: TextKeys,
) -> Mapping[str, Any]:
    """Fill the table of a shard with values from its raw text.

    The text is read again, and the values of each document are written to the document's row. With
    the key `language`:

        {"text": "the cat", "language": "en"}
        {"text": "die Katze", "language": "de"}    →    a column with "en" and "de"

    Args:
        table: Receives the values.
        documents: The table of the shard's documents, whose rows the values must have.
        folder: Folder of the raw text.
        source: The shard's range of the text.
        keys: The keys of each line at which text, id and values are.

    Returns:
        How many values are bytes that are not UTF-8, as the fact ESCAPED, unless there are none.
    """
    batches = read_documents(
        folder,
        source,
        text_key=keys.text_key,
        id_key=keys.id_key,
        kept_keys=keys.columns,
        csv_values=keys.csv_values,
        max_line_bytes=keys.max_line_bytes,
    )
    n_escaped = 0

    def counted_batches() -> Iterator[DocumentBatch]:
        """Yield the documents of the text, and count the values that are not UTF-8."""
        nonlocal n_escaped
        for batch in batches:
            n_escaped += batch.escaped_values
            yield batch

    for parts in values_by_row_group(counted_batches(), documents, source.files):
        table.add(parts)
    return {ESCAPED: n_escaped} if n_escaped else {}
