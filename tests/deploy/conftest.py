"""A Postgres server for tests, and the settings that a deployment gives to Dagster."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers.daemons import free_ports, running, until

PASSWORD = "a password with 'quotes' and @:/%"
USER = "nanoset"
START_SECONDS = 30
INIT_SECONDS = 60


@dataclass(frozen=True)
class ServerUser:
    """The user that the server runs as: Postgres refuses to be root."""

    name: str | None
    """None: the user of this process."""
    command_prefix: list[str]
    """What precedes a command, so that it is executed by this user."""


def find_postgres() -> Path | None:
    """Return the folder of Postgres's programs: Debian's newest, or the one on the path."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if folders:
        return max(folders, key=lambda folder: int(folder.parent.name))
    initdb = shutil.which("initdb")
    if initdb is None:
        return None
    return Path(initdb).resolve().parent


def find_server_user() -> ServerUser:
    """Return an unprivileged user for the server."""
    if os.geteuid() != 0:
        return ServerUser(None, [])
    names = {entry.pw_name for entry in pwd.getpwall()}
    name = "postgres" if "postgres" in names else "nobody"
    group = str(pwd.getpwnam(name).pw_gid)
    # If this process dies, the server is interrupted.
    prefix = ["setpriv", "--reuid", name, "--regid", group, "--clear-groups", "--pdeathsig", "INT"]
    return ServerUser(name, prefix)


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, str]]:
    """The variables that dagster.yaml refers to, for a server that runs until the tests end."""
    pytest.importorskip("dagster_postgres", reason="needs dagster-postgres: the extra deploy")
    programs = find_postgres()
    if programs is None:
        pytest.skip("needs Postgres: apt-get install postgresql")
    user = find_server_user()
    if user.command_prefix and shutil.which("setpriv") is None:
        pytest.skip("Postgres refuses to run as root, and setpriv (util-linux) is missing")

    folder = Path(tempfile.mkdtemp(prefix="nanoset-postgres-"))
    try:
        if user.name is not None:
            shutil.chown(folder, user.name)
        create_database_cluster(programs, user, folder)
        yield from serve(programs, user, folder)
    finally:
        shutil.rmtree(folder)


def create_database_cluster(programs: Path, user: ServerUser, folder: Path) -> None:
    """Create the files of a server.

    Args:
        programs: Folder of Postgres's programs.
        user: Who owns the files.
        folder: Is to contain them.
    """
    password_file = folder / "password"
    password_file.write_text(PASSWORD + "\n")
    command = [str(programs / "initdb"), "--pgdata", str(folder / "data")]
    command += ["--username", USER, "--encoding", "UTF8", "--no-sync"]
    command += ["--auth", "scram-sha-256", "--pwfile", str(password_file)]
    process = subprocess.run(
        [*user.command_prefix, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=INIT_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def serve(programs: Path, user: ServerUser, folder: Path) -> Iterator[dict[str, str]]:
    """Run a server, and yield the variables that dagster.yaml refers to.

    Args:
        programs: Folder of Postgres's programs.
        user: Who runs it.
        folder: Contains its files.
    """
    (port,) = free_ports(1)
    options = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "fsync": "off",
    }
    command = [*user.command_prefix, str(programs / "postgres"), "-D", str(folder / "data")]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]

    log = folder / "log"
    with running(command, log, folder=folder) as server:
        until(
            lambda: connect(port) or server.poll() is not None,
            START_SECONDS,
            log.read_text,
        )
        assert server.poll() is None, log.read_text()
        yield {
            "DAGSTER_PG_HOST": "127.0.0.1",
            "DAGSTER_PG_PORT": str(port),
            "DAGSTER_PG_USERNAME": USER,
            "DAGSTER_PG_PASSWORD": PASSWORD,
            "DAGSTER_PG_DB": "postgres",
        }


def connect(port: int | str) -> Any:
    """Return a connection to the server, or None if it does not answer."""
    import psycopg2

    with suppress(psycopg2.OperationalError):
        return psycopg2.connect(
            host="127.0.0.1", port=port, user=USER, password=PASSWORD, dbname="postgres"
        )
    return None


@pytest.fixture
def postgres_environment(
    postgres: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The environment of this process, with a new database of the server and a folder for logs."""
    database = f"history_{tmp_path.name}_{os.urandom(4).hex()}"
    connection = connect(postgres["DAGSTER_PG_PORT"])
    connection.autocommit = True  # a database cannot be created in a transaction
    with connection.cursor() as cursor:
        cursor.execute(f'create database "{database}"')
    connection.close()

    environment = dict(postgres)
    environment["DAGSTER_PG_DB"] = database
    environment["NANOSET_LOG_FOLDER"] = str(tmp_path / "logs")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment
