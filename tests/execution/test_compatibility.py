import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.execution import compatibility as module
from nanoset_core.execution.compatibility import compatibility_check, software
from nanoset_core.storage.atomic import sweep_abandoned


def test_the_marker_is_hidden_and_gone_afterwards(tmp_path):
    with compatibility_check(tmp_path / "new") as met:
        met.check()
        assert met.marker.parent == tmp_path / "new"
        assert met.marker.name.startswith(".tmp-")
        sweep_abandoned(tmp_path / "new")
        met.check()
    assert list((tmp_path / "new").iterdir()) == []


def test_after_the_end_of_its_run_no_task_begins(tmp_path, monkeypatch):
    monkeypatch.setattr("nanoset_core.execution.compatibility._SEEN_WITHIN_SECONDS", 120.0)
    with compatibility_check(tmp_path) as met:
        met.check()
    started = time.monotonic()
    with pytest.raises(MissingError):
        met.check()
    assert time.monotonic() - started < 60, "what was seen once is not waited for"


def test_two_runs_do_not_meet(tmp_path):
    with compatibility_check(tmp_path) as one, compatibility_check(tmp_path) as other:
        assert one.marker != other.marker
        assert one.token != other.token


@pytest.mark.parametrize("seen", [None, b"of another run"])
def test_a_folder_that_is_not_shared(tmp_path, monkeypatch, seen):
    monkeypatch.setattr(module, "_SEEN_WITHIN_SECONDS", 0.2)
    with compatibility_check(tmp_path / "mine") as met:
        there = tmp_path / "theirs" / met.marker.name
        there.parent.mkdir()
        if seen is not None:
            there.write_bytes(seen)
        with pytest.raises(MissingError, match="does not see the output folder") as caught:
            replace(met, marker=there).check()
    assert str(tmp_path / "theirs") in caught.value.where
    assert caught.value.found == ("No such file or directory" if seen is None else "another file of that name")
    assert "one file system" in caught.value.remedy


def test_a_file_that_appears_late_is_waited_for(tmp_path, monkeypatch):
    with compatibility_check(tmp_path) as met:
        reads = iter([FileNotFoundError(2, "No such file"), FileNotFoundError(2, "No such file"), met.token])
        monkeypatch.setattr(module, "_read", lambda path: next(reads))
        met.check()
        assert list(reads) == []


def test_other_software(tmp_path):
    older = tuple((name, "1.26.4" if name == "numpy" else version) for name, version in software())
    with compatibility_check(tmp_path) as met, pytest.raises(StaleError, match="other software") as caught:
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
