"""A build with nothing to do reads Dagster's history only if that may lack something."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.command import output_of
from helpers.sample_platform import age, copy_template
from helpers.sample_project import jsonl, sentences
from nanoset_assets import commands
from nanoset_assets.history.complete_history import FILE, known_outputs, remember_outputs
from nanoset_assets.history.instance import HistoryError
from nanoset_assets.history.open_history import asset_database
from nanoset_assets.names import Names
from nanoset_assets.tags import CHECK

NOTHING_MADE = "Everything is up to date: nothing was made"


def without_seconds(text: str) -> str:
    """Return what a build has printed, without how long it took."""
    return re.sub(r"\([0-9.]+ s\)", "", text)


class IdleProject:
    """A built project, and how often its builds open Dagster's history."""

    def __init__(self, config_file: Path, home: Path) -> None:
        self.config_file = config_file
        self.home = home
        self.n_openings = 0

    def build(self, *options: str) -> str:
        """Run `nanoset build`, and return what it printed."""
        return output_of("build", "--config", self.config_file, *options)

    def opens_history(self, *options: str) -> bool:
        """Run `nanoset build`, and return whether it opened the history."""
        n_before = self.n_openings
        self.build(*options)
        return self.n_openings > n_before

    def let_history_settle(self) -> None:
        """Let the history look as if it had been written long ago."""
        age(self.home)

    def record_failed_check(self) -> None:
        """Record in the history that the check of an output has failed."""
        evaluation = dg.AssetCheckEvaluation(
            check_name=CHECK,
            passed=False,
            asset_key=Names().asset("packed_dataset"),
            severity=dg.AssetCheckSeverity.ERROR,
            partition="code",
        )
        with self.instance() as instance:
            instance.report_runless_asset_event(evaluation)

    def instance(self) -> dg.DagsterInstance:
        """Open the history, as Dagster's UI does."""
        return dg.DagsterInstance.from_config(str(self.home))


@pytest.fixture(scope="module")
def template_of_build(template, tmp_path_factory) -> Path:
    """The folder of a built project, to whose history a build has added its dagster.yaml."""
    folder = tmp_path_factory.mktemp("history") / "project"
    config_file = copy_template(template, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder / "home"))
        output_of("build", "--config", config_file)
    assert (folder / "home" / "dagster.yaml").exists()
    return folder


@pytest.fixture
def project(template_of_build, tmp_path, monkeypatch) -> IdleProject:
    """A built project whose history was written long ago."""
    config_file = copy_template(template_of_build, tmp_path / "project")
    home = config_file.parent / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    project = IdleProject(config_file, home)

    open_instance: Callable[[Any], dg.DagsterInstance] = commands.open_instance

    def open_instance_and_count(config: Any) -> dg.DagsterInstance:
        project.n_openings += 1
        return open_instance(config)

    monkeypatch.setattr(commands, "open_instance", open_instance_and_count)
    project.let_history_settle()
    return project


@pytest.fixture
def idle_project(project) -> IdleProject:
    """A project whose history is known to be complete."""
    assert NOTHING_MADE in project.build()
    assert known_outputs(project.home)
    return project


# Builds that need no history


def test_a_second_build_with_nothing_to_do_prints_the_same_without_the_history(project):
    first = project.build()
    n_openings = project.n_openings

    second = project.build()

    assert project.n_openings == n_openings
    assert without_seconds(second) == without_seconds(first)


def test_a_build_with_nothing_to_do_does_not_import_dagster(idle_project):
    program = (
        "import sys\n"
        "from nanoset_core.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    heavy = ['dagster', 'sqlalchemy', 'pydantic', 'pyarrow', 'duckdb']\n"
        "    print([name for name in heavy if name in sys.modules])\n"
    )
    path = str(Path(commands.__file__).parents[1])

    output = subprocess.check_output(
        [sys.executable, "-c", program, "build", "--config", str(idle_project.config_file)],
        env=os.environ | {"PYTHONPATH": path},
        text=True,
    )

    assert NOTHING_MADE in output
    assert output.endswith("[]\n")


# Builds that need it


@pytest.mark.parametrize("options", [["--select", "web"], ["--corpus", "web"], ["--force"]])
def test_a_build_with_options_opens_the_history(idle_project, options, monkeypatch):
    def refuse_to_open(config: Any) -> dg.DagsterInstance:
        raise HistoryError("the history was opened")

    monkeypatch.setattr(commands, "open_instance", refuse_to_open)

    with pytest.raises(HistoryError, match="the history was opened"):
        idle_project.build(*options)


def test_a_deleted_output_is_made_again(idle_project):
    shutil.rmtree(idle_project.config_file.parent / "data/packed")

    assert "Made 1 of " in idle_project.build()


def test_an_output_whose_check_has_failed_since_is_made_again(idle_project):
    idle_project.record_failed_check()

    assert "Made 1 of " in idle_project.build()


def test_an_output_whose_check_has_failed_is_made_after_a_build_of_others(project):
    project.record_failed_check()
    project.let_history_settle()
    project.build("--select", "books")

    assert "Made 1 of " in project.build()


def test_outputs_that_another_machine_has_made_since_are_recorded(
    idle_project, monkeypatch, tmp_path
):
    config_file = idle_project.config_file
    (config_file.parent / "raw/books/late.jsonl").write_bytes(jsonl(sentences("late", 3)))
    with monkeypatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(tmp_path / "home of another machine"))
        idle_project.build()

    assert NOTHING_MADE in idle_project.build()

    key = Names().asset("indexed_dataset")
    with idle_project.instance() as instance:
        event = instance.fetch_materializations(key, limit=1).records[0].asset_materialization
    assert event.partition == "books"
    assert "made on another machine" in event.metadata["summary"].value


def test_assets_with_another_prefix_are_recorded(idle_project):
    with idle_project.config_file.open("a") as settings:
        settings.write("dagster: {key_prefix: [llm]}\n")

    assert NOTHING_MADE in idle_project.build()

    with idle_project.instance() as instance:
        assert instance.get_latest_materialization_event(Names(("llm",)).asset("packed_dataset"))


def test_a_deleted_history_gets_the_outputs_again(idle_project):
    shutil.rmtree(idle_project.home)

    assert NOTHING_MADE in idle_project.build()

    with idle_project.instance() as instance:
        assert instance.get_latest_materialization_event(Names().asset(("shuffled", "manifest")))
        assert set(instance.get_dynamic_partitions("corpora")) == {"books", "code", "web"}


def test_a_restored_copy_of_the_history_is_read(idle_project, tmp_path):
    shutil.copytree(idle_project.home, tmp_path / "backup")
    shutil.rmtree(idle_project.home)
    shutil.copytree(tmp_path / "backup", idle_project.home)

    assert idle_project.opens_history()


def test_a_history_with_other_settings_is_read(idle_project):
    settings = idle_project.home / "dagster.yaml"
    settings.write_text(settings.read_text() + "# edited\n")

    assert idle_project.opens_history()


def test_the_history_is_read_again_if_its_partitions_are_deleted(idle_project):
    with idle_project.instance() as instance:
        instance.delete_dynamic_partition("corpora", "web")

    assert NOTHING_MADE in idle_project.build()

    with idle_project.instance() as instance:
        assert "web" in instance.get_dynamic_partitions("corpora")


def test_the_history_is_read_while_a_run_is_active(project):
    with project.instance() as instance:
        instance.create_run_for_job(job_def=dg.GraphDefinition(name="other").to_job())
    project.let_history_settle()
    project.build()

    assert project.opens_history()


# What is remembered of a history


@pytest.fixture
def database(tmp_path) -> Path:
    """A file in place of a history's database, next to its settings, both written long ago."""
    path = tmp_path / "index.db"
    path.write_bytes(b"events")
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    age(tmp_path)
    return path


def remember(database: Path, digest: str) -> None:
    """Remember that a history, which was read just now, has some outputs."""
    remember_outputs(database.parent, database, digest, time.time_ns())


def test_nothing_is_remembered_of_a_history_that_was_written_just_before_it_was_read(database):
    written_at_ns = database.stat().st_mtime_ns

    remember_outputs(database.parent, database, "digest", written_at_ns + 1_000_000_000)

    assert known_outputs(database.parent) == ()


def test_the_outputs_of_several_projects_are_remembered(database):
    remember(database, "first")
    remember(database, "second")

    assert known_outputs(database.parent) == ("first", "second")


def test_the_outputs_of_all_projects_are_forgotten_once_the_history_changes(database):
    remember(database, "first")
    database.write_bytes(b"more events")
    age(database.parent)
    remember(database, "second")

    assert known_outputs(database.parent) == ("second",)


def test_events_in_the_write_ahead_log_change_a_history(database):
    log = database.with_name("index.db-wal")
    log.touch()  # SQLite creates an empty one when it reads
    remember(database, "digest")
    log.unlink()
    assert known_outputs(database.parent) == ("digest",)

    log.write_bytes(b"an event")

    assert known_outputs(database.parent) == ()


@pytest.mark.parametrize(
    "base_dir", ["{env: HISTORY}", '{"env": "HISTORY"}', "\n      env: HISTORY"]
)
def test_nothing_is_remembered_of_a_history_that_the_environment_chooses(database, base_dir):
    settings = database.with_name("dagster.yaml")
    settings.write_text(f"storage:\n  sqlite:\n    base_dir: {base_dir}\n")
    age(database.parent)

    remember(database, "digest")

    assert not (database.parent / FILE).exists()


def test_nothing_is_known_if_the_file_is_damaged(database):
    remember(database, "digest")
    (database.parent / FILE).write_bytes(b"{")

    assert known_outputs(database.parent) == ()


def test_a_history_that_is_not_in_sqlite_files_has_no_database(instance):
    assert asset_database(instance) is None
