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
    """Make Dagster's runs faster inside a block, by keeping the files of its history open.

    Dagster opens an SQLite file for each of the dozens of queries of a run. For a small output,
    that takes longer than the work itself. In the block, the instance uses other objects for the
    same files, which open them once.

    Args:
        instance: Dagster's instance, which records the runs. If its history is not in SQLite files,
            but for example in Postgres, nothing is changed.
    """
    with _event_log_kept_open(instance), _run_storage_kept_open(instance):
        yield


def asset_database(instance: dg.DagsterInstance) -> Path | None:
    """Return the SQLite file that changes whenever something happens in Dagster.

    Other code looks at the time of this file, to see at little cost that nothing has happened. In
    the file, Dagster records the outputs and checks of all runs, and when a run starts or ends.

    Args:
        instance: Dagster's instance.

    Returns:
        The file; None if the history is elsewhere, for example in Postgres.
    """
    event_log = instance.event_log_storage
    if not isinstance(event_log, SqliteEventLogStorage):
        return None
    return Path(event_log.path_for_shard(_INDEX))


@contextmanager
def _event_log_kept_open(instance: dg.DagsterInstance) -> Iterator[None]:
    """Keep open, during a block, the files in which Dagster records what happens in runs.

    Dagster's own object opens a file for each query, which is slow. In the block, the instance uses
    another object for the same files, which opens them once.

    Args:
        instance: Dagster's instance. If it records events elsewhere, such as in Postgres, or by an
            object that is derived from the usual one, nothing is changed.
    """
    dagster_log = instance.event_log_storage
    if type(dagster_log) is not SqliteEventLogStorage:
        yield
        return

    folder = Path(dagster_log.path_for_shard(_INDEX)).parent  # that of one of its files
    open_log = OpenEventLog(str(folder))
    with closing(open_log), event_log_replaced(instance, open_log):
        yield


@contextmanager
def _run_storage_kept_open(instance: dg.DagsterInstance) -> Iterator[None]:
    """Keep open, during a block, the file in which Dagster has the list of all runs.

    Dagster's own object opens the file for each query, which is slow. In the block, the instance
    uses another object for the same file, which opens it once.

    Args:
        instance: Dagster's instance. If its list is elsewhere, such as in Postgres, or in an object
            that is derived from the usual one, nothing is changed.
    """
    dagster_storage = instance.run_storage
    if type(dagster_storage) is not SqliteRunStorage:
        yield
        return

    open_storage = OpenRunStorage(dagster_storage._conn_string)
    with closing(open_storage), run_storage_replaced(instance, open_storage):
        yield


class OpenRunStorage(SqliteRunStorage):
    """Dagster's list of runs in an SQLite file, with connections that stay open.

    Other processes, such as Dagster's UI, may read and write the same file at any time.
    """

    def __init__(self, url: str) -> None:
        """Open the SQLite file with the list of all runs, which exists.

        Args:
            url: The file, as an address for SQLAlchemy, such as
                "sqlite:////home/dagster/history/runs.db".
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
        # First: Dagster's class may use connections while it is initialised, to add an index.
        self._lock = threading.Lock()  # only one thread at a time may use a connection
        self._engine_by_database: dict[str, Engine] = {}
        # A database with all tables and no events, from which those of new runs are copied.
        self._template: sqlite3.Connection | None = None
        self._known_tables: set[str] = set()  # of the index
        super().__init__(folder)

    def has_table(self, table_name: str) -> bool:
        """Return whether the database that all runs have in common has a certain table.

        Dagster asks this several times in each run. A table is never removed, so its name is
        remembered, and the next question is answered without a query.

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
        """Yield a connection to the SQLite file with the events of a run, in a transaction.

        Dagster calls this to store an event, such as "step 3 has started". It would open and close
        the file for each event. Here, the file stays open until another run begins.

        Args:
            run_id: The run. Dagster declares that it may be None, but always names one.
        """
        assert run_id is not None
        with self._lock:  # one thread at a time
            is_new_run = run_id not in self._engine_by_database
            if is_new_run:
                self._close_databases(except_for=_INDEX)  # the file of the last run
                self._create_run_database(run_id)

            database = self._engine(run_id)  # SQLAlchemy's object for the file
            with database.begin() as connection:
                yield connection

            # SQLite has only appended the new events to a second file, its write-ahead log. But the
            # UI of Dagster shows new events when the database file itself changes. So let SQLite
            # copy them into that file (a checkpoint).
            with database.connect() as connection:
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
        """Return SQLAlchemy's object for one of the SQLite files, whose connection stays open.

        Args:
            database: Which file: the id of a run, or "index" for the file that all runs have in
                common.
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
        """Close the SQLite files that are open, except one.

        Args:
            except_for: The id of a run, or "index" for the file that all runs have in common; "" if
                all files are closed.
        """
        for database in list(self._engine_by_database):
            if database != except_for:
                self._engine_by_database.pop(database).dispose()

    def _create_run_database(self, run_id: str) -> None:
        """Create the SQLite file for the events of a new run, with Dagster's tables.

        Dagster takes 0.2 s to create the tables, which is much for a run that makes a small output.
        So it does this only for the first run. That file is copied to memory while it has no events
        yet, and the copy becomes the file of each later run:

            first run      Dagster creates the tables, and the file is copied to memory
            other runs     the copy in memory is written to a new file

        Args:
            run_id: The id of the run, which is also the name of the file.
        """
        path = Path(self.path_for_shard(run_id))
        is_new = not path.exists()
        template = self._template  # a database in memory, with the tables and no events
        if is_new and template is not None:
            with closing(_connect(path)) as new_database:
                new_database.execute("PRAGMA journal_mode=WAL")  # Dagster sets the same mode
                template.backup(new_database)  # from the template to the new database
            return

        # The database exists, or it is the first one: let Dagster open it, which creates the tables
        # that are missing.
        with super().run_connection(run_id):
            pass
        if is_new:
            self._template = sqlite3.connect(":memory:", check_same_thread=False)
            with closing(_connect(path)) as first_database:
                first_database.backup(self._template)  # from the first database to the template


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database, without SQLAlchemy."""
    return sqlite3.connect(path, timeout=_TIMEOUT_SECONDS)
