"""Leases: builds on any machine take turns, and `nanoset gc` keeps the outputs that they use."""

from __future__ import annotations

import errno
import json
import os
import pickle
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from helpers import buckets
from helpers.child_processes import wait_until
from helpers.command import invoke_nanoset
from nanoset_core.errors import StorageError
from nanoset_core.project.gc.collect import collect, plan_gc
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.in_use import heartbeats, leases
from nanoset_core.storage.in_use.leases import (
    Work,
    at_work,
    collecting,
    leased,
    leased_names,
    under_way,
)
from nanoset_core.storage.stores.local import LocalStore
from nanoset_core.storage.stores.s3.store import S3Store, Upload

THIS_PROCESS = f"process {os.getpid()} on {platform.node()}, since 20"
"""How a lease names the process of the tests, up to the year."""


@pytest.fixture(params=["local", "place", "ceph_place"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> FileAccess:
    """The root of one machine: a folder, or a bucket of the chosen server and of a real one."""
    if request.param == "local":
        return FileAccess(tmp_path)
    return FileAccess(tmp_path / "one", request.getfixturevalue(request.param))


@pytest.fixture
def other(access: FileAccess, tmp_path: Path) -> FileAccess:
    """The same root as another machine sees it, with its own folder for copies of a bucket."""
    if access.takes_requests:
        return FileAccess(tmp_path / "two", access.store)
    return FileAccess(tmp_path)


def stored_leases(access: FileAccess) -> list[str]:
    """Return the names of the leases and gates in the store that machines share."""
    return [stored.name for stored in access.store.list(leases.FOLDER)]


class BackgroundBuild:
    """A build in a thread, which has a context without leases, as another process has."""

    def __init__(
        self, access: FileAccess, names: Iterable[str], *, takes_turns: bool = False
    ) -> None:
        """Start a build that makes the first of some names and uses all of them.

        Args:
            access: The root.
            names: Names that it takes a lease on.
            takes_turns: Whether it waits for builds that make the same.
        """
        self.access = access
        self.names = list(names)
        self.takes_turns = takes_turns
        self.awaited: list[tuple[str, Work]] = []
        """Name and work of each build that it has to wait for."""
        self.has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        on_wait = self._note_wait if self.takes_turns else None
        with leased(self.access, self.names, self.names[0], on_wait=on_wait):
            self.has_begun.set()

    def _note_wait(self, name: str, work: Work) -> None:
        self.awaited.append((name, work))

    def wait_until_done(self) -> None:
        """Wait until the build has begun and ended."""
        assert self.has_begun.wait(60)
        self._thread.join()


# Leases are seen by other machines


def test_a_lease_is_seen_by_other_machines_while_it_is_held(access, other):
    assert leased_names(other) == {}

    with leased(access, ["web", "code"]):
        assert leased_names(other).keys() == {"web", "code"}

    assert leased_names(other) == {}
    assert not stored_leases(access)


def test_a_lease_on_further_names_is_a_second_object(access, other):
    with leased(access, ["web", "code"]):
        with leased(access, ["web", "books"]):
            assert len(stored_leases(access)) == 2
            assert leased_names(other).keys() == {"web", "books", "code"}

        assert leased_names(other).keys() == {"web", "code"}


def test_a_lease_ends_when_the_build_fails(access, other):
    with pytest.raises(RuntimeError), leased(access, ["web"]):
        raise RuntimeError

    assert leased_names(other) == {}
    assert not stored_leases(access)


def test_names_that_are_leased_already_need_no_second_object(access, other):
    with leased(access, ["web", "code"]):
        with leased(access, ["web"]), leased(access, ["code", "web"]):
            assert len(stored_leases(access)) == 1

        assert leased_names(other).keys() == {"web", "code"}


def test_one_store_needs_one_object_whatever_the_folder_for_copies(access, other):
    with leased(access, ["web", "code"]):
        other_copies = access.with_copies_in(other.folder)
        with leased(other, ["web"]), leased(other_copies, ["web"]):
            assert len(stored_leases(access)) == 1


def test_the_same_names_can_be_leased_again_later(access, other):
    with leased(access, ["web", "code"]):
        pass

    with leased(access, ["web"]):
        assert leased_names(other).keys() == {"web"}

    assert not stored_leases(access)


# Builds wait for collections, and for builds that make the same


def test_a_build_waits_for_a_collection_and_logs_how_to_end_it(access, other, caplog):
    def logged_messages():
        return [record.message for record in caplog.records if record.name == leases.__name__]

    # A build that began before the collection is known to it; one that begins later waits.
    with leased(access, ["code"]), collecting(other) as names_in_use:
        assert names_in_use.keys() == {"code"}
        build = BackgroundBuild(access, ["web"])
        assert wait_until(logged_messages)
        assert not build.has_begun.wait(0.1)

    build.wait_until_done()
    assert not stored_leases(access)
    [message] = logged_messages()
    root = access.store.url()
    assert message.startswith(
        f"waits until `nanoset gc` of {root} has ended: process {os.getpid()} on "
    )
    assert message.endswith(f"; `kill {os.getpid()}` ends it")


def test_a_build_waits_for_one_that_makes_the_same_and_reports_its_process(access, other):
    with leased(access, ["web"], "web", on_wait=pytest.fail):
        build = BackgroundBuild(other, ["web", "code"], takes_turns=True)
        assert wait_until(lambda: build.awaited)
        assert not build.has_begun.wait(0.5)

    build.wait_until_done()
    [(name, work)] = build.awaited
    assert name == "web"
    assert str(work.owner).startswith(THIS_PROCESS)
    assert work.owner.remedy() == f"`kill {os.getpid()}` ends it"


def test_builds_that_make_different_outputs_do_not_wait_for_each_other(access, other):
    with (
        leased(access, ["pretrain", "web"], "pretrain", on_wait=pytest.fail),
        leased(other, ["web", "code"], "web", on_wait=pytest.fail),
    ):
        assert under_way(access).keys() == {"pretrain", "web"}


def test_a_build_waits_for_a_run_in_dagster(access, other):
    """Dagster itself sees to it that its runs take turns, so they pass no `on_wait`."""
    has_begun = threading.Event()

    def build():
        with (
            leased(other, ["web"], "web", on_wait=lambda name, work: None),
            leased(access, ["web", "code"], "code"),  # within its turn, it makes something else
        ):
            has_begun.set()

    with leased(access, ["web"], "web"):
        builder = threading.Thread(target=build)
        builder.start()
        assert not has_begun.wait(0.5)

    assert has_begun.wait(60)
    builder.join()


def test_a_run_in_dagster_does_not_wait_for_a_build(access, other):
    with leased(access, ["web"], "web"):
        build = BackgroundBuild(other, ["web"], takes_turns=True)
        assert wait_until(lambda: build.awaited)

        # Another run of Dagster begins at once, although a build of the same output is waiting.
        with leased(other, ["web", "x"], "web"):
            assert not build.has_begun.is_set()

    build.wait_until_done()


def test_only_one_of_many_builds_makes_an_output_at_a_time(access, other):
    n_builders = 5
    n_builds_each = 3
    active_builders = []
    n_active = []  # whenever a build has begun

    def build_repeatedly(number, root):
        for _ in range(n_builds_each):
            with leased(root, ["web"], "web", on_wait=lambda name, work: None):
                active_builders.append(number)
                n_active.append(len(active_builders))
                time.sleep(0.005)
                active_builders.remove(number)

    builders = []
    for number in range(n_builders):
        root = (access, other)[number % 2]
        builders.append(threading.Thread(target=build_repeatedly, args=(number, root)))
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()

    assert n_active == [1] * n_builders * n_builds_each


HOLD_LEASE_AND_STOP = """
import os, signal, sys
from pathlib import Path
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.in_use.leases import leased

with leased(FileAccess(Path(sys.argv[1])), ["web"], on_wait=print):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""Program of a build that is suspended, as by Ctrl+Z, while it holds a lease on web."""


def start_stopped_build(folder: Path) -> subprocess.Popen[bytes]:
    """Start a build of web in another process, and return it once it is suspended."""
    process = subprocess.Popen([sys.executable, "-c", HOLD_LEASE_AND_STOP, folder])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return process


def test_a_build_reports_how_to_continue_or_end_a_suspended_one_that_it_waits_for(tmp_path):
    process = start_stopped_build(tmp_path)
    remedies = []

    def end_build(_name, work):
        remedies.append(work.owner.remedy())
        process.kill()
        process.wait()

    with leased(FileAccess(tmp_path), ["web"], on_wait=end_build):
        pass

    pid = process.pid
    assert remedies == [
        f"it is stopped: `kill -CONT {pid}` continues it, `kill -KILL {pid}` ends it"
    ]


def test_a_suspended_build_keeps_its_lease_although_it_is_not_renewed(tmp_path):
    process = start_stopped_build(tmp_path)
    [lease] = (tmp_path / leases.FOLDER).iterdir()
    os.utime(lease, (1e9, 1e9))  # in 2001

    with collecting(FileAccess(tmp_path)) as names_in_use:
        assert names_in_use.keys() == {"web"}

    # Once it is killed, the lease is removed.
    process.kill()
    process.wait()
    with collecting(FileAccess(tmp_path)) as names_in_use:
        assert not names_in_use
    assert not list((tmp_path / leases.FOLDER).iterdir())


def test_a_running_build_prevents_what_must_not_happen_meanwhile(access, other):
    with (
        leased(access, ["web", "code"], "web"),
        pytest.raises(StorageError, match="while a build is under way") as caught,
    ):
        leases.check_no_build(other, "nothing can be erased", "run it again")

    found = str(caught.value.found)
    assert found.startswith(THIS_PROCESS)
    assert found.endswith(", makes web")
    assert f"`kill {os.getpid()}` ends it" in str(caught.value.remedy)


def test_without_a_build_nothing_is_prevented(access, other):
    leases.check_no_build(other, "nothing can be erased", "run it again")

    with leased(access, ["web", "code"], "web"):
        pass

    leases.check_no_build(other, "nothing can be erased", "run it again")


# Leases are renewed, and expire


def test_a_lease_is_renewed_while_it_is_held(access, other, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 0.3)
    monkeypatch.setattr(heartbeats, "LEASE_SECONDS", 3)

    with leased(access, ["web"]):
        [name] = stored_leases(access)
        first_ns = access.store.stat(name).written_ns
        # Without renewals, it would expire after 3 seconds.
        while access.store.stat(name).written_ns < first_ns + 4 * 10**9:
            time.sleep(0.1)
            assert leased_names(other).keys() == {"web"}


def test_a_lease_that_is_not_renewed_expires_and_is_removed(access, other, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 1000)
    monkeypatch.setattr(heartbeats, "LEASE_SECONDS", 1)
    # As if the build ran on another machine: nobody can see whether its process is alive.
    monkeypatch.setattr(heartbeats, "is_owner_alive", lambda _mark: None)

    with leased(access, ["web"]):
        assert wait_until(lambda: not leased_names(other), seconds=20, pause=0.1)

        assert not stored_leases(access)


def test_a_lease_of_a_killed_process_of_this_machine_does_not_count(place, tmp_path):
    program = (
        "import sys, os, pickle\n"
        "from nanoset_core.storage.in_use.leases import collecting\n"
        "access = pickle.load(open(sys.argv[1], 'rb'))\n"
        "with collecting(access):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    access = FileAccess(tmp_path / "one", place)
    (tmp_path / "access").write_bytes(pickle.dumps(access))
    process = subprocess.run([sys.executable, "-c", program, tmp_path / "access"])
    assert process.returncode == -9
    assert len(stored_leases(access)) == 1

    # The build does not wait for the gate of the killed collection, and removes it.
    with leased(access, ["web"]):
        assert len(stored_leases(access)) == 1

    assert not stored_leases(access)


def test_a_lease_that_could_not_be_removed_is_removed_later(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 0.1)
    access = FileAccess(tmp_path)

    def refuse(*_args):
        raise OSError(errno.EROFS, "read-only")

    # While the file system is read-only, the build ends without the lease being removed.
    with monkeypatch.context() as patch:
        started_at = time.monotonic()
        with leased(access, ["web"]):
            patch.setattr(LocalStore, "delete", refuse)
        seconds = time.monotonic() - started_at
        assert seconds < heartbeats._DELETION_SECONDS / 2, "the build waited for the removal"
        assert leased_names(access).keys() == {"web"}

    # Once it is writable again, the lease is removed.
    assert wait_until(lambda: not leased_names(access), seconds=20, pause=0.05)


def test_a_lease_that_somebody_deleted_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 0.1)
    access = FileAccess(tmp_path)

    with leased(access, ["web"]):
        access.store.delete(stored_leases(access)[0])

        assert wait_until(lambda: leased_names(access).keys() == {"web"}, seconds=20, pause=0.05)

    assert not stored_leases(access)


def test_a_collection_begins_on_a_full_disk(tmp_path, monkeypatch):
    """It is what makes room again. An empty file needs no block of the disk."""

    def fail(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(LocalStore, "put_parts", fail)

    with collecting(FileAccess(tmp_path)) as names_in_use:
        assert not names_in_use
        [gate] = (tmp_path / leases.FOLDER).iterdir()
        assert gate.stat().st_size == 0


def test_a_collection_that_cannot_write_an_empty_file_reports_the_full_disk(tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(LocalStore, "put_parts", fail)
    monkeypatch.setattr(Path, "touch", fail)

    with pytest.raises(StorageError, match="the disk is full"), collecting(FileAccess(tmp_path)):
        pass


def test_files_of_locks_of_earlier_versions_are_removed(tmp_path):
    folder = tmp_path / leases.FOLDER
    folder.mkdir()
    for name in (".gate", "web"):
        (folder / name).touch()
        os.utime(folder / name, (1e9, 1e9))  # in 2001

    with leased(FileAccess(tmp_path), ["code"]), collecting(FileAccess(tmp_path)) as names_in_use:
        assert names_in_use.keys() == {"code"}

    assert not list(folder.iterdir())


# Progress in leases


def test_progress_without_a_lease_is_ignored(access, other):
    at_work("tokenized_shards web", 0.5)

    with leased(access, ["web"]):
        assert under_way(other) == {"web": Work(platform.node())}


def test_a_lease_reports_what_is_made_and_how_much_of_it_is_done(access, other, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 0.1)
    host = platform.node()

    with leased(access, ["pretrain", "web"], "pretrain"):
        assert under_way(other) == {"pretrain": Work(host)}

        with leased(access, ["web"], "web"):  # it needs no second lease
            at_work("index_mappings pretrain train", 1 / 3)
        assert wait_until(
            lambda: under_way(other)["pretrain"].share is not None, seconds=20, pause=0.05
        )
        work = under_way(other)["pretrain"]

    assert work == Work(host, "index_mappings pretrain train", 0.333)
    assert str(work) == f"index_mappings pretrain train 33%, on {host}"
    assert under_way(other) == {}


def test_a_lease_without_a_subject_makes_all_of_its_names(access, other):
    """Leases of earlier versions have no subject."""
    with (
        leased(access, ["pretrain", "web"], "pretrain"),
        leased(other, ["pretrain", "code"]),
    ):
        assert under_way(access).keys() == {"pretrain", "code"}


# `nanoset gc` of a bucket


def pending_uploads(place: S3Store) -> set[str]:
    """Return the names of the objects whose uploads in parts are neither completed nor aborted."""
    answer = place.client().list_multipart_uploads(Bucket=place.bucket)
    return {upload["Key"].removeprefix(f"{place.prefix}/") for upload in answer.get("Uploads", ())}


def test_gc_keeps_what_is_built_on_another_machine_until_the_build_has_ended(
    remote_project, filled
):
    config = remote_project()
    project = Project.open(config)
    elsewhere = Project.open(remote_project("elsewhere"))

    # An output of web that is being built, and remains of one of code, which is not.
    output_of_web = "datasets/web/0123456789abcdef0123"
    digest_of_code = json.loads(filled.read("datasets/code/current.json"))["digest"]
    output_of_code = f"datasets/code/{digest_of_code}"
    for name in (
        f"{output_of_web}/web.bin",
        f"{output_of_web}/.tmp-web.bin-1",
        f"{output_of_code}/.tmp-code.bin-1",
        "somebody else's/.tmp-1",
    ):
        filled.put(name, b"x")
    for name in (f"{output_of_web}/web.idx", f"{output_of_code}/code.idx", "somebody else's/file"):
        Upload(filled, name, {})
    objects_before = buckets.objects(filled)

    # While the other machine builds, only the remains of code are removed.
    with leased(elsewhere.outputs.access, ["web"]):
        [skipped] = plan_gc(project).left_alone
        assert skipped.path == project.outputs.folder / output_of_web
        assert "a build works on it (process " in skipped.why
        busy_names = {row.name for row in project_status(project) if row.busy}
        assert busy_names == {"web"}

        removed = collect(project).unfinished
        removed_names = {path.relative_to(project.outputs.folder).as_posix() for path in removed}
        assert removed_names == {
            f"{output_of_code}/.tmp-code.bin-1",
            f"{output_of_code}/code.idx",
        }
        assert pending_uploads(filled) == {f"{output_of_web}/web.idx", "somebody else's/file"}

    # Afterwards, the remains of web are removed as well, but nothing outside of the outputs.
    result = invoke_nanoset(["gc", "--yes", "--config", str(config)], catch_exceptions=False)
    assert "not seen are builds" in result.output
    assert pending_uploads(filled) == {"somebody else's/file"}
    objects_after = buckets.objects(filled)
    assert objects_before.keys() - objects_after.keys() == {
        f"{output_of_web}/web.bin",
        f"{output_of_web}/.tmp-web.bin-1",
        f"{output_of_code}/.tmp-code.bin-1",
    }
    assert not objects_after.keys() - objects_before.keys()


def test_an_error_of_a_collection_names_the_folder_of_the_outputs(tmp_path, monkeypatch):
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "a file that nobody knows")

    monkeypatch.setattr(leases, "kept_fresh", refuse)

    collection = collecting(FileAccess(tmp_path))
    with pytest.raises(StorageError, match="the disk is read-only") as caught, collection:
        pass

    assert caught.value.where == str(tmp_path)
