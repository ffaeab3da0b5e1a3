"""The distribution of the lengths of documents, as text and as rows of a table.

Both are made from a histogram, whose entry b counts the documents of 2^(b-1) to 2^b - 1 tokens:
[0, 0, 3, 5] are 3 documents of 2 or 3 tokens, and 5 documents of 4 to 7 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BAR_COLUMNS = 24
"""Characters of the longest bar."""


def usual_length(histogram: Sequence[int], tokens: int) -> str:
    """Return how long documents usually are, in words.

        "250 tokens on average, the median between 128 and 255"

    Args:
        histogram: Number of documents of 0 tokens, of 1, of 2 to 3, of 4 to 7, and so on: entry b
            is for 2^(b-1) to 2^b - 1 tokens. At least one entry is not 0.
        tokens: Number of tokens of all documents together.
    """
    shortest, longest = _bounds_of_bin(_median_bin(histogram))
    mean = tokens / sum(histogram)
    return f"{mean:,.0f} tokens on average, the median between {shortest:,} and {longest:,}"


def _median_bin(histogram: Sequence[int]) -> int:
    """Return the first entry of a histogram up to which at least half of all values are counted.

    For [0, 1, 3, 5] that is entry 3: only 4 of the 9 values are in the entries before.
    """
    n_values = sum(histogram)
    median_bin = 0
    n_up_to_bin = histogram[0]
    while 2 * n_up_to_bin < n_values:
        median_bin += 1
        n_up_to_bin += histogram[median_bin]
    return median_bin


def length_rows(histogram: Sequence[int]) -> list[dict[str, str]]:
    """Show how long the documents of a dataset are, as a table with bars.

        tokens     documents    share
        4 to 7     10           ████████████
        8 to 15    20           ████████████████████████

    Args:
        histogram: How many documents there are of each range of lengths. Entry 0 is for documents
            of 0 tokens, and the next ones for 1, 2 to 3, 4 to 7, 8 to 15 and so on: entry b has
            those of 2^(b-1) to 2^b - 1 tokens. At least one entry is not 0. The example is [0, 0,
            0, 10, 20].

    Returns:
        A row for each range, from the shortest document to the longest one, such as `{"tokens": "4
        to 7", "documents": "10", "share": "████████████"}`.
    """
    bins_with_documents = [number for number, count in enumerate(histogram) if count]
    first_bin = bins_with_documents[0]
    last_bin = bins_with_documents[-1]
    largest_count = max(histogram)
    rows = []
    for number in range(first_bin, last_bin + 1):
        shortest, longest = _bounds_of_bin(number)
        row = {
            "tokens": f"{shortest:,} to {longest:,}",
            "documents": f"{histogram[number]:,}",
            "share": _bar(histogram[number], largest_count),
        }
        rows.append(row)
    return rows


def _bar(count: int, largest_count: int) -> str:
    """Return a bar for a count, which is rounded up: even a single document has a bar.

    Args:
        count: The count.
        largest_count: The count whose bar has 24 characters.
    """
    return "█" * math.ceil(count * BAR_COLUMNS / largest_count)


def _bounds_of_bin(number: int) -> tuple[int, int]:
    """Return the shortest and longest length that an entry of a histogram counts."""
    power = 1 << number
    return power >> 1, power - 1
