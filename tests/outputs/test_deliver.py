"""Outputs of commands that need no project: what is there is found, refused, or replaced whole."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nanoset_core.errors import ConfigError, StorageError
from nanoset_core.outputs.apart import check_apart
from nanoset_core.outputs.deliver import Delivery, make_once
from nanoset_core.outputs.receipts import Receipt, record_name, record_of


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").write_bytes(b"in")
    return tmp_path / "source"


def once(target, source, text="out", **given):
    options = {"text": text, **given.pop("options", {})}

    def make(path):
        path.write_text(text)
        return {"length": len(text)}

    return make_once("tool", target, [source], options, make, **given)


def test_the_same_call_does_nothing(tmp_path, source):
    assert once(tmp_path / "x", source) == ({"length": 3}, True)
    before = (tmp_path / "x").stat()
    assert once(tmp_path / "x", source) == ({"length": 3}, False)
    assert (tmp_path / "x").stat() == before
    (tmp_path / "x").unlink()
    assert once(tmp_path / "x", source)[1], "what was removed is made again"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.made.json", "source", "x"]


def test_what_another_call_made_is_refused_and_named(tmp_path, source):
    once(tmp_path / "x", source)
    with pytest.raises(ConfigError, match="other input or settings") as caught:
        once(tmp_path / "x", source, "other", options={"most_seen": 3})
    assert caught.value.found == "--text: out → other; --most-seen: none → 3"
    assert "--overwrite" in caught.value.remedy
    source.write_bytes(b"changed")
    with pytest.raises(ConfigError, match="source was another file, or written again since"):
        once(tmp_path / "x", source)
    (tmp_path / "more").write_bytes(b"")
    with pytest.raises(
        ConfigError, match="more was not among the files; source was one of the files"
    ):
        once(tmp_path / "x", tmp_path / "more")
    assert (tmp_path / "x").read_text() == "out"
    assert once(tmp_path / "x", source, "other", overwrite=True) == ({"length": 5}, True)
    assert (tmp_path / "x").read_text() == "other"


def test_what_nothing_is_known_of_is_refused(tmp_path, source):
    (tmp_path / "x").write_bytes(b"of another tool")
    for record in (None, b"", b"[]", b'{"files": {}}'):
        if record is not None:
            (tmp_path / record_name("x")).write_bytes(record)
        with pytest.raises(ConfigError, match="nothing says what it was made from"):
            once(tmp_path / "x", source)
    assert once(tmp_path / "x", source, overwrite=True)[1]


@pytest.mark.parametrize("text", [b"another length", b"OUT"])
def test_what_was_changed_since_is_refused(tmp_path, source, text):
    once(tmp_path / "x", source)
    (tmp_path / "x").write_bytes(text)
    with pytest.raises(ConfigError, match="changed since it was made"):
        once(tmp_path / "x", source)
    assert once(tmp_path / "x", source, overwrite=True)[1]


def test_a_folder_is_never_replaced(tmp_path, source):
    (tmp_path / "x").mkdir()
    with pytest.raises(ConfigError, match="a folder of this name"):
        once(tmp_path / "x", source, overwrite=True)


def test_a_failed_call_leaves_everything_as_it_was(tmp_path, source):
    once(tmp_path / "x", source)
    names = sorted(path.name for path in tmp_path.iterdir())

    def fail(path):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="the disk is full"):
        make_once("tool", tmp_path / "x", [source], {}, fail, overwrite=True)
    assert (tmp_path / "x").read_text() == "out"
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert not once(tmp_path / "x", source)[1]


def of_pair(folder, made_from):
    return Delivery(
        folder=folder,
        receipt=Receipt(name=".x.made.json", made_from=made_from),
        files=("x.bin", "x.idx"),
        optional=("x.rejects",),
        completing=("x.idx",),
    )


def write_pair(output, text, *, overwrite=False, rejects=False):
    with output.drafting(overwrite=overwrite) as draft:
        for ending in (".bin", ".idx", *([".rejects"] if rejects else [])):
            (draft.folder / f"x{ending}").write_text(text)


def held(folder):
    return {path.suffix: path.read_text() for path in folder.glob("x.*")}


def test_a_list_that_somebody_else_wrote_or_edited_stays(tmp_path, source):
    output = of_pair(tmp_path, record_of("tool", tmp_path / "x", [source], {}))
    write_pair(output, "one")
    (tmp_path / "x.rejects").write_text("mine")
    assert output.find(), "nothing is written"
    (tmp_path / "x.idx").unlink()
    with pytest.raises(ConfigError, match=r"x\.rejects was not there"):
        write_pair(output, "one")
    assert held(tmp_path) == {".bin": "one", ".rejects": "mine"}
    write_pair(output, "one", overwrite=True, rejects=True)
    assert output.find()
    (tmp_path / "x.rejects").write_text("mine")
    with pytest.raises(ConfigError, match=r"x\.rejects has 4 bytes, and had 3"):
        output.find()
    (tmp_path / "x.rejects").unlink()
    assert output.find(), "whoever needs the list no longer may remove it"


@pytest.mark.parametrize("name", ["x.bin", "x.rejects"])
def test_other_bytes_of_the_same_size_are_seen_by_their_checksum(tmp_path, source, name):
    output = replace(
        of_pair(tmp_path, record_of("tool", tmp_path / "x", [source], {})), is_hashed=True
    )
    write_pair(output, "one", rejects=True)
    assert output.find()
    (tmp_path / name).write_bytes(bytes(3))
    with pytest.raises(ConfigError, match=f"{name} has other bytes"):
        output.find()
    assert output.find(overwrite=True) is None
    write_pair(output, "one", overwrite=True, rejects=True)
    assert held(tmp_path) == {".bin": "one", ".idx": "one", ".rejects": "one"}


def killed_at(step, call):
    """Run `call` in a process of its own that is gone before it renames or removes its file number
    `step`.
    """
    child = os.fork()
    if child == 0:
        steps = iter(range(1000))

        def counted(real):
            def changed(*args, **given):
                if next(steps) == step:
                    os._exit(9)
                return real(*args, **given)

            return changed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", counted(os.replace))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            call()
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("step", range(10))
def test_a_pair_that_is_replaced_is_never_one_half_of_each(tmp_path, source, step):
    old = of_pair(tmp_path, record_of("tool", tmp_path / "x", [source], {"text": "old"}))
    new = of_pair(tmp_path, record_of("tool", tmp_path / "x", [source], {"text": "new"}))
    write_pair(old, "old", rejects=True)
    assert killed_at(step, lambda: write_pair(new, "new", overwrite=True)) == (9 if step < 6 else 0)
    found = held(tmp_path)
    assert {found.get(".bin"), found.get(".idx")} in (
        {"old"},
        {"new"},
        {"old", None},
        {"new", None},
    )
    assert ".bin" in found, "there is no moment without the tokens"
    if found.get(".idx") == "old":
        assert found[".rejects"] == "old"
    record = json.loads((tmp_path / ".x.made.json").read_text())
    if record["options"] == {"text": "new"}:
        write_pair(new, "new")  # the same call goes on, with no need to be told to overwrite
    else:
        with pytest.raises(ConfigError, match="other input or settings"):
            new.find()
        write_pair(new, "new", overwrite=True)
    assert held(tmp_path) == {".bin": "new", ".idx": "new"}
    assert new.find()
    assert not list(tmp_path.glob(".tmp-*"))


def test_two_calls_at_once_do_not_mix(tmp_path, source):
    one = of_pair(tmp_path, record_of("tool", tmp_path / "x", [source], {"text": "one"}))
    two = of_pair(tmp_path, record_of("tool", tmp_path / "x", [source], {"text": "two"}))
    with pytest.raises(ConfigError, match="text: two → one"), one.drafting() as draft:
        for ending in (".bin", ".idx"):
            (draft.folder / f"x{ending}").write_text("one")
        write_pair(two, "two")
    assert held(tmp_path) == {".bin": "two", ".idx": "two"}


def test_an_input_is_known_by_whatever_path(tmp_path, source):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(source)
    for output in ("source", "folder/../source", "link"):
        with pytest.raises(ConfigError, match="an input would be overwritten"):
            check_apart([tmp_path / output], [source])
        with pytest.raises(ConfigError, match="an input would be overwritten"):
            once(tmp_path / output, source, overwrite=True)
    (tmp_path / "waiting").symlink_to(tmp_path / "none")
    with pytest.raises(ConfigError, match="an input would be overwritten"):
        check_apart([tmp_path / "none"], [tmp_path / "waiting"])
    check_apart([tmp_path / "new"], [source])


def test_a_folder_with_inputs_and_output_may_be_moved(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "source").write_bytes(b"in")
    once(tmp_path / "a" / "x", tmp_path / "a" / "source")
    (tmp_path / "a").rename(tmp_path / "b")
    assert not once(tmp_path / "b" / "x", tmp_path / "b" / "source")[1]


@pytest.mark.parametrize("place", ["/proc/none/x", "file/x"])
def test_a_folder_that_cannot_be_made_is_said(tmp_path, source, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="the folder cannot be made") as caught:
        once(tmp_path / place, source)
    assert caught.value.where == str((tmp_path / place).parent)


def test_what_a_killed_call_left_goes_and_what_others_keep_there_stays(tmp_path, source):
    for name in (".tmp-mine", ".tmp-x.idx-old", ".tmp-x-mine", ".tmp-other.idx-old"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1e9, 1e9))
    write_pair(of_pair(tmp_path, record_of("tool", tmp_path / "x", [source], {})), "new")
    assert sorted(path.name for path in tmp_path.glob(".tmp-*")) == [
        ".tmp-mine",
        ".tmp-other.idx-old",
        ".tmp-x-mine",
    ]


def samples_of(folder, made_from, **more):
    """A delivery of numbered files, of which readers look for `index`."""
    return Delivery(
        folder=folder,
        receipt=Receipt(name="receipt.json", made_from=made_from, **more),
        files=("0", "1", "index"),
        completing=("index",),
        is_resumable=True,
    )


def write_unless_present(path, text, written):
    if not path.exists():
        path.write_text(text)
        written.append(path.name)


def deliver_samples(delivery, text, *, overwrite=False, stop_at=None):
    """Deliver files that are written in place; return the names of those that were written."""
    written = []

    def write(name):
        if name == stop_at:
            raise KeyboardInterrupt
        write_unless_present(delivery.folder / name, text, written)

    with delivery.drafting(overwrite=overwrite) as draft:
        draft.writers |= {name: partial(write, name) for name in delivery.files}
    return written


def test_an_interrupted_call_keeps_the_files_that_it_wrote_in_place(tmp_path):
    delivery = samples_of(tmp_path, {"text": "new"})
    with pytest.raises(KeyboardInterrupt):
        deliver_samples(delivery, "new", stop_at="1")
    assert delivery.find() is None

    written = deliver_samples(delivery, "new")

    assert written == ["1", "index"]
    assert delivery.find() is not None


def test_files_of_another_call_are_not_taken_for_those_of_an_interrupted_one(tmp_path):
    deliver_samples(samples_of(tmp_path, {"text": "old"}), "old")

    written = deliver_samples(samples_of(tmp_path, {"text": "new"}), "new", overwrite=True)

    assert written == ["0", "1", "index"]
    assert (tmp_path / "0").read_text() == "new"


def test_an_opening_receipt_of_another_name_is_gone_at_the_end(tmp_path):
    delivery = samples_of(tmp_path, {"text": "new"}, opening_name=".begun")
    with pytest.raises(KeyboardInterrupt):
        deliver_samples(delivery, "new", stop_at="1")
    assert not (tmp_path / "receipt.json").exists()
    assert (tmp_path / ".begun").exists()

    deliver_samples(delivery, "new")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "index", "receipt.json"]
