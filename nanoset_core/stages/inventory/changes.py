"""Describe how the files of a corpus differ from those of an earlier inventory.

An inventory is the list of a corpus's files that a build has read, with digests of their content.
"""

from __future__ import annotations

from nanoset_core.records.text import format_count
from nanoset_core.text.pieces import Inventory


def what_changed(before: Inventory | None, after: Inventory) -> str:
    """Describe how the files of a corpus changed between two builds, for the log.

        before    a.jsonl, b.jsonl
        after     a.jsonl with other content, c.jsonl, d.jsonl
        result    "2 files added, 1 file removed, 1 file changed"

    Args:
        before: List of the files at an earlier time, its inventory; None if there is none.
        after: List of the files at a later time.
    """
    if before is None:
        return "the first inventory"
    texts = []
    for change, count in _count_changes(before, after).items():
        if count > 0:
            texts.append(f"{format_count(count, 'file')} {change}")
    return ", ".join(texts) or "nothing"


def _count_changes(before: Inventory, after: Inventory) -> dict[str, int]:
    """Count how many files of a corpus were added, removed and changed between two builds.

    An inventory lists the files of a corpus, divided into pieces that have checksums. A file has
    changed if one of its pieces is in only one of the inventories:

        before    a.jsonl: pieces 77cd, 30f2      b.jsonl: piece a07e
        after     a.jsonl: pieces 77cd, 9e41      c.jsonl: piece b113
        result    {"added": 1, "removed": 1, "changed": 1}

    Args:
        before: The earlier inventory.
        after: The later inventory.
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
