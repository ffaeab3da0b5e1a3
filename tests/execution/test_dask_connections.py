"""Connections to Dask schedulers, and what is reported if there is none.

Runs and builds on a cluster are tested in tests/execution/test_dask.py.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.child_processes import wait_until
from helpers.dask_cluster import executor_on, within
from helpers.progress import RecordingDisplay
from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.execution import dask_scheduler
from nanoset_core.execution.cluster_connection import connections_kept
from nanoset_core.execution.cluster_executor import ClusterExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler


def test_a_run_without_tasks_needs_no_cluster(tmp_path):
    executor = executor_on(tmp_path / "shared", "tcp://127.0.0.1:1")

    assert list(executor.run(abs, [])) == []

    assert not (tmp_path / "shared").exists()


def check_that_only_the_first_run_waits(
    executor: ClusterExecutor, display: RecordingDisplay, message: str
) -> None:
    """Run tasks on a cluster twice; the second run must fail at once, with the same error."""
    errors: list[str] = []
    for is_first_run in (True, False):
        display.works.clear()
        with pytest.raises(NanosetError, match=message) as caught:
            list(executor.run(abs, [-1]))
        has_waited = bool(display.works)
        assert has_waited == is_first_run
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_a_build_waits_only_once_for_a_cluster_that_is_missing(tmp_path, monkeypatch):
    """Otherwise, each of hundreds of outputs would wait for a day."""
    display = RecordingDisplay()
    shared = tmp_path / "shared"
    schedulers: list[DaskScheduler] = []
    original_connect = DaskScheduler.connect

    def connect(scheduler, *arguments):
        schedulers.append(scheduler)
        return original_connect(scheduler, *arguments)

    monkeypatch.setattr(DaskScheduler, "connect", connect)
    without_scheduler = executor_on(
        shared, file=tmp_path / "missing", wait_seconds=0.3, progress=display.progress
    )
    with within() as cluster, connections_kept():
        without_workers = executor_on(
            shared, cluster.scheduler_address, wait_seconds=0.3, progress=display.progress
        )
        check_that_only_the_first_run_waits(without_scheduler, display, "has written its file")
        check_that_only_the_first_run_waits(without_workers, display, "has no workers")
        assert schedulers == [without_scheduler.cluster, without_workers.cluster]

        # Workers that are started later are used nevertheless.
        cluster.scale(1)
        assert wait_until(lambda: cluster.scheduler.workers)
        assert list(without_workers.run(abs, [-1])) == [(0, 1)]


def create_certificate(folder: Path) -> dict[str, str]:
    """Write the certificate of a client, and that of its authority, to files.

    Returns:
        Settings of Dask that use these certificates.
    """
    import distributed

    folder.mkdir()
    settings: dict[str, str] = {}
    security = distributed.Security.temporary()
    for name, text in security.get_tls_config_for_role("client").items():
        if text is None:
            continue
        (folder / name).write_text(text)
        role = "" if name == "ca_file" else "client."
        key = f"distributed.comm.tls.{role}{name.replace('_', '-')}"
        settings[key] = str(folder / name)
    return settings


def security_with(folder: Path) -> Any:
    """Return the security of a cluster that accepts only clients with a certificate."""
    import distributed

    files: dict[str, str] = {}
    for role in ("scheduler", "worker", "client"):
        files[f"tls_{role}_cert"] = str(folder / "cert")
        files[f"tls_{role}_key"] = str(folder / "key")
    authority = str(folder / "ca_file")
    return distributed.Security(tls_ca_file=authority, require_encryption=True, **files)


def test_a_cluster_that_demands_certificates_is_used_with_those_of_dasks_settings(
    tmp_path, monkeypatch
):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    import dask

    monkeypatch.setattr(dask_scheduler, "CONNECT_SECONDS", 1.0)
    accepted_settings = create_certificate(tmp_path / "accepted")
    foreign_settings = create_certificate(tmp_path / "foreign")
    security = security_with(tmp_path / "accepted")

    with within(protocol="tls", security=security, n_workers=1) as cluster:
        executor = executor_on(tmp_path / "shared", cluster.scheduler_address, wait_seconds=0.5)
        assert executor.cluster.name.startswith("tls://")

        with dask.config.set(accepted_settings):
            assert list(executor.run(abs, [-1])) == [(0, 1)]

        # Clients without a certificate, or with another one, are told what is missing.
        for settings in ({}, foreign_settings):
            with (
                dask.config.set(settings),
                pytest.raises(ConfigError, match="no Dask scheduler answers") as caught,
            ):
                list(executor.run(abs, [-1]))
            assert "certificate" in caught.value.remedy


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait only a moment for an answer."""
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    monkeypatch.setattr(dask_scheduler, "CONNECT_SECONDS", 0.3)


@pytest.mark.parametrize("is_mute", [True, False], ids=["no answer", "nobody listens"])
def test_an_address_without_a_scheduler_is_reported(tmp_path, short_patience, is_mute):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        if not is_mute:
            server.close()
        where = "n.yaml: executor.address"
        executor = executor_on(tmp_path, address, wait_seconds=0.2, where=where)
        start_time = time.monotonic()

        with pytest.raises(ConfigError, match="no Dask scheduler answers") as caught:
            list(executor.run(abs, [1]))

        assert time.monotonic() - start_time < 60, "it waits without end"
    assert caught.value.where == where
    assert address in caught.value.found
    is_said_to_be_mute = "does not answer as a scheduler" in caught.value.found
    assert is_said_to_be_mute == is_mute
    assert list(tmp_path.iterdir()) == []


def test_a_scheduler_that_does_not_answer_is_waited_for_as_long_as_the_settings_say(tmp_path):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        executor = executor_on(tmp_path, address, wait_seconds=3)
        start_time = time.monotonic()

        with pytest.raises(ConfigError, match="no Dask scheduler answers") as caught:
            list(executor.run(abs, [1]))

        seconds = time.monotonic() - start_time
    assert 3 <= seconds < dask_scheduler.CONNECT_SECONDS
    assert caught.value.expected in ("an answer within 3 s", "an answer within 4 s")


def test_without_the_package_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    executor = executor_on(tmp_path, "tcp://127.0.0.1:1")

    with pytest.raises(ConfigError, match="is not installed") as caught:
        list(executor.run(abs, [1]))

    assert caught.value.remedy.startswith("pip install 'nanoset-platform[dask]'")


def test_faults_of_a_scheduler_that_is_ended_are_not_logged(caplog):
    logger = logging.getLogger("distributed.core")

    with dask_scheduler.end_unlogged():
        logger.error("Exception while handling op terminate")
    logger.error("a fault of a scheduler that runs")

    assert caplog.messages == ["a fault of a scheduler that runs"]
