"""Rejects: lines and rows that are no documents, and faults that end a file early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from nanoset_core.records.settings import Range

OnReject = Literal["quarantine", "fail"]
"""What a line that is no document does: it is kept aside, or ends the run."""
RejectedFraction = Annotated[float, Range(0, 1)]
"""Share of lines above which nothing is written."""
MAX_REJECTED_FRACTION = 0.01
"""Default of that share."""
UnreadableFraction = Annotated[float, Range(0, 1)]
"""Share of the stored bytes, in files that cannot be read to their end, above which nothing is
written.
"""
MAX_UNREADABLE_FRACTION = 0.0
"""Default of that share: every file must be whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectOptions:
    """How much of the text may be lost; the options of several commands begin with these."""

    on_reject: OnReject = "quarantine"
    """What a line that is no document does: quarantine or fail."""
    max_rejected_fraction: RejectedFraction = MAX_REJECTED_FRACTION
    """Share of lines, 0 to 1, above which nothing is written."""
    max_unreadable_fraction: UnreadableFraction = MAX_UNREADABLE_FRACTION
    """Share of the stored bytes, 0 to 1, in files that cannot be read to their end, above which
    nothing is written.
    """

    @property
    def limits(self) -> dict[str, Any]:
        """These options, to be passed on and to be noted."""
        return {name: getattr(self, name) for name in RejectOptions.__slots__}


NO_OFFSET = -1
"""Byte offset of a table's row, which has none."""
EXCERPT_BYTES = 200
WRONG_FORMAT = "wrong_format"
AMBIGUOUS_COLUMN = "ambiguous_column"
FAULTS = ("corrupt_", "truncated_", WRONG_FORMAT, AMBIGUOUS_COLUMN)
"""What the reasons of faults begin with."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A line or row that is no document, or the fault that ends a file early."""

    file: str
    """Relative to the corpus folder."""
    line: int
    """1-based number of the line or row; of a fault, the one in which it lies. Counted within its
    piece where the file was cut without being read (see tokenization/document_table.py)."""
    offset: int
    """Of the line's first byte (of a fault: of the first lost byte) in the decompressed file; -1 in
    a table.
    """
    reason: str
    """A short fixed word, such as invalid_json."""
    detail: str
    """What was found."""
    excerpt: str
    """The first bytes of the line, or of the row's text; bytes that are not UTF-8 as \\xNN."""

    @property
    def is_fault(self) -> bool:
        """Return whether it stands for a file that could not be read to its end, not for a line."""
        return not self.excerpt and is_fault(self.reason)


class FaultError(Exception):
    """A file cannot be read to its end. It is raised after everything before the fault was given.

    `nanoset_core.text.documents` turns it into a Reject.
    """

    def __init__(self, reason: str, detail: str, *, line: int = 0, offset: int = NO_OFFSET) -> None:
        """Take what `reject` puts into the Reject of the file.

        Args:
            reason: one of FAULTS, or a word that begins with one, such as corrupt_gzip or
                truncated_zstd.
            detail: what the decoder reported, and where in the stored file.
            line: as in Reject.
            offset: as in Reject.
        """
        super().__init__(reason, detail)
        self.reason, self.detail, self.line, self.offset = reason, detail, line, offset

    def reject(self, path: str) -> Reject:
        """Return the fault of a file as a reject."""
        return Reject(path, self.line, self.offset, self.reason, self.detail, "")


def is_fault(reason: str) -> bool:
    """Return whether a reason is that of a file which could not be read to its end."""
    return reason.startswith(FAULTS)


def excerpt(data: bytes) -> str:
    """Return the first bytes of a line or text, readable."""
    return data[:EXCERPT_BYTES].decode("utf-8", "backslashreplace")
