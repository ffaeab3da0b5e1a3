"""How many documents of a shard have tokens that stood in it before."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from zlib import crc32

import numpy as np

from nanoset_core.tokenizers.engines import Encoded

MAX_DUPLICATE_FRACTION = 0.2
"""Share of repeated documents above which reports warn, unless a setting says otherwise."""
LIMIT_KEY = "documents.max_duplicate_fraction"
LEAST_SHARE = 0.05
"""Of the documents of a shard; fewer repeated ones are not noted."""
LOOK = "look whether files are there twice, or test data lies beside the training data that it is taken from"
"""What to do about more than that."""
_MOST_DOCUMENTS = 1 << 17


class Repeats:
    """Counts repeated documents: all while there are few, of many those whose checksum ends with some zero bits.

    A document and its repetitions have the same checksum, so that the share among those counted is about that among
    all.
    """

    def __init__(self, most_documents: int = _MOST_DOCUMENTS) -> None:
        self._most, self._mask, self._seen = most_documents, 0, Counter[tuple[int, int]]()

    def add(self, encoded: Encoded) -> None:
        """Add the next documents; those without tokens count as none."""
        ids = encoded.ids.data
        for begin, end in pairwise([0, *np.cumsum(encoded.lengths, dtype=np.int64).tolist()]):
            checksum = crc32(ids[begin:end])
            if begin < end and not checksum & self._mask:
                self._seen[checksum, end - begin] += 1
        while len(self._seen) > self._most:
            self._mask = 2 * self._mask + 1
            self._seen = Counter({key: count for key, count in self._seen.items() if not key[0] & self._mask})

    def among(self, documents: int) -> int:
        """Return how many of so many documents repeat another one; 0 where that is less than LEAST_SHARE."""
        share = 1 - len(self._seen) / max(self._seen.total(), 1)
        return round(share * documents) if self._seen and share >= LEAST_SHARE else 0


def repeats_text(share: float, limit: float, key: str = LIMIT_KEY) -> str:
    """Describe a share of repeated documents, as one clause; empty where it is within the limit.

    `key`: of nanoset.yaml, which sets the limit; "" where there is no such file.
    """
    limited = f"{key}: {limit:g}" if key else f"{limit:g}"
    return f"{share:.1%} of the documents repeat others, more than {limited}" if share > limit else ""
