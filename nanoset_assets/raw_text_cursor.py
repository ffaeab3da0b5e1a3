"""The cursor of the sensor over the raw folder: what it remembers from one tick to the next.

A tick is one call of the sensor by Dagster. By the cursor, a tick sees what has changed since the
last one: `{"marks": {"web": "5f0c…"}}` says that the files of the corpus `web` had this signature.

It is stored as JSON in Dagster's history, so its keys (`stored("marks")`) must not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from nanoset_core.errors import FormatError
from nanoset_core.records.json_records import JsonForm, Record, load
from nanoset_core.records.stored_fields import stored


@dataclass(frozen=True, slots=True)
class RawTextCursor(Record):
    """What a tick saw, for the next tick.

    It only saves work: if it is lost, everything is compared again, but nothing is built twice.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not the cursor of the sensor over the raw folder", is_compact=True
    )

    signatures: dict[str, str] = field(default_factory=dict, metadata=stored("marks"))
    """Corpus → signature of its files."""
    up_to_date: dict[str, str] = field(default_factory=dict, metadata=stored("taken"))
    """Corpus that is up to date → digest of its current inventory."""
    missing: list[str] = field(default_factory=list, metadata=stored("gone"))
    """Corpora that are partitions but were missing from the raw folder."""
    written_since: dict[str, float] = field(default_factory=dict, metadata=stored("written"))
    """Corpus that is being written → when that was first noticed, in seconds since 1970."""
    members: dict[str, list[str]] = field(default_factory=dict)
    """Name of a set of partitions that only some corpora belong to → corpora that were added."""


def read_cursor(cursor: str | None) -> RawTextCursor:
    """Return the cursor that an earlier tick stored.

    Args:
        cursor: Its JSON text; None before the first tick.

    Returns:
        The cursor; an empty one if there is none, or if the text is not valid.
    """
    if cursor is None:
        return RawTextCursor()
    try:
        return load(RawTextCursor, cursor.encode(), "the cursor of the sensor")
    except FormatError:
        return RawTextCursor()
