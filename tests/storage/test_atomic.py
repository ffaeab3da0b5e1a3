"""Files and folders appear as a whole, and what killed processes left unfinished is removed."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from nanoset_core.errors import ConfigError, StorageError
from nanoset_core.storage.atomic import (
    UNFINISHED,
    atomic_file,
    open_unfinished,
    point_to,
    published_folder,
    sweep_abandoned,
    unfinished_name,
    withdrawn,
    write_atomic,
)
from nanoset_core.storage.in_use import process_marks
from nanoset_core.storage.location import local_path

HOUR = 3600
DAY = 24 * HOUR


def names_in(folder: Path) -> list[str]:
    """Return the sorted names of the files and folders in a folder."""
    return sorted(path.name for path in folder.iterdir())


def unfinished_names_in(folder: Path) -> list[str]:
    """Return the sorted names of the unfinished files and folders in a folder."""
    return [name for name in names_in(folder) if name.startswith(UNFINISHED)]


# Folders


def test_a_folder_appears_when_all_of_its_files_are_written(tmp_path):
    final = tmp_path / "stage" / "name" / "digest"

    with published_folder(final) as scratch:
        (scratch / "sub").mkdir()
        (scratch / "sub" / "file").write_bytes(b"inside")
        assert not final.exists()
        assert scratch.name.startswith(".")

    assert (final / "sub" / "file").read_bytes() == b"inside"
    assert names_in(final.parent) == ["digest"]


ERRORS = [ValueError("no"), KeyboardInterrupt(), SystemExit(1)]


def publish_and_fail(final: Path, error: BaseException) -> None:
    """Begin to publish a folder with a file, and raise an error before the end."""
    with published_folder(final) as scratch:
        (scratch / "file").write_bytes(b"new")
        raise error


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_folder_that_fails_does_not_appear(tmp_path, error):
    with pytest.raises(type(error)):
        publish_and_fail(tmp_path / "digest", error)

    assert names_in(tmp_path) == []


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_folder_that_fails_does_not_replace_the_old_one(tmp_path, error):
    final = tmp_path / "digest"
    final.mkdir()
    (final / "file").write_bytes(b"old")

    with pytest.raises(type(error)):
        publish_and_fail(final, error)

    assert names_in(tmp_path) == ["digest"]
    assert (final / "file").read_bytes() == b"old"


def test_a_folder_that_another_process_has_published_meanwhile_may_be_kept(tmp_path):
    final = tmp_path / "digest"

    def is_first_one() -> bool:
        return (final / "file").read_bytes() == b"first"

    with published_folder(final, keep=is_first_one) as scratch:
        (scratch / "file").write_bytes(b"second")
        with published_folder(final) as other_scratch:
            (other_scratch / "file").write_bytes(b"first")
        inode = final.stat().st_ino

    assert (final / "file").read_bytes() == b"first"
    assert final.stat().st_ino == inode
    assert names_in(tmp_path) == ["digest"]


def test_several_processes_may_publish_the_same_folder_at_once(tmp_path):
    final = tmp_path / "digest"

    def publish_repeatedly(number: int) -> int:
        keeps_other_folder = number % 2 == 0
        for _ in range(20):
            with published_folder(final, keep=lambda: keeps_other_folder) as scratch:
                (scratch / "file").write_bytes(b"same bytes")
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(publish_repeatedly, range(4))) == [0, 1, 2, 3]

    assert names_in(tmp_path) == ["digest"]
    assert (final / "file").read_bytes() == b"same bytes"


# Folders that are withdrawn


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The folder of an output with one file."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "tokens.bin").write_bytes(b"only copy")
    return folder


def refuse_to_rename_back(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let every rename of an unfinished folder fail with an error of the system."""
    rename = Path.rename

    def rename_once(path: Path, target: Path) -> Path:
        if path.name.startswith(UNFINISHED):
            raise OSError(number, os.strerror(number))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_once)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_an_output_in_use_that_cannot_be_renamed_back_is_not_deleted(output, monkeypatch, number):
    refuse_to_rename_back(monkeypatch, number)

    with pytest.raises(StorageError, match="cannot be renamed back") as caught:
        withdrawn(output, lambda: True)

    (hidden_name,) = unfinished_names_in(output.parent)
    hidden_folder = output.parent / hidden_name
    assert (hidden_folder / "tokens.bin").read_bytes() == b"only copy"
    assert caught.value.where == str(hidden_folder)


def test_an_output_stays_if_it_cannot_be_found_out_whether_it_is_in_use(output):
    def fail() -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="error"):
        withdrawn(output, fail)

    assert names_in(output.parent) == ["web"]
    assert (output / "tokens.bin").read_bytes() == b"only copy"


def test_an_output_that_was_made_again_while_it_was_withdrawn_stays(output):
    def is_made_again() -> bool:
        output.mkdir()
        (output / "tokens.bin").write_bytes(b"second copy")
        return True

    assert withdrawn(output, is_made_again) is None

    assert names_in(output.parent) == ["web"]
    assert (output / "tokens.bin").read_bytes() == b"second copy"


class FileSystemCall(NamedTuple):
    """A call that makes something durable or visible."""

    kind: str
    """`fsync` or `rename`."""
    name: str
    """Name of the file or folder; of a rename, the new one."""


@pytest.fixture
def file_system_calls(monkeypatch: pytest.MonkeyPatch) -> list[FileSystemCall]:
    """The calls of fsync and `Path.rename`, which are still carried out, in order."""
    calls: list[FileSystemCall] = []
    real_fsync = os.fsync
    real_rename = Path.rename

    def fsync(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        calls.append(FileSystemCall("fsync", path.name))
        real_fsync(handle)

    def rename(self: Path, target: Path) -> Path:
        calls.append(FileSystemCall("rename", Path(target).name))
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    return calls


def test_a_folder_is_on_the_disk_before_it_gets_its_name(tmp_path, file_system_calls):
    """Otherwise, a power failure could leave a finished folder with empty files."""
    with published_folder(tmp_path / "digest") as scratch:
        (scratch / "sub").mkdir()
        (scratch / "sub" / "a").write_bytes(b"a")
        (scratch / "b").write_bytes(b"b")

    # First all files and folders, the folder itself last; then the rename; then its parent.
    rename_index = file_system_calls.index(FileSystemCall("rename", "digest"))
    calls_before = file_system_calls[:rename_index]
    calls_after = file_system_calls[rename_index + 1 :]
    synced_before = {call.name for call in calls_before if call.kind == "fsync"}
    assert synced_before == {"a", "b", "sub", scratch.name}
    assert calls_before[-1] == FileSystemCall("fsync", scratch.name)
    assert calls_after == [FileSystemCall("fsync", tmp_path.name)]


# Files


def test_a_file_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "deep" / "file"

    with atomic_file(target) as file:
        file.write(b"new")
        assert not target.exists()

    assert target.read_bytes() == b"new"
    assert names_in(target.parent) == ["file"]


def test_the_mode_of_a_file_follows_the_umask(tmp_path):
    umask_before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "file") as file:
            file.write(b"new")
    finally:
        os.umask(umask_before)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()], ids=repr
)
def test_a_file_that_cannot_reach_the_disk_leaves_the_old_one(tmp_path, monkeypatch, error):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(_handle: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write_atomic(path, b"new")

    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["file"]


def test_a_file_whose_writer_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    with pytest.raises(KeyError), atomic_file(path) as file:
        file.write(b"new")
        raise KeyError

    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["file"]


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    calls = []
    real_replace = os.replace

    def replace(source: str, target: str) -> None:
        calls.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("sync"))
    monkeypatch.setattr(os, "replace", replace)

    with atomic_file(tmp_path / "file") as file:
        file.write(b"new")

    assert calls == ["sync", "rename", "sync"]


# Symbolic links


def test_a_link_is_replaced_by_another_one(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    point_to(link, "one")

    point_to(link, "two")

    assert link.readlink() == Path("two")
    assert names_in(tmp_path) == ["current", "one", "two"]


def test_a_file_system_without_links_gets_none(tmp_path, monkeypatch):
    point_to(tmp_path / "current", "two")

    def refuse(self: Path, target: str) -> None:
        raise OSError(errno.EPERM, "not on this file system")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    point_to(tmp_path / "current", "one")

    assert names_in(tmp_path) == ["current"]


def test_a_folder_in_the_place_of_a_link_is_an_error_that_leaves_nothing_unfinished(tmp_path):
    (tmp_path / "current").mkdir()

    with pytest.raises(OSError, match="irectory"):
        point_to(tmp_path / "current", "target")

    assert names_in(tmp_path) == ["current"]


# Paths in settings


@pytest.mark.parametrize(
    ("url", "path"),
    [
        pytest.param("data", "/base/data", id="relative"),
        pytest.param("../data", "/data", id="relative to the parent"),
        pytest.param("/abs/data", "/abs/data", id="absolute"),
        pytest.param("file:///abs/data", "/abs/data", id="file URL"),
        pytest.param("~/data", str(Path.home() / "data"), id="home"),
        pytest.param("./~data", "/base/~data", id="name that begins with a tilde"),
        pytest.param("./x://y", "/base/x:/y", id="folder whose name ends with a colon"),
    ],
)
def test_a_local_path_in_settings_is_relative_to_their_folder(url, path):
    assert local_path(url, base=Path("/base"), where="x") == Path(path)


@pytest.mark.parametrize("path", ["${DATA}/out", "$DATA/out", "out/$DATA", "out-${DATA}"])
def test_a_variable_in_a_path_is_refused_because_it_is_not_replaced(tmp_path, path):
    with pytest.raises(ConfigError, match="variables are not replaced") as caught:
        local_path(path, base=tmp_path, where="nanoset.yaml: root")

    assert "$" in caught.value.found
    # The name of an existing folder may look like a variable.
    (tmp_path / path).mkdir(parents=True)
    assert local_path(path, base=tmp_path, where="nanoset.yaml: root") == tmp_path / path


def test_a_local_path_in_a_folder_of_another_user_is_accepted(tmp_path, monkeypatch):
    def refuse(path: object, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", refuse)

    assert local_path("in/data", base=tmp_path, where="nanoset.yaml: raw") == tmp_path / "in/data"


@pytest.mark.parametrize("path", ["out$1", "costs-$usd", "$", "${}", "a$b/c"])
def test_other_dollar_signs_in_paths_are_accepted(tmp_path, path):
    assert local_path(path, base=tmp_path, where="nanoset.yaml: root") == tmp_path / path


def test_a_bucket_is_refused_where_only_local_paths_are_allowed():
    with pytest.raises(ConfigError, match="only local files") as caught:
        local_path("s3://bucket/prefix", base=Path("/base"), where="nanoset.yaml: raw")

    assert caught.value.where == "nanoset.yaml: raw"
    assert caught.value.remedy


@pytest.mark.parametrize("url", [" s3://bucket/a", "s3 ://bucket/a", "'s3://bucket/a'", "://a"])
def test_an_address_with_a_mistake_in_its_scheme_is_not_taken_for_a_path(url):
    with pytest.raises(ConfigError, match="neither an address nor a path") as caught:
        local_path(url, base=Path("/base"), where="nanoset.yaml: root")

    assert caught.value.found == repr(url)


# What other processes of this machine left


PUBLISH_SLOWLY = """
import sys
from pathlib import Path
from nanoset_core.storage.atomic import published_folder

with published_folder(Path(sys.argv[1])) as scratch:
    (scratch / "half.bin").write_bytes(b"x" * 1000)
    print(scratch, flush=True)
    sys.stdin.read()
"""
"""Program that publishes a folder when its standard input is closed."""


@dataclass
class Publisher:
    """Another process that is publishing a folder."""

    process: subprocess.Popen[str]
    scratch: Path
    """The unfinished folder."""


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    """Another process that is publishing tmp_path/digest."""
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISH_SLOWLY, str(tmp_path / "digest")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    scratch = process.stdout.readline().strip()
    assert scratch, "the other process did not start"
    yield Publisher(process, Path(scratch))
    process.kill()
    process.communicate()


def test_the_unfinished_folder_of_a_running_process_is_kept(tmp_path, publisher):
    sweep_abandoned(tmp_path)
    with published_folder(tmp_path / "other"):
        pass
    assert (publisher.scratch / "half.bin").exists()

    # The other process can finish it.
    publisher.process.communicate("")
    assert publisher.process.returncode == 0
    assert (tmp_path / "digest" / "half.bin").read_bytes() == b"x" * 1000
    assert unfinished_names_in(tmp_path) == []


def test_the_unfinished_folder_of_a_killed_process_is_removed_by_the_next_publisher(
    tmp_path, publisher
):
    publisher.process.send_signal(signal.SIGKILL)
    publisher.process.wait()
    assert (publisher.scratch / "half.bin").exists()
    assert not (tmp_path / "digest").exists()

    with published_folder(tmp_path / "other"):
        pass

    assert names_in(tmp_path) == ["other"]


def test_the_unfinished_folder_of_a_killed_process_is_removed_before_its_parent_has_noticed(
    tmp_path, publisher
):
    publisher.process.send_signal(signal.SIGKILL)
    # Wait for its end, but leave it in the table of processes, as in a container without an init.
    os.waitid(os.P_PID, publisher.process.pid, os.WEXITED | os.WNOWAIT)

    sweep_abandoned(tmp_path)

    assert not publisher.scratch.exists()


def with_process(path: Path, *, pid: int, start: str) -> Path:
    """Return an unfinished path of this process as another process would have named it.

    Args:
        path: The path.
        pid: Id of the other process.
        start: When it was started, in clock ticks; empty if that is not known.
    """
    machine_and_process = process_marks.new_mark().rpartition("-")[0]
    machine = machine_and_process.partition("-")[0]
    return path.with_name(path.name.replace(machine_and_process, f"{machine}-{pid}.{start}"))


@pytest.fixture
def id_of_ended_process() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_unfinished_files_and_links_of_ended_processes_are_removed(tmp_path, id_of_ended_process):
    file = unfinished_name(tmp_path / "file")
    with_process(file, pid=id_of_ended_process, start="").touch()
    link = unfinished_name(tmp_path / "link")
    with_process(link, pid=id_of_ended_process, start="").symlink_to("nowhere")

    sweep_abandoned(tmp_path)

    assert names_in(tmp_path) == []


def test_unfinished_files_of_an_earlier_process_with_the_same_id_are_removed(tmp_path):
    """The system has given the id of the ended process to a later one: to this process."""
    file = unfinished_name(tmp_path / "file")
    with_process(file, pid=os.getpid(), start="7").touch()
    link = unfinished_name(tmp_path / "link")
    with_process(link, pid=os.getpid(), start="7").symlink_to("nowhere")
    with open_unfinished(tmp_path / "current.json") as file_of_this_process:
        sweep_abandoned(tmp_path)

        assert list(tmp_path.iterdir()) == [Path(file_of_this_process.name)]


def test_other_names_are_not_removed(tmp_path):
    (tmp_path / "digest").mkdir()
    (tmp_path / ".hidden").touch()
    (tmp_path / "tmp-digest").mkdir()

    sweep_abandoned(tmp_path)

    assert names_in(tmp_path) == [".hidden", "digest", "tmp-digest"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_unfinished_files_that_may_not_be_removed_are_left(tmp_path, monkeypatch, number):
    """A disk became read-only, or a folder is another user's: the next sweep may succeed."""
    for name in ("current.json", "digest"):
        path = tmp_path / f"{UNFINISHED}{name}-12345678"
        path.touch()
        os.utime(path, (1e9, 1e9))  # in 2001

    def refuse(path, *_args, **_options):
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        sweep_abandoned(tmp_path)
    assert len(unfinished_names_in(tmp_path)) == 2

    sweep_abandoned(tmp_path)
    assert not unfinished_names_in(tmp_path)


# What other machines, earlier versions and earlier boots left


OTHER_MACHINE = "0therm4chine-1.2-123456"
"""The mark of a process of another machine."""
EARLIER_VERSION = "01234567-12345678"
"""The end of a folder's name in earlier versions, which had no marks."""


@pytest.fixture(params=[OTHER_MACHINE, EARLIER_VERSION], ids=["other machine", "earlier version"])
def unknown_mark(request: pytest.FixtureRequest) -> str:
    """The end of a name that does not tell whether the process is running."""
    mark: str = request.param
    return mark


def set_age(path: Path, seconds: float) -> None:
    """Date a file or folder back."""
    written_at = time.time() - seconds
    os.utime(path, (written_at, written_at))


@pytest.mark.parametrize(("days", "is_kept"), [(6, True), (8, False)])
def test_a_folder_of_an_unknown_process_is_removed_after_a_week(
    tmp_path, unknown_mark, days, is_kept
):
    folder = tmp_path / f"{UNFINISHED}digest-{unknown_mark}"
    folder.mkdir()
    set_age(folder, days * DAY)

    sweep_abandoned(tmp_path)

    assert folder.exists() is is_kept


@pytest.mark.parametrize("name", [f"file-{OTHER_MACHINE}", "current.json-12345678"])
@pytest.mark.parametrize(("hours", "is_kept"), [(0.9, True), (1.1, False)])
def test_a_file_of_an_unknown_process_is_removed_after_an_hour(tmp_path, name, hours, is_kept):
    file = tmp_path / f"{UNFINISHED}{name}"
    file.touch()
    set_age(file, hours * HOUR)

    sweep_abandoned(tmp_path)

    assert file.exists() is is_kept


def test_files_of_unknown_processes_are_kept_if_the_clock_of_this_machine_is_ahead(
    tmp_path, monkeypatch, unknown_mark
):
    """Files are dated by the clock of the file server, by which these are new."""
    (tmp_path / f"{UNFINISHED}file-{unknown_mark}").touch()
    (tmp_path / f"{UNFINISHED}digest-{unknown_mark}").mkdir()
    in_40_days = time.time() + 40 * DAY
    monkeypatch.setattr(time, "time", lambda: in_40_days)
    monkeypatch.setattr(time, "time_ns", lambda: int(in_40_days * 1e9))

    sweep_abandoned(tmp_path)

    assert len(unfinished_names_in(tmp_path)) == 2


def test_the_time_of_a_folder_is_looked_up_once_for_all_of_its_files(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"{UNFINISHED}{number}-{OTHER_MACHINE}").touch()
    folders = []

    def count_and_answer(folder: Path) -> int:
        folders.append(folder)
        return time.time_ns()

    monkeypatch.setattr("nanoset_core.storage.atomic.file_system_time_ns", count_and_answer)

    sweep_abandoned(tmp_path)

    assert folders == [tmp_path]


# The three digests of which the name of this machine consists.
HOST = process_marks._machine()[:4]
BOOT = process_marks._machine()[4:8]
NAMESPACE = process_marks._machine()[8:]


@pytest.fixture
def leave_folder(tmp_path):
    """A function that leaves an unfinished folder of a process of a machine, and returns it."""

    def leave(machine: str) -> Path:
        own_mark = process_marks.new_mark()
        _, process, _ = own_mark.split("-")
        folder = tmp_path / f"{UNFINISHED}digest-{machine}-{process}-123456"
        folder.mkdir()
        return folder

    return leave


def set_major_device(monkeypatch: pytest.MonkeyPatch, *, is_on_disk: bool) -> None:
    """Let file systems seem to be on a disk, or on a network, where major numbers are 0."""
    major_number = int(is_on_disk)
    monkeypatch.setattr(os, "major", lambda device: major_number)


def test_the_name_of_a_machine_has_three_digests():
    assert len(process_marks._machine()) == 12
    assert NAMESPACE


def test_a_folder_from_before_a_restart_is_removed_at_once_from_a_disk(
    tmp_path, monkeypatch, leave_folder
):
    set_major_device(monkeypatch, is_on_disk=True)
    folder = leave_folder(f"{HOST}zzzzzzzz")

    sweep_abandoned(tmp_path)

    assert not folder.exists()


def test_a_folder_from_before_a_restart_is_kept_on_a_network_file_system(
    tmp_path, monkeypatch, leave_folder
):
    """Another machine with the same name may be writing it."""
    set_major_device(monkeypatch, is_on_disk=False)
    folder = leave_folder(f"{HOST}zzzzzzzz")

    sweep_abandoned(tmp_path)

    assert folder.exists()


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(f"{HOST}{BOOT}{NAMESPACE}", id="this machine"),
        pytest.param("zzzzzzzzzzzz", id="another machine"),
        pytest.param(f"{HOST}{BOOT}zzzz", id="another container"),
    ],
)
@pytest.mark.parametrize("is_on_disk", [True, False], ids=["disk", "network"])
def test_a_folder_of_a_machine_that_was_not_restarted_is_kept(
    tmp_path, monkeypatch, leave_folder, machine, is_on_disk
):
    set_major_device(monkeypatch, is_on_disk=is_on_disk)
    folder = leave_folder(machine)

    sweep_abandoned(tmp_path)

    assert folder.exists()


# Whether the process that made a mark is alive


@pytest.fixture
def processes_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process may be sent a signal, as if all were another user's."""

    def refuse(*_args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)


@pytest.mark.usefixtures("processes_of_another_user")
def test_a_process_of_another_user_is_recognised_by_its_start():
    mark = process_marks.new_mark()
    machine, process, _ = mark.split("-")
    pid, _, start = process.partition(".")
    earlier_start = int(start) - 1

    assert process_marks.is_owner_alive(mark) is True
    assert process_marks.is_owner_alive(f"{machine}-{pid}.{earlier_start}-123456") is False


def test_the_mark_of_a_forked_process_does_not_have_the_start_that_its_parent_remembers():
    """The id of the process may be that of an ancestor that has ended."""
    process_marks.new_mark()
    read_end, write_end = os.pipe()

    pid = os.fork()
    if pid == 0:
        os.write(write_end, str(process_marks._own_start.cache_info().currsize).encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert os.read(read_end, 10) == b"0"
    os.close(read_end)
    os.close(write_end)


@pytest.mark.usefixtures("processes_of_another_user")
def test_it_is_unknown_whether_a_process_is_alive_if_its_start_is_not_in_the_mark():
    machine, process, _ = process_marks.new_mark().split("-")
    pid = process.partition(".")[0]

    assert process_marks.is_owner_alive(f"{machine}-{pid}.-123456") is None


@pytest.mark.usefixtures("processes_of_another_user")
def test_it_is_unknown_whether_a_process_is_alive_if_the_system_hides_its_start(monkeypatch):
    """/proc may be mounted so that users do not see each other's processes."""
    mark = process_marks.new_mark()
    monkeypatch.setattr(process_marks, "process_stat", lambda pid: None)

    assert process_marks.is_owner_alive(mark) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_a_process_that_ended_without_its_parent_noticing_is_not_alive():
    """In a container without an init, it stays in the table of processes."""
    program = (
        "from nanoset_core.storage.in_use import process_marks\n"
        "print(process_marks.new_mark(), flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    mark = child.stdout.readline().strip()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}/stat").exists()

    assert process_marks.is_owner_alive(mark) is False

    child.communicate()
