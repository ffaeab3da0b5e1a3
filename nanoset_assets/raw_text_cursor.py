"""The cursor of the sensor over the raw folder: what it remembers from one tick to the next.

The names of the fields are stored as JSON keys in Dagster's history, so they must not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from nanoset_core.errors import FormatError
from nanoset_core.records.json_records import JsonForm, Record, load


@dataclass(frozen=True, slots=True)
class RawTextCursor(Record):
    """What a tick saw, for the next tick.

    It only saves work: if it is lost, everything is compared again, but nothing is built twice.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not the cursor of the sensor over the raw folder", is_compact=True
    )

    marks: dict[str, str] = field(default_factory=dict)
    """Corpus → signature of its files."""
    taken: dict[str, str] = field(default_factory=dict)
    """Corpus that is up to date → digest of its current inventory."""
    gone: list[str] = field(default_factory=list)
    """Corpora that are partitions but were missing from the raw folder."""
    written: dict[str, float] = field(default_factory=dict)
    """Corpus that is being written → when that was first noticed, in seconds since 1970."""
    members: dict[str, list[str]] = field(default_factory=dict)
    """Name of a set of partitions that only some corpora belong to → corpora that were added."""


def read_cursor(cursor: str | None) -> RawTextCursor:
    """Return the cursor that an earlier tick stored; an empty one if the text is not valid."""
    if cursor is None:
        return RawTextCursor()
    try:
        return load(RawTextCursor, cursor.encode(), "the cursor of the sensor")
    except FormatError:
        return RawTextCursor()
