"""One object and one entry in a table make a stage: everything that asks about outputs takes it
from there.
"""

from __future__ import annotations

import shutil

import dagster as dg
import pytest

from helpers.building import make_corpora
from helpers.changing import change_web
from helpers.command import print_status
from helpers.inspecting import corpus_names
from helpers.sample_platform import Platform, age
from helpers.sample_project import CONFIG, jsonl, sentences, write_raw
from helpers.toy_stage import COUNTS, Counts
from nanoset_assets.asset_names import check_asset_names
from nanoset_assets.asset_table import SHAPES, AssetShape
from nanoset_assets.build import build
from nanoset_core.errors import ConfigError
from nanoset_core.project.diff import diff_datasets
from nanoset_core.project.gc import collect
from nanoset_core.project.graph import stale_reasons
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages import registry as stages
from nanoset_core.stages.stage import Key

# Its line in nanoset_assets/asset_table.py.


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    shape = AssetShape(
        "document_counts", "Counts of a corpus.", check="They are those of the dataset."
    )
    monkeypatch.setitem(SHAPES, COUNTS, shape)
    monkeypatch.setattr(stages, "_added", [])
    stages.add_stage(COUNTS)


@pytest.fixture
def folder(tmp_path, tokenizer_file):
    folder = tmp_path / "project"
    write_raw(folder / "raw")
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    nanosets = CONFIG[CONFIG.index("nanosets:") : CONFIG.index("webdatasets:")]
    (folder / "nanoset.yaml").write_text(
        CONFIG.replace("groups: 3", "groups: 1").replace(nanosets, "")
    )
    return folder


@pytest.fixture
def made(folder):
    """The corpora, their counts, and nothing else."""
    make(folder)
    return folder


def make(folder):
    project = Project.open(folder / "nanoset.yaml")
    for corpus in corpus_names(project):
        make_corpora(project, corpus)
        COUNTS.make(project, Key(corpus))
    return project


def status(folder):
    return {row.label: row for row in project_status(Project.open(folder / "nanoset.yaml"))}


@pytest.mark.parametrize(
    ("kind", "asset"), [("counts", "counts"), ("raw_jsonl", "document_counts"), ("one", "packed")]
)
def test_a_kind_and_an_asset_of_one_name_are_refused(kind, asset, monkeypatch):
    named = type("Named", (Counts,), {"kind": kind})()
    monkeypatch.setitem(SHAPES, named, AssetShape(asset))
    stages.add_stage(named)
    with pytest.raises(ConfigError, match="a kind of outputs and an asset share a name"):
        check_asset_names()


def test_status_and_freshness_tell_of_it_in_the_same_words(made, capsys):
    row = status(made)["counts web"]
    assert (row.state, row.figures["documents"]) == ("up to date", 240)
    print_status([row])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("counts", "web", "documents", "240", "up to date"))
    project = Project.open(made / "nanoset.yaml")
    assert stale_reasons(project, COUNTS, Key("web")) == []
    change_web(made)
    make_corpora(project, "web")
    row = status(made)["counts web"]
    assert (row.state, row.why) == ("stale", ("dataset changed",))
    assert stale_reasons(project, COUNTS, Key("web")) == ["dataset changed"]
    next((made / "data/counts/code").glob("*/counts.json")).unlink()
    assert status(made)["counts code"].why == ("damaged: counts.json is missing",)


def test_diff_tells_what_becomes_of_it(made):
    change_web(made)
    project = Project.open(made / "nanoset.yaml")
    make_corpora(project, "web")
    fates = {outcome.output: outcome.fate for outcome in diff_datasets(project, "web").outcomes}
    assert (fates["counts web"], fates["counts code"]) == ("to be rebuilt", "survives")
    COUNTS.make(project, Key("web"))
    fates = {outcome.output: outcome.fate for outcome in diff_datasets(project, "web").outcomes}
    assert fates["counts web"] == "rebuilt"


def test_gc_removes_old_versions_of_it_and_keeps_what_they_need(made):
    project = Project.open(made / "nanoset.yaml")
    old = project.outputs.current("datasets", "web").digest
    change_web(made)
    make_corpora(project, "web")
    assert not [item for item in collect(project).garbage if item.path.name == old], (
        "the counts are still of it"
    )
    make(made)
    outputs = {item.output for item in collect(project).garbage}
    assert {"counts/web", "datasets/web"} <= outputs
    shutil.rmtree(made / "data/counts")
    config = made / "nanoset.yaml"
    make(made)
    config.write_text(
        config.read_text().replace("corpora: [web, code, books]", "corpora: [web, code]")
    )
    left = [
        item
        for item in collect(Project.open(config)).left_alone
        if item.path == made / "data/counts/books"
    ]
    assert [item.why.partition(";")[0] for item in left] == ["nanoset.yaml no longer asks for it"]


def test_build_and_the_sensors_make_it(folder, tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        age(folder / "raw")
        report = build(Project.open(folder / "nanoset.yaml"), instance)
        assert not report.failed
        assert {"document_counts [books]", "document_counts [web]"} <= report.made.keys()
        assert build(Project.open(folder / "nanoset.yaml"), instance).made == {}
        platform = Platform(folder / "nanoset.yaml", instance)
        graph = platform.definitions.resolve_asset_graph()
        node = graph.get(dg.AssetKey("document_counts"))
        assert node.parent_keys == {dg.AssetKey("indexed_dataset")}
        assert node.description == "Counts of a corpus."
        assert platform.automation() == {}
        (folder / "raw/web/new.jsonl").write_bytes(jsonl(sentences("new", 9)))
        age(folder / "raw/web")
        platform.look()
        assert platform.tick() == ["web"]
        asked = platform.automation()
        assert asked["document_counts"] == {"web"}
        platform.carry_out({"document_counts": {"web"}})
        assert "document_counts" not in platform.automation()
