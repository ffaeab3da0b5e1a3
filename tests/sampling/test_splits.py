"""Splits against the trainers' own."""

import sys

import pytest
from golden.megatron.cases import rows
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.splits import (
    compensated_sum,
    parse_split,
    plain_sum,
    rows_by_bookends,
    rows_by_cuts,
    split_bookends,
    without_share,
)

SHARES = st.tuples(*[st.one_of(st.just(0.0), st.floats(0.001, 1000.0))] * 3).filter(any)


@pytest.mark.parametrize(
    ("split", "name", "given"),
    [
        ("99,1", "valid", "100,0,0"),
        ("949/50/1", "test", "949,51,0"),
        ("9,0,1", "test", "10,0,0"),
        ("0.9999,0.00001,0", "valid", "0.99991,0,0"),
    ],
)
def test_the_share_of_a_split_goes_to_the_one_before_it(split, name, given):
    assert without_share(split, name) == given


@pytest.mark.parametrize("row", rows("splits"), ids=lambda row: f"{row['split']} of {row['n']}")
def test_golden(row):
    vector = parse_split(row["split"])
    bookends = split_bookends(vector)
    assert list(vector) == row["mcore"]["vector"]
    assert [pair and list(pair) for pair in bookends] == row["mcore"]["matrix"]
    bounds = [pair and list(rows_by_bookends(pair, row["n"])) for pair in bookends]
    assert bounds == row["mcore"]["bounds"]
    cuts = rows_by_cuts(vector, row["n"])
    assert [cuts[0][0], *(end for _, end in cuts)] == row["nanotron"]
    if isinstance(row["nemo"], list):
        assert row["nemo"] == row["nanotron"]
        assert parse_split(row["split"], exactly_three=True) == vector
    else:
        with pytest.raises(ConfigError, match="three shares"):
            parse_split(row["split"], exactly_three=True)


def test_nemo_cuts_otherwise_on_python_3_12_and_newer():
    # NeMo's get_train_valid_test_split_("0.7,0.2,0.1", 5), run on Python 3.11 and on 3.12
    borders = {}
    for compensated in (False, True):
        cuts = rows_by_cuts(
            parse_split("0.7,0.2,0.1", exactly_three=True, compensated=compensated), 5
        )
        borders[compensated] = [cuts[0][0], *(end for _, end in cuts)]
    assert borders == {False: [0, 3, 4, 5], True: [0, 4, 5, 5]}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8))
def test_the_sums_are_those_of_python_whatever_python_runs(values):
    expected = sum(values)
    assert repr((compensated_sum if sys.version_info >= (3, 12) else plain_sum)(values)) == repr(
        expected
    )


@pytest.mark.parametrize(
    ("values", "before", "since"),
    [
        ([0.7, 0.2, 0.1], 0.9999999999999999, 1.0),
        ([0.1] * 10, 0.9999999999999999, 1.0),
        ([1.0, 1e100, 1.0, -1e100], 0.0, 2.0),
        ([1e308, 1e308, -1e308], float("inf"), float("inf")),
    ],
)
def test_sums_before_and_since_python_3_12(values, before, since):
    assert (plain_sum(values), compensated_sum(values)) == (before, since)


def test_the_first_border_is_an_integer():
    assert repr(split_bookends((0.5, 0.5, 0.0))[0]) == "(0, 0.5)"
    assert repr(split_bookends((0.0, 0.5, 0.5))[1]) == "(0.0, 0.5)"


@settings(max_examples=80, deadline=None)
@given(SHARES, st.integers(0, 5000))
def test_every_sequence_is_in_one_split(shares, sequences):
    vector = parse_split(",".join(f"{share:.12f}" for share in shares))
    parts = [pair and rows_by_bookends(pair, sequences) for pair in split_bookends(vector)]
    taken = [row for part in parts if part for row in range(*part)]
    assert taken == list(range(sequences))
    cuts = rows_by_cuts(vector, sequences)
    assert cuts[-1][1] == sequences
    # one after the other, except where a rounded-up split has to give back a sequence
    assert all(begin >= -1 for begin, _ in cuts)


def test_spellings():
    assert parse_split("949/50/1") == (0.949, 0.05, 0.001)
    assert parse_split("1") == (1.0, 0.0, 0.0)
    assert parse_split("90,10") == (0.9, 0.1, 0.0)
    assert parse_split("8;1;1") == (0.8, 0.1, 0.1)


TEXTS_THAT_ARE_NO_SPLIT = [
    "",
    " ",
    ",",
    ".",
    "a,b,c",
    "98,abc1,1",
    "98%,1%,1%",
    "0.99999,1e-05",  # Megatron-LM reads three numbers: 0.99999, 1 and 05
    "1e2,0,0",
    "1E2,0,0",
    "0x10,1,1",
    "-1,2,0",
    "98,-1,1",
    "98,+1,1",
    "1_000,1",
    "nan,1,0",
    "inf,1,0",
    "Infinity,0,0",
    "98,,1",
    "98,1,",
    ",98,1",
    "98,,1,1",
    "1.2.3,1,1",
    "1..2,1,1",
    "98 1 1",  # without its spaces, as Megatron-LM's arguments need it, it would be the number 9811
    "98,1 1",
    "98:1:1",
    "98-1-1",
    "[98,1,1]",
    "٩٨,١,١",  # digits of other scripts
    "９８,1,1",
    "98\u00a0,1,1",  # a no-break space
    "98，1，1",  # full-width commas
    "0,0,0",
    "1,1,1,1",
    f"{'9' * 400},1,1",
]


@pytest.mark.parametrize("exactly_three", [False, True])
@pytest.mark.parametrize("text", TEXTS_THAT_ARE_NO_SPLIT)
def test_a_text_that_is_not_plain_numbers_is_refused(text, exactly_three):
    with pytest.raises(ConfigError, match="three shares"):
        parse_split(text, exactly_three=exactly_three)


@pytest.mark.parametrize("text", ["1", "1,1", "98,1/1", "8;1;1"])
def test_nemo_takes_exactly_three_numbers_between_commas_or_slashes(text):
    with pytest.raises(ConfigError, match="three shares"):
        parse_split(text, exactly_three=True)


@pytest.mark.parametrize("text", ["98,1,1", "98/1/1", " 98, 1,\t1\n", "98.,1.0,01", "49,.5,0.5"])
@pytest.mark.parametrize("exactly_three", [False, True])
def test_plain_decimal_numbers_are_shares(text, exactly_three):
    assert parse_split(text, exactly_three=exactly_three) == (0.98, 0.01, 0.01)


def test_the_error_shows_the_part_that_is_no_number():
    with pytest.raises(ConfigError, match="'1e-05' is not a number") as caught:
        parse_split("0.99999,1e-05")
    assert "0.00001, not 1e-05" in str(caught.value)
