"""Notices on the files of a corpus: facts that are no errors, but may surprise their owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nanoset_core.wording import abbreviated

NoticeKind = Literal[
    "not_read",
    "misnamed",
    "unfinished",
    "empty",
    "unmatched",
    "shrunk",
    "gone",
    "awaited",
    "copies",
    "held_out",
    "left_out",
    "beside",
]


class _Wording(NamedTuple):
    """The words of a notice of one kind; the number of files precedes them."""

    one: str
    """Words of a notice on one file."""
    several: str
    """Words of a notice on several files."""
    remedy: str
    """What to do."""


_NOTHING_TO_DO = "nothing needs to be done"
_RESTORE = "restore what was lost; nothing needs to be done if this was intended"
_WORDINGS: Mapping[NoticeKind, _Wording] = {
    "not_read": _Wording(
        one="file is not read",
        several="files are not read",
        remedy=(
            "convert or rename them to an ending that is read, or move them out of the raw folder"
        ),
    ),
    "misnamed": _Wording(
        one="folder is named like a file of text, and no text is read from it",
        several="folders are named like a file of text, and no text is read from them",
        remedy=(
            "look for the file that should be there, and unpack or fetch it again; "
            "or rename the folder"
        ),
    ),
    "unfinished": _Wording(
        one="file is still being uploaded, judging by its name",
        several="files are still being uploaded, judging by their names",
        remedy="wait until the upload has ended, or remove what is left of it",
    ),
    "empty": _Wording(
        one="file is empty",
        several="files are empty",
        remedy="fill or remove it",
    ),
    "unmatched": _Wording(
        one="pattern of the corpus's files and exclude fits no file",
        several="patterns of the corpus's files and exclude fit no file",
        remedy=(
            "correct or remove it in nanoset.yaml; "
            "a pattern with a slash begins in the corpus's folder"
        ),
    ),
    "shrunk": _Wording(
        one="file is smaller than in the previous version",
        several="files are smaller than in the previous version",
        remedy=_RESTORE,
    ),
    "gone": _Wording(
        one="file of the previous version is missing or was renamed",
        several="files of the previous version are missing or were renamed",
        remedy=_RESTORE,
    ),
    "awaited": _Wording(
        one="file is still being written, and is read once nothing writes to it",
        several="files are still being written, and are read once nothing writes to them",
        remedy=_NOTHING_TO_DO,
    ),
    "copies": _Wording(
        one="file holds the same bytes as another, so that its text is read again",
        several="files hold the same bytes as others, so that their text is read again",
        remedy="remove the copies, or leave them out by `exclude`",
    ),
    "held_out": _Wording(
        one="file is named as validation or test data, in a corpus that may be trained on",
        several="files are named as validation or test data, in a corpus that may be trained on",
        remedy=(
            "make them corpora of their own, for blend_per_split or none; "
            '`files: ["*"]` says that they are meant'
        ),
    ),
    "left_out": _Wording(
        one="file is left out by the corpus's files and exclude",
        several="files are left out by the corpus's files and exclude",
        remedy=_NOTHING_TO_DO,
    ),
    "beside": _Wording(
        one="file accompanies the text and is not read, judging by its name",
        several="files accompany the text and are not read, judging by their names",
        remedy=_NOTHING_TO_DO,
    ),
}


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice on some files of a folder: no error, but their owner may not expect it."""

    kind: NoticeKind
    """A fixed word, which programs can rely on."""
    files: int
    """Number of files that the notice is about."""
    names: str
    """Names of some of these files."""

    @property
    def text(self) -> str:
        """The notice in one line."""
        wording = _WORDINGS[self.kind]
        clause = wording.one if self.files == 1 else wording.several
        return f"{self.files:,} {clause}: {self.names}"

    @property
    def is_expected(self) -> bool:
        """Whether the notice reports only what the settings request, or what is usual."""
        return self.kind in ("left_out", "beside")

    @property
    def remedy(self) -> str:
        """What to do."""
        return _WORDINGS[self.kind].remedy

    def to_json(self) -> dict[str, Any]:
        """Return the notice as plain values, for commands that print JSON.

        Returns:
            `kind`, the number of `files`, and the `text` in one line.
        """
        return {"kind": self.kind, "files": self.files, "text": self.text}


def notices_on(names_by_kind: Mapping[NoticeKind, Sequence[str]]) -> list[Notice]:
    """Return a notice for each thing that is unusual about some files, such as that they are empty.

    For example, {"empty": ["a.jsonl", "b.jsonl"], "gone": []} gives one notice: "2 files are empty:
    a.jsonl, b.jsonl".

    Args:
        names_by_kind: What is unusual → names of the files for which it is so.
    """
    notices = []
    for kind, names in names_by_kind.items():
        if names:
            notices.append(Notice(kind, len(names), abbreviated(names)))
    return notices
