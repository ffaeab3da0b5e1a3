"""`packed: [...]` in nanoset.yaml: the asset, its job, a build, and the table at its end."""

from __future__ import annotations

import re

import dagster as dg
import pytest
from sample_project import CONFIG

from nanoset_assets.build import build
from nanoset_assets.commands import show_report
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_core.indexed import MMapIndexedDataset
from nanoset_core.packed import PackedDataset
from nanoset_core.pipeline.project import Project

ASSET = dg.AssetKey("packed_dataset")


@pytest.fixture
def project(make_project):
    def open_project(packed="[web, books]"):
        rest = CONFIG[CONFIG.index("nanosets:") :]
        file = make_project(replacements={rest: f"packed: {packed}\n"})
        return Project.open(file)

    return open_project


def materialised(instance):
    return set(instance.get_materialized_partitions(ASSET))


def test_a_build_packs_the_corpora_that_are_listed_and_no_other(project, instance, capsys):
    opened = project()
    report = build(opened, instance)
    assert not report.failed
    assert materialised(instance) == {"web", "books"}
    root = opened.config.root_folder
    assert sorted(path.name for path in (root / "packed").iterdir()) == ["books", "web"]
    for corpus in ("web", "books"):
        dataset = MMapIndexedDataset(root / "datasets" / corpus / "current" / f"{corpus}_text_document")
        found = PackedDataset(root / "packed" / corpus / "current" / f"{corpus}.pbin")
        assert [document.tolist() for document in found] == [sequence.tolist() for sequence in dataset[:]]
    (event,) = instance.fetch_materializations(dg.AssetRecordsFilter(ASSET, asset_partitions=["web"]), limit=10).records
    metadata = event.asset_materialization.metadata
    assert (metadata["documents"].value, metadata["dagster/partition_row_count"].value) == (240, 240)
    assert metadata["file"].value.endswith("web.pbin")
    show_report(opened, report)
    assert re.search(r"│ web +│ up to date +│ +240 │", capsys.readouterr().out)
    assert build(opened, instance).made == {}


def test_a_corpus_that_is_not_listed_succeeds_and_makes_nothing(project, instance):
    opened = project("[web]")
    definitions = build_definitions(opened.config)
    instance.add_dynamic_partitions(Names().corpora_name, ["web", "code"])
    for job in ("corpus", "packed"):
        outcome = definitions.resolve_job_def(job).execute_in_process(instance=instance, partition_key="code")
        assert outcome.success
    assert materialised(instance) == set()
    assert not (opened.config.root_folder / "packed").exists()


def test_a_corpus_that_failed_is_named(project, instance):
    opened = project()
    (opened.config.raw_folder / "web" / "bad.jsonl").write_text("no json\n" * 500)
    report = build(opened, instance)
    assert list(report.failed) == ["tokenized_shards [web]"]
    assert report.skipped == ["indexed_dataset [web]", "packed_dataset [web]"]
    assert materialised(instance) == {"books"}
