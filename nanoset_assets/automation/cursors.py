"""What each sensor remembers from one tick to the next: its *cursor*.

A tick is one call of a sensor by Dagster, which stores the cursor as a text in its history. By the
cursor, a tick sees what has changed since the last one: `{"marks": {"web": "5f0c…"}}` says that the
files of the corpus `web` had this signature.

A cursor only saves work: if it is lost or damaged, everything is compared again, but nothing is
built twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from nanoset_core.errors import FormatError
from nanoset_core.records.json_records import JsonForm, Record, RecordType, dump, load
from nanoset_core.records.stored_fields import stored

_FORM = JsonForm("this is not the cursor of the sensor", is_compact=True)


@dataclass(frozen=True, slots=True)
class RawTextCursor(Record):
    """What the sensor over the raw folder saw."""

    json_form: ClassVar[JsonForm] = _FORM

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


@dataclass(frozen=True, slots=True)
class LandingCursor(Record):
    """What the sensor over assets that write raw text has handled."""

    json_form: ClassVar[JsonForm] = _FORM

    handled_ids: dict[str, int] = field(default_factory=dict)
    """Corpus → number of the last event, in Dagster's history, that has written its text and for
    which a build was requested.
    """


@dataclass(frozen=True, slots=True)
class OverviewCursor(Record):
    """What the sensor of the overview has compared and reported."""

    json_form: ClassVar[JsonForm] = _FORM

    quick_digest: str = ""
    """Digest of what is quick to find out, in the last tick that compared all outputs."""
    compared_at: float = 0.0
    """When all outputs were last compared, in seconds since 1970."""
    reported_digest: str = ""
    """Digest of the page, or of the error, that was last reported to Dagster."""


def read_cursor(kind: type[RecordType], text: str | None) -> RecordType:
    """Read what a sensor has remembered from its last tick.

    Args:
        kind: The class of the sensor's cursor, such as `RawTextCursor`.
        text: The text that the last tick has stored; None before the first one.

    Returns:
        What the text says. If there is none, or it cannot be read, nothing is remembered.
    """
    if text is None:
        return kind()
    try:
        return load(kind, text.encode(errors="surrogatepass"), "the cursor of the sensor")
    except FormatError:
        return kind()


def cursor_text(cursor: Record) -> str:
    """Return a cursor as the text that Dagster stores until the next tick.

    Args:
        cursor: What the next tick has to know.
    """
    return dump(cursor).decode()
