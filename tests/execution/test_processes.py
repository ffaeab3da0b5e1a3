import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from helpers.child_processes import start, wait_until
from nanoset_core.errors import NanosetError
from nanoset_core.execution.processes import run_tasks

# Work is taken from the standard library: workers import it by name, without the help of this file.


def test_work_is_done_by_other_processes_and_no_more_than_asked():
    # eval("…", ) of a constant expression is the one builtin that tells which process it runs in.
    pids = {pid for _, pid in run_tasks(eval, ["__import__('os').getpid()"] * 12, 2)}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def test_one_worker_is_this_process():
    assert {pid for _, pid in run_tasks(eval, ["__import__('os').getpid()"] * 3, 1)} == {
        os.getpid()
    }


def test_workers_that_nobody_listens_to_work_on():
    report = "__import__('nanoset_core.execution.progress').execution.progress.report_progress"
    code = f"[{report}('x' * 500) for _ in range(1000)]"
    results = run_tasks(eval, [f"len({code})", f"len({code})"], 2)
    assert [result for _, result in results] == [1000, 1000]


def test_killed_worker_is_our_error():
    with pytest.raises(NanosetError, match="a worker process was killed") as caught:
        list(run_tasks(signal.raise_signal, [signal.SIGKILL] * 4, 2))
    assert "fewer workers" in caught.value.remedy


@pytest.mark.parametrize("when", ["before", "after"])
def test_worker_that_is_killed_while_another_is_started(monkeypatch, when):
    """The pool of the standard library then fails otherwise than it says, or waits for the new
    worker forever.
    """
    real = ProcessPoolExecutor._spawn_process

    def wait_for_the_end_of_the_first(pool):
        for process in list(pool._processes.values()):
            process.kill()  # its task may have gone to the second
            process.join()
            time.sleep(0.3)  # until the pool has seen to it

    def spawn(pool):
        if when == "before":
            wait_for_the_end_of_the_first(pool)
            return real(pool)
        # it is on the list only once it has been started
        processes, pool._processes = pool._processes, {}
        real(pool)
        started, pool._processes = pool._processes, processes
        wait_for_the_end_of_the_first(pool)
        processes.update(started)

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", spawn)
    with pytest.raises(NanosetError, match="a worker process was killed"):
        list(run_tasks(signal.raise_signal, [signal.SIGKILL, 0, 0, 0], 2))


def test_workers_end_when_nobody_listens():
    results = run_tasks(eval, ["__import__('os').getpid()", "__import__('time').sleep(600)"], 2)
    started = time.monotonic()
    _, pid = next(results)
    results.close()
    assert time.monotonic() - started < 300
    assert not alive(pid)


FORKED = """
import signal, threading
from nanoset_core.errors import NanosetError
from nanoset_core.execution.processes import forked_workers, run_tasks
known = [1, 2, 3]
asked = "__import__('sys').modules['__main__'].known, __import__('os').getpid()"
with forked_workers(2) as executor:
    read = []
    tasks = (read.append(number) or f"{number}, {asked}" for number in range(9))
    results = run_tasks(eval, tasks, 1, executor)
    first = next(results)
    print(len(read) < 9, sorted(number for number, _ in (first, *results)) == list(range(9)))
    print({tuple(known) for _, (known, pid) in run_tasks(eval, [asked] * 5, 1, executor)})
    try:
        list(run_tasks(eval, ["1/0", "2", "3"], 1, executor))
    except ZeroDivisionError:
        print(list(run_tasks(eval, ["4"], 1, executor)))
    try:
        list(run_tasks(signal.raise_signal, [signal.SIGKILL] * 4, 1, executor))
    except NanosetError as error:
        print(error.what)
with forked_workers(1) as none:
    print(none)
threading.Timer(60, print).start()
with forked_workers(2) as none:
    print(none)
    __import__("os")._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forking is not safe elsewhere")
def test_forked_workers():
    """They know what their owner knows, do several calls' work, and take tasks as they need them."""
    run = [sys.executable, "-u", "-c", FORKED]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "True True",
        "{(1, 2, 3)}",
        "[(0, 4)]",
        "a worker process was killed",
        "None",
        "None",
    ]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


OWNER = """
from contextlib import nullcontext
from nanoset_core.execution.processes import forked_workers, run_tasks
import sys
tasks = [f"print(__import__('os').getpid(), file=open({sys.argv[2]!r}, 'a')) or __import__('time').sleep({seconds})"
         for seconds in sys.argv[3:]]
with forked_workers(2) if sys.argv[1] == "fork" else nullcontext() as executor:
    list(run_tasks(eval, tasks, 2, executor))
"""


@pytest.fixture(params=["fork", "spawn"])
def owner(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that runs four long tasks with two workers; and those. Afterwards all have ended,
    without a word.
    """
    listing = tmp_path / "pids"
    process = start(
        [sys.executable, "-c", OWNER, request.param, str(listing), "60", "60", "60", "60"]
    )
    try:
        assert wait_until(lambda: listing.exists() and len(listing.read_text().split()) == 2)
        pids = [int(pid) for pid in listing.read_text().split()]
        assert all(map(alive, pids))
        yield process, pids
        assert wait_until(lambda: not any(map(alive, pids)))
        assert len(listing.read_text().split()) == 2
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_owner(owner, number):
    process, _ = owner
    process.send_signal(number)
    assert "Process-" not in process.communicate(timeout=20)[1]


def test_ctrl_c_is_the_owners(owner):
    """A terminal sends it to every process: workers wait for the owner's word, and say nothing."""
    process, pids = owner
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    assert all(map(alive, pids))
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=20)[1]
    assert "Process-" not in errors
    assert errors.count("KeyboardInterrupt") == 1


SCRIPT = """
from operator import neg
from nanoset_core.execution.processes import run_tasks
print("started", flush=True)
print(sorted(run_tasks(neg, [1, 2, 3], 2)))
"""


@pytest.mark.parametrize("way", ["script", "stdin", "module"])
def test_works_without_a_main_guard(tmp_path, way):
    (tmp_path / "unguarded.py").write_text(SCRIPT)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = {"script": ["unguarded.py"], "stdin": ["-"], "module": ["-m", "unguarded"]}[way]
    done = subprocess.run(
        [sys.executable, *command],
        input=SCRIPT if way == "stdin" else None,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["started", "[(0, -1), (1, -2), (2, -3)]"]


def test_main_module_is_as_before():
    main = sys.modules["__main__"]
    before = {name: main.__dict__.get(name) for name in ("__file__", "__spec__")}
    assert len(list(run_tasks(operator.neg, [1, 2, 3], 2))) == 3
    assert {name: main.__dict__.get(name) for name in ("__file__", "__spec__")} == before
