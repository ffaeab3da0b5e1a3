"""Where documents come from is read from the tables of their shards, a few at a time."""

from __future__ import annotations

from threading import Lock

import pytest

from helpers.building import make_corpora, open_project
from helpers.inspecting import current_dataset, lineage_of
from nanoset_core.lineage import documents as documents_module
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.shard_sets import BY_SHARD
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.requests import in_parallel


@pytest.fixture
def project(make_project):
    """The sample project with the corpus `web`."""
    project = open_project(make_project())
    make_corpora(project, "web")
    return project


@pytest.fixture
def project_with_counts(make_project, monkeypatch):
    """A project whose corpus `web` has so many shards that their set stores their counts."""
    monkeypatch.setattr("nanoset_core.stages.shards.make._MANY_SHARDS", 1)
    project = open_project(make_project())
    make_corpora(project, "web")
    return project


def test_documents_are_located_by_the_counts_of_many_shards(project_with_counts):
    dataset = current_dataset(project_with_counts, "web")
    with_counts = lineage_of(project_with_counts, dataset)
    without_counts = lineage_of(project_with_counts, dataset)
    without_counts._begins = [0]  # as in a set of shards that was made without counts
    documents = range(dataset.facts["documents"])
    last_shard = len(with_counts.shards) - 1
    assert len(with_counts.tokenized.facts[BY_SHARD]) == len(with_counts.shards) > 1

    places_by_counts = [with_counts.place(document) for document in documents]
    places_by_manifests = [without_counts.place(document) for document in documents]

    assert places_by_counts == places_by_manifests
    assert with_counts.first_document(last_shard) == without_counts.first_document(last_shard)


def test_few_tables_of_a_bucket_are_in_memory_at_once(project, monkeypatch):
    lineage = lineage_of(project, current_dataset(project, "web"))
    documents = range(lineage.dataset.facts["documents"])
    expected = lineage.origins(documents)
    assert len(lineage.shards) > 2

    # Let the project seem to be in a bucket, of which 32 files are fetched at once.
    monkeypatch.setattr(FileAccess, "takes_requests", True)
    monkeypatch.setattr(
        FileAccess, "each_copy", lambda _, work, items: in_parallel(work, items, 32)
    )
    monkeypatch.setattr(FileAccess, "fetch", lambda _, path: path)
    monkeypatch.setattr(documents_module, "_TABLES_AT_ONCE", 1)

    # Fail if a table is read while another one is.
    read = DocumentRows.read
    lock = Lock()

    def read_alone(table, rows):
        assert lock.acquire(blocking=False)
        try:
            return read(table, rows)
        finally:
            lock.release()

    monkeypatch.setattr(DocumentRows, "read", read_alone)

    assert lineage.origins(documents) == expected
