"""Text from outside, made safe for a terminal, a log, a page of the UI, and a line of a shell.

Ids, file names, keys of buckets, headers of servers and messages of libraries are chosen by
strangers. Whatever prints, logs or shows them calls `visible`; what is built into a command calls
`shell_word`.
"""

from __future__ import annotations

import logging
import re
import shlex
from typing import Any

_INVISIBLE = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: they steer a terminal
    # characters without width or ink
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"
    # zero width, line ends, bidirectional marks
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff"  # tags, which spell whole sentences that nobody sees
    # halves of surrogate pairs, by which Python stands for bytes that are not UTF-8
    "\ud800-\udfff"
)
_UNSAFE = re.compile(f"[{_INVISIBLE}]")
_UNSAFE_IN_LINES = re.compile(f"(?![\n\t])[{_INVISIBLE}]")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#|!~&])")

HIDDEN = "…"
"""What is shown in place of a password or token."""
_PASSWORD = re.compile(r"//[^\s/:@]*:(?![0-9]+(?:[^\w@]|$))\S*@")
"""`//user:password@`, to the last @ of the word, since passwords may hold any character;
`//host:80/x@y` is none.
"""
_USER = re.compile(r"(?i)(?<!abfs:)(?<!abfss:)(?<!wasb:)(?<!wasbs:)(?<=:)//[^\s/?#]*@")
"""`//token@`, but not `abfs://container@account`."""
_SECRET_NAME = (
    r"sig|[\w.%-]*signature|[\w.%-]*token|[\w.%-]*secret[\w.%-]*|[\w.%-]*passw(?:or)?d|pwd|[\w.%-]*credentials?"
    r"|(?:[\w.%-]*[_-])?key|(?:api|account|access|shared)key|[\w.%-]*accesskeyid|googleaccessid"
    r"|authorization|auth|jwt|code"
)
_SECRET_PARAMETER = re.compile(rf"(?i)([?&;#](?:{_SECRET_NAME})=)[^\s&;#'\"<>`,)\]}}]+")
"""A parameter of a query that gives access, such as `&X-Amz-Signature=` or `?sig=`."""
_BEARER = re.compile(r"(?i)\b(authorization['\"]?[:=] *['\"]?(?:\w+ +)?|bearer +)[\w.~+/=-]{8,}")


def without_secrets(text: object) -> str:
    """Return a text with the passwords, tokens and signatures of every URL in it replaced by "…".

    Digests and other parameters stay, as does the rest of each address.
    """
    result = str(text)
    if "@" in result:
        result = _PASSWORD.sub(rf"//{HIDDEN}@", result)
        result = _USER.sub(f"//{HIDDEN}@", result)
    result = without_secret_parameters(result)
    if (
        "earer" in result
        or "uthorization" in result
        or "BEARER" in result
        or "AUTHORIZATION" in result
    ):
        result = _BEARER.sub(rf"\g<1>{HIDDEN}", result)
    return result


class Multiline(str):
    """A text of several lines that nanoset composed: its line ends and tabs are shown as such.

    Names and excerpts that are put into it are made `visible` first, since their line ends would
    count as its own.
    """

    __slots__ = ()


def without_secret_parameters(text: str) -> str:
    """Return a text with the values of parameters that give access, such as `?sig=`, replaced by
    "…".
    """
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", text) if "=" in text else text


def visible(text: object) -> str:
    """Return a text in which every character can be seen, without secrets: one line, unless it is
    `Multiline`.

    Characters that steer a terminal, end a line, turn the direction of writing or have no width are
    escaped as in
    Python: `\\x1b`, `\\n`, `\\u202e`.
    """
    result = without_secrets(text)
    if result.isascii() and result.isprintable():
        return result
    unsafe = _UNSAFE_IN_LINES if isinstance(text, Multiline) else _UNSAFE
    return unsafe.sub(_escaped, result)


def visible_value(value: Any) -> Any:
    """Return a plain value, such as one to be printed as JSON, without the secrets in its texts."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {
            without_secrets(key) if isinstance(key, str) else key: visible_value(value[key])
            for key in value
        }
    if isinstance(value, list | tuple):
        return [visible_value(item) for item in value]
    return value


def visible_json(text: str) -> str:
    """Return JSON with every character that cannot be seen as `\\u…`, so that its values stay the
    same.
    """
    return _UNSAFE_IN_LINES.sub(_json_escaped, text)


def markdown_text(text: object) -> str:
    """Return a text that Markdown shows as it is: no link, table, HTML or emphasis begins in it."""
    return _MARKUP.sub(r"\\\1", visible(text))


def shell_word(text: object) -> str:
    """Return a text as one word of a POSIX shell's line, quoted if need be.

    A word with control characters is written as `$'…'`, which bash, zsh and ksh know: the line
    stays one line.
    """
    word = str(text)
    if _UNSAFE.search(word) is None:
        return shlex.quote(word)
    quoted = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_UNSAFE.sub(_shell_escaped, quoted)}'"


def shell_line(*words: object) -> str:
    """Return words as a line of a shell, each quoted if need be."""
    return " ".join(shell_word(word) for word in words)


class _SafeRecords(logging.Filter):
    """Makes the records of a logger safe, whatever handler prints them, in this process or in a
    worker.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = visible(record.getMessage())
        record.args = None
        return True


def safe_logger(name: str) -> logging.Logger:
    """Return a logger whose messages hold neither secrets nor characters that steer a terminal."""
    logger = logging.getLogger(name)
    if not any(isinstance(existing, _SafeRecords) for existing in logger.filters):
        logger.addFilter(_SafeRecords())
    return logger


def _escaped(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def _json_escaped(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _shell_escaped(match: re.Match[str]) -> str:
    character = match.group()
    is_byte = "\udc80" <= character <= "\udcff"  # which Python has for a byte that is not UTF-8
    octets = character.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\{octet:03o}" for octet in octets)
