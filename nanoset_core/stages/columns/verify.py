"""Verify columns: each document has its row in the table of its shard.

A table must have the row groups of the shard's documents: for example, 65,536 and 1,200 rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.aligned import AlignedStage
from nanoset_core.stages.checking import (
    check_files,
    check_freshness,
    current_manifest,
    remedy_for_bytes,
)
from nanoset_core.stages.columns.column_table import TABLE
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, current_version
from nanoset_core.untrusted import shortened


def verify_columns(stage: AlignedStage, project: Project, corpus: str, *, deep: bool) -> Report:
    """Check the tables with values of documents, such as their languages.

    The documents of a corpus are in several parts, called shards, and each has a table of values
    with a row for each document:

        shard    documents    rows of its values
        0        70,000       70,000
        1        20,000       19,000              an error

    Args:
        stage: Where the values come from: from the raw text, or from elsewhere.
        project: The project.
        corpus: Name of the corpus.
        deep: Read every value.

    Returns:
        The report, with an error for each table that is missing or damaged. If the corpus was
        tokenized again since, so that it has other documents, there is a warning.
    """
    key = Key(corpus)
    report = Report(stage.report_name(key))
    with report.catching(remedy=BUILD):  # errors that are raised go into the report
        manifest = current_manifest(project, stage, key)
        report.copy_facts(manifest, ["documents"])
        check_freshness(report, project, stage, key, manifest)
        _check_tables(report, project, manifest, stage.tables_folder, deep=deep)
    return report


def _check_tables(
    report: Report, project: Project, manifest: Manifest, tables_folder: str, *, deep: bool
) -> None:
    """Check each of the tables with values of documents: its files, and its number of rows.

    The documents of a corpus are in several parts, called shards, and each has a table with a row
    for each document.

    Args:
        report: Gets an error for each table that is missing or damaged.
        project: The project.
        manifest: The list of the tables. It names each by its digest, such as "81aa…".
        tables_folder: Name of the folder in which the tables of all corpora are.
        deep: Read every value.
    """
    corpus = manifest.name
    folder = project.outputs.folder / tables_folder / corpus
    # The rows are compared with the documents, unless the corpus was tokenized again since, and
    # has other documents now. Then there is only a warning, and `shards` is None.
    shards = _shards_of_tables(project, corpus, manifest)

    for shard_number, table_digest in enumerate(manifest.facts[SHARDS]):
        table = project.outputs.manifest_at(folder / table_digest)
        if table is None:
            report.error(
                "the table of a shard was deleted",
                where=manifest.folder,
                expected=table_digest,
                remedy=BUILD,
            )
            continue
        is_intact = _has_intact_files(report, table, deep=deep)
        if is_intact and shards is not None:
            _check_rows(report, table, shards[shard_number], deep=deep)


def _has_intact_files(report: Report, table: Manifest, *, deep: bool) -> bool:
    """Check the files of a table, and return whether all are as they were written.

    Args:
        report: Gets an error for each of the others.
        table: Manifest of the table.
        deep: Compare the sha256, too, rather than only the size.
    """
    n_errors_before = len(report.errors)
    check_files(report, table, deep=deep)
    return len(report.errors) == n_errors_before


def _shards_of_tables(
    project: Project, corpus: str, manifest: Manifest
) -> Sequence[Manifest] | None:
    """Return the shards (parts of a tokenized corpus) that tables belong to, to compare both.

    If the corpus has been tokenized again since the tables were written, its shards may have other
    documents, so that they cannot be compared.

    Args:
        project: The project.
        corpus: Name of the corpus.
        manifest: Manifest of the output that lists the tables. It names what the tables were made
            from by its digest.

    Returns:
        Manifests of the shards, in the order of the tables; None if they cannot be compared.
    """
    tokenized = current_version(project, TOKENIZED, Key(corpus)).manifest
    if tokenized is None or manifest.recipe["parents"]["tokenized"] != tokenized.digest:
        return None
    return current_shards(project, tokenized)


def _check_rows(report: Report, table: Manifest, shard: Manifest, *, deep: bool) -> None:
    """Check that a table with values of documents has the same rows as the table of the documents.

    Row 7 of one belongs to row 7 of the other. Both are Parquet files, whose rows are in groups,
    and the groups must be the same, too. For 70,000 documents:

        table of documents    65,536 rows, 4,464 rows
        table of values       65,536 rows, 4,464 rows

    Args:
        report: Gets an error if they differ, or if the table of values cannot be read.
        table: The record of the table of values.
        shard: The record of the documents, a part of a corpus.
        deep: Whether to read every value, which finds damaged ones.
    """
    documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    expected_rows = [stop - start for start, stop in documents.groups]
    with report.catching(remedy=BUILD):  # a table that cannot be read becomes an error in it
        rows = _rows_of_groups(table, reads_values=deep)
        if rows != expected_rows:
            report.error(
                "a table of columns does not have the rows of its shard's documents",
                where=table.place(TABLE).path,
                found=shortened(str(rows)),
                expected=shortened(str(expected_rows)),
                remedy=remedy_for_bytes(table),
            )


def _rows_of_groups(table: Manifest, *, reads_values: bool) -> list[int]:
    """Return the numbers of rows in the parts of a table, to compare them with those of another
    table.

    A Parquet file consists of row groups, parts that are read one by one. For example, a table of
    70,000 rows has groups of 65,536 and 4,464 rows.

    Args:
        table: Manifest of the table.
        reads_values: Whether to read every value, which fails if one is damaged.

    Raises:
        FormatError: The table cannot be read.
    """
    import pyarrow as pa

    try:
        with RowGroups(table.path(TABLE)) as file:
            if reads_values:
                for group in range(len(file.ranges)):
                    file.read(group)  # raises an error if a value is damaged
            return [stop - start for start, stop in file.ranges]
    except (pa.ArrowException, OSError) as error:
        raise FormatError(
            "a table of columns cannot be read",
            where=table.place(TABLE).path,
            found=shortened(str(error)),
            remedy=remedy_for_bytes(table),
        ) from error
