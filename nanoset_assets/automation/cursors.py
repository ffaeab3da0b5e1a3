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
    """Read what a sensor has remembered from its last call.

    Dagster calls a sensor every few seconds, and stores a text (the cursor) between two calls. This
    sensor watches folders of raw text, and remembers for each corpus what its files looked like:
    `{"marks": {"web": "5f0c…"}}`.

    Args:
        cursor: The text; None before the first call.

    Returns:
        What it says. If there is no text, or it cannot be read, nothing is remembered: then the
        sensor compares everything again, which does no harm.
    """
    if cursor is None:
        return RawTextCursor()
    try:
        return load(RawTextCursor, cursor.encode(), "the cursor of the sensor")
    except FormatError:
        return RawTextCursor()
