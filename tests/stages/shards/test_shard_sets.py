"""The set of shards of a corpus, and the ranges of raw text that they were made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.building import make_inventory, make_shards
from helpers.inspecting import inventory_of
from helpers.sample_project import jsonl, write_project
from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.shards.shard_sets import ranges_of_shards
from nanoset_core.stages.shards.stage import TOKENIZED


def test_shards_that_were_not_made_from_the_listed_files_are_refused(
    make_project: Callable[..., Path],
):
    project = Project.open(make_project())
    make_inventory(project, "web")
    tokenized = make_shards(project, "web")
    inventory = inventory_of(project, "web")
    assert len(ranges_of_shards(inventory, tokenized)) == len(tokenized.facts["shards"])

    other_inventory = replace(inventory, pieces=())

    with pytest.raises(FormatError, match="not those of its inventory"):
        ranges_of_shards(other_inventory, tokenized)


# A misspelt key of ids


@pytest.fixture
def make_tokenized(tmp_path, tokenizer_file) -> Callable[..., tuple[Project, Manifest]]:
    """A function that tokenizes a corpus of some rows with the settings of the sample project."""

    def write_and_tokenize(rows: Sequence[object], id_key: str) -> tuple[Project, Manifest]:
        replacements = {"documents: {": f"documents: {{id_key: {id_key}, "}
        config = write_project(tmp_path / "project", tokenizer_file, replacements)
        corpus = config.parent / "raw" / "notes"
        corpus.mkdir()
        (corpus / "a.jsonl").write_bytes(jsonl(rows))
        project = Project.open(config)
        make_inventory(project, "notes")
        return project, make_shards(project, "notes")

    return write_and_tokenize


def test_a_key_at_which_no_document_has_an_id_is_reported(make_tokenized):
    rows = [{"text": "The cat.", "doc_id": "1"}, {"text": "The dog.", "docid": None}]

    project, tokenized = make_tokenized(rows, "docid")

    assert list(TOKENIZED.show(project, tokenized).warnings) == [
        "no document has an id at 'docid', so that views, `explain` and `purge` cannot name any: "
        "correct `documents.id_key`, or set `corpora.notes.id_key`"
    ]


@pytest.mark.parametrize(
    ("rows", "id_key"),
    [
        pytest.param([{"text": "The cat.", "doc_id": "1"}], "id", id="the default key"),
        pytest.param([{"text": "a", "nr": 1}, {"text": "b"}], "nr", id="one document has an id"),
        pytest.param([{"text": "The cat.", "nr": "x" * 5000}], "nr", id="an id that is too long"),
    ],
)
def test_other_documents_without_ids_are_not_called_a_misspelt_key(make_tokenized, rows, id_key):
    project, tokenized = make_tokenized(rows, id_key)

    assert not any(
        "no document has" in text for text in TOKENIZED.show(project, tokenized).warnings
    )
