"""Documents that are held out and in train, against a slow twin; policies, appends and a bucket."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from helpers.building import make_corpora, make_view
from helpers.inspecting import current_output, node_at, read_dataset
from helpers.sample_project import SPLITS, jsonl, sentences, write_corpus
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.held_out import hashes
from nanoset_core.stages.held_out.hashes import document_hashes
from nanoset_core.stages.held_out.make import compare_held_out
from nanoset_core.stages.held_out.settings import SHARED
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.mappings.planning import NanosetContext

BOTH = {"web": 0.5, "more": 0.5}
SIDES = {"train": ["low", "more"], "valid": "high", "test": "test"}
NANOSETS = {
    "parts": {"blend": BOTH, "split": "70,20,10", "held_out": "warn"},
    "sides": {"blend_per_split": SIDES, "held_out": "block"},
    "views": {"blend_per_split": SIDES},
    "again": {"blend": "twice", "split": "60,40"},
    "plain": {"blend": BOTH},
    "none": {"blend": ["low", "high"], "split": "1,0,0", "held_out": "block"},
}
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


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer_file) -> Path:
    """Two corpora with texts in common, and views of one; not to be written to."""
    file = write_corpus(tmp_path_factory.mktemp("held") / "project", tokenizer_file, SETTINGS)
    shutil.rmtree(file.parent / "raw")
    web = sentences("web", 90)
    more = [
        {"id": f"more-{number}", "text": row["text"]}
        for number, row in enumerate(sentences("more", 40) + web[::4])
    ]
    for name, rows in (
        ("web/0", web[:50]),
        ("web/1", web[50:]),
        ("more/0", [*more, {"id": "empty", "text": ""}]),
    ):
        path = file.parent / "raw" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jsonl(rows))
    project = Project.open(file)
    make_corpora(project)
    for name in project.config.views:
        make_view(project, name)
    return file


@pytest.fixture
def project(made, tmp_path) -> Project:
    """A copy of it."""
    shutil.copytree(made.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / "nanoset.yaml")


def read_by(project: Project, name: str) -> list[set[tuple[int, bytes]]]:
    """Where the tokens of each document of each split lie, and these."""
    nanoset, found = NanosetContext(project, name), []
    for split in SPLITS:
        planned, own = nanoset.plan(split), set()
        for corpus, member in zip(
            planned.corpora, planned.plan.members if planned.plan else (), strict=False
        ):
            dataset = read_dataset(project, corpus)
            base = 1 << 40 if corpus == "more" else 0
            own |= {
                (base + int(dataset.sequence_pointers[k]), dataset[k].tobytes())
                for k in range(*member.rows)
            }
        found.append(own)
    return found


@pytest.mark.parametrize("name", ["parts", "sides", "views", "again"])
def test_what_is_found_is_what_a_loop_over_documents_finds(project, name):
    train, *held = read_by(project, name)
    held = held[0] | held[1]
    shared, texts = held & train, {text for _, text in train if len(text) > 2}
    copies = (
        {one for one in held - shared if one[1] in texts}
        if project.nanoset(name).held_out
        else set()
    )
    manifest = compare_held_out(project, name)
    facts = manifest.facts
    assert (facts["held_out"], facts["shared"], facts["copies"]) == (
        len(held),
        len(shared),
        len(copies),
    )
    assert len(shared) + len(copies) > 3
    rows = pq.read_table(manifest.path(SHARED)).to_pylist()
    assert len(rows) == len(shared) + len(copies)
    for row in rows:
        own, other = (text_of(project, row, side) for side in ("", "train_"))
        assert own == other
        same = [row[key] == row[f"train_{key}"] for key in ("corpus", "document", "id")]
        assert all(same) or not same[2]


def text_of(project: Project, row: dict[str, object], side: str) -> tuple[str, str]:
    lines = (
        (project.config.raw_folder / row[f"{side}corpus"] / row[f"{side}file"])
        .read_text()
        .splitlines()
    )
    line = json.loads(lines[row[f"{side}line"] - 1])
    assert line["id"] == row[f"{side}id"]
    return line["text"]


def test_only_nanosets_whose_splits_may_share_documents_are_looked_at_and_only_block_stops_training(
    project,
):
    assert [key.subject for key in HELD_OUT.keys(project.config, ())] == [
        "parts",
        "sides",
        "views",
        "again",
    ]
    for name in NANOSETS:
        comparison = node_at(f"nanosets/{name}/held_out")
        train, valid = (
            node_at(f"nanosets/{name}/{split}/index_mappings").inputs(project.config)
            for split in ("train", "valid")
        )
        gate = {"after held_out": comparison} if name == "sides" else {}
        assert {key: node for key, node in train.items() if node.stage is HELD_OUT} == gate
        assert comparison not in valid.values()
    for name, severity in (("sides", "error"), ("views", "warning")):
        compare_held_out(project, name)
        [report] = verify_project(project, [f"{name}/held_out"])
        [finding] = report.findings
        assert finding.severity == severity
        assert "documents that are held out are in train" in finding.what
        assert finding.where.startswith("web/0.jsonl:")
        assert finding.found == "train reads it"
    with_copies = current_output(project, "nanosets/sides/held_out").facts
    without = current_output(project, "nanosets/views/held_out").facts
    assert with_copies["copies"]
    assert with_copies["shared"] == without["shared"]


def test_after_an_append_the_new_shards_alone_are_read(project, monkeypatch):
    looked = []
    write = hashes.HashTask.write

    def spy(task, folder):
        looked.append((task.dataset.name, task.first))
        return write(task, folder)

    monkeypatch.setattr(hashes.HashTask, "write", spy)
    compare_held_out(project, "parts")
    assert {name for name, _ in looked} == {"web", "more"}
    before = len(looked)
    (project.config.raw_folder / "web" / "2.jsonl").write_bytes(jsonl(sentences("new", 9)))
    make_corpora(project, "web")
    compare_held_out(project, "parts")
    assert looked[before:] == [("web", 90)]
    looked.clear()
    collect(project)
    shutil.rmtree(project.outputs.folder / "nanosets")
    compare_held_out(project, "parts")
    assert not looked, "gc keeps the hashes of shards"


def test_hashes_are_of_each_documents_tokens_whatever_they_are_read_with(project, monkeypatch):
    dataset = read_dataset(project, "web")
    whole = document_hashes(dataset, 0, 90)
    assert len(set(whole.tolist())) == 90
    monkeypatch.setattr(hashes, "_CHUNK_TOKENS", 100)
    assert np.array_equal(
        np.concatenate([document_hashes(dataset, 0, 33), document_hashes(dataset, 33, 57)]), whole
    )


def test_the_same_is_found_in_a_bucket(made, project, tmp_path, bucket):
    shutil.copytree(made.parent, tmp_path / "other", ignore=shutil.ignore_patterns("data"))
    file = tmp_path / "other" / "nanoset.yaml"
    file.write_text(
        json.dumps(
            json.loads(file.read_text())
            | {"root": bucket.url(), "storage": {"endpoint_url": bucket.endpoint_url}}
        )
    )
    stored = Project.open(file)
    make_corpora(stored)
    for name in ("low", "high", "test"):
        make_view(stored, name)
    found = compare_held_out(stored, "sides").facts
    assert found == compare_held_out(project, "sides").facts
