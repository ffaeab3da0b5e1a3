"""Digests, which are short hashes of JSON values: they name the versions of outputs."""

from __future__ import annotations

import hashlib
import re

from nanoset_core.records.json_records import canonical_json

DIGEST_HEX_DIGITS = 20
"""Length of a digest: 80 bits of a sha256, which keep the paths of outputs short."""
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_HEX_DIGITS}}}")


def digest_of(value: object) -> str:
    """Return a short content digest of any JSON value.

    Two values have the same digest only if they are equal. The order of keys makes no difference:
    {"seed": 7, "name": "web"} and {"name": "web", "seed": 7} have the same one.

    Args:
        value: A value that JSON can represent.

    Returns:
        20 hexadecimal digits, such as `91fe02…`.
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()[:DIGEST_HEX_DIGITS]


def is_digest(value: object) -> bool:
    """Return whether a value has the form of a digest, so that a folder may have it as its name.

    Args:
        value: Any value, for example the name of a folder or a value from a file.
    """
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
