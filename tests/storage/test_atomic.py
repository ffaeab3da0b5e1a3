import errno
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.storage.atomic import (
    atomic_file,
    open_unfinished,
    point_to,
    published_folder,
    sha256_file,
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


def test_damaged_folder_is_replaced_whole(tmp_path):
    final = tmp_path / "digest"
    final.mkdir()
    (final / "damaged").write_bytes(b"old")
    with published_folder(final) as scratch:
        (scratch / "whole").write_bytes(b"new")
    assert names(final) == ["whole"]
    assert names(tmp_path) == ["digest"]


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
    before, after = events[: events.index(("rename", "digest"))], events[events.index(("rename", "digest")) + 1 :]
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
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert point_to(tmp_path / "current", "one")
    assert point_to(tmp_path / "current", "two")
    assert (tmp_path / "current").readlink() == Path("two")
    assert names(tmp_path) == ["current", "one", "two"]

    def refuse(self: Path, target: str) -> None:
        raise OSError(errno.EPERM, "not on this file system")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert not point_to(tmp_path / "current", "one")
    assert names(tmp_path) == ["current", "one", "two"]


def test_sha256_file(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 1_000_000)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(b"abc" * 1_000_000).hexdigest()


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


def test_a_file_appears_at_the_end(tmp_path):
    target = tmp_path / "deep" / "file"
    with atomic_file(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []
    rename = os.replace
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("sync"))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("rename"), rename(*paths)))
    with atomic_file(tmp_path / "file") as file:
        file.write(b"new")
    assert calls == ["sync", "rename", "sync"]


def test_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "file") as file:
            file.write(b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_two_writers_of_one_file_have_names_of_their_own(tmp_path):
    first, second = open_unfinished(tmp_path / "file"), open_unfinished(tmp_path / "file")
    assert first.name != second.name
    first.close()
    second.close()
