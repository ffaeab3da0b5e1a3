"""Declare how the fields of a dataclass are stored, if not by their names and always.

For example, with `metadata=stored("bytes")` the field `size` is stored under the key "bytes", and
with `stored(omit_default=True)` a field is only stored if it does not have its default.
"""

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
    """Declare that a field of a dataclass is stored in a special way when it is written as JSON.

    Usually, a field is stored under its name: `size: int` becomes {"size": 80}. With this metadata:

        size: int = field(default=0, metadata=stored("bytes", omit_default=True))

    it becomes {"bytes": 80}, and if the size is 0, the key is left out.

    Args:
        key: The key in JSON, if it is not the name of the field.
        omit_default: Whether the key is left out if the field has its default. Use this for a field
            that is added to an existing class: older files, which do not have it, keep the same
            bytes and hashes.
        only_with: Name of another field. The key is left out if that field is None.
        hint: Type of the stored value, if the type of the field allows values that JSON lacks.

    Returns:
        The metadata, for `dataclasses.field(metadata=…)`.
    """
    return {
        JSON_KEY: key,
        OMIT_DEFAULT: omit_default,
        ONLY_WITH: only_with,
        HINT: hint,
    }
