"""How the files of a corpus differ from those of an earlier inventory."""

from __future__ import annotations

from nanoset_core.records.text import format_count
from nanoset_core.text.pieces import Inventory


def what_changed(before: Inventory | None, after: Inventory) -> str:
    """Return in words how many files were added, removed and changed since an earlier inventory, if
    there is one.
    """
    if before is None:
        return "the first inventory"
    old_files = set(before.files)
    new_files = set(after.files)
    different_pieces = {*before.pieces} ^ {*after.pieces}
    files_that_differ = {piece.path for piece in different_pieces}
    counts = {
        "added": len(new_files - old_files),
        "removed": len(old_files - new_files),
        "changed": len(old_files & new_files & files_that_differ),
    }
    texts = [f"{format_count(count, 'file')} {change}" for change, count in counts.items() if count]
    return ", ".join(texts) or "nothing"
