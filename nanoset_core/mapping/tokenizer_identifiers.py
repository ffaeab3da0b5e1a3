"""A trainer's tokenizer, as its index files' names see it: from JSON, or from a description that the trainer wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError


def read_identifiers(path: Path, where: object) -> dict[str, Any]:
    """The identifiers in a JSON file: the object itself, or the `tokenizer` of a trainer's …-description.txt.

    path: of the file. where: who names it, for the message. ConfigError where there are none in it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        found = value["datasets"][0] if isinstance(value.get("datasets"), list) else value
        found = found.get("tokenizer", found) if "class" in found and "dataset_path" in found else found
        if not isinstance(found, dict):
            raise TypeError(f"{found!r} is no JSON object")
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigError(
            "this file holds no tokenizer identifiers",
            where=where,
            found=f"{path}: {error}",
            expected='a …-GPTDataset-train-description.txt of the trainer, or JSON such as {"class": "…"}',
            remedy="name such a file, or write the identifiers out",
        ) from error
    return found
