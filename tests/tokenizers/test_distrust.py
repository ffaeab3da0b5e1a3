"""Wrong tokens, found late: the engine becomes part of recipes, so that what it made is stale and
is made again.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import asdict, replace
from functools import cache

import dagster as dg
import pytest

from helpers.building import make_inventory, make_shards, open_project, output_root, run_stages
from helpers.inspecting import reasons_to_build
from helpers.progress import RecordingDisplay
from helpers.sabotage import Sabotaged, Shortened, poison, sabotaged
from helpers.sample_project import jsonl, sentences, tree, write_project
from nanoset_assets.build import build
from nanoset_core.errors import NanosetError
from nanoset_core.stages.shards import make as shards
from nanoset_core.stages.shards import tokenize as tokenizing
from nanoset_core.tokenizers import distrust
from nanoset_core.tokenizers.distrust import Distrust, DistrustError, recipe_options
from nanoset_core.tokenizers.encoders import (
    ENCODER_FACT,
    Encoder,
    describe_encoders,
    encoder_of,
    encoders_of,
)

PLAIN = {"tokenization: {": "tokenization: {audit: 0, "}
CORPORA = ("web", "code", "books")
RECORD = Distrust(
    "numpy", "1.0", "a" * 64, "web: a.jsonl:7", "from token 3 on: 1, … instead of 2, …"
)


@pytest.fixture
def sabotage(monkeypatch):
    yield from sabotaged(monkeypatch)


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tokenizer_file):
    """What the reference alone makes of a project, after it was changed in some way."""

    @cache
    def made(change=lambda folder: None):
        folder = tmp_path_factory.mktemp("expected") / "project"
        config = write_project(
            folder, tokenizer_file, {"tokenization: {": "tokenization: {engine: tokenizers, "}
        )
        change(folder)
        run_stages(open_project(config))
        return datasets(config)

    return made


def datasets(config):
    """Corpus → {file: sha256} of its current dataset."""
    outputs = open_project(config).outputs
    found = {corpus: outputs.current("datasets", corpus) for corpus in CORPORA}
    return {
        corpus: {name: fact.sha256 for name, fact in one.files.items()}
        for corpus, one in found.items()
    }


def why(config):
    return reasons_to_build(open_project(config))


def tokenize_web(project):
    make_inventory(project, "web")
    make_shards(project, "web")


def add_to_web(folder):
    (folder / "raw/web/part-1/web-9.jsonl").write_bytes(jsonl(sentences("web", 240)[195:205]))


FAULTS = {
    "one document in a hundred": lambda text: " 7: " in text[:10] or "07: " in text[:10],
    "one class of characters": lambda text: "é" in text and " 1" in text[:6],
    "a single document": lambda text: text.startswith("web 200"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_the_audit_finds_is_made_again_by_the_reference(
    make_project, expected, sabotage, fault, caplog
):
    config = make_project(replacements={"tokenization: {": "tokenization: {audit: 1, "})
    sabotage(fault)
    with caplog.at_level(logging.WARNING):
        run_stages(open_project(config))
    outputs = open_project(config).outputs
    (record,) = distrust.load_records(outputs)
    assert record.engine == "numpy"
    assert ".jsonl" in record.where
    assert "made again with another engine" in caplog.text
    assert outputs.current("tokenized", "web").recipe["options"][distrust.OPTION] == [
        f"numpy {record.version}"
    ]
    run_stages(open_project(config))  # corpora that were done before the fault was found
    assert datasets(config) == expected()
    assert why(config) == {}


@pytest.mark.parametrize("kind", [Sabotaged, Shortened])
def test_what_was_built_before_is_made_again_by_one_build(
    make_project, expected, sabotage, tmp_path, kind
):
    config = make_project(replacements=PLAIN)
    config.write_text(config.read_text().partition("nanosets:")[0])
    sabotage(lambda text: "7: " in text[:10] or text.startswith("web 200"), kind)
    run_stages(open_project(config))
    assert distrust.load_records(open_project(config).outputs) == []
    assert datasets(config) != expected()
    config.write_text(config.read_text().replace("audit: 0, ", "audit: 1, "))
    add_to_web(config.parent)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        report = build(open_project(config), instance)
    assert report.failed == {}
    assert {f"indexed_dataset [{corpus}]" for corpus in CORPORA} <= report.made.keys()
    assert datasets(config) == expected(add_to_web)
    assert why(config) == {}


def test_status_shows_what_is_stale(make_project):
    config = make_project()
    run_stages(open_project(config))
    before = tree(config.parent / "data")
    assert why(config) == {}
    poison(config)
    told = why(config)
    assert all("distrusted_engines" in told[f"corpus {name}"][0] for name in CORPORA)
    assert {"nanoset pretrain train", "webdataset shuffled"} <= told.keys()
    right = datasets(config)
    run_stages(open_project(config))
    assert why(config) == {}
    assert datasets(config) == right
    assert engines_of(open_project(config).outputs)[1] == {"tokenizers"}
    after = tree(config.parent / "data")
    assert all(
        after[name] == digest
        for name, digest in before.items()
        if not name.endswith(("/current", ".json"))
    )


def numpy_record(outputs):
    (shard, *_) = outputs.versions("shards", "web")
    engine = encoder_of(shard)
    return replace(
        RECORD,
        engine=engine.engine,
        version=engine.version,
        tokenizer=shard.recipe["options"]["tokenizer"],
    )


def engines_of(outputs):
    """Engines that a current set of shards says were not used, and those that made its shards."""
    tokenized = outputs.current("tokenized", "web")
    digests = tokenized.facts["shards"]
    shards = [outputs.manifest_at(outputs.folder / "shards" / "web" / digest) for digest in digests]
    named = tokenized.recipe["options"].get(distrust.OPTION, [])
    return named, {encoder.engine for encoder in encoders_of(shards)}


def test_what_another_process_notes_meanwhile_is_not_used(make_project):
    config = make_project(replacements=PLAIN)

    def note(work):
        outputs = open_project(config).outputs
        has_shard = work.stage == "tokenized_shards" and any(outputs.versions("shards", "web"))
        if has_shard and not distrust.load_records(outputs):
            distrust.NOTEBOOK.add(outputs, numpy_record(outputs))

    project = open_project(config, RecordingDisplay(note).progress)
    tokenize_web(project)
    named, used = engines_of(project.outputs)
    assert named == [f"numpy {distrust.load_records(project.outputs)[0].version}"]
    assert used == {"tokenizers"}


def test_a_set_names_the_engines_that_its_shards_were_made_without(make_project, monkeypatch):
    config = make_project(replacements=PLAIN)
    project = open_project(config)
    sum_losses = tokenizing.sum_losses

    def note_late(*given):
        distrust.NOTEBOOK.add(project.outputs, numpy_record(project.outputs))
        return sum_losses(*given)

    monkeypatch.setattr(tokenizing, "sum_losses", note_late)
    tokenize_web(project)
    assert engines_of(project.outputs) == ([], {"numpy"})
    assert "distrusted_engines" in why(config)["corpus web"][0]


def test_a_record_that_cannot_be_seen_yet_counts(make_project, sabotage, monkeypatch):
    config = make_project(replacements={"tokenization: {": "tokenization: {audit: 1, "})
    sabotage(FAULTS["a single document"])
    monkeypatch.setattr(distrust, "load_records", lambda *given, **named: [])
    project = open_project(config)
    tokenize_web(project)
    named, used = engines_of(project.outputs)
    assert [name.split()[0] for name in named] == ["numpy"]
    assert used == {"tokenizers"}


def test_an_engine_that_is_used_all_the_same_ends_the_work(make_project, sabotage, monkeypatch):
    config = make_project(replacements={"tokenization: {": "tokenization: {audit: 1, "})
    sabotage(FAULTS["a single document"])
    make = shards.make_engine
    monkeypatch.setattr(shards, "make_engine", lambda file, name, without: make(file, name))
    message = r"must not be used any more[\s\S]*remedy: set the engine to `tokenizers`"
    with pytest.raises(NanosetError, match=message) as error:
        tokenize_web(open_project(config))
    assert ".jsonl" in error.value.where


def test_records_cross_processes_and_become_recipe_options():
    error = pickle.loads(pickle.dumps(DistrustError(RECORD)))
    assert (error.record, str(error)) == (RECORD, str(RECORD))
    assert recipe_options([]) == {}
    records = [replace(RECORD, engine=engine) for engine in ("numpy", "gigatoken", "numpy")]
    assert recipe_options(records) == {"distrusted_engines": ["gigatoken 1.0", "numpy 1.0"]}


def test_a_record_is_written_and_read_as_before(tmp_path):
    root = output_root(tmp_path)
    distrust.NOTEBOOK.add(root, RECORD)

    content = (tmp_path / "distrusted_engines/6d1dc405419bf42e320a.json").read_text("utf-8")
    assert content == (
        '{\n  "engine": "numpy",\n  "version": "1.0",\n'
        f'  "tokenizer": "{"a" * 64}",\n  "where": "web: a.jsonl:7",\n'
        '  "what": "from token 3 on: 1, … instead of 2, …"\n}'
    )
    assert distrust.load_records(root) == [RECORD]


def test_records_are_of_a_tokenizer_and_unreadable_ones_are_skipped(tmp_path, caplog):
    root = output_root(tmp_path / "data")
    assert distrust.load_records(root) == []
    distrust.NOTEBOOK.add(root, RECORD)
    distrust.NOTEBOOK.add(root, replace(RECORD, tokenizer="b" * 64))
    (root.folder / distrust.FOLDER / "x.json").write_bytes(b'{"engine": ')
    assert len(distrust.load_records(root)) == 2
    assert distrust.load_records(root, "a" * 64) == [RECORD]
    assert distrust.load_records(root, "c" * 64) == []
    assert "skipped" in caplog.text


def test_what_made_a_shard_is_told_once_for_each_engine():
    class Shard:
        def __init__(self, **encoder) -> None:
            self.facts = {ENCODER_FACT: encoder}

    one, other = Encoder("numpy", "1.0", 4), Encoder("gigatoken", "0.9", 3, "numpy 1.0")
    found = encoders_of([Shard(**asdict(encoder)) for encoder in (one, other, one)])
    assert found == (replace(one, audited=8), other)
    assert describe_encoders(found) == (
        "tokenized by numpy 1.0 and gigatoken 0.9; 11 documents compared with the tokenizers "
        "library"
    )
