"""Tasks that run in worker processes of this machine, which are spawned or forked."""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.child_processes import start, wait_until
from helpers.worker_tasks import process_id, process_id_after, report_many_notes
from nanoset_core.errors import NanosetError
from nanoset_core.execution.processes import run_tasks

IMPORT_PATH = os.pathsep.join(path for path in sys.path if path)


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"  # a process that has ended, which its parent has not noticed


def are_alive(pids: list[int]) -> bool:
    """Return whether any of some processes is alive."""
    return any(is_alive(pid) for pid in pids)


# Spawned workers


def test_tasks_run_in_at_most_as_many_processes_as_requested():
    results = run_tasks(process_id, range(12), 2)

    pids = {pid for _number, pid in results}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def test_the_tasks_of_a_single_worker_run_in_this_process():
    results = run_tasks(process_id, range(3), 1)

    assert {pid for _number, pid in results} == {os.getpid()}


def test_workers_do_not_wait_if_nobody_reads_their_progress():
    n_notes = 1000  # of 500 bytes, far more than a pipe holds

    results = run_tasks(report_many_notes, [n_notes, n_notes], 2)

    assert [result for _number, result in results] == [n_notes, n_notes]


def test_workers_end_if_the_results_are_not_read_to_their_end():
    results = run_tasks(process_id_after, [0, 600], 2)
    start_time = time.monotonic()
    _number, pid = next(results)

    results.close()

    assert time.monotonic() - start_time < 300, "the long task was waited for"
    assert not is_alive(pid)


def test_workers_do_not_change_the_main_module():
    main_module = vars(sys.modules["__main__"])
    file_before = main_module.get("__file__")
    spec_before = main_module.get("__spec__")

    results = list(run_tasks(operator.neg, [1, 2, 3], 2))

    assert len(results) == 3
    assert main_module.get("__file__") == file_before
    assert main_module.get("__spec__") == spec_before


UNGUARDED = """
from operator import neg
from nanoset_core.execution.processes import run_tasks

print("started", flush=True)
print(sorted(run_tasks(neg, [1, 2, 3], 2)))
"""
"""A script without the guard `if __name__ == "__main__"`."""


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        pytest.param(["unguarded.py"], None, id="script"),
        pytest.param(["-"], UNGUARDED, id="stdin"),
        pytest.param(["-m", "unguarded"], None, id="module"),
    ],
)
def test_workers_do_not_run_a_script_without_a_main_guard_again(tmp_path, arguments, stdin):
    (tmp_path / "unguarded.py").write_text(UNGUARDED)

    process = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert process.stderr == ""
    assert process.stdout.splitlines() == ["started", "[(0, -1), (1, -2), (2, -3)]"]


# Workers that are killed


def test_a_killed_worker_is_reported_with_advice_on_memory():
    with pytest.raises(NanosetError, match="a worker process was killed") as caught:
        list(run_tasks(signal.raise_signal, [signal.SIGKILL] * 4, 2))

    assert "fewer workers" in caught.value.remedy
    assert caught.value.where is None  # the name of a function would mean nothing to users


def kill_workers(pool: ProcessPoolExecutor) -> None:
    """Kill all workers of a pool, and wait until the pool has noticed it."""
    for process in list(pool._processes.values()):
        process.kill()  # its task may have gone to another worker
        process.join()
        time.sleep(0.3)


def kill_before_start(pool: ProcessPoolExecutor, start_worker: Any) -> None:
    """Let the workers die before the pool starts another one."""
    kill_workers(pool)
    start_worker(pool)


def kill_after_start(pool: ProcessPoolExecutor, start_worker: Any) -> None:
    """Let the workers die after the pool has started another one, which it does not list yet."""
    earlier_workers = pool._processes
    pool._processes = {}
    start_worker(pool)
    new_workers = pool._processes
    pool._processes = earlier_workers
    kill_workers(pool)
    earlier_workers.update(new_workers)


@pytest.mark.parametrize("kill", [kill_before_start, kill_after_start])
def test_a_worker_that_is_killed_while_another_one_starts_is_reported(monkeypatch, kill):
    """The pool of the standard library then raises an undocumented error, or waits for the new
    worker forever.
    """
    start_worker = ProcessPoolExecutor._spawn_process
    monkeypatch.setattr(
        ProcessPoolExecutor, "_spawn_process", lambda pool: kill(pool, start_worker)
    )

    with pytest.raises(NanosetError, match="a worker process was killed"):
        list(run_tasks(signal.raise_signal, [signal.SIGKILL, 0, 0, 0], 2))


# Forked workers: a script uses them, since this process may have other threads

FORK = """
import json, os, signal, threading
from nanoset_core.errors import NanosetError
from nanoset_core.execution.processes import forked_workers, run_tasks

known = None
observed = {}


def known_in_worker(_task):
    return known


def inverse(number):
    return 1 / number


def tasks():
    for number in range(1, 10):
        observed["tasks read"] = number
        yield number


known = [1, 2, 3]
with forked_workers(2) as executor:
    results = run_tasks(inverse, tasks(), 1, executor)
    first_result = next(results)
    observed["tasks read for the first result"] = observed["tasks read"]
    observed["task numbers"] = sorted(number for number, _ in [first_result, *results])

    observed["known"] = [result for _, result in run_tasks(known_in_worker, range(5), 1, executor)]

    try:
        list(run_tasks(inverse, [0, 2, 3], 1, executor))
    except ZeroDivisionError:
        observed["after an error"] = list(run_tasks(inverse, [4], 1, executor))

    try:
        list(run_tasks(signal.raise_signal, [signal.SIGKILL] * 4, 1, executor))
    except NanosetError as error:
        observed["killed"] = error.what

with forked_workers(1) as executor:
    observed["a single worker"] = executor
threading.Thread(target=threading.Event().wait, daemon=True).start()
with forked_workers(2) as executor:
    observed["with another thread"] = executor
print(json.dumps(observed))
"""


@pytest.fixture(scope="module")
def observed() -> dict[str, Any]:
    """What a script observes that uses forked workers."""
    if sys.platform != "linux":
        pytest.skip("forking is not safe on other systems")
    process = subprocess.run(
        [sys.executable, "-u", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.stderr == ""
    observed: dict[str, Any] = json.loads(process.stdout)
    return observed


def test_forked_workers_take_tasks_as_they_need_them(observed):
    assert observed["tasks read for the first result"] < 9
    assert observed["task numbers"] == list(range(9))


def test_forked_workers_know_what_their_owner_knows(observed):
    assert observed["known"] == [[1, 2, 3]] * 5


def test_forked_workers_can_be_used_after_an_error(observed):
    assert observed["after an error"] == [[0, 0.25]]


def test_a_killed_forked_worker_is_reported(observed):
    assert observed["killed"] == "a worker process was killed"


def test_a_single_worker_is_not_forked(observed):
    assert observed["a single worker"] is None


def test_workers_are_not_forked_if_another_thread_runs(observed):
    assert observed["with another thread"] is None


# The owner of workers is killed or interrupted

OWNER = """
import sys
from contextlib import nullcontext
from pathlib import Path
from helpers.worker_tasks import note_process_id_and_sleep
from nanoset_core.execution.processes import forked_workers, run_tasks

method, file = sys.argv[1:]
workers = forked_workers(2) if method == "fork" else nullcontext()
with workers as executor:
    list(run_tasks(note_process_id_and_sleep, [Path(file)] * 4, 2, executor))
"""


class Owner(NamedTuple):
    """A process that runs four long tasks with two workers."""

    process: subprocess.Popen[str]
    worker_pids: list[int]


@pytest.fixture(params=["fork", "spawn"])
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Owner]:
    """A process with two workers, which must end in the test, and begin no further task."""
    file = tmp_path / "pids"
    process = start(
        [sys.executable, "-c", OWNER, request.param, file],
        env=os.environ | {"PYTHONPATH": IMPORT_PATH},
    )

    def pids_of_tasks() -> list[int]:
        if not file.exists():
            return []
        return [int(line) for line in file.read_text().split()]

    try:
        assert wait_until(lambda: len(pids_of_tasks()) == 2)
        worker_pids = pids_of_tasks()
        assert all(is_alive(pid) for pid in worker_pids)
        yield Owner(process, worker_pids)
        assert wait_until(lambda: not are_alive(worker_pids))
        assert len(pids_of_tasks()) == 2
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_silently_when_their_owner_is_killed_or_interrupted(owner, number):
    owner.process.send_signal(number)

    _, errors = owner.process.communicate(timeout=20)

    assert "Process-" not in errors


def test_ctrl_c_in_a_terminal_is_left_to_the_owner_of_the_workers(owner):
    """A terminal sends the signal to all processes; the workers must not print tracebacks."""
    for pid in owner.worker_pids:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    assert all(is_alive(pid) for pid in owner.worker_pids)

    os.killpg(owner.process.pid, signal.SIGINT)
    _, errors = owner.process.communicate(timeout=20)

    assert "Process-" not in errors
    assert errors.count("KeyboardInterrupt") == 1
