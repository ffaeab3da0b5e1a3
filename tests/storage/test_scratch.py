import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanoset_core.storage import atomic as scratch_module
from nanoset_core.storage.atomic import UNFINISHED, open_unfinished, published_folder, sweep_abandoned, unfinished_name

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


@pytest.mark.parametrize(
    ("name", "hours", "is_left"),
    [
        ("digest-0therm4chine-1.2-123456/", 6 * 24, True),
        ("digest-0therm4chine-1.2-123456/", 8 * 24, False),
        ("file-0therm4chine-1.2-123456", 0.9, True),
        ("file-0therm4chine-1.2-123456", 1.1, False),
        ("digest-01234567-12345678/", 6 * 24, True),
        ("digest-01234567-12345678/", 8 * 24, False),
        ("current.json-12345678", 0.9, True),
        ("current.json-12345678", 1.1, False),
    ],
)
def test_what_other_machines_and_older_versions_left_goes_by_its_age(tmp_path, name, hours, is_left):
    path = tmp_path / f"{UNFINISHED}{name}"
    path.mkdir() if name.endswith("/") else path.touch()
    then = time.time() - hours * 3600
    os.utime(path, (then, then))
    sweep_abandoned(tmp_path)
    assert path.exists() is is_left


def of_another_process(path, pid, start=""):
    """Rename what this process made, as if a process of that number had."""
    own = scratch_module.new_mark().rpartition("-")[0]
    other = f"{own.partition('-')[0]}-{pid}.{start}"
    path.rename(path.with_name(path.name.replace(own, other)))


def test_files_and_links_go_once_their_process_is_gone(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    for left in (str(gone.pid), str(os.getpid())):
        for name in ("file", "link"):
            path = unfinished_name(tmp_path / name)
            path.symlink_to("nowhere") if name == "link" else path.touch()
            of_another_process(path, left, start="" if left == str(gone.pid) else "7")
    living = open_unfinished(tmp_path / "current.json")
    sweep_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [Path(living.name)], "another process of the same number is not its owner"
    living.close()


def test_a_process_that_was_killed_but_not_waited_for_is_gone(tmp_path, owner):
    process, scratch = owner
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    sweep_abandoned(tmp_path)
    assert not os.path.exists(scratch)


def test_other_names_are_left_alone(tmp_path):
    (tmp_path / "digest").mkdir()
    (tmp_path / ".hidden").touch()
    (tmp_path / "tmp-digest").mkdir()
    sweep_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "digest", "tmp-digest"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_what_may_not_be_removed_is_left(tmp_path, monkeypatch, number):
    """A disk that became read-only, or a folder of another user: the sweep is no reason to fail."""
    for name in ("current.json", "digest"):
        path = tmp_path / f"{UNFINISHED}{name}-12345678"
        path.touch()
        os.utime(path, (1e9, 1e9))

    def refuse(path, *arguments, **options):
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        sweep_abandoned(tmp_path)
    assert len(hidden(tmp_path)) == 2
    sweep_abandoned(tmp_path)
    assert not hidden(tmp_path)


@pytest.mark.parametrize("place", ["this", "restarted", "elsewhere", "container"])
@pytest.mark.parametrize("is_on_disk", [True, False])
def test_what_was_made_before_a_restart_goes_at_once_on_a_disk(tmp_path, monkeypatch, place, is_on_disk):
    here = scratch_module._machine()
    host, boot, own = here[:4], here[4:8], here[8:]
    machine = {
        "this": here,
        "restarted": f"{host}zzzzzzzz",
        "elsewhere": "zzzzzzzzzzzz",
        "container": f"{host}{boot}zzzz",
    }[place]
    assert len(here) == 12
    assert own
    left = tmp_path / f"{UNFINISHED}digest-{machine}-{os.getpid()}.{scratch_module._start_of(os.getpid())}-123456"
    left.mkdir()
    monkeypatch.setattr(os, "major", lambda _: int(is_on_disk))
    sweep_abandoned(tmp_path)
    assert left.exists() is not (place == "restarted" and is_on_disk)


def test_a_process_of_another_user_is_told_by_its_start(monkeypatch):
    mark = scratch_module.new_mark()
    machine, process, _ = mark.split("-")
    pid, _, start = process.partition(".")

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert scratch_module.is_owner_alive(mark) is True
    assert scratch_module.is_owner_alive(f"{machine}-{pid}.{int(start) - 1}-123456") is False
    assert scratch_module.is_owner_alive(f"{machine}-{pid}.-123456") is None
    monkeypatch.setattr(scratch_module, "_start_of", lambda _: None)
    assert scratch_module.is_owner_alive(mark) is None, "/proc may hide processes of others"
