"""What the sensor over the raw folder remembers from one tick to the next."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class RawTextCursor:
    """The cursor: what a tick saw.

    Without it everything is compared again, and nothing is built twice.
    """

    marks: dict[str, str] = field(default_factory=dict)
    """Corpus → signature of its files."""
    taken: dict[str, str] = field(default_factory=dict)
    """Corpus → digest of the inventory that is known to be one of these very files."""
    gone: list[str] = field(default_factory=list)
    """Registered corpora that did not exist."""
    written: dict[str, float] = field(default_factory=dict)
    """Corpus → since when something writes to it, seconds since 1970."""
    members: dict[str, list[str]] = field(default_factory=dict)
    """Name of a set of partitions that only some corpora have → corpora that this sensor has put
    into it.
    """

    @staticmethod
    def from_json(cursor: str | None) -> RawTextCursor:
        """Read the cursor of an earlier tick; one that this sensor did not write is ignored."""
        try:
            seen = RawTextCursor(**json.loads(cursor or "{}"))
        except (ValueError, TypeError):
            return RawTextCursor()
        is_valid = all(isinstance(value, dict | list) for value in asdict(seen).values())
        return seen if is_valid else RawTextCursor()

    def to_json(self) -> str:
        """Return the cursor."""
        return json.dumps(asdict(self), separators=(",", ":"))
