"""What a file's name and first bytes say of it: its format, or what else it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

Format = Literal["lines", "parquet", "arrow"]
LINES = (".jsonl", ".json", ".ndjson")
COMPRESSED = (".gz", ".zst")
PARQUET = ".parquet"
ARROW = ".arrow"
FORMATS: dict[str, Format] = {
    **{plain + packed: "lines" for plain in LINES for packed in ("", *COMPRESSED)},
    PARQUET: "parquet",
    ARROW: "arrow",
}
"""Format by the ending of a file's name, in small or capital letters. Other files are not read."""
ACCEPTED = f"{', '.join(LINES)} (each also with {' or '.join(COMPRESSED)}), {PARQUET} or {ARROW}"
"""The same, for messages."""

HEAD_BYTES = 4096
_NO_DATA = re.compile(
    r"(dataset_dict|dataset_infos?|(.*\.)?manifest|metadata|state|croissant|checksums)\.json|cache-[0-9a-f]{16}(_\d{5}_of_\d{5})?\.arrow",
    re.IGNORECASE,
)
"""What tools write beside a dataset's files to describe them, x.manifest.json too, as `nanoset tokenize` does; and what
Hugging Face `datasets` leaves there: the outcome of a map, filter or shuffle, and so the same documents again."""
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload")
_COMPANION = re.compile(
    r"(readme|licen[cs]e|notice|citation|changelog|checksums|md5sums?|sha\d+sums?)(\.\w+)?"
    r"|_[a-z]+(_\d+)?"  # _SUCCESS, _committed_17, _metadata
    r"|.*\.(md|crc|md5|sha\d+|sig|asc|lock|bin|idx|pbin)",
    re.IGNORECASE,
)
_KINDS = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip data, whose name should end in .gz"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd data, whose name should end in .zst"),
    (re.compile(rb"PAR1"), "a Parquet file, whose name should end in .parquet"),
    (re.compile(rb"ARROW1\0\0"), "an Arrow file, whose name should end in .arrow"),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), "bzip2 data, which is not read: compress it with gzip or zstd"),
    (re.compile(rb"\xfd7zXZ\0"), "xz data, which is not read: compress it with gzip or zstd"),
    (re.compile(rb"PK\x03\x04"), "a zip archive, which is not read: unpack it"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "text in UTF-16, which is not read: convert it to UTF-8"),
)
_NO_LINES = (
    (re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*\{"), "one JSON array, not JSON lines"),
    (re.compile(rb"(\xef\xbb\xbf)?\s*\{[ \t\r]*\n\s*\""), "one JSON document over many lines, not JSON lines"),
)
_NOT_TEXT = re.compile(rb"[\0-\x08\x0e-\x1f\x7f]")


def suffix_of(path: str) -> str | None:
    """Return the one of FORMATS that a file's name ends in; None where it has another ending."""
    return next((suffix for suffix in FORMATS if path.lower().endswith(suffix)), None)


def format_of(path: str) -> Format:
    """Return the format of a file by its name; a file of another ending that is given as input has lines."""
    return FORMATS.get(suffix_of(path) or "", "lines")


def is_text(path: str) -> bool:
    """Return whether a file of a folder is read, judged by its name: descriptions such as dataset_info.json are not."""
    return suffix_of(path) is not None and not _NO_DATA.fullmatch(path.rpartition("/")[2])


def is_table(path: str) -> bool:
    """Return whether a file is read as rows of a table, not as lines."""
    return format_of(path) != "lines"


def is_cuttable(path: str) -> bool:
    """Return whether a file can be cut into pieces at line ends, which takes plain lines."""
    return not is_table(path) and not path.lower().endswith(COMPRESSED)


def is_companion(path: str) -> bool:
    """Return whether a file that is not read is one of those that lie beside data and hold none, such as README.md."""
    name = path.rpartition("/")[2]
    return any(pattern.fullmatch(name) for pattern in (_NO_DATA, _COMPANION))


def is_unfinished(path: str) -> bool:
    """Return whether a file is still being uploaded, judged by its name."""
    return path.lower().endswith(_UNFINISHED)


def ending_of(path: str) -> str:
    """Return the ending of a file that is not read: `.txt`, `.jsonl.bz2`; `no ending` where there is none."""
    name = path.rpartition("/")[2].lower()
    found = re.search(r"(\.[^.]*)?\.(gz|zst|bz2|xz|zip|lz4|br)$|\.[^.]+$", name)
    return found[0] if found else "no ending"


def looks_like(head: bytes, expected: bytes) -> str | None:
    """Return what a file is that begins with these stored bytes, and what to do about it.

    None where it begins with `expected`, as its name says, or where that cannot be told.
    """
    if head.startswith(expected):
        return None
    kind = _first_match(_KINDS, head)
    if kind is None and head.strip() and not _NOT_TEXT.search(head):
        kind = "plain text, whose name should end in .jsonl if it is JSON lines"
    return kind


def no_lines(head: bytes, path: str) -> str | None:
    """Return what a file whose text begins with these bytes is, if it cannot be JSON lines; None where it may be.

    Only a file named .json is refused as one JSON value: in others each line is judged alone.
    """
    kind = _first_match(_KINDS, head)
    if kind is None and path.lower().endswith((".json", ".json.gz", ".json.zst")):
        kind = _first_match(_NO_LINES, head)
    return kind


def _first_match(kinds: Iterable[tuple[re.Pattern[bytes], str]], head: bytes) -> str | None:
    return next((kind for pattern, kind in kinds if pattern.match(head)), None)
