"""Verify joined attributes: each document has the values of the row with its id.

If there are not too many documents, the attribute tables are joined again, and the result must
equal the stored tables.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph import stale_reasons
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.make import ReadAttributes, fill_by_id, read_attributes
from nanoset_core.stages.attributes.names import COUNTS, ROWS, STAGE, TABLES_FOLDER
from nanoset_core.stages.attributes.policies import violations
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.checking import current_manifest
from nanoset_core.stages.columns.column_table import TABLE, ColumnTable
from nanoset_core.stages.columns.verify import verify_columns
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, require

MAX_JOINED_AGAIN = 2_000_000
"""Up to this many documents and rows are joined again by every check, which takes some seconds."""


def verify_attributes(project: Project, corpus: str, *, deep: bool = False) -> Report:
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
        _check_policies(report, project, manifest)

        # If the documents or the tables have changed since, the values differ, of course.
        is_outdated = bool(stale_reasons(project, ATTRIBUTES, Key(corpus)))
        is_small = max(manifest.facts["documents"], manifest.facts[ROWS]) <= MAX_JOINED_AGAIN
        if not is_outdated and (deep or is_small):
            _join_again(report, project, manifest)
    return report


def _check_policies(report: Report, project: Project, manifest: Manifest) -> None:
    """Report documents without attributes: an error or a warning, as nanoset.yaml demands.

    Attributes are values that other tables have for documents, such as scores:

        on_missing: fail    an error if 3 documents have none
        on_missing: keep    a warning

    Args:
        report: Gets the error or the warning.
        project: The project.
        manifest: The record of the attributes, with counts such as `{"missing": 3, "rows": 2000}`.
    """
    report.copy_facts(manifest, [*COUNTS, ROWS])
    for violation in violations(project.config, manifest):
        report.error(
            violation.what,
            where=f"{project.config.file}: {STAGE}.{manifest.name}",
            remedy=violation.remedy,
        )
    if report.passed:  # otherwise, the warnings would repeat the errors
        for warning in ATTRIBUTES.show(project, manifest).warnings:
            report.warn(warning, where=manifest.url())


def _join_again(report: Report, project: Project, manifest: Manifest) -> None:
    """Look up the attributes of all documents again, and compare them with the stored ones.

    They are values that other tables have for the documents' ids, such as scores. The stored ones
    are in several files, one for each part of the documents:

        part 0    stored 0.2, 0.7     looked up again 0.2, 0.7
        part 1    stored 0.5          looked up again null: an error

    Args:
        report: Gets an error for each file that differs.
        project: The project.
        manifest: The record of the attributes, with the digests of these files.
    """
    corpus = manifest.name
    outputs = project.outputs
    parts = current_shards(project, require(project, TOKENIZED, Key(corpus)))
    stored_digests = manifest.facts[SHARDS]
    with tempfile.TemporaryDirectory(prefix="nanoset-attributes-") as scratch:
        rows_folder = Path(scratch) / "rows"
        rows_folder.mkdir()
        attributes = read_attributes(project, corpus, rows_folder)

        for part, digest in zip(parts, stored_digests, strict=True):
            expected_path = Path(scratch) / TABLE  # the same each time, to save disk space
            _write_table(expected_path, part, attributes)
            stored = outputs.manifest_at(outputs.folder / TABLES_FOLDER / corpus / digest)
            if stored is not None:  # it may have been deleted a moment ago
                _compare_table(report, stored, expected_path)


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
            remedy=f"delete {stored.url()}, and {BUILD}",
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
