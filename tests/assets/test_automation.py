"""The sensor of missing and stale outputs: what it builds after which event, and what it waits for.

It builds everything downstream of the datasets of corpora; the sensor over raw text builds those.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.sample_platform import Platform, age, open_copy
from helpers.sample_project import FEWER, jsonl, sentences
from nanoset_assets.automation import failed_runs, stale_sensor
from nanoset_assets.automation.stale_sensor import SENSOR
from nanoset_core.project.project import Project
from nanoset_core.stages.mappings import make as mapping

SPLITS = {"train", "valid", "test"}
TAR_GROUPS = {"0", "1", "2"}
DOWNSTREAM_OF_WEB: list[dict[str, set[str | None]]] = [
    {"pretrain/index_mappings": SPLITS, "pretrain/blend": SPLITS, "shuffled/shuffle_plan": {None}},
    {"pretrain/handoff": {None}, "shuffled/tars": TAR_GROUPS},
    {"shuffled/manifest": {None}},
]
"""What is built after a change of the corpus `web`: the requests of each tick."""


def add_documents(platform: Platform, corpus: str, n_documents: int = 30) -> None:
    """Add a file to a corpus, and let the sensor over raw text build its dataset."""
    folder = platform.raw / corpus
    (folder / f"new-{n_documents}.jsonl").write_bytes(jsonl(sentences("new", n_documents)))
    age(folder)
    platform.look()
    assert platform.tick() == [corpus]


@pytest.fixture
def platform(built_platform) -> Platform:
    """A project in which everything is up to date."""
    return built_platform


@pytest.fixture(scope="module")
def new_web_template(template, tmp_path_factory) -> Path:
    """The folder of a project in which only the dataset of web was built since web has changed."""
    folder = tmp_path_factory.mktemp("new-web") / "project"
    with open_copy(template, folder) as platform:
        add_documents(platform, "web")
    return folder


@pytest.fixture
def new_web(new_web_template, tmp_path) -> Iterator[Platform]:
    """A project in which everything made of the dataset of web is stale."""
    with open_copy(new_web_template, tmp_path / "project") as platform:
        yield platform


@pytest.fixture(scope="module")
def new_books_template(template, tmp_path_factory) -> Path:
    """The folder of a project in which only the dataset of books was built since it has changed."""
    folder = tmp_path_factory.mktemp("new-books") / "project"
    with open_copy(template, folder) as platform:
        add_documents(platform, "books")
    return folder


@pytest.fixture
def new_books(new_books_template, tmp_path) -> Iterator[Platform]:
    """A project in which everything made of the dataset of books is stale."""
    with open_copy(new_books_template, tmp_path / "project") as platform:
        yield platform


def start_run(platform: Platform, *path: str, partition: str | None = None) -> dg.DagsterRun:
    """Return a run of one asset that has started and not ended."""
    tags = {}
    if partition is not None:
        tags["dagster/partition"] = partition
    job = platform.definitions.resolve_implicit_global_asset_job_def()
    run = platform.instance.create_run_for_job(
        job_def=job.get_subset(asset_selection={dg.AssetKey(path)}, asset_check_selection=set()),
        tags=tags,
    )
    platform.instance.report_dagster_event(
        dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name), run.run_id
    )
    return platform.instance.get_run_by_id(run.run_id)


def end_run(platform: Platform, run: dg.DagsterRun) -> None:
    """Let a run end with success."""
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, run.job_name)
    platform.instance.report_dagster_event(event, run.run_id)


# The first start


def test_a_new_project_is_built_stage_by_stage(make_project, instance):
    replacements = FEWER | {"corpora: [web, code, books]": "corpora: [web, code]"}
    platform = Platform(make_project(replacements=replacements), instance)
    shutil.rmtree(platform.raw / "books")
    age(platform.raw)

    # Nothing is requested before the corpora are registered, nor before they have datasets.
    assert platform.automation() == {}
    platform.look()
    assert platform.automation() == {}

    # Then everything downstream is requested in three ticks.
    assert platform.tick() == ["code", "web"]
    assert platform.follow() == [
        DOWNSTREAM_OF_WEB[0],
        DOWNSTREAM_OF_WEB[1] | {"shuffled/tars": {"0"}},
        DOWNSTREAM_OF_WEB[2],
    ]
    assert platform.automation() == {}


def test_outputs_without_a_record_in_dagster_are_recorded_without_a_run(platform, tmp_path):
    # Another instance, such as a new one after the loss of a database.
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        other_platform = Platform(platform.config_file, instance)

        assert "nothing has changed" in other_platform.look().skip_message
        assert "nothing has changed" in other_platform.look().skip_message
        assert other_platform.automation() == {}

        tars = dg.AssetKey(["shuffled", "tars"])
        packed = dg.AssetKey("packed_dataset")
        assert instance.get_materialized_partitions(tars) == TAR_GROUPS
        assert instance.get_materialized_partitions(packed) == {"code"}


# Changes of raw text


def test_a_changed_corpus_requests_what_is_made_of_it(new_web):

    assert new_web.automation() == DOWNSTREAM_OF_WEB[0]


def test_a_change_of_another_corpus_requests_other_outputs(new_books):

    assert new_books.automation() == {
        "plain/index_mappings": SPLITS,
        "shuffled/shuffle_plan": {None},
    }


def test_several_changes_are_one_request_for_each_output(new_web):
    add_documents(new_web, "code", 10)

    assert new_web.automation() == DOWNSTREAM_OF_WEB[0] | {"packed_dataset": {"code"}}


def test_a_change_that_is_taken_back_requests_nothing(new_web):
    (new_web.raw / "web/new-30.jsonl").unlink()
    new_web.look()
    assert new_web.tick() == ["web"]

    assert new_web.automation() == {}


def test_a_corpus_that_nothing_reads_requests_nothing(platform):
    (platform.raw / "extra").mkdir()
    add_documents(platform, "extra")
    assert "extra" in platform.corpora

    assert platform.automation() == {}


def test_each_partition_downstream_of_a_changed_corpus_is_made_in_a_run(new_web):

    new_web.automation()

    # Mappings and blends of 3 splits share a run a split; and the plan has one.
    assert len(new_web.stale_requests) == 3 + 1


# Changes of settings, code and outputs


def test_an_edited_nanoset_is_requested_without_reloading_the_definitions(platform):
    platform.edit_settings("seed: 7", "seed: 8")

    assert platform.automation() == {"pretrain/index_mappings": SPLITS, "pretrain/blend": SPLITS}


def test_a_new_version_of_the_code_requests_the_outputs_of_its_stage_first(platform, monkeypatch):
    monkeypatch.setattr("nanoset_core.stages.dataset.stage.VERSION", 99)
    platform.load()

    # What is made of the datasets waits for their runs.
    assert platform.automation() == {"indexed_dataset": {"books", "code", "web"}}


def test_a_new_version_of_the_code_rebuilds_everything_downstream(platform, monkeypatch):
    monkeypatch.setattr("nanoset_core.stages.webdataset.recipes.VERSION", 99)
    n_runs_before = platform.instance.get_runs_count()

    ticks = platform.follow()

    assert ticks == [
        {"shuffled/shuffle_plan": {None}},
        {"shuffled/tars": TAR_GROUPS},
        {"shuffled/manifest": {None}},
    ]
    n_runs = platform.instance.get_runs_count() - n_runs_before
    assert n_runs == 1 + 3 + 1


def test_new_settings_of_the_tokenization_rebuild_each_corpus_in_one_run(platform):
    corpora = {"books", "code", "web"}
    platform.edit_settings("append_eod: true", "append_eod: false")
    platform.load()

    requests = platform.automation()
    n_runs_before = platform.instance.get_runs_count()
    platform.carry_out()

    assert requests == {"tokenized_shards": corpora, "indexed_dataset": corpora}
    assert platform.instance.get_runs_count() - n_runs_before == 3


def test_a_deleted_file_of_an_output_is_made_again(platform):
    folder = platform.config.root_folder / "webdatasets/shuffled/current"
    tars_before = {path.name: path.read_bytes() for path in folder.glob("*.tar")}
    (folder / min(tars_before)).unlink()

    ticks = platform.follow()

    tars = {path.name: path.read_bytes() for path in folder.glob("*.tar")}
    assert "0" in ticks[0]["shuffled/tars"]
    assert tars == tars_before


def test_a_damaged_inventory_is_left_to_the_sensor_over_raw_text(platform):
    (platform.config.root_folder / "inventory" / "web" / "current.json").write_text("{")

    # What the dataset was made of is unknown until the inventory is made again.
    assert platform.automation() == {}
    platform.look()
    assert list(platform.requested_run_keys()) == ["web"]


# Outputs that do not pass their check


def test_nothing_is_built_on_an_output_until_it_passes_its_check(platform, spoil_merges):
    (platform.raw / "web/new.jsonl").write_bytes(jsonl(sentences("new", 20)))
    age(platform.raw / "web")
    platform.look()
    (request,) = platform.look().run_requests

    # The dataset is built, but does not pass its check.
    with spoil_merges():
        assert not platform.run(request, raises=False).success
    assert "nothing has changed" in platform.look().skip_message
    assert platform.automation() == {}
    assert platform.automation() == {}

    # When somebody has rebuilt it, what is made of it follows.
    rebuild = platform.definitions.resolve_job_def("corpus").execute_in_process(
        instance=platform.instance,
        partition_key="web",
        asset_selection=[dg.AssetKey("indexed_dataset")],
        tags={"nanoset/rebuild": "true"},
    )
    assert rebuild.success
    assert platform.automation() == DOWNSTREAM_OF_WEB[0]


def test_an_output_whose_check_was_interrupted_is_checked_before_it_is_used(new_web):
    job = new_web.definitions.resolve_job_def("corpus").get_subset(
        asset_selection={dg.AssetKey("indexed_dataset")}
    )
    run = new_web.instance.create_run_for_job(job_def=job, tags={"dagster/partition": "web"})
    new_web.instance.report_run_failed(run, "killed")

    assert new_web.automation() == {"indexed_dataset": {"web"}}
    new_web.carry_out({"indexed_dataset": {"web"}})
    assert new_web.automation() == DOWNSTREAM_OF_WEB[0]


# Runs that have not ended


def test_the_sensor_says_that_all_is_up_to_date(platform):
    message = platform.evaluate(SENSOR).skip_message

    assert message.endswith("outputs: none is missing or stale")


def test_the_sensor_says_that_outputs_cannot_be_built_yet(make_project, instance):
    platform = Platform(make_project(), instance)
    platform.look()

    message = platform.evaluate(SENSOR).skip_message

    assert message.endswith("missing or stale, which cannot be built yet")


def test_outputs_wait_for_the_runs_of_what_they_are_made_from(new_web):
    run_of_code = start_run(new_web, "indexed_dataset", partition="code")
    run_of_books = start_run(new_web, "indexed_dataset", partition="books")

    # The nanoset `pretrain` reads web and code; the webdataset reads books, too.
    assert new_web.automation() == {}
    new_web.instance.report_run_canceled(run_of_code)
    assert set(new_web.automation()) == {"pretrain/index_mappings", "pretrain/blend"}
    new_web.instance.report_run_canceled(run_of_books)
    assert "shuffled/shuffle_plan" in new_web.automation()


def test_an_output_whose_run_has_not_ended_is_not_requested_again(new_web):
    start_run(new_web, "shuffled", "shuffle_plan")

    assert "shuffled/shuffle_plan" not in new_web.automation()


def test_an_output_whose_run_ends_during_a_tick_is_not_requested_until_the_next(
    platform, monkeypatch
):
    platform.edit_settings("seed: 7", "seed: 8")
    platform.load()
    runs = []
    for asset in ("index_mappings", "blend"):
        for split in SPLITS:
            runs.append(start_run(platform, "pretrain", asset, partition=split))
    read_outputs = stale_sensor.load_graph_state

    def read_outputs_and_end_runs(*arguments: Any) -> Any:
        state = read_outputs(*arguments)
        while runs:
            end_run(platform, runs.pop())
        return state

    monkeypatch.setattr(stale_sensor, "load_graph_state", read_outputs_and_end_runs)

    # In the first tick the outputs are stale, because they were read before their runs ended.
    assert platform.automation() == {}
    # These runs have not made anything, so the next tick requests their outputs.
    assert set(platform.automation()) == {"pretrain/index_mappings", "pretrain/blend"}


def test_an_output_whose_run_starts_and_ends_during_a_tick_is_not_requested(platform, monkeypatch):
    platform.edit_settings("seed: 5", "seed: 6")
    platform.load()
    read_outputs = stale_sensor.load_graph_state

    def read_outputs_while_a_run_passes(*arguments: Any) -> Any:
        state = read_outputs(*arguments)
        monkeypatch.undo()
        end_run(platform, start_run(platform, "shuffled", "shuffle_plan"))
        return state

    monkeypatch.setattr(stale_sensor, "load_graph_state", read_outputs_while_a_run_passes)

    assert "shuffled/shuffle_plan" not in platform.automation()


# Runs that were killed


def test_an_output_whose_runs_are_killed_is_given_up_after_some_attempts(new_books):
    for _ in range(failed_runs.MAX_ATTEMPTS):
        assert new_books.automation()["shuffled/shuffle_plan"] == {None}
        run = start_run(new_books, "shuffled", "shuffle_plan")
        new_books.instance.report_run_failed(run, "killed")
    assert "shuffled/shuffle_plan" not in new_books.automation()

    # It is tried again after another change.
    add_documents(new_books, "books", 31)
    assert new_books.automation()["shuffled/shuffle_plan"] == {None}


def test_a_killed_run_that_dagster_will_retry_is_not_requested_again(new_books):
    run = start_run(new_books, "shuffled", "shuffle_plan")
    new_books.instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    new_books.instance.report_run_failed(run, "killed")

    assert "shuffled/shuffle_plan" not in new_books.automation()


# Runs that failed


PLAN_SHUFFLE = "nanoset_core.stages.webdataset.make.plan_shuffle"
"""The function that makes a shuffle plan; a step that calls None instead fails."""


@pytest.fixture(scope="module")
def failed_plan_template(new_books_template, tmp_path_factory) -> Path:
    """The folder of a project whose shuffle plan was stale, and has failed."""
    folder = tmp_path_factory.mktemp("failed-plan") / "project"
    with open_copy(new_books_template, folder) as platform, pytest.MonkeyPatch.context() as patch:
        patch.setattr(PLAN_SHUFFLE, None)
        platform.carry_out({"shuffled/shuffle_plan": {None}}, raises=False)
        # This tick stores in the run which version of the plan has failed.
        assert "shuffled/shuffle_plan" not in platform.automation()
    return folder


@pytest.fixture
def failing_platform(failed_plan_template, tmp_path, monkeypatch) -> Iterator[Platform]:
    """A project whose shuffle plan was stale, has failed, and would fail again."""
    monkeypatch.setattr(PLAN_SHUFFLE, None)
    with open_copy(failed_plan_template, tmp_path / "project") as platform:
        yield platform


def test_a_failed_output_is_not_requested_again_while_nothing_changes(failing_platform):
    # Others are built.
    assert set(failing_platform.automation()) == {"plain/index_mappings"}
    assert set(failing_platform.automation()) == {"plain/index_mappings"}


def test_a_failed_output_is_requested_again_after_a_change_of_its_input(failing_platform):
    add_documents(failing_platform, "books", 31)

    assert failing_platform.automation()["shuffled/shuffle_plan"] == {None}


def test_a_failed_output_is_requested_again_after_a_change_of_its_settings(failing_platform):
    failing_platform.edit_settings("seed: 5", "seed: 6")
    failing_platform.load()

    assert failing_platform.automation()["shuffled/shuffle_plan"] == {None}


def test_a_failed_output_is_requested_again_after_a_restart(failing_platform, monkeypatch):
    monkeypatch.setattr(failed_runs, "PROCESS_STARTED_AT", time.time())

    assert failing_platform.automation()["shuffled/shuffle_plan"] == {None}


def test_an_output_that_was_refused_is_requested_once_the_settings_allow_it(platform):
    evaluation = platform.config_file.parent / "evaluation.jsonl"
    evaluation.write_bytes(jsonl(sentences("web", 9)[8:]))  # a document of web
    section = "{files: evaluation.jsonl, of: [web], policy: block}"
    platform.edit_settings("nanosets:", f"contamination: {{evals: {section}}}\nnanosets:")
    platform.edit_settings("seed: 7", "seed: 8")
    platform.load()
    platform.automation()  # the search, which finds the document
    platform.carry_out()
    assert platform.automation()["pretrain/index_mappings"] == {"train"}
    platform.carry_out(raises=False)
    assert "pretrain/index_mappings" not in platform.automation()

    platform.edit_settings("policy: block", "policy: warn")

    assert platform.automation()["pretrain/index_mappings"] == {"train"}


def launch_job(platform: Platform, job: str, partition: str) -> dg.ExecuteInProcessResult:
    """Launch a whole job for one partition, as a person does in the UI."""
    definition = platform.definitions.resolve_job_def(job)
    return definition.execute_in_process(
        instance=platform.instance, partition_key=partition, raise_on_error=False
    )


def test_an_output_is_requested_again_after_a_run_that_needed_a_partition(new_web):
    job = new_web.definitions.resolve_job_def("shuffled")

    job.execute_in_process(instance=new_web.instance, raise_on_error=False)

    assert new_web.automation() == DOWNSTREAM_OF_WEB[0]


def test_an_output_that_failed_for_a_stale_input_is_requested_once_the_input_is_rebuilt(platform):
    # The job of one split also makes the handoff, which needs the other splits.
    platform.edit_settings("seed: 7", "seed: 8")
    assert not launch_job(platform, "pretrain", "train").success

    ticks = platform.follow()

    assert ticks == [
        {name: {"valid", "test"} for name in ("pretrain/index_mappings", "pretrain/blend")},
        {"pretrain/handoff": {None}},
    ]


def test_the_error_for_a_stale_input_says_what_to_materialise(platform):
    platform.edit_settings("seed: 7", "seed: 8")

    result = launch_job(platform, "pretrain", "train")

    failures = [event for event in result.all_events if event.is_step_failure]
    description = failures[0].step_failure_data.user_failure_data.description
    assert "materialise pretrain/blend [valid] first" in description


def test_an_output_that_fails_again_with_its_rebuilt_input_is_not_requested_forever(
    failing_platform,
):
    add_documents(failing_platform, "books", 31)
    failing_platform.automation()
    failing_platform.carry_out(raises=False)

    assert "shuffled/shuffle_plan" not in failing_platform.automation()


def test_the_sensor_reports_outputs_that_wait_for_a_change_after_a_failure(failing_platform):
    # What else is stale is built; the failed output is not requested meanwhile.
    failing_platform.follow()

    message = failing_platform.evaluate(SENSOR).skip_message

    assert "shuffle_plan" in message
    assert "it is built when what it is made from changes" in message


def test_the_failure_of_a_partition_does_not_stop_the_others(new_web, monkeypatch):
    write_mappings = mapping.write_mappings

    def fail_on_train(project: Project, name: str, split: str) -> Any:
        if split == "train":
            raise OSError("no space left")
        return write_mappings(project, name, split)

    with monkeypatch.context() as patch:
        patch.setattr(mapping, "write_mappings", fail_on_train)
        new_web.automation()
        new_web.carry_out(raises=False)

    outputs = Project.open(new_web.config_file).outputs
    assert new_web.automation() == {"shuffled/tars": TAR_GROUPS}
    assert outputs.current("nanosets", "pretrain/valid/blend") is not None
