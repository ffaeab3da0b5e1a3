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
    """Return the metadata of a dataclass field with a special form in JSON.

    For example, `size: int = field(default=0, metadata=stored("bytes", omit_default=True))` is
    stored under the key "bytes", and only if it is not 0.

    Args:
        key: Its key in JSON, if that is not the field's name.
        omit_default: Whether the key is left out if the field has its default. Use this for a field
            that is added to an existing class: records without it keep their bytes and digests.
        only_with: Name of another field. The key is left out if that field is None.
        hint: Type of the stored value, if the field's annotation allows types that JSON lacks.

    Returns:
        The metadata, for `dataclasses.field(metadata=…)`.
    """
    return {
        JSON_KEY: key,
        OMIT_DEFAULT: omit_default,
        ONLY_WITH: only_with,
        HINT: hint,
    }
