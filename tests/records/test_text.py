import pytest

from nanoset_core.records.text import format_age, format_bytes, format_count, format_number


@pytest.mark.parametrize(
    ("written", "values", "expected"),
    [
        (
            format_bytes,
            [0, 999, 1000, 9994, 9995, 99949, 999_499, 999_500, 1.5e12, 2e18],
            "0 B|999 B|1.00 kB|9.99 kB|10.0 kB|99.9 kB|999 kB|1.00 MB|1.50 TB|2,000 PB",
        ),
        (
            format_age,
            [-1, 59, 60, 3599, 3600, 90_000, 31 * 86400],
            "0 s|59 s|1 min|59 min|1 h 0 min|1 d 1 h|31 d",
        ),
        (lambda count: format_count(count, "file"), [0, 1, 12_345], "0 files|1 file|12,345 files"),
        (format_number, [2**24, 1e6, 0.001], "16,777,216|1,000,000|0.001"),
    ],
)
def test_numbers_are_written_for_people(written, values, expected):
    assert "|".join(map(written, values)) == expected
