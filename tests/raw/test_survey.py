import gzip
import json
import os
import shutil
import time

import pytest

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.raw import fingerprints
from nanoset_core.raw.pieces import Inventory, cut_ranges
from nanoset_core.raw.survey import discover_corpora, left_aside, list_corpora, take_inventory


@pytest.fixture
def folder(tmp_path):
    """A corpus of three kinds of files, an hour old."""
    corpus = tmp_path / "raw" / "web"
    write(corpus, "part-10.jsonl", b'{"text": "ten"}\n')
    write(corpus, "part-2.jsonl.gz", gzip.compress(b'{"text": "two"}\n', mtime=0))
    write(corpus, "sub/part-1.jsonl.zst", b"not looked into here")
    write(corpus, "README.md", b"no text")
    write(corpus, "part-11.jsonl.part", b"still coming")
    write(corpus, ".part-12.jsonl", b"hidden")
    return corpus


def write(folder, name, data, seconds_ago=3600):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    then = time.time() - seconds_ago
    os.utime(path, (then, then))


def test_inventory(folder):
    inventory = take_inventory(folder, "web")
    assert inventory.corpus == "web"
    assert inventory.files == ("part-2.jsonl.gz", "part-10.jsonl", "sub/part-1.jsonl.zst")
    assert inventory.ignored == ("README.md",)
    assert inventory.size == sum((folder / path).stat().st_size for path in inventory.files)
    assert [piece.first_line for piece in inventory.pieces] == [1, 1, 1]


def test_json_and_back(folder):
    inventory = take_inventory(folder, "web")
    again = Inventory.from_json(json.loads(json.dumps(inventory.to_json())))
    assert (again.corpus, again.pieces, again.ignored) == (inventory.corpus, inventory.pieces, ())


def test_digest_does_not_depend_on_times_folders_or_ignored_files(folder, tmp_path):
    digest = take_inventory(folder, "web").content_digest
    other = tmp_path / "elsewhere" / "web"
    shutil.copytree(folder, other, copy_function=shutil.copyfile)
    write(other, "notes.txt", b"more")
    assert take_inventory(other, "web").content_digest == digest
    assert take_inventory(other, "another").content_digest == digest


def change_a_byte(folder):
    write(folder, "part-10.jsonl", b'{"text": "tan"}\n')


def add(folder):
    write(folder, "part-3.jsonl", b"")


def remove(folder):
    (folder / "part-10.jsonl").unlink()


def rename(folder):
    (folder / "part-10.jsonl").rename(folder / "part-9.jsonl")


@pytest.mark.parametrize("change", [change_a_byte, add, remove, rename])
@pytest.mark.parametrize("with_memory", [True, False])
def test_every_change_changes_the_digest(folder, tmp_path, change, with_memory):
    memory = tmp_path / "memory.json" if with_memory else None
    before = take_inventory(folder, "web", remembered=memory).content_digest
    change(folder)
    assert take_inventory(folder, "web", remembered=memory).content_digest != before


def test_what_is_remembered_is_not_read_again(folder, tmp_path, monkeypatch):
    memory = tmp_path / "memory.json"
    first = take_inventory(folder, "web", remembered=memory)
    write(folder, "part-3.jsonl", b"{}\n")
    read = []
    real = fingerprints.fingerprint

    def spy(folder, stat, progress=None):
        read.append(stat.path)
        return real(folder, stat, progress)

    monkeypatch.setattr(fingerprints, "fingerprint", spy)
    heard = []
    second = take_inventory(folder, "web", remembered=memory, progress=heard.append)
    assert read == ["part-3.jsonl"]
    assert set(first.pieces) < set(second.pieces)
    assert sum(heard) == second.size
    assert take_inventory(folder, "web").content_digest == second.content_digest


def test_file_edited_in_place_at_once_is_seen(folder, tmp_path):
    """Same size, same inode, and a time within the clock's grain."""
    memory = tmp_path / "memory.json"
    write(folder, "part-10.jsonl", b'{"text": "aaa"}\n', seconds_ago=0)
    stat = (folder / "part-10.jsonl").stat()
    first = take_inventory(folder, "web", remembered=memory)
    with (folder / "part-10.jsonl").open("r+b") as file:
        file.write(b'{"text": "bbb"}\n')
    os.utime(folder / "part-10.jsonl", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert take_inventory(folder, "web", remembered=memory).content_digest != first.content_digest


def test_empty_file_is_part_of_the_inventory(tmp_path):
    write(tmp_path / "web", "a.jsonl", b"")
    inventory = take_inventory(tmp_path / "web", "web")
    assert [(piece.path, piece.begin, piece.end) for piece in inventory.pieces] == [("a.jsonl", 0, 0)]


def test_empty_corpus(tmp_path):
    (tmp_path / "web").mkdir()
    with pytest.raises(InputError, match="the corpus is empty") as caught:
        take_inventory(tmp_path / "web", "web")
    assert caught.value.found == "no files"
    write(tmp_path / "web", "a.csv", b"{}")
    write(tmp_path / "web", "b.txt", b"")
    with pytest.raises(InputError, match="the corpus is empty") as caught:
        take_inventory(tmp_path / "web", "web")
    assert caught.value.found == "2 other files: a.csv, b.txt"
    assert ".jsonl" in caught.value.expected


def test_big_plain_file_becomes_several_ranges(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 1000)
    write(tmp_path / "web", "a.jsonl", b"".join(b'{"text": "%d"}\n' % number for number in range(1000)))
    inventory = take_inventory(tmp_path / "web", "web")
    ranges = cut_ranges(inventory, 1000)
    assert len(ranges) == len(inventory.pieces) > 10
    assert [piece for source in ranges for piece in source.pieces] == list(inventory.pieces)


def test_discovers_folders_that_hold_text(folder):
    raw = folder.parent
    write(raw, "code/deep/er/a.jsonl.zst", b"")
    write(raw, "notes/a.txt", b"")
    write(raw, ".trash/a.jsonl", b"")
    write(raw, "half/.a.jsonl", b"")
    write(raw, "README.md", b"")
    (raw / "empty").mkdir()
    (raw / "linked").symlink_to("web")
    assert discover_corpora(raw) == ["code", "linked", "web"]


def test_raw_folder_is_missing(tmp_path):
    with pytest.raises(MissingError, match="does not exist") as caught:
        discover_corpora(tmp_path / "raw")
    assert caught.value.where == str(tmp_path / "raw")


@pytest.mark.parametrize("name", ["my web", "a,b", "a|b", "[a]", "-a", "_a", "é"])
def test_folder_whose_name_can_be_no_corpus(tmp_path, name):
    write(tmp_path, f"{name}/a.jsonl", b"")
    with pytest.raises(ConfigError, match="cannot name a corpus") as caught:
        discover_corpora(tmp_path)
    assert caught.value.found == repr(name)
    assert caught.value.where == str(tmp_path / name)


def test_text_outside_of_any_corpus_is_not_passed_over(folder):
    raw = folder.parent
    write(raw, "web.jsonl.gz", b"")
    with pytest.raises(InputError, match="belongs to no corpus") as caught:
        discover_corpora(raw)
    assert caught.value.where == str(raw / "web.jsonl.gz")
    assert str(raw / "web" / "web.jsonl.gz") in caught.value.remedy


@pytest.mark.parametrize("name", ["stats.json", "stats.ndjson", "c.json.gz", "WEB.JSONL"])
def test_other_files_outside_of_any_corpus_are_told_and_stop_nothing(folder, name):
    raw = folder.parent
    write(raw, "web/a.jsonl", b"{}\n")
    write(raw, name, b"{}\n")
    assert "web" in discover_corpora(raw)
    for aside in (list_corpora(raw).aside, left_aside(raw)):
        assert aside[name] == "a file in no corpus, which is not read"
    assert not list_corpora(raw).faults


class Elsewhere:
    """An executor that ends tasks in another order, and notes them."""

    def __init__(self):
        self.tasks = []

    def run(self, work, tasks):
        self.tasks += tasks
        yield from reversed([(number, work(task)) for number, task in enumerate(tasks)])


def test_an_executor_hashes_what_is_not_known_and_nothing_else(tmp_path, monkeypatch):
    folder, memory, told = tmp_path / "web", tmp_path / "memory.json", []
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jsonl").write_bytes(b'{"text": "a"}\n' * (number + 1))
        os.utime(folder / f"{number}.jsonl", (1_000_000, 1_000_000))
    wanted = take_inventory(folder, "web")
    executor = Elsewhere()
    assert take_inventory(folder, "web", remembered=memory, executor=executor) == wanted
    assert not executor.tasks, "so few bytes are read here"
    (folder / "3.jsonl").write_bytes(b'{"text": "b"}\n')
    memory.unlink()
    monkeypatch.setattr("nanoset_core.raw.survey.SPREAD_BYTES", 1)
    spread = take_inventory(folder, "web", remembered=memory, executor=executor, progress=told.append)
    assert spread == take_inventory(folder, "web")
    assert [task.stat.path for task in executor.tasks] == [f"{number}.jsonl" for number in range(5)]
    assert sum(told) == spread.size
    os.utime(folder / "3.jsonl", (1_000_000, 1_000_000))
    executor.tasks.clear()
    assert take_inventory(folder, "web", remembered=memory, executor=executor) == spread
    assert [task.stat.path for task in executor.tasks] == ["3.jsonl"]
