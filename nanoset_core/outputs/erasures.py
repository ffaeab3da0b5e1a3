"""Find out whether a purge erased a version, a document or a line, from the receipts of purges.

A purge erases documents from all outputs, and writes a receipt: a `PurgeRecord` in a JSON file
below the root. If a user asks for something that was erased, the error of the command then says so:
`this version was erased by the purge of 2025-03-01`.

While a purge is in progress, or after it was interrupted, the name of its receipt begins with a
dot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.records.json_records import JsonForm, Record, load
from nanoset_core.records.stored_fields import stored
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


@dataclass(frozen=True, slots=True)
class ErasedDocument:
    """A document that a purge erased, as its receipt lists it."""

    corpus: str
    file: str
    """Its file of the raw text, relative to the corpus's folder."""
    line: int
    """Number of its line in the file, from 1."""
    tokens: int


@dataclass(frozen=True, slots=True)
class PurgeRecord(Record):
    """The content of the receipt of a purge."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not the receipt of a purge",
        remedy="move it away, and purge again",
        indent=1,
        sorts_keys=True,
        ends_with_newline=True,
    )
    ignores_unknown_keys: ClassVar[bool] = True

    day: str
    """Day of the purge, in ISO format."""
    ids: tuple[str, ...]
    """Digests of the erased ids. Receipts do not contain the ids themselves."""
    corpora: tuple[str, ...]
    """The corpora that were searched; empty for all."""
    documents: tuple[ErasedDocument, ...] = ()
    erased: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Path of each erased version below the root → size and checksum of its files by name."""
    made: Mapping[str, Mapping[str, Any]] | None = field(
        default=None, metadata=stored(omit_default=True)
    )
    """The versions that replaced them, in the same form; None until the purge is complete."""
    existing: tuple[str, ...] | None = field(
        default=None, metadata=stored("there", omit_default=True)
    )
    """Digests of all versions that existed when the purge began; None in a complete receipt."""
    nanoset_purge: int = 1
    """Version of this format."""


class _Receipt(NamedTuple):
    """The receipt of a purge, and what messages say about it."""

    erasure: Erasure
    record: PurgeRecord


def erasure_of_version(access: FileAccess, stage: str, name: str, digest: str) -> Erasure | None:
    """Return the purge that erased a version of an output, or None if none did.

    A purge erases documents for good, for example at the request of their author. It also erases
    each stored version of an output that contains them, and leaves a receipt that lists these
    versions.

    Args:
        access: How files below the folder or bucket of all outputs are read.
        stage: Folder of the kind of output, such as `datasets`.
        name: Name of the output, such as `web`.
        digest: Digest of the version, which is the name of its folder.
    """
    version_path = f"{stage}/{name}/{digest}"
    for receipt in _receipts(access):
        if version_path in receipt.record.erased:
            return receipt.erasure
    return None


def erasure_of_digest(access: FileAccess, first_digits: str) -> Erasure | None:
    """Return the purge that erased a version of any output, or None if none did.

    A user has noted that a model was trained on version `91fe02` of some output. If it does not
    exist any more, this function finds out whether a purge has erased it. A purge erases documents
    for good, and all versions of outputs that contain them, and leaves a receipt that lists these
    versions.

    Args:
        access: How files below the folder or bucket of all outputs are read.
        first_digits: The digest of the version, or its first digits.
    """
    for receipt in _receipts(access):
        for version_path in receipt.record.erased:  # such as "datasets/web/<digest>"
            digest = version_path.rpartition("/")[2]
            if digest.startswith(first_digits):
                return receipt.erasure
    return None


def erasure_of_id(access: FileAccess, id_digest: str) -> Erasure | None:
    """Return the purge that erased the document with an id, or None if none did.

    A purge erases documents for good, for example at the request of their author. Its receipt must
    not contain their ids, which may be names of persons. So it lists digests of the ids.

    Args:
        access: How files below the folder or bucket of all outputs are read.
        id_digest: Digest of the id, from `purged.id_digest`.
    """
    for receipt in _receipts(access):
        if id_digest in receipt.record.ids:
            return receipt.erasure
    return None


def erasure_of_line(
    access: FileAccess, corpora: tuple[str, ...], file: str, line: int
) -> Erasure | None:
    """Return the purge that erased the document in a line of raw text, or None if none did.

    A purge erases documents for good, for example at the request of their author. Its receipt lists
    the file and line of each, so that a question about this line can be answered: it was erased.

    Args:
        access: How files below the folder or bucket of all outputs are read.
        corpora: Names of the corpora (folders of raw text) to which the file may belong.
        file: The file, relative to the corpus's folder, such as `2026/a.jsonl`.
        line: Number of the line, from 1.
    """
    for receipt in _receipts(access):
        for document in receipt.record.documents:
            is_same_line = document.file == file and document.line == line
            if is_same_line and document.corpus in corpora:
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
    """Return the error for a version of an output that does not exist.

    If a purge has erased it (a command that erases documents, and all outputs that contain them),
    the error says so, for example "this version was erased by the purge of 2026-03-01". Otherwise
    it is as the caller says.

    Args:
        access: How files below the folder or bucket of all outputs are read.
        path: Stage, name and digest of the version, such as ("datasets", "web", "91fe02...").
        what: What is wrong, if no purge erased the version.
        found: As in `NanosetError`, if no purge erased the version.
        expected: The same.
        remedy: The same.

    Returns:
        The error, which the caller raises.
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
    """Yield the receipts of all purges, ordered by file name, also of purges that were interrupted.

    A purge erases documents for good. Its receipt is a JSON file that lists what it erased.

    Args:
        access: How files below the folder or bucket of all outputs are read.
    """
    folder: Path = access.folder / RECEIPTS
    for name in sorted(access.names(folder)):
        if not name.endswith(".json"):
            continue
        try:
            record = load(PurgeRecord, access.read_current(folder / name), where=folder / name)
        except (OSError, FormatError):
            # Somebody may have edited it; an answer about another erasure must not fail for that.
            continue
        yield _Receipt(Erasure(record.day, access.url(folder / name)), record)
