"""Tell by the name of a file which format it has, and whether it is text at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from typing import Literal

from nanoset_core.text.files.compressions import COMPRESSED, COMPRESSED_LISTED

Format = Literal["lines", "parquet", "arrow", "txt", "csv"]
CsvValues = Literal["text", "json"]
"""What the values of a CSV file are: texts, or the numbers, booleans and nulls that they are in
JSON.
"""
LINES = (".jsonl", ".json", ".ndjson")
PARQUET = ".parquet"
ARROW = ".arrow"
TXT = (".txt",)
TSV = ".tsv"
CSV = (".csv", TSV)


def with_compressions(endings: Iterable[str]) -> list[str]:
    """Return endings, each alone and with each compression that is read."""
    return [plain + compression for plain, compression in product(endings, ("", *COMPRESSED))]


_LINE_ENDINGS = with_compressions(LINES)
_TXT_ENDINGS = with_compressions(TXT)
_CSV_ENDINGS = with_compressions(CSV)
_ENDINGS_OF_ANY_FOLDER = (*_LINE_ENDINGS, PARQUET, ARROW)
_ENDINGS_READ_ALONE = (*_TXT_ENDINGS, *_CSV_ENDINGS)
FORMATS: dict[str, Format] = {
    **dict.fromkeys(_LINE_ENDINGS, "lines"),
    PARQUET: "parquet",
    ARROW: "arrow",
    **dict.fromkeys(_TXT_ENDINGS, "txt"),
    **dict.fromkeys(_CSV_ENDINGS, "csv"),
}
"""Format by the ending of a file's name, in small or capital letters. Files with other endings are
not read.
"""
ACCEPTED = (
    f"{', '.join([*LINES, *TXT, *CSV])} (each also with {COMPRESSED_LISTED}), {PARQUET} or {ARROW}"
)
"""The same endings, for messages."""

_NOT_DOCUMENTS = re.compile(
    # Descriptions of a dataset, such as those of Hugging Face and of `nanoset tokenize`.
    r"(dataset_dict|dataset_infos?|(.*\.)?manifest|metadata|state|croissant|checksums)\.json"
    # Tables that describe the files next to them.
    r"|(metadata|manifest)\.[ct]sv"
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
_UNREAD_COMPRESSED = (".xz", ".zip", ".lz4", ".br")
_COMPRESSION = "|".join(map(re.escape, (*COMPRESSED, *_UNREAD_COMPRESSED)))
_LAST_ENDING = re.compile(rf"(\.[^.]*)?({_COMPRESSION})$|\.[^.]+$")
"""The ending of a name, with the ending before it if the file is compressed."""


def suffix_of(path: str) -> str | None:
    """Return the ending by which the format of a file is known, in small letters.

        web/A.JSONL.GZ     .jsonl.gz    (JSON lines, compressed by gzip)
        web/b.parquet      .parquet
        web/c.pdf          None

    Args:
        path: Path or name of the file.

    Returns:
        The ending, which is a key of FORMATS; None if files with the ending of this one are not
        read.
    """
    name = path.lower()
    for suffix in FORMATS:
        if name.endswith(suffix):
            return suffix
    return None


def format_of(path: str) -> Format:
    """Return the format in which a file stores its texts, by the ending of its name.

        web/a.jsonl.gz     lines      (JSON lines: one object a line)
        web/b.parquet      parquet
        web/c.arrow        arrow
        web/d.txt          txt        (the whole file is one text)
        web/e.tsv          csv
        web/f.data         lines      (a file with another ending is only read if the user names it)

    Args:
        path: Path or name of the file.
    """
    suffix = suffix_of(path)
    if suffix is None:
        return "lines"
    return FORMATS[suffix]


def is_text(path: str) -> bool:
    """Return whether a file probably has texts to train on, by its name.

        a.jsonl, a.jsonl.gz, a.parquet, a.arrow    True
        dataset_info.json, metadata.json           False: they describe the files next to them
        a.txt, a.csv                               False: often lists of URLs, for example

    (.txt and .csv are read, too, if a folder has no file for which this function returns True.)

    Args:
        path: Path or name of the file.
    """
    has_ending = path.lower().endswith(_ENDINGS_OF_ANY_FOLDER)
    return has_ending and not _NOT_DOCUMENTS.fullmatch(_name_of(path))


def is_txt_or_csv(path: str) -> bool:
    """Return whether a file is read if its corpus has no file for which `is_text` is true.

    These are .txt, .csv and .tsv. Next to JSON lines and tables, such files are usually not text to
    train on: older versions never read them, and nobody removed lists of URLs, for example.

    Args:
        path: Path or name of the file.
    """
    return path.lower().endswith(_ENDINGS_READ_ALONE) and not is_companion(path)


def is_table(path: str) -> bool:
    """Return whether a file is a table in one of Arrow's formats, which is not read as a stream.

    Args:
        path: Path or name of the file.
    """
    return format_of(path) in ("parquet", "arrow")


def is_compressed(path: str) -> bool:
    """Return whether a file is compressed as a whole, by its name.

    Args:
        path: Path or name of the file: True for `a.jsonl.gz` and `a.jsonl.zst`, for example.
    """
    return path.lower().endswith(COMPRESSED)


def is_cuttable(path: str) -> bool:
    """Return whether a file can be cut into pieces at line ends: only uncompressed lines can.

    A line end of a CSV file may be part of a text, and a .txt file is one document.

    Args:
        path: Path or name of the file.
    """
    return format_of(path) == "lines" and not is_compressed(path)


def is_companion(path: str) -> bool:
    """Return whether a file that is not read is one that often accompanies data, like README.md.

    Users need no warning about such files.

    Args:
        path: Path or name of the file.
    """
    name = _name_of(path)
    return any(pattern.fullmatch(name) for pattern in (_NOT_DOCUMENTS, _COMPANION))


def is_unfinished(path: str) -> bool:
    """Return whether a file is still being uploaded or downloaded, by its name.

    Args:
        path: Path or name of the file: True for `a.jsonl.part`.
    """
    return path.lower().endswith(_UNFINISHED)


def is_text_of_other_compression(path: str) -> bool:
    """Return whether a file is text by its name, but compressed in a way that is not read.

        a.jsonl.xz, a.txt.zip     True
        a.jsonl.gz                False: it is read
        a.tar.xz                  False: no text

    Args:
        path: Path or name of the file.
    """
    stem, dot, compression = path.rpartition(".")
    is_compressed = f"{dot}{compression.lower()}" in _UNREAD_COMPRESSED
    return is_compressed and (is_text(stem) or is_txt_or_csv(stem))


def ending_of(path: str) -> str:
    """Return the ending of a file that is not read, for messages that count such files.

    Args:
        path: Path or name of the file.

    Returns:
        The ending in small letters, such as `.pdf` or `.jsonl.xz`; `no ending` if there is none.
    """
    match = _LAST_ENDING.search(_name_of(path).lower())
    return match[0] if match else "no ending"


def _name_of(path: str) -> str:
    """Return the last part of a path in a corpus's folder."""
    return path.rpartition("/")[2]
