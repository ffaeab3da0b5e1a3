"""Declare how the fields of a dataclass are stored, if not by their names and always."""

from __future__ import annotations

from typing import Any

JSON_KEY = "json_key"
OMIT_DEFAULT = "omit_default"
ONLY_WITH = "only_with"
HINT = "hint"


def stored(
    key: str | None = None,
    *,
    omit_default: bool = False,
    only_with: str | None = None,
    hint: Any = None,
) -> dict[str, Any]:
    """Return the metadata of a field that is not stored as fields usually are.

    Args:
        key: Its key in JSON, if that is not the field's name.
        omit_default: Whether the key is left out if the field has its default. Fields that earlier
            versions of nanoset did not have are left out, so that old digests stay the same.
        only_with: Name of another field. The key is left out unless that field has a value.
        hint: Type of the stored value, if the field's annotation allows types that JSON lacks.
    """
    return {
        JSON_KEY: key,
        OMIT_DEFAULT: omit_default,
        ONLY_WITH: only_with,
        HINT: hint,
    }
