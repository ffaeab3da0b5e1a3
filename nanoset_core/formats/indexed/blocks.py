"""Divide consecutive items of different sizes, such as documents, into blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def divide_into_blocks(borders: NDArray[np.int64], max_size: int) -> Iterator[slice]:
    """Yield blocks of consecutive items, each with as many items as fit, but at least one.

    For example, items of the sizes 3, 4, 2 and 9 in blocks of up to 6:

        borders       0     3       7   9           18
        blocks        | 0:1 |     1:3   |    3:4     |

    Args:
        borders: Where each item starts, and where the last one stops; shape (n_items + 1,).
        max_size: Largest size of a block with several items.

    Yields:
        The numbers of the items of each block, in order.
    """
    item_stops = borders[1:]  # (n_items,) 3 7 9 18
    start = 0
    while start < len(item_stops):
        # Item numbers start at 0, so the number of items that stop at or before the limit is the
        # number of the first item after them. The block has at least one item.
        limit = borders[start] + max_size
        stop = int(np.searchsorted(item_stops, limit, side="right"))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop
