import gzip
import os
import random

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoset_core.errors import InputError, SourceChangedError
from nanoset_core.text import fingerprints, raw_files
from nanoset_core.text import stored_piece as stored_module
from nanoset_core.text.contents import contents_of
from nanoset_core.text.fingerprints import fingerprint
from nanoset_core.text.lines import LineBlock, read_lines
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.stored_piece import StoredPiece

Row = tuple[int, int, int, bytes | None]
"""number, begin, end, line (None when it is too long)"""


def rows(folder, piece, limit=1 << 30) -> tuple[list[Row], FaultError | None]:
    """Every line as a row, and the fault that ends the file."""
    stored, found, fault = StoredPiece(folder, piece), [], None
    try:
        for block in read_lines(stored, limit):
            found += (
                [(block.first_number, block.begin, block.end, None)]
                if block.long_bytes
                else rows_of(block)
            )
    except FaultError as error:
        fault = error
    stored.check()
    return found, fault


def rows_of(block: LineBlock) -> list[Row]:
    assert block.lines
    begin, found = block.begin, []
    for number, line in enumerate(block.lines, block.first_number):
        found.append((number, begin, begin + len(line) + 1, line))
        begin += len(line) + 1
    last = found[-1]
    assert block.end in (last[2], last[2] - 1)
    found[-1] = (last[0], last[1], block.end, last[3])
    return found


def slowly(data: bytes, limit=1 << 30) -> list[Row]:
    """The lines of a whole text, one at a time."""
    found, begin, number = [], 0, 1
    while begin < len(data):
        end = data.find(b"\n", begin)
        line = data[begin:] if end < 0 else data[begin:end]
        after = len(data) if end < 0 else end + 1
        found.append((number, begin, after, line if len(line) <= limit else None))
        begin, number = after, number + 1
    return found


def packed(name: str, data: bytes, rng: random.Random) -> bytes:
    if name.endswith(".jsonl"):
        return data
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
    parts = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return b"".join(
        gzip.compress(part, 1) if name.endswith("gz") else zstandard.compress(part)
        for part in parts
    )


TEXTS = st.lists(
    st.one_of(
        st.just(b""),
        st.binary(max_size=20),
        st.sampled_from([b"\r", b'{"text": "x"}\r', b"a" * 300, b"\0"]),
    ),
    max_size=20,
).map(b"\n".join)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=TEXTS,
    name=st.sampled_from(["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"]),
    read_bytes=st.integers(1, 50),
    limit=st.sampled_from([0, 1, 15, 299, 300, 1 << 30]),
    seed=st.integers(0, 1000),
)
def test_lines_are_those_of_the_whole_text(
    tmp_path, stored, monkeypatch, data, name, read_bytes, limit, seed
):
    monkeypatch.setattr(stored_module, "READ_BYTES", read_bytes)
    piece = stored(name, packed(name, data, random.Random(seed)))
    assert rows(tmp_path, piece, limit) == (slowly(data, limit), None)


def test_pieces_of_a_file_give_the_lines_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 777)
    rng = random.Random(5)
    data = (
        b"".join(rng.randbytes(rng.randrange(60)).hex().encode() + b"\n" for _ in range(300))
        + b"no end"
    )
    (tmp_path / "a.jsonl").write_bytes(data)
    pieces = fingerprint(tmp_path, contents_of(tmp_path).ordered[0])
    assert len(pieces) > 10
    found = [row for piece in pieces for row in rows(tmp_path, piece)[0]]
    assert found == slowly(data)


def test_head_of_a_long_line_is_kept(tmp_path, stored, monkeypatch):
    monkeypatch.setattr(stored_module, "READ_BYTES", 64)
    data = b"short\n" + b"0123456789" * 100 + b"\nshort\n" + b"abc" * 100
    blocks = list(read_lines(StoredPiece(tmp_path, stored("a.jsonl", data)), 250))
    assert [block for block in blocks if block.long_bytes] == [
        LineBlock([b"0123456789" * 20], 2, 6, 1007, 1000),
        LineBlock([(b"abc" * 67)[:200]], 4, 1013, 1313, 300),
    ]


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_fault_comes_after_the_line_in_which_it_lies(tmp_path, stored, kind):
    data = b"first\nsecond\nthird line, cut off"
    whole = packed(f"a.jsonl.{kind}", data, random.Random(1))
    piece = stored(f"a.jsonl.{kind}", whole + whole[:3])
    found, fault = rows(tmp_path, piece)
    assert found == slowly(data)
    assert (fault.line, fault.offset) == (3, len(data))
    assert fault.reason == ("truncated_gzip" if kind == "gz" else "truncated_zstd")


def test_fault_at_a_line_end_lies_in_the_next_line(tmp_path, stored):
    found, fault = rows(tmp_path, stored("a.jsonl.gz", gzip.compress(b"one\ntwo\n")[:-1]))
    assert [line for _, _, _, line in found] == [b"one", b"two"]
    assert (fault.line, fault.offset) == (3, 8)


@pytest.mark.parametrize("kind", ["", ".gz", ".zst"])
@pytest.mark.parametrize("change", ["edit", "grow", "shrink", "replace"])
def test_file_that_changed_since_the_inventory(tmp_path, stored, kind, change):
    data = packed(f"a.jsonl{kind}", b"one line\nand another\n" * 50, random.Random(2))
    piece = stored(f"a.jsonl{kind}", data)
    path = tmp_path / piece.path
    if change == "edit":
        path.write_bytes(data[:5] + bytes([data[5] ^ 1]) + data[6:])
    elif change == "grow":
        path.write_bytes(b"{}\n" + data)
    elif change == "shrink":
        os.truncate(path, len(data) - 1)
    else:
        path.write_bytes(data[::-1])
    with pytest.raises(SourceChangedError, match="not as the inventory found it") as caught:
        rows(tmp_path, piece)
    assert caught.value.where == str(path)
    assert caught.value.found
    assert caught.value.expected


def test_file_that_shrinks_while_it_is_read(tmp_path, stored, monkeypatch):
    monkeypatch.setattr(stored_module, "READ_BYTES", 10)
    piece = StoredPiece(tmp_path, stored("a.jsonl", b"0123456789\n" * 10))
    items = read_lines(piece, 100)
    next(items)
    os.truncate(tmp_path / "a.jsonl", 30)
    with pytest.raises(SourceChangedError):
        list(items)
        piece.check()


def test_text_appended_after_the_inventory_is_not_read(tmp_path, stored):
    """The inventory is a snapshot: the next one sees what is new."""
    piece = stored("a.jsonl", b"one\n")
    (tmp_path / "a.jsonl").write_bytes(b"one\ntwo\n")
    assert rows(tmp_path, piece) == ([(1, 0, 4, b"one")], None)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_disk_that_fails_is_no_fault_of_the_file(tmp_path, stored, monkeypatch, kind):
    """Taking it for the end of the file would lose the rest without a word."""
    piece = stored(f"a.jsonl.{kind}", packed(f"a.jsonl.{kind}", b"one\n" * 10, random.Random(0)))

    class Failing:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def read(self, size):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(raw_files, "open_regular", lambda path: Failing(path.open("rb")))
    with pytest.raises(InputError, match="cannot be read") as caught:
        rows(tmp_path, piece)
    assert "errno 5" in caught.value.found
