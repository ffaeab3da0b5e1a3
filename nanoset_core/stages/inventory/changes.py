"""Find out how the files of a corpus differ from those of an earlier inventory.

An inventory is the list of a corpus's files that a build has read, with digests of their content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from nanoset_core.text.inventory.pieces import Inventory, Piece
from nanoset_core.wording import format_count

FileChange: TypeAlias = Literal["added", "removed", "changed"]
"""What happened to a file."""
_FILE_CHANGES: tuple[FileChange, ...] = ("added", "removed", "changed")
"""In the order in which descriptions name them."""


def changed_files(
    before: Mapping[str, Sequence[Piece]], after: Mapping[str, Sequence[Piece] | None]
) -> dict[str, FileChange]:
    """Return which files were added, removed or changed between two lists of a corpus's files.

    The files are divided into pieces, which have digests. A file has changed if its pieces have:

        before    a.jsonl: 77cd, 30f2    b.jsonl: a07e    d.jsonl: 81aa
        after     a.jsonl: 77cd, 9e41    c.jsonl: b113    d.jsonl: 81aa
        result    {"a.jsonl": "changed", "b.jsonl": "removed", "c.jsonl": "added"}

    Args:
        before: Path of each file at an earlier time → its pieces.
        after: Path of each file at a later time → its pieces; None if they are not known. Then the
            file counts as changed, unless it was added.

    Returns:
        Path → change, without files that are the same. The files of `before` are first, then those
        that were added.
    """
    changes: dict[str, FileChange] = {}
    for path, pieces in before.items():
        if path not in after:
            changes[path] = "removed"
        elif after[path] != pieces:
            changes[path] = "changed"
    for path in after:
        if path not in before:
            changes[path] = "added"
    return changes


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
    changes = changed_files(before.pieces_by_file, after.pieces_by_file)
    counts = Counter(changes.values())
    texts = []
    for change in _FILE_CHANGES:
        if counts[change] > 0:
            texts.append(f"{format_count(counts[change], 'file')} {change}")
    return ", ".join(texts) or "nothing"
