"""Processes that tests start, send signals to, and see end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from helpers import dagster_history

ROOT = Path(__file__).parents[2]
Value = TypeVar("Value")


def start(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[str]:
    """Start a process that obeys signals, even if this one ignores them.

    A suite that runs in the background ignores SIGINT, Dagster then lets this process ignore
    SIGTERM as well, and children inherit both. The process leads a group, so that a signal can be
    sent to all of its children, as a terminal does.
    """
    defaults: dict[str, Any] = {
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
        "preexec_fn": _obey_signals,
    }
    words = [os.fspath(word) for word in command]
    return subprocess.Popen(words, **(defaults | options))


def _obey_signals() -> None:
    """Let signals end this process, whatever its parent has set."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start_nanoset(*arguments: object, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start `nanoset` of this checkout; `before` is Python code that it runs first."""
    path = str(ROOT)
    if os.environ.get("PYTHONPATH"):
        path = os.pathsep.join([path, os.environ["PYTHONPATH"]])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"} | options.pop("env", {})
    script = f"{before}\nfrom nanoset_core.cli import main\nmain()"
    return start([sys.executable, "-c", script, *map(str, arguments)], env=environment, **options)


def members(group: int) -> list[int]:
    """Return the ids of the living processes of a group."""
    process_ids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
        # The name of the program may contain spaces: the fields after it follow its bracket.
        fields = text.rpartition(")")[2].split()
        is_zombie = fields[0] == "Z"
        if int(fields[2]) == group and not is_zombie:
            process_ids.append(int(stat.parent.name))
    return process_ids


def wait_until(condition: Callable[[], Value], seconds: float = 60.0, pause: float = 0.02) -> Value:
    """Evaluate a condition until it is true or the time is over; return its last value."""
    deadline = time.monotonic() + seconds
    value = condition()
    while not value and time.monotonic() < deadline:
        time.sleep(pause)
        value = condition()
    return value


def interrupt(
    process: subprocess.Popen[str] | ForkedCommand,
    numbers: Sequence[signal.Signals],
    when: Callable[[], object],
    *,
    group: bool = False,
) -> str:
    """Send signals to a process once `when` holds, and return what it wrote to stderr.

    Fails if the process has ended before, or if it or another process of its group does not end
    after the signals.

    Args:
        process: The process, which leads a group.
        numbers: The signals, which are sent shortly after one another.
        when: Returns whether it is time to send them.
        group: Whether all processes of the group get them.
    """
    send = os.killpg if group else os.kill
    try:
        assert wait_until(lambda: when() or process.poll() is not None, 120)
        assert process.poll() is None, process.communicate()
        for number in numbers:
            send(process.pid, number)
            time.sleep(0.1)
        stderr = process.communicate(timeout=60)[1]
        assert wait_until(lambda: not members(process.pid))
    finally:
        process.kill()
        process.wait()
    return stderr


def check_interrupted(
    process: subprocess.Popen[str] | ForkedCommand, stderr: str, number: signal.Signals
) -> None:
    """Check that a build ended with the exit code of a signal, and said so in one sentence.

    Args:
        process: The process, which has ended.
        stderr: What it wrote to stderr.
        number: The first signal that was sent to it.
    """
    code = process.returncode
    if code < 0:  # a second signal arrived in the last moment, and ended Python itself
        code = 128 - code
    assert code == 128 + number, stderr
    assert stderr.count("run the same command again to continue") == 1, stderr
    reason = "interrupted: " if number == signal.SIGINT else f"ended by {number.name}: "
    assert reason in stderr

    other_text = stderr.replace("raw_jsonl, tokenized_shards, indexed_dataset [web]", "")
    for noise in ("Traceback", "Error", "SpawnProcess", "Exception", "Aborted"):
        assert noise not in other_text, stderr


def start_forked(
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    output: Path | None = None,
    stdout: Connection | None = None,
) -> multiprocessing.process.BaseProcess:
    """Start `nanoset` in a process that is forked from one that has imported it already.

    This is faster than `start_nanoset`, which is for tests of imports and of the start of Python.
    The process leads a group, and has the variables of this process and those of `environment`.
    What it prints is appended to the file `output`, and what it prints to standard output is
    written to the pipe `stdout` instead, if one is given.
    """
    # The process that is forked has the variables of the test that started it.
    variables = {**os.environ, **(environment or {})}
    words = [str(argument) for argument in arguments]
    process = forking_context().Process(target=_run, args=(words, variables, output, stdout))
    process.start()
    return process


class ForkedCommand:
    """`nanoset` in a process that `start_forked` starts, with the methods of a `Popen`."""

    def __init__(self, *arguments: object, output: Path) -> None:
        """Start the command.

        Args:
            arguments: Words after `nanoset`.
            output: The file of what it prints.
        """
        self._output = output
        self._process = start_forked(*arguments, output=output)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, minus the number of the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the same as `returncode`."""
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Wait for its end, and return what it printed as the second value, like stderr.

        Raises:
            TimeoutError: It has not ended in time.
        """
        self._process.join(timeout)
        if self._process.is_alive():
            raise TimeoutError(f"process {self.pid} has not ended after {timeout} s")
        return None, self._output.read_text()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.join()


def forking_context() -> multiprocessing.context.ForkServerContext:
    """Return what forks processes that have imported everything that commands need."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(
        [
            "nanoset_assets.build.builder",
            "nanoset_assets.commands",
            "nanoset_core.cli.commands.shuffle",
            "nanoset_core.stages.webdataset.standalone.preview",
            "nanoset_core.stages.webdataset.standalone.shuffle",
            "nanoset_core.stages.shards.one_shard",
            "alembic.command",
            "botocore.session",
            "pytest",
            "rich.progress",
            "tarfile",
            "tokenizers",
        ]
    )
    return server


def _run(
    arguments: list[str],
    environment: dict[str, str],
    output: Path | None,
    stdout: Connection | None,
) -> None:
    """Run `nanoset` in this process, as `start_forked` says."""
    from nanoset_core.cli import main

    os.setsid()
    _obey_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python does when it starts
    os.environ.clear()
    os.environ.update(environment)
    dagster_history.quicken()
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    if stdout is not None:
        os.dup2(stdout.fileno(), 1)
    main(arguments)
