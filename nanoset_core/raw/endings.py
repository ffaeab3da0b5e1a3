"""What a file's name says of it: whether it is read, as lines or as a table, and what others are there for."""

from __future__ import annotations

import re

LINES = (".jsonl", ".json", ".ndjson")
COMPRESSED = (".gz", ".zst")
LINE_SUFFIXES = tuple(plain + packed for plain in LINES for packed in ("", *COMPRESSED))
PARQUET = ".parquet"
ARROW = ".arrow"
SUFFIXES = (*LINE_SUFFIXES, PARQUET, ARROW)
"""Endings of files that are read, in small or capital letters."""
ACCEPTED = f"{', '.join(LINES)} (each also with {' or '.join(COMPRESSED)}), {PARQUET} or {ARROW}"
"""The same, to be read."""

_HUGGING_FACE_CACHE = re.compile(r"cache-[0-9a-f]{16}(_\d{5}_of_\d{5})?\.arrow")
_DESCRIPTION = re.compile(r"(dataset_dict|dataset_infos?|(.*\.)?manifest|metadata|state)\.json", re.IGNORECASE)
"""What tools write beside a dataset's files to describe them; x.manifest.json too, as `nanoset tokenize` does."""
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload")
_COMPANION = re.compile(
    r"(readme|licen[cs]e|notice|citation|changelog|checksums|md5sums?|sha\d+sums?)(\.\w+)?"
    r"|_[a-z]+(_\d+)?"  # _SUCCESS, _committed_17, _metadata
    r"|.*\.(md|crc|md5|sha\d+|sig|asc|lock|bin|idx|pbin)",
    re.IGNORECASE,
)


def suffix_of(path: str) -> str | None:
    """Which of SUFFIXES a file's name ends in, in whatever letters; None where it has another ending."""
    name = path.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def is_text(path: str) -> bool:
    """Whether a file is read, judged by its name.

    Descriptions such as `dataset_info.json` are not. Nor is what Hugging Face `datasets` leaves beside a saved
    dataset's own files: `cache-<fingerprint>.arrow` holds the outcome of a map, filter or shuffle, and so the same
    documents again.
    """
    name = path.rpartition("/")[2]
    return name.lower().endswith(SUFFIXES) and not _is_no_data(name)


def is_json(path: str) -> bool:
    """Whether a file is named as JSON, which may be one value or one a line."""
    return path.lower().endswith(tuple(".json" + packed for packed in ("", *COMPRESSED)))


def is_parquet(path: str) -> bool:
    """Whether a file is read as Parquet."""
    return path.lower().endswith(PARQUET)


def is_table(path: str) -> bool:
    """Whether a file is read as rows of a table, not as lines."""
    return path.lower().endswith((PARQUET, ARROW))


def is_cuttable(path: str) -> bool:
    """Whether a file can be cut into pieces at line ends, which takes plain lines."""
    return not is_table(path) and not path.lower().endswith(COMPRESSED)


def is_companion(path: str) -> bool:
    """Whether a file that is not read is one of those that lie beside data and hold none, such as README.md."""
    name = path.rpartition("/")[2]
    return _is_no_data(name) or _COMPANION.fullmatch(name) is not None


def _is_no_data(name: str) -> bool:
    return bool(_DESCRIPTION.fullmatch(name) or _HUGGING_FACE_CACHE.fullmatch(name))


def is_unfinished(path: str) -> bool:
    """Whether a file is still being uploaded, judged by its name."""
    return path.lower().endswith(_UNFINISHED)


def ending_of(path: str) -> str:
    """What tells files apart that are not read: `.txt`, `.jsonl.bz2`; `no ending` where there is none."""
    name = path.rpartition("/")[2]
    parts = name.lower().split(".")
    packed = len(parts) > 2 and parts[-1] in ("gz", "zst", "bz2", "xz", "zip", "lz4", "br")
    ending = ".".join(parts[-2:] if packed else parts[-1:])
    return f".{ending}" if len(parts) > 1 and ending else "no ending"
