"""The conditions under which everything downstream of raw text is built, event by event."""

from __future__ import annotations

import time

import dagster as dg
import pytest

from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets import failed_runs, stale_sensor
from nanoset_assets.stale_sensor import SENSOR
from nanoset_core.project.project import Project
from nanoset_core.stages.mappings import stage as mapping

SPLITS = {"train", "valid", "test"}
DOWNSTREAM_OF_WEB = [
    {"pretrain/index_mappings": SPLITS, "pretrain/blend": SPLITS, "shuffled/shuffle_plan": {None}},
    {"pretrain/handoff": {None}, "shuffled/tars": {"0", "1", "2"}},
    {"shuffled/manifest": {None}},
]


@pytest.fixture
def built(built_platform):
    """Everything is up to date, as seen by a sensor that has never run before."""
    assert built_platform.automation() == {}
    return built_platform


def change(platform: Platform, corpus: str, count: int = 30) -> None:
    """Add a file, and let the sensor over raw text have the corpus built."""
    (platform.raw / corpus / f"new-{count}.jsonl").write_bytes(jsonl(sentences("new", count)))
    age(platform.raw / corpus)
    platform.look()
    assert platform.tick() == [corpus]


def edit(platform: Platform, old: str, new: str, *, reload: bool = True) -> None:
    text = platform.config_file.read_text()
    assert old in text
    platform.config_file.write_text(text.replace(old, new))
    if reload:
        platform.load()


def runs(platform: Platform) -> int:
    return platform.instance.get_runs_count()


def test_everything_is_missing_at_the_first_start(make_project, tmp_path):
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        platform = Platform(make_project(), instance)
        age(platform.raw)
        assert platform.automation() == {}, "there are no corpora yet"
        platform.look()
        assert platform.automation() == {}, "nothing is taken of them yet"
        assert platform.tick() == ["books", "code", "web"]
        assert platform.follow() == [
            DOWNSTREAM_OF_WEB[0] | {"plain/index_mappings": SPLITS},
            DOWNSTREAM_OF_WEB[1] | {"plain/handoff": {None}},
            DOWNSTREAM_OF_WEB[2],
        ]
        assert platform.automation() == {}


def taken_back(platform):
    change(platform, "web", 10)
    (platform.raw / "web/new-10.jsonl").unlink()
    platform.look()
    assert platform.tick() == ["web"]


def outside_of_every_blend(platform):
    (platform.raw / "extra").mkdir()
    change(platform, "extra")
    assert "extra" in platform.corpora


def several(platform):
    for corpus, count in (("web", 10), ("code", 10), ("web", 20)):
        change(platform, corpus, count)


NANOSET = {"pretrain/index_mappings": SPLITS, "pretrain/blend": SPLITS}
EVENTS = {
    "a changed corpus": (lambda at: change(at, "web"), DOWNSTREAM_OF_WEB[0]),
    "another": (
        lambda at: change(at, "books"),
        {"plain/index_mappings": SPLITS, "shuffled/shuffle_plan": {None}},
    ),
    "several changes": (several, DOWNSTREAM_OF_WEB[0] | {"packed_dataset": {"code"}}),
    "a change taken back": (taken_back, {}),
    "a corpus outside of every blend": (outside_of_every_blend, {}),
    "an edited nanoset": (lambda at: edit(at, "seed: 7", "seed: 8", reload=False), NANOSET),
}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_asks_for_what_is_made_of_it_and_nothing_else(built, event):
    happen, asked = EVENTS[event]
    happen(built)
    assert built.automation() == asked


def test_all_that_follows_is_made_in_a_run_a_partition(built):
    change(built, "web")
    before = runs(built)
    assert built.follow() == DOWNSTREAM_OF_WEB
    assert runs(built) - before == 3 + 1 + 1 + 3 + 1


def test_a_new_version_of_the_code_rebuilds_from_there(built, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("nanoset_core.stages.dataset.stage.VERSION", 99)
        built.load()
        asked = built.automation()
        assert asked == {"indexed_dataset": {"books", "code", "web"}}, (
            "what is made of them waits for their runs"
        )
    with monkeypatch.context() as patch:
        patch.setattr("nanoset_core.stages.webdataset.recipes.VERSION", 99)
        assert built.follow() == [
            {"shuffled/shuffle_plan": {None}},
            {"shuffled/tars": {"0", "1", "2"}},
            {"shuffled/manifest": {None}},
        ]


def test_new_settings_of_the_tokens_rebuild_a_corpus_in_one_run(built):
    edit(built, "append_eod: true", "append_eod: false")
    first = built.automation()
    corpora = {"books", "code", "web"}
    assert first == {"tokenized_shards": corpora, "indexed_dataset": corpora}
    before = runs(built)
    built.carry_out()
    assert runs(built) - before == 3


def test_a_deleted_output_is_made_again_with_what_stands_on_it(built):
    folder = built.config.root_folder / "webdatasets/shuffled/current"
    sums = {path.name: path.read_bytes() for path in folder.glob("*.tar")}
    (folder / min(sums)).unlink()
    asked = built.follow()
    assert "0" in asked[0]["shuffled/tars"]
    assert {path.name: path.read_bytes() for path in folder.glob("*.tar")} == sums


def test_what_dagster_has_no_record_of_is_recorded_without_a_run(built, tmp_path):
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as other:
        platform = Platform(built.config_file, other)
        for _ in range(2):
            assert "nothing has changed" in platform.look().skip_message
        assert platform.automation() == {}
        assert other.get_materialized_partitions(dg.AssetKey(["shuffled", "tars"])) == {
            "0",
            "1",
            "2",
        }
        assert other.get_materialized_partitions(dg.AssetKey("packed_dataset")) == {"code"}


def test_nothing_is_built_on_what_a_check_found_faulty(built, spoiling):
    (built.raw / "web/new.jsonl").write_bytes(jsonl(sentences("new", 20)))
    age(built.raw / "web")
    built.look()
    (request,) = built.look().run_requests
    with spoiling():
        assert not built.run(request, raises=False).success
    assert "nothing has changed" in built.look().skip_message
    assert built.automation() == {}
    assert built.automation() == {}
    mended = built.definitions.resolve_job_def("corpus").execute_in_process(
        instance=built.instance,
        partition_key="web",
        asset_selection=[dg.AssetKey("indexed_dataset")],
        tags={"nanoset/rebuild": "true"},
    )
    assert mended.success
    assert built.automation() == DOWNSTREAM_OF_WEB[0]


def start(platform, *path, partition=None):
    """A run of one asset that has begun."""
    job = platform.definitions.resolve_implicit_global_asset_job_def()
    run = platform.instance.create_run_for_job(
        job_def=job.get_subset(asset_selection={dg.AssetKey(path)}, asset_check_selection=set()),
        tags={} if partition is None else {"dagster/partition": partition},
    )
    platform.instance.report_dagster_event(
        dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name), run.run_id
    )
    return platform.instance.get_run_by_id(run.run_id)


def test_what_is_under_way_is_waited_for(built):
    change(built, "web")
    code = start(built, "indexed_dataset", partition="code")
    books = start(built, "indexed_dataset", partition="books")
    assert built.automation() == {}
    built.instance.report_run_canceled(code)
    assert set(built.automation()) == {"pretrain/index_mappings", "pretrain/blend"}, (
        "its own corpora have come to rest"
    )
    built.instance.report_run_canceled(books)
    own = start(built, "shuffled", "shuffle_plan")
    assert "shuffled/shuffle_plan" not in built.automation()
    built.instance.report_run_canceled(own)


def succeed(platform, run):
    """Let a run end."""
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, run.job_name)
    platform.instance.report_dagster_event(event, run.run_id)


def test_what_ends_while_outputs_are_read_is_not_requested_again(built, monkeypatch):
    edit(built, "seed: 7", "seed: 8")
    runs_of = {
        (asset, split): start(built, "pretrain", asset, partition=split)
        for asset in ("index_mappings", "blend")
        for split in SPLITS
    }
    read_outputs = stale_sensor.load_graph_state

    def read_and_end_runs(*arguments):
        state = read_outputs(*arguments)
        for run in runs_of.values():
            succeed(built, run)
        runs_of.clear()
        return state

    monkeypatch.setattr(stale_sensor, "load_graph_state", read_and_end_runs)
    assert built.automation() == {}, "the outputs were read before these runs ended"
    assert set(built.automation()) == {"pretrain/index_mappings", "pretrain/blend"}, (
        "the next tick looks again"
    )


def test_what_begins_and_ends_while_outputs_are_read_is_not_requested_again(built, monkeypatch):
    edit(built, "seed: 5", "seed: 6")
    read_outputs = stale_sensor.load_graph_state

    def read_while_a_run_passes(*arguments):
        state = read_outputs(*arguments)
        monkeypatch.undo()
        succeed(built, start(built, "shuffled", "shuffle_plan"))
        return state

    monkeypatch.setattr(stale_sensor, "load_graph_state", read_while_a_run_passes)
    assert "shuffled/shuffle_plan" not in built.automation()


def test_a_killed_run_is_asked_for_again_but_not_for_ever(built):
    change(built, "books")
    for _ in range(failed_runs.MAX_ATTEMPTS):
        assert built.automation()["shuffled/shuffle_plan"] == {None}
        built.instance.report_run_failed(start(built, "shuffled", "shuffle_plan"), "killed")
    assert "shuffled/shuffle_plan" not in built.automation()
    change(built, "books", 31)
    assert built.automation()["shuffled/shuffle_plan"] == {None}


def test_a_killed_run_that_dagster_starts_again_is_left_to_it(built):
    change(built, "books")
    run = start(built, "shuffled", "shuffle_plan")
    built.instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    built.instance.report_run_failed(run, "killed")
    assert "shuffled/shuffle_plan" not in built.automation()


@pytest.fixture
def failing(built, monkeypatch):
    """A run of the shuffle plan has failed, for a reason that will not go away by itself."""
    change(built, "books")
    with monkeypatch.context() as patch:
        patch.setattr("nanoset_core.stages.webdataset.make.plan_shuffle", None)
        built.carry_out({"shuffled/shuffle_plan": {None}}, raises=False)
        assert "shuffled/shuffle_plan" not in built.automation()
        yield built


def test_a_failure_is_not_repeated_while_nothing_changes(failing):
    asked = failing.automation()
    assert set(asked) == {"plain/index_mappings"}, "others go on"
    failing.carry_out()
    for _ in range(3):
        assert "shuffled/shuffle_plan" not in failing.automation()


@pytest.mark.parametrize("event", ["another input", "other settings", "a restart"])
def test_after_a_failure_it_is_tried_again_when_something_has_changed(failing, event, monkeypatch):
    if event == "another input":
        change(failing, "books", 31)
    elif event == "other settings":
        edit(failing, "seed: 5", "seed: 6")
    else:
        monkeypatch.setattr(failed_runs, "PROCESS_STARTED_AT", time.time())
    assert failing.automation()["shuffled/shuffle_plan"] == {None}


def test_a_failure_of_one_partition_does_not_hold_the_others(built, monkeypatch):
    real = mapping.write_mappings

    def write(project, name, split):
        if split == "train":
            raise OSError("no space left")
        return real(project, name, split)

    change(built, "web")
    with monkeypatch.context() as patch:
        patch.setattr(mapping, "write_mappings", write)
        built.automation()
        built.carry_out(raises=False)
    asked = built.automation()
    assert asked == {"shuffled/tars": {"0", "1", "2"}}
    assert (
        Project.open(built.config_file).outputs.current("nanosets", "pretrain/valid/blend")
        is not None
    )


def test_an_output_whose_check_was_cut_off_is_verified_before_it_is_used(built):
    change(built, "web")
    job = built.definitions.resolve_job_def("corpus").get_subset(
        asset_selection={dg.AssetKey("indexed_dataset")}
    )
    run = built.instance.create_run_for_job(job_def=job, tags={"dagster/partition": "web"})
    built.instance.report_run_failed(run, "killed")
    assert built.automation() == {"indexed_dataset": {"web"}}
    built.carry_out({"indexed_dataset": {"web"}})
    assert built.automation() == DOWNSTREAM_OF_WEB[0]


def test_a_tick_says_what_has_to_wait_and_why(failing):
    failing.follow()
    tick = failing.evaluate(SENSOR)
    assert "shuffle_plan" in tick.skip_message
    assert "it is built when what it is made from changes" in tick.skip_message


def test_an_inventory_that_cannot_be_read_is_no_obstacle(built):
    (built.config.root_folder / "inventory" / "web" / "current.json").write_text("{")
    assert built.automation() == {}, (
        "what it was made of is not known until the sensor has it taken again"
    )
    built.look()
    assert list(built.asked()) == ["web"]
