"""The checks of assets in a build: what they find, and which findings stop what follows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from helpers.built_project import overwrite
from helpers.inspecting import current_output, graph_of
from helpers.sample_platform import Platform, open_copy
from helpers.sample_project import OF_BOOKS, write_project
from nanoset_assets.assets.checks import VerificationError
from nanoset_assets.assets.output_names import asset_path, partition_of
from nanoset_assets.assets.overview import OVERVIEW
from nanoset_assets.build.builder import build, dry_run
from nanoset_assets.build.report import BuildReport
from nanoset_assets.dagster_compat import assets_with_failed_check, has_failed_last_check
from nanoset_assets.definitions import build_definitions
from nanoset_assets.history.graph_state import load_graph_state
from nanoset_assets.names import Names
from nanoset_assets.tags import CHECK
from nanoset_core.outputs.failed_checks import FOLDER, record_failure
from nanoset_core.project.graph.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.project.verify import verify_project


def evaluations_of(
    instance: dg.DagsterInstance,
) -> dict[tuple[str, str | None], dg.AssetCheckEvaluation]:
    """Return the last evaluation of the verification of each asset and partition."""
    evaluations = {}
    for run in sorted(instance.get_run_records(), key=lambda record: record.storage_id):
        entries = instance.all_logs(
            run.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        )
        for entry in entries:
            evaluation = entry.dagster_event.event_specific_data
            if evaluation.check_name == CHECK:
                asset = evaluation.asset_key.to_user_string()
                evaluations[asset, evaluation.partition] = evaluation
            elif evaluation.check_name == "losses":
                assert evaluation.passed
            else:
                # The tokenizer of the sample project is unknown to trainers, which is a warning.
                assert evaluation.check_name == "trainer"
                assert not evaluation.passed
    return evaluations


# All checks of a build


@pytest.fixture(scope="module")
def evaluations(
    template, tmp_path_factory
) -> dict[tuple[str, str | None], dg.AssetCheckEvaluation]:
    """The evaluation of the verification of each asset and partition in a build of everything."""
    with open_copy(template, tmp_path_factory.mktemp("built") / "project") as platform:
        return evaluations_of(platform.instance)


def test_every_output_of_a_build_is_checked(evaluations, template):
    project = Project.open(template / "nanoset.yaml")
    nodes = graph_over(project, {}, ["books", "code", "web"]).nodes()

    assert set(evaluations) == {("/".join(asset_path(node)), partition_of(node)) for node in nodes}


def test_the_checks_of_a_build_pass_and_would_block(evaluations):
    for evaluation in evaluations.values():
        assert evaluation.passed
        assert evaluation.blocking


def test_a_check_records_how_much_it_has_compared(evaluations):
    evaluation = evaluations["indexed_dataset", "web"]

    assert evaluation.metadata["documents"].value == 240
    assert evaluation.metadata["documents_compared"].value == 64


def test_the_ui_shows_who_launched_the_runs_of_a_build(built_platform):
    users = {run.tags["user"] for run in built_platform.instance.get_runs()}

    assert users == {"nanoset build"}


def test_outputs_that_were_checked_are_not_built_again(built_platform):
    project = Project.open(built_platform.config_file)

    assert build(project, built_platform.instance).made == {}


def test_outputs_that_were_never_checked_are_not_built_again(make_project, instance, monkeypatch):
    # A project may have been built by a version that had no checks.
    config_file = make_project()
    with monkeypatch.context() as patch:
        patch.setattr("nanoset_assets.definitions.checks_for", lambda config: [])
        first_report = build(Project.open(config_file), instance, corpora=["books"])

    report = build(Project.open(config_file), instance, corpora=["books"])

    assert len(first_report.made) == 3
    assert report.made == {}


def test_every_check_has_a_description_and_only_the_verification_blocks(make_project):
    graph = build_definitions(Project.open(make_project()).config).resolve_asset_graph()

    for key in graph.asset_check_keys:
        spec = graph.get_check_spec(key)
        assert spec.description
        assert spec.blocking == (key.name == CHECK)
        assert spec.partitions_def == graph.get(key.asset_key).partitions_def


def test_a_check_can_be_run_without_its_asset(built_platform):
    key = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
    job = built_platform.definitions.resolve_job_def("corpus")
    check_job = job.get_subset(asset_check_selection={key}, asset_selection=set())

    result = check_job.execute_in_process(instance=built_platform.instance, partition_key="web")

    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.passed
    assert not result.get_asset_materialization_events()


# Warnings


@dataclass(frozen=True)
class CheckedBuild:
    """A build that several tests look at."""

    config_file: Path
    instance: dg.DagsterInstance
    report: BuildReport


@pytest.fixture(scope="module")
def build_with_odd_files(tmp_path_factory, tokenizer_file) -> Iterator[CheckedBuild]:
    """A build of a corpus that has a file that is not read, and an empty one."""
    folder = tmp_path_factory.mktemp("odd") / "project"
    config_file = write_project(folder, tokenizer_file)
    (folder / "raw/web/notes.doc").touch()
    (folder / "raw/web/empty.jsonl").touch()
    home = str(tmp_path_factory.mktemp("home"))
    with dg.DagsterInstance.ephemeral(tempdir=home) as instance:
        report = build(Project.open(config_file), instance, corpora=["web"])
        yield CheckedBuild(config_file, instance, report)


def test_files_that_are_not_read_fail_no_check(build_with_odd_files):
    assert not build_with_odd_files.report.failed
    # Dagster's conditions treat a failed check as an error, even if it is only a warning.
    for evaluation in evaluations_of(build_with_odd_files.instance).values():
        assert evaluation.passed


def test_the_check_of_raw_text_describes_files_that_are_not_read(build_with_odd_files):
    evaluation = evaluations_of(build_with_odd_files.instance)["raw_jsonl", "web"]

    expected = "1 file is not read: 1 .doc (notes.doc); 1 file is empty: empty.jsonl"
    assert evaluation.description == expected


def test_the_page_of_raw_text_summarises_files_that_are_not_read(build_with_odd_files):
    of_web = dg.AssetRecordsFilter(dg.AssetKey("raw_jsonl"), asset_partitions=["web"])
    event = build_with_odd_files.instance.fetch_materializations(of_web, limit=1).records[0]

    summary = event.asset_materialization.metadata["summary"].value
    assert "**1** `file is not read: 1 .doc (notes.doc)`" in summary


def test_files_that_are_not_read_cause_no_second_build(build_with_odd_files):
    project = Project.open(build_with_odd_files.config_file)

    report = build(project, build_with_odd_files.instance, corpora=["web"])

    assert report.made == {}


def test_a_warning_is_described_and_passes_the_check(built_platform):
    # The dataset was made of other text than the raw file has now.
    raw_file = built_platform.raw / "web/part-0/web-0.jsonl"
    raw_file.write_bytes(raw_file.read_bytes().replace(b"model", b"modem"))

    result = built_platform.definitions.resolve_job_def("corpus").execute_in_process(
        instance=built_platform.instance,
        partition_key="web",
        asset_selection=[dg.AssetKey("indexed_dataset")],
    )

    # The check passes, with the warning and its remedy.
    assert result.success
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.passed
    assert "source line" in evaluation.description
    (finding,) = evaluation.metadata["findings"].records
    assert finding.data["remedy"].startswith("run `nanoset build`")

    # No check of an asset lacks a success.
    check_keys = built_platform.definitions.resolve_asset_graph().asset_check_keys
    assert assets_with_failed_check(built_platform.instance, check_keys) == set()


# Errors


@pytest.fixture(scope="module")
def spoiled_build(tmp_path_factory, tokenizer_file, spoil_merges) -> Iterator[CheckedBuild]:
    """A build in which the only dataset has a token that is not in the vocabulary."""
    folder = tmp_path_factory.mktemp("spoiled") / "project"
    config_file = write_project(folder, tokenizer_file, OF_BOOKS)
    for corpus in ("code", "web"):
        shutil.rmtree(folder / "raw" / corpus)
    home = str(tmp_path_factory.mktemp("home"))
    with dg.DagsterInstance.ephemeral(tempdir=home) as instance:
        with spoil_merges():
            report = build(Project.open(config_file), instance, select='key:"raw_jsonl"+')
        yield CheckedBuild(config_file, instance, report)


def test_a_step_whose_output_does_not_pass_its_check_has_failed(spoiled_build):
    assert set(spoiled_build.report.failed) == {"indexed_dataset [books]"}
    assert set(spoiled_build.report.made) == {"raw_jsonl [books]", "tokenized_shards [books]"}


def test_the_error_of_a_failed_check_states_the_finding_and_a_remedy(spoiled_build):
    error = spoiled_build.report.failed["indexed_dataset [books]"]

    assert isinstance(error, VerificationError)
    assert "a token is not in the vocabulary" in str(error)
    assert "found: id 9999" in str(error)
    assert "remedy:" in str(error)


def test_outputs_of_an_asset_that_does_not_pass_its_check_are_skipped(spoiled_build):
    assert "pretrain/index_mappings [train]" in spoiled_build.report.skipped
    assert "shuffled/shuffle_plan" in spoiled_build.report.skipped


def test_an_output_that_did_not_pass_its_check_is_not_used_until_it_is_rebuilt(spoiled_build):
    instance = spoiled_build.instance

    # Nothing was made of the dataset.
    assert not (spoiled_build.config_file.parent / "data" / "nanosets").exists()
    assert not (spoiled_build.config_file.parent / "data" / "webdatasets").exists()

    # The next build rebuilds it first, and then builds what waited for it.
    project = Project.open(spoiled_build.config_file)
    next_report = build(project, instance, select="shuffled/shuffle_plan")
    assert not next_report.failed
    assert list(next_report.made) == ["indexed_dataset [books]", "shuffled/shuffle_plan"]

    # Then everything is up to date.
    project = Project.open(spoiled_build.config_file)
    assert build(project, instance, select="shuffled/shuffle_plan").made == {}


def damage_and_check(platform: Platform) -> tuple[Path, bytes]:
    """Overwrite tokens of the dataset of `web`, and let its check find this.

    Returns:
        The damaged file, and what it contained before.
    """
    tokens_file = platform.config.root_folder / "datasets/web/current/web_text_document.bin"
    content = tokens_file.read_bytes()
    overwrite(tokens_file, 1000, b"\xff" * 200)
    assert not platform.check_dataset("web").passed
    return tokens_file, content


def test_a_build_repairs_a_file_whose_damage_a_check_has_found(built_platform):
    tokens_file, content = damage_and_check(built_platform)

    report = build(Project.open(built_platform.config_file), built_platform.instance)

    assert set(report.made) == {"indexed_dataset [web]"}
    assert not report.failed
    assert tokens_file.read_bytes() == content


def test_the_sensor_repairs_a_file_whose_damage_a_check_has_found(built_platform):
    tokens_file, content = damage_and_check(built_platform)

    assert built_platform.automation() == {"indexed_dataset": {"web"}}
    built_platform.carry_out()

    assert tokens_file.read_bytes() == content
    assert built_platform.automation() == {}


CHECK_FAILED = "the last check of datasets/web found an error, which `nanoset verify` shows"


def row_of_web(config_file: Path) -> StatusRow:
    """Return the row of the corpus `web` in `nanoset status`."""
    rows = {row.label: row for row in project_status(Project.open(config_file))}
    return rows["corpus web"]


def test_status_knows_that_a_check_has_found_damage_until_a_build_repairs_it(built_platform):
    damage_and_check(built_platform)

    row = row_of_web(built_platform.config_file)
    assert row.state == "stale"
    assert row.why == (CHECK_FAILED,)

    build(Project.open(built_platform.config_file), built_platform.instance)
    assert row_of_web(built_platform.config_file).state == "up to date"


def test_dagster_learns_that_an_output_was_verified_after_its_check_had_failed(built_platform):
    tokens_file, content = damage_and_check(built_platform)
    tokens_file.write_bytes(content)  # the user copies the file from a backup
    reports = list(verify_project(Project.open(built_platform.config_file), select=["web"]))
    assert all(report.passed for report in reports)

    assert built_platform.automation() == {}

    dataset_check = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
    assert not has_failed_last_check(built_platform.instance, dataset_check, "web")
    assert build(Project.open(built_platform.config_file), built_platform.instance).made == {}


def test_a_check_that_fails_while_the_outputs_are_looked_at_stays_failed(built_platform):
    project = Project.open(built_platform.config_file)
    graph = graph_of(project, "web")
    assert all(step.is_up_to_date for step in graph.steps())  # it has read that no check has failed

    damage_and_check(built_platform)
    state = load_graph_state(graph, built_platform.instance, Names())

    assert [node.row.label for node in state.failed_check] == ["corpus web"]


def test_a_failed_check_stays_failed_as_long_as_nothing_has_verified_the_output(built_platform):
    tokens_file, content = damage_and_check(built_platform)
    tokens_file.write_bytes(content)

    assert built_platform.automation() == {"indexed_dataset": {"web"}}


def test_a_dry_run_lists_what_a_build_repairs(built_platform):
    damage_and_check(built_platform)

    plan = dry_run(Project.open(built_platform.config_file))

    (row,) = plan.rows
    assert row.why == (CHECK_FAILED,)
    assert row.steps == ("indexed_dataset [web]",)


def test_a_build_with_another_history_repairs_what_a_check_has_found(built_platform, tmp_path):
    tokens_file, content = damage_and_check(built_platform)

    (tmp_path / "other").mkdir()
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path / "other")) as other_history:
        report = build(Project.open(built_platform.config_file), other_history)

    assert set(report.made) == {"indexed_dataset [web]"}
    assert tokens_file.read_bytes() == content


def damage_and_verify(platform: Platform) -> tuple[Path, bytes]:
    """Swap two tokens of the dataset of `web`, which only `nanoset verify --deep` finds for sure.

    Returns:
        The damaged file, and what it contained before.
    """
    tokens_file = platform.config.root_folder / "datasets/web/current/web_text_document.bin"
    content = tokens_file.read_bytes()
    overwrite(tokens_file, 1000, content[1002:1004] + content[1000:1002])
    assert tokens_file.read_bytes() != content
    project = Project.open(platform.config_file)
    (report,) = verify_project(project, select=["web"], deep=True)
    assert not report.passed
    return tokens_file, content


def test_a_build_repairs_a_file_whose_damage_verify_has_found(built_platform):
    tokens_file, content = damage_and_verify(built_platform)

    report = build(Project.open(built_platform.config_file), built_platform.instance)

    assert set(report.made) == {"indexed_dataset [web]"}
    assert not report.failed
    assert tokens_file.read_bytes() == content
    assert row_of_web(built_platform.config_file).state == "up to date"


def test_a_build_repairs_a_shard_whose_damage_verify_has_found(built_platform):
    (shard, *_) = sorted(built_platform.config.root_folder.glob("shards/web/*/*.bin"))
    content = shard.read_bytes()
    overwrite(shard, 100, content[102:104] + content[100:102])
    assert shard.read_bytes() != content
    project = Project.open(built_platform.config_file)
    (report,) = verify_project(project, select=["web"], deep=True)
    assert not report.passed

    build(Project.open(built_platform.config_file), built_platform.instance)

    assert shard.read_bytes() == content
    project = Project.open(built_platform.config_file)
    (report,) = verify_project(project, select=["web"], deep=True)
    assert report.passed


def test_the_sensor_repairs_a_file_whose_damage_verify_has_found(built_platform):
    tokens_file, content = damage_and_verify(built_platform)

    assert built_platform.automation() == {"indexed_dataset": {"web"}}
    dataset_check = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
    assert has_failed_last_check(built_platform.instance, dataset_check, "web")
    built_platform.carry_out()

    assert tokens_file.read_bytes() == content
    assert built_platform.automation() == {}
    assert not has_failed_last_check(built_platform.instance, dataset_check, "web")


def test_the_overview_lets_dagster_know_what_verify_has_found(built_platform):
    dataset_check = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
    built_platform.evaluate(OVERVIEW)
    tokens_file, content = damage_and_verify(built_platform)

    built_platform.evaluate(OVERVIEW)
    assert has_failed_last_check(built_platform.instance, dataset_check, "web")

    tokens_file.write_bytes(content)
    list(verify_project(Project.open(built_platform.config_file), select=["web"], deep=True))
    built_platform.evaluate(OVERVIEW)
    assert not has_failed_last_check(built_platform.instance, dataset_check, "web")

    # Dagster's own function for results without a run cannot store a second one.
    damage_and_verify(built_platform)
    built_platform.evaluate(OVERVIEW)
    assert has_failed_last_check(built_platform.instance, dataset_check, "web")


def test_a_quick_check_in_dagster_does_not_pass_what_a_deep_one_has_found(built_platform):
    damage_and_verify(built_platform)

    assert not built_platform.check_dataset("web").passed
    assert row_of_web(built_platform.config_file).state == "stale"


def damage_tars_and_check(platform: Platform) -> tuple[Path, bytes]:
    """Change the first tar of the webdataset, and let the check of its group find this.

    Returns:
        The damaged file, and what it contained before.
    """
    (tar,) = [
        path
        for path in platform.config.root_folder.glob("webdatasets/shuffled/*/shard-00000000.tar")
        if "current" not in path.parts
    ]
    content = tar.read_bytes()
    tar.write_bytes(content.replace(b".npy", b".nqy", 1))
    platform.carry_out({"shuffled/tars": {"0"}}, raises=False)
    return tar, content


def test_status_knows_that_the_check_of_a_group_of_tars_has_failed(built_platform):
    damage_tars_and_check(built_platform)

    rows = {row.label: row for row in project_status(Project.open(built_platform.config_file))}

    reason = (
        "the last check of webdatasets/shuffled/tars/0 found an error, which `nanoset verify` shows"
    )
    assert reason in rows["webdataset shuffled"].why


def test_a_build_with_another_history_repairs_a_group_of_tars(built_platform, tmp_path):
    tar, content = damage_tars_and_check(built_platform)

    (tmp_path / "other").mkdir()
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path / "other")) as other_history:
        report = build(Project.open(built_platform.config_file), other_history)

    assert not report.failed
    assert tar.read_bytes() == content


def test_a_check_reports_what_it_found_even_if_it_cannot_record_that(built_platform):
    tokens_file = built_platform.config.root_folder / "datasets/web/current/web_text_document.bin"
    overwrite(tokens_file, 1000, b"\xff" * 200)
    # A file in the place of the folder of records has the effect of a full or a read-only disk.
    (built_platform.config.root_folder / FOLDER).touch()

    evaluation = built_platform.check_dataset("web")

    assert not evaluation.passed
    assert "a token is not in the vocabulary" in evaluation.description


def test_the_sensor_checks_a_list_of_files_again_whose_check_has_failed(built_platform):
    project = Project.open(built_platform.config_file)
    digest = current_output(project, "inventory/web").digest
    record_failure(project.outputs, "inventory", "web", digest)

    assert built_platform.automation()["raw_jsonl"] == {"web"}


def test_an_output_whose_check_was_interrupted_is_checked_and_not_rebuilt(built_platform):
    # Dagster has planned the check, and was killed before it ended.
    job = built_platform.definitions.resolve_job_def("corpus")
    key = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
    run = built_platform.instance.create_run_for_job(
        job_def=job.get_subset(asset_check_selection={key}, asset_selection=set()),
        tags={"dagster/partition": "web"},
    )
    built_platform.instance.report_run_failed(run)
    tokens_file = built_platform.config.root_folder / "datasets/web/current/web_text_document.bin"
    inode = tokens_file.stat().st_ino

    report = build(Project.open(built_platform.config_file), built_platform.instance)

    assert set(report.made) == {"indexed_dataset [web]"}
    assert tokens_file.stat().st_ino == inode


# Outputs whose check fails because of text or settings, which a rebuild does not change


def report_failed_check(platform: Platform, asset: list[str], partition: str | None = None) -> None:
    """Let Dagster's history say that the check of an output has found an error."""
    evaluation = dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey(asset),
        check_name=CHECK,
        passed=False,
        metadata={},
        severity=dg.AssetCheckSeverity.ERROR,
        partition=partition,
    )
    platform.instance.report_runless_asset_event(evaluation)


def test_a_comparison_of_splits_is_checked_again_and_not_repeated(built_platform):
    built_platform.edit_settings("    seed: 7\n", "    seed: 7\n    held_out: warn\n")
    built_platform.load()
    build(Project.open(built_platform.config_file), built_platform.instance)
    report_failed_check(built_platform, ["pretrain", "held_out"])
    project = Project.open(built_platform.config_file)
    list_file = current_output(project, "nanosets/pretrain/held_out").path("shared.parquet")
    inode = list_file.stat().st_ino

    report = build(project, built_platform.instance)

    assert "pretrain/held_out" in report.made
    assert not report.failed
    assert list_file.stat().st_ino == inode


def test_shards_are_checked_again_and_not_tokenized_again(built_platform):
    report_failed_check(built_platform, ["tokenized_shards"], "web")
    shards = sorted((built_platform.config.root_folder / "shards" / "web").glob("*/tokens.bin"))
    inodes = [shard.stat().st_ino for shard in shards]

    report = build(Project.open(built_platform.config_file), built_platform.instance)

    assert "tokenized_shards [web]" in report.made
    assert not report.failed
    assert [shard.stat().st_ino for shard in shards] == inodes
