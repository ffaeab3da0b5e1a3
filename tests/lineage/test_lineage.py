"""Where documents come from is read from the tables of their shards, few of which are in memory."""

from __future__ import annotations

from threading import Lock

from helpers.building import make_corpora, open_project
from helpers.inspecting import current_dataset, lineage_of
from nanoset_core.lineage import documents as documents_module
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.shard_sets import BY_SHARD
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import in_parallel


def test_documents_are_found_by_the_counts_of_many_shards(make_project, monkeypatch):
    config = make_project()
    monkeypatch.setattr("nanoset_core.stages.shards.tokenize._MANY_SHARDS", 1)
    project = open_project(config)
    make_corpora(project, "web")
    dataset = project.outputs.current("datasets", "web")
    known = lineage_of(project, dataset)
    assert len(known.tokenized.facts[BY_SHARD]) == len(known.shards) > 1
    asked = lineage_of(project, dataset)
    asked._begins = [0]  # as in a set that was made without the counts
    documents = range(dataset.facts["documents"])
    assert [*map(known.place, documents)] == [*map(asked.place, documents)]
    assert known.first_document(len(known.shards) - 1) == asked.first_document(
        len(known.shards) - 1
    )


def test_few_tables_of_a_bucket_are_in_memory_at_once(make_project, monkeypatch):
    project = open_project(make_project())
    make_corpora(project, "web")
    lineage = lineage_of(project, current_dataset(project, "web"))
    read = DocumentRows.read
    lock = Lock()

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
