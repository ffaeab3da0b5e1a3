"""Tell by the name of a file which format it has, and whether it is text at all."""

from __future__ import annotations

import re
from itertools import product
from typing import Literal

Format = Literal["lines", "parquet", "arrow"]
LINES = (".jsonl", ".json", ".ndjson")
COMPRESSED = (".gz", ".zst")
PARQUET = ".parquet"
ARROW = ".arrow"
_LINE_ENDINGS = [plain + compression for plain, compression in product(LINES, ("", *COMPRESSED))]
FORMATS: dict[str, Format] = {
    **dict.fromkeys(_LINE_ENDINGS, "lines"),
    PARQUET: "parquet",
    ARROW: "arrow",
}
"""Format by the ending of a file's name, in small or capital letters. Files with other endings are
not read.
"""
ACCEPTED = f"{', '.join(LINES)} (each also with {' or '.join(COMPRESSED)}), {PARQUET} or {ARROW}"
"""The same endings, for messages."""

_NOT_DOCUMENTS = re.compile(
    # Descriptions of a dataset, such as those of Hugging Face and of `nanoset tokenize`.
    r"(dataset_dict|dataset_infos?|(.*\.)?manifest|metadata|state|croissant|checksums)\.json"
    # Results of a map, filter or shuffle of Hugging Face `datasets`: the same documents again.
    r"|cache-[0-9a-f]{16}(_\d{5}_of_\d{5})?\.arrow",
    re.IGNORECASE,
)
"""Names of files with the ending of a format that describe or repeat the files next to them."""
_COMPANION = re.compile(
    r"(readme|licen[cs]e|notice|citation|changelog|checksums|md5sums?|sha\d+sums?)(\.\w+)?"
    r"|_[a-z]+(_\d+)?"  # _SUCCESS, _committed_17, _metadata
    r"|.*\.(md|crc|md5|sha\d+|sig|asc|lock|bin|idx|pbin)",
    re.IGNORECASE,
)
"""Names of files that are often stored next to data and contain none."""
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload")
"""Endings that programs append to the name of a file while they write it."""
_LAST_ENDING = re.compile(r"(\.[^.]*)?\.(gz|zst|bz2|xz|zip|lz4|br)$|\.[^.]+$")
"""The ending of a name, with the ending before it if the file is compressed."""


def suffix_of(path: str) -> str | None:
    """Return the ending of a file's name if it is one of FORMATS, otherwise None."""
    name = path.lower()
    for suffix in FORMATS:
        if name.endswith(suffix):
            return suffix
    return None


def format_of(path: str) -> Format:
    """Return the format of a file by its name.

    A file with any other ending has lines: users can name such a file as an input.
    """
    suffix = suffix_of(path)
    if suffix is None:
        return "lines"
    return FORMATS[suffix]


def is_text(path: str) -> bool:
    """Return whether a file of a corpus's folder is read, by its name.

    Descriptions of a dataset, such as dataset_info.json, are not.
    """
    return suffix_of(path) is not None and not _NOT_DOCUMENTS.fullmatch(_name_of(path))


def is_table(path: str) -> bool:
    """Return whether a file is read as rows of a table, not as lines."""
    return format_of(path) != "lines"


def is_cuttable(path: str) -> bool:
    """Return whether a file can be cut into pieces at line ends: only uncompressed lines can."""
    return not is_table(path) and not path.lower().endswith(COMPRESSED)


def is_companion(path: str) -> bool:
    """Return whether a file that is not read is one that often accompanies data, like README.md.

    Users need no warning about such files.
    """
    name = _name_of(path)
    return any(pattern.fullmatch(name) for pattern in (_NOT_DOCUMENTS, _COMPANION))


def is_unfinished(path: str) -> bool:
    """Return whether a file is still being uploaded or downloaded, by its name."""
    return path.lower().endswith(_UNFINISHED)


def ending_of(path: str) -> str:
    """Return the ending of a file that is not read, such as `.txt`, `.jsonl.bz2` or `no ending`."""
    match = _LAST_ENDING.search(_name_of(path).lower())
    return match[0] if match else "no ending"


def _name_of(path: str) -> str:
    """Return the last part of a path in a corpus's folder."""
    return path.rpartition("/")[2]
