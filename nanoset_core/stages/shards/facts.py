"""Counts of shards: lines, documents, tokens and rejects.

Each batch of text that is tokenized is counted, the counts of all batches are those of the shard,
and the counts of all shards are those of the corpus. They are stored as facts in manifests, the
files that describe outputs: `{"lines": 1000, "documents": 997, "rejected": 3, …}`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.records.json_records import from_plain
from nanoset_core.records.stored_fields import stored
from nanoset_core.stages.shards.framing import Framed
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.wording import format_count

LENGTH_BINS = 32


@dataclass(slots=True)
class ShardFacts:
    """Counts of one shard, or sums over several. The names of the fields are facts in manifests.

    Rare counts are facts only if they are not 0, so that older manifests have the same facts.
    """

    ignores_unknown_keys: ClassVar[bool] = True
    """Manifests have other facts, too."""

    lines: int = 0
    """Lines read = documents + skipped + rejected + purged."""
    documents: int = 0
    """Documents written, empty ones included."""
    skipped: int = 0
    """Documents without tokens that the preset leaves out."""
    sequences: int = 0
    """Entries of the .idx; a document without tokens has none."""
    tokens: int = 0
    """Tokens, special ones included."""
    rejected: int = 0
    """Lines that are not a document."""
    faults: int = 0
    """Files that could not be read to their end."""
    read_bytes: int = 0
    """Decompressed bytes of all lines."""
    stored_bytes: int = 0
    """Bytes of the files as stored."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Reason → rejects, faults included."""
    length_histogram: list[int] = field(default_factory=lambda: [0] * LENGTH_BINS)
    """Entry b counts the documents of 2^(b-1) to 2^b - 1 tokens; entry 0 the empty ones."""
    zeroed: dict[str, int] = field(default_factory=dict, metadata=stored(omit_default=True))
    """Table → documents in it whose text contains runs of zero bytes."""
    padding: dict[str, int] = field(default_factory=dict, metadata=stored(omit_default=True))
    """Gzip file → zero bytes after its members."""
    empty_files: dict[str, int] = field(default_factory=dict, metadata=stored(omit_default=True))
    """File without text, such as an empty file that was compressed → its stored bytes."""
    unkept_ids: dict[str, int] = field(default_factory=dict, metadata=stored(omit_default=True))
    """File → documents in it whose id has no usual text form, or is too long, and is not kept."""
    without_id: int = field(default=0, metadata=stored(omit_default=True))
    """Documents that are stored without an id, since they have none, or it is not kept."""
    escaped_ids: dict[str, int] = field(default_factory=dict, metadata=stored(omit_default=True))
    """Table → documents in it whose id is bytes that are not UTF-8, and is kept with such bytes as
    \\xNN.
    """
    repeated: int = field(default=0, metadata=stored(omit_default=True))
    """Documents whose tokens occurred before in the shard, if these are many; see `Repeats`."""
    purged: int = field(default=0, metadata=stored(omit_default=True))
    """Documents that were left out because they are erased; see purged.py."""
    vanished: int = field(default=0, metadata=stored(omit_default=True))
    """Characters or bytes that the tokenizer has no token for, so that they are missing from the
    tokens.
    """

    @staticmethod
    def of(facts: Mapping[str, Any]) -> ShardFacts:
        """Return the counts among the facts of a manifest, the file that describes an output.

        Args:
            facts: Name of a fact → value; facts that are not counts of shards are ignored.

        Raises:
            ValueError: A count has another type than it should have.
        """
        return from_plain(ShardFacts, facts)

    def described(self) -> str:
        """Describe in one line how many lines of text were read, and how many are no documents.

            1,000 lines, 3 rejected, 0 unreadable files (invalid_json 3)
            1,000 lines, 0 rejected, 1 unreadable file, 2 erased (corrupt_gzip 1)

        Erased documents are those that had to be deleted on request, such as for privacy.
        """
        unreadable_files = format_count(self.faults, "unreadable file")
        text = f"{self.lines:,} lines, {self.rejected:,} rejected, {unreadable_files}"
        if self.purged:
            text += f", {self.purged:,} erased"
        if self.reasons:
            reasons = [f"{reason} {count:,}" for reason, count in self.reasons.items()]
            text += f" ({', '.join(reasons)})"
        return text

    def __add__(self, other: ShardFacts) -> ShardFacts:
        """Return the counts of two parts of a corpus together, such as two shards.

        Args:
            other: The counts of the other part; neither of the two is changed.
        """
        sums: dict[str, Any] = {}  # name of each field → its value
        for name in _COUNTS:
            sums[name] = getattr(self, name) + getattr(other, name)
        for name in _COUNTS_BY_FILE:
            sums[name] = _sum_by_key(getattr(self, name), getattr(other, name))
        # Reasons are sorted, so that manifests do not depend on the order of the shards.
        reasons = _sum_by_key(self.reasons, other.reasons)
        sums["reasons"] = dict(sorted(reasons.items()))
        histogram = np.add(self.length_histogram, other.length_histogram)
        sums["length_histogram"] = histogram.tolist()
        return ShardFacts(**sums)


_COUNTS = tuple(entry.name for entry in fields(ShardFacts) if entry.default == 0)
_COUNTS_BY_FILE = ("zeroed", "padding", "empty_files", "unkept_ids", "escaped_ids")


def _sum_by_key(counts: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """Add up counts that have the same key: {"a": 1} and {"a": 2, "b": 1} give {"a": 3, "b": 1}."""
    return dict(Counter(counts) + Counter(others))


def length_histogram(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Count documents by their length, in classes that double in size.

        class                0    1    2         3         4
        tokens               0    1    2 or 3    4 to 7    8 to 15, and so on
        lengths 0, 1, 5, 6   1    1    0         2         0

    Args:
        lengths: Tokens of each document, shape (n_documents,).

    Returns:
        int64, shape (LENGTH_BINS,).
    """
    # The class is the number of binary digits, which frexp returns as the exponent: 5 is 101, and
    # so in class 3.
    _, digits = np.frexp(lengths.astype(np.float64))
    histogram: NDArray[np.int64] = np.bincount(digits, minlength=LENGTH_BINS)[:LENGTH_BINS]
    return histogram


def facts_of(batch: DocumentBatch, framed: Framed) -> ShardFacts:
    """Count what a batch of raw text contained, and what was written of it.

    Each line of the text becomes a document, or not:

        1,000 lines = 995 documents + 2 skipped (no tokens) + 3 rejected (such as invalid JSON)

    The counts of all batches are added up, and recorded of the tokenized text.

    Args:
        batch: Documents and rejected lines, as they were read.
        framed: The tokens of the documents. Some documents without tokens are not written.

    Returns:
        The counts. `stored_bytes`, the size of the files, is 0 here: it is set once for all
        batches.
    """
    written_lengths = framed.lengths[framed.is_written]  # (n_written,) tokens of each document
    n_rejected_lines = len(batch.rejects) - batch.faults  # a fault is a file, and not a line
    return ShardFacts(
        lines=batch.read_lines,
        documents=len(written_lengths),
        skipped=len(framed.lengths) - len(written_lengths),
        rejected=n_rejected_lines,
        purged=batch.erased,
        sequences=int(framed.sequence_counts.sum()),
        tokens=int(written_lengths.sum(dtype=np.int64)),
        length_histogram=length_histogram(written_lengths).tolist(),
        read_bytes=batch.read_bytes,
        faults=batch.faults,
        reasons=Counter(reject.reason for reject in batch.rejects),
        zeroed=batch.texts_with_zeros,
        padding=batch.padding,
        empty_files=batch.empty_files,
        without_id=_count_without_id(batch, framed),
        unkept_ids=batch.dropped_ids,
        escaped_ids=batch.escaped_ids,
    )


def _count_without_id(batch: DocumentBatch, framed: Framed) -> int:
    """Return how many documents of a batch are written without an id.

    Args:
        batch: The documents; None stands for the id of one that has none.
        framed: Says which of the documents are written.
    """
    if None not in batch.ids:
        return 0
    has_no_id = np.array([identity is None for identity in batch.ids])  # (n_documents,)
    return int(np.count_nonzero(has_no_id & framed.is_written))
