"""Wrong tokens, found late: earlier shards and all that was made from them are mended."""

from __future__ import annotations

import json
import logging
from functools import cache

import dagster as dg
import pytest
from sabotage import Sabotaged, Shortened, poison, sabotaged
from sample_project import jsonl, run_stages, sentences, tree, write_project

from nanoset_assets.build import build
from nanoset_core.pipeline import indexed, mending, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.tokenization import distrust, shards
from nanoset_core.versions.status import project_status

PLAIN = {"tokenization: {": "tokenization: {audit: 0, "}


FAULTS = {
    "one document in a hundred": lambda text: " 7: " in text[:10] or "07: " in text[:10],
    "one class of characters": lambda text: "é" in text and " 1" in text[:6],
    "a single document": lambda text: text.startswith("web 200"),
}


@pytest.fixture
def sabotage(monkeypatch):
    yield from sabotaged(monkeypatch)


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tokenizer_file):
    """What the reference alone makes of a project, after it was changed in some way."""

    @cache
    def made(change=lambda folder: None):
        folder = tmp_path_factory.mktemp("expected") / "project"
        config = write_project(folder, tokenizer_file, {"tokenization: {": "tokenization: {engine: tokenizers, "})
        change(folder)
        run_stages(Project.open(config))
        return outputs(config)

    return made


def outputs(config):
    """Every file but the manifests of shards, which say what made them, and records of distrust."""
    found = tree(config.parent / "data")
    return {
        name: digest
        for name, digest in found.items()
        if distrust.FOLDER not in name and not (name.startswith("shards/") and name.endswith("manifest.json"))
    }


def set_audit(config, share):
    text = config.read_text()
    config.write_text(text.replace("audit: 0, ", f"audit: {share}, "))


def records(config):
    return distrust.noted(Project.open(config).outputs)


def why(config):
    return {row.label: list(row.why) for row in project_status(Project.open(config)) if row.why}


def add_to_web(folder):
    (folder / "raw/web/part-1/web-9.jsonl").write_bytes(jsonl(sentences("web", 240)[195:205]))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_the_audit_finds_is_made_again_by_the_reference(make_project, expected, sabotage, fault, caplog):
    config = make_project(replacements={"tokenization: {": "tokenization: {audit: 1, "})
    sabotage(fault)
    with caplog.at_level(logging.WARNING):
        run_stages(Project.open(config))
    (record,) = records(config)
    assert record.engine == "numpy"
    assert "gave wrong tokens for" in caplog.text
    assert ".jsonl" in record.where
    run_stages(Project.open(config))  # corpora that were done before the fault was found
    assert outputs(config) == expected()
    assert why(config) == {}


@pytest.mark.parametrize("kind", [Sabotaged, Shortened])
def test_what_was_built_before_is_mended_by_one_build(make_project, expected, sabotage, tmp_path, kind):
    right_before = expected()
    config = make_project(replacements=PLAIN)
    sabotage(lambda text: "7: " in text[:10] or text.startswith("web 200"), kind)
    run_stages(Project.open(config))
    assert records(config) == []
    assert outputs(config) != right_before
    set_audit(config, 1)
    add_to_web(config.parent)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        report = build(Project.open(config), instance)
    assert report.failed == {}
    made, right = outputs(config), expected(add_to_web)
    assert {name: made.get(name) for name in right} == right
    # Nothing of the inventories before may be wrong; index files are compared with their dataset before they are used.
    older = {name for name in made.keys() - right.keys() if "/cache/" not in name}
    assert {name: made[name] for name in older} == {name: right_before[name] for name in older}
    assert why(config) == {}


def test_status_shows_suspects_and_equal_bytes_change_nothing(make_project):
    config = make_project()
    run_stages(Project.open(config))
    before = {path: path.stat().st_mtime_ns for path in (config.parent / "data").rglob("manifest.json")}
    assert why(config) == {}
    poison(config)
    told = why(config)
    assert all("may hold wrong tokens: numpy" in told[f"corpus {name}"][0] for name in ("web", "code", "books"))
    assert {"nanoset pretrain train", "webdataset shuffled"} <= told.keys()
    run_stages(Project.open(config))
    assert why(config) == {}
    now = {path: path.stat().st_mtime_ns for path in (config.parent / "data").rglob("manifest.json")}
    assert {path.parts[-4] for path in now if now[path] != before.get(path)} == {"shards"}
    made_by = [json.loads(path.read_bytes())["facts"]["encoder"] for path in now if path.parts[-4] == "shards"]
    assert {encoder["engine"] for encoder in made_by} == {"tokenizers"}


def test_a_mending_that_is_cut_off_is_ended_by_the_next(make_project, expected, sabotage, monkeypatch):
    config = make_project(replacements=PLAIN)
    sabotage(lambda text: "7: " in text[:10])
    run_stages(Project.open(config))
    poison(config)

    def cut(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mending, "_withdraw", cut)
        tokenization.tokenize(Project.open(config), "web")
    assert "made again" in why(config)["corpus web"][0]
    run_stages(Project.open(config))
    assert outputs(config) == expected()
    assert why(config) == {}


def test_shards_of_another_cut_are_withdrawn(make_project, expected, sabotage):
    config = make_project(replacements=PLAIN)
    sabotage(lambda text: "7: " in text[:10])
    run_stages(Project.open(config))
    config.write_text(config.read_text().replace("range_mib: 0.02", "range_mib: 0.04, engine: tokenizers"))
    shards._loaded_engine.cache_clear()
    for corpus in ("web", "code", "books"):
        tokenization.tokenize(Project.open(config), corpus)
        indexed.index(Project.open(config), corpus)
    poison(config)
    config.write_text(config.read_text().replace("range_mib: 0.04", "range_mib: 0.02"))
    run_stages(Project.open(config))
    assert why(config) == {}
    made = outputs(config)
    right = {name: digest for name, digest in made.items() if name.startswith("datasets/")}
    assert right == {name: digest for name, digest in expected().items() if name.startswith("datasets/")}


def test_a_record_that_cannot_be_read_is_passed_over(make_project, caplog):
    config = make_project()
    root = Project.open(config).outputs
    (root.folder / distrust.FOLDER).mkdir(parents=True)
    (root.folder / distrust.FOLDER / "x.json").write_bytes(b'{"engine": ')
    assert distrust.noted(root) == []
    assert "passed over" in caplog.text
