r"""Recognize what a file contains by its first bytes.

Files often are not what their names promise: a download returned a web page, an archive was not
unpacked, a gzip file was named .jsonl. Without this module, users would only be told that the JSON
of the first line is invalid. The functions return a description for messages, which also says what
to do: "xz data, which is not read: compress it with gzip, zstd or bzip2".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from nanoset_core.text.files.compressions import CODECS, COMPRESSION_NAMES, without_compression

HEAD_BYTES = 4096
"""How many bytes at the start of a file are examined."""


@dataclass(frozen=True, slots=True)
class ContentKind:
    """A kind of content that can be recognized."""

    pattern: re.Pattern[bytes]
    """Matches the first bytes of such content."""
    description: str
    """What it is, and what to do about it."""


def _kind(description: str, pattern: bytes) -> ContentKind:
    """Return a kind of content that starts with bytes which match a regular expression."""
    return ContentKind(re.compile(pattern, re.DOTALL), description)


def _misnamed(what: str, ending: str, pattern: bytes) -> ContentKind:
    """Return a kind of content that would be read if the name of its file had another ending."""
    return _kind(f"{what}, whose name should end in {ending}", pattern)


def _unread(what: str, remedy: str, pattern: bytes) -> ContentKind:
    """Return a kind of content that is not read, whatever the name of its file."""
    return _kind(f"{what}, which is not read: {remedy}", pattern)


_RECOMPRESS = f"compress it with {COMPRESSION_NAMES}"
_UNPACK = "unpack it"
_RECODE = "convert it to UTF-8"
_EXPORT = "export its text"

_GIT_LFS_POINTER = _kind(
    "a pointer of Git LFS and not the data: fetch it with `git lfs pull`",
    rb"version https://git-lfs\.github\.com/",
)
_COMPRESSED_KINDS = [
    _misnamed(f"{codec.name} data", codec.ending, codec.magic.pattern) for codec in CODECS
]
_KINDS = (
    *_COMPRESSED_KINDS,
    _misnamed("a Parquet file", ".parquet", rb"PAR1"),
    _misnamed(
        "an Arrow file",
        ".arrow",
        rb"ARROW1\0\0"  # the file format
        rb"|\xff\xff\xff\xff[^\0]..\0\x10\0\0\0",  # the stream format
    ),
    _unread("xz data", _RECOMPRESS, rb"\xfd7zXZ\0"),
    _unread("lz4 data", _RECOMPRESS, rb"\x04\x22M\x18"),
    _unread("snappy data", _RECOMPRESS, rb"\xff\x06\0\0sNaPpY"),
    _unread("a zip archive", _UNPACK, rb"PK\x03\x04|PK\x05\x06\0\0"),
    _unread("a 7z or rar archive", _UNPACK, rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07"),
    _unread("a tar archive", _UNPACK, rb"[^\0]{1,100}\0.{156,255}ustar[\0 ]"),
    # The byte order mark of UTF-32 starts with that of UTF-16, so UTF-32 has to be tried first.
    _unread("text in UTF-32", _RECODE, rb"\xff\xfe\0\0|\0\0\xfe\xff"),
    _unread("text in UTF-16", _RECODE, rb"\xff\xfe|\xfe\xff"),
    # The first two characters of JSON are ASCII, so zeros around them reveal the encoding even
    # without a byte order mark (RFC 4627).
    _unread(
        "text in UTF-32 without a byte order mark",
        _RECODE,
        rb"(\s\0{3})*[{\[]\0{3}[\s{}\[\]\"]\0{3}"  # little-endian
        rb"|(\0{3}\s)*\0{3}[{\[]\0{3}[\s{}\[\]\"]",  # big-endian
    ),
    _unread(
        "text in UTF-16 without a byte order mark",
        _RECODE,
        rb"(\s\0)*[{\[]\0[\s{}\[\]\"]\0"  # little-endian
        rb"|(\0\s)*\0[{\[]\0[\s{}\[\]\"]",  # big-endian
    ),
    _GIT_LFS_POINTER,
    _unread("a PDF document", "extract its text", rb"%PDF-\d"),
    _unread("an SQLite database", _EXPORT, rb"SQLite format 3\0"),
    _unread("an HDF5 file", _EXPORT, rb"\x89HDF\r\n\x1a\n"),
    _unread("a NumPy array", _EXPORT, rb"\x93NUMPY"),
    _unread("a Python pickle", _EXPORT, rb"\x80[\x02-\x05](\x95|[}\](cX])"),
    _unread("an Avro file", "convert it to Parquet", rb"Obj\x01"),
    _kind("the index of a tokenized dataset, which is not read as text", rb"MMIDIDX\0\0"),
    _kind("an image, which is not read", rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a"),
)
"""Kinds that are certain: no JSON lines start with such bytes. The first match counts."""

_UTF_16 = _unread(
    "text in UTF-16 without a byte order mark",
    _RECODE,
    rb"([^\0]\0){8}|(\0[^\0]){8}",  # ASCII characters: every second byte is zero
)
_WEB_PAGE = _kind(
    "an HTML page, which servers send in place of a file: download it again",
    rb"(\xef\xbb\xbf)?\s*<(?i:!doctype html|html)\b",
)
_XML = _kind("an XML document, not JSON lines", rb"(\xef\xbb\xbf)?\s*<\?xml\b")
_ONE_JSON_VALUE = (
    _kind(
        "one JSON array, not JSON lines: write one object a line, as `jq -c '.[]'` does",
        rb"(\xef\xbb\xbf)?\s*\[\s*\{",
    ),
    _kind(
        "one JSON document over many lines, not JSON lines: write each on one line, as `jq -c .` "
        "does",
        rb"(\xef\xbb\xbf)?\s*\{[ \t\r]*\n\s*\"",
    ),
)

_JSON_START = re.compile(rb"^\s*[{\[]", re.MULTILINE)
_CARRIAGE_RETURN_IN_TEXT = re.compile(rb"\r\s*[^\r\n\s]")
_RECORD_SEPARATOR = re.compile(rb"\x1e\s*\{")
_CONTROL_CHARACTER = re.compile(rb"[\0-\x08\x0e-\x1f\x7f]")
_MAX_CONTROL_FRACTION = 0.1
"""Data with a larger fraction of control characters is not text in any encoding that is read."""


def describe_mismatch(
    head: bytes, magic: re.Pattern[bytes], *, may_be_lines: bool = True
) -> str | None:
    r"""Describe what a file contains, if it is not in the format that its name promises.

    For example, a server may have sent a web page in place of `a.jsonl.gz`. Then the user needs to
    know more than that gzip cannot read the file. With the `magic` of gzip:

        head                   result
        b"\x1f\x8b\x08…"       None: it is gzip
        b"<!doctype html>…"    "an HTML page, which servers send in place of a file: …"
        b'{"text": "a"}\n'     "plain text, whose name should end in .jsonl if it is JSON lines"
        b"\x00\x01\x02…"       None: it is not gzip, but nothing else that is known

    Args:
        head: The first bytes of the file, as stored.
        magic: Matches the bytes with which every file of the promised format starts.
        may_be_lines: Whether the file, if it is plain text, may be JSON lines with a wrong name.

    Returns:
        What the file contains, and what to do about it. None if the file starts as promised, or if
        its content is not recognized.
    """
    if magic.match(head):
        return None
    description = _first_match((*_KINDS, _WEB_PAGE), head)
    if description is not None:
        return description

    is_blank = not head.strip()
    if is_blank or _CONTROL_CHARACTER.search(head):
        return None
    if not may_be_lines:
        return "plain text, whose name should not end as that of compressed text"
    return "plain text, whose name should end in .jsonl if it is JSON lines"


def describe_unreadable_content(head: bytes, path: str) -> str | None:
    """Describe a file that certainly contains no JSON lines, before its lines are read.

    For example, a file `a.jsonl` that starts as a Parquet file does is one with a wrong name. A
    file that is one JSON array over many lines is only described if its name ends in .json: in any
    other file, each line is read, and rejected alone.

    Args:
        head: The first bytes of the file, decompressed.
        path: Path or name of the file.

    Returns:
        What the file contains, and what to do about it; None if it may contain JSON lines.
    """
    description = _first_match(_KINDS, head)
    if description is not None:
        return description
    if without_compression(path).endswith(".json"):
        return _first_match(_ONE_JSON_VALUE, head)
    return None


def describe_other_than_text(head: bytes) -> str | None:
    r"""Describe a file that is named .txt or .csv but certainly contains something else.

    Such a file would be read as text, and a model would be trained on it. If this function
    describes it, the file is refused instead. If it may be text, the result is None:

        head                              result
        b"Hello"                          None
        b"PAR1\x15\x04…"                  "a Parquet file, whose name should end in .parquet"
        b"version https://git-lfs.…"      "a pointer of Git LFS and not the data: …"

    Args:
        head: The first bytes of the file, decompressed.

    Returns:
        What the file contains, and what to do about it; None if it may be text.
    """
    # Some binary formats start with characters that a text may start with, too, such as PAR1. But
    # files of these formats have control characters near their start.
    is_binary = _CONTROL_CHARACTER.search(head) is not None or b"\xff" in head
    if is_binary:
        return _first_match((*_KINDS, _UTF_16), head)
    # A pointer of Git LFS is text, but never a text to train on.
    return _first_match((_GIT_LFS_POINTER,), head)


def describe_content(head: bytes) -> str | None:
    r"""Describe a file whose first lines are no JSON documents, so that its user can see why.

    Without this, the user would only learn that the first line is not valid JSON. These lines have
    already been rejected, so a wrong description does little harm: it may be a guess. For example:

        head                        result
        b"%PDF-1.7…"                "a PDF document, which is not read: extract its text"
        b'[{"text": "a"}, …'        "one JSON array, not JSON lines: …"
        b"id,text\n1,Hello\n…"      "plain text or a table such as CSV, not JSON lines: …"

    Args:
        head: The first bytes of the file, decompressed.

    Returns:
        What the file seems to contain, and what to do about it; None if there is no good guess.
    """
    if not head:
        return None
    description = _first_match((*_KINDS, _WEB_PAGE, _XML), head)
    if description is not None:
        return description

    # The order matters: each guess is only right for files that none before it describes.
    guesses = (
        _describe_one_json_value,
        _describe_unusual_line_ends,
        _describe_no_json,
        _describe_several_values,
    )
    for describe in guesses:
        description = describe(head)
        if description is not None:
            return description
    return None


def _describe_one_json_value(head: bytes) -> str | None:
    """Describe a file that seems to be one JSON value over many lines; return None for others."""
    # If the first line is complete JSON, and others follow, the file has one value a line. These
    # may be arrays such as [{"text": …}], which look like the start of one large array.
    first_line, _, other_lines = head.partition(b"\n")
    if other_lines.strip() and _is_json(first_line):
        return None
    return _first_match(_ONE_JSON_VALUE, head)


def _describe_unusual_line_ends(head: bytes) -> str | None:
    """Describe a file whose records are not separated by line feeds; return None for others."""
    if b"\n" not in head and _CARRIAGE_RETURN_IN_TEXT.search(head):
        return (
            "text whose lines end with carriage returns alone: convert it, as `tr '\\r' '\\n'` does"
        )
    if _RECORD_SEPARATOR.match(head):
        return "a JSON text sequence, with record separators: remove them, as `tr -d '\\036'` does"
    return None


def _describe_no_json(head: bytes) -> str | None:
    r"""Describe a file in which no line starts as JSON does.

        head                        result
        line ends alone             "nothing but white space at its beginning: …"
        zero bytes alone            "nothing but zero bytes at its beginning: …"
        many control characters     "binary data, not text"
        b"id,text\n1,Hello\n…"      "plain text or a table such as CSV, not JSON lines: …"

    Args:
        head: The first bytes of the file, decompressed.

    Returns:
        The description; None if some line starts with "{" or "[", as JSON does.
    """
    if not head.strip():
        return "nothing but white space at its beginning: fetch or write it again"
    if not head.strip(b"\0"):
        return "nothing but zero bytes at its beginning: fetch or write it again"
    if len(_CONTROL_CHARACTER.findall(head)) > _MAX_CONTROL_FRACTION * len(head):
        return "binary data, not text"
    if not _JSON_START.search(head):
        return (
            "plain text or a table such as CSV, not JSON lines: write each text as a JSON object "
            "on one line"
        )
    return None


def _describe_several_values(head: bytes) -> str | None:
    """Describe a file whose first line has several JSON objects, not one.

        first line                        result
        {"text": "a"}{"text": "b"}        "JSON objects without line ends between them: …"
        {"text": "a"}, {"text": "b"}      "JSON objects with commas between them, …"
        {"text": "a"}                     None

    Args:
        head: The first bytes of the file, decompressed.

    Returns:
        What is wrong and what to do; None if the first line has one JSON value, or is not JSON.
    """
    first_line = head.partition(b"\n")[0]
    text = first_line.decode(errors="replace").lstrip("\ufeff \t")  # without a byte order mark
    try:
        _, stop = json.JSONDecoder().raw_decode(text)  # the end of the first value
    except (ValueError, RecursionError):
        return None
    rest = text[stop:].lstrip()
    if rest.startswith("{"):
        return "JSON objects without line ends between them: write one a line, as `jq -c .` does"
    if rest.startswith(","):
        return (
            "JSON objects with commas between them, not JSON lines: write one a line, without "
            "commas"
        )
    return None


def _is_json(line: bytes) -> bool:
    """Return whether a line is a complete JSON value."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _first_match(kinds: Iterable[ContentKind], head: bytes) -> str | None:
    """Return the description of the first kind of file whose pattern the bytes match.

    Args:
        kinds: The kinds to try, in this order. Each has a pattern of its first bytes, such as
            `PAR1` for Parquet, and a description for users.
        head: The first bytes of a file.

    Returns:
        The description; None if the bytes match no pattern.
    """
    for kind in kinds:
        if kind.pattern.match(head):
            return kind.description
    return None
