"""Does each document have its row in the tables of columns, and the values of the row with its id?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.stage import (
    ATTRIBUTES,
    COUNTS,
    faults,
    fill_by_id,
    read_attributes,
)
from nanoset_core.stages.checking import check_current, check_freshness
from nanoset_core.stages.columns.stage import SHARDS, AlignedStage
from nanoset_core.stages.report import BUILD, Report, check_files, live_manifest
from nanoset_core.stages.shards.column_table import TABLE, ColumnTable
from nanoset_core.stages.shards.document_table import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, current_version, require

JOINED_AGAIN = 2_000_000
"""Documents and rows up to which they are joined again by every check; some seconds."""


def verify_columns(
    stage: AlignedStage, project: Project, corpus: str, deep: bool = False
) -> Report:
    """Check what is known of each document of a corpus.

    The table of each shard is there, of the size written, and has the rows and row groups of its
    documents; of those of older shards the files alone are looked at. With `deep` every value is
    read.
    """

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        tokenized = current_version(project, TOKENIZED, Key(corpus)).manifest
        is_of_these = (
            tokenized is not None and manifest.recipe["parents"]["tokenized"] == tokenized.digest
        )
        shards = (
            current_shards(project, tokenized) if tokenized is not None and is_of_these else None
        )
        for number, digest in enumerate(manifest.facts[SHARDS]):
            table = project.outputs.manifest_at(
                project.outputs.folder / stage.tables_folder / corpus / digest
            )
            if table is None:
                report.error("the table of a shard is gone", manifest.folder, None, digest, BUILD)
                continue
            errors = len(report.errors)
            check_files(report, table, deep=deep)
            if shards is not None and len(report.errors) == errors:
                _check_rows(report, table, shards[number], deep)

    return check_current(project, stage, Key(corpus), look, "documents")


def _check_rows(report: Report, table: Manifest, shard: Manifest, deep: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    remedy, where = f"delete {table.url()}, and {BUILD}", table.place(TABLE)[0]
    documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"]).groups
    try:
        with pq.ParquetFile(table.path(TABLE)) as file:
            for group in range(file.num_row_groups if deep else 0):
                file.read_row_group(group).validate(full=True)
            groups = [
                file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)
            ]
    except (pa.ArrowException, OSError) as error:
        report.error("a table of columns cannot be read", where, str(error)[:500], None, remedy)
        return
    expected = [end - begin for begin, end in documents]
    what = "a table of columns has not the rows of its shard's documents"
    report.compare(what, where, str(groups)[:500], str(expected)[:500], remedy)


def verify_attributes(project: Project, corpus: str, deep: bool = False) -> Report:
    """Check what tables of others say of each document of a corpus.

    The tables of the shards are as `verify_columns` asks for, and documents and rows meet as the
    policies say. With `deep`, or of few documents and rows, these are joined again, and all values
    are the same.
    """
    report = verify_columns(ATTRIBUTES, project, corpus, deep)
    if not report.passed:
        return report
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, ATTRIBUTES.layout.folder, corpus)
        report.figures.update({name: manifest.facts[name] for name in (*COUNTS, "rows")})
        for what, remedy in faults(project.config, manifest):
            report.error(what, f"{project.config.file}: attributes.{corpus}", None, None, remedy)
        if report.passed:
            for text in ATTRIBUTES.show(project, manifest).warnings:
                report.warn(text, manifest.url())
        fresh = check_freshness(Report(report.output), project, ATTRIBUTES, Key(corpus), manifest)
        if fresh and (
            deep or max(manifest.facts["documents"], manifest.facts["rows"]) <= JOINED_AGAIN
        ):
            _join_again(report, project, manifest)
    return report


def _join_again(report: Report, project: Project, manifest: Manifest) -> None:
    import pyarrow.parquet as pq

    corpus, outputs = manifest.name, project.outputs
    shards = current_shards(project, require(project, TOKENIZED, Key(corpus)))
    with tempfile.TemporaryDirectory(prefix="nanoset-attributes-") as scratch:
        folder, again = Path(scratch) / "rows", Path(scratch) / TABLE
        folder.mkdir()
        lookup, tables = read_attributes(project, corpus, folder)
        for shard, digest in zip(shards, manifest.facts[SHARDS], strict=True):
            with ColumnTable(again, tables.names) as table:
                fill_by_id(
                    table, DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"]), lookup
                )
            stored = outputs.manifest_at(
                outputs.folder / ATTRIBUTES.tables_folder / corpus / digest
            )
            if stored is None:
                continue  # it was there a moment ago
            with pq.ParquetFile(stored.path(TABLE)) as made, pq.ParquetFile(again) as wanted:
                groups = range(wanted.num_row_groups)
                if not all(
                    made.read_row_group(group).equals(wanted.read_row_group(group))
                    for group in groups
                ):
                    what = "a table of attributes has not the values of the rows with its documents' ids"
                    report.error(
                        what,
                        stored.place(TABLE)[0],
                        None,
                        None,
                        f"delete {stored.url()}, and {BUILD}",
                    )
