"""The distribution of the lengths of documents, as text and as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

BAR_COLUMNS = 24
"""Characters of the longest bar."""


def usual_length(histogram: Sequence[int], tokens: int) -> str:
    """Return the mean length of documents, and the range that holds the median, in words.

    Args:
        histogram: Entry b is the number of documents of 2^(b-1) to 2^b - 1 tokens. Entry 0 is the
            number of empty documents. At least one entry is not 0.
        tokens: Number of tokens of all documents together.
    """
    # The bin of the median is the first one up to which there are half of the documents.
    n_documents = sum(histogram)
    median_bin = 0
    n_up_to_bin = histogram[0]
    while 2 * n_up_to_bin < n_documents:
        median_bin += 1
        n_up_to_bin += histogram[median_bin]
    shortest, longest = _bounds(median_bin)
    mean = tokens / n_documents
    return f"{mean:,.0f} tokens on average, the median between {shortest:,} and {longest:,}"


def length_rows(histogram: Sequence[int]) -> list[dict[str, str]]:
    """Return a row with a bar for each range of lengths, from the shortest to the longest.

    Args:
        histogram: As for `usual_length`.
    """
    non_empty = [number for number, count in enumerate(histogram) if count]
    largest = max(histogram)
    rows: list[dict[str, str]] = []
    for number in range(non_empty[0], non_empty[-1] + 1):
        count = histogram[number]
        shortest, longest = _bounds(number)
        columns = -(-count * BAR_COLUMNS // largest)  # rounded up, so that no document has no bar
        row = {
            "tokens": f"{shortest:,} to {longest:,}",
            "documents": f"{count:,}",
            "share": "█" * columns,
        }
        rows.append(row)
    return rows


def _bounds(number: int) -> tuple[int, int]:
    """Return the shortest and longest length that an entry of a histogram counts."""
    power = 1 << number
    return power >> 1, power - 1
