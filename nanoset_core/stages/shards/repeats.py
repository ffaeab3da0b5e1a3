"""Count the documents of a shard whose tokens occurred in it before.

Documents are compared by a hash of their tokens. If a shard has very many different documents, only
a sample of them is counted, and the number for the whole shard is estimated.
"""

from __future__ import annotations

from collections import Counter

from nanoset_core.sampling.token_hashes import hash_sequences
from nanoset_core.tokenizers.engines import Encoded

MAX_DUPLICATE_FRACTION = 0.2
"""Share of repeated documents above which reports warn, unless a setting says otherwise."""
LIMIT_KEY = "documents.max_duplicate_fraction"
LEAST_SHARE = 0.05
"""Share of the documents of a shard; a smaller share of repeated ones is not recorded."""
LOOK = (
    "check whether files occur twice, or test data is stored next to the training data that it was "
    "taken from"
)
"""Remedy for too many repeated documents."""
_MAX_DOCUMENTS = 1 << 17
"""Number of different documents that are counted exactly. Each takes about 100 bytes of memory."""


class Repeats:
    """Counts repeated documents: all of them, or a sample once there are many different ones.

    The sample consists of the documents with small hashes of their tokens. A document and its
    repetitions have the same hash, so the share of repeated documents in the sample is about that
    among all.
    """

    def __init__(self, max_documents: int = _MAX_DOCUMENTS) -> None:
        self._max_documents = max_documents
        self._hash_limit = 2**64 - 1
        """Greatest hash of a document in the sample."""
        self._occurrences: Counter[int] = Counter()
        """Hash of a document in the sample → how often it occurred."""

    def add(self, encoded: Encoded) -> None:
        """Count how often each document of a batch occurs, to learn how many are copies of others.

        There may be too many documents to remember all. So each is hashed to a number, and only
        those with numbers up to a limit are counted. This is a fair sample: copies have the same
        number, so either all copies of a document are counted, or none.

            document    "A"    "B"    "A"    "C"
            hash        17     80     17     40
            counted     17     no     17     40      with a limit of 50: {17: 2, 40: 1}

        Args:
            encoded: Token ids of the documents, concatenated, and the length of each document.
                Documents without tokens are not counted.
        """
        hashes = hash_sequences(encoded.ids, encoded.lengths)  # (n_documents_with_tokens,)
        is_in_sample = hashes <= self._hash_limit
        self._occurrences.update(hashes[is_in_sample].tolist())

        while len(self._occurrences) > self._max_documents:
            self._shrink_sample()

    def _shrink_sample(self) -> None:
        """Halve the limit of the hashes, so that about half of the documents stay in the sample."""
        self._hash_limit //= 2
        smaller_sample: Counter[int] = Counter()
        for token_hash, count in self._occurrences.items():
            if token_hash <= self._hash_limit:
                smaller_sample[token_hash] = count
        self._occurrences = smaller_sample

    def among(self, documents: int) -> int:
        """Estimate how many of some documents repeat another one, by the share in a sample.

            documents in the sample     A B A A     two of four repeat an earlier one
            documents in all            1,000       so about 500 of them do

        Args:
            documents: Number of all documents, those outside of the sample too.

        Returns:
            The number; 0 if the share is below LEAST_SHARE (5 %).
        """
        # If the documents A B A A are in the sample, two of four are different. The other two, half
        # of them, repeat an earlier one.
        n_in_sample = self._occurrences.total()
        n_different = len(self._occurrences)
        if n_in_sample == 0:
            return 0
        share = 1 - n_different / n_in_sample
        return round(share * documents) if share >= LEAST_SHARE else 0


def repeats_text(share: float, limit: float, key: str = LIMIT_KEY) -> str:
    """Describe which share of a dataset's documents are copies of others, if there are too many.

    Args:
        share: Share of documents that repeat another one, 0 to 1.
        limit: Share that is allowed.
        key: Key of nanoset.yaml that sets the limit; "" if there is no such file.

    Returns:
        Such as "12.0% of the documents repeat others, more than documents.max_duplicate_fraction:
        0.05"; "" if the share is within the limit.
    """
    if share <= limit:
        return ""
    limit_text = f"{key}: {limit:g}" if key else f"{limit:g}"
    return f"{share:.1%} of the documents repeat others, more than {limit_text}"
