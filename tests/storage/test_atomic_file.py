"""Files appear whole or not at all."""

import os
import stat

import pytest

from nanoset_core.storage.atomic import atomic_file, open_unfinished


def test_a_file_appears_at_the_end(tmp_path):
    target = tmp_path / "deep" / "file"
    with atomic_file(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_an_exception_leaves_what_was_there(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(KeyError), atomic_file(target) as file:
        file.write(b"new")
        raise KeyError
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


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
