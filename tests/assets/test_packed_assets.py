"""The asset `packed_dataset` converts the corpora that `pbin` lists to Modalities' format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.sample_project import CONFIG, write_project
from nanoset_assets.build.builder import build
from nanoset_assets.build.report import BuildReport
from nanoset_assets.commands import show_report
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_core import MMapIndexedDataset, PackedDataset
from nanoset_core.project.project import Project

ASSET = dg.AssetKey("packed_dataset")


def open_project(folder: Path, tokenizer_file: Path, corpora: str) -> Project:
    """Return a project without nanosets that converts the listed corpora."""
    nanosets_and_webdatasets = CONFIG[CONFIG.index("nanosets:") :]
    replacements = {nanosets_and_webdatasets: f"pbin: {corpora}\n"}
    return Project.open(write_project(folder, tokenizer_file, replacements))


def materialised_corpora(instance: dg.DagsterInstance) -> set[str]:
    """Return the corpora of which the asset was materialised."""
    return set(instance.get_materialized_partitions(ASSET))


@dataclass(frozen=True)
class PackedBuild:
    """A build that several tests look at."""

    project: Project
    instance: dg.DagsterInstance
    report: BuildReport


@pytest.fixture(scope="module")
def packed_build(tmp_path_factory, tokenizer_file) -> Iterator[PackedBuild]:
    """A build of a project that lists two of its three corpora."""
    folder = tmp_path_factory.mktemp("packed") / "project"
    project = open_project(folder, tokenizer_file, "[web, books]")
    home = str(tmp_path_factory.mktemp("home"))
    with dg.DagsterInstance.ephemeral(tempdir=home) as instance:
        yield PackedBuild(project, instance, build(project, instance))


def test_a_build_converts_the_listed_corpora_and_no_other(packed_build):
    folder = packed_build.project.config.root_folder / "packed"

    assert not packed_build.report.failed
    assert materialised_corpora(packed_build.instance) == {"web", "books"}
    assert sorted(path.name for path in folder.iterdir()) == ["books", "web"]


@pytest.mark.parametrize("corpus", ["web", "books"])
def test_a_converted_corpus_has_the_same_documents(packed_build, corpus):
    root = packed_build.project.config.root_folder
    dataset = MMapIndexedDataset(root / "datasets" / corpus / "current" / f"{corpus}_text_document")
    packed = PackedDataset(root / "packed" / corpus / "current" / f"{corpus}.pbin")

    packed_documents = [document.tolist() for document in packed]

    assert packed_documents == [sequence.tolist() for sequence in dataset[:]]


@pytest.fixture
def page(packed_build) -> Any:
    """The metadata of the only materialisation of the corpus `web`."""
    of_web = dg.AssetRecordsFilter(ASSET, asset_partitions=["web"])
    (event,) = packed_build.instance.fetch_materializations(of_web, limit=10).records
    return event.asset_materialization.metadata


def test_the_page_of_a_converted_corpus_shows_its_documents_and_its_file(page):
    assert page["documents"].value == 240
    assert page["dagster/partition_row_count"].value == 240
    assert page["file"].value.endswith("web.pbin")


def test_the_report_of_a_build_shows_converted_corpora(packed_build, capsys):
    show_report(packed_build.project, packed_build.report)

    assert re.search(r"│ web +│ up to date +│ +240 │", capsys.readouterr().out)


def test_a_second_build_makes_nothing(packed_build):
    assert build(packed_build.project, packed_build.instance).made == {}


def test_a_run_of_a_corpus_that_is_no_longer_listed_succeeds_and_makes_nothing(
    tmp_path, tokenizer_file, instance
):
    project = open_project(tmp_path / "project", tokenizer_file, "[web]")
    definitions = build_definitions(project.config)
    for asset in ("corpora", "packed_dataset"):
        instance.add_dynamic_partitions(Names().path_name(asset), ["web", "code"])

    for job in ("corpus", "packed"):
        result = definitions.resolve_job_def(job).execute_in_process(
            instance=instance, partition_key="code"
        )
        assert result.success

    assert materialised_corpora(instance) == set()
    assert not (project.config.root_folder / "packed").exists()


def test_a_corpus_that_fails_does_not_stop_the_others(tmp_path, tokenizer_file, instance):
    project = open_project(tmp_path / "project", tokenizer_file, "[web, books]")
    (project.config.raw_folder / "web" / "bad.jsonl").write_text("no json\n" * 500)

    report = build(project, instance)

    assert list(report.failed) == ["tokenized_shards [web]"]
    assert report.skipped == ["indexed_dataset [web]", "packed_dataset [web]"]
    assert materialised_corpora(instance) == {"books"}
