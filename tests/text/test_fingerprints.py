import hashlib
import json
import os
import re
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoset_core.errors import MissingError, SourceChangedError
from nanoset_core.text import fingerprint_memory, fingerprints, piece_cuts
from nanoset_core.text.contents import contents_of
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.fingerprints import fingerprint, fingerprint_all, hash_parts
from nanoset_core.text.listing import FileStat
from nanoset_core.text.piece_cuts import chained_cuts, separate_cuts
from nanoset_core.text.pieces import Piece, deal_parts
from nanoset_core.text.raw_files import Probe
from nanoset_core.text.stored_piece import StoredPiece

HOUR_NS = 3600 * 10**9


def age(path, hours=1):
    then = time.time_ns() - hours * HOUR_NS
    os.utime(path, ns=(then, then))


def write(folder, name, data, hours=1):
    (folder / name).write_bytes(data)
    age(folder / name, hours)
    (stat,) = [file for file in contents_of(folder).ordered if file.path == name]
    return stat


def sha(data):
    return hashlib.sha256(data).hexdigest()


def cut_slowly(name: str, data: bytes, piece_bytes: int) -> list[Piece]:
    """The rule, one line at a time: a piece ends with the first line that reaches `piece_bytes`."""
    if not name.endswith(".jsonl"):
        return [Piece(name, 0, len(data), 1, sha(data))]
    pieces, begin, first, end, number = [], 0, 1, 0, 1
    for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
        end += len(line)
        number += line.endswith(b"\n")
        if end - begin >= piece_bytes and end < len(data):
            pieces.append(Piece(name, begin, end, first, sha(data[begin:end])))
            begin, first = end, number
    return [*pieces, Piece(name, begin, len(data), first, sha(data[begin:]))]


LINES = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=30)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=LINES,
    final=st.booleans(),
    piece_bytes=st.integers(1, 60),
    part_bytes=st.integers(1, 80),
    read_bytes=st.integers(1, 40),
    window=st.integers(1, 40),
    name=st.sampled_from(["a.jsonl", "a.jsonl.gz"]),
)
def test_pieces_parts_and_runs_of_workers_are_those_of_the_slow_rule(
    tmp_path_factory,
    monkeypatch,
    executor,
    lines,
    final,
    piece_bytes,
    part_bytes,
    read_bytes,
    window,
    name,
):
    folder = tmp_path_factory.mktemp("corpus")
    data = b"\n".join(lines) + (b"\n" if final and lines else b"")
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fingerprints, "READ_BYTES", read_bytes)
    monkeypatch.setattr(piece_cuts, "WINDOW_BYTES", window)
    stat, other = write(folder, name, data), write(folder, "b.jsonl", data[:50])
    pieces = fingerprint(folder, stat)
    assert pieces == cut_slowly(name, data, piece_bytes)
    for piece in pieces[1:]:
        assert data[piece.begin - 1 : piece.begin] == b"\n"
        assert piece.first_line == data[: piece.begin].count(b"\n") + 1

    wholes = []
    parts = list(hash_parts(folder, stat, part_bytes, wholes.append))
    assert wholes == pieces
    assert [(part.begin, part.end, part.first_line) for part in parts] == [
        (part.begin, part.end, part.first_line) for part in cut_slowly(name, data, part_bytes)
    ]
    for part in parts:
        StoredPiece(folder, part).check()
    assert [piece for dealt in deal_parts(parts, part_bytes) for piece in dealt.pieces] == parts

    told = []
    found = dict(fingerprint_all(folder, [stat, other], executor, told.append))
    assert found == {stat: pieces, other: fingerprint(folder, other)}
    assert sum(told) == stat.size + other.size
    if len(data) > 4 * piece_bytes:  # less is not worth a look at where it is cut
        assert [(task.start, task.stop) for task in executor.tasks if task.stat == stat] == [
            (piece.begin, piece.end) for piece in pieces
        ]


def replace_file(path):
    """Put another file of the same size and time in its place."""
    stat = path.stat()
    other = path.with_name("new")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    os.rename(other, path)


CHANGES = {
    "append": lambda path: path.write_bytes(path.read_bytes() + b"more\n"),
    "truncate": lambda path: os.truncate(path, 50),
    "replace": replace_file,
    "touch": lambda path: path.touch(),
    "remove": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["listed", "cut", "half"])
def test_a_file_that_changes_while_several_workers_hash_it(tmp_path, monkeypatch, change, moment):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 30)
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    stat, path = write(tmp_path, "a.jsonl", b"0123456789\n" * 30), tmp_path / "a.jsonl"

    class Meanwhile:
        def run(self, work, tasks):
            listed = list(tasks)
            assert len(listed) == 10
            for number, task in enumerate(listed):
                if number == {"cut": 0, "half": 5}.get(moment):
                    CHANGES[change](path)
                yield number, work(task)

    if moment == "listed":
        CHANGES[change](path)
    with pytest.raises(MissingError if change == "remove" else SourceChangedError) as caught:
        list(fingerprint_all(tmp_path, [stat], Meanwhile()))
    assert caught.value.where == str(path)


@pytest.mark.parametrize("change", ["append", "truncate", "replace", "touch"])
def test_file_that_changes_while_it_is_hashed(tmp_path, monkeypatch, change):
    stat, path = write(tmp_path, "a.jsonl", b"0123456789\n" * 10), tmp_path / "a.jsonl"
    monkeypatch.setattr(fingerprints, "READ_BYTES", 30)
    if change == "replace":  # between the listing and the hashing: the open file stays the old one
        CHANGES[change](path)
    with pytest.raises(SourceChangedError, match="changed while it was read") as caught:
        fingerprint(tmp_path, stat, lambda _: change == "replace" or CHANGES[change](path))
    assert caught.value.where == str(path)


def test_small_files_are_hashed_whole(tmp_path, monkeypatch, executor):
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)
    data = b"0123456789\n" * 4
    for name, text in [("large", data * 2), *((str(number), data[:-5]) for number in range(30))]:
        (tmp_path / f"{name}.jsonl").write_bytes(text)
    found = [
        pieces for _, pieces in fingerprint_all(tmp_path, contents_of(tmp_path).ordered, executor)
    ]
    assert sum(map(len, found)) == 4 * 30 + 8
    assert len(executor.tasks) == 30 + 8


def test_a_part_that_is_not_as_it_was(tmp_path):
    stat = write(tmp_path, "a.jsonl", b"0123456789\n" * 10)
    parts = list(hash_parts(tmp_path, stat, 20, [].append))
    assert len(parts) == 5
    write(tmp_path, "a.jsonl", b"0123456789\n" * 4 + b"0123x56789\n" + b"0123456789\n" * 5)
    for number, part in enumerate(parts):
        if number == 2:
            with pytest.raises(SourceChangedError, match="CRC-32"):
                StoredPiece(tmp_path, part).check()
        else:
            StoredPiece(tmp_path, part).check()


def test_grown_file_keeps_its_first_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 100)
    lines = [b"%04d " % number + b"x" * 30 + b"\n" for number in range(40)]
    before = fingerprint(tmp_path, write(tmp_path, "a.jsonl", b"".join(lines[:33])))
    after = fingerprint(tmp_path, write(tmp_path, "a.jsonl", b"".join(lines)))
    assert len(before) == 11
    assert after[:10] == before[:10]


def remember(tmp_path, stat, pieces):
    memory = FingerprintMemory(tmp_path / "memory.json")
    memory.note(stat, pieces)
    memory.save({stat.path})
    return FingerprintMemory(tmp_path / "memory.json")


OLD = FileStat("a.jsonl", 10, time.time_ns() - HOUR_NS, 77)
PLACED = replace(OLD, changed_ns=OLD.mtime_ns + HOUR_NS // 2)
JUST_PLACED = replace(OLD, changed_ns=time.time_ns() + HOUR_NS)
PIECES = [Piece("a.jsonl", 0, 4, 1, "aa"), Piece("a.jsonl", 4, 10, 2, "bb")]


@pytest.mark.parametrize(
    ("noted", "changes", "known"),
    [
        (OLD, {}, True),
        (OLD, {"path": "b.jsonl"}, False),
        (OLD, {"size": 11}, False),
        (OLD, {"mtime_ns": OLD.mtime_ns + 1}, False),
        (OLD, {"inode": 78}, False),
        # On file systems in user space inodes are numbered anew; a replaced file has another time
        # of change, too.
        (PLACED, {"inode": 78}, True),
        (PLACED, {"changed_ns": PLACED.changed_ns + 1}, True),
        (PLACED, {"inode": 78, "changed_ns": PLACED.changed_ns + 1}, False),
        # Another file could take its place within the clock's grain.
        (JUST_PLACED, {}, True),
        (JUST_PLACED, {"inode": 78}, False),
        (replace(OLD, mtime_ns=time.time_ns() + HOUR_NS), {}, False),
    ],
)
def test_memory_is_trusted_while_size_time_and_inode_or_time_of_change_stay(
    tmp_path, noted, changes, known
):
    assert remember(tmp_path, noted, PIECES).recall(replace(noted, **changes)) == (
        PIECES if known else None
    )


def test_memory_of_gone_files_other_cuts_or_others_is_no_memory(tmp_path, monkeypatch):
    file, memory = tmp_path / "memory.json", remember(tmp_path, OLD, PIECES)
    value = json.loads(file.read_bytes())
    entry = value["files"]["a.jsonl"]
    parts = [{}, *({"pieces": pieces} for pieces in ([], [[1]], [[0, 4, 1, "a"]]))]
    entries = [3, *({"stat": entry["stat"]} | part for part in parts)]
    foreign = [json.dumps(value | {"files": {"a.jsonl": one}}).encode() for one in entries]
    for data in (b"", b"{", b"[]", b"{}", b'{"files": 3}', b"\xff", *foreign):
        file.write_bytes(data)
        assert FingerprintMemory(file).recall(OLD) is None
    memory.save({OLD.path})
    assert FingerprintMemory(file).recall(OLD) == PIECES
    monkeypatch.setattr(fingerprint_memory, "PIECE_BYTES", 123)
    assert FingerprintMemory(file).recall(OLD) is None
    monkeypatch.undo()
    memory.save(set())
    assert FingerprintMemory(file).recall(OLD) is None


def test_memory_is_written_on_the_way(tmp_path, monkeypatch):
    """A kill costs the hashing since then, and not the night."""
    monkeypatch.setattr(fingerprint_memory, "SAVE_BYTES", 15)
    memory = FingerprintMemory(tmp_path / "memory.json")
    memory.note(OLD, PIECES)
    assert not (tmp_path / "memory.json").exists()
    memory.note(FileStat("b.jsonl", 10, OLD.mtime_ns, 78), [Piece("b.jsonl", 0, 10, 1, "cc")])
    assert FingerprintMemory(tmp_path / "memory.json").recall(OLD) == PIECES


def probe_of(data: bytes, asked: list[tuple[int, int]] | None = None) -> Probe:
    def read(begin: int, end: int) -> bytes:
        if asked is not None:
            asked.append((begin, end))
        return data[begin:end]

    return Probe(None, read)


@settings(max_examples=150, deadline=None)
@given(data=LINES.map(b"\n".join), piece_bytes=st.integers(1, 60), window=st.integers(1, 40))
def test_separate_cuts_are_after_the_lines_that_reach_multiples_of_a_piece(
    data, piece_bytes, window
):
    ends = [line.end() for line in re.finditer(rb"\n", data) if line.end() < len(data)]
    reached = {
        next((end for end in ends if end >= at), None)
        for at in range(piece_bytes, len(data) + 1, piece_bytes)
    }
    kept, piece_cuts.WINDOW_BYTES = piece_cuts.WINDOW_BYTES, window
    try:
        asked: list[tuple[int, int]] = []
        found = separate_cuts(probe_of(data, asked), len(data), piece_bytes)
    finally:
        piece_cuts.WINDOW_BYTES = kept
    assert found == sorted(reached - {None})
    assert sum(end - begin for begin, end in asked) <= len(data), (
        "no byte twice, however long lines are"
    )


def test_little_is_read():
    asked: list[tuple[int, int]] = []
    data = b"".join(b"x" * (number * 7919 % 3000) + b"\n" for number in range(40_000))
    found = list(chained_cuts(probe_of(data, asked), len(data), 4 << 20))
    assert found == [piece.begin for piece in cut_slowly("a.jsonl", data, 4 << 20)[1:]]
    assert len(asked) <= 2 * len(found)
    assert sum(end - begin for begin, end in asked) <= 2 * len(found) * piece_cuts.WINDOW_BYTES


def test_parts_of_a_large_file_are_hashed_in_the_memory_of_a_few_blocks(tmp_path):
    stat = write(tmp_path, "a.jsonl", b"a line\n" * (24 << 17))
    tracemalloc.start()
    assert len(list(hash_parts(tmp_path, stat, 4 << 20, [].append))) > 4
    assert tracemalloc.get_traced_memory()[1] < 5 * fingerprints.READ_BYTES
    tracemalloc.stop()
