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
from nanoset_core.stages.attributes.policies import violations
from nanoset_core.stages.attributes.settings import COUNTS, ROWS, STAGE, TABLES_FOLDER
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.checking import current_manifest
from nanoset_core.stages.columns.column_table import TABLE, ColumnTable
from nanoset_core.stages.columns.settings import SHARDS
from nanoset_core.stages.columns.verify import verify_columns
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, require

MAX_JOINED_AGAIN = 2_000_000
"""Up to this many documents and rows are joined again by every check, which takes some seconds."""


def verify_attributes(project: Project, corpus: str, *, deep: bool = False) -> Report:
    """Check the attributes of a corpus's documents: values that other tables have for their ids.

        the stored tables have a row for each document, and undamaged files
        nanoset.yaml forbids nothing that was found, such as documents without a row
        joining again gives the same values (if the corpus is small, or the check `deep`)

    Args:
        project: The project.
        corpus: Name of the corpus.
        deep: Read every value, and compare the result of joining the attributes again. For a small
            corpus, this is always done.

    Returns:
        The report, with an error for each table that differs and each policy that is violated.
    """
    report = verify_columns(ATTRIBUTES, project, corpus, deep=deep)
    if not report.passed:
        return report
    with report.catching(remedy=BUILD):
        manifest = current_manifest(project, ATTRIBUTES, Key(corpus))
        _check_policies(report, project, manifest)

        # A stale output was joined from other documents or attributes than the present ones, and
        # cannot be compared with them. `verify_columns` has already warned of that.
        is_stale = bool(stale_reasons(project, ATTRIBUTES, Key(corpus)))
        is_small = max(manifest.facts["documents"], manifest.facts[ROWS]) <= MAX_JOINED_AGAIN
        if not is_stale and (deep or is_small):
            _join_again(report, project, manifest)
    return report


def _check_policies(report: Report, project: Project, manifest: Manifest) -> None:
    """Report the counts of joined attributes, and what nanoset.yaml forbids.

    Attributes are values of documents from other tables. If 3 documents have no row in these, it
    depends on `on_missing`:

        on_missing: fail    an error
        on_missing: keep    a warning

    Args:
        report: Report on the attributes.
        project: The project.
        manifest: Manifest of the attributes, with counts such as `{"missing": 3, "rows": 2000}`.
    """
    report.copy_facts(manifest, [*COUNTS, ROWS])
    for violation in violations(project.config, manifest):
        report.error(
            violation.what,
            where=f"{project.config.file}: {STAGE}.{manifest.name}",
            remedy=violation.remedy,
        )
    # These warnings may say that documents have no row. If that is an error, it is reported above.
    if report.passed:
        for warning in ATTRIBUTES.show(project, manifest).warnings:
            report.warn(warning, where=manifest.url())


def _join_again(report: Report, project: Project, manifest: Manifest) -> None:
    """Compute the attributes of all documents again, and compare the stored ones.

    Attributes, such as scores, come from tables outside of the project, and are found by the ids of
    documents. A corpus is tokenized in parts, called shards, and each has a table of its
    attributes:

        shard 0    stored 0.2, 0.7     computed again 0.2, 0.7
        shard 1    stored 0.5          computed again null: an error

    Args:
        report: Gets an error for each table that differs.
        project: The project.
        manifest: Manifest of the attributes, which lists the stored tables.
    """
    corpus = manifest.name
    outputs = project.outputs
    shards = current_shards(project, require(project, TOKENIZED, Key(corpus)))
    with tempfile.TemporaryDirectory(prefix="nanoset-attributes-") as scratch:
        # Read the attribute tables into files in which rows can be looked up by id.
        rows_folder = Path(scratch) / "rows"
        rows_folder.mkdir()
        attributes = read_attributes(project, corpus, rows_folder)

        # There is a table for each shard of the corpus. The expected ones are written to the same
        # path one after another, so that only one of them takes space.
        expected_path = Path(scratch) / TABLE
        for shard, digest in zip(shards, manifest.facts[SHARDS], strict=True):
            _write_table(expected_path, shard, attributes)
            stored = outputs.manifest_at(outputs.folder / TABLES_FOLDER / corpus / digest)
            if stored is not None:  # it may have been deleted since `verify_columns` found it
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
        stored: Manifest of the stored table, which has a row for each document of a shard.
        expected_path: Path of the table that was made again.
    """
    if not _are_equal(stored.path(TABLE), expected_path):
        report.error(
            "a table of attributes does not have the values of the rows with its documents' ids",
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
