"""Processes that tests start, send signals to, and see end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from helpers import dagster_history

ROOT = Path(__file__).parents[2]
Found = TypeVar("Found")


def start(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[str]:
    """Start a process that obeys signals, even if this one ignores them.

    A suite that runs in the background ignores SIGINT, Dagster then lets this process ignore
    SIGTERM as well, and children inherit both. The process leads a group, so that a signal can be
    sent to all of its children, as a terminal does.
    """
    return subprocess.Popen(
        [os.fspath(word) for word in command],
        **{"stderr": subprocess.PIPE, "text": True, "start_new_session": True, "preexec_fn": _hear}
        | options,
    )


def _hear() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start_nanoset(*arguments: object, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start `nanoset` of this checkout; `before` is Python code that it runs first."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"} | options.pop("env", {})
    script = f"{before}\nfrom nanoset_core.cli import main\nmain()"
    return start([sys.executable, "-c", script, *map(str, arguments)], env=environment, **options)


def members(group: int) -> list[int]:
    """Return the ids of the living processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], Found], seconds: float = 60.0, pause: float = 0.02) -> Found:
    """Evaluate a condition until it is true or the time is over; return its last value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def interrupt(
    process: subprocess.Popen[str],
    numbers: Sequence[signal.Signals],
    when: Callable[[], object],
    *,
    group: bool = False,
) -> str:
    """Send signals to a process once `when` holds, and return what it wrote to stderr.

    The process must end, and no process of its group may be left.
    """
    try:
        assert wait_until(lambda: when() or process.poll() is not None, 120)
        assert process.poll() is None, process.communicate()
        for number in numbers:
            (os.killpg if group else os.kill)(process.pid, number)
            time.sleep(0.1)
        said = process.communicate(timeout=60)[1]
        assert wait_until(lambda: not members(process.pid))
    finally:
        process.kill()
        process.wait()
    return said


def check_interrupted(process: subprocess.Popen[str], said: str, number: signal.Signals) -> None:
    """Check that a build ended with the exit code of a signal, and said so in one sentence."""
    code = process.returncode  # negative where a second one came in the last moment
    assert (code if code >= 0 else 128 - code) == 128 + number, said
    assert said.count("run the same command again to continue") == 1, said
    assert ("interrupted: " if number == signal.SIGINT else f"ended by {number.name}: ") in said
    said = said.replace("raw_jsonl, tokenized_shards, indexed_dataset [web]", "")
    for noise in ("Traceback", "Error", "SpawnProcess", "Exception", "Aborted"):
        assert noise not in said, said


def start_forked(
    *arguments: object, environment: Mapping[str, str] | None = None, said: Path | None = None
) -> multiprocessing.process.BaseProcess:
    """Start `nanoset` in a process that is forked from one that has imported it already.

    This is faster than `start_nanoset`, which is for tests of imports and of the start of Python.
    The process leads a group. What it prints is appended to the file `said`.
    """
    quick = {name: os.environ[name] for name in (dagster_history.VARIABLE,) if name in os.environ}
    told = quick | dict(environment or {})
    process = _server().Process(target=_run, args=([*map(str, arguments)], told, said))
    process.start()
    return process


def _server() -> multiprocessing.context.ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(
        [
            "nanoset_assets.build",
            "nanoset_assets.commands",
            "nanoset_core.cli.commands.shuffle",
            "nanoset_core.stages.webdataset.standalone.preview",
            "nanoset_core.stages.webdataset.standalone.shuffle",
            "nanoset_core.stages.shards.make",
            "alembic.command",
            "pytest",
            "rich.progress",
            "tarfile",
            "tokenizers",
        ]
    )
    return server


def _run(arguments: list[str], environment: dict[str, str], said: Path | None) -> None:
    from nanoset_core.cli import main

    os.setsid()
    _hear()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python does when it starts
    os.environ.update(environment)
    dagster_history.quicken()
    if said is not None:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    main(arguments)
