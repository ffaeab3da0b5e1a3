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
from nanoset_core.errors import ConfigError
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


def shown(project, report, capsys):
    show_report(project, report)
    return capsys.readouterr().out


def test_a_build_packs_the_corpora_that_are_listed_and_no_other(project, instance, capsys):
    opened = project()
    report = build(opened, instance)
    assert not report.failed
    assert materialised(instance) == {"web", "books"}
    root = opened.config.root_folder
    assert sorted(path.name for path in (root / "packed").iterdir()) == ["books", "web"]
    for corpus in ("web", "books"):
        manifest = opened.outputs.current("packed", corpus)
        file = root / "packed" / corpus / manifest.digest / f"{corpus}.pbin"
        dataset = MMapIndexedDataset(root / "datasets" / corpus / "current" / f"{corpus}_text_document")
        found = PackedDataset(file)
        assert [document.tolist() for document in found] == [sequence.tolist() for sequence in dataset[:]]
        assert (found.layout, found.token_bytes) == ("D", 2)
        assert manifest.facts == {
            "file": f"{corpus}.pbin",
            "documents": len(found),
            "tokens": len(found.tokens),
            "token_bytes": 2,
            "left_out": 0,
        }
        assert manifest.files[f"{corpus}.pbin"].sha256
        assert file.parent == (root / "packed" / corpus / "current").resolve()
    (event,) = instance.fetch_materializations(dg.AssetRecordsFilter(ASSET, asset_partitions=["web"]), limit=10).records
    metadata = event.asset_materialization.metadata
    assert (metadata["documents"].value, metadata["dagster/partition_row_count"].value) == (240, 240)
    assert metadata["file"].value.endswith("web.pbin")
    assert re.search(r"│ web +│ up to date +│ +240 │", shown(opened, report, capsys))
    again = build(opened, instance)
    assert again.made == {}
    assert "up to date" in shown(opened, again, capsys)


def test_more_text_makes_only_its_own_corpus_again(project, instance):
    opened = project()
    build(opened, instance)
    before = opened.outputs.current("packed", "web").digest
    (opened.config.raw_folder / "web" / "more.jsonl").write_text('{"text": "one more document"}\n')
    report = build(opened, instance)
    assert [label for label in report.made if label.startswith("packed")] == ["packed_dataset [web]"]
    after = opened.outputs.current("packed", "web")
    assert after.digest != before
    assert after.facts["documents"] == 241
    assert (opened.config.root_folder / "packed" / "web" / before / "web.pbin").exists(), "readers of it go on"


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


def test_a_corpus_that_is_not_there_is_named(project, instance):
    with pytest.raises(ConfigError, match=r"packed\.none"):
        build(project("[none]"), instance)
