"""Files and folders that appear whole, and what killed processes left unfinished."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.storage import process_marks
from nanoset_core.storage.atomic import (
    UNFINISHED,
    atomic_file,
    open_unfinished,
    point_to,
    published_folder,
    sweep_abandoned,
    unfinished_name,
    write_atomic,
)
from nanoset_core.storage.location import local_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_folder_appears_whole_and_alone(tmp_path):
    final = tmp_path / "stage" / "name" / "digest"
    with published_folder(final) as scratch:
        (scratch / "sub").mkdir()
        (scratch / "sub" / "file").write_bytes(b"inside")
        assert not final.exists()
        assert scratch.name.startswith(".")
    assert (final / "sub" / "file").read_bytes() == b"inside"
    assert names(final.parent) == ["digest"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("had", [True, False])
def test_failure_leaves_the_old_folder_or_none(tmp_path, error, had):
    final = tmp_path / "digest"
    if had:
        final.mkdir()
        (final / "file").write_bytes(b"old")

    def fail():
        with published_folder(final) as scratch:
            (scratch / "file").write_bytes(b"new")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert names(tmp_path) == (["digest"] if had else [])
    assert not had or (final / "file").read_bytes() == b"old"


def test_twin_published_meanwhile_stays_when_asked(tmp_path):
    final = tmp_path / "digest"
    with published_folder(final, keep=lambda: (final / "file").read_bytes() == b"first") as scratch:
        (scratch / "file").write_bytes(b"second")
        with published_folder(final) as other:
            (other / "file").write_bytes(b"first")
        inode = final.stat().st_ino
    assert (final / "file").read_bytes() == b"first"
    assert final.stat().st_ino == inode
    assert names(tmp_path) == ["digest"]


def test_many_publishers_of_one_folder(tmp_path):
    final = tmp_path / "digest"

    def publish(number: int) -> int:
        for _ in range(20):
            with published_folder(final, keep=lambda: number % 2 == 0) as scratch:
                (scratch / "file").write_bytes(b"same bytes")
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(publish, range(4))) == [0, 1, 2, 3]
    assert names(tmp_path) == ["digest"]
    assert (final / "file").read_bytes() == b"same bytes"


def test_everything_is_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    """fsync of each file and folder, then rename, then fsync of the parent."""
    events = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(handle: int) -> None:
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        real_fsync(handle)

    def rename(self: Path, target: Path) -> Path:
        events.append(("rename", Path(target).name))
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    with published_folder(tmp_path / "digest") as scratch:
        (scratch / "sub").mkdir()
        (scratch / "sub" / "a").write_bytes(b"a")
        (scratch / "b").write_bytes(b"b")
        name = scratch.name
    before, after = (
        events[: events.index(("rename", "digest"))],
        events[events.index(("rename", "digest")) + 1 :],
    )
    assert {name for kind, name in before if kind == "fsync"} == {"a", "b", "sub", name}
    assert before[-1] == ("fsync", name)
    assert after == [("fsync", tmp_path.name)]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path, monkeypatch, error):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(handle: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write_atomic(path, b"new")
    with pytest.raises(KeyError), atomic_file(path) as file:
        file.write(b"new")
        raise KeyError
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_point_to_swaps_a_link_where_there_are_links(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    point_to(tmp_path / "current", "one")
    point_to(tmp_path / "current", "two")
    assert (tmp_path / "current").readlink() == Path("two")
    assert names(tmp_path) == ["current", "one", "two"]

    def refuse(self: Path, target: str) -> None:
        raise OSError(errno.EPERM, "not on this file system")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    point_to(tmp_path / "current", "one")
    assert names(tmp_path) == ["current", "one", "two"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("data", "/base/data"),
        ("../data", "/data"),
        ("/abs/data", "/abs/data"),
        ("file:///abs/data", "/abs/data"),
        ("~/data", str(Path.home() / "data")),
    ],
)
def test_local_path(url, expected):
    assert local_path(url, base=Path("/base"), where="x") == Path(expected)


def test_local_path_refuses_buckets():
    with pytest.raises(ConfigError, match="only local files") as caught:
        local_path("s3://bucket/prefix", base=Path("/base"), where="nanoset.yaml: raw")
    assert caught.value.where == "nanoset.yaml: raw"
    assert caught.value.remedy


def test_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []
    rename = os.replace
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("sync"))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("rename"), rename(*paths)))
    with atomic_file(tmp_path / "file") as file:
        file.write(b"new")
    assert calls == ["sync", "rename", "sync"]


def test_a_file_appears_at_the_end_and_its_mode_follows_the_umask(tmp_path):
    target, before = tmp_path / "deep" / "file", os.umask(0o027)
    try:
        with atomic_file(target) as file:
            file.write(b"new")
            assert not target.exists()
    finally:
        os.umask(before)
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


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
def test_what_other_machines_and_older_versions_left_goes_by_its_age(
    tmp_path, name, hours, is_left
):
    path = tmp_path / f"{UNFINISHED}{name}"
    path.mkdir() if name.endswith("/") else path.touch()
    then = time.time() - hours * 3600
    os.utime(path, (then, then))
    sweep_abandoned(tmp_path)
    assert path.exists() is is_left


def of_another_process(path, pid, start=""):
    """Rename what this process made, as if a process of that number had."""
    own = process_marks.new_mark().rpartition("-")[0]
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
    assert list(tmp_path.iterdir()) == [Path(living.name)], (
        "another process of the same number is not its owner"
    )
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
def test_what_was_made_before_a_restart_goes_at_once_on_a_disk(
    tmp_path, monkeypatch, place, is_on_disk
):
    here = process_marks._machine()
    host, boot, own = here[:4], here[4:8], here[8:]
    machine = {
        "this": here,
        "restarted": f"{host}zzzzzzzz",
        "elsewhere": "zzzzzzzzzzzz",
        "container": f"{host}{boot}zzzz",
    }[place]
    assert len(here) == 12
    assert own
    left = (
        tmp_path
        / f"{UNFINISHED}digest-{machine}-{os.getpid()}.{process_marks._start_of(os.getpid())}-123456"
    )
    left.mkdir()
    monkeypatch.setattr(os, "major", lambda _: int(is_on_disk))
    sweep_abandoned(tmp_path)
    assert left.exists() is not (place == "restarted" and is_on_disk)


def test_a_process_of_another_user_is_told_by_its_start(monkeypatch):
    mark = process_marks.new_mark()
    machine, process, _ = mark.split("-")
    pid, _, start = process.partition(".")

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert process_marks.is_owner_alive(mark) is True
    assert process_marks.is_owner_alive(f"{machine}-{pid}.{int(start) - 1}-123456") is False
    assert process_marks.is_owner_alive(f"{machine}-{pid}.-123456") is None
    monkeypatch.setattr(process_marks, "_start_of", lambda _: None)
    assert process_marks.is_owner_alive(mark) is None, "/proc may hide processes of others"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_a_process_that_ended_and_was_not_waited_for_is_dead():
    """As in a container without an init."""
    program = "from nanoset_core.storage import process_marks; print(process_marks.new_mark(), flush=True)"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    mark = child.stdout.readline().strip()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}/stat").exists()
    assert process_marks.is_owner_alive(mark) is False
    child.communicate()


def test_a_folder_in_the_place_of_a_link_leaves_nothing_unfinished(tmp_path):
    (tmp_path / "current").mkdir()
    with pytest.raises(OSError, match="irectory"):
        point_to(tmp_path / "current", "target")
    assert [path.name for path in tmp_path.iterdir()] == ["current"]
