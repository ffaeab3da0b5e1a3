"""The sensor over raw text registers corpora, and builds each one after a change of its files.

It evaluates real folders. It builds a corpus when two evaluations in a row ("looks") find the same
files, all of them older than `settle_seconds`; and it never requests the same build twice.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from helpers.inspecting import current_output, inventory_of, verify_output
from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets.assets.overview import OVERVIEW
from nanoset_assets.automation import failed_runs
from nanoset_assets.automation import raw_text_sensor as sensors
from nanoset_assets.definitions import build_definitions
from nanoset_core import load_config
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.project.project import Project

FIRST_FILE = "web/part-0/web-0.jsonl"
SECOND_CORPUS = "corpora: {web_ids: {folder: web, text_key: id}}\n"
"""Settings that make another corpus of the same folder."""
N_DOCUMENTS = 240
"""Documents of the corpus `web`."""


@pytest.fixture
def platform(make_project, instance) -> Platform:
    """A project of which nothing is built yet, with raw text that was written an hour ago."""
    platform = Platform(make_project(), instance)
    age(platform.raw)
    return platform


@pytest.fixture
def built(built_platform) -> Platform:
    """A project whose corpora are all registered and built."""
    assert "nothing has changed" in built_platform.look().skip_message
    return built_platform


def write_text(
    platform: Platform,
    corpus: str,
    *,
    name: str = "new",
    n_documents: int = 20,
    seconds: float = 3600.0,
) -> None:
    """Add a file to a corpus, and let all files of the corpus look as if they were old.

    Args:
        platform: The project.
        corpus: The corpus, whose folder may be missing.
        name: Name of the file, and start of the ids of its documents.
        n_documents: How many documents it has.
        seconds: How long ago the files seem to have been written.
    """
    folder = platform.raw / corpus
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_bytes(jsonl(sentences(name, n_documents)))
    age(folder, seconds)


def n_documents_of(platform: Platform, corpus: str = "web") -> int:
    """Return how many documents were tokenized of a corpus."""
    manifest = current_output(Project.open(platform.config_file), f"tokenized/{corpus}")
    count: int = manifest.facts["documents"]
    return count


def request_of(platform: Platform, corpus: str) -> dg.RunRequest:
    """Evaluate the sensor, and return its request of a run of a corpus."""
    requests = platform.look().run_requests
    return next(request for request in requests if request.partition_key == corpus)


def start_run(platform: Platform, request: dg.RunRequest, **tags: str) -> dg.DagsterRun:
    """Return a run of a corpus that has started and not ended."""
    return platform.instance.create_run_for_job(
        job_def=platform.definitions.resolve_job_def("corpus"),
        tags={**request.tags, **tags},
        status=dg.DagsterRunStatus.STARTED,
    )


# New projects


def test_corpora_are_registered_by_the_first_look_and_built_by_the_second(platform):
    first_look = platform.look()
    assert platform.corpora == {"books", "code", "web"}
    assert not first_look.run_requests
    assert "3 corpora, 6 files" in first_look.skip_message
    assert "waiting until nothing writes to books, code, web" in first_look.skip_message

    assert platform.tick() == ["books", "code", "web"]

    last_look = platform.look()
    expected = f"3 corpora, 6 files in {platform.raw}: nothing has changed"
    assert last_look.skip_message == expected


def test_the_name_of_a_foreign_file_cannot_steer_the_terminal_or_reverse_the_message(platform):
    (platform.raw / "bad\x1b[31m\u202ename.txt").touch()

    message = platform.look().skip_message

    assert r"bad\x1b[31m\u202ename.txt: a file in no corpus" in message


def test_a_folder_in_which_nothing_is_read_is_reported(platform):
    (platform.raw / "c4").mkdir()
    (platform.raw / "c4/a.json.xz").touch()

    message = platform.look().skip_message

    expected = "c4: a folder in which nothing is read: 1 file is not read: 1 .json.xz"
    assert expected in message


def test_a_repeated_tick_requests_the_same_run_keys(platform):
    platform.look()
    cursor = platform.cursor
    run_keys = platform.requested_run_keys()

    platform.cursor = cursor

    assert platform.requested_run_keys() == run_keys


def test_a_tick_requests_a_limited_number_of_runs(platform, monkeypatch):
    monkeypatch.setattr(sensors, "MAX_REQUESTS", 1)
    shutil.rmtree(platform.raw / "web")
    platform.look()

    assert platform.tick() == ["books"]
    assert platform.tick() == ["code"]


@pytest.mark.parametrize(
    ("enabled", "status"), [("true", "RUNNING"), ("false", "STOPPED")], ids=["on", "off"]
)
def test_sensors_and_schedules_are_switched_on_by_the_settings(make_project, enabled, status):
    settings = f"automation: {{enabled: {enabled}, sensor_seconds: 7}}\n"
    config = load_config(make_project(replacements={"raw: raw": f"{settings}raw: raw"}))

    repository = build_definitions(config).get_repository_def()

    for sensor in repository.sensor_defs:
        if sensor.name == OVERVIEW:
            # It builds nothing, and reminds the user of what has to be built.
            assert sensor.default_status.value == "RUNNING"
        else:
            assert sensor.default_status.value == status
    for schedule in repository.schedule_defs:
        assert schedule.default_status.value == status
    assert len(repository.schedule_defs) == 1


def test_the_settings_give_the_seconds_between_two_ticks_except_of_the_overview(make_project):
    settings = "automation: {sensor_seconds: 7}\n"
    config = load_config(make_project(replacements={"raw: raw": f"{settings}raw: raw"}))

    sensor_defs = build_definitions(config).get_repository_def().sensor_defs

    seconds_by_sensor = {sensor.name: sensor.minimum_interval_seconds for sensor in sensor_defs}
    assert seconds_by_sensor.pop(OVERVIEW) == 60
    assert set(seconds_by_sensor.values()) == {7}


# Changes of a corpus


def change_file(platform: Platform) -> None:
    """Write other documents into a file."""
    (platform.raw / FIRST_FILE).write_bytes(jsonl(sentences("other", 50)))


def add_file(platform: Platform) -> None:
    """Write documents into a new file."""
    write_text(platform, "web")


def remove_file(platform: Platform) -> None:
    """Delete a file."""
    (platform.raw / FIRST_FILE).unlink()


def rename_file(platform: Platform) -> None:
    """Give a file another name."""
    (platform.raw / FIRST_FILE).rename(platform.raw / "web/part-0/first.jsonl")


def add_corpus(platform: Platform) -> None:
    """Write documents into a new folder."""
    write_text(platform, "extra", n_documents=10)


@pytest.mark.parametrize(
    ("change", "corpus"),
    [
        pytest.param(change_file, "web", id="a changed file"),
        pytest.param(add_file, "web", id="a new file"),
        pytest.param(remove_file, "web", id="a deleted file"),
        pytest.param(rename_file, "web", id="a renamed file"),
        pytest.param(add_corpus, "extra", id="a new corpus"),
    ],
)
def test_a_changed_corpus_is_requested_when_two_looks_agree(built, change, corpus):
    change(built)
    age(built.raw / corpus, 500)

    assert built.requested_run_keys() == {}
    assert list(built.requested_run_keys()) == [corpus]


def test_a_changed_corpus_is_built_once_even_if_the_cursor_is_lost(built):
    change_file(built)
    age(built.raw / "web", 500)
    built.look()
    assert list(built.requested_run_keys()) == ["web"]

    built.cursor = None
    built.look()

    assert built.tick() == ["web"]
    assert built.tick() == []


def test_several_changes_of_two_corpora_are_one_request_for_each(built):
    for corpus in ("web", "code"):
        for name in ("a", "b"):
            write_text(built, corpus, name=name, n_documents=10)
        age(built.raw / corpus, 500)

    assert built.requested_run_keys() == {}
    assert sorted(built.requested_run_keys()) == ["code", "web"]


def test_a_thousand_new_files_are_one_request(built):
    folder = built.raw / "web/many"
    folder.mkdir()
    for number in range(1_000):
        (folder / f"{number}.jsonl").write_bytes(b"{}\n")
    age(built.raw / "web", 500)

    assert built.requested_run_keys() == {}
    assert list(built.requested_run_keys()) == ["web"]


def test_unfinished_uploads_are_not_requested(built):
    for name in (
        "a.jsonl.tmp",
        "b.jsonl.part",
        "c.jsonl.partial",
        "d.jsonl.crdownload",
        ".e.jsonl",
    ):
        (built.raw / "web" / name).write_text("{}\n")

    assert built.requested_run_keys() == {}
    assert built.requested_run_keys() == {}
    built.cursor = None
    built.look()
    assert built.tick() == []
    assert built.tick() == []


def test_a_corpus_without_inventory_is_requested_at_once(built):
    shutil.rmtree(built.config.root_folder / "inventory/web")

    assert list(built.requested_run_keys()) == ["web"]

    built.cursor = None
    built.look()
    assert built.tick() == ["web"]
    assert built.tick() == []


@pytest.mark.parametrize("cursor", [None, "", "{", "[]", '{"marks": 1}', '{"marks": {"web": "x"}}'])
def test_with_a_lost_or_damaged_cursor_nothing_is_missed_and_nothing_built_twice(built, cursor):
    built.cursor = cursor
    assert "nothing has changed" in built.look().skip_message

    write_text(built, "web")
    built.cursor = cursor
    built.look()
    assert list(built.requested_run_keys()) == ["web"]


def test_a_run_by_hand_takes_files_that_were_written_a_moment_ago(built):
    (built.raw / "web/now.jsonl").write_bytes(jsonl(sentences("now", 5)))

    result = built.definitions.resolve_job_def("corpus").execute_in_process(
        instance=built.instance, partition_key="web"
    )

    assert result.success
    assert "now.jsonl" in inventory_of(Project.open(built.config_file), "web").files


# Corpora that are being written


def test_a_corpus_waits_so_that_an_upload_is_one_build(built):
    write_text(built, "web")
    folder = built.raw / "web/later"
    folder.mkdir()
    (folder / "coming.jsonl").write_bytes(b"{}\n")

    # A file was written a moment ago.
    for _ in range(3):
        assert "waiting until nothing writes to web" in built.look().skip_message

    # Two looks agree, but the file is still younger than `settle_seconds`.
    age(folder, 20)
    assert built.requested_run_keys() == {}
    assert built.requested_run_keys() == {}

    # After a long wait the corpus is built nevertheless, without the youngest file.
    cursor = json.loads(built.cursor)
    cursor["written"]["web"] -= sensors.PATIENCE * 30 + 1
    built.cursor = json.dumps(cursor)
    assert list(built.requested_run_keys()) == ["web"]


def test_a_corpus_that_is_always_written_is_built_without_what_is_being_written(built, monkeypatch):
    # One file is complete, one grows, and one is new.
    folder = built.raw / "web"
    new_lines = jsonl(sentences("more", 5))
    write_text(built, "web")
    growing_file = built.raw / FIRST_FILE
    with growing_file.open("ab") as file:
        file.write(new_lines)
    (folder / "trickle.jsonl").write_bytes(new_lines)

    # It waits at first.
    assert not built.look().run_requests
    assert "waiting until nothing writes to web" in built.look().skip_message

    # After a long wait, the complete file is built, and of the growing file what was built before.
    monkeypatch.setattr(sensors, "PATIENCE", 0)
    assert built.tick() == ["web"]
    project = Project.open(built.config_file)
    inventory = inventory_of(project, "web")
    sizes = [piece.size for piece in inventory.pieces if piece.path == "part-0/web-0.jsonl"]
    assert "new.jsonl" in inventory.files
    assert "trickle.jsonl" not in inventory.files
    assert sum(sizes) == growing_file.stat().st_size - len(new_lines)
    assert n_documents_of(built) == N_DOCUMENTS + 20
    assert verify_output(project, "web").passed

    # Nothing else is complete.
    assert not built.look().run_requests

    # Once nothing is written any more, the rest is built.
    monkeypatch.undo()
    age(folder)
    assert not built.look().run_requests
    assert built.tick() == ["web"]
    assert n_documents_of(built) == N_DOCUMENTS + 20 + 10
    assert "nothing has changed" in built.look().skip_message


def test_a_corpus_waits_as_long_as_a_file_of_its_last_build_is_overwritten(built, monkeypatch):
    write_text(built, "web")
    (built.raw / FIRST_FILE).write_bytes(jsonl(sentences("rotated", 90)))
    built.look()

    # Even after a long wait there is nothing to take in place of the overwritten file.
    monkeypatch.setattr(sensors, "PATIENCE", 0)
    look = built.look()
    assert not look.run_requests
    assert "part-0/web-0.jsonl of the last build was overwritten" in look.skip_message

    age(built.raw / "web")
    built.look()
    assert list(built.requested_run_keys()) == ["web"]


# Corpora that disappear


def test_a_missing_corpus_is_retired_by_the_second_look_and_may_come_back(built):
    write_text(built, "extra", n_documents=10)
    built.look()
    assert built.tick() == ["extra"]

    # The first look keeps it, because a mount may be missing for a moment.
    (built.raw / "extra").rename(built.raw.parent / "away")
    built.look()
    assert "extra" in built.corpora
    built.look()
    assert "extra" not in built.corpora

    # When it comes back, its outputs still exist.
    (built.raw.parent / "away").rename(built.raw / "extra")
    built.look()
    assert "extra" in built.corpora
    assert built.tick() == []


def test_partitions_that_the_sensor_has_not_registered_are_not_retired(built):
    write_text(built, "extra", n_documents=10)
    built.look()
    shutil.rmtree(built.raw / "extra")
    foreign_partitions = ["../x", "a/b", "somebody_elses"]
    built.instance.add_dynamic_partitions(built.names.corpora_name, foreign_partitions)

    built.look()
    assert built.corpora == {"books", "code", "web", "extra", *foreign_partitions}
    built.look()
    assert built.corpora == {"books", "code", "web", *foreign_partitions}


# Faults


def remove_needed_corpus(platform: Platform) -> None:
    """Delete a corpus that a nanoset reads."""
    shutil.rmtree(platform.raw / "code")


def name_missing_folder(platform: Platform) -> None:
    """Define a corpus of a folder that is missing."""
    settings = SECOND_CORPUS.replace("folder: web", "folder: wbe")
    platform.config_file.write_text(platform.config_file.read_text() + settings)


def make_unreadable(platform: Platform) -> None:
    """Make a link that leads back to its folder, and a folder whose name is not allowed."""
    (platform.raw / "web/loop").symlink_to(platform.raw / "web")
    (platform.raw / "bad name").mkdir()
    (platform.raw / "bad name/a.jsonl").write_text("{}\n")


def remove_raw_folder(platform: Platform) -> None:
    """Move the folder of raw text away."""
    platform.raw.rename(platform.raw.parent / "away")


def remove_all_corpora(platform: Platform) -> None:
    """Delete everything in the folder of raw text."""
    for folder in platform.raw.iterdir():
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("cause", "error", "message"),
    [
        pytest.param(
            remove_needed_corpus,
            ConfigError,
            "this corpus is not in the raw folder",
            id="a missing corpus that a nanoset reads",
        ),
        pytest.param(
            name_missing_folder,
            ConfigError,
            r"corpora\.web_ids: this corpus is not in the raw folder",
            id="a corpus of a missing folder",
        ),
        pytest.param(
            make_unreadable,
            ConfigError,
            "(?s)2 mistakes.*rename the folder.*a link leads back",
            id="unreadable folders",
        ),
    ],
)
def test_a_fault_fails_the_tick_and_does_not_stop_other_corpora(
    built, cause: Callable[[Platform], None], error: type[Exception], message: str
):
    cause(built)

    # A tick fails; it may be the third, since a folder may be missing for a moment.
    with pytest.raises(error, match=message):
        for _ in range(3):
            built.look()
    assert built.corpora == {"books", "code", "web"}

    # Others are built.
    write_text(built, "books")
    built.look()
    assert list(built.requested_run_keys()) == ["books"]


@pytest.mark.parametrize(
    ("cause", "error", "message"),
    [
        pytest.param(
            remove_raw_folder, MissingError, "raw text does not exist", id="no raw folder"
        ),
        pytest.param(
            remove_all_corpora,
            ConfigError,
            "this corpus is not in the raw folder",
            id="an empty raw folder",
        ),
    ],
)
def test_the_loss_of_all_raw_text_fails_the_tick_and_retires_no_corpus(
    built, cause: Callable[[Platform], None], error: type[Exception], message: str
):
    cause(built)

    with pytest.raises(error, match=message):
        for _ in range(3):
            built.look()
    assert built.corpora == {"books", "code", "web"}


# Runs that have not ended, or that failed


def test_a_corpus_whose_run_has_not_ended_is_not_requested(platform):
    platform.look()
    run = start_run(platform, request_of(platform, "web"))

    # Not even if its files change in the meantime.
    assert sorted(platform.requested_run_keys()) == ["books", "code"]
    write_text(platform, "web")
    platform.look()
    assert sorted(platform.requested_run_keys()) == ["books", "code"]

    platform.instance.report_run_canceled(run)
    assert sorted(platform.requested_run_keys()) == ["books", "code", "web"]


def test_a_corpus_whose_run_ends_during_a_tick_is_not_requested(platform, monkeypatch):
    platform.look()
    run = start_run(platform, request_of(platform, "web"))
    read_inventories = sensors.current_inventory_recipes

    def read_inventories_and_end_run(*arguments: Any) -> Any:
        inventories = read_inventories(*arguments)
        event = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, run.job_name)
        platform.instance.report_dagster_event(event, run.run_id)
        return inventories

    monkeypatch.setattr(sensors, "current_inventory_recipes", read_inventories_and_end_run)

    assert sorted(platform.requested_run_keys()) == ["books", "code"]


def test_a_killed_run_is_requested_again_under_other_keys_a_few_times(platform):
    platform.look()
    run_keys = set()
    for _ in range(failed_runs.MAX_ATTEMPTS):
        request = request_of(platform, "web")
        run_keys.add(request.run_key)
        platform.instance.report_run_failed(start_run(platform, request), "killed")

    assert len(run_keys) == failed_runs.MAX_ATTEMPTS
    assert "web" not in platform.requested_run_keys()


def test_a_killed_run_that_dagster_will_retry_is_not_requested_again(platform):
    platform.look()
    request = request_of(platform, "code")
    run = start_run(platform, request, **{"dagster/will_retry": "true"})
    platform.instance.report_run_failed(run, "killed")

    assert "code" not in platform.requested_run_keys()


def test_a_failed_run_is_requested_again_after_a_change_or_a_restart(built, monkeypatch):
    # A file has no valid line, and the folder of inventories cannot be written: the run fails
    # before it has an inventory.
    broken_file = built.raw / "web/broken.jsonl"
    broken_file.write_text("this is no JSON\n" * 1000)
    age(built.raw / "web")
    built.look()
    request = request_of(built, "web")
    inventory_folder = built.config.root_folder / "inventory/web"
    shutil.rmtree(inventory_folder)
    inventory_folder.write_text("in the way")
    assert not built.run(request, raises=False).success
    inventory_folder.unlink()

    # The next tick does not request it again.
    message = built.look().skip_message
    assert "web: its run" in message
    assert "failed; it is built when what it is made from changes" in message

    # A restart of the process, and a change of the files, do.
    with monkeypatch.context() as patch:
        patch.setattr(failed_runs, "PROCESS_STARTED_AT", time.time())
        assert "web" in built.requested_run_keys()
    broken_file.unlink()
    age(built.raw / "web", 500)
    built.look()
    assert "web" in built.tick()


# Settings that change while the definitions are loaded


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        pytest.param(
            "nanosets:",
            "nanosets:\n  late: {blend: web, sequence_length: 8}",
            "nanoset 'late'",
            id="a new nanoset",
        ),
        pytest.param(
            "  plain:", "  renamed:", "nanoset 'plain', nanoset 'renamed'", id="a renamed nanoset"
        ),
        pytest.param(
            "blend: books",
            "blend: {books: 1, web: 2}",
            "nanoset 'plain' than",
            id="another corpus of a nanoset",
        ),
        pytest.param("groups: 3", "groups: 4", "webdataset 'shuffled'", id="more groups of tars"),
        pytest.param(
            "webdatasets:",
            "pbin: [web]\nwebdatasets:",
            "asset packed_dataset",
            id="an asset that corpora lacked",
        ),
        pytest.param(
            "raw: raw",
            "raw: raw\nautomation: {sensor_seconds: 9}",
            "automation",
            id="settings of the sensors",
        ),
    ],
)
def test_settings_that_need_a_reload_are_reported_until_then(platform, old, new, name):
    platform.look()
    platform.edit_settings(old, new)

    for _ in range(2):
        platform.cursor = None
        message = platform.look().skip_message
        assert name in message
        assert "choose Reload" in message

    platform.load()
    platform.cursor = None
    assert "Reload" not in platform.look().skip_message


def test_other_inputs_are_reported_as_old_arrows_and_not_as_missing_assets(platform):
    platform.look()
    platform.edit_settings("{web: 0.7, code: 0.3}", "{web: 0.7, books: 0.3}")

    platform.cursor = None
    message = platform.look().skip_message

    assert "builds use the new inputs of nanoset 'pretrain'" in message
    assert "only the arrows of the asset graph are old: choose Reload" in message
    assert "than is loaded" not in message


def test_settings_that_are_only_values_need_no_reload(platform):
    platform.edit_settings("seed: 7", "seed: 8")
    platform.edit_settings("raw: raw", "raw: raw\nautomation: {settle_seconds: 5}")
    platform.edit_settings("web: 0.7", "web: 0.6")

    assert "Reload" not in platform.look().skip_message


def test_two_corpora_of_one_folder_are_registered_built_and_retired(built):
    # A second corpus of the folder is added to the settings.
    text = built.config_file.read_text()
    built.config_file.write_text(text + SECOND_CORPUS)
    built.look()
    assert built.corpora == {"books", "code", "web", "web_ids"}
    assert built.tick() == ["web_ids"]
    assert "nothing has changed" in built.look().skip_message

    # A new file is built in both.
    write_text(built, "web")
    built.look()
    assert built.tick() == ["web", "web_ids"]
    project = Project.open(built.config_file)
    for corpus in ("web", "web_ids"):
        assert n_documents_of(built, corpus) == N_DOCUMENTS + 20
        assert verify_output(project, corpus).passed

    # A corpus that is removed from the settings is retired like a folder that was deleted.
    built.config_file.write_text(text)
    built.look()
    built.look()
    assert built.corpora == {"books", "code", "web"}
