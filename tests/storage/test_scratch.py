import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanoset_core.storage import scratch as scratch_module
from nanoset_core.storage.atomic import published_folder
from nanoset_core.storage.scratch import (
    LOCK,
    UNFINISHED,
    claim_scratch,
    open_unfinished,
    sweep_abandoned,
    unfinished_link,
)

OWNER = """
import sys
from pathlib import Path
from nanoset_core.storage.atomic import published_folder
with published_folder(Path(sys.argv[1])) as scratch:
    (scratch / "half.bin").write_bytes(b"x" * 1000)
    print(scratch, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """Another process in the middle of publishing tmp_path/digest."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "digest")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline().strip()
    assert line, "the other process did not start"
    yield process, line
    process.kill()
    process.communicate()


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(UNFINISHED))


def test_scratch_of_a_living_process_stays(tmp_path, owner):
    process, scratch = owner
    sweep_abandoned(tmp_path)
    with published_folder(tmp_path / "other"):
        pass
    assert os.path.exists(f"{scratch}/half.bin")
    process.communicate("")
    assert process.returncode == 0
    assert (tmp_path / "digest" / "half.bin").read_bytes() == b"x" * 1000
    assert hidden(tmp_path) == []


def test_scratch_of_a_killed_process_goes(tmp_path, owner):
    process, scratch = owner
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.path.exists(f"{scratch}/half.bin")
    assert not (tmp_path / "digest").exists()
    with published_folder(tmp_path / "other"):
        pass
    assert hidden(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]


def test_folder_without_a_lock_goes(tmp_path):
    """Made before its folder and removed after it, a missing lock means that the owner died while cleaning up."""
    orphan = tmp_path / f"{UNFINISHED}digest-12345678"
    orphan.mkdir()
    (orphan / "file").touch()
    sweep_abandoned(tmp_path)
    assert hidden(tmp_path) == []


def test_lock_without_a_folder_goes(tmp_path):
    """As when its owner was killed before it made the folder."""
    (tmp_path / f"{UNFINISHED}digest-{scratch_module._host_mark()}-12345678{LOCK}").touch()
    sweep_abandoned(tmp_path)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(("days", "left"), [(6, 2), (8, 0)])
def test_scratch_of_another_machine_goes_after_a_week(tmp_path, days, left):
    lock = tmp_path / f"{UNFINISHED}digest-0therhst-12345678{LOCK}"
    lock.touch()
    lock.with_name(lock.name.removesuffix(LOCK)).mkdir()
    then = time.time() - days * 86400
    os.utime(lock, (then, then))
    sweep_abandoned(tmp_path)
    assert len(hidden(tmp_path)) == left


@pytest.mark.parametrize(("seconds", "left"), [(3000, 1), (4000, 0)])
def test_single_file_goes_after_an_hour(tmp_path, seconds, left):
    path = tmp_path / f"{UNFINISHED}current.json-12345678"
    path.touch()
    then = time.time() - seconds
    os.utime(path, (then, then))
    sweep_abandoned(tmp_path)
    assert len(hidden(tmp_path)) == left


def test_single_file_of_this_machine_goes_once_nobody_holds_it(tmp_path):
    file = open_unfinished(tmp_path / "current.json")
    sweep_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [Path(file.name)]
    file.close()
    sweep_abandoned(tmp_path)
    assert not hidden(tmp_path)


def test_other_names_are_left_alone(tmp_path):
    (tmp_path / "digest").mkdir()
    (tmp_path / ".hidden").touch()
    (tmp_path / "tmp-digest").mkdir()
    sweep_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "digest", "tmp-digest"]


def test_file_systems_without_locks(tmp_path, monkeypatch):
    """Lustre mounted without them answers ENOSYS: publishing works, and what may be alive is not swept."""

    def unsupported(file, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with published_folder(tmp_path / "digest") as scratch:
        (scratch / "file").touch()
        sweep_abandoned(tmp_path)
        assert scratch.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digest"]


def test_lock_that_a_sweep_removed_is_made_anew(tmp_path, monkeypatch):
    """Between opening the lock file and locking it another process may sweep it away."""
    real, calls = fcntl.flock, []

    def flock(file, operation):
        calls.append(file.name)
        if len(calls) == 1:
            os.unlink(file.name)
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with claim_scratch(tmp_path / "digest") as scratch:
        assert len(calls) == 2
        assert calls[0] != calls[1]
        assert scratch.with_name(scratch.name + LOCK).exists()
        monkeypatch.undo()
        sweep_abandoned(tmp_path)
        assert scratch.exists()
    assert hidden(tmp_path) == []


def test_links_of_processes_that_are_gone_are_swept_at_once(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    own = unfinished_link(tmp_path / "current")
    for name in (own.name, own.name.replace(f"-{os.getpid()}-", f"-{gone.pid}-")):
        (tmp_path / name).symlink_to("nowhere")
    sweep_abandoned(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [own.name]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_what_may_not_be_removed_is_left(tmp_path, monkeypatch, number):
    """A disk that became read-only, or a folder of another user: the sweep is no reason to fail."""
    left = open_unfinished(tmp_path / "current.json")
    left.close()
    (tmp_path / f"{UNFINISHED}digest-{scratch_module._host_mark()}-12345678{LOCK}").touch()

    def refuse(path, *arguments, **options):
        raise OSError(number, os.strerror(number), str(path))

    for name in ("open", "unlink"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, refuse)
            sweep_abandoned(tmp_path)
        assert len(hidden(tmp_path)) == 2
    sweep_abandoned(tmp_path)
    assert not hidden(tmp_path)
