"""Verify joined attributes: each document has the values of the row with its id.

If there are not too many documents, the attribute tables are joined again, and the result must
equal the stored tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph.built_inputs import changes_against_built_inputs
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.make import fill_by_id, read_attributes
from nanoset_core.stages.attributes.names import COUNTS, FOLDER, ROWS, TABLES_FOLDER
from nanoset_core.stages.attributes.policies import violations
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.attributes.tables import ReadAttributes
from nanoset_core.stages.checking import current_manifest, remedy_for_bytes
from nanoset_core.stages.columns.column_table import TABLE, ColumnTable
from nanoset_core.stages.columns.verify import verify_columns
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, Node, require

MAX_JOINED_AGAIN = 2_000_000
"""Up to this many documents and rows are joined again by every check, which takes some seconds."""


def verify_attributes(project: Project, corpus: str, *, deep: bool) -> Report:
    """Check the attributes of documents: values that other tables have for their ids.

    Are the stored values complete, and as the settings demand? Unless there are too many, they are
    also looked up again and compared.

    Args:
        project: The project.
        corpus: Name of the collection of documents.
        deep: Look up the values again and compare them even if there are many.

    Returns:
        The report, with an error for each table that differs and each setting that is violated.
    """
    report = verify_columns(ATTRIBUTES, project, corpus, deep=deep)
    if not report.passed:
        return report
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, ATTRIBUTES, Key(corpus))
        report.copy_facts(manifest, [*COUNTS, ROWS])  # such as documents without attributes
        _report_violations(report, project, manifest)
        if report.passed:  # otherwise, the warnings would repeat the errors
            _warn_of_missing_attributes(report, project, manifest)

        # If the documents or the tables have changed since, the values differ, of course.
        attributes_node = Node(ATTRIBUTES, Key(corpus))
        changes = changes_against_built_inputs(Graph(project, known={}), attributes_node)
        is_outdated = len(changes) > 0
        is_small = max(manifest.facts["documents"], manifest.facts[ROWS]) <= MAX_JOINED_AGAIN
        if not is_outdated and (deep or is_small):
            _join_again(report, project, manifest)
    return report


def _report_violations(report: Report, project: Project, manifest: Manifest) -> None:
    """Report an error if the settings demand more complete attributes than those that are stored.

    Attributes are values that other tables have for documents, such as scores. If nanoset.yaml has
    `on_missing: fail`, the error may be "3 of 200 documents have no row in scores.parquet".

    Args:
        report: Gets the error.
        project: The project, with the settings.
        manifest: The record of the attributes, with counts such as `{"missing": 3, "rows": 2000}`.
    """
    for violation in violations(project.config, manifest):
        report.error(
            violation.what,
            where=f"{project.config.file}: {FOLDER}.{manifest.name}",
            remedy=violation.remedy,
        )


def _warn_of_missing_attributes(report: Report, project: Project, manifest: Manifest) -> None:
    """Report the warnings that `nanoset status` shows of attributes, too.

    An example is "3 of 200 documents have no row in scores.parquet", if the settings allow that.

    Args:
        report: Gets the warnings.
        project: The project, with the settings.
        manifest: The record of the attributes, with the counts.
    """
    summary = ATTRIBUTES.show(project, manifest)  # what `nanoset status` shows
    for warning in summary.warnings:
        report.warn(warning, where=manifest.url())


def _join_again(report: Report, project: Project, manifest: Manifest) -> None:
    """Look up the attributes of all documents again, and compare them with the stored ones.

    They are values that other tables have for the documents' ids, such as scores. The documents are
    in several parts (shards), and there is a stored table for each:

        shard 0    stored 0.2, 0.7     looked up again 0.2, 0.7
        shard 1    stored 0.5          looked up again null: an error

    Args:
        report: Gets an error for each table that differs.
        project: The project.
        manifest: The record of the attributes, which lists the stored tables by their digests.
    """
    corpus = manifest.name
    shards = current_shards(project, require(project, TOKENIZED, Key(corpus)))
    stored_tables = _stored_tables(project, manifest)
    with tempfile.TemporaryDirectory(prefix="nanoset-attributes-") as scratch:
        lookup_folder = Path(scratch) / "lookup"
        lookup_folder.mkdir()
        attributes = read_attributes(project, corpus, lookup_folder)

        expected_path = Path(scratch) / TABLE  # each table replaces that before, to save space
        for shard, stored in zip(shards, stored_tables, strict=True):
            _write_table(expected_path, shard, attributes)
            if stored is not None:
                _compare_table(report, stored, expected_path)


def _stored_tables(project: Project, manifest: Manifest) -> Iterator[Manifest | None]:
    """Yield the record of each stored table of attributes; None if it was deleted a moment ago.

    Args:
        project: The project.
        manifest: The record of the attributes, which lists the tables by their digests.
    """
    outputs = project.outputs
    folder = outputs.folder / TABLES_FOLDER / manifest.name
    for digest in manifest.facts[SHARDS]:
        yield outputs.manifest_at(folder / digest)


def _write_table(path: Path, shard: Manifest, attributes: ReadAttributes) -> None:
    """Write a table with the attributes of a shard's documents, which are found by their ids.

    Args:
        path: The file to write; an earlier table is replaced.
        shard: Manifest of the shard.
        attributes: The rows of the attribute tables.
    """
    documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    with ColumnTable(path, attributes.names) as table:
        fill_by_id(table, documents, attributes.lookup)


def _compare_table(report: Report, stored: Manifest, expected_path: Path) -> None:
    """Compare a stored table of attributes with one that was made again now.

    Attributes are values that other tables have for documents, by their ids. If the values differ,
    the stored table is damaged, or was made wrongly.

    Args:
        report: Gets an error if they differ.
        stored: The record of the stored table.
        expected_path: Path of the table that was made again.
    """
    if not _are_equal(stored.path(TABLE), expected_path):
        report.error(
            "a stored table of attributes has other values than the tables it was made from",
            where=stored.place(TABLE).path,
            remedy=remedy_for_bytes(stored),
        )


def _are_equal(stored_path: Path, expected_path: Path) -> bool:
    """Return whether two Parquet files with the same row groups have equal values.

    Args:
        stored_path: Path of one file.
        expected_path: Path of the other.
    """
    with RowGroups(stored_path) as stored, RowGroups(expected_path) as expected:
        for group in range(len(expected.ranges)):
            if not stored.read(group).equals(expected.read(group)):
                return False
    return True
