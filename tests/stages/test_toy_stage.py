"""A stage consists of one object and one entry in a table: all commands and the UI know it by these.

The stage is the example of docs/architecture.md, which counts the documents of each corpus.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from helpers.building import make_corpora
from helpers.changing import change_web
from helpers.child_processes import ROOT
from helpers.command import print_status
from helpers.inspecting import corpus_names, diff_of
from helpers.sample_platform import Platform, age
from helpers.sample_project import CONFIG, jsonl, sentences, write_raw
from helpers.toy_stage import COUNTS, Counts
from nanoset_assets.assets.output_names import check_asset_names
from nanoset_assets.assets.table import SHAPES, AssetShape
from nanoset_assets.build.builder import build
from nanoset_core.errors import ConfigError
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.graph.built_inputs import changes_against_built_inputs
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.project.verify import Target
from nanoset_core.stages import registry as stages
from nanoset_core.stages.stage import PART, SUBJECT, CorpusStage, Key, Layout, Node

SHAPE = AssetShape("document_counts", "Counts of a corpus.", check="They are those of the dataset.")
"""The entry of the stage, as in nanoset_assets/assets/table.py."""


@pytest.fixture(autouse=True, scope="module")
def toy_stage() -> Iterator[None]:
    """Add the stage to the others while the tests of this file run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, COUNTS, SHAPE)
        patch.setattr(stages, "_added", [])
        stages.add_stage(COUNTS)
        yield


def write_project_without_nanosets(folder: Path, tokenizer_file: Path) -> Path:
    """Write the sample project with its webdatasets only, and return its folder."""
    write_raw(folder / "raw")
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    nanosets = CONFIG[CONFIG.index("nanosets:") : CONFIG.index("webdatasets:")]
    config = CONFIG.replace("groups: 3", "groups: 1").replace(nanosets, "")
    (folder / "nanoset.yaml").write_text(config)
    return folder


def open_project(folder: Path) -> Project:
    """Open the project in a folder."""
    return Project.open(folder / "nanoset.yaml")


def make_counts(project: Project) -> None:
    """Make the datasets of all corpora and their counts."""
    for corpus in corpus_names(project):
        make_corpora(project, corpus)
        COUNTS.make(project, Key(corpus))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The folder of a project with corpora and their counts; tests must not write to it."""
    folder = write_project_without_nanosets(tmp_path_factory.mktemp("toy") / "p", tokenizer_file)
    make_counts(open_project(folder))
    return folder


@pytest.fixture
def folder(counted: Path, tmp_path: Path) -> Path:
    """The folder of a copy of that project."""
    return shutil.copytree(counted, tmp_path / "project", symlinks=True)


@pytest.fixture
def project(folder: Path) -> Project:
    """The copy."""
    return open_project(folder)


@pytest.fixture
def project_with_new_dataset(project: Project, folder: Path) -> Project:
    """The copy, after the dataset of web was rebuilt for new documents, but not its counts."""
    change_web(folder)
    make_corpora(project, "web")
    return project


# On other machines


def test_a_worker_that_has_not_imported_the_package_of_a_stage_verifies_its_outputs(project):
    target = Target.of(project, [Node(COUNTS, Key("web"))])
    program = (
        "import pickle, sys\n"
        "target = pickle.load(sys.stdin.buffer)\n"
        "report = target.verify(deep=True)\n"
        "print(report.output, report.passed)"
    )
    import_paths = [str(ROOT), str(ROOT / "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(import_paths)}

    worker = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(target),
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )

    assert worker.stdout.decode() == "document_counts/web True\n"


# Names


@pytest.mark.parametrize(
    ("kind", "asset"),
    [
        pytest.param("counts", "counts", id="its kind and its own asset"),
        pytest.param("raw_jsonl", "document_counts", id="its kind and the asset of another stage"),
        pytest.param("one", "packed", id="its asset and the kind of another stage"),
    ],
)
def test_a_kind_of_outputs_and_an_asset_may_not_share_a_name(kind, asset, monkeypatch):
    stage = type("OtherCounts", (Counts,), {"kind": kind})()
    monkeypatch.setitem(SHAPES, stage, AssetShape(asset))
    monkeypatch.setattr(stages, "_added", [COUNTS])
    stages.add_stage(stage)

    with pytest.raises(ConfigError, match="a kind of outputs and an asset share a name"):
        check_asset_names()


def test_a_stage_that_lacks_an_attribute_is_refused_when_it_is_created():
    class WithoutLayout(CorpusStage):
        version = 1
        make = Counts.make
        recipe = Counts.recipe

    with pytest.raises(TypeError, match="WithoutLayout of a stage has no attribute `layout`"):
        WithoutLayout()


def test_a_stage_with_the_folders_of_an_unrelated_stage_is_refused(monkeypatch):
    class Previews(Counts):
        layout = Layout("packed")

    monkeypatch.setattr(stages, "_added", [])

    with pytest.raises(ConfigError, match="store their outputs in the same folders"):
        stages.add_stage(Previews())

    assert stages._added == []


def test_a_second_object_of_the_same_class_is_refused(monkeypatch):
    # For example, a module that is run by `python -m` and imported makes two objects.
    monkeypatch.setattr(stages, "_added", [])
    first_stage = Counts()
    stages.add_stage(first_stage)

    with pytest.raises(ConfigError, match="store their outputs in the same folders"):
        stages.add_stage(Counts())

    assert stages._added == [first_stage]


def test_a_key_without_a_part_is_refused_where_a_part_is_needed():
    with pytest.raises(ValueError, match="the key of 'web' has no part"):
        _ = Key("web").required_part


def test_the_stages_of_this_package_store_their_outputs_in_different_folders():
    stages.check_layouts(stages.stages())


def test_fixed_folders_keep_the_outputs_of_two_stages_apart():
    index = Layout("nanosets", (SUBJECT, PART, "index"))

    assert not index.overlaps(Layout("nanosets", (SUBJECT, PART, "blend")))
    assert not index.overlaps(Layout("nanosets", (SUBJECT, "handoff")))
    assert index.overlaps(Layout("nanosets", (SUBJECT, "train", "index")))


# Status and freshness


def status_of_counts(project: Project, corpus: str) -> StatusRow:
    """Return the row of the counts of a corpus in `nanoset status`."""
    rows = {row.label: row for row in project_status(project)}
    return rows[f"counts {corpus}"]


def test_status_has_a_row_for_each_output(project):
    row = status_of_counts(project, "web")

    assert row.state == "up to date"
    assert row.figures["documents"] == 240


def test_status_prints_the_row(project, capsys):
    print_status([status_of_counts(project, "web")])

    output = capsys.readouterr().out
    for word in ("counts", "web", "documents", "240", "up to date"):
        assert word in output


def test_an_output_of_the_current_dataset_is_fresh(project):
    graph = Graph(project, known={})
    assert changes_against_built_inputs(graph, Node(COUNTS, Key("web"))) == []


def test_an_output_of_an_earlier_dataset_is_stale(project_with_new_dataset):
    row = status_of_counts(project_with_new_dataset, "web")

    assert row.state == "stale"
    assert row.why == ("dataset changed",)
    graph = Graph(project_with_new_dataset, known={})
    changes = changes_against_built_inputs(graph, Node(COUNTS, Key("web")))
    assert changes == ["dataset changed"]


def test_an_output_without_its_file_is_damaged(project, folder):
    next((folder / "data/document_counts/code").glob("*/counts.json")).unlink()

    assert status_of_counts(project, "code").why == ("damaged: counts.json is missing",)


# Diff and gc


def fate_by_output(project: Project) -> dict[str, str]:
    """Return what the last change of web means for each output, as `nanoset diff` does."""
    return {outcome.output: outcome.fate for outcome in diff_of(project, "web").outcomes}


def test_diff_says_that_outputs_of_the_corpus_have_to_be_rebuilt(project_with_new_dataset):
    fates = fate_by_output(project_with_new_dataset)

    assert fates["counts web"] == "to be rebuilt"
    assert "counts code" not in fates


def test_diff_says_which_outputs_were_rebuilt(project_with_new_dataset):
    COUNTS.make(project_with_new_dataset, Key("web"))

    assert fate_by_output(project_with_new_dataset)["counts web"] == "rebuilt"


def test_gc_keeps_the_dataset_that_counts_were_made_from(project, folder):
    dataset = project.outputs.current("datasets", "web")
    change_web(folder)
    make_corpora(project, "web")

    garbage = collect(project).garbage

    assert dataset.digest not in {item.path.name for item in garbage}


def test_gc_removes_old_versions(project_with_new_dataset):
    make_counts(project_with_new_dataset)

    outputs = {item.output for item in collect(project_with_new_dataset).garbage}

    assert outputs >= {"document_counts/web", "datasets/web"}


# Dagster


def test_builds_and_sensors_make_the_outputs_as_an_asset(tmp_path, tokenizer_file):
    folder = write_project_without_nanosets(tmp_path / "project", tokenizer_file)
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text().partition("webdatasets:")[0])
    shutil.rmtree(folder / "raw/code")
    age(folder / "raw")
    home = tmp_path / "home"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        # A build makes the counts of each corpus, and a second one nothing.
        report = build(open_project(folder), instance)
        assert not report.failed
        assert report.made.keys() >= {"document_counts [books]", "document_counts [web]"}
        assert build(open_project(folder), instance).made == {}

        # The asset has the description of the table, and depends on the inputs of the stage.
        platform = Platform(config, instance)
        graph = platform.definitions.resolve_asset_graph()
        asset = graph.get(dg.AssetKey("document_counts"))
        assert asset.parent_keys == {dg.AssetKey("indexed_dataset")}
        assert asset.description == "Counts of a corpus."

        # After new raw text, the sensor of stale outputs requests the counts until they are made.
        assert platform.automation() == {}
        (folder / "raw/web/new.jsonl").write_bytes(jsonl(sentences("new", 9)))
        age(folder / "raw/web")
        platform.look()
        assert platform.tick() == ["web"]
        assert platform.automation()["document_counts"] == {"web"}
        platform.carry_out({"document_counts": {"web"}})
        assert "document_counts" not in platform.automation()
