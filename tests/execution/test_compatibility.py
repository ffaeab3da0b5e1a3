import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.execution import compatibility as module
from nanoset_core.execution.compatibility import compatibility_check, software, sweep_runs
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.local import LocalStore


def test_the_marker_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_APPEARS_WITHIN_SECONDS", 0.2)
    with compatibility_check(FileAccess(tmp_path / "new")) as met:
        met.check()
        assert met.store == LocalStore(tmp_path / "new")
        sweep_runs(FileAccess(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(MissingError):
        met.check()


def test_what_a_killed_run_left_is_swept(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    access = FileAccess(tmp_path)
    with compatibility_check(access) as met:
        left = met.run_folder.replace(f"-{os.getpid()}.", f"-{gone.pid}.")
        access.store.put(f"{left}/marker", b"token")
        sweep_runs(access)
        assert access.store.read(f"{left}/marker") is None
        met.check()


def test_files_are_brought_once_and_whole(tmp_path):
    (tmp_path / "a").mkdir()
    files = [tmp_path / "vocab.json", tmp_path / "a" / "vocab.json"]
    for number, file in enumerate(files):
        file.write_text(f"file {number}")
    with compatibility_check(FileAccess(tmp_path / "new"), files) as met:
        for file in files:
            file.unlink()
        brought = met.download(tmp_path / "own")
        assert [brought[file].read_text() for file in files] == ["file 0", "file 1"]
        assert {file.name for file in brought.values()} == {"vocab.json"}
        written = [file.stat().st_mtime_ns for file in brought.values()]
        assert met.download(tmp_path / "own") == brought
        assert [file.stat().st_mtime_ns for file in brought.values()] == written
    with pytest.raises(MissingError):
        met.download(tmp_path / "other")


def test_a_run_begins_at_the_moment_that_another_ends(tmp_path, monkeypatch):
    mkdir, made = os.mkdir, list[str]()

    def interrupted(path: str, *arguments: object) -> None:
        mkdir(path, *arguments)
        made.append(Path(path).name)
        if made == [module.FOLDER]:
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", interrupted)
    with compatibility_check(FileAccess(tmp_path)) as met:
        met.check()
    assert made[:2] == [module.FOLDER] * 2


@pytest.mark.parametrize("seen", [None, b"of another run"])
def test_a_folder_that_is_not_shared(tmp_path, monkeypatch, seen):
    monkeypatch.setattr(module, "_APPEARS_WITHIN_SECONDS", 0.2)
    with compatibility_check(FileAccess(tmp_path / "mine")) as met:
        theirs = LocalStore(tmp_path / "theirs")
        if seen is not None:
            theirs.put(f"{met.run_folder}/marker", seen)
        with pytest.raises(MissingError, match="does not see the output folder") as caught:
            replace(met, store=theirs).check()
    assert str(tmp_path / "theirs") in caught.value.where
    assert caught.value.found == ("no such file" if seen is None else "another file of that name")
    assert "one file system" in caught.value.remedy


def test_a_file_that_appears_late_is_waited_for(tmp_path, monkeypatch):
    with compatibility_check(FileAccess(tmp_path)) as met:
        reads = iter([None, None, met.token])
        monkeypatch.setattr(LocalStore, "read", lambda store, name: next(reads))
        met.check()
        assert list(reads) == []


def test_other_software(tmp_path):
    older = tuple(
        item._replace(version="1.26.4") if item.name == "numpy" else item for item in software()
    )
    with (
        compatibility_check(FileAccess(tmp_path)) as met,
        pytest.raises(StaleError, match="other software") as caught,
    ):
        replace(met, software=older).check()
    assert caught.value.expected == "numpy 1.26.4"
    assert re.fullmatch(r"numpy [0-9.]+", caught.value.found)


def test_software_knows_every_line_of_the_core(tmp_path, monkeypatch):
    name, digest = software()[1]
    assert (name, digest) == ("nanoset_core", module._source_digest())
    copy = tmp_path / "execution" / "compatibility.py"
    copy.parent.mkdir()
    copy.write_bytes(Path(module.__file__).read_bytes() + b"#")
    monkeypatch.setattr(module, "__file__", str(copy))
    changed = module._source_digest()
    (tmp_path / "more.py").touch()
    assert len({digest, changed, module._source_digest()}) == 3
