"""Where what was found out about tokenizers is kept for later processes."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path


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
