"""Inventories of corpora: their digests, which files are read again, and files being written."""

import gzip
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.raw_files import write_aged
from helpers.records import plain
from nanoset_core.errors import InputError
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.inventory import fingerprints
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.pieces import Piece
from nanoset_core.text.inventory.take import QuietPeriod, known_inventory, take_inventory


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
    """A function that opens the memory of fingerprints, as each inventory does."""
    return lambda: FingerprintMemory(tmp_path / "memory.json")


# Contents and digest


def test_an_inventory_lists_the_files_that_are_read_in_natural_order(folder):
    inventory = take_inventory(folder, "web")

    assert inventory.corpus == "web"
    assert inventory.files == ("part-2.jsonl.gz", "part-10.jsonl", "sub/part-1.jsonl.zst")


def test_an_inventory_lists_the_files_that_are_not_read(folder):
    assert take_inventory(folder, "web").ignored == ("README.md",)


def test_txt_and_csv_files_next_to_others_do_not_change_the_digest(folder):
    before = take_inventory(folder, "web")

    write_aged(folder / "notes.txt", b"notes")
    write_aged(folder / "sub" / "urls.csv", b"text\nurl\n")
    after = take_inventory(folder, "web")

    assert after.pieces == before.pieces
    assert after.digest == before.digest
    assert after.ignored == ("README.md", "notes.txt", "sub/urls.csv")


def test_txt_and_csv_files_are_one_piece_each(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 4)
    write_aged(tmp_path / "web" / "a.txt", b"one\ntwo\n")
    write_aged(tmp_path / "web" / "b.csv", b"text\none\n")

    inventory = take_inventory(tmp_path / "web", "web")

    assert [(piece.path, piece.size) for piece in inventory.pieces] == [("a.txt", 8), ("b.csv", 9)]


def test_the_size_of_an_inventory_is_that_of_the_files_that_are_read(folder):
    inventory = take_inventory(folder, "web")

    assert inventory.size == sum((folder / path).stat().st_size for path in inventory.files)


def test_small_files_are_pieces_that_start_with_their_first_line(folder):
    inventory = take_inventory(folder, "web")

    assert [piece.first_line for piece in inventory.pieces] == [1, 1, 1]


def test_the_digest_does_not_depend_on_times_folders_or_ignored_files(folder, tmp_path):
    copy = tmp_path / "elsewhere" / "web"
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    write_aged(copy / "notes.txt", b"more")

    digest = take_inventory(folder, "web").digest

    assert take_inventory(copy, "web").digest == digest


def test_the_digest_does_not_depend_on_the_name_of_the_corpus(folder):
    digest = take_inventory(folder, "web").digest

    assert take_inventory(folder, "another").digest == digest


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

    assert take_inventory(folder, "web", memory=open_memory()).digest != before


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_does_not_depend_on_the_memory_of_fingerprints(folder, open_memory, change):
    take_inventory(folder, "web", memory=open_memory())
    CHANGES[change](folder)

    inventory = take_inventory(folder, "web", memory=open_memory())

    assert inventory.digest == take_inventory(folder, "web").digest


# Files that are read again


def test_only_new_files_are_read_again(folder, open_memory, monkeypatch):
    first = take_inventory(folder, "web", memory=open_memory())
    write_aged(folder / "part-3.jsonl")
    read_paths = []
    progress = []
    fingerprint = fingerprints.fingerprint

    def recording_fingerprint(folder, stat, advance=None):
        read_paths.append(stat.path)
        return fingerprint(folder, stat, advance)

    monkeypatch.setattr(fingerprints, "fingerprint", recording_fingerprint)
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


# Corpora without text


def test_an_empty_corpus_is_an_error(tmp_path):
    (tmp_path / "web").mkdir()

    with pytest.raises(InputError, match="the corpus is empty") as caught:
        take_inventory(tmp_path / "web", "web")

    assert caught.value.found == "no files"


def test_the_error_for_a_corpus_without_text_names_its_files(tmp_path):
    write_aged(tmp_path / "web" / "a.pdf")
    write_aged(tmp_path / "web" / "b.doc")

    with pytest.raises(InputError, match="the corpus is empty") as caught:
        take_inventory(tmp_path / "web", "web")

    assert caught.value.found == "2 other files: a.pdf, b.doc"
    assert ".jsonl" in caught.value.expected


# Executors


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


# Inventories that are known


def known_pieces(folder, memory, quiet=None):
    """Return the pieces of a corpus if they are known without reading its files, or None."""
    inventory = known_inventory(contents_of(folder), memory, quiet)
    if inventory is None:
        return None
    return inventory.pieces


def test_an_inventory_is_not_known_before_it_was_taken(folder, open_memory):
    assert known_pieces(folder, open_memory()) is None


def test_an_inventory_is_known_once_it_was_taken(folder, open_memory):
    inventory = take_inventory(folder, "web", memory=open_memory())

    assert known_pieces(folder, open_memory()) == inventory.pieces


def test_an_inventory_is_not_known_after_a_file_changed(folder, open_memory):
    take_inventory(folder, "web", memory=open_memory())

    write_aged(folder / "part-10.jsonl", b'{"text": "8"}\n', age_seconds=1800)

    assert known_pieces(folder, open_memory()) is None


def test_an_inventory_is_known_after_a_file_was_removed(folder, open_memory):
    inventory = take_inventory(folder, "web", memory=open_memory())

    (folder / "part-10.jsonl").unlink()

    remaining = [piece for piece in inventory.pieces if piece.path != "part-10.jsonl"]
    assert known_pieces(folder, open_memory()) == tuple(remaining)


# Files that are being written


class GrowingCorpus(NamedTuple):
    """A corpus to which something writes."""

    folder: Path
    earlier_pieces: tuple[Piece, ...]
    """The pieces before something was written."""


@pytest.fixture
def growing_corpus(tmp_path, open_memory):
    """A corpus to whose file a.jsonl and to the new d.jsonl something writes at the moment."""
    folder = tmp_path / "web"
    write_aged(folder / "a.jsonl", b'{"text": "a"}\n')
    write_aged(folder / "b.jsonl", b'{"text": "b"}\n')
    pieces = take_inventory(folder, "web", memory=open_memory()).pieces
    write_aged(folder / "a.jsonl", b'{"text": "a"}\n{"text": "half', age_seconds=1)
    write_aged(folder / "c.jsonl", b'{"text": "c"}\n')
    write_aged(folder / "d.jsonl", b'{"text": "d', age_seconds=1)
    return GrowingCorpus(folder, pieces)


@pytest.fixture
def quiet(growing_corpus):
    """A quiet period of one minute, with the pieces of each file in the previous inventory."""
    pieces_before = {piece.path: [piece] for piece in growing_corpus.earlier_pieces}
    return QuietPeriod(60, time.time_ns(), pieces_before)


def test_files_that_are_being_written_count_as_they_were_before(growing_corpus, quiet, open_memory):
    inventory = take_inventory(growing_corpus.folder, "web", memory=open_memory(), quiet=quiet)

    assert inventory.files == ("a.jsonl", "b.jsonl", "c.jsonl")
    assert inventory.pieces[:2] == growing_corpus.earlier_pieces


def test_an_inventory_lists_the_files_that_are_being_written(growing_corpus, quiet, open_memory):
    inventory = take_inventory(growing_corpus.folder, "web", memory=open_memory(), quiet=quiet)

    assert inventory.awaited == ("a.jsonl", "d.jsonl")
    # They are not part of the inventory that is stored.
    assert "awaited" not in plain(inventory)


def test_an_inventory_with_a_quiet_period_is_known_once_it_was_taken(
    growing_corpus, quiet, open_memory
):
    inventory = take_inventory(growing_corpus.folder, "web", memory=open_memory(), quiet=quiet)

    assert known_pieces(growing_corpus.folder, open_memory(), quiet) == inventory.pieces


def test_files_are_read_as_they_are_without_a_quiet_period(growing_corpus, open_memory):
    inventory = take_inventory(growing_corpus.folder, "web", memory=open_memory())

    assert inventory.files == ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl")
    assert inventory.awaited == ()


def test_a_corpus_of_which_every_file_is_being_written_is_an_error(folder):
    with pytest.raises(InputError, match="something writes to every file"):
        take_inventory(folder, "web", quiet=QuietPeriod(7200, time.time_ns()))


LINES = b'{"text": "a"}\n{"text": "b"}\n'


def overwritten_file(folder, name, old_data, new_data):
    """Write a file twice, with an inventory between, and return the file that was overwritten."""
    path = write_aged(folder / name, old_data)
    pieces = take_inventory(folder, "web").pieces
    path.write_bytes(new_data)
    quiet = QuietPeriod(60, time.time_ns(), {name: pieces})
    return quiet.overwritten(folder, contents_of(folder).texts)


@pytest.mark.parametrize(
    ("name", "new_data"),
    [
        pytest.param("a.jsonl", LINES, id="the same lines"),
        pytest.param("a.jsonl", LINES + b'{"text": "half', id="part of another line"),
        pytest.param("a.parquet", LINES, id="the same table"),
    ],
)
def test_a_file_to_which_lines_are_appended_is_not_overwritten(
    tmp_path, monkeypatch, name, new_data
):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)  # each line is a piece

    assert overwritten_file(tmp_path / "web", name, LINES, new_data) is None


@pytest.mark.parametrize(
    ("name", "old_data", "new_data"),
    [
        pytest.param("a.jsonl", LINES, LINES.replace(b"b", b"c") + LINES, id="a changed line"),
        pytest.param("a.jsonl", LINES, b'{"text": "n"}\n', id="fewer lines"),
        pytest.param(
            "a.jsonl.gz",
            gzip.compress(LINES, mtime=0),
            gzip.compress(LINES * 2, mtime=0),
            id="more compressed lines",
        ),
        pytest.param("a.parquet", LINES, LINES + LINES, id="a longer table"),
        pytest.param("a.parquet", LINES, LINES.swapcase(), id="a table of the same size"),
    ],
)
def test_a_file_with_other_content_is_overwritten(tmp_path, monkeypatch, name, old_data, new_data):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)  # each line is a piece

    assert overwritten_file(tmp_path / "web", name, old_data, new_data) == name


def test_a_new_file_is_not_overwritten(tmp_path):
    write_aged(tmp_path / "web" / "a.jsonl", LINES, age_seconds=0)
    quiet = QuietPeriod(60, time.time_ns())

    assert quiet.overwritten(tmp_path / "web", contents_of(tmp_path / "web").texts) is None
