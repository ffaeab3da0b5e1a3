"""The documents of each file of a corpus are counted by the tables of its shards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from helpers.building import make_inventory, make_shards
from helpers.inspecting import current_shards, inventory_of
from helpers.sample_project import jsonl, sentences, write_project
from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.shards.file_counts import file_counts
from nanoset_core.stages.shards.one_shard import DOCUMENTS


@pytest.fixture
def project(tmp_path: Path, tokenizer_file: Path) -> Project:
    """A project whose corpus `notes` has one shard, of two files with 2 and 3 documents."""
    config = write_project(tmp_path / "project", tokenizer_file)
    corpus = config.parent / "raw" / "notes"
    corpus.mkdir()
    (corpus / "a.jsonl").write_bytes(jsonl(sentences("a", 2)))
    (corpus / "b.jsonl").write_bytes(jsonl(sentences("b", 3)))
    return Project.open(config)


@pytest.fixture
def tokenized(project: Project) -> Manifest:
    """The set of the shards of `notes`."""
    make_inventory(project, "notes")
    return make_shards(project, "notes")


def test_documents_of_several_files_in_a_shard_are_counted_by_file(project, tokenized):
    inventory = inventory_of(project, "notes")
    shards = current_shards(project, "notes")

    counts = file_counts(inventory, tokenized, shards, max_files=100)

    assert {path: file.documents for path, file in counts.items()} == {"a.jsonl": 2, "b.jsonl": 3}


def test_a_table_that_names_an_unknown_file_is_reported(project, tokenized):
    inventory = inventory_of(project, "notes")
    [shard] = current_shards(project, "notes")
    replace_file_name(shard.path(DOCUMENTS), "b.jsonl", "c.jsonl")

    with pytest.raises(FormatError, match=r"found: c\.jsonl"):
        file_counts(inventory, tokenized, [shard], max_files=100)


def replace_file_name(table_path: Path, old: str, new: str) -> None:
    """Change the name of a text file in a shard's table of documents."""
    table = pq.read_table(table_path)
    file_names = pc.replace_substring(table["file"].cast(pa.string()), old, new)
    pq.write_table(table.set_column(0, "file", file_names), table_path)
