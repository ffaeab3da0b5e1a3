import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.packed import RawIndexFacts, create_raw_index, raw_index

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"


def modalities_index(data):
    """The slow readable twin, after `IndexGenerator`: (bytes of the index, numbers of the lines dropped)."""
    lines = data.split(b"\n")
    if lines[-1] == b"" and len(lines) > 1:
        lines.pop()
    entries, dropped, offset = [], [], 0
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
            entries.append((offset, len(line)))
        except ValueError:
            dropped.append(number)
        offset += len(line) + 1
    return pickle.dumps(entries, protocol=4), dropped


@pytest.mark.parametrize("name", ["docs", "edge", "legacy", "drops-empty", "drops-missing"])
def test_golden_indexes(tmp_path, name):
    facts = create_raw_index(GOLDEN / f"{name}.jsonl", tmp_path / "x.idx")
    assert (tmp_path / "x.idx").read_bytes() == (GOLDEN / f"{name}.idx").read_bytes()
    lines = (GOLDEN / f"{name}.jsonl").read_bytes().count(b"\n")
    assert facts == RawIndexFacts(tmp_path / "x.idx", lines, lines, 0, ())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bad-json", "jsonl, line 2, byte 15: this line is not JSON"),
        ("blank-line", "jsonl, line 2, byte 15: this line is blank"),
    ],
)
def test_golden_refusals(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        create_raw_index(GOLDEN / f"{name}.jsonl", tmp_path / "x.idx")
    assert list(tmp_path.iterdir()) == []


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"", b" ", b"\r", b"{}", b'{"text": "a"}\r', b"NaN", b"-Infinity", b'"\\ud800"', b"[1", b"{}{}"]
        ),
        st.sampled_from(
            [b"\xef\xbb\xbf{}", b'"\xff"', b"1" * 400, b'"\xc3\xa9"', b"[" * 50 + b"]" * 50, b"\xff\xfe1\x00"]
        ),
        st.dictionaries(st.text(max_size=3), st.integers()).map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=4),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(lines=LINES, block=st.integers(1, 40), ends=st.booleans())
def test_any_lines(tmp_path_factory, lines, block, ends):
    folder = tmp_path_factory.mktemp("x")
    data = b"\n".join(lines) + b"\n" * ends
    (folder / "x.jsonl").write_bytes(data)
    expected, dropped = modalities_index(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_index, "_BLOCK_BYTES", block)
        facts = create_raw_index(folder / "x.jsonl", on_fault="drop")
        assert (folder / "x.idx").read_bytes() == expected
        assert facts.first_dropped == tuple(dropped[:100])
        assert facts.dropped == len(dropped)
        assert facts.lines == facts.documents + facts.dropped
        if dropped:
            with pytest.raises(InputError, match=f"line {dropped[0]}, byte "):
                create_raw_index(folder / "x.jsonl")
        else:
            assert create_raw_index(folder / "x.jsonl") == facts


def test_many_dropped_lines(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"x\n{}\n" * 500)
    facts = create_raw_index(tmp_path / "x.jsonl", on_fault="drop")
    assert (facts.dropped, len(facts.first_dropped), facts.first_dropped[-1]) == (500, 100, 199)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1, byte 0: this line is blank"),
        (b"\n", "line 1, byte 0: this line is blank"),
        (b"{}\n\n", "line 2, byte 3: this line is blank"),
        (b"\x1f\x8b\x08\x00aaaa", "line 1, byte 0: this line is not JSON"),
        (b"[" * 100_000, "line 1, byte 0: this line is not JSON"),
    ],
)
def test_refusals(tmp_path, data, message):
    (tmp_path / "x.jsonl").write_bytes(data)
    with pytest.raises(InputError, match=message):
        create_raw_index(tmp_path / "x.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_what_cannot_be(tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        create_raw_index(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="would replace the text"):
        create_raw_index(tmp_path / "x.idx")
    with pytest.raises(ConfigError, match="would replace the text"):
        create_raw_index(tmp_path / "x.jsonl", tmp_path / "x.jsonl")
    assert list(tmp_path.iterdir()) == []
