"""Where what was found out about tokenizers is kept for later processes."""

from __future__ import annotations

import hashlib
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from nanoset_core.storage.atomic import write_atomic

logger = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """Where knowledge is kept by default: `nanoset/tokenizers` in the user's cache folder; None without a home."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "nanoset" / "tokenizers"


@cache
def code_digest() -> str:
    """Hex sha256 of the code that decides which tokens a text has."""
    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*/*.py")):
        code.update(file.read_bytes())
    return code.hexdigest()


def read_checked(path: Path, key: str) -> Any:
    """The value that `write_checked` wrote for this key; None where there is none, or the file is not whole."""
    try:
        noted = orjson.loads(path.read_bytes())
        if noted["sha256"] != _checksum(key, noted["value"]):
            raise ValueError("its content is not that of its checksum")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.info("%s: cannot be used, will be made again: %s", path, error)
        return None
    return noted["value"]


def write_checked(path: Path, key: str, value: Any) -> None:
    """Keep a value, of JSON's types, for later processes; where that cannot be done, they take longer and that is all.

    `key` names all that the value depends on.
    """
    try:
        write_atomic(path, orjson.dumps({"value": value, "sha256": _checksum(key, value)}))
    except OSError as error:
        logger.info("%s: cannot be written, the next start will take longer: %s", path, error)


def _checksum(key: str, value: Any) -> str:
    return hashlib.sha256(key.encode() + orjson.dumps(value)).hexdigest()
