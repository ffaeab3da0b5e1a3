"""`nanoset gc` on one machine sees what is built on another, by objects in the bucket."""

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
from pathlib import Path

import pytest

from helpers import s3_server
from helpers.child_processes import wait_until
from helpers.command import invoke_nanoset
from nanoset_core.errors import StorageError
from nanoset_core.project.gc import collect, plan_gc
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.storage import heartbeats, leases
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import Work, at_work, collecting, leased, leased_names, under_way
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.s3 import Upload


@pytest.fixture(params=["local", "place", "ceph_place"])
def access(request, tmp_path):
    """One machine's way to a folder, or to a bucket of the chosen server and of a real one."""
    if request.param == "local":
        return FileAccess(tmp_path)
    return FileAccess(tmp_path / "one", request.getfixturevalue(request.param))


@pytest.fixture
def other(access, tmp_path):
    """Another machine's."""
    return FileAccess(tmp_path / "two", access.store) if access.has_copies else FileAccess(tmp_path)


def held(access) -> list[str]:
    """The leases in the store that machines share."""
    return [found.name for found in access.store.list(leases.FOLDER)]


def test_what_one_machine_works_on_another_sees(access, other):
    assert leased_names(other) == {}
    with leased(access, ["web", "code"]):
        assert leased_names(other).keys() == {"web", "code"}
        with leased(access, ["web", "books"]):
            assert len(held(access)) == 2
            assert leased_names(other).keys() == {"web", "books", "code"}
        assert leased_names(other).keys() == {"web", "code"}
    with pytest.raises(RuntimeError), leased(access, ["web"]):
        raise RuntimeError
    assert leased_names(other) == {}
    assert not held(access)


def test_what_is_held_already_takes_no_second_object(access, other):
    with leased(access, ["web", "code"]):
        with leased(access, ["web"]), leased(access, ["code", "web"]):
            assert len(held(access)) == 1
        with leased(other, ["web"]), leased(access.with_copies_in(other.folder), ["web"]):
            assert len(held(access)) == 1, "it is one store"
        assert leased_names(other).keys() == {"web", "code"}
    with leased(access, ["web"]):
        assert leased_names(other).keys() == {"web"}
    assert not held(access)


def test_builds_wait_for_a_collection_and_say_so(access, other, caplog):
    begun = threading.Event()

    def build():
        with leased(access, ["web"]):
            begun.set()

    def said():
        return [record.message for record in caplog.records if record.name == leases.__name__]

    with leased(access, ["code"]), collecting(other) as busy:
        assert busy.keys() == {"code"}
        builder = threading.Thread(target=build)
        builder.start()
        assert wait_until(said)
        assert not begun.wait(0.1)
    assert begun.wait(60)
    builder.join()
    assert not held(access)
    (line,) = said()
    assert line.startswith(
        f"waits until `nanoset gc` of {access.store.url()} has ended: process {os.getpid()} on "
    )
    assert line.endswith(f"; `kill {os.getpid()}` ends it")


def test_builds_of_the_same_name_take_turns_and_say_for_whom_they_wait(access, other):
    awaited = []
    entered = threading.Event()

    def build():
        with leased(
            other, ["web", "code"], "web", on_wait=lambda name, work: awaited.append((name, work))
        ):
            entered.set()

    with leased(access, ["web"], "web", on_wait=pytest.fail):
        builder = threading.Thread(target=build)
        builder.start()
        assert wait_until(lambda: awaited)
        assert not entered.wait(0.5)
    assert entered.wait(60)
    builder.join()
    ((name, work),) = awaited
    assert name == "web"
    assert str(work.owner).startswith(f"process {os.getpid()} on {platform.node()}, since 20")
    assert work.owner.remedy() == f"`kill {os.getpid()}` ends it"


def test_builds_of_other_names_do_not_wait(access, other):
    with (
        leased(access, ["pretrain", "web"], "pretrain", on_wait=pytest.fail),
        leased(other, ["web", "code"], "web", on_wait=pytest.fail),
    ):
        assert under_way(access).keys() == {"pretrain", "web"}


def test_a_build_waits_for_a_run_in_dagster_but_that_one_does_not_wait(access, other):
    entered = threading.Event()

    def build():
        with (
            leased(other, ["web"], "web", on_wait=lambda *_: None),
            leased(access, ["web", "code"], "code"),
        ):
            entered.set()

    with leased(access, ["web"], "web"):
        builder = threading.Thread(target=build)
        builder.start()
        assert not entered.wait(0.5)
        with leased(other, ["web", "x"], "web"):  # though there is a build
            pass
    assert entered.wait(60)
    builder.join()


def test_never_two_of_many_builds_make_the_same(access, other):
    active = []
    most = []

    def build(number):
        for _ in range(3):
            with leased((access, other)[number % 2], ["web"], "web", on_wait=lambda *_: None):
                active.append(number)
                most.append(len(active))
                time.sleep(0.005)
                active.remove(number)

    builders = [threading.Thread(target=build, args=(number,)) for number in range(5)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(most) == 15
    assert max(most) == 1


def test_a_stopped_build_is_named_as_stopped_with_the_commands_that_continue_and_end_it(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from nanoset_core.storage.access import FileAccess\n"
        "from nanoset_core.storage.leases import leased\n"
        "with leased(FileAccess(Path(sys.argv[1])), ['web'], on_wait=print):\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    said = []

    def end_it(name, work):
        said.append(work.owner.remedy())
        process.kill()
        process.wait()

    with leased(FileAccess(tmp_path), ["web"], on_wait=end_it):
        pass
    pid = process.pid
    assert said == [f"it is stopped: `kill -CONT {pid}` continues it, `kill -KILL {pid}` ends it"]


def test_no_build_is_named_with_its_process_and_what_to_do(access, other):
    leases.check_no_build(other, "nothing can be erased", "run it again")
    with (
        leased(access, ["web", "code"], "web"),
        pytest.raises(StorageError, match="while a build is under way") as found,
    ):
        leases.check_no_build(other, "nothing can be erased", "run it again")
    assert str(found.value.found).startswith(
        f"process {os.getpid()} on {platform.node()}, since 20"
    )
    assert str(found.value.found).endswith(", makes web")
    assert f"`kill {os.getpid()}` ends it" in str(found.value.remedy)
    leases.check_no_build(other, "nothing can be erased", "run it again")


def test_kept_fresh_while_held_and_no_longer(access, other, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 0.3)
    monkeypatch.setattr(heartbeats, "LEASE_SECONDS", 3)
    with leased(access, ["web"]):
        (name,) = held(access)
        first = access.store.stat(name).written_ns
        while access.store.stat(name).written_ns < first + 4 * 10**9:
            time.sleep(0.1)
            assert leased_names(other).keys() == {"web"}
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 1000)
    monkeypatch.setattr(heartbeats, "LEASE_SECONDS", 1)
    monkeypatch.setattr(heartbeats, "is_owner_alive", lambda _: None)
    with leased(access, ["web"]):
        until = time.monotonic() + 20
        while leased_names(other):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert not held(access), "what counts no more is removed"


def test_a_lease_says_what_is_made_and_how_far_that_has_come(access, other, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 0.1)
    host = platform.node()
    at_work("nothing is held yet", 0.5)
    with leased(access, ["pretrain", "web"], "pretrain"):
        assert under_way(other) == {"pretrain": Work(host)}
        with leased(access, ["web"], "web"):  # takes no lease of its own
            at_work("index_mappings pretrain train", 1 / 3)
        until = time.monotonic() + 20
        while (work := under_way(other)["pretrain"]).share is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert (work, str(work)) == (
            Work(host, "index_mappings pretrain train", 0.333),
            f"index_mappings pretrain train 33%, on {host}",
        )
        # of an earlier version, or by hand: all names are made
        with leased(other, ["pretrain", "code"]):
            assert under_way(access).keys() == {"pretrain", "code"}
    assert under_way(other) == {}


def test_of_a_process_of_this_machine_that_was_killed_nothing_is_waited_for(place, tmp_path):
    code = (
        "import sys, os, pickle\n"
        "from nanoset_core.storage.leases import collecting\n"
        "access = pickle.load(open(sys.argv[1], 'rb'))\n"
        "with collecting(access):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    access = FileAccess(tmp_path / "one", place)
    (tmp_path / "access").write_bytes(pickle.dumps(access))
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "access"]).returncode == -9
    assert len(held(access)) == 1
    with leased(access, ["web"]):
        assert len(held(access)) == 1
    assert not held(access)


def test_of_a_process_of_this_machine_that_is_suspended_what_it_holds_stays(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from nanoset_core.storage.access import FileAccess\n"
        "from nanoset_core.storage.leases import leased\n"
        "with leased(FileAccess(Path(sys.argv[1])), ['web']):\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    (lease,) = (tmp_path / ".in-use").iterdir()
    os.utime(lease, (1e9, 1e9))
    with collecting(FileAccess(tmp_path)) as busy:
        assert busy.keys() == {"web"}
    process.kill()
    process.wait()
    with collecting(FileAccess(tmp_path)) as busy:
        assert not busy
    assert not list((tmp_path / ".in-use").iterdir())


def test_a_lease_that_could_not_be_removed_is_removed_later(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 0.1)
    access, begun = FileAccess(tmp_path), time.monotonic()
    with monkeypatch.context() as patch:

        def refuse(*_):
            raise OSError(errno.EROFS, "read-only")

        with leased(access, ["web"]):
            patch.setattr(LocalStore, "delete", refuse)
        assert time.monotonic() < begun + heartbeats._DELETION_SECONDS / 2, (
            "the refusal is not waited for"
        )
        assert leased_names(access).keys() == {"web"}
    until = time.monotonic() + 20
    while leased_names(access):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_lease_that_is_gone_is_written_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeats, "RENEWED_SECONDS", 0.1)
    access, until = FileAccess(tmp_path), time.monotonic() + 20
    with leased(access, ["web"]):
        access.store.delete(held(access)[0])
        while leased_names(access).keys() != {"web"}:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert not held(access)


def test_a_collection_begins_on_a_full_disk(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(LocalStore, "put_parts", full)
    with collecting(FileAccess(tmp_path)) as busy:
        assert not busy
        (gate,) = (tmp_path / ".in-use").iterdir()
        assert gate.stat().st_size == 0
    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(StorageError, match="the disk is full"), collecting(FileAccess(tmp_path)):
        pass


def test_gc_leaves_what_is_built_elsewhere(remote_project, filled):
    config = remote_project()
    project, elsewhere = Project.open(config), Project.open(remote_project("elsewhere"))
    folder = "datasets/web/0123456789abcdef0123"
    for name in (f"{folder}/web.bin", f"{folder}/.tmp-web.bin-1", "somebody else's/.tmp-1"):
        filled.put(name, b"x")
    current = json.loads(filled.read("datasets/code/current.json"))["digest"]
    filled.put(f"datasets/code/{current}/.tmp-code.bin-1", b"x")
    for name in (f"{folder}/web.idx", f"datasets/code/{current}/code.idx", "somebody else's/file"):
        Upload(filled, name, {})
    before = s3_server.objects(filled)
    with leased(elsewhere.outputs.access, ["web"]):
        (left,) = plan_gc(project).left_alone
        assert (left.path, "a build works on it (process " in left.why) == (
            project.outputs.folder / folder,
            True,
        )
        assert {row.name for row in project_status(project) if row.busy} == {"web"}
        gone = {
            path.relative_to(project.outputs.folder).as_posix()
            for path in collect(project).unfinished
        }
        assert gone == {
            f"datasets/code/{current}/.tmp-code.bin-1",
            f"datasets/code/{current}/code.idx",
        }
        assert uploads(filled) == {f"{folder}/web.idx", "somebody else's/file"}
    said = invoke_nanoset(["gc", "--yes", "--config", str(config)], catch_exceptions=False).output
    assert "not seen are builds" in said
    assert uploads(filled) == {"somebody else's/file"}
    left = s3_server.objects(filled)
    assert before.keys() - left.keys() == {
        f"{folder}/web.bin",
        f"{folder}/.tmp-web.bin-1",
        f"datasets/code/{current}/.tmp-code.bin-1",
    }
    assert not left.keys() - before.keys()


def uploads(place) -> set[str]:
    found = place.client().list_multipart_uploads(Bucket=place.bucket).get("Uploads", ())
    return {upload["Key"].removeprefix(f"{place.prefix}/") for upload in found}


def test_empty_files_of_locks_that_older_versions_left_go(tmp_path):
    folder = tmp_path / ".in-use"
    folder.mkdir()
    for name in (".gate", "web"):
        (folder / name).touch()
        os.utime(folder / name, (1e9, 1e9))
    with leased(FileAccess(tmp_path), ["code"]), collecting(FileAccess(tmp_path)) as busy:
        assert busy.keys() == {"code"}
    assert not list(folder.iterdir())
