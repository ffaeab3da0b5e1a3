"""The comparison of held-out documents with those of train: what it finds, and when it is made.

A slow twin compares the tokens of all documents.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers.building import make_corpora, make_view, open_project
from helpers.inspecting import current_output, node_at, read_dataset
from helpers.sample_project import SPLITS, jsonl, sentences, write_corpus
from nanoset_core.errors import ForbiddenError
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.held_out import hashes, make, show
from nanoset_core.stages.held_out.hashes import MIN_TOKENS, ShardHashes, document_hashes
from nanoset_core.stages.held_out.make import compare_held_out
from nanoset_core.stages.held_out.names import SHARED
from nanoset_core.stages.held_out.search import count_train_copies, read_corpora
from nanoset_core.stages.held_out.show import removal_text
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.mappings.planning import NanosetContext

BLEND = {"web": 0.5, "more": 0.5}
BLEND_PER_SPLIT = {"train": ["low", "more"], "valid": "high", "test": "test"}
NANOSETS = {
    "parts": {"blend": BLEND, "split": "70,20,10", "held_out": "warn"},
    "sides": {"blend_per_split": BLEND_PER_SPLIT, "held_out": "block"},
    "views": {"blend_per_split": BLEND_PER_SPLIT},
    "again": {"blend": "twice", "split": "60,40"},
    "plain": {"blend": BLEND},
    "none": {"blend": ["low", "high"], "split": "1,0,0", "held_out": "block"},
}
"""Splits of one blend, blends of views that share documents, and nanosets that need no comparison."""
SETTINGS = {
    "tokenization": {"range_mib": 0.004, "workers": 1},
    "nanosets": {
        name: {"sequence_length": 8, "samples": {}, **spec} for name, spec in NANOSETS.items()
    },
    "views": {
        "low": {"of": "web", "split": {"keep": [0, 0.6]}},
        "high": {"of": "web", "split": {"keep": [0.5, 0.9]}},
        "test": {"of": "web", "split": {"keep": [0.95, 1]}},
        "twice": {"of": "low", "repeat": 2},
    },
}
N_WEB = 90
"""Documents of the corpus web."""


def write_raw(folder: Path) -> None:
    """Write two corpora. Every fourth text of web is in more, every eighth one twice. More also has an
    empty document.
    """
    web = sentences("web", N_WEB)
    more = []
    for number, row in enumerate(sentences("more", 40) + web[::4] + web[::8]):
        more.append({"id": f"more-{number}", "text": row["text"]})
    more.append({"id": "empty", "text": ""})

    for corpus in ["web", "more"]:
        (folder / corpus).mkdir(parents=True)
    (folder / "web/0.jsonl").write_bytes(jsonl(web[:50]))
    (folder / "web/1.jsonl").write_bytes(jsonl(web[50:]))
    (folder / "more/0.jsonl").write_bytes(jsonl(more))


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project with two corpora and views of one; not to be written to."""
    file = write_corpus(tmp_path_factory.mktemp("held") / "project", tokenizer_file, SETTINGS)
    shutil.rmtree(file.parent / "raw")
    write_raw(file.parent / "raw")
    project = Project.open(file)
    make_corpora(project)
    for name in project.config.views:
        make_view(project, name)
    return file


@pytest.fixture
def project(built, tmp_path) -> Project:
    """A copy of the built project."""
    shutil.copytree(built.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / "nanoset.yaml")


# What is found


class Document(NamedTuple):
    """A document that a split reads."""

    corpus: str
    pointer: int
    """Where its tokens are in the corpus, which is equal for a corpus and its views."""
    tokens: bytes


def documents_by_split(project: Project, name: str) -> dict[str, set[Document]]:
    """Return the documents that each split of a nanoset reads."""
    nanoset = NanosetContext(project, name)
    documents: dict[str, set[Document]] = {}
    for split in SPLITS:
        documents[split] = set()
        planned = nanoset.plan(split)
        if planned.plan is None:
            continue
        for dataset_name, member in zip(planned.corpora, planned.plan.members, strict=True):
            # All views are of web.
            corpus = "more" if dataset_name == "more" else "web"
            dataset = read_dataset(project, dataset_name)
            for number in range(*member.rows):
                pointer = int(dataset.sequence_pointers[number])
                documents[split].add(Document(corpus, pointer, dataset[number].tobytes()))
    return documents


class Comparison(NamedTuple):
    """Held-out documents of a nanoset, as a loop over all documents finds them."""

    held_out: set[Document]
    shared: set[Document]
    """Those that train reads."""
    copies: set[Document]
    """Those with the same tokens as another document that train reads."""


def compare_slowly(project: Project, name: str) -> Comparison:
    """Compare the documents of all splits. Copies are searched for if `held_out` is set."""
    documents = documents_by_split(project, name)
    held_out = documents["valid"] | documents["test"]
    shared = held_out & documents["train"]

    copies = set()
    if project.nanoset(name).held_out:
        # A document with nothing but its end, two bytes, is no text that could be copied.
        train_tokens = {
            document.tokens for document in documents["train"] if len(document.tokens) > 2
        }
        copies = {document for document in held_out - shared if document.tokens in train_tokens}
    return Comparison(held_out, shared, copies)


@pytest.fixture(params=["parts", "sides", "views", "again"])
def name(request) -> str:
    """A nanoset whose splits share documents."""
    return request.param


def test_shared_documents_and_copies_are_those_that_a_loop_over_documents_finds(project, name):
    expected = compare_slowly(project, name)
    assert len(expected.shared) + len(expected.copies) > 3

    facts = compare_held_out(project, name).facts

    assert facts["held_out"] == len(expected.held_out)
    assert facts["shared"] == len(expected.shared)
    assert facts["copies"] == len(expected.copies)


def raw_text(project: Project, row: dict[str, Any], side: str) -> str:
    """Return the raw text of a held-out document, or with the side `train_` of the one in train."""
    file = project.config.raw_folder / row[f"{side}corpus"] / row[f"{side}file"]
    lines = file.read_text().splitlines()
    document = json.loads(lines[row[f"{side}line"] - 1])
    assert document["id"] == row[f"{side}id"]
    return document["text"]


def test_each_shared_document_is_listed_with_the_equal_one_in_train(project, name):
    expected = compare_slowly(project, name)

    manifest = compare_held_out(project, name)
    rows = pq.read_table(manifest.path(SHARED)).to_pylist()

    held_out_documents = {(row["corpus"], row["document"]) for row in rows}
    assert len(held_out_documents) == len(expected.shared) + len(expected.copies)
    assert len(rows) == len(held_out_documents) + manifest.facts.get("further_copies", 0)
    for row in rows:
        assert raw_text(project, row, "") == raw_text(project, row, "train_")
        if row["id"] == row["train_id"]:
            # It is the same document, not a copy.
            assert row["corpus"] == row["train_corpus"]
            assert row["document"] == row["train_document"]


@pytest.mark.parametrize("name", ["parts", "sides"])
def test_all_documents_of_train_with_the_text_of_a_held_out_document_are_listed(project, name):
    documents = documents_by_split(project, name)
    held_out = documents["valid"] | documents["test"]
    held_out_tokens = {document.tokens for document in held_out if len(document.tokens) > 2}
    in_train = [document for document in documents["train"] if document.tokens in held_out_tokens]

    manifest = compare_held_out(project, name)
    rows = pq.read_table(manifest.path(SHARED)).to_pylist()

    listed = [(row["train_corpus"], row["train_document"]) for row in rows]
    assert len(set(listed)) == len(in_train)
    assert manifest.facts["further_copies"] > 0


def change_views(project: Project, **views: dict[str, Any]) -> Project:
    """Change views of the project, and make them."""
    file = project.config.file
    settings = json.loads(file.read_text())
    settings["views"] |= views
    file.write_text(json.dumps(settings))
    changed = Project.open(file)
    for name in views:
        make_view(changed, name)
    return changed


@pytest.mark.parametrize("side", ["train", "held out"])
def test_after_excluding_the_listed_ids_nothing_is_found(project, side):
    file = project.config.file
    settings = json.loads(file.read_text())
    blend = {"train": ["low", "some-more"], "valid": "high", "test": "test"}
    settings["nanosets"]["sides"]["blend_per_split"] = blend
    file.write_text(json.dumps(settings))
    project = change_views(project, **{"some-more": {"of": "more"}})
    manifest = compare_held_out(project, "sides")
    rows = pq.read_table(manifest.path(SHARED)).to_pylist()

    column = "train_id" if side == "train" else "id"
    ids = sorted({row[column] for row in rows})
    (file.parent / "leaked.txt").write_text("\n".join(ids))
    views = settings["views"]
    if side == "train":
        changes = {"low": views["low"], "some-more": {"of": "more"}}
    else:
        changes = {"high": views["high"], "test": views["test"]}
    for view in changes.values():
        view["exclude"] = "leaked.txt"
    changed = change_views(project, **changes)

    facts = compare_held_out(changed, "sides").facts
    assert facts["shared"] + facts["copies"] == 0


def test_the_list_ends_after_its_largest_number_of_rows(project, monkeypatch):
    complete = compare_held_out(project, "parts")
    n_rows = pq.read_metadata(complete.path(SHARED)).num_rows
    remedy = removal_text(complete.facts, "LIST")
    monkeypatch.setattr(make, "MAX_LISTED", n_rows - 1)
    monkeypatch.setattr(show, "MAX_LISTED", n_rows - 1)

    rebuilding = open_project(project.config.file, rebuild=True)
    shortened = compare_held_out(rebuilding, "parts")

    assert pq.read_metadata(shortened.path(SHARED)).num_rows == n_rows - 1
    assert shortened.facts["further_copies"] == complete.facts["further_copies"]
    assert removal_text(shortened.facts, "LIST") == (
        f"{remedy}; the list has only the first {n_rows - 1} of {n_rows} rows"
    )


def test_the_remedy_says_that_comparisons_of_older_versions_list_one_copy_of_each():
    facts = {"held_out": 200, "shared": 0, "copies": 107}

    assert removal_text(facts, "LIST").endswith("train_id names only one copy of each")


def test_copies_are_searched_for_only_if_held_out_is_set(project):
    with_copies = compare_held_out(project, "sides").facts
    without_copies = compare_held_out(project, "views").facts

    assert with_copies["copies"] > 0
    assert without_copies["copies"] == 0
    assert with_copies["shared"] == without_copies["shared"]


@pytest.mark.parametrize("name", ["sides", "views"])
def test_shared_documents_are_a_warning(project, name):
    compare_held_out(project, name)

    [report] = verify_project(project, [f"{name}/held_out"])

    [finding] = report.findings
    assert finding.severity == "warning"
    assert "documents that are held out are in train" in finding.what
    assert finding.where.startswith("web/0.jsonl:")
    assert finding.found == "train reads it"
    assert current_output(project, f"nanosets/{name}/held_out").facts["shared"] > 0


def test_shared_documents_forbid_training(project):
    manifest = compare_held_out(project, "sides")
    key = node_at("nanosets/sides/held_out").key

    with pytest.raises(ForbiddenError, match="documents that are held out are in train"):
        HELD_OUT.check_allowed(project, key, manifest)


# When it is made


def test_nanosets_whose_splits_may_share_documents_are_compared(project):
    names = [key.subject for key in HELD_OUT.keys(project.config, ())]

    assert names == ["parts", "sides", "views", "again"]


@pytest.mark.parametrize("name", ["parts", "views", "again", "plain", "none"])
def test_without_block_or_without_held_out_documents_training_waits_for_no_comparison(
    project, name
):
    mappings = node_at(f"nanosets/{name}/train/index_mappings")

    inputs = mappings.inputs(project.config)

    assert [node for node in inputs.values() if node.stage is HELD_OUT] == []


def test_with_block_training_waits_for_the_comparison(project):
    mappings = node_at("nanosets/sides/train/index_mappings")

    inputs = mappings.inputs(project.config)

    comparisons = {key: node for key, node in inputs.items() if node.stage is HELD_OUT}
    assert comparisons == {"after held_out": node_at("nanosets/sides/held_out")}


@pytest.mark.parametrize("name", NANOSETS)
def test_validation_never_waits_for_the_comparison(project, name):
    mappings = node_at(f"nanosets/{name}/valid/index_mappings")

    inputs = mappings.inputs(project.config)

    assert node_at(f"nanosets/{name}/held_out") not in inputs.values()


# Hashes of shards


class HashedShard(NamedTuple):
    """A shard whose documents were read and hashed."""

    dataset: str
    first_document: int


@pytest.fixture
def hashed_shards(monkeypatch) -> list[HashedShard]:
    """A list to which each shard is appended whose documents are hashed."""
    shards = []
    write = hashes.HashTask.write

    def record_and_write(task, folder):
        shards.append(HashedShard(task.dataset.name, task.first))
        return write(task, folder)

    monkeypatch.setattr(hashes.HashTask, "write", record_and_write)
    return shards


def test_only_the_new_shards_are_read_after_documents_were_appended(project, hashed_shards):
    compare_held_out(project, "parts")
    assert {shard.dataset for shard in hashed_shards} == {"web", "more"}
    hashed_shards.clear()

    (project.config.raw_folder / "web" / "2.jsonl").write_bytes(jsonl(sentences("new", 9)))
    make_corpora(project, "web")
    compare_held_out(project, "parts")

    assert hashed_shards == [HashedShard("web", N_WEB)]


def test_garbage_collection_keeps_the_hashes_of_shards(project, hashed_shards):
    compare_held_out(project, "parts")
    hashed_shards.clear()

    collect(project)
    shutil.rmtree(project.outputs.folder / "nanosets")
    compare_held_out(project, "parts")

    assert hashed_shards == []


def test_documents_with_different_tokens_have_different_hashes(project):
    all_hashes = document_hashes(read_dataset(project, "web"), 0, N_WEB)

    assert len(set(all_hashes.tolist())) == N_WEB


def test_hashes_do_not_depend_on_which_documents_are_read_together(project, monkeypatch):
    dataset = read_dataset(project, "web")
    all_hashes = document_hashes(dataset, 0, N_WEB)

    monkeypatch.setattr(hashes, "_BLOCK_TOKENS", 100)
    first_hashes = document_hashes(dataset, 0, 33)
    other_hashes = document_hashes(dataset, 33, N_WEB - 33)

    assert np.array_equal(np.concatenate([first_hashes, other_hashes]), all_hashes)


# In a bucket


def test_the_same_is_found_in_a_bucket(built, project, tmp_path, bucket):
    without_outputs = shutil.ignore_patterns("data")
    shutil.copytree(built.parent, tmp_path / "stored", ignore=without_outputs)
    file = tmp_path / "stored" / "nanoset.yaml"
    storage = {"endpoint_url": bucket.endpoint_url}
    settings = json.loads(file.read_text()) | {"root": bucket.url(), "storage": storage}
    file.write_text(json.dumps(settings))
    stored_project = Project.open(file)
    make_corpora(stored_project)
    for name in ["low", "high", "test"]:
        make_view(stored_project, name)

    facts = compare_held_out(stored_project, "sides").facts

    assert facts == compare_held_out(project, "sides").facts


# Copies within train


def slow_train_copies(project: Project, name: str) -> dict[str, list[int]]:
    """Count the documents of train whose tokens an earlier document of train has, by corpus."""
    corpora = read_corpora(project, NanosetContext(project, name))
    seen_texts: set[bytes] = set()
    counts: dict[str, list[int]] = {}
    for corpus in corpora:
        dataset = read_dataset(project, corpus.name)
        for document in np.flatnonzero(corpus.is_in_train(0, len(corpus.marks))).tolist():
            first, stop = dataset.document_indices[document : document + 2]
            tokens = np.concatenate([np.empty(0, dataset.dtype), *dataset[first:stop]])
            if len(tokens) < MIN_TOKENS:
                continue
            if tokens.tobytes() in seen_texts:
                n_documents, n_tokens = counts.get(corpus.name, [0, 0])
                counts[corpus.name] = [n_documents + 1, n_tokens + len(tokens)]
            seen_texts.add(tokens.tobytes())
    return counts


@pytest.mark.parametrize("name", ["parts", "sides"])
def test_copies_within_train_are_counted_by_corpus(project, name):
    manifest = compare_held_out(project, name)

    counts = {
        row["corpus"]: [row["documents"], row["tokens"]] for row in manifest.facts["train_copies"]
    }
    assert counts == slow_train_copies(project, name)
    assert counts["more"][0] > 2


def test_copies_are_the_same_if_documents_are_compared_in_groups(project):
    corpora = read_corpora(project, NanosetContext(project, "parts"))
    hash_of_corpus = []
    for corpus in corpora:
        dataset = read_dataset(project, corpus.name)
        hash_of_corpus.append(document_hashes(dataset, 0, len(corpus.marks)))

    def hashes_of(number: int):
        yield ShardHashes(0, hash_of_corpus[number])

    in_one_group = count_train_copies(corpora, hashes_of)
    in_many_groups = count_train_copies(corpora, hashes_of, max_documents=7)

    assert in_many_groups == in_one_group


def test_status_shows_copies_within_train(project):
    manifest = compare_held_out(project, "parts")

    summary = HELD_OUT.show(project, manifest)

    [row] = manifest.facts["train_copies"]
    assert summary.figures["copied_documents"] == row["documents"]
    assert summary.details["copies in train"] == str(row["documents"])
