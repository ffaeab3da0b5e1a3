"""What a file's name and first bytes say of it: its format, or what else it is."""

from __future__ import annotations

import json
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
"""What tools write beside a dataset's files to describe them, x.manifest.json too, as `nanoset
tokenize` does; and what Hugging Face `datasets` leaves there: the outcome of a map, filter or
shuffle, and so the same documents again."""
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
    (
        re.compile(rb"ARROW1\0\0|\xff\xff\xff\xff[^\0]..\0\x10\0\0\0", re.DOTALL),
        "an Arrow file, whose name should end in .arrow",
    ),
    (
        re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        "bzip2 data, which is not read: compress it with gzip or zstd",
    ),
    (re.compile(rb"\xfd7zXZ\0"), "xz data, which is not read: compress it with gzip or zstd"),
    (re.compile(rb"\x04\x22M\x18"), "lz4 data, which is not read: compress it with gzip or zstd"),
    (
        re.compile(rb"\xff\x06\0\0sNaPpY"),
        "snappy data, which is not read: compress it with gzip or zstd",
    ),
    (re.compile(rb"PK\x03\x04|PK\x05\x06\0\0"), "a zip archive, which is not read: unpack it"),
    (
        re.compile(rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07"),
        "a 7z or rar archive, which is not read: unpack it",
    ),
    (
        re.compile(rb"[^\0]{1,100}\0.{156,255}ustar[\0 ]", re.DOTALL),
        "a tar archive, which is not read: unpack it",
    ),
    # The byte order mark of UTF-16 is the beginning of that of UTF-32.
    (
        re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff"),
        "text in UTF-32, which is not read: convert it to UTF-8",
    ),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "text in UTF-16, which is not read: convert it to UTF-8"),
    # JSON begins with two characters of ASCII, so that its encoding can be told without a mark, too
    # (RFC 4627).
    (
        re.compile(rb"(\s\0{3})*[{\[]\0{3}[\s{}\[\]\"]\0{3}|(\0{3}\s)*\0{3}[{\[]\0{3}[\s{}\[\]\"]"),
        "text in UTF-32 without a byte order mark, which is not read: convert it to UTF-8",
    ),
    (
        re.compile(rb"(\s\0)*[{\[]\0[\s{}\[\]\"]\0|(\0\s)*\0[{\[]\0[\s{}\[\]\"]"),
        "text in UTF-16 without a byte order mark, which is not read: convert it to UTF-8",
    ),
    (
        re.compile(rb"version https://git-lfs\.github\.com/"),
        "a pointer of Git LFS and not the data: fetch it with `git lfs pull`",
    ),
    (re.compile(rb"%PDF-\d"), "a PDF document, which is not read: extract its text"),
    (re.compile(rb"SQLite format 3\0"), "an SQLite database, which is not read: export its text"),
    (re.compile(rb"\x89HDF\r\n\x1a\n"), "an HDF5 file, which is not read: export its text"),
    (re.compile(rb"\x93NUMPY"), "a NumPy array, which is not read: export its text"),
    (
        re.compile(rb"\x80[\x02-\x05](\x95|[}\](cX])"),
        "a Python pickle, which is not read: export its text",
    ),
    (re.compile(rb"Obj\x01"), "an Avro file, which is not read: convert it to Parquet"),
    (re.compile(rb"MMIDIDX\0\0"), "the index of a tokenized dataset, which is not read as text"),
    (re.compile(rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a"), "an image, which is not read"),
)
"""What a file is that begins so, for certain: no JSON lines begin so."""
_WEB_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html)\b", re.IGNORECASE)
_A_WEB_PAGE = "an HTML page, which servers send in place of a file: download it again"
_ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*\{")
_ONE_ARRAY = "one JSON array, not JSON lines: write one object a line, as `jq -c '.[]'` does"
_NO_LINES = (
    (_ARRAY, _ONE_ARRAY),
    (
        re.compile(rb"(\xef\xbb\xbf)?\s*\{[ \t\r]*\n\s*\""),
        "one JSON document over many lines, not JSON lines: write each on one line, as `jq -c .` does",
    ),
)
_XML = re.compile(rb"(\xef\xbb\xbf)?\s*<\?xml\b")
_RECORD_SEPARATOR = re.compile(rb"\x1e\s*\{")
_CARRIAGE_RETURN_IN_TEXT = re.compile(rb"\r\s*[^\r\n\s]")
_BEGINS_JSON = re.compile(rb"^\s*[{\[]", re.MULTILINE)
_MOST_CONTROL = 0.1
"""Share of control characters above which data is no text in any encoding that is read."""
_NOT_TEXT = re.compile(rb"[\0-\x08\x0e-\x1f\x7f]")


def suffix_of(path: str) -> str | None:
    """Return the one of FORMATS that a file's name ends in; None where it has another ending."""
    return next((suffix for suffix in FORMATS if path.lower().endswith(suffix)), None)


def format_of(path: str) -> Format:
    """Return the format of a file by its name; a file of another ending that is given as input has
    lines.
    """
    return FORMATS.get(suffix_of(path) or "", "lines")


def is_text(path: str) -> bool:
    """Return whether a file of a folder is read, judged by its name: descriptions such as
    dataset_info.json are not.
    """
    return suffix_of(path) is not None and not _NO_DATA.fullmatch(path.rpartition("/")[2])


def is_table(path: str) -> bool:
    """Return whether a file is read as rows of a table, not as lines."""
    return format_of(path) != "lines"


def is_cuttable(path: str) -> bool:
    """Return whether a file can be cut into pieces at line ends, which takes plain lines."""
    return not is_table(path) and not path.lower().endswith(COMPRESSED)


def is_companion(path: str) -> bool:
    """Return whether a file that is not read is one of those that lie beside data and hold none,
    such as README.md.
    """
    name = path.rpartition("/")[2]
    return any(pattern.fullmatch(name) for pattern in (_NO_DATA, _COMPANION))


def is_unfinished(path: str) -> bool:
    """Return whether a file is still being uploaded, judged by its name."""
    return path.lower().endswith(_UNFINISHED)


def ending_of(path: str) -> str:
    """Return the ending of a file that is not read: `.txt`, `.jsonl.bz2`; `no ending` where there
    is none.
    """
    name = path.rpartition("/")[2].lower()
    found = re.search(r"(\.[^.]*)?\.(gz|zst|bz2|xz|zip|lz4|br)$|\.[^.]+$", name)
    return found[0] if found else "no ending"


def looks_like(head: bytes, expected: bytes) -> str | None:
    """Return what a file is that begins with these stored bytes, and what to do about it.

    None where it begins with `expected`, as its name says, or where that cannot be told.
    """
    if head.startswith(expected):
        return None
    kind = _first_match((*_KINDS, (_WEB_PAGE, _A_WEB_PAGE)), head)
    if kind is None and head.strip() and not _NOT_TEXT.search(head):
        kind = "plain text, whose name should end in .jsonl if it is JSON lines"
    return kind


def no_lines(head: bytes, path: str) -> str | None:
    """Return what a file whose text begins with these bytes is, if it cannot be JSON lines; None
    where it may be.

    Only a file named .json is refused as one JSON value: in others each line is judged alone.
    """
    kind = _first_match(_KINDS, head)
    if kind is None and path.lower().endswith((".json", ".json.gz", ".json.zst")):
        kind = _first_match(_NO_LINES, head)
    return kind


def describe_content(head: bytes) -> str | None:
    """Return what a file is whose lines are no documents, and what to do about it; None if that
    cannot be told.

    Unlike `no_lines`, this guesses: it is for messages on files whose lines were already found to
    be no documents.

    Args:
        head: the first bytes of the file, decompressed.
    """
    kind = _first_match(
        (*_KINDS, (_WEB_PAGE, _A_WEB_PAGE), (_XML, "an XML document, not JSON lines")), head
    )
    if kind is not None:
        return kind

    # An array that is all of its line may be followed by lines that are documents.
    first_line, line_end, rest = head.partition(b"\n")
    is_one_of_several = bool(line_end) and bool(rest.strip()) and _is_json(first_line)
    kind = None if is_one_of_several else _first_match(_NO_LINES, head)
    if kind is not None:
        return kind

    if not line_end and _CARRIAGE_RETURN_IN_TEXT.search(head):
        return (
            "text whose lines end with carriage returns alone: convert it, as `tr '\\r' '\\n'` does"
        )
    if _RECORD_SEPARATOR.match(head):
        return "a JSON text sequence, with record separators: remove them, as `tr -d '\\036'` does"
    if not head.strip(b"\0"):
        return "nothing but zero bytes at its beginning: fetch or write it again" if head else None
    if len(_NOT_TEXT.findall(head)) > _MOST_CONTROL * len(head):
        return "binary data, not text"
    if not _BEGINS_JSON.search(head):
        return "plain text or a table such as CSV, not JSON lines: write each text as a JSON object on one line"
    return _several_objects(first_line)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _several_objects(line: bytes) -> str | None:
    """Return what is wrong with a line in which more follows the first JSON object; None if nothing
    does.
    """
    text = line.decode(errors="replace").lstrip("\ufeff \t")
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    rest = text[end:].lstrip()
    if rest.startswith("{"):
        return "JSON objects without line ends between them: write one a line, as `jq -c .` does"
    if rest.startswith(","):
        return "JSON objects with commas between them, not JSON lines: write one a line, without commas"
    return None


def _first_match(kinds: Iterable[tuple[re.Pattern[bytes], str]], head: bytes) -> str | None:
    return next((kind for pattern, kind in kinds if pattern.match(head)), None)
