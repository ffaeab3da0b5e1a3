"""Read the columns that are kept with the documents of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from nanoset_core.document_tables.relation import DocumentRelation
from nanoset_core.document_tables.scan import DocumentScan
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.column_sources import columns_of
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards


def all_rows(project: Project, tokenized: Manifest, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return id and columns of every document of the corpus web, as conditions of views see them.

    Each table of columns has the same row groups as its table of documents.
    """
    aligned = columns_of(project, "web", tokenized, names)
    rows = []
    scan = DocumentScan(["id", *names])
    for number, shard in enumerate(current_shards(project, tokenized)):
        n_documents = shard.facts["documents"]
        documents = DocumentRows(shard.path(DOCUMENTS), n_documents).source
        columns = aligned.sources(number, n_documents)
        for source in columns:
            assert source.metadata[0].num_row_groups == documents.metadata[0].num_row_groups
        schema = pa.schema([pa.field("id", pa.string()), *aligned.schema])
        relation = DocumentRelation(schema, (documents, *columns))
        for scanned in scan.batches(relation):
            rows += pa.table(dict(scanned.columns)).to_pylist()
    return rows


def column_types(project: Project, tokenized: Manifest, names: Sequence[str]) -> list[str]:
    """Return Arrow's types of columns of the corpus web."""
    return [str(kind) for kind in columns_of(project, "web", tokenized, names).schema.types]
