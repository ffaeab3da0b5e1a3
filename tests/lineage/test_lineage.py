"""Tables of documents: what is read of them, and those that are not what a build writes."""

from __future__ import annotations

from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.building import make_corpora
from nanoset_core.errors import FormatError
from nanoset_core.lineage import documents as documents_module
from nanoset_core.lineage.documents import Lineage
from nanoset_core.project.project import Project
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.shards import tokenize
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.shard_sets import BY_SHARD
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import in_parallel


def written(path, tokens):
    """A table of documents of file a, the first 60, and b."""
    count = len(tokens)
    columns = {
        "file": pa.array(["a" if n < 60 else "b" for n in range(count)]).dictionary_encode(),
        "line": [n % 60 + 1 for n in range(count)],
        "byte_offset": list(range(count)),
        "id": [f"{n:03}" for n in range(count)],
    }
    pq.write_table(pa.table(columns | {"tokens": tokens}), path, row_group_size=10)
    return DocumentRows(path, count)


def test_lengths_are_whole_numbers(tmp_path):
    rows = written(tmp_path / "documents.parquet", pa.array([4, 0, 7], pa.int32()))
    assert np.concatenate([lengths for _, lengths in rows.lengths()]).tolist() == [4, 0, 7]
    for tokens in ([float("inf"), float("-inf"), 1.0], [1, None, 2], ["1", "2", "3"]):
        rows = written(tmp_path / "documents.parquet", tokens)
        with pytest.raises(FormatError, match=r"tokens as (double|int64|string)"):
            list(rows.lengths())


def test_rows_are_found_by_their_values(tmp_path):
    table = written(tmp_path / "t.parquet", pa.array([1] * 100, pa.int32()))
    assert [row for row, _ in table.search({"id": "042"})] == [42]
    assert [row for row, _ in table.search({"file": "b", "line": 5})] == [64]
    assert [values["id"] for values in table.read([99, 0, 42])] == ["099", "000", "042"]


def test_documents_are_found_by_the_counts_of_many_shards(make_project, monkeypatch):
    config = make_project()
    monkeypatch.setattr(tokenize, "_MANY_SHARDS", 1)
    make_corpora(project := Project.open(config), "web")
    dataset = project.outputs.current("datasets", "web")
    known = Lineage(dataset_of(project.outputs, dataset))
    assert len(known.tokenized.facts[BY_SHARD]) == len(known.shards) > 1
    asked = Lineage(dataset_of(project.outputs, dataset))
    asked._begins = [0]  # as in a set that was made without the counts
    documents = range(dataset.facts["documents"])
    assert [*map(known.place, documents)] == [*map(asked.place, documents)]
    assert known.first_document(len(known.shards) - 1) == asked.first_document(
        len(known.shards) - 1
    )


def test_few_tables_of_a_bucket_are_in_memory_at_once(make_project, monkeypatch):
    make_corpora(project := Project.open(make_project()), "web")
    lineage, read, lock = (
        Lineage(dataset_of(project.outputs, project.outputs.current("datasets", "web"))),
        DocumentRows.read,
        Lock(),
    )

    def alone(table, rows):
        assert lock.acquire(blocking=False)
        try:
            return read(table, rows)
        finally:
            lock.release()

    documents = range(lineage.dataset.facts["documents"])
    expected = lineage.origins(documents)
    monkeypatch.setattr(documents_module, "_TABLES_AT_ONCE", 1)
    monkeypatch.setattr(FileAccess, "has_copies", True)
    monkeypatch.setattr(
        FileAccess, "each_copy", lambda _, work, items: in_parallel(work, items, 32)
    )
    monkeypatch.setattr(FileAccess, "fetch", lambda _, path: path)
    monkeypatch.setattr(DocumentRows, "read", alone)
    assert len(lineage.shards) > 2
    assert lineage.origins(documents) == expected
