"""Asset checks: they run with their assets, block what is made of faulty ones, and say what to do."""

from __future__ import annotations

import dagster as dg
from sample_project import FEWER

from nanoset_assets.build import build
from nanoset_assets.checks import LOSSES, VerificationError
from nanoset_assets.dagster_compat import unsound_checks
from nanoset_assets.definitions import build_definitions
from nanoset_assets.instance_state import CHECK
from nanoset_core.pipeline.project import Project


def evaluations(instance):
    """(asset, partition) → the last evaluation of its check."""
    found = {}
    for run in sorted(instance.get_run_records(), key=lambda record: record.storage_id):
        for entry in instance.all_logs(run.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
            evaluation = entry.dagster_event.event_specific_data
            if evaluation.check_name == CHECK:
                found[evaluation.asset_key.to_user_string(), evaluation.partition] = evaluation
            else:
                assert (evaluation.check_name, evaluation.passed) == (LOSSES, True)
    return found


def test_what_lies_among_the_files_is_described_and_blocks_nothing(make_project, instance):
    config = make_project()
    (config.parent / "raw/web/notes.txt").touch()
    (config.parent / "raw/web/empty.jsonl").touch()
    report = build(Project.open(config), instance, corpora=["web"])
    assert not report.failed
    found = evaluations(instance)
    assert all(evaluation.passed for evaluation in found.values()), "to conditions a failed check is an error"
    assert (
        found["raw_jsonl", "web"].description == "1 file is not read: 1 .txt (notes.txt); 1 file is empty: empty.jsonl"
    )
    event = instance.fetch_materializations(
        dg.AssetRecordsFilter(dg.AssetKey("raw_jsonl"), asset_partitions=["web"]), limit=1
    ).records[0]
    summary = event.asset_materialization.metadata["summary"].value
    assert "**1** `file is not read: 1 .txt (notes.txt)`" in summary
    again = build(Project.open(config), instance, corpora=["web"])
    assert again.made == {}


def test_every_blocking_asset_is_checked_in_a_build(make_project, instance):
    config = make_project()
    report = build(Project.open(config), instance)
    assert not report.failed
    found = evaluations(instance)
    assert all(evaluation.passed and evaluation.blocking for evaluation in found.values())
    checked = {"raw_jsonl", "tokenized_shards", "indexed_dataset", "index_mappings", "blend", "manifest"}
    expected = {("/".join(s.node.asset), s.node.partition) for s in report.steps if s.node.asset[-1] in checked}
    assert set(found) == expected
    dataset = found["indexed_dataset", "web"]
    assert dataset.metadata["documents"].value == 240
    assert dataset.metadata["documents_compared"].value == 64
    assert build(Project.open(config), instance).made == {}, "checks make no step due"


def test_an_error_stops_what_is_made_of_it_and_is_shown_with_its_remedy(make_project, instance, spoiling):
    config = make_project()
    with spoiling():
        report = build(Project.open(config), instance, select='key:"raw_jsonl"+')
    assert set(report.failed) == {"indexed_dataset [books]", "indexed_dataset [code]", "indexed_dataset [web]"}
    assert set(report.made) == {
        f"{asset} [{corpus}]" for asset in ("raw_jsonl", "tokenized_shards") for corpus in ("books", "code", "web")
    }
    error = report.failed["indexed_dataset [web]"]
    assert isinstance(error, VerificationError)
    assert "a token is not in the vocabulary" in str(error)
    assert "found: id 9999" in str(error)
    assert "remedy:" in str(error)
    assert "pretrain/index_mappings [train]" in report.skipped
    assert "shuffled/shuffle_plan" in report.skipped
    assert not (config.parent / "data" / "nanosets").exists()
    # The dataset is there and recorded; the next build must not take it for good.
    again = build(Project.open(config), instance)
    assert "indexed_dataset [web]" in again.failed
    assert "pretrain/index_mappings [train]" in again.skipped
    # Made again it is whole, is checked again, and what was held up follows.
    mended = build(Project.open(config), instance, select="indexed_dataset", rebuild=True)
    assert not mended.failed
    assert not build(Project.open(config), instance).failed
    assert build(Project.open(config), instance).made == {}


def unverified(platform):
    return unsound_checks(platform.instance, platform.definitions.resolve_asset_graph().asset_check_keys)


def test_a_warning_is_described_and_does_not_block(built_platform):
    raw = built_platform.raw / "web/part-0/web-0.jsonl"
    raw.write_bytes(raw.read_bytes().replace(b"model", b"modem"))
    outcome = built_platform.definitions.resolve_job_def("corpus").execute_in_process(
        instance=built_platform.instance, partition_key="web", asset_selection=[dg.AssetKey("indexed_dataset")]
    )
    assert outcome.success
    (evaluation,) = outcome.get_asset_check_evaluations()
    assert evaluation.passed
    assert "source line" in evaluation.description
    (row,) = evaluation.metadata["findings"].records
    assert row.data["remedy"].startswith("run `nanoset build`")
    assert unverified(built_platform) == set()


def test_a_check_can_be_run_alone_as_from_the_ui(built_platform):
    key = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
    job = built_platform.definitions.resolve_job_def("corpus")
    outcome = job.get_subset(asset_check_selection={key}, asset_selection=set()).execute_in_process(
        instance=built_platform.instance, partition_key="web"
    )
    (evaluation,) = outcome.get_asset_check_evaluations()
    assert evaluation.passed
    assert not outcome.get_asset_materialization_events()


def test_what_was_never_checked_is_not_due(make_project, instance, monkeypatch):
    """A project that was built before there were checks is not built again for them."""
    config = make_project(replacements=FEWER)
    with monkeypatch.context() as patch:
        patch.setattr("nanoset_assets.definitions.checks_for", lambda config: [])
        build(Project.open(config), instance)
    assert build(Project.open(config), instance).made == {}


def test_checks_say_what_they_check(make_project):
    graph = build_definitions(Project.open(make_project()).config).resolve_asset_graph()
    for key in graph.asset_check_keys:
        spec = graph.get_check_spec(key)
        assert spec.description
        assert spec.blocking == (key.name == CHECK)
        assert spec.partitions_def == graph.get(key.asset_key).partitions_def
