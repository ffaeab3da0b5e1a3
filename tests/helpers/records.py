"""Records as they are after they were stored as JSON."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from nanoset_core.records.json_records import from_plain, to_plain

Kind = TypeVar("Kind")


def through_json(record: Kind, **changes: Any) -> Kind:
    """Return a dataclass after it was written as JSON and read again.

    Args:
        record: The dataclass.
        changes: Key → another value in the JSON.
    """
    values = plain(record) | changes
    return from_plain(type(record), json.loads(json.dumps(values)))


def plain(record: Any) -> Mapping[str, Any]:
    """Return a dataclass as plain values of JSON."""
    return to_plain(record)
