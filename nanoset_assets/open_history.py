"""Record the runs of a build in Dagster's SQLite files, without opening a file for each query.

Dagster has a file with all runs, and a file with the events of each run. It opens them again for
every query, and compiles every query again. A run needs dozens of queries, so for a small output,
Dagster takes longer than the work itself. During a build, the classes in this module store and
read runs and events instead. They write the same files, so `dagster dev` shows the runs as usual.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import dagster as dg
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.runs import SqliteRunStorage
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool, StaticPool

from nanoset_assets.dagster_compat import event_log_replaced, run_storage_replaced

_TIMEOUT_SECONDS = 30
"""How long a connection waits for a lock of another process; Dagster's own event log waits as long.
"""
_INDEX = "index"
"""Name of the database that has the events about assets, of all runs."""


@contextmanager
def history_kept_open(instance: dg.DagsterInstance) -> Iterator[None]:
    """Keep the files of Dagster's history open while runs are executed in the block.

    Args:
        instance: The instance of Dagster that records the runs. If its history is not in SQLite
            files, but for example in Postgres, it is left as it is.
    """
    with _event_log_kept_open(instance), _run_storage_kept_open(instance):
        yield


@contextmanager
def _event_log_kept_open(instance: dg.DagsterInstance) -> Iterator[None]:
    """Keep the files with the events of runs open during the block.

    Args:
        instance: The instance of Dagster that records the events.
    """
    event_log = instance.event_log_storage
    if type(event_log) is not SqliteEventLogStorage:
        yield
        return

    # In the block, the instance uses another log, which reads and writes the files of the same
    # folder. The database "index" is one of these files.
    folder = Path(event_log.path_for_shard(_INDEX)).parent
    open_event_log = OpenEventLog(str(folder))
    with closing(open_event_log), event_log_replaced(instance, open_event_log):
        yield


@contextmanager
def _run_storage_kept_open(instance: dg.DagsterInstance) -> Iterator[None]:
    """Keep the file with the list of runs open during the block.

    Args:
        instance: The instance of Dagster that records the runs.
    """
    run_storage = instance.run_storage
    if type(run_storage) is not SqliteRunStorage:
        yield
        return

    open_run_storage = OpenRunStorage(run_storage._conn_string)
    with closing(open_run_storage), run_storage_replaced(instance, open_run_storage):
        yield


class OpenRunStorage(SqliteRunStorage):
    """Dagster's list of runs in an SQLite file, with connections that stay open.

    Other processes, such as Dagster's UI, may read and write the same file at any time.
    """

    def __init__(self, url: str) -> None:
        """Use an existing database.

        Args:
            url: The file, as a URL of SQLAlchemy.
        """
        super().__init__(url)
        self._engine = create_engine(
            url,
            poolclass=QueuePool,
            connect_args={"timeout": _TIMEOUT_SECONDS, "check_same_thread": False},
        )

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection to the database, in a transaction."""
        with self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close the file."""
        self._engine.dispose()


class OpenEventLog(SqliteEventLogStorage):
    """Dagster's event log in SQLite files, with connections that stay open.

    Two databases are open at most: the index, and that of the run that was recorded last. Other
    processes, such as Dagster's UI, may read and write the same files at any time.
    """

    def __init__(self, folder: str) -> None:
        """Use the databases in a folder, which are created if they are missing.

        Args:
            folder: Path of the folder, which has a file for each run and one with the name `index`.
        """
        super().__init__(folder)
        self._lock = threading.Lock()  # only one thread at a time may use a connection
        self._engine_by_database: dict[str, Engine] = {}
        # A database with all tables and no events, from which those of new runs are copied.
        self._template: sqlite3.Connection | None = None
        self._known_tables: set[str] = set()  # of the index

    def has_table(self, table_name: str) -> bool:
        """Return whether the index has a table.

        Dagster asks this several times in each run, and opens the index each time. A table that
        exists stays, so it is looked up only once.

        Args:
            table_name: Such as "asset_keys".
        """
        if table_name not in self._known_tables:
            if not super().has_table(table_name):
                return False
            self._known_tables.add(table_name)
        return True

    @contextmanager
    def run_connection(self, run_id: str | None = None) -> Iterator[Connection]:
        """Yield a connection to the database with the events of a run, in a transaction.

        Args:
            run_id: The run. Dagster declares that it may be None, but always names one.
        """
        assert run_id is not None
        with self._lock:
            # A new run begins: close the database of the previous run. The index, which all runs
            # have in common, stays open.
            if run_id not in self._engine_by_database:
                self._close_databases(except_for=_INDEX)
                self._create_run_database(run_id)

            engine = self._engine(run_id)  # has a connection that stays open
            with engine.begin() as connection:
                yield connection

            # SQLite appends new events to a second file, the write-ahead log. Dagster's UI watches
            # only the database file. This statement moves the events there.
            with engine.connect() as connection:
                connection.execute(text("PRAGMA wal_checkpoint(PASSIVE)"))

    @contextmanager
    def index_connection(self) -> Iterator[Connection]:
        """Yield a connection to the database with the events about assets, in a transaction."""
        with self._lock, self._engine(_INDEX).begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            self._close_databases()
            if self._template is not None:
                self._template.close()
                self._template = None

    def _engine(self, database: str) -> Engine:
        """Return the engine of a database, with a connection that stays open.

        Args:
            database: Id of a run, or "index".
        """
        engine = self._engine_by_database.get(database)
        if engine is None:
            engine = create_engine(
                self.conn_string_for_shard(database),
                poolclass=StaticPool,
                connect_args={"timeout": _TIMEOUT_SECONDS, "check_same_thread": False},
            )
            self._engine_by_database[database] = engine
        return engine

    def _close_databases(self, except_for: str = "") -> None:
        """Close the connections to all databases except one."""
        for database in list(self._engine_by_database):
            if database != except_for:
                self._engine_by_database.pop(database).dispose()

    def _create_run_database(self, run_id: str) -> None:
        """Create the tables of a run's database, unless they exist.

        Dagster takes 0.2 s for this. So it creates only the first database, and others are copied.

        Args:
            run_id: The run, whose id is the name of the database.
        """
        path = Path(self.path_for_shard(run_id))
        is_new = not path.exists()

        # Every further database is a copy of the template, which has the tables and no events.
        if is_new and self._template is not None:
            with closing(_connect(path)) as database:
                database.execute("PRAGMA journal_mode=WAL")  # Dagster sets the same mode
                self._template.backup(database)  # copies the template into the database
            return

        # Dagster creates missing tables whenever it opens a database.
        with super().run_connection(run_id):
            pass
        # The first new database becomes the template: keep a copy of it in memory.
        if is_new:
            self._template = sqlite3.connect(":memory:", check_same_thread=False)
            with closing(_connect(path)) as database:
                database.backup(self._template)  # copies the database into the template


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database, without SQLAlchemy."""
    return sqlite3.connect(path, timeout=_TIMEOUT_SECONDS)
