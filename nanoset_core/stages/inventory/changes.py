"""Describe how the files of a corpus differ from those of an earlier inventory.

An inventory is the list of a corpus's files that a build has read, with digests of their content.
"""

from __future__ import annotations

from nanoset_core.records.text import format_count
from nanoset_core.text.pieces import Inventory


def what_changed(before: Inventory | None, after: Inventory) -> str:
    """Return in words how many files were added, removed and changed between two inventories.

    Args:
        before: The earlier inventory, or None if there is none.
        after: The later inventory.

    Returns:
        A text such as "2 files added, 1 file changed".
    """
    if before is None:
        return "the first inventory"
    texts = []
    for change, count in _count_changes(before, after).items():
        if count > 0:
            texts.append(f"{format_count(count, 'file')} {change}")
    return ", ".join(texts) or "nothing"


def _count_changes(before: Inventory, after: Inventory) -> dict[str, int]:
    """Return how many files were added, removed and changed.

    Args:
        before: The earlier inventory.
        after: The later inventory.

    Returns:
        Such as `{"added": 2, "removed": 0, "changed": 1}`.
    """
    old_files = set(before.files)
    new_files = set(after.files)

    # A file has changed if one of its pieces is in only one of the inventories.
    different_pieces = {*before.pieces} ^ {*after.pieces}
    different_files = {piece.path for piece in different_pieces}
    return {
        "added": len(new_files - old_files),
        "removed": len(old_files - new_files),
        "changed": len(old_files & new_files & different_files),
    }
