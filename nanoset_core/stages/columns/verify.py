"""Verify columns: each document has its row in the table of its shard."""

from __future__ import annotations

from collections.abc import Sequence

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.columns.column_table import TABLE
from nanoset_core.stages.columns.stage import AlignedStage
from nanoset_core.stages.columns.tables import SHARDS
from nanoset_core.stages.report import BUILD, Report, check_files
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, current_version


def verify_columns(
    stage: AlignedStage, project: Project, corpus: str, deep: bool = False
) -> Report:
    """Check the tables that hold values of each document of a corpus.

    The table of each shard must exist, have the size that was written, and the rows and row groups
    of the shard's documents. If the corpus was tokenized again since, only the files are checked.

    Args:
        stage: The stage of the output: `columns`, or another with a table for each shard.
        project: The project.
        corpus: Name of the corpus.
        deep: Read every value.
    """

    def check_tables(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        shards = _shards_of(project, corpus, manifest)
        for number, digest in enumerate(manifest.facts[SHARDS]):
            folder = project.outputs.folder / stage.tables_folder / corpus / digest
            table = project.outputs.manifest_at(folder)
            if table is None:
                report.error(
                    "the table of a shard was deleted", manifest.folder, None, digest, BUILD
                )
                continue

            n_errors = len(report.errors)
            check_files(report, table, deep=deep)
            if shards is not None and len(report.errors) == n_errors:
                _check_rows(report, table, shards[number], deep)

    return check_current(project, stage, Key(corpus), check_tables, "documents")


def _shards_of(project: Project, corpus: str, manifest: Manifest) -> Sequence[Manifest] | None:
    """Return the shards that tables belong to, or None if they are not the current ones."""
    tokenized = current_version(project, TOKENIZED, Key(corpus)).manifest
    if tokenized is None or manifest.recipe["parents"]["tokenized"] != tokenized.digest:
        return None
    return current_shards(project, tokenized)


def _check_rows(report: Report, table: Manifest, shard: Manifest, deep: bool) -> None:
    """Check that a table has the row groups of its shard's documents, and that it can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = table.place(TABLE)[0]
    remedy = f"delete {table.url()}, and {BUILD}"
    documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    rows_of_documents = [stop - start for start, stop in documents.groups]

    try:
        with pq.ParquetFile(table.path(TABLE)) as file:
            groups = range(file.num_row_groups)
            rows_of_table = [file.metadata.row_group(group).num_rows for group in groups]
            if deep:
                for group in groups:
                    file.read_row_group(group).validate(full=True)
    except (pa.ArrowException, OSError) as error:
        report.error("a table of columns cannot be read", where, str(error)[:500], None, remedy)
        return

    report.compare(
        "a table of columns does not have the rows of its shard's documents",
        where,
        str(rows_of_table)[:500],
        str(rows_of_documents)[:500],
        remedy,
    )
