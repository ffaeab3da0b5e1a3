"""What a file's first bytes look like, where its name promises something else."""

from __future__ import annotations

import re

from nanoset_core.raw.endings import is_json

HEAD_BYTES = 4096
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
    (re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*\{"), "one JSON array"),
    (re.compile(rb"(\xef\xbb\xbf)?\s*\{[ \t\r]*\n\s*\""), "JSON that is spread over lines"),
)
_NOT_TEXT = re.compile(rb"[\0-\x08\x0e-\x1f\x7f]")
_AN_OBJECT_A_LINE = "JSON lines are expected, one object a line (if it is no text of the corpus, move it elsewhere)"


def looks_like(head: bytes, expected: bytes) -> str | None:
    """What a file is that begins with these bytes, and what to do about it.

    Args:
        head: the first bytes, as stored.
        expected: what the file begins with where it is what its name says.

    Returns:
        None where it begins so, or where nobody can tell.
    """
    if head.startswith(expected):
        return None
    for pattern, kind in _KINDS:
        if pattern.match(head):
            return kind
    if head.strip() and not _NOT_TEXT.search(head) and _is_utf8(head):
        return "plain text, whose name should end in .jsonl if it is JSON lines"
    return None


def no_lines(head: bytes, path: str) -> str | None:
    """What a file whose text begins with these bytes is, if it cannot be JSON lines; None where it may be.

    Only of a file that is named as JSON is one value expected: in others each line is judged alone.
    """
    for pattern, kind in _KINDS:
        if pattern.match(head):
            return kind
    if not is_json(path):
        return None
    return next((f"{kind}: {_AN_OBJECT_A_LINE}" for pattern, kind in _NO_LINES if pattern.match(head)), None)


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # a character that the head cuts
    return True
