"""Splits are read, and divide sequences, as each trainer does."""

from __future__ import annotations

import itertools
import sys

import pytest
from golden.megatron.cases import rows
from hypothesis import given
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

# What the trainers made of a split

SPLIT_ROWS = rows("splits")
SPLIT_ROWS_OF_NEMO = [row for row in SPLIT_ROWS if isinstance(row["nemo"], list)]
SPLIT_ROWS_NOT_OF_NEMO = [row for row in SPLIT_ROWS if not isinstance(row["nemo"], list)]


def name_of_row(row):
    """Return the id of a row: the split, and the number of sequences."""
    return f"{row['split']} of {row['n']}"


def borders_of_cuts(cuts):
    """Return where the splits start, and where the last one stops."""
    first_start, _ = cuts[0]
    return [first_start, *(stop for _, stop in cuts)]


@pytest.mark.parametrize("row", SPLIT_ROWS, ids=name_of_row)
def test_shares_and_sequences_of_splits_are_those_of_megatron_lm(row):
    shares = parse_split(row["split"])
    bookends = split_bookends(shares)

    expected = row["mcore"]
    assert list(shares) == expected["vector"]
    for bookend, matrix_row, bounds in zip(
        bookends, expected["matrix"], expected["bounds"], strict=True
    ):
        if bookend is None:
            assert matrix_row is None
            assert bounds is None
        else:
            assert list(bookend) == matrix_row
            assert list(rows_by_bookends(bookend, row["n"])) == bounds


@pytest.mark.parametrize("row", SPLIT_ROWS, ids=name_of_row)
def test_sequences_of_splits_are_those_of_nanotron(row):
    cuts = rows_by_cuts(parse_split(row["split"]), row["n"])

    assert borders_of_cuts(cuts) == row["nanotron"]


@pytest.mark.parametrize("row", SPLIT_ROWS_OF_NEMO, ids=name_of_row)
def test_sequences_of_splits_are_those_of_nemo(row):
    shares = parse_split(row["split"], exactly_three=True)

    assert shares == parse_split(row["split"])
    assert borders_of_cuts(rows_by_cuts(shares, row["n"])) == row["nemo"]


@pytest.mark.parametrize("row", SPLIT_ROWS_NOT_OF_NEMO, ids=name_of_row)
def test_splits_that_nemo_cannot_read_are_refused(row):
    with pytest.raises(ConfigError, match="three shares"):
        parse_split(row["split"], exactly_three=True)


@pytest.mark.parametrize(
    ("compensated", "borders"),
    [
        pytest.param(False, [0, 3, 4, 5], id="Python 3.11"),
        pytest.param(True, [0, 4, 5, 5], id="Python 3.12"),
    ],
)
def test_nemo_cuts_in_another_way_from_python_3_12_on(compensated, borders):
    """NeMo's get_train_valid_test_split_("0.7,0.2,0.1", 5) returned this on both versions."""
    shares = parse_split("0.7,0.2,0.1", exactly_three=True, compensated=compensated)

    assert borders_of_cuts(rows_by_cuts(shares, 5)) == borders


three_shares = st.lists(
    st.one_of(st.just(0.0), st.floats(0.001, 1000.0)), min_size=3, max_size=3
).filter(any)


@given(shares=three_shares, n_sequences=st.integers(0, 5000))
def test_every_sequence_is_in_one_split(shares, n_sequences):
    vector = parse_split(",".join(f"{share:.12f}" for share in shares))
    bookends = [bookend for bookend in split_bookends(vector) if bookend is not None]

    sequences = [range(*rows_by_bookends(bookend, n_sequences)) for bookend in bookends]

    assert list(itertools.chain.from_iterable(sequences)) == list(range(n_sequences))


@given(shares=three_shares, n_sequences=st.integers(0, 5000))
def test_cuts_end_with_the_last_sequence(shares, n_sequences):
    vector = parse_split(",".join(f"{share:.12f}" for share in shares))

    cuts = rows_by_cuts(vector, n_sequences)

    assert cuts[-1][1] == n_sequences
    # If a share is rounded up, the split before it gives back a sequence, even if it has none.
    assert all(start >= -1 for start, _ in cuts)


def test_the_first_border_is_an_integer():
    """As in Megatron-LM, whose description, and so the hash, shows the difference."""
    assert repr(split_bookends((0.5, 0.5, 0.0))[0]) == "(0, 0.5)"
    assert repr(split_bookends((0.0, 0.5, 0.5))[1]) == "(0.0, 0.5)"


@pytest.mark.parametrize(
    ("split", "name", "changed_split"),
    [
        ("99,1", "valid", "100,0,0"),
        ("949/50/1", "test", "949,51,0"),
        ("9,0,1", "test", "10,0,0"),
        ("0.9999,0.00001,0", "valid", "0.99991,0,0"),
    ],
)
def test_the_share_of_a_split_goes_to_the_one_before_it(split, name, changed_split):
    assert without_share(split, name) == changed_split


# Sums of floats, which changed in Python 3.12


@given(values=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8))
def test_sums_are_those_of_this_version_of_python(values):
    sum_of_this_version = compensated_sum if sys.version_info >= (3, 12) else plain_sum

    assert repr(sum_of_this_version(values)) == repr(sum(values))


@pytest.mark.parametrize(
    ("values", "plain", "compensated"),
    [
        ([0.7, 0.2, 0.1], 0.9999999999999999, 1.0),
        ([0.1] * 10, 0.9999999999999999, 1.0),
        ([1.0, 1e100, 1.0, -1e100], 0.0, 2.0),
        ([1e308, 1e308, -1e308], float("inf"), float("inf")),
    ],
)
def test_sums_are_those_of_python_before_and_since_3_12(values, plain, compensated):
    assert plain_sum(values) == plain
    assert compensated_sum(values) == compensated


# How splits are written


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("949/50/1", (0.949, 0.05, 0.001)),
        ("1", (1.0, 0.0, 0.0)),
        ("90,10", (0.9, 0.1, 0.0)),
        ("8;1;1", (0.8, 0.1, 0.1)),
    ],
)
def test_shares_may_be_few_and_between_several_separators(text, shares):
    assert parse_split(text) == shares


@pytest.mark.parametrize("text", ["98,1,1", "98/1/1", " 98, 1,\t1\n", "98.,1.0,01", "49,.5,0.5"])
@pytest.mark.parametrize("exactly_three", [False, True])
def test_plain_decimal_numbers_are_shares(text, exactly_three):
    assert parse_split(text, exactly_three=exactly_three) == (0.98, 0.01, 0.01)


@pytest.mark.parametrize("text", ["1", "1,1", "98,1/1", "8;1;1"])
def test_nemo_takes_exactly_three_numbers_between_commas_or_slashes(text):
    with pytest.raises(ConfigError, match="three shares"):
        parse_split(text, exactly_three=True)


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
"""Texts that are no split, some of which a trainer would misread."""


@pytest.mark.parametrize("exactly_three", [False, True])
@pytest.mark.parametrize("text", TEXTS_THAT_ARE_NO_SPLIT)
def test_a_text_that_is_not_plain_numbers_is_refused(text, exactly_three):
    with pytest.raises(ConfigError, match="three shares"):
        parse_split(text, exactly_three=exactly_three)


def test_the_error_shows_the_part_that_is_no_number():
    with pytest.raises(ConfigError, match="'1e-05' is not a number") as caught:
        parse_split("0.99999,1e-05")

    assert "0.00001, not 1e-05" in str(caught.value)
