"""Find the columns of a corpus's documents: values of the raw text, and joined attributes.

For example, a view that selects documents by `language` and `quality` needs a column `language`,
which was in the lines of the raw text, and a column `quality`, which a classifier wrote to another
table. Each kind is an output of its own, with a table for each shard of the corpus.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.aligned import AlignedStage
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.columns.aligned import AlignedColumns, TablesOfOutput
from nanoset_core.stages.columns.stage import COLUMNS
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.stage import Key, Node, current_version, require
from nanoset_core.text.tables.values import type_of


def column_nodes(config: ProjectConfig, corpus: str, used: Collection[str]) -> dict[str, Node]:
    """Return the outputs that contain some columns of a corpus's documents.

    There are two: `columns` has values from the raw text, such as a language, and `attributes` has
    values from other tables, such as scores:

        used                  outputs
        language              columns
        score                 attributes
        language, score       columns, attributes

    Args:
        config: The settings of nanoset.yaml. They name the columns of the raw text. Others are
            attributes, if the settings name tables of attributes for the corpus. Otherwise, they
            are in no output.
        corpus: Name of the corpus.
        used: Names of the columns.

    Returns:
        Name of the output → the stage that makes it, and its key, the corpus.
    """
    columns_of_text = set(config.documents_of(corpus).columns)
    other_columns = set(used) - columns_of_text
    needs_text = not columns_of_text.isdisjoint(used)
    needs_attributes = bool(other_columns) and corpus in config.attributes

    nodes = {}
    if needs_text:
        nodes[COLUMNS.layout.folder] = Node(COLUMNS, Key(corpus))  # "columns"
    if needs_attributes:
        nodes[ATTRIBUTES.layout.folder] = Node(ATTRIBUTES, Key(corpus))  # "attributes"
    return nodes


def built_columns(project: Project, corpus: str) -> list[str]:
    """Return which values of documents are stored for a corpus, by which documents can be selected.

    A corpus is a collection of texts. Values of its documents may come from two sources,
    which are listed in this order:

        columns of the raw text     "language", of lines such as {"text": "…", "language": "en"}
        attributes                  "quality", from tables with the ids of documents

    Args:
        project: The project. Columns that its settings no longer name are left out.
        corpus: Name of the corpus.

    Returns:
        Names such as `["language", "quality"]`, each once. What has not been built yet is missing.
    """
    nodes: list[Node] = []
    if project.config.documents_of(corpus).columns:
        nodes.append(Node(COLUMNS, Key(corpus)))
    if corpus in project.config.attributes:
        nodes.append(Node(ATTRIBUTES, Key(corpus)))

    names: list[str] = []
    for node in nodes:
        names += _built_columns_of(project, node)
    return list(dict.fromkeys(names))


def _built_columns_of(project: Project, node: Node) -> list[str]:
    """Return the names of the columns in the current version of an output; none if it has none.

    Args:
        project: The project.
        node: The output: columns of the raw text, or attributes.
    """
    manifest = current_version(project, node.stage, node.key).manifest
    if manifest is None:
        return []
    return [column["name"] for column in manifest.facts["columns"]]


def columns_of(
    project: Project, corpus: str, tokenized: Manifest, used: Collection[str]
) -> AlignedColumns | None:
    """Find the tables that contain some columns of a corpus's documents, such as `language`.

    The corpus was tokenized in parts, the shards. Each output with columns has a table for each
    shard, with a row for each of its documents:

        shard      columns (language)      attributes (score)
        3f9c…      a table                 a table
        a07e…      a table                 a table

    Args:
        project: The project.
        corpus: Name of the corpus.
        tokenized: The set of its shards, to which the tables must belong.
        used: Names of the columns.

    Returns:
        What reads these columns shard by shard; None if the corpus has none of them.

    Raises:
        MissingError: The columns were not made yet, or they belong to other shards.
    """
    import pyarrow as pa

    types: dict[str, Any] = {}  # name of the column → its Arrow type
    tables = []
    # Up to two outputs have such columns: values of the raw text, and joined attributes.
    for node in column_nodes(project.config, corpus, used).values():
        stage = cast(AlignedStage, node.stage)  # both stages make a table for each shard
        manifest = require(project, stage, node.key)
        _check_belongs_to(manifest, tokenized)

        # If both have a column of the same name, that of the raw text, which is first, is used.
        for column in manifest.facts["columns"]:
            types.setdefault(column["name"], type_of(column["kind"]))
        digests_of_tables = manifest.facts[SHARDS]
        tables.append(TablesOfOutput(stage.tables_folder, corpus, digests_of_tables))
    if not tables:
        return None
    return AlignedColumns(pa.schema(types), project.outputs, tuple(tables))


def _check_belongs_to(columns: Manifest, tokenized: Manifest) -> None:
    """Check that columns have values of the current documents of a corpus, and not of earlier ones.

    If the corpus was tokenized again since, document 7 may be another one, and so its value, too.

    Args:
        columns: The record of the columns, with a digest of the documents that they belong to.
        tokenized: The record of the current documents.

    Raises:
        MissingError: They belong to earlier documents.
    """
    if columns.recipe["parents"]["tokenized"] != tokenized.digest:
        raise MissingError(
            "these columns belong to other shards of the corpus",
            where=columns.url(),
            expected=f"columns of {tokenized.digest}",
            remedy="run `nanoset build`",
        )
