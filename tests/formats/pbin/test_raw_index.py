"""The index of a JSONL file is the one that Modalities' `IndexGenerator` writes."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.formats.pbin import raw_index
from nanoset_core.formats.pbin.raw_index import RawIndexFacts, create_raw_index

GOLDEN = GOLDEN_FILES / "modalities"


@pytest.fixture
def file(tmp_path):
    """The path of a JSONL file that does not exist yet, alone in its folder."""
    return tmp_path / "x.jsonl"


@pytest.mark.parametrize("name", ["docs", "edge", "legacy", "drops-empty", "drops-missing"])
def test_an_index_has_the_bytes_of_modalities(tmp_path, name):
    n_lines = (GOLDEN / f"{name}.jsonl").read_bytes().count(b"\n")

    facts = create_raw_index(GOLDEN / f"{name}.jsonl", tmp_path / "x.idx")

    assert (tmp_path / "x.idx").read_bytes() == (GOLDEN / f"{name}.idx").read_bytes()
    assert facts == RawIndexFacts(
        path=tmp_path / "x.idx", lines=n_lines, documents=n_lines, dropped=0, first_dropped=()
    )


# Any lines


def slow_index(data):
    """Return the index that Modalities writes, and the numbers of the lines that it drops."""
    lines = data.split(b"\n")
    if lines[-1] == b"" and len(lines) > 1:
        lines.pop()

    entries = []
    dropped_lines = []
    offset = 0
    for number, line in enumerate(lines, start=1):
        try:
            json.loads(line)
            entries.append((offset, len(line)))
        except ValueError:
            dropped_lines.append(number)
        offset += len(line) + 1
    return pickle.dumps(entries, protocol=4), dropped_lines


ODD_LINES = [
    b"",
    b" ",
    b"\r",
    b"{}",
    b'{"text": "a"}\r',
    b"NaN",
    b"-Infinity",
    b'"\\ud800"',
    b"[1",
    b"{}{}",
    b"\xef\xbb\xbf{}",
    b'"\xff"',
    b"1" * 400,
    b'"\xc3\xa9"',
    b"[" * 50 + b"]" * 50,
    b"\xff\xfe1\x00",
]
"""Lines about which readers of JSON disagree, and lines that none reads."""
json_objects = st.dictionaries(st.text(max_size=3), st.integers())
json_lines = json_objects.map(lambda value: json.dumps(value).encode())
line_lists = st.lists(
    st.one_of(st.sampled_from(ODD_LINES), json_lines, st.binary(max_size=4)), max_size=40
)


@given(
    lines=line_lists, block_bytes=st.integers(1, 40), last_line_end=st.sampled_from([b"", b"\n"])
)
def test_any_lines_are_indexed_or_dropped_as_by_modalities(
    tmp_path_factory, lines, block_bytes, last_line_end
):
    folder = tmp_path_factory.mktemp("x")
    data = b"\n".join(lines) + last_line_end
    (folder / "x.jsonl").write_bytes(data)
    expected, dropped_lines = slow_index(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_index, "_BLOCK_BYTES", block_bytes)

        # Drop lines that cannot be read.
        facts = create_raw_index(folder / "x.jsonl", on_fault="drop")
        assert (folder / "x.idx").read_bytes() == expected
        assert facts.first_dropped == tuple(dropped_lines[:100])
        assert facts.dropped == len(dropped_lines)
        assert facts.lines == facts.documents + facts.dropped

        # By default, such a line is an error.
        if dropped_lines:
            with pytest.raises(InputError, match=f"line {dropped_lines[0]}, byte "):
                create_raw_index(folder / "x.jsonl")
        else:
            assert create_raw_index(folder / "x.jsonl") == facts


def test_only_the_first_100_dropped_lines_are_named(file):
    file.write_bytes(b"x\n{}\n" * 500)

    facts = create_raw_index(file, on_fault="drop")

    assert facts.dropped == 500
    assert len(facts.first_dropped) == 100
    assert facts.first_dropped[-1] == 199


# What is refused


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "line 1, byte 0: this line is blank", id="empty file"),
        pytest.param(b"\n", "line 1, byte 0: this line is blank", id="one blank line"),
        pytest.param(b"{}\n\n", "line 2, byte 3: this line is blank", id="blank line at the end"),
        pytest.param(
            b"\x1f\x8b\x08\x00aaaa", "line 1, byte 0: this line is not JSON", id="gzip file"
        ),
        pytest.param(b"[" * 100_000, "line 1, byte 0: this line is not JSON", id="deep list"),
        pytest.param(
            (GOLDEN / "bad-json.jsonl").read_bytes(),
            "line 2, byte 15: this line is not JSON",
            id="damaged line",
        ),
        pytest.param(
            (GOLDEN / "blank-line.jsonl").read_bytes(),
            "line 2, byte 15: this line is blank",
            id="blank line",
        ),
    ],
)
def test_a_line_that_is_no_json_is_an_error_that_names_the_line(file, data, message):
    file.write_bytes(data)

    with pytest.raises(InputError, match=message):
        create_raw_index(file)

    assert [path.name for path in file.parent.iterdir()] == ["x.jsonl"]


def test_a_missing_file_is_an_error(file):
    with pytest.raises(MissingError, match="no such file"):
        create_raw_index(file)

    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["x.idx"], id="a text that is named like an index"),
        pytest.param(["x.jsonl", "x.jsonl"], id="an index that is named like the text"),
    ],
)
def test_an_index_does_not_replace_the_text(tmp_path, names):
    paths = [tmp_path / name for name in names]

    with pytest.raises(ConfigError, match="would replace the text"):
        create_raw_index(*paths)

    assert list(tmp_path.iterdir()) == []
