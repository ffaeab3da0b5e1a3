"""A Postgres server of its own, and the settings that a deployment gives to Dagster."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from helpers.daemons import free_ports, running, until

PASSWORD = "a password with 'quotes' and @:/%"


def programs() -> Path | None:
    """The folder of Debian's newest initdb and postgres, or of those on the path."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda folder: int(folder.parent.name))
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def unprivileged() -> tuple[list[str], str | None]:
    """(what stands in front of a command, user): Postgres refuses to be root."""
    if os.geteuid():
        return [], None
    users = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in users else "nobody"
    group = str(pwd.getpwnam(user).pw_gid)
    return [
        "setpriv",
        "--reuid",
        user,
        "--regid",
        group,
        "--clear-groups",
        "--pdeathsig",
        "INT",
    ], user


@pytest.fixture(scope="session")
def postgres() -> Iterator[dict[str, str]]:
    """The variables that dagster.yaml asks for, of a server in a folder of its own, gone
    afterwards.
    """
    pytest.importorskip("dagster_postgres", reason="needs dagster-postgres: the extra deploy")
    folder = programs()
    if folder is None:
        pytest.skip("needs Postgres: apt-get install postgresql")
    prefix, user = unprivileged()
    if prefix and shutil.which("setpriv") is None:
        pytest.skip("Postgres refuses to run as root, and setpriv (util-linux) is not there")
    base = Path(tempfile.mkdtemp(prefix="nanoset-postgres-"))
    try:
        if user:
            shutil.chown(base, user)
        yield from _serve(folder, prefix, base)
    finally:
        shutil.rmtree(base)


def _serve(folder: Path, prefix: list[str], base: Path) -> Iterator[dict[str, str]]:
    secret, data, log, port = base / "password", base / "data", base / "log", *free_ports(1)
    secret.write_text(PASSWORD + "\n")
    initdb = [
        str(folder / "initdb"),
        "--pgdata",
        str(data),
        "--username",
        "nanoset",
        "--encoding",
        "UTF8",
        "--no-sync",
    ]
    initdb += ["--auth", "scram-sha-256", "--pwfile", str(secret)]
    done = subprocess.run(
        [*prefix, *initdb], cwd=base, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    options = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "fsync": "off",
    }
    command = [*prefix, str(folder / "postgres"), "-D", str(data)]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]
    variables = {
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "USERNAME": "nanoset",
        "PASSWORD": PASSWORD,
        "DB": "postgres",
    }
    with running(command, log, folder=base) as server:
        until(lambda: _connected(port) or server.poll() is not None, 30, log.read_text)
        assert server.poll() is None, log.read_text()
        yield {f"DAGSTER_PG_{name}": value for name, value in variables.items()}


def _connected(port: int | str) -> Any:
    """A connection to the server; None where it does not answer."""
    import psycopg2

    with suppress(psycopg2.OperationalError):
        return psycopg2.connect(
            host="127.0.0.1", port=port, user="nanoset", password=PASSWORD, dbname="postgres"
        )


@pytest.fixture
def postgres_environment(
    postgres: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The server's variables, and a folder for logs, in this process's environment; the server
    holds no history yet.
    """
    server = _connected(postgres["DAGSTER_PG_PORT"])
    server.autocommit = True
    name = f"history_{tmp_path.name}_{os.urandom(4).hex()}"
    with server.cursor() as cursor:
        cursor.execute(f'create database "{name}"')
    server.close()
    environment = {**postgres, "DAGSTER_PG_DB": name, "NANOSET_LOG_FOLDER": str(tmp_path / "logs")}
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return environment
