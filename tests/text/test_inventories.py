"""Inventories of corpora: what changes them, what is read again, files that are being written."""

import gzip
import os
import shutil
import time

import pytest

from helpers.raw_files import write_aged
from helpers.records import plain
from nanoset_core.errors import InputError
from nanoset_core.text import fingerprints
from nanoset_core.text.contents import contents_of
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventories import QuietPeriod, known_inventory, take_inventory


@pytest.fixture
def folder(tmp_path):
    """A corpus of three kinds of files, an hour old."""
    corpus = tmp_path / "raw" / "web"
    write_aged(corpus / "part-10.jsonl", b'{"text": "ten"}\n')
    write_aged(corpus / "part-2.jsonl.gz", gzip.compress(b'{"text": "two"}\n', mtime=0))
    write_aged(corpus / "sub" / "part-1.jsonl.zst", b"not decompressed here")
    write_aged(corpus / "README.md", b"no text")
    write_aged(corpus / "part-11.jsonl.part", b"still being uploaded")
    write_aged(corpus / ".part-12.jsonl", b"hidden")
    return corpus


@pytest.fixture
def open_memory(tmp_path):
    """Opens the memory of fingerprints, as each inventory does."""
    return lambda: FingerprintMemory(tmp_path / "memory.json")


def test_an_inventory_lists_the_files_that_are_read_in_natural_order(folder):
    inventory = take_inventory(folder, "web")

    assert inventory.corpus == "web"
    assert inventory.files == ("part-2.jsonl.gz", "part-10.jsonl", "sub/part-1.jsonl.zst")
    assert inventory.ignored == ("README.md",)
    assert inventory.size == sum((folder / path).stat().st_size for path in inventory.files)
    assert [piece.first_line for piece in inventory.pieces] == [1, 1, 1]


def test_the_digest_does_not_depend_on_times_folders_or_ignored_files(folder, tmp_path):
    copy = tmp_path / "elsewhere" / "web"
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    write_aged(copy / "notes.txt", b"more")

    digest = take_inventory(folder, "web").digest

    assert take_inventory(copy, "web").digest == digest
    assert take_inventory(copy, "another").digest == digest


CHANGES = {
    "a byte": lambda folder: write_aged(folder / "part-10.jsonl", b'{"text": "tan"}\n'),
    "added": lambda folder: write_aged(folder / "part-3.jsonl", b""),
    "removed": lambda folder: (folder / "part-10.jsonl").unlink(),
    "renamed": lambda folder: (folder / "part-10.jsonl").rename(folder / "part-9.jsonl"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_changes_the_digest(folder, open_memory, change):
    before = take_inventory(folder, "web", memory=open_memory()).digest

    CHANGES[change](folder)

    after = take_inventory(folder, "web", memory=open_memory()).digest
    assert after != before
    assert after == take_inventory(folder, "web").digest


def test_only_new_files_are_read_again(folder, open_memory, monkeypatch):
    first = take_inventory(folder, "web", memory=open_memory())
    write_aged(folder / "part-3.jsonl")
    read_paths = []
    progress = []
    fingerprint = fingerprints.fingerprint

    def spy(folder, stat, advance=None):
        read_paths.append(stat.path)
        return fingerprint(folder, stat, advance)

    monkeypatch.setattr(fingerprints, "fingerprint", spy)
    second = take_inventory(folder, "web", memory=open_memory(), progress=progress.append)

    assert read_paths == ["part-3.jsonl"]
    assert set(first.pieces) < set(second.pieces)
    assert sum(progress) == second.size  # known files count, too


def test_a_file_that_is_edited_right_after_an_inventory_is_read_again(folder, open_memory):
    # Size and inode stay the same, and so does the time, within the grain of the clock.
    path = write_aged(folder / "part-10.jsonl", b'{"text": "aaa"}\n', age_seconds=0)
    stat = path.stat()
    before = take_inventory(folder, "web", memory=open_memory()).digest

    with path.open("r+b") as file:
        file.write(b'{"text": "bbb"}\n')
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    assert take_inventory(folder, "web", memory=open_memory()).digest != before


def test_an_empty_corpus_is_an_error(tmp_path):
    (tmp_path / "web").mkdir()

    with pytest.raises(InputError, match="the corpus is empty") as caught:
        take_inventory(tmp_path / "web", "web")

    assert caught.value.found == "no files"


def test_the_error_for_a_corpus_without_text_names_its_files(tmp_path):
    write_aged(tmp_path / "web" / "a.csv")
    write_aged(tmp_path / "web" / "b.txt")

    with pytest.raises(InputError, match="the corpus is empty") as caught:
        take_inventory(tmp_path / "web", "web")

    assert caught.value.found == "2 other files: a.csv, b.txt"
    assert ".jsonl" in caught.value.expected


@pytest.fixture
def five_files(tmp_path):
    """A corpus of five small files."""
    for number in range(5):
        write_aged(tmp_path / "web" / f"{number}.jsonl", b'{"text": "a"}\n' * (number + 1))
    return tmp_path / "web"


def test_few_bytes_are_hashed_without_the_executor(five_files, executor):
    inventory = take_inventory(five_files, "web", executor=executor)

    assert inventory == take_inventory(five_files, "web")
    assert executor.tasks == []


def test_many_bytes_are_hashed_by_the_executor(five_files, executor, monkeypatch):
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 1)
    progress = []

    inventory = take_inventory(five_files, "web", executor=executor, progress=progress.append)

    assert inventory == take_inventory(five_files, "web")
    assert [task.stat.path for task in executor.tasks] == list(inventory.files)
    assert sum(progress) == inventory.size


def test_the_executor_hashes_only_what_is_not_known(five_files, executor, open_memory, monkeypatch):
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 1)
    take_inventory(five_files, "web", memory=open_memory())
    write_aged(five_files / "3.jsonl", b'{"text": "b"}\n', age_seconds=1800)

    inventory = take_inventory(five_files, "web", memory=open_memory(), executor=executor)

    assert [task.stat.path for task in executor.tasks] == ["3.jsonl"]
    assert inventory == take_inventory(five_files, "web")


def known(folder, memory, quiet=None):
    """Return the inventory of a corpus if it is known without reading its files."""
    contents = contents_of(folder)
    inventory = known_inventory(contents, memory, quiet)
    return None if inventory is None else inventory.pieces


def test_an_inventory_is_known_once_it_was_taken(folder, open_memory):
    assert known(folder, open_memory()) is None

    taken = take_inventory(folder, "web", memory=open_memory())

    assert known(folder, open_memory()) == taken.pieces


def test_an_inventory_is_not_known_after_a_file_changed(folder, open_memory):
    take_inventory(folder, "web", memory=open_memory())

    write_aged(folder / "part-10.jsonl", b'{"text": "8"}\n', age_seconds=1800)

    assert known(folder, open_memory()) is None


def test_an_inventory_is_known_after_a_file_was_removed(folder, open_memory):
    taken = take_inventory(folder, "web", memory=open_memory())

    (folder / "part-10.jsonl").unlink()

    remaining = [piece for piece in taken.pieces if piece.path != "part-10.jsonl"]
    assert known(folder, open_memory()) == tuple(remaining)


@pytest.fixture
def being_written(tmp_path, open_memory):
    """A corpus of which a.jsonl and the new d.jsonl are being written, and its earlier pieces."""
    folder = tmp_path / "web"
    write_aged(folder / "a.jsonl", b'{"text": "a"}\n')
    write_aged(folder / "b.jsonl", b'{"text": "b"}\n')
    pieces = take_inventory(folder, "web", memory=open_memory()).pieces
    write_aged(folder / "a.jsonl", b'{"text": "a"}\n{"text": "half', age_seconds=1)
    write_aged(folder / "c.jsonl", b'{"text": "c"}\n')
    write_aged(folder / "d.jsonl", b'{"text": "d', age_seconds=1)
    return folder, pieces


def test_files_that_are_being_written_count_as_they_were_before(being_written, open_memory):
    folder, pieces = being_written
    quiet = QuietPeriod(60, time.time_ns(), {piece.path: [piece] for piece in pieces})

    inventory = take_inventory(folder, "web", memory=open_memory(), quiet=quiet)

    assert inventory.files == ("a.jsonl", "b.jsonl", "c.jsonl")
    assert inventory.awaited == ("a.jsonl", "d.jsonl")
    assert inventory.pieces[:2] == pieces
    assert "awaited" not in plain(inventory)
    assert known(folder, open_memory(), quiet) == inventory.pieces


def test_without_a_quiet_period_files_are_read_as_they_are(being_written, open_memory):
    folder, _ = being_written

    inventory = take_inventory(folder, "web", memory=open_memory())

    assert inventory.files == ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl")
    assert inventory.awaited == ()


def test_a_corpus_of_which_every_file_is_being_written_is_an_error(folder):
    with pytest.raises(InputError, match="something writes to every file"):
        take_inventory(folder, "web", quiet=QuietPeriod(7200, time.time_ns()))


OLD = b'{"text": "a"}\n{"text": "b"}\n'


@pytest.mark.parametrize(
    ("name", "old", "new", "is_overwritten"),
    [
        ("a.jsonl", OLD, OLD, False),
        ("a.jsonl", OLD, OLD + b'{"text": "half', False),
        ("a.jsonl", OLD, OLD.replace(b"b", b"c") + OLD, True),
        ("a.jsonl", OLD, b'{"text": "n"}\n', True),
        ("a.jsonl.gz", gzip.compress(OLD, mtime=0), gzip.compress(OLD * 2, mtime=0), True),
        ("a.parquet", OLD, OLD, False),
        ("a.parquet", OLD, OLD + OLD, True),
        ("a.parquet", OLD, OLD.swapcase(), True),
    ],
)
def test_a_file_is_overwritten_unless_lines_were_appended(
    tmp_path, monkeypatch, name, old, new, is_overwritten
):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)  # each line is a piece
    path = write_aged(tmp_path / "web" / name, old)
    pieces = take_inventory(tmp_path / "web", "web").pieces
    path.write_bytes(new)
    quiet = QuietPeriod(60, time.time_ns(), {name: pieces})

    overwritten = quiet.overwritten(tmp_path / "web", contents_of(tmp_path / "web").texts)

    assert overwritten == (name if is_overwritten else None)


def test_a_new_file_is_never_overwritten(tmp_path):
    write_aged(tmp_path / "web" / "a.jsonl", OLD, age_seconds=0)

    quiet = QuietPeriod(60, time.time_ns())

    assert quiet.overwritten(tmp_path / "web", contents_of(tmp_path / "web").texts) is None
