"""Numbers in messages and tables are short, and have a unit; lists name their first items."""

from __future__ import annotations

import pytest

from nanoset_core.wording import (
    abbreviated,
    alternatives_text,
    format_age,
    format_bytes,
    format_count,
    format_number,
)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9994, "9.99 kB"),
        (9995, "10.0 kB"),
        (99_949, "99.9 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (1.5e12, "1.50 TB"),
        (2e18, "2,000 PB"),
    ],
)
def test_bytes_have_three_digits_and_a_unit(n_bytes, text):
    assert format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h 0 min"),
        (90_000, "1 d 1 h"),
        (31 * 86400, "31 d"),
    ],
)
def test_an_age_has_its_two_largest_units_at_most(seconds, text):
    assert format_age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 files"), (1, "1 file"), (12_345, "12,345 files")]
)
def test_a_count_has_its_noun_in_the_singular_or_plural(count, text):
    assert format_count(count, "file") == text


@pytest.mark.parametrize(
    ("number", "text"), [(2**24, "16,777,216"), (1e6, "1,000,000"), (0.001, "0.001")]
)
def test_a_number_has_separators_of_thousands_and_no_exponent(number, text):
    assert format_number(number) == text


def test_a_long_list_names_its_first_items_and_counts_the_others():
    assert abbreviated(["a", "b", "c", "d", "e"], 3) == "a, b, c and 2 more"


def test_a_short_list_names_all_items():
    assert abbreviated(["a", "b", "c"], 3) == "a, b, c"


def test_alternatives_are_joined_by_or():
    assert alternatives_text(["gzip", "zstd", "bzip2"]) == "gzip, zstd or bzip2"
