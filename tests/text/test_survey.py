"""Surveys of raw text: which corpora there are, whether they have arrived whole, and their
inventories.
"""

import gzip
import os
import shutil
import time
from dataclasses import replace

import pytest

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.text import fingerprints, listing
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventories import QuietPeriod, known_inventory, take_inventory
from nanoset_core.text.survey import is_quiescent, list_corpora

OLD = b'{"text": "a"}\n{"text": "b"}\n'


def write(path, data=b"{}\n", *, age=3600.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    then = time.time_ns() - int(age * 1e9)
    os.utime(path, ns=(then, then))
    return path


def scan(folder):
    return list_corpora(folder.parent).corpora[folder.name]


@pytest.fixture
def folder(tmp_path):
    """A corpus of three kinds of files, an hour old."""
    corpus = tmp_path / "raw" / "web"
    for name, data in {
        "part-10.jsonl": b'{"text": "ten"}\n',
        "part-2.jsonl.gz": gzip.compress(b'{"text": "two"}\n', mtime=0),
        "sub/part-1.jsonl.zst": b"not looked into here",
        "README.md": b"no text",
        "part-11.jsonl.part": b"still coming",
        ".part-12.jsonl": b"hidden",
    }.items():
        write(corpus / name, data)
    return corpus


def test_inventory(folder):
    inventory = take_inventory(folder, "web")
    assert inventory.corpus == "web"
    assert inventory.files == ("part-2.jsonl.gz", "part-10.jsonl", "sub/part-1.jsonl.zst")
    assert inventory.ignored == ("README.md",)
    assert inventory.size == sum((folder / path).stat().st_size for path in inventory.files)
    assert [piece.first_line for piece in inventory.pieces] == [1, 1, 1]


def test_digest_does_not_depend_on_times_folders_or_ignored_files(folder, tmp_path):
    digest = take_inventory(folder, "web").digest
    other = tmp_path / "elsewhere" / "web"
    shutil.copytree(folder, other, copy_function=shutil.copyfile)
    write(other / "notes.txt", b"more")
    assert take_inventory(other, "web").digest == digest
    assert take_inventory(other, "another").digest == digest


CHANGES = {
    "a byte": lambda folder: write(folder / "part-10.jsonl", b'{"text": "tan"}\n'),
    "added": lambda folder: write(folder / "part-3.jsonl", b""),
    "removed": lambda folder: (folder / "part-10.jsonl").unlink(),
    "renamed": lambda folder: (folder / "part-10.jsonl").rename(folder / "part-9.jsonl"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("with_memory", [True, False])
def test_every_change_changes_the_digest(folder, tmp_path, change, with_memory):
    memory = tmp_path / "memory.json" if with_memory else None
    before = take_inventory(folder, "web", memory=FingerprintMemory(memory)).digest
    CHANGES[change](folder)
    assert take_inventory(folder, "web", memory=FingerprintMemory(memory)).digest != before


def test_what_is_remembered_is_not_read_again(folder, tmp_path, monkeypatch):
    memory = tmp_path / "memory.json"
    first = take_inventory(folder, "web", memory=FingerprintMemory(memory))
    write(folder / "part-3.jsonl", b"{}\n")
    read = []
    real = fingerprints.fingerprint

    def spy(folder, stat, progress=None):
        read.append(stat.path)
        return real(folder, stat, progress)

    monkeypatch.setattr(fingerprints, "fingerprint", spy)
    heard = []
    second = take_inventory(folder, "web", memory=FingerprintMemory(memory), progress=heard.append)
    assert read == ["part-3.jsonl"]
    assert set(first.pieces) < set(second.pieces)
    assert sum(heard) == second.size
    assert take_inventory(folder, "web").digest == second.digest


def test_file_edited_in_place_at_once_is_seen(folder, tmp_path):
    """Same size, same inode, and a time within the clock's grain."""
    memory = tmp_path / "memory.json"
    write(folder / "part-10.jsonl", b'{"text": "aaa"}\n', age=0)
    stat = (folder / "part-10.jsonl").stat()
    first = take_inventory(folder, "web", memory=FingerprintMemory(memory))
    with (folder / "part-10.jsonl").open("r+b") as file:
        file.write(b'{"text": "bbb"}\n')
    os.utime(folder / "part-10.jsonl", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert take_inventory(folder, "web", memory=FingerprintMemory(memory)).digest != first.digest


def test_empty_corpus(tmp_path):
    (tmp_path / "web").mkdir()
    with pytest.raises(InputError, match="the corpus is empty") as caught:
        take_inventory(tmp_path / "web", "web")
    assert caught.value.found == "no files"
    write(tmp_path / "web" / "a.csv", b"{}")
    write(tmp_path / "web" / "b.txt", b"")
    with pytest.raises(InputError, match="the corpus is empty") as caught:
        take_inventory(tmp_path / "web", "web")
    assert caught.value.found == "2 other files: a.csv, b.txt"
    assert ".jsonl" in caught.value.expected


def test_discovers_folders_that_hold_text(folder):
    raw = folder.parent
    write(raw / "code/deep/er/a.jsonl.zst", b"")
    write(raw / "notes/a.txt", b"")
    write(raw / ".trash/a.jsonl", b"")
    write(raw / "half/.a.jsonl", b"")
    write(raw / "README.md", b"")
    (raw / "empty").mkdir()
    (raw / "linked").symlink_to("web")
    for names_only in (True, False):
        assert list(list_corpora(raw, names_only=names_only).corpora) == ["code", "linked", "web"]
    text = list_corpora(raw)
    assert [file.path for file in text.corpora["code"].texts] == ["deep/er/a.jsonl.zst"]
    assert (text.files, text.corpora["web"].size, text.faults) == (
        7,
        take_inventory(folder, "web").size,
        {},
    )


@pytest.mark.parametrize("name", ["stats.json", "stats.ndjson", "c.json.gz", "WEB.JSONL"])
def test_other_files_outside_of_any_corpus_are_told_and_stop_nothing(folder, name):
    raw = folder.parent
    write(raw / "web/a.jsonl", b"{}\n")
    write(raw / name, b"{}\n")
    for aside in (list_corpora(raw).aside, list_corpora(raw, names_only=True).aside):
        assert aside[name] == "a file in no corpus, which is not read"
    assert not list_corpora(raw).faults
    assert list(list_corpora(raw).corpora) == ["web"]


def test_an_executor_hashes_what_is_not_known_and_nothing_else(tmp_path, monkeypatch, executor):
    folder, memory, told = tmp_path / "web", tmp_path / "memory.json", []
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jsonl").write_bytes(b'{"text": "a"}\n' * (number + 1))
        os.utime(folder / f"{number}.jsonl", (1_000_000, 1_000_000))
    wanted = take_inventory(folder, "web")
    assert (
        take_inventory(folder, "web", memory=FingerprintMemory(memory), executor=executor) == wanted
    )
    assert not executor.tasks, "so few bytes are read here"
    (folder / "3.jsonl").write_bytes(b'{"text": "b"}\n')
    memory.unlink()
    monkeypatch.setattr("nanoset_core.text.fingerprints.SPREAD_BYTES", 1)
    spread = take_inventory(
        folder, "web", memory=FingerprintMemory(memory), executor=executor, progress=told.append
    )
    assert spread == take_inventory(folder, "web")
    assert [task.stat.path for task in executor.tasks] == [f"{number}.jsonl" for number in range(5)]
    assert sum(told) == spread.size
    os.utime(folder / "3.jsonl", (1_000_000, 1_000_000))
    executor.tasks.clear()
    assert (
        take_inventory(folder, "web", memory=FingerprintMemory(memory), executor=executor) == spread
    )
    assert [task.stat.path for task in executor.tasks] == ["3.jsonl"]


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
    expected = {
        "bad name": ConfigError,
        "stray.jsonl": InputError,
        "loop": InputError,
        "broken": MissingError,
    }
    assert kinds == expected
    assert all(error.remedy for error in text.faults.values())
    assert str(tmp_path / "stray" / "stray.jsonl") in text.faults["stray.jsonl"].remedy
    assert (text.faults["bad name"].found, text.faults["bad name"].where) == (
        "'bad name'",
        str(tmp_path / "bad name"),
    )
    assert list_corpora(tmp_path, names_only=True).faults.keys() == {"bad name", "stray.jsonl"}


def test_the_mark_changes_with_every_kind_of_change_and_with_nothing_else(tmp_path):
    folder = tmp_path / "web"
    path = write(folder / "a.jsonl")
    first = scan(folder).signature
    assert scan(folder).signature == first
    (folder / "notes.txt").write_text("not read")
    assert scan(folder).signature == first

    def changed(step):
        before = scan(folder).signature
        step()
        assert scan(folder).signature != before

    stat = path.stat()
    changed(lambda: os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1)))
    changed(lambda: write(path, b"{}{}\n"))
    changed(lambda: write(folder / "b.jsonl"))
    changed(lambda: (folder / "b.jsonl").rename(folder / "c.jsonl"))
    changed((folder / "c.jsonl").unlink)

    def replace():
        """Another file of the same name, size and time."""
        stat = path.stat()
        path.rename(folder / "old")
        path.write_text("[]{}\n")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    changed(replace)


def test_files_have_settled_when_two_looks_agree_and_the_newest_is_old_enough(tmp_path):
    folder = tmp_path / "web"
    write(folder / "a.jsonl", age=100)
    found = scan(folder)
    now = time.time_ns()

    def settled(seen, seconds, at=now):
        return is_quiescent(found, seen, now_ns=at, settle_seconds=seconds)

    assert settled(found.signature, 60)
    assert not settled(found.signature, 200), "written too recently"
    assert settled(found.signature, 200, at=now + 101 * 10**9)
    assert not settled("another", 60), "it changed between the two looks"
    assert not settled(None, 60), "the first look"


def test_a_file_from_the_future_does_not_wait_for_it(tmp_path):
    write(tmp_path / "soon" / "a.jsonl", age=-5)
    write(tmp_path / "far" / "a.jsonl", age=-7200)
    soon, far = list_corpora(tmp_path).corpora["soon"], list_corpora(tmp_path).corpora["far"]
    now = time.time_ns()
    assert not is_quiescent(soon, soon.signature, now_ns=now, settle_seconds=60)
    assert is_quiescent(far, far.signature, now_ns=now, settle_seconds=60), (
        "its clock is wrong; the two looks agree"
    )


def test_a_known_inventory_is_the_one_that_would_be_taken(tmp_path):
    folder, memory = tmp_path / "web", tmp_path / "memory.json"
    for number in (10, 9, 1):
        write(folder / f"part-{number}.jsonl", b'{"text": "%d"}\n' % number)
    assert known_inventory(scan(folder), FingerprintMemory(memory)) is None
    taken = take_inventory(folder, "web", memory=FingerprintMemory(memory))
    known = known_inventory(scan(folder), FingerprintMemory(memory))
    assert known == taken
    assert known.files == ("part-1.jsonl", "part-9.jsonl", "part-10.jsonl")
    write(folder / "part-9.jsonl", b'{"text": "8"}\n', age=1800)
    assert known_inventory(scan(folder), FingerprintMemory(memory)) is None
    (folder / "part-9.jsonl").unlink()
    assert known_inventory(scan(folder), FingerprintMemory(memory)).files == (
        "part-1.jsonl",
        "part-10.jsonl",
    )


def test_the_mark_holds_no_inode_that_is_numbered_anew_at_each_look(tmp_path, monkeypatch):
    write(tmp_path / "web" / "a.jsonl")
    marks, stat = [], listing.file_stat
    for inode in (7, 8):
        monkeypatch.setattr(
            listing,
            "file_stat",
            lambda path, found, inode=inode: replace(stat(path, found), inode=inode),
        )
        marks.append(scan(tmp_path / "web").signature)
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
    quiet = QuietPeriod(60, time.time_ns(), {name: pieces})
    files = scan(tmp_path / "web").texts
    assert quiet.overwritten(tmp_path / "web", files) == (name if is_overwritten else None)
    assert QuietPeriod(60, time.time_ns()).overwritten(tmp_path / "web", files) is None


def test_files_that_something_writes_to_count_as_they_were(tmp_path):
    folder, memory = tmp_path / "web", tmp_path / "memory.json"
    write(folder / "a.jsonl", b'{"text": "a"}\n')
    write(folder / "b.jsonl", b'{"text": "b"}\n')
    before = take_inventory(folder, "web", memory=FingerprintMemory(memory))
    write(folder / "a.jsonl", b'{"text": "a"}\n{"text": "half', age=1)
    write(folder / "c.jsonl", b'{"text": "c"}\n')
    write(folder / "d.jsonl", b'{"text": "d', age=1)
    quiet = QuietPeriod(60, time.time_ns(), {piece.path: [piece] for piece in before.pieces})
    taken = take_inventory(folder, "web", memory=FingerprintMemory(memory), quiet=quiet)
    assert (taken.files, taken.awaited) == (
        ("a.jsonl", "b.jsonl", "c.jsonl"),
        ("a.jsonl", "d.jsonl"),
    )
    assert taken.pieces[:2] == before.pieces
    assert known_inventory(scan(folder), FingerprintMemory(memory), quiet) == taken
    assert "awaited" not in taken.to_json()
    everything = take_inventory(folder, "web", memory=FingerprintMemory(memory))
    assert everything.files == ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl")
    with pytest.raises(InputError, match="something writes to every file"):
        take_inventory(folder, "web", quiet=QuietPeriod(7200, time.time_ns()))
