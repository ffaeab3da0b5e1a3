"""Recognise the receipts of outputs that are being written."""

from __future__ import annotations

import json
from pathlib import Path

from nanoset_core.outputs.receipts import PAIR_RECEIPT_ENDING


def is_opening_receipt(path: Path) -> bool:
    """Return whether a file says that files next to it are being put in place.

    It becomes the receipt of these files once it lists them. Trainers do not read it. Next to index
    files, its name ends in -nanoset.json, and next to a tokenized pair in .manifest.json.
    """
    if not path.name.endswith(("-nanoset.json", PAIR_RECEIPT_ENDING)):
        return False
    return "files" not in json.loads(path.read_bytes())
