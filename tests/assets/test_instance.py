"""Dagster's history: its folder, builds that create it at the same time, and errors that it causes."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from helpers.dagster_history import close_databases
from nanoset_assets.assets.partition_sets import register
from nanoset_assets.build.builder import build
from nanoset_assets.definitions import build_definitions
from nanoset_assets.history.instance import (
    HistoryError,
    dagster_home,
    history_faults,
    open_instance,
)
from nanoset_assets.history.open_history import OpenEventLog
from nanoset_assets.names import Names
from nanoset_core import ProjectConfig
from nanoset_core.errors import ConfigError, StorageError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config

N_STARTS = 3
"""How often a history is created by several processes at the same time."""
PAGE_BYTES = 4096
"""The size of a page of a SQLite database."""
EXIT_CODE_OF_FILE_LIMIT = 7


@pytest.fixture
def config(make_project, monkeypatch) -> ProjectConfig:
    """The settings of a project whose history is next to its nanoset.yaml."""
    monkeypatch.setenv("DAGSTER_HOME", "")
    return load_config(make_project())


# The folder of the history


def test_the_history_is_next_to_nanoset_yaml_by_default(config):
    assert dagster_home(config) == config.file.parent / ".dagster"


@pytest.mark.parametrize(
    "text", ["telemetry:\n  enabled: false", "nux:\n  enabled: false", "max_concurrent_runs"]
)
def test_a_new_history_has_settings_that_suit_a_project(config, text):
    settings = (dagster_home(config) / "dagster.yaml").read_text(encoding="utf-8")

    assert text in settings


def test_edited_settings_of_a_history_are_not_overwritten(config):
    settings_file = dagster_home(config) / "dagster.yaml"
    settings_file.write_text("# mine\n", encoding="utf-8")

    dagster_home(config)

    assert settings_file.read_text(encoding="utf-8") == "# mine\n"


@pytest.fixture
def config_with_history(make_project, tmp_path) -> ProjectConfig:
    """The settings of a project that name a folder for its history."""
    replacements = {"root: data": f"root: data\nhistory: {tmp_path / 'local disk'}"}
    return load_config(make_project(replacements=replacements))


def test_the_settings_may_name_the_folder(config_with_history, tmp_path, monkeypatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    assert dagster_home(config_with_history) == tmp_path / "local disk"


def test_the_environment_overrides_the_settings(config_with_history, tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "named"))

    assert dagster_home(config_with_history) == tmp_path / "named"


def test_a_history_in_a_bucket_is_refused(make_project):
    replacements = {"root: data": "root: data\nhistory: s3://bucket/history"}
    config_file = make_project(replacements=replacements)

    with pytest.raises(ConfigError, match="history"):
        load_config(config_file)


MISREAD_NAMES = ["run[1]", "a*b", "what?", "run%20a", "50%2fb"]
"""Names of folders in which Dagster would use other files than those of the folder."""


@pytest.mark.parametrize("name", MISREAD_NAMES)
def test_a_history_that_dagster_would_look_for_elsewhere_is_refused(
    config, tmp_path, monkeypatch, name
):
    home = tmp_path / name
    monkeypatch.setenv("DAGSTER_HOME", str(home))

    with pytest.raises(ConfigError, match="Dagster misreads the path") as caught:
        open_instance(config)

    assert "`history` in nanoset.yaml" in caught.value.remedy
    assert not home.exists()


@pytest.mark.parametrize("name", MISREAD_NAMES)
def test_assets_are_not_loaded_with_a_history_that_dagster_looks_for_elsewhere(
    config, tmp_path, monkeypatch, name
):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / name))

    with pytest.raises(ConfigError, match="Dagster misreads the path"):
        build_definitions(config)


def test_the_message_names_the_characters_that_are_misread(config, tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "run[1] a%20b [2]"))

    with pytest.raises(ConfigError) as caught:
        open_instance(config)

    assert caught.value.found == "`[`, `%20`"


@pytest.mark.parametrize("name", ["a b#c'd]", "100%", "5%!", "$HOME;x=1&y", "é@host:1"])
def test_a_history_may_have_any_other_path(config, tmp_path, monkeypatch, name):
    home = tmp_path / name
    monkeypatch.setenv("DAGSTER_HOME", str(home))

    with open_instance(config) as instance:
        assert not instance.telemetry_enabled

    assert (home / "history" / "runs.db").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_a_percent_sign_is_no_problem_if_the_history_is_in_another_database(
    config, tmp_path, monkeypatch
):
    home = tmp_path / "run%20a"
    home.mkdir()
    storage = f"storage: {{sqlite: {{base_dir: {tmp_path / 'elsewhere'}}}}}\n"
    (home / "dagster.yaml").write_text(storage, encoding="utf-8")
    monkeypatch.setenv("DAGSTER_HOME", str(home))

    open_instance(config).dispose()

    assert (tmp_path / "elsewhere" / "history" / "runs.db").exists()


def test_dagster_sends_no_statistics_from_a_build(config, monkeypatch):
    monkeypatch.delenv("DAGSTER_DISABLE_TELEMETRY")

    open_instance(config).dispose()

    assert os.environ["DAGSTER_DISABLE_TELEMETRY"]


# Several builds that start at the same time


def start_build(config_file: Path, barrier: Any) -> None:
    """Do what `nanoset build` does first, at the same time as other processes."""
    config = load_config(config_file)
    barrier.wait()
    with open_instance(config) as instance:
        register(instance, Names(), ["books", "code", "web"], config)
        instance.get_runs()


def test_builds_that_start_at_the_same_time_create_one_history(make_project, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", "")
    fork = multiprocessing.get_context("fork")

    for start in range(N_STARTS):
        config_file = make_project(f"project-{start}")
        barrier = fork.Barrier(3)
        processes = [
            fork.Process(target=start_build, args=(config_file, barrier)) for _ in range(3)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()

        assert [process.exitcode for process in processes] == [0, 0, 0]
        with dg.DagsterInstance.from_config(str(config_file.parent / ".dagster")) as instance:
            corpora = instance.get_dynamic_partitions(Names().corpora_name)
        assert sorted(corpora) == ["books", "code", "web"]


def test_corpora_that_another_build_registers_at_the_same_time_are_no_error(
    config, instance, monkeypatch
):
    add_partitions = instance.add_dynamic_partitions
    errors = [IntegrityError("insert", {}, Exception("UNIQUE"))]

    def fail_once(partitions_name: str, keys: list[str]) -> None:
        if errors:
            raise errors.pop()
        add_partitions(partitions_name, keys)

    monkeypatch.setattr(instance, "add_dynamic_partitions", fail_once)

    register(instance, Names(), ["web"], config)

    assert not errors
    assert instance.get_dynamic_partitions(Names().corpora_name) == ["web"]


# Errors


def test_settings_that_dagster_refuses_are_named(config):
    (dagster_home(config) / "dagster.yaml").write_text("unknown: 1\n", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"dagster\.yaml: Dagster cannot use these settings"):
        open_instance(config)


def test_a_damaged_history_is_an_error_until_it_is_moved_away(config):
    open_instance(config).dispose()
    os.environ["DAGSTER_HOME"] = ""
    home = config.file.parent / ".dagster"
    close_databases()
    (home / "history" / "runs.db").write_bytes(b"no database" * 500)

    with pytest.raises(HistoryError, match="the history is damaged") as caught:
        open_instance(config)
    assert "move the folder away" in str(caught.value)

    # After that, a new history is created.
    home.rename(home.with_name("old"))
    os.environ["DAGSTER_HOME"] = ""
    open_instance(config).dispose()
    assert home.is_dir()


@pytest.mark.parametrize(
    "error", [StorageError("other"), ValueError("other"), OSError(5, "other")], ids=repr
)
def test_errors_that_the_history_has_not_caused_are_unchanged(tmp_path, error):
    with pytest.raises(type(error)) as caught, history_faults(tmp_path):
        raise error

    assert caught.value is error


def test_a_history_that_cannot_store_events_ends_the_build(config, monkeypatch):
    def fail_to_store(event_log: OpenEventLog, event: object) -> None:
        cause = sqlite3.OperationalError("database or disk is full")
        raise OperationalError("insert", {}, cause)

    monkeypatch.setattr(OpenEventLog, "store_event", fail_to_store)
    error_about_the_disk = pytest.raises(HistoryError, match="the disk is full")
    with open_instance(config) as instance, error_about_the_disk as caught:
        build(Project.open(config.file), instance)

    assert str(config.file.parent / ".dagster") in str(caught.value)


@pytest.mark.parametrize(
    ("free_bytes", "message"),
    [
        pytest.param(0, "the disk is full", id="a full disk"),
        pytest.param(1 << 30, "the disk takes no more, or fails", id="a failing disk"),
    ],
)
def test_an_error_of_the_disk_says_whether_the_disk_is_full(
    tmp_path, monkeypatch, free_bytes, message
):
    usage = shutil._ntuple_diskusage(total=1 << 40, used=1 << 39, free=free_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)

    with pytest.raises(HistoryError, match=message), history_faults(tmp_path):
        raise OperationalError("insert", {}, sqlite3.OperationalError("disk I/O error"))


@pytest.mark.parametrize(
    "database_message",
    ["unable to open database file", "attempt to write a readonly database"],
)
def test_an_error_of_the_database_says_whether_the_disk_is_read_only(
    tmp_path, monkeypatch, database_message
):
    status = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda folder: status)

    with pytest.raises(HistoryError, match="read-only") as caught, history_faults(tmp_path):
        raise OperationalError("insert", {}, sqlite3.OperationalError(database_message))

    assert "mount it for writing" in caught.value.remedy


def open_with_limit(file_bytes: int, config_file: Path) -> int | None:
    """Open a history in a process that may write files of a limited size; return its exit code.

    A process of its own is necessary, because a limit cannot be lifted.
    """

    def open_history() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        try:
            open_instance(load_config(config_file))
        except HistoryError as error:
            if "raise `ulimit -f`" in error.remedy:
                sys.exit(EXIT_CODE_OF_FILE_LIMIT)
            sys.exit(str(error))

    process = multiprocessing.get_context("fork").Process(target=open_history)
    process.start()
    process.join()
    return process.exitcode


def test_a_history_whose_creation_was_stopped_by_a_limit_is_completed_later(config):
    for n_pages in (5, 10, 20):
        assert open_with_limit(n_pages * PAGE_BYTES, config.file) == EXIT_CODE_OF_FILE_LIMIT

    open_instance(config).dispose()


def test_the_history_of_another_user_is_left_alone(config, monkeypatch):
    open_instance(config).dispose()
    close_databases()
    home = dagster_home(config)
    names = {path.name for path in home.rglob("*")}
    # Another user may write the folders, but not the databases, as in a shared folder.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith(".db"))

    with pytest.raises(HistoryError, match="another user may not be written") as caught:
        open_instance(config)

    assert caught.value.where.endswith(".db")
    assert "DAGSTER_HOME" in caught.value.remedy
    assert {path.name for path in home.rglob("*")} == names

    # These files do not matter if the history is stored elsewhere, as the remedy says.
    settings_file = home / "dagster.yaml"
    elsewhere = f"storage: {{sqlite: {{base_dir: {config.file.parent / 'elsewhere'}}}}}\n"
    settings_file.write_text(settings_file.read_text() + elsewhere)
    open_instance(config).dispose()


def test_a_journal_that_sqlite_deletes_meanwhile_is_no_error(config, monkeypatch):
    open_instance(config).dispose()
    close_databases()
    # A file that was listed, but does not exist any more.
    journal = dagster_home(config) / "history/runs/index.db-journal"
    journal.symlink_to("nowhere")

    open_instance(config).dispose()
