"""Read the columns that are kept with the documents of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.column_sources import columns_of
from nanoset_core.stages.shards.make import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards


def all_rows(project: Project, tokenized: Manifest, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return id and columns of every document of the corpus web.

    Each table of columns has the same row groups as its table of documents.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    aligned = columns_of(project, "web", tokenized, names)
    for number, shard in enumerate(current_shards(project, tokenized)):
        files = aligned.open_tables(number)
        documents = pq.ParquetFile(shard.path(DOCUMENTS))
        assert {file.parquet.num_row_groups for file in files} == {documents.num_row_groups}
        for group in range(documents.num_row_groups):
            ids = documents.read_row_group(group, columns=["id"]).column("id").to_pylist()
            values = aligned.read(files, group, names)
            table = pa.table(
                {name: values[name].cast(aligned.schema.field(name).type) for name in names}
            )
            assert table.schema == pa.schema([aligned.schema.field(name) for name in names])
            rows += [
                {"id": identity, **row}
                for identity, row in zip(ids, table.to_pylist(), strict=True)
            ]
    return rows


def column_types(project: Project, tokenized: Manifest, names: Sequence[str]) -> list[str]:
    """Return Arrow's types of columns of the corpus web."""
    return [str(kind) for kind in columns_of(project, "web", tokenized, names).schema.types]
