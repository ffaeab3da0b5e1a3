"""The cursor of the sensor over the raw folder: what it remembers from one tick to the next.

The names of the fields are stored as JSON keys in Dagster's history, so they must not change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class RawTextCursor:
    """What a tick saw, for the next tick.

    It only saves work: if it is lost, everything is compared again, but nothing is built twice.
    """

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

    @staticmethod
    def from_json(cursor: str | None) -> RawTextCursor:
        """Return the cursor that an earlier tick stored; an empty one if the text is not valid."""
        try:
            seen = RawTextCursor(**json.loads(cursor or "{}"))
        except (ValueError, TypeError):
            return RawTextCursor()
        is_valid = all(isinstance(value, dict | list) for value in asdict(seen).values())
        return seen if is_valid else RawTextCursor()

    def to_json(self) -> str:
        """Return the cursor as text."""
        return json.dumps(asdict(self), separators=(",", ":"))
