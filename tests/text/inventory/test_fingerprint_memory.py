"""The memory of fingerprints: which files it recalls, and which have to be read again."""

import errno
import json
import time
from dataclasses import replace

import pytest

from helpers.raw_files import HOUR_NS
from nanoset_core.errors import StorageError
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.text.inventory import fingerprint_memory
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.pieces import Piece

OLD = FileStat("a.jsonl", 10, time.time_ns() - HOUR_NS, inode=77)
OLD_WITH_CHANGE_TIME = replace(OLD, changed_ns=OLD.mtime_ns + HOUR_NS // 2)
JUST_CHANGED = replace(OLD, changed_ns=time.time_ns() + HOUR_NS)
JUST_WRITTEN = replace(OLD, mtime_ns=time.time_ns() + HOUR_NS)
PIECES = [Piece("a.jsonl", 0, 4, 1, "aa"), Piece("a.jsonl", 4, 10, 2, "bb")]


@pytest.fixture
def path(tmp_path):
    """Where the memory is saved."""
    return tmp_path / "memory.json"


def remember(path, stat: FileStat) -> FingerprintMemory:
    """Note the pieces of a file, save them, and return the memory."""
    memory = FingerprintMemory(path)
    memory.note(stat, PIECES)
    memory.save({stat.path})
    return memory


@pytest.mark.parametrize(
    ("noted", "recalled"),
    [
        pytest.param(OLD, OLD, id="no change"),
        # File systems in user space may assign new inodes whenever they are mounted.
        pytest.param(
            OLD_WITH_CHANGE_TIME,
            replace(OLD_WITH_CHANGE_TIME, inode=78),
            id="another inode",
        ),
        pytest.param(
            OLD_WITH_CHANGE_TIME,
            replace(OLD_WITH_CHANGE_TIME, changed_ns=OLD_WITH_CHANGE_TIME.changed_ns + 1),
            id="another change time",
        ),
        pytest.param(JUST_CHANGED, JUST_CHANGED, id="no change, but recent change time"),
    ],
)
def test_an_unchanged_file_is_recalled(path, noted, recalled):
    remember(path, noted)

    assert FingerprintMemory(path).recall(recalled) == PIECES


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(replace(OLD, path="b.jsonl"), id="path"),
        pytest.param(replace(OLD, size=11), id="size"),
        pytest.param(replace(OLD, mtime_ns=OLD.mtime_ns + 1), id="time"),
        pytest.param(replace(OLD, inode=78), id="inode"),
    ],
)
def test_a_changed_file_is_not_recalled(path, changed):
    remember(path, OLD)

    assert FingerprintMemory(path).recall(changed) is None


def test_a_file_with_another_inode_and_change_time_was_replaced(path):
    remember(path, OLD_WITH_CHANGE_TIME)
    replaced = replace(
        OLD_WITH_CHANGE_TIME, inode=78, changed_ns=OLD_WITH_CHANGE_TIME.changed_ns + 1
    )

    assert FingerprintMemory(path).recall(replaced) is None


def test_a_file_with_another_inode_is_not_recalled_if_its_change_time_is_recent(path):
    """Another file could take its place within the resolution of the clock."""
    remember(path, JUST_CHANGED)

    assert FingerprintMemory(path).recall(replace(JUST_CHANGED, inode=78)) is None


def test_a_file_that_was_just_written_is_not_noted(path):
    remember(path, JUST_WRITTEN)

    assert FingerprintMemory(path).recall(JUST_WRITTEN) is None


def damaged_files() -> list[bytes]:
    """Return contents of the JSON file that were not written by this program."""
    stat = [OLD.size, OLD.mtime_ns, OLD.inode]
    entries = [
        3,
        {"stat": stat},
        {"stat": stat, "pieces": []},
        {"stat": stat, "pieces": [[1]]},
        {"stat": stat, "pieces": [[0, 4, 1, "a"]]},  # not to the end of the file
        {"stat": stat, "pieces": [[0, 10, "1", "a"]]},  # the first line is a text
        {"stat": stat, "pieces": [[0, 10, -1, "a"]]},
        {"stat": stat, "pieces": [[0, 10, True, "a"]]},
        {"stat": stat, "pieces": [[0, 10.0, 1, "a"]]},
        {"stat": stat, "pieces": [[0, 10, 1, None]]},  # no digest
    ]
    damaged = [b"", b"{", b"[]", b"{}", b'{"files": 3}', b"\xff"]
    for entry in entries:
        value = {
            "version": 1,
            "piece_bytes": fingerprint_memory.PIECE_BYTES,
            "files": {OLD.path: entry},
        }
        damaged.append(json.dumps(value).encode())
    return damaged


@pytest.mark.parametrize("data", damaged_files())
def test_a_damaged_memory_recalls_nothing(path, data):
    remember(path, OLD)

    path.write_bytes(data)

    assert FingerprintMemory(path).recall(OLD) is None


@pytest.mark.parametrize("data", damaged_files())
def test_a_damaged_memory_can_be_saved_again(path, data):
    memory = remember(path, OLD)
    path.write_bytes(data)

    memory.save({OLD.path})

    assert FingerprintMemory(path).recall(OLD) == PIECES


def test_a_memory_of_pieces_of_another_size_recalls_nothing(path, monkeypatch):
    remember(path, OLD)

    monkeypatch.setattr(fingerprint_memory, "PIECE_BYTES", 123)

    assert FingerprintMemory(path).recall(OLD) is None


def test_saving_forgets_all_other_files(path):
    remember(path, OLD).save(set())

    assert FingerprintMemory(path).recall(OLD) is None


def test_a_cleared_memory_recalls_nothing(path):
    remember(path, OLD).clear()

    assert FingerprintMemory(path).recall(OLD) is None


def test_a_memory_is_saved_while_files_are_hashed(path, monkeypatch):
    # It is saved whenever files of this many bytes were hashed; each file here has ten.
    monkeypatch.setattr(fingerprint_memory, "SAVE_BYTES", 15)
    memory = FingerprintMemory(path)
    memory.note(OLD, PIECES)
    assert not path.exists()

    memory.note(replace(OLD, path="b.jsonl"), [Piece("b.jsonl", 0, 10, 1, "cc")])

    assert FingerprintMemory(path).recall(OLD) == PIECES


def test_a_memory_that_may_not_be_read_is_explained(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(fingerprint_memory, "read_regular", refuse)

    with pytest.raises(StorageError, match="this may not be read"):
        FingerprintMemory(tmp_path / "fingerprints.json")
