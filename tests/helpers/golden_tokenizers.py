"""Small tokenizers in files of every kind, and changed copies of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.locations import GOLDEN_FILES
from nanoset_core.tokenizers.files import TokenizerFile

GOLDEN_JSON = GOLDEN_FILES / "tokenization" / "tokenizer.json"
"""A tokenizer of 396 tokens. Its added tokens are <|endoftext|>, with the id 0, and <|padding|>."""
FILES = GOLDEN_FILES / "tokenization" / "files"
"""The folder of tokenizers of other kinds."""
N_RANKS = len((FILES / "ranks.tiktoken").read_bytes().splitlines())
"""Ordinary tokens of the tokenizers with ranks; their special tokens follow, or precede them."""
NO_FLAGS = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": False,
}
"""Flags of an added token in a `tokenizer.json`."""


def golden_file(name: str, **settings: Any) -> TokenizerFile:
    """Return the golden tokenizer in a file, with settings."""
    return TokenizerFile(FILES / name, **settings)


def copy_golden_file(name: str, folder: Path, copy_name: str | None = None) -> Path:
    """Copy a golden file to a folder, and return the path of the copy.

    Args:
        name: Name of the golden file.
        folder: The folder.
        copy_name: Name of the copy; the same if None.
    """
    path = folder / (copy_name or name)
    shutil.copyfile(FILES / name, path)
    return path


def write_golden_json(
    folder: Path, change: Callable[[dict[str, Any]], object], name: str = "tokenizer.json"
) -> Path:
    """Write the golden `tokenizer.json` after a change; return its path.

    Args:
        folder: The folder to write to.
        change: Changes the parsed file in place.
        name: Name of the file.
    """
    tokenizer = json.loads(GOLDEN_JSON.read_bytes())
    change(tokenizer)
    path = folder / name
    path.write_text(json.dumps(tokenizer))
    return path
