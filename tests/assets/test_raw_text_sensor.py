"""The sensor over raw text, with real folders: every event, and that no tick asks for anything
twice.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time

import dagster as dg
import pytest

from helpers.inspecting import current_output, inventory_of
from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets import failed_runs
from nanoset_assets import raw_text_sensor as sensors
from nanoset_assets.build import USER_TAG
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_assets.overview import OVERVIEW
from nanoset_assets.run_owner import close_abandoned_runs, is_run_process, owner_tag
from nanoset_assets.tags import OWNER_TAG
from nanoset_core import load_config
from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_output


@pytest.fixture
def platform(make_project, tmp_path):
    """Nothing is built yet."""
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        found = Platform(make_project(), instance)
        age(found.raw)
        yield found


@pytest.fixture
def built(built_platform):
    """Everything is registered and built."""
    assert "nothing has changed" in built_platform.look().skip_message
    return built_platform


def write(platform, corpus, *, name="new", count=20, seconds=3600.0):
    """Add a file of text to a corpus, which was written so long ago."""
    (platform.raw / corpus).mkdir(exist_ok=True)
    (platform.raw / corpus / f"{name}.jsonl").write_bytes(jsonl(sentences(name, count)))
    age(platform.raw / corpus, seconds)


def documents(project, corpus="web"):
    return current_output(project, f"tokenized/{corpus}").facts["documents"]


def test_new_corpora_are_registered_at_once_and_built_when_two_looks_agree(platform):
    (platform.raw / "c4").mkdir()
    (platform.raw / "c4/a.json.bz2").touch()
    first = platform.look()
    assert (
        "c4: a folder in which nothing is read: 1 file is not read: 1 .json.bz2"
        in first.skip_message
    )
    shutil.rmtree(platform.raw / "c4")
    assert platform.corpora == {"books", "code", "web"}
    assert not first.run_requests
    assert "3 corpora, 6 files" in first.skip_message
    assert "waiting until nothing writes to books, code, web" in first.skip_message
    assert platform.tick() == ["books", "code", "web"]
    done = platform.look()
    assert f"3 corpora, 6 files in {platform.raw}: nothing has changed" == done.skip_message


def test_a_corpus_into_which_something_always_writes_is_built_without_what_is_written(
    built, monkeypatch
):
    web = built.raw / "web"
    grown, lines = web / "part-0/web-0.jsonl", jsonl(sentences("more", 5))
    write(built, "web")
    with grown.open("ab") as file:
        file.write(lines)
    (web / "trickle.jsonl").write_bytes(lines)
    assert not built.look().run_requests
    assert "waiting until nothing writes to web" in built.look().skip_message
    monkeypatch.setattr(sensors, "PATIENCE", 0)
    assert built.tick() == ["web"]
    project = Project.open(built.config_file)
    inventory = inventory_of(project, "web")
    assert "new.jsonl" in inventory.files
    assert "trickle.jsonl" not in inventory.files
    assert sum(piece.size for piece in inventory.pieces if piece.path == "part-0/web-0.jsonl") == (
        grown.stat().st_size - len(lines)
    )
    assert documents(project) == 240 + 20, "none is dropped, and none is half taken"
    assert verify_output(project, "web").passed
    assert not built.look().run_requests, "nothing new has been left alone"
    monkeypatch.undo()
    age(web)
    assert not built.look().run_requests
    assert built.tick() == ["web"]
    assert documents(project) == 240 + 20 + 10
    assert "nothing has changed" in built.look().skip_message


def test_a_corpus_of_which_a_file_is_written_anew_again_and_again_is_waited_for(built, monkeypatch):
    web = built.raw / "web"
    write(built, "web")
    (web / "part-0/web-0.jsonl").write_bytes(jsonl(sentences("rotated", 90)))
    built.look()
    monkeypatch.setattr(sensors, "PATIENCE", 0)
    look = built.look()
    assert not look.run_requests
    assert "part-0/web-0.jsonl of the last build was overwritten" in look.skip_message
    age(web)
    built.look()
    assert list(built.asked()) == ["web"]


def test_a_corpus_is_waited_for_so_that_an_upload_is_one_build(built):
    write(built, "web")
    (built.raw / "web/later").mkdir()
    (built.raw / "web/later/coming.jsonl").write_bytes(b"{}\n")
    for _ in range(3):
        assert "waiting until nothing writes to web" in built.look().skip_message
    age(built.raw / "web/later", 20)
    assert [built.asked(), built.asked()] == [{}, {}], (
        "two looks agree, but it is younger than settle_seconds"
    )
    cursor = json.loads(built.cursor)
    cursor["written"]["web"] -= sensors.PATIENCE * 30 + 1
    built.cursor = json.dumps(cursor)
    assert list(built.asked()) == ["web"]


def test_a_run_by_hand_takes_files_as_they_are(built):
    (built.raw / "web/now.jsonl").write_bytes(jsonl(sentences("now", 5)))
    assert built.definitions.resolve_job_def("corpus").execute_in_process(
        instance=built.instance, partition_key="web"
    )
    assert "now.jsonl" in inventory_of(Project.open(built.config_file), "web").files


def test_a_repeated_tick_gives_the_same_run_keys(platform):
    platform.look()
    cursor = platform.cursor
    first = platform.asked()
    platform.cursor = cursor
    assert platform.asked() == first


def both(platform):
    for corpus in ("web", "code"):
        for name in "ab":
            write(platform, corpus, name=name, count=10)


def many(platform):
    (platform.raw / "web/many").mkdir()
    for number in range(1_000):
        (platform.raw / f"web/many/{number}.jsonl").write_bytes(b"{}\n")


def unfinished(platform):
    for name in (
        "a.jsonl.tmp",
        "b.jsonl.part",
        "c.jsonl.partial",
        "d.jsonl.crdownload",
        ".e.jsonl",
    ):
        (platform.raw / "web" / name).write_text("{}\n")


FIRST = "web/part-0/web-0.jsonl"
EVENTS = {
    "changed": (lambda at: (at.raw / FIRST).write_bytes(jsonl(sentences("other", 50))), ["web"]),
    "added": (lambda at: write(at, "web"), ["web"]),
    "removed": (lambda at: (at.raw / FIRST).unlink(), ["web"]),
    "renamed": (lambda at: (at.raw / FIRST).rename(at.raw / "web/part-0/first.jsonl"), ["web"]),
    "a new corpus": (lambda at: write(at, "extra", count=10), ["extra"]),
    "two changes of two corpora": (both, ["code", "web"]),
    "a thousand files": (many, ["web"]),
    "unfinished uploads": (unfinished, []),
    "a deleted inventory": (
        lambda at: shutil.rmtree(at.config.root_folder / "inventory/web"),
        ["web"],
    ),
}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_asks_for_its_corpora_once_when_two_looks_agree(built, event):
    change, asked = EVENTS[event]
    change(built)
    if event != "a deleted inventory":
        for corpus in asked:
            age(built.raw / corpus, 500)
        assert built.asked() == {}, "not settled yet"
    assert sorted(built.asked()) == asked
    if event not in ("a thousand files", "two changes of two corpora"):
        built.cursor = None
        built.look()
        assert built.tick() == asked
        assert built.tick() == []


@pytest.mark.parametrize("cursor", [None, "", "{", "[]", '{"marks": 1}', '{"marks": {"web": "x"}}'])
def test_without_its_cursor_nothing_is_missed_and_nothing_made_twice(built, cursor):
    built.cursor = cursor
    assert "nothing has changed" in built.look().skip_message
    write(built, "web")
    built.cursor = cursor
    built.look()
    assert list(built.asked()) == ["web"]


def test_a_corpus_that_is_gone_is_retired_after_two_looks_and_may_come_back(built):
    write(built, "extra", count=10)
    built.look()
    assert built.tick() == ["extra"]
    (built.raw / "extra").rename(built.raw.parent / "away")
    built.look()
    assert "extra" in built.corpora, "a mount may be gone for a moment"
    built.look()
    assert "extra" not in built.corpora
    (built.raw.parent / "away").rename(built.raw / "extra")
    built.look()
    assert "extra" in built.corpora
    assert built.tick() == [], "its outputs are still there"
    shutil.rmtree(built.raw / "extra")
    built.instance.add_dynamic_partitions(
        built.names.corpora_name, ["../x", "a/b", "somebody_elses"]
    )
    before = built.corpora
    built.look()
    assert built.corpora == before
    built.look()
    assert built.corpora == before - {"extra"}, "others were not seen here"


def unreadable(platform):
    (platform.raw / "web/loop").symlink_to(platform.raw / "web")
    (platform.raw / "bad name").mkdir()
    (platform.raw / "bad name/a.jsonl").write_text("{}\n")


def of_another_folder(platform):
    text = platform.config_file.read_text()
    platform.config_file.write_text(text + SECOND.replace("folder: web", "folder: wbe"))


GONE = "this corpus is not in the raw folder"
FAULTS = {
    "a corpus that something needs": (lambda at: shutil.rmtree(at.raw / "code"), ConfigError, GONE),
    "a corpus of a folder that is not there": (
        of_another_folder,
        ConfigError,
        rf"corpora\.web_ids: {GONE}",
    ),
    "what cannot be read": (
        unreadable,
        InputError,
        "(?s)2 things are wrong.*rename the folder.*a link leads back",
    ),
    "all of it": (
        lambda at: at.raw.rename(at.raw.parent / "away"),
        MissingError,
        "raw text does not exist",
    ),
    "all corpora": (
        lambda at: [shutil.rmtree(path) for path in at.raw.iterdir()],
        ConfigError,
        GONE,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_tick_retires_nothing_and_the_others_go_on(built, fault):
    happen, error, words = FAULTS[fault]
    happen(built)
    with pytest.raises(error, match=words):
        for _ in range(3):
            built.look()
    assert built.corpora == {"books", "code", "web"}
    if not fault.startswith("all"):
        write(built, "books")
        built.look()
        assert list(built.asked()) == ["books"]


def test_a_corpus_whose_run_has_not_ended_is_not_asked_for(platform):
    platform.look()
    run = start(platform, only(platform, "web"))
    assert sorted(platform.asked()) == ["books", "code"]
    write(platform, "web")
    platform.look()
    assert sorted(platform.asked()) == ["books", "code"], (
        "not even when its files have changed meanwhile"
    )
    platform.instance.report_run_canceled(run)
    assert sorted(platform.asked()) == ["books", "code", "web"]


def test_a_corpus_whose_run_ends_while_outputs_are_read_is_not_asked_for(platform, monkeypatch):
    platform.look()
    run = start(platform, only(platform, "web"))
    read_outputs = sensors.current_inventories

    def read_and_end_the_run(*arguments):
        recipes = read_outputs(*arguments)
        event = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, run.job_name)
        platform.instance.report_dagster_event(event, run.run_id)
        return recipes

    monkeypatch.setattr(sensors, "current_inventories", read_and_end_the_run)
    assert sorted(platform.asked()) == ["books", "code"]


def start(platform, request, **tags):
    """A run that has begun."""
    job = platform.definitions.resolve_job_def("corpus")
    return platform.instance.create_run_for_job(
        job_def=job, tags={**request.tags, **tags}, status=dg.DagsterRunStatus.STARTED
    )


def only(platform, corpus):
    return next(r for r in platform.look().run_requests if r.partition_key == corpus)


def test_a_killed_run_is_asked_for_again_under_another_key(platform):
    platform.look()
    keys = []
    for _ in range(failed_runs.MAX_ATTEMPTS):
        request = only(platform, "web")
        keys.append(request.run_key)
        platform.instance.report_run_failed(start(platform, request), "killed")
    assert len(set(keys)) == failed_runs.MAX_ATTEMPTS
    assert "web" not in platform.asked(), "but not for ever"
    request = only(platform, "code")
    platform.instance.report_run_failed(
        start(platform, request, **{"dagster/will_retry": "true"}), "killed"
    )
    assert "code" not in platform.asked(), "Dagster will start it again"


def test_a_run_that_failed_is_not_asked_for_until_its_files_change_or_the_process_restarts(
    built, monkeypatch
):
    (built.raw / "web/broken.jsonl").write_text("this is no JSON\n" * 1000)
    age(built.raw / "web")
    built.look()
    request = only(built, "web")
    inventory = built.config.root_folder / "inventory/web"
    shutil.rmtree(inventory)
    inventory.write_text("in the way")
    assert not built.run(request, raises=False).success
    inventory.unlink()
    said = built.look().skip_message
    assert "web: its run" in said
    assert "failed; it is built when what it is made from changes" in said
    with monkeypatch.context() as patch:
        patch.setattr(failed_runs, "PROCESS_STARTED_AT", time.time())
        assert "web" in built.asked()
    (built.raw / "web/broken.jsonl").unlink()
    age(built.raw / "web", 500)
    built.look()
    assert "web" in built.tick()


def test_a_tick_asks_for_a_bounded_number_of_runs(platform, monkeypatch):
    monkeypatch.setattr(sensors, "MAX_REQUESTS", 2)
    platform.look()
    assert platform.tick() == ["books", "code"]
    assert platform.tick() == ["web"]


def test_it_is_off_and_on_from_the_configuration(make_project):
    for text, status in (("true", "RUNNING"), ("false", "STOPPED")):
        config = make_project(
            text, {"raw: raw": f"automation: {{enabled: {text}, sensor_seconds: 7}}\nraw: raw"}
        )
        repository = build_definitions(load_config(config)).get_repository_def()
        for sensor in repository.sensor_defs:
            assert sensor.default_status.value == status
            assert sensor.minimum_interval_seconds == (60 if sensor.name == OVERVIEW else 7)
        assert [schedule.default_status.value for schedule in repository.schedule_defs] == [status]


def test_the_run_of_a_process_that_is_gone_is_closed(platform):
    job = platform.definitions.resolve_job_def("corpus")

    def run(tags, **more):
        return platform.instance.create_run_for_job(
            job_def=job, status=dg.DagsterRunStatus.STARTED, tags=tags, **more
        ).run_id

    host, pid, began, _ = owner_tag(Names())[OWNER_TAG].split(":")
    alive = run(owner_tag(Names()))
    reused = run({OWNER_TAG: f"{host}:{pid}:{int(began) + 1}:"})
    dead = run({OWNER_TAG: f"{host}:{2**22 - 7}:1:"})
    elsewhere = run({OWNER_TAG: f"other-{host}:{2**22 - 7}:1:"})
    retried = run({OWNER_TAG: f"{host}:{2**22 - 7}:1:{dead}"}, parent_run_id=dead, root_run_id=dead)
    untagged = run({})
    assert set(close_abandoned_runs(platform.instance, Names())) == {dead, reused}
    under_way = {
        r.run_id
        for r in platform.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    }
    assert under_way == {alive, elsewhere, retried, untagged}


def test_only_the_process_of_a_run_is_its_owner_and_not_that_of_a_step():
    assert is_run_process()
    # No pool: it ends its workers by SIGTERM, which Dagster may have let this process ignore.
    child = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(int(is_run_process()))
    )
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_run_bears_the_name_of_its_process_where_nobody_has_to_read_it(built):
    for run in built.instance.get_runs():
        assert run.tags[OWNER_TAG] == owner_tag(Names(), run.run_id)[OWNER_TAG]
        assert all(tag.startswith((".dagster/", "dagster/")) or tag == USER_TAG for tag in run.tags)


EDITS = {
    "nanoset 'late'": {"nanosets:": "nanosets:\n  late: {blend: web, sequence_length: 8}"},
    "nanoset 'plain', nanoset 'renamed'": {"  plain:": "  renamed:"},
    "nanoset 'plain' than": {"blend: books": "blend: {books: 1, web: 2}"},
    "webdataset 'shuffled'": {"groups: 3": "groups: 4"},
    "asset packed_dataset": {"webdatasets:": "pbin: [web]\nwebdatasets:"},
    "automation": {"raw: raw": "raw: raw\nautomation: {sensor_seconds: 9}"},
}


@pytest.mark.parametrize("said", EDITS)
def test_what_of_an_edit_is_not_loaded_is_said_until_it_is(platform, said):
    platform.look()
    text = platform.config_file.read_text()
    ((before, after),) = EDITS[said].items()
    assert before in text
    platform.config_file.write_text(text.replace(before, after, 1))
    for _ in range(2):
        platform.cursor = None
        message = platform.look().skip_message
        assert said in message
        assert "choose Reload" in message
    platform.load()
    platform.cursor = None
    assert "Reload" not in platform.look().skip_message


def test_edited_values_need_no_reload(platform):
    text = platform.config_file.read_text()
    edited = text.replace("seed: 7", "seed: 8").replace(
        "raw: raw", "raw: raw\nautomation: {settle_seconds: 5}"
    )
    platform.config_file.write_text(edited.replace("web: 0.7", "web: 0.6"))
    assert "Reload" not in platform.look().skip_message


SECOND = "corpora: {web_ids: {folder: web, text_key: id}}\n"


def test_a_folder_of_two_corpora_has_both_registered_and_built(built):
    text = built.config_file.read_text()
    built.config_file.write_text(text + SECOND)
    built.look()
    assert built.corpora == {"books", "code", "web", "web_ids"}
    assert built.tick() == ["web_ids"], "the other corpora are built"
    assert "nothing has changed" in built.look().skip_message
    write(built, "web")
    built.look()
    assert built.tick() == ["web", "web_ids"]
    project = Project.open(built.config_file)
    for corpus in ("web", "web_ids"):
        assert documents(project, corpus) == 240 + 20
        assert verify_output(project, corpus).passed
    built.config_file.write_text(text)
    built.look()
    built.look()
    assert built.corpora == {"books", "code", "web"}, "retired as a folder that is gone"
