"""Does each document have its row in the tables of columns?"""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.columns import SHARDS, AlignedStage
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.pipeline.tokenization import TOKENIZED, current_shards
from nanoset_core.tokenization.column_table import TABLE
from nanoset_core.tokenization.document_table import DocumentRows
from nanoset_core.tokenization.shards import DOCUMENTS
from nanoset_core.verification.report import BUILD, Report, check_current, check_files


def verify_columns(stage: AlignedStage, project: Project, corpus: str, deep: bool = False) -> Report:
    """Check what is known of each document of a corpus.

    The table of each shard is there, of the size written, and has the rows and row groups of its documents; of
    those of older shards the files alone are looked at. With `deep` every value is read.
    """

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        tokenized = TOKENIZED.current(project, Key(corpus)).manifest
        is_of_these = tokenized is not None and manifest.recipe["parents"]["tokenized"] == tokenized.digest
        shards = current_shards(project, tokenized) if tokenized is not None and is_of_these else None
        for number, digest in enumerate(manifest.facts[SHARDS]):
            table = project.outputs.manifest_at(project.outputs.folder / stage.tables.folder / corpus / digest)
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
            groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        report.error("a table of columns cannot be read", where, str(error)[:500], None, remedy)
        return
    expected = [end - begin for begin, end in documents]
    what = "a table of columns has not the rows of its shard's documents"
    report.compare(what, where, str(groups)[:500], str(expected)[:500], remedy)
