"""Find out whether a purge erased a version, a document or a line, from the receipts of purges.

A purge erases documents from all outputs, and writes a receipt: a JSON file below the root, which
`project/purge_receipt.py` writes. If a user asks for something that was erased, the error of the
command then says so. The entries that are read here are:

    day         day of the purge, in ISO format
    ids         digests of the erased ids
    documents   the erased documents, each with `corpus`, `file` and `line`
    erased      the erased versions, by their paths below the root

While a purge is in progress, or after it was interrupted, the name of its receipt begins with a
dot.
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
    """Day of the purge, in ISO format."""
    receipt: str
    """Path or address of its receipt."""

    def __str__(self) -> str:
        return f"erased by the purge of {self.day} (receipt: {self.receipt})"


class _Receipt(NamedTuple):
    """The receipt of a purge."""

    erasure: Erasure
    content: Mapping[str, Any]
    """The parsed file; its entries may be of any type, since the file may have been edited."""


def erasure_of_version(access: FileAccess, stage: str, name: str, digest: str) -> Erasure | None:
    """Return the purge that erased a version of an output, or None.

    Args:
        access: How files below the root are read.
        stage: Folder of the stage. If it is empty, versions of all outputs are searched.
        name: Name of the output.
        digest: Digest of the version; its first digits are enough if `stage` is empty.
    """
    for receipt in _receipts(access):
        erased = receipt.content.get("erased")
        if not isinstance(erased, dict):
            continue
        paths = [str(path) for path in erased]
        if stage:
            is_erased = f"{stage}/{name}/{digest}" in paths
        else:
            is_erased = any(path.rpartition("/")[2].startswith(digest) for path in paths)
        if is_erased:
            return receipt.erasure
    return None


def erasure_of_id(access: FileAccess, id_digest: str) -> Erasure | None:
    """Return the purge that erased the document with an id, or None.

    Args:
        access: How files below the root are read.
        id_digest: Digest of the id, from `purged.id_digest`. Receipts must not contain the id.
    """
    for receipt in _receipts(access):
        ids = receipt.content.get("ids")
        if isinstance(ids, list) and id_digest in ids:
            return receipt.erasure
    return None


def erasure_of_line(
    access: FileAccess, corpora: tuple[str, ...], file: str, line: int
) -> Erasure | None:
    """Return the purge that erased the document in a line of raw text, or None.

    Args:
        access: How files below the root are read.
        corpora: Corpora to which the file may belong.
        file: The file, as receipts name it.
        line: Number of the line.
    """
    for receipt in _receipts(access):
        documents = receipt.content.get("documents")
        if not isinstance(documents, list):
            continue
        for document in documents:
            if not isinstance(document, dict):
                continue
            is_same_line = document.get("file") == file and document.get("line") == line
            if is_same_line and document.get("corpus") in corpora:
                return receipt.erasure
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
    """Return the error for a version that does not exist.

    If a purge erased the version, the error says so, since it cannot be restored then.

    Args:
        access: How files below the root are read.
        path: Stage, name and digest of the version.
        what: What is wrong, if no purge erased the version.
        found: As in `NanosetError`, if no purge erased the version.
        expected: The same.
        remedy: The same.
    """
    where = access.url(access.folder.joinpath(*path))
    erasure = erasure_of_version(access, *path)
    if erasure is None:
        return MissingError(what, where=where, found=found, expected=expected, remedy=remedy)
    return MissingError(
        f"this version was erased by the purge of {erasure.day}",
        where=where,
        found=what,
        remedy=(
            "it contained erased documents and cannot be restored; "
            f"{erasure.receipt} lists what replaced it"
        ),
    )


def _receipts(access: FileAccess) -> Iterator[_Receipt]:
    """Yield all receipts, ordered by name, including those of purges that are not complete.

    Files that are not valid are left out.
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
            erasure = Erasure(str(content.get("day")), access.url(folder / name))
            yield _Receipt(erasure, content)
