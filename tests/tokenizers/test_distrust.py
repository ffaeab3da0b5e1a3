"""An engine that gave wrong tokens is not used any more, and what it made is rebuilt."""

from __future__ import annotations

import logging
import pickle
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest

from helpers.building import make_inventory, make_shards, open_project, output_root, run_stages
from helpers.inspecting import reasons_to_build
from helpers.progress import RecordingDisplay
from helpers.sabotage import (
    EngineWithMissingTokens,
    EngineWithWrongTokens,
    distrust_numpy,
    engine_spoiler,
    shards_of_numpy,
)
from helpers.sample_project import jsonl, sentences, tree, write_project
from nanoset_assets.build.builder import build
from nanoset_core.errors import NanosetError
from nanoset_core.stages.shards import make as tokenizing
from nanoset_core.stages.shards import one_shard as shards
from nanoset_core.tokenizers import distrust
from nanoset_core.tokenizers.distrust import Distrust, DistrustError, recipe_options
from nanoset_core.tokenizers.encoders import (
    ENCODER_FACT,
    Encoder,
    describe_encoders,
    encoders_of,
)

CORPORA = ("web", "code", "books")
RECORD = Distrust(
    "numpy", "1.0", "a" * 64, "web: a.jsonl:7", "from token 3 on: 1, … instead of 2, …"
)
# Replacements in the sample project.
WITHOUT_AUDIT = {"tokenization: {": "tokenization: {audit: 0, "}
WITH_FULL_AUDIT = {"tokenization: {": "tokenization: {audit: 1, "}
WITH_REFERENCE = {"tokenization: {": "tokenization: {engine: tokenizers, "}


def is_last_sentence(text):
    """Return whether a text is a certain document of the corpus `web`, near its end."""
    return text.startswith("web 200")


FAULTS = {
    "one document in a hundred": lambda text: " 7: " in text[:10] or "07: " in text[:10],
    "one class of characters": lambda text: "é" in text and " 1" in text[:6],
    "a single document": is_last_sentence,
}
"""Name → a function from texts to whether the engine gives wrong tokens for them."""


@pytest.fixture
def spoil_numpy(monkeypatch):
    """Return a function that lets the numpy engine give wrong tokens for some texts."""
    yield from engine_spoiler(monkeypatch)


def digests_of_datasets(config):
    """Return corpus → {file: sha256} of its current dataset."""
    outputs = open_project(config).outputs
    digests = {}
    for corpus in CORPORA:
        dataset = outputs.current("datasets", corpus)
        digests[corpus] = {name: fact.sha256 for name, fact in dataset.files.items()}
    return digests


def reasons_of(config):
    """Return why outputs of a project have to be built, by the label of `nanoset status`."""
    return reasons_to_build(open_project(config))


def add_documents_to_web(folder):
    """Add a file of raw text to the corpus `web` of a project."""
    documents = sentences("web", 240)[195:205]
    (folder / "raw/web/part-1/web-9.jsonl").write_bytes(jsonl(documents))


def leave_unchanged(folder):
    """Leave a project as it is."""


@pytest.fixture(scope="module")
def expected_digests(tmp_path_factory, tokenizer_file):
    """Return a function from a change of the raw text to the digests of the right datasets.

    The datasets are built with the reference alone.
    """

    @cache
    def build_with_reference(change=leave_unchanged):
        folder = tmp_path_factory.mktemp("expected") / "project"
        config = write_project(folder, tokenizer_file, WITH_REFERENCE)
        change(folder)
        run_stages(open_project(config))
        return digests_of_datasets(config)

    return build_with_reference


def tokenize_web(project):
    """Tokenize the corpus `web` of a project."""
    make_inventory(project, "web")
    make_shards(project, "web")


class EnginesOfWeb(NamedTuple):
    """Engines of the current tokenized output of the corpus `web`."""

    excluded: list[str]
    """Name and version of the engines that its recipe excludes."""
    used: set[str]
    """Names of the engines that encoded its shards."""


def engines_of_web(outputs):
    """Return the engines of the current tokenized output of the corpus `web`."""
    tokenized = outputs.current("tokenized", "web")
    folder = outputs.folder / "shards" / "web"
    shard_manifests = [outputs.manifest_at(folder / digest) for digest in tokenized.facts["shards"]]
    return EnginesOfWeb(
        excluded=tokenized.recipe["options"].get(distrust.OPTION, []),
        used={encoder.engine for encoder in encoders_of(shard_manifests)},
    )


# Rebuilding


@pytest.mark.parametrize("is_wrong", FAULTS.values(), ids=FAULTS)
def test_shards_with_wrong_tokens_are_made_again_by_the_reference(
    make_project, expected_digests, spoil_numpy, is_wrong, caplog
):
    config = make_project(replacements=WITH_FULL_AUDIT)
    spoil_numpy(is_wrong)

    with caplog.at_level(logging.WARNING):
        run_stages(open_project(config))

    # The engine is recorded, and recipes exclude it.
    outputs = open_project(config).outputs
    (record,) = distrust.load_records(outputs)
    assert record.engine == "numpy"
    assert ".jsonl" in record.where
    assert "made again with another engine" in caplog.text
    assert engines_of_web(outputs).excluded == [f"numpy {record.version}"]

    # The next build rebuilds the corpora that were done before the fault was found.
    run_stages(open_project(config))
    assert digests_of_datasets(config) == expected_digests()
    assert reasons_of(config) == {}


@pytest.mark.parametrize("wrapper", [EngineWithWrongTokens, EngineWithMissingTokens])
def test_one_build_replaces_all_that_was_built_before_the_fault_was_found(
    make_project, expected_digests, spoil_numpy, tmp_path, wrapper
):
    # Build with a wrong engine, which is not noticed without an audit.
    config = make_project(replacements=WITHOUT_AUDIT)
    corpora_only, _, _ = config.read_text().partition("nanosets:")
    config.write_text(corpora_only)
    spoil_numpy(lambda text: "7: " in text[:10] or is_last_sentence(text), wrapper)
    run_stages(open_project(config))
    assert distrust.load_records(open_project(config).outputs) == []
    assert digests_of_datasets(config) != expected_digests()

    # Build new documents with an audit.
    config.write_text(config.read_text().replace("audit: 0, ", "audit: 1, "))
    add_documents_to_web(config.parent)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        report = build(open_project(config), instance)

    assert report.failed == {}
    rebuilt = {f"indexed_dataset [{corpus}]" for corpus in CORPORA}
    assert rebuilt <= report.made.keys()
    assert digests_of_datasets(config) == expected_digests(add_documents_to_web)
    assert reasons_of(config) == {}


@pytest.fixture
def distrusting_config(make_project) -> Path:
    """The nanoset.yaml of a built project, whose engine was distrusted since."""
    config = make_project()
    run_stages(open_project(config))
    assert reasons_of(config) == {}
    distrust_numpy(config)
    return config


def test_all_that_a_distrusted_engine_made_is_stale(distrusting_config):
    reasons = reasons_of(distrusting_config)

    for corpus in CORPORA:
        assert "distrusted_engines" in reasons[f"corpus {corpus}"][0]
    assert {"nanoset pretrain train", "webdataset shuffled"} <= reasons.keys()


def test_the_reference_rebuilds_all_that_a_distrusted_engine_made(distrusting_config):
    datasets_before = digests_of_datasets(distrusting_config)

    run_stages(open_project(distrusting_config))

    assert reasons_of(distrusting_config) == {}
    assert engines_of_web(open_project(distrusting_config).outputs).used == {"tokenizers"}
    # The engine was right in fact, so the tokens are the same.
    assert digests_of_datasets(distrusting_config) == datasets_before


def test_what_a_distrusted_engine_made_is_not_overwritten(distrusting_config):
    data = distrusting_config.parent / "data"
    digest_by_file = tree(data)

    run_stages(open_project(distrusting_config))

    new_digest_by_file = tree(data)
    for name, digest in digest_by_file.items():
        if not name.endswith(("/current", ".json")):
            assert new_digest_by_file[name] == digest


# Records that appear while a corpus is tokenized


def test_an_engine_that_another_process_distrusts_meanwhile_is_not_used(make_project):
    config = make_project(replacements=WITHOUT_AUDIT)

    def distrust_after_first_shard(work):
        outputs = open_project(config).outputs
        has_shard = work.stage == "tokenized_shards" and shards_of_numpy(outputs)
        if has_shard and not distrust.load_records(outputs):
            distrust_numpy(config)

    project = open_project(config, RecordingDisplay(distrust_after_first_shard).progress)

    tokenize_web(project)

    (record,) = distrust.load_records(project.outputs)
    engines = engines_of_web(project.outputs)
    assert engines.excluded == [f"numpy {record.version}"]
    assert engines.used == {"tokenizers"}


def test_a_record_after_the_last_shard_makes_the_corpus_stale(make_project, monkeypatch):
    """The recipe excludes only engines that were excluded when the shards were made."""
    config = make_project(replacements=WITHOUT_AUDIT)
    project = open_project(config)
    sum_losses = tokenizing.sum_losses

    def distrust_and_sum_losses(*args):
        distrust_numpy(config)
        return sum_losses(*args)

    monkeypatch.setattr(tokenizing, "sum_losses", distrust_and_sum_losses)

    tokenize_web(project)

    engines = engines_of_web(project.outputs)
    assert engines.excluded == []
    assert engines.used == {"numpy"}
    assert "distrusted_engines" in reasons_of(config)["corpus web"][0]


def test_a_new_record_counts_even_if_it_is_not_visible_yet(make_project, spoil_numpy, monkeypatch):
    """Some object stores list a new object late."""
    config = make_project(replacements=WITH_FULL_AUDIT)
    spoil_numpy(is_last_sentence)
    monkeypatch.setattr(distrust, "load_records", lambda *args, **kwargs: [])
    project = open_project(config)

    tokenize_web(project)

    engines = engines_of_web(project.outputs)
    assert [name.split()[0] for name in engines.excluded] == ["numpy"]
    assert engines.used == {"tokenizers"}


def test_tokenizing_fails_if_a_distrusted_engine_is_used_nevertheless(
    make_project, spoil_numpy, monkeypatch
):
    config = make_project(replacements=WITH_FULL_AUDIT)
    spoil_numpy(is_last_sentence)
    make_engine = shards.make_engine

    def make_any_engine(file, name, without):
        return make_engine(file, name)

    monkeypatch.setattr(shards, "make_engine", make_any_engine)
    message = r"must not be used any more[\s\S]*remedy: set the engine to `tokenizers`"

    with pytest.raises(NanosetError, match=message) as caught:
        tokenize_web(open_project(config))

    assert ".jsonl" in caught.value.where


# Records


def test_an_error_with_a_record_can_be_sent_to_another_process():
    error = pickle.loads(pickle.dumps(DistrustError(RECORD)))

    assert error.record == RECORD
    assert str(error) == str(RECORD)


def test_recipes_name_each_distrusted_engine_once():
    records = [replace(RECORD, engine=engine) for engine in ("numpy", "gigatoken", "numpy")]

    assert recipe_options(records) == {"distrusted_engines": ["gigatoken 1.0", "numpy 1.0"]}


def test_recipes_have_no_option_if_no_engine_is_distrusted():
    assert recipe_options([]) == {}


def test_a_record_has_the_same_bytes_as_in_earlier_versions(tmp_path):
    root = output_root(tmp_path)

    distrust.NOTEBOOK.add(root, RECORD)

    content = (tmp_path / "distrusted_engines/6d1dc405419bf42e320a.json").read_text("utf-8")
    assert content == (
        '{\n  "engine": "numpy",\n  "version": "1.0",\n'
        f'  "tokenizer": "{"a" * 64}",\n  "where": "web: a.jsonl:7",\n'
        '  "what": "from token 3 on: 1, … instead of 2, …"\n}'
    )


def test_a_record_can_be_read(tmp_path):
    root = output_root(tmp_path)

    distrust.NOTEBOOK.add(root, RECORD)

    assert distrust.load_records(root) == [RECORD]


def test_a_new_root_has_no_records(tmp_path):
    assert distrust.load_records(output_root(tmp_path / "data")) == []


def test_records_can_be_read_for_one_tokenizer(tmp_path):
    root = output_root(tmp_path / "data")
    distrust.NOTEBOOK.add(root, RECORD)
    distrust.NOTEBOOK.add(root, replace(RECORD, tokenizer="b" * 64))

    assert len(distrust.load_records(root)) == 2
    assert distrust.load_records(root, "a" * 64) == [RECORD]
    assert distrust.load_records(root, "c" * 64) == []


def test_a_record_that_cannot_be_read_is_skipped_with_a_warning(tmp_path, caplog):
    root = output_root(tmp_path / "data")
    distrust.NOTEBOOK.add(root, RECORD)
    (root.folder / distrust.FOLDER / "x.json").write_bytes(b'{"engine": ')

    assert distrust.load_records(root) == [RECORD]
    assert "skipped" in caplog.text


# Facts of shards


class Shard:
    """A manifest with the fact which engine encoded the shard."""

    def __init__(self, encoder: Encoder) -> None:
        self.facts = {ENCODER_FACT: asdict(encoder)}


NUMPY = Encoder("numpy", "1.0", audited=4)
GIGATOKEN = Encoder("gigatoken", "0.9", audited=3, helper="numpy 1.0")


def test_encoders_of_shards_are_listed_once_with_all_their_audited_documents():
    encoders = encoders_of([Shard(NUMPY), Shard(GIGATOKEN), Shard(NUMPY)])

    assert encoders == (replace(NUMPY, audited=8), GIGATOKEN)


def test_keys_of_an_encoder_that_a_later_version_has_added_are_ignored():
    shard = Shard(NUMPY)
    shard.facts[ENCODER_FACT]["threads"] = 4

    assert encoders_of([shard]) == (NUMPY,)


def test_a_fact_of_another_form_is_no_encoder():
    shard = Shard(NUMPY)
    shard.facts[ENCODER_FACT] = {"engine": "numpy", "version": "1.0", "audited": "many"}

    with pytest.raises(ValueError, match="audited"):
        encoders_of([shard])


def test_a_description_names_each_engine_once_and_counts_audited_documents():
    description = describe_encoders((replace(NUMPY, audited=8), GIGATOKEN))

    assert description == (
        "tokenized by numpy 1.0 and gigatoken 0.9; 11 documents compared with the tokenizers "
        "library"
    )
