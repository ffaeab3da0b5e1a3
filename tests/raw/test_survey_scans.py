"""Looking at raw text without reading it: what is there, whether it has arrived whole, whether it was taken."""

from __future__ import annotations

import gzip
import os
import time
from dataclasses import replace

import pytest

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.raw import fingerprints, listing
from nanoset_core.raw.settling import Settling
from nanoset_core.raw.survey import is_quiescent, known_inventory, list_corpora, scan_corpus, take_inventory

HOUR_NS = 3600 * 10**9
OLD = b'{"text": "a"}\n{"text": "b"}\n'


def write(path, text="{}\n", *, age_seconds=3600.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    then = time.time_ns() - int(age_seconds * 1e9)
    os.utime(path, ns=(then, then))
    return path


def test_a_look_finds_the_corpora_and_leaves_out_what_is_no_text(tmp_path):
    write(tmp_path / "web" / "deep" / "a.jsonl", "x" * 10)
    write(tmp_path / "web" / "b.jsonl.gz", "x" * 5)
    for name in ("c.jsonl.tmp", "d.jsonl.part", "e.jsonl.partial", "f.jsonl.crdownload", ".g.jsonl", "notes.txt"):
        write(tmp_path / "web" / name)
    write(tmp_path / "empty" / "notes.txt")
    write(tmp_path / ".hidden" / "a.jsonl")
    text = list_corpora(tmp_path)
    assert list(text.corpora) == ["web"]
    assert sorted(file.path for file in text.corpora["web"].files) == ["b.jsonl.gz", "deep/a.jsonl"]
    assert (text.files, text.corpora["web"].size, text.faults) == (2, 15, {})


def test_what_is_wrong_with_one_corpus_does_not_hide_the_others(tmp_path):
    write(tmp_path / "good" / "a.jsonl")
    write(tmp_path / "bad name" / "a.jsonl")
    write(tmp_path / "stray.jsonl")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "again").symlink_to(tmp_path / "loop")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.jsonl").symlink_to(tmp_path / "nowhere")
    text = list_corpora(tmp_path)
    assert list(text.corpora) == ["good"]
    kinds = {name: type(error) for name, error in text.faults.items()}
    expected = {"bad name": ConfigError, "stray.jsonl": InputError, "loop": InputError, "broken": MissingError}
    assert kinds == expected
    assert all(error.remedy for error in text.faults.values())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_cannot_be_listed_is_a_fault(tmp_path):
    write(tmp_path / "web" / "a.jsonl")
    (tmp_path / "web").chmod(0)
    try:
        assert "cannot be read" in str(list_corpora(tmp_path).faults["web"])
    finally:
        (tmp_path / "web").chmod(0o755)


def test_without_a_raw_folder_it_says_where_it_looked(tmp_path):
    with pytest.raises(MissingError, match="mount or restore it") as caught:
        list_corpora(tmp_path / "raw")
    assert caught.value.where == str(tmp_path / "raw")


def test_the_mark_changes_with_every_kind_of_change_and_with_nothing_else(tmp_path):
    path = write(tmp_path / "a.jsonl")
    first = scan_corpus(tmp_path, "web").signature
    assert scan_corpus(tmp_path, "web").signature == first
    (tmp_path / "notes.txt").write_text("not read")
    assert scan_corpus(tmp_path, "web").signature == first

    def changed(step):
        before = scan_corpus(tmp_path, "web").signature
        step()
        assert scan_corpus(tmp_path, "web").signature != before

    stat = path.stat()
    changed(lambda: os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1)))
    changed(lambda: write(path, "{}{}\n"))
    changed(lambda: write(tmp_path / "b.jsonl"))
    changed(lambda: (tmp_path / "b.jsonl").rename(tmp_path / "c.jsonl"))
    changed((tmp_path / "c.jsonl").unlink)

    def replace():
        """Another file of the same name, size and time."""
        stat = path.stat()
        path.rename(tmp_path / "old")
        path.write_text("[]{}\n")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    changed(replace)


def test_files_have_settled_when_two_looks_agree_and_the_newest_is_old_enough(tmp_path):
    write(tmp_path / "a.jsonl", age_seconds=100)
    found = scan_corpus(tmp_path, "web")
    now = time.time_ns()

    def settled(seen, seconds, at=now):
        return is_quiescent(found, seen, now_ns=at, settle_seconds=seconds)

    assert settled(found.signature, 60)
    assert not settled(found.signature, 200), "written too recently"
    assert settled(found.signature, 200, at=now + 101 * 10**9)
    assert not settled("another", 60), "it changed between the two looks"
    assert not settled(None, 60), "the first look"


def test_a_file_from_the_future_does_not_wait_for_it(tmp_path):
    write(tmp_path / "soon" / "a.jsonl", age_seconds=-5)
    write(tmp_path / "far" / "a.jsonl", age_seconds=-7200)
    soon, far = list_corpora(tmp_path).corpora["soon"], list_corpora(tmp_path).corpora["far"]
    now = time.time_ns()
    assert not is_quiescent(soon, soon.signature, now_ns=now, settle_seconds=60)
    assert is_quiescent(far, far.signature, now_ns=now, settle_seconds=60), "its clock is wrong; the two looks agree"


def test_a_known_inventory_is_the_one_that_would_be_taken(tmp_path):
    folder, memory = tmp_path / "web", tmp_path / "memory.json"
    for number in (10, 9, 1):
        write(folder / f"part-{number}.jsonl", f'{{"text": "{number}"}}\n')
    assert known_inventory(scan_corpus(folder, "web"), memory) is None
    taken = take_inventory(folder, "web", remembered=memory)
    known = known_inventory(scan_corpus(folder, "web"), memory)
    assert known == taken
    assert known.files == ("part-1.jsonl", "part-9.jsonl", "part-10.jsonl")
    write(folder / "part-9.jsonl", '{"text": "8"}\n', age_seconds=1800)
    assert known_inventory(scan_corpus(folder, "web"), memory) is None
    (folder / "part-9.jsonl").unlink()
    assert known_inventory(scan_corpus(folder, "web"), memory).files == ("part-1.jsonl", "part-10.jsonl")


def test_a_file_that_may_still_change_within_its_clocks_grain_is_never_known(tmp_path):
    folder, memory = tmp_path / "web", tmp_path / "memory.json"
    write(folder / "a.jsonl", age_seconds=0)
    take_inventory(folder, "web", remembered=memory)
    assert known_inventory(scan_corpus(folder, "web"), memory) is None


def test_the_mark_holds_no_inode_that_is_numbered_anew_at_each_look(tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl")
    marks, stat = [], listing.file_stat
    for inode in (7, 8):
        monkeypatch.setattr(
            listing, "file_stat", lambda path, found, inode=inode: replace(stat(path, found), inode=inode)
        )
        marks.append(scan_corpus(tmp_path, "web").signature)
    assert marks[0] == marks[1]


@pytest.mark.parametrize(("name", "now", "is_overwritten"), [
    ("a.jsonl", OLD + b'{"text": "half', False),
    ("a.jsonl", OLD, False),
    ("a.jsonl", OLD.replace(b"b", b"c") + OLD, True),
    ("a.jsonl", b'{"text": "n"}\n', True),
    ("a.jsonl.gz", gzip.compress(OLD + OLD, mtime=0), True),
    ("a.parquet", OLD + OLD, True),
    ("a.parquet", OLD, False),
    ("a.parquet", OLD.swapcase(), True),
])  # fmt: skip
def test_files_that_cannot_count_as_they_were(tmp_path, monkeypatch, name, now, is_overwritten):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)
    path = tmp_path / "web" / name
    write(path)
    path.write_bytes(gzip.compress(OLD) if name.endswith(".gz") else OLD)
    pieces = take_inventory(tmp_path / "web", "web").pieces
    assert len(pieces) == (2 if name == "a.jsonl" else 1)
    path.write_bytes(now)
    settling = Settling(60, time.time_ns(), {name: pieces})
    found = settling.overwritten(tmp_path / "web", scan_corpus(tmp_path / "web", "web").files)
    assert found == (name if is_overwritten else None)
    assert (
        Settling(60, time.time_ns()).overwritten(tmp_path / "web", scan_corpus(tmp_path / "web", "web").files) is None
    )


def test_files_that_something_writes_to_count_as_they_were(tmp_path):
    folder, memory = tmp_path / "web", tmp_path / "memory.json"
    write(folder / "a.jsonl", '{"text": "a"}\n')
    write(folder / "b.jsonl", '{"text": "b"}\n')
    before = take_inventory(folder, "web", remembered=memory)
    write(folder / "a.jsonl", '{"text": "a"}\n{"text": "half', age_seconds=1)
    write(folder / "c.jsonl", '{"text": "c"}\n')
    write(folder / "d.jsonl", '{"text": "d', age_seconds=1)
    settling = Settling(60, time.time_ns(), {piece.path: [piece] for piece in before.pieces})
    taken = take_inventory(folder, "web", remembered=memory, settling=settling)
    assert (taken.files, taken.awaited) == (("a.jsonl", "b.jsonl", "c.jsonl"), ("a.jsonl", "d.jsonl"))
    assert taken.pieces[:2] == before.pieces
    assert known_inventory(scan_corpus(folder, "web"), memory, settling) == taken
    assert "awaited" not in taken.to_json()
    everything = take_inventory(folder, "web", remembered=memory)
    assert everything.files == ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl")
    with pytest.raises(InputError, match="something writes to every file"):
        take_inventory(folder, "web", settling=Settling(7200, time.time_ns()))
