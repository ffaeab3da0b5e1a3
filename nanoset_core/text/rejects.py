"""Rejects: lines and rows that are not documents, and faults that end a file early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from nanoset_core.records.json_records import JsonForm, Record
from nanoset_core.records.settings import Range

OnReject = Literal["quarantine", "fail"]
"""What happens with a line that is not a document: it is written to a file of rejects, or the run
fails.
"""
RejectedFraction = Annotated[float, Range(0, 1)]
"""The largest fraction of lines that may be rejected; above it, nothing is written."""
MAX_REJECTED_FRACTION = 0.01
"""Default of this fraction."""
UnreadableFraction = Annotated[float, Range(0, 1)]
"""The largest fraction of the stored bytes that may be in files which cannot be read to their end;
above it, nothing is written.
"""
MAX_UNREADABLE_FRACTION = 0.0
"""Default of this fraction: every file must be complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectOptions:
    """How much of the text may be lost; the options of several commands start with these."""

    on_reject: OnReject = "quarantine"
    """Whether lines that are not documents are written to a file of rejects, or fail the run."""
    max_rejected_fraction: RejectedFraction = MAX_REJECTED_FRACTION
    """The largest fraction of lines that may be rejected; above it, nothing is written."""
    max_unreadable_fraction: UnreadableFraction = MAX_UNREADABLE_FRACTION
    """The largest fraction of the stored bytes that may be in files which cannot be read to their
    end; above it, nothing is written.
    """

    @property
    def limits(self) -> dict[str, Any]:
        """These options by name, without those of a subclass: for other functions and recipes."""
        return {name: getattr(self, name) for name in RejectOptions.__slots__}

    @property
    def recorded(self) -> list[Any]:
        """The values of these options as an output's facts record them under `policy`."""
        return list(self.limits.values())

    def accept(self, facts: Mapping[str, Any]) -> bool:
        """Return whether an output that an earlier call made can be kept under these limits.

        Whether more was lost than a limit allows is decided while text is read. So an output for
        which lines were rejected is kept only if it was made under the same limits.

        Args:
            facts: Facts of the output: under `rejected`, the number of rejected lines and
                unreadable files; if there are some, also `policy`.
        """
        return not facts["rejected"] or facts.get("policy") == self.recorded


NO_OFFSET = -1
"""The offset of rows of a table, which have no byte offset."""
EXCERPT_BYTES = 200
WRONG_FORMAT = "wrong_format"
AMBIGUOUS_COLUMN = "ambiguous_column"
FAULTS = ("corrupt_", "truncated_", WRONG_FORMAT, AMBIGUOUS_COLUMN)
"""Beginnings of the reasons that are faults; the reasons of rejected lines differ from them."""


@dataclass(frozen=True, slots=True)
class Reject(Record):
    """A line or row that is not a document, or the fault that ends a file early."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not the list of a shard's rejected lines", ends_with_newline=True
    )

    file: str
    """Path relative to the corpus's folder."""
    line: int
    """1-based number of the line or row; of a fault, the one in which it is. If the file was cut
    into pieces without being read, the number is counted from the start of its piece (see
    stages/shards/line_numbers.py).
    """
    offset: int
    """Offset of the line's first byte in the decompressed file; of a fault, of the first byte that
    is lost; NO_OFFSET in a table.
    """
    reason: str
    """A short fixed word, such as invalid_json."""
    detail: str
    """What was found."""
    excerpt: str
    """The first bytes of the line, or of the row's text, with bytes that are not UTF-8 as \\xNN."""

    @property
    def is_fault(self) -> bool:
        """Whether this is the fault of a file that could not be read to its end, and not a line."""
        return not self.excerpt and is_fault(self.reason)


class FaultError(Exception):
    """A file cannot be read to its end. It is raised after everything before the fault was yielded.

    `nanoset_core.text.documents` turns it into a Reject.
    """

    def __init__(self, reason: str, detail: str, *, line: int = 0, offset: int = NO_OFFSET) -> None:
        """Create the fault of a file; the arguments are fields of its Reject.

        Args:
            reason: One of FAULTS, or a word that starts with one, such as corrupt_gzip.
            detail: What the decoder reported, and where in the stored file.
            line: 1-based number of the line or row in which the fault is; 0 if it is not known yet.
            offset: Offset of the first byte that is lost in the decompressed file; NO_OFFSET in a
                table.
        """
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.line = line
        self.offset = offset

    def reject(self, path: str) -> Reject:
        """Convert this error to an entry for the list of rejects.

        A run lists every line that is not a document, so that the user can look at it. A file that
        cannot be read to its end gets one entry in the same list. It says where the fault is:

            web/a.jsonl.gz, line 7001, offset 1048570, corrupt_gzip, "invalid block type …"

        Args:
            path: The file, relative to the folder of the corpus, a collection of texts.
        """
        return Reject(
            path,
            line=self.line,
            offset=self.offset,
            reason=self.reason,
            detail=self.detail,
            excerpt="",
        )


def is_fault(reason: str) -> bool:
    """Return whether a reject is about a file that could not be read to its end, not about a line.

    Args:
        reason: The reason of the reject, such as `corrupt_gzip` (True) or `invalid_json` (False).
    """
    return reason.startswith(FAULTS)


def excerpt(data: bytes) -> str:
    r"""Return the first 200 bytes of a line or text as text, for the list of rejects.

    Args:
        data: The line or text.

    Returns:
        Text in which bytes that are not UTF-8 are written as \\xNN. A character that is cut off at
        the end is written so, too.
    """
    return data[:EXCERPT_BYTES].decode("utf-8", "backslashreplace")
