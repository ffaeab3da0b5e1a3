"""The history of a build, whose SQLite files stay open: it equals Dagster's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage

from helpers.dagster_history import close_databases
from nanoset_assets.history.open_history import OpenEventLog, history_kept_open


@dg.asset
def tokens() -> dg.MaterializeResult[None]:
    """An asset with metadata."""
    return dg.MaterializeResult(metadata={"documents": 3})


@dg.asset_check(asset=tokens)
def tokens_exist() -> dg.AssetCheckResult:
    """A check of the asset."""
    return dg.AssetCheckResult(passed=True)


DEFINITIONS = dg.Definitions(
    assets=[tokens], asset_checks=[tokens_exist], jobs=[dg.define_asset_job("make", "*")]
)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance whose event log is in SQLite files."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def run_job(instance: dg.DagsterInstance) -> str:
    """Execute the job, and return the id of its run."""
    return DEFINITIONS.resolve_job_def("make").execute_in_process(instance=instance).run_id


def database_of(instance: dg.DagsterInstance, run_id: str) -> Path:
    """Return the file with the events of a run."""
    event_log = instance.event_log_storage
    assert isinstance(event_log, SqliteEventLogStorage)
    return Path(event_log.path_for_shard(run_id))


def event_types(instance: dg.DagsterInstance, run_id: str) -> list[dg.DagsterEventType]:
    """Return the types of the events of a run, as another instance reads them."""
    folder = database_of(instance, run_id).parent
    records = SqliteEventLogStorage(str(folder)).get_records_for_run(run_id).records
    return [record.event_log_entry.get_dagster_event().event_type for record in records]


def test_an_index_that_was_deleted_is_created_again(tmp_path):
    SqliteEventLogStorage(str(tmp_path))
    close_databases()
    index = tmp_path / "index.db"
    for path in tmp_path.glob("index.db*"):
        path.unlink()

    with closing(OpenEventLog(str(tmp_path))) as event_log:
        assert event_log.has_table("asset_keys")

    assert index.exists()


@pytest.mark.parametrize("n_runs", [1, 3])
def test_the_events_are_those_that_dagster_records_itself(instance, n_runs):
    expected_types = event_types(instance, run_job(instance))

    with history_kept_open(instance):
        run_ids = [run_job(instance) for _ in range(n_runs)]

    for run_id in run_ids:
        assert event_types(instance, run_id) == expected_types


def test_the_tables_of_each_run_are_those_that_dagster_creates(instance):
    def schema_of(run_id: str) -> list[tuple[str, str]]:
        """Return the tables and indexes of a run's database, the version of them, and its mode."""
        with closing(sqlite3.connect(database_of(instance, run_id))) as database:
            tables = database.execute("SELECT name, sql FROM sqlite_master ORDER BY name")
            version = database.execute("SELECT 'version', version_num FROM alembic_version")
            mode = database.execute("PRAGMA journal_mode").fetchone()
            return [*tables.fetchall(), *version.fetchall(), ("mode", mode[0])]

    expected_schema = schema_of(run_job(instance))

    with history_kept_open(instance):
        run_ids = [run_job(instance), run_job(instance)]

    assert [schema_of(run_id) for run_id in run_ids] == [expected_schema, expected_schema]


def test_materializations_and_checks_of_all_runs_are_in_the_index(instance):
    with history_kept_open(instance):
        run_ids = [run_job(instance), run_job(instance)]

    materializations = instance.fetch_materializations(tokens.key, limit=10).records
    checks = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(tokens.key, "tokens_exist"), limit=10
    )
    assert [record.run_id for record in materializations] == run_ids[::-1]
    assert [check.run_id for check in checks] == run_ids[::-1]
    assert materializations[0].asset_materialization.metadata["documents"].value == 3


def test_another_process_sees_events_in_the_file_while_a_run_is_executed(instance):
    seen_types: list[str] = []

    @dg.op
    def look(context) -> None:
        """Read the database file of this run, without the write-ahead log next to it."""
        path = database_of(instance, context.run_id)
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as database:
            rows = database.execute("SELECT dagster_event_type FROM event_logs").fetchall()
        seen_types.extend(event_type for (event_type,) in rows)

    @dg.job
    def look_job() -> None:
        look()

    with history_kept_open(instance):
        look_job.execute_in_process(instance=instance)

    assert seen_types[-1] == "STEP_START"


def test_events_of_an_earlier_run_are_neither_lost_nor_copied(instance):
    earlier_run = run_job(instance)
    earlier_types = event_types(instance, earlier_run)

    with history_kept_open(instance):
        instance.report_engine_event("seen again", instance.get_run_by_id(earlier_run))
        later_run = run_job(instance)

    assert event_types(instance, earlier_run) == [*earlier_types, dg.DagsterEventType.ENGINE_EVENT]
    assert event_types(instance, later_run) == earlier_types


def test_runs_are_recorded_as_dagster_records_them(instance):
    def record_of(run_id: str) -> tuple[object, ...]:
        """Return what another instance reads about a run."""
        run_storage = SqliteRunStorage.from_local(str(database_of(instance, run_id).parents[1]))
        [record] = run_storage.get_run_records(dg.RunsFilter(run_ids=[run_id]))
        run = record.dagster_run
        has_times = bool(record.start_time and record.end_time)
        return run.status, run.job_name, sorted(run.tags), run.job_snapshot_id, has_times

    expected_record = record_of(run_job(instance))

    with history_kept_open(instance):
        run_id = run_job(instance)

    assert record_of(run_id) == expected_record


def test_a_run_of_another_process_is_seen_while_the_files_are_open(instance):
    with history_kept_open(instance):
        run_job(instance)
        with dg.DagsterInstance.from_ref(instance.get_ref()) as other_instance:
            other_run = run_job(other_instance)

        assert instance.get_run_by_id(other_run).status is dg.DagsterRunStatus.SUCCESS


@pytest.mark.parametrize("error", [None, ValueError("a step failed")])
def test_after_the_block_the_files_are_closed(instance, error):
    original_event_log = instance.event_log_storage
    original_run_storage = instance.run_storage
    expectation = nullcontext() if error is None else pytest.raises(ValueError)

    with expectation, history_kept_open(instance):
        run_job(instance)
        if error is not None:
            raise error

    assert instance.event_log_storage is original_event_log
    assert instance.run_storage is original_run_storage
    close_databases()  # those that tests keep open themselves
    # SQLite deletes the write-ahead log of a database when its last connection is closed.
    assert list(Path(instance.root_directory).rglob("*-wal")) == []


def test_a_history_that_is_not_in_sqlite_files_is_left_alone():
    with dg.DagsterInstance.ephemeral() as instance:
        original_event_log = instance.event_log_storage
        original_run_storage = instance.run_storage

        with history_kept_open(instance):
            assert instance.event_log_storage is original_event_log
            assert instance.run_storage is original_run_storage
