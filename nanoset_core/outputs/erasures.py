"""What purges erased: their receipts below the root, and the errors of commands that ask for such a
thing.

A receipt is a JSON file with the day of the purge, digests of the erased ids (`ids`), the erased
documents (`documents`, with corpus, file and line), and the erased versions (`erased`, by their
paths below the root). `versions/purging.py` writes it; while a purge is under way, or was cut
short, its name begins with a dot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import MissingError
from nanoset_core.storage.access import FileAccess

RECEIPTS = "purge_receipts"
"""Folder of the receipts, below the root."""


class Erasure(NamedTuple):
    """The purge that erased something."""

    day: str
    """In ISO format."""
    receipt: str
    """Path or address of the receipt."""

    def __str__(self) -> str:
        return f"erased by the purge of {self.day} (receipt: {self.receipt})"


def erasure_of_version(access: FileAccess, stage: str, name: str, digest: str) -> Erasure | None:
    """Return the purge that erased a version of an output, or None.

    Args:
        access: Of the root.
        stage: Folder of the stage; empty: any stage and name.
        name: Name of the output.
        digest: Of the version; if `stage` is empty, its first digits are enough.
    """
    for day, receipt, content in _receipts(access):
        paths = [str(path) for path in _mapping(content, "erased")]
        is_erased = f"{stage}/{name}/{digest}" in paths
        if not stage:
            is_erased = any(path.rpartition("/")[2].startswith(digest) for path in paths)
        if is_erased:
            return Erasure(day, receipt)
    return None


def erasure_of_id(access: FileAccess, id_digest: str) -> Erasure | None:
    """Return the purge that erased the document with an id, or None; `id_digest` as
    `purged.id_digest` gives it.
    """
    for day, receipt, content in _receipts(access):
        ids = content.get("ids")
        if isinstance(ids, list) and id_digest in ids:
            return Erasure(day, receipt)
    return None


def erasure_of_line(
    access: FileAccess, corpora: tuple[str, ...], file: str, line: int
) -> Erasure | None:
    """Return the purge that erased the document of a line of the raw text of one of some corpora,
    or None.
    """
    for day, receipt, content in _receipts(access):
        documents = content.get("documents")
        if not isinstance(documents, list):
            continue
        for document in documents:
            if not isinstance(document, dict):
                continue
            is_same_line = (document.get("file"), document.get("line")) == (file, line)
            if is_same_line and document.get("corpus") in corpora:
                return Erasure(day, receipt)
    return None


def missing_version(
    access: FileAccess,
    path: tuple[str, str, str],
    what: str,
    *,
    found: str | None = None,
    expected: str | None = None,
    remedy: str,
) -> MissingError:
    """Return the error for a version that does not exist: one that a purge erased cannot be
    restored.

    Args:
        access: Of the root.
        path: Stage, name and digest of the version.
        what: What is wrong if no purge erased it.
        found, expected, remedy: As of a `NanosetError`, if no purge erased it.
    """
    where = access.url(access.folder.joinpath(*path))
    erasure = erasure_of_version(access, *path)
    if erasure is None:
        return MissingError(what, where=where, found=found, expected=expected, remedy=remedy)
    return MissingError(
        f"this version was erased by the purge of {erasure.day}",
        where=where,
        found=what,
        remedy=f"it held erased documents and cannot be restored; {erasure.receipt} lists what was made in its place",
    )


def _receipts(access: FileAccess) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield day, address and content of each receipt, by name; those that cannot be read are passed
    over.
    """
    folder: Path = access.folder / RECEIPTS
    for name in sorted(access.names(folder)):
        if not name.endswith(".json"):
            continue
        try:
            content = json.loads(access.read_current(folder / name))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            yield str(content.get("day")), access.url(folder / name), content


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}
