"""The history: where it lies, two who make it at once, and what is said where it cannot be kept."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import sqlite3
import sys

import dagster as dg
import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from helpers.dagster_history import close_databases
from nanoset_assets.build import build
from nanoset_assets.instance import HistoryError, dagster_home, history_faults, open_instance
from nanoset_assets.names import Names
from nanoset_assets.partition_sets import register
from nanoset_core.errors import ConfigError, StorageError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config

STARTS = 3


@pytest.fixture
def config(make_project, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", "")
    return load_config(make_project())


def test_the_home_is_made_beside_the_configuration_with_our_settings(config):
    home = dagster_home(config)
    assert home == config.file.parent / ".dagster"
    settings = (home / "dagster.yaml").read_text(encoding="utf-8")
    for line in ("telemetry:\n  enabled: false", "nux:\n  enabled: false", "max_concurrent_runs"):
        assert line in settings
    (home / "dagster.yaml").write_text("# mine\n", encoding="utf-8")
    dagster_home(config)
    assert (home / "dagster.yaml").read_text(encoding="utf-8") == "# mine\n"


def test_the_home_is_where_the_settings_say_and_the_environment_comes_first(
    make_project, monkeypatch, tmp_path
):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    config = load_config(
        make_project(replacements={"root: data": f"root: data\nhistory: {tmp_path / 'local disk'}"})
    )
    assert dagster_home(config) == tmp_path / "local disk"
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "named"))
    assert dagster_home(config) == tmp_path / "named"


def test_a_history_in_a_bucket_is_refused(make_project):
    with pytest.raises(ConfigError, match="history"):
        load_config(
            make_project(replacements={"root: data": "root: data\nhistory: s3://bucket/history"})
        )


def begin(file, barrier):
    """What `nanoset build` does first."""
    config = load_config(file)
    barrier.wait()
    with open_instance(config) as instance:
        register(instance, Names(), ["books", "code", "web"], config)
        instance.get_runs()


def test_several_who_begin_at_once_make_one_history(make_project, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", "")
    fork = multiprocessing.get_context("fork")
    for start in range(STARTS):
        file = make_project(f"project-{start}")
        barrier = fork.Barrier(3)
        processes = [fork.Process(target=begin, args=(file, barrier)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0]
        with dg.DagsterInstance.from_config(str(file.parent / ".dagster")) as instance:
            assert sorted(instance.get_dynamic_partitions(Names().corpora_name)) == [
                "books",
                "code",
                "web",
            ]


def test_corpora_that_another_build_registers_at_that_moment_are_no_error(config, monkeypatch):
    with dg.DagsterInstance.ephemeral() as instance:
        add, failures = (
            instance.add_dynamic_partitions,
            [IntegrityError("insert", {}, Exception("UNIQUE"))],
        )

        def late(name, keys):
            if failures:
                raise failures.pop()
            add(name, keys)

        monkeypatch.setattr(instance, "add_dynamic_partitions", late)
        register(instance, Names(), ["web"], config)
        assert instance.get_dynamic_partitions(Names().corpora_name) == ["web"]


def test_settings_that_dagster_refuses_are_named(config):
    (dagster_home(config) / "dagster.yaml").write_text("unknown: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"dagster\.yaml: Dagster cannot use these settings"):
        open_instance(config)


def test_a_damaged_history_is_named_and_a_new_one_is_begun(config):
    open_instance(config).dispose()
    os.environ["DAGSTER_HOME"] = ""
    home = config.file.parent / ".dagster"
    close_databases()
    (home / "history" / "runs.db").write_bytes(b"no database" * 500)
    with pytest.raises(HistoryError, match="the history is damaged") as raised:
        open_instance(config)
    assert "move the folder away" in str(raised.value)
    home.rename(home.with_name("old"))
    os.environ["DAGSTER_HOME"] = ""
    open_instance(config).dispose()


def test_errors_that_are_not_the_history_s_stay_as_they_are(tmp_path):
    for error in (StorageError("other"), ValueError("other"), OSError(5, "other")):
        with pytest.raises(type(error)) as raised, history_faults(tmp_path):
            raise error
        assert raised.value is error


def test_a_history_that_takes_no_more_ends_the_build(config, monkeypatch):
    with open_instance(config) as instance:

        def store(event):
            raise OperationalError(
                "insert", {}, sqlite3.OperationalError("database or disk is full")
            )

        monkeypatch.setattr(instance.event_log_storage, "store_event", store)
        with pytest.raises(HistoryError, match="the disk is full") as raised:
            build(Project.open(config.file), instance)
    assert str(config.file.parent / ".dagster") in str(raised.value)


@pytest.mark.parametrize(
    ("free", "said"), [(0, "the disk is full"), (1 << 30, "the disk takes no more, or fails")]
)
def test_a_full_disk_is_told_from_one_that_fails(tmp_path, monkeypatch, free, said):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1 << 40, 1 << 39, free)
    )
    with pytest.raises(HistoryError, match=said), history_faults(tmp_path):
        raise OperationalError("insert", {}, sqlite3.OperationalError("disk I/O error"))


def begin_with(limit, file):
    """In a process of its own, since a limit cannot be lifted; → its exit code."""

    def run():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            open_instance(load_config(file))
        except HistoryError as error:
            sys.exit(7 if "the disk takes no more" in str(error) else str(error))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    return process.exitcode


def test_a_history_that_may_not_grow_is_a_sentence_and_goes_on_later(config):
    for pages in (5, 10, 20):
        assert begin_with(pages << 12, config.file) == 7
    open_instance(config).dispose()
