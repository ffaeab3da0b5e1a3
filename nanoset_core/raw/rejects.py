"""What is kept of a line or row that is no document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from nanoset_core.serialization.settings import Range

OnReject = Literal["quarantine", "fail"]
"""What a line that is no document does: it is kept aside, or it ends the run."""
RejectedFraction = Annotated[float, Range(0, 1)]
"""Share of lines above which nothing is written."""
MAX_REJECTED_FRACTION = 0.01
"""Default of that share."""
UnreadableFraction = Annotated[float, Range(0, 1)]
"""Share of the stored bytes, in files that cannot be read to their end, above which nothing is written."""
MAX_UNREADABLE_FRACTION = 0.0
"""Default of that share: every file must be whole."""

NO_OFFSET = -1
"""Stands for the byte offset of a row of a table, which has none."""
EXCERPT_BYTES = 200
FAULTS = ("corrupt_", "truncated_", "wrong_format")
"""What the reasons of faults begin with."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A line or row that is no document, or the fault that ends a file early."""

    file: str
    """Relative to the corpus folder."""
    line: int
    """1-based number of the line or row; for a fault the one in which it lies. It counts within a piece where the file
    was cut without being read (see tokenization/line_numbers.py)."""
    offset: int
    """Of the line's first byte (a fault: of the first byte that is lost) in the decompressed file; -1 in a table."""
    reason: str
    """A short fixed word, such as invalid_json."""
    detail: str
    """What was found."""
    excerpt: str
    """The first bytes of the line, or of the row's text; bytes that are not UTF-8 as \\xNN."""

    @property
    def is_fault(self) -> bool:
        """Whether it is no line, but where a file could not be read to its end."""
        return not self.excerpt and is_fault(self.reason)


def is_fault(reason: str) -> bool:
    """Whether a reason is that of a file which could not be read to its end."""
    return reason.startswith(FAULTS)


def excerpt(data: bytes) -> str:
    """The first bytes of a line or text, readable."""
    return data[:EXCERPT_BYTES].decode("utf-8", "backslashreplace")
