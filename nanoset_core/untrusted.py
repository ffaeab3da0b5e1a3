"""Make text that strangers wrote safe for a terminal, a log, a web page and a command line.

Ids of documents, file names, keys of buckets, headers of servers and messages of libraries may
contain anything: control characters that steer a terminal, invisible characters, or passwords in an
address. So everything that is shown passes through one of these functions:

    escaped       results, such as ids and values of columns: they are shown in full, since users
                  copy them to other commands. `https://a.org/item?code=12` is an id like others
    visible       messages, errors and logs, which may quote an address with a password: secrets
                  are hidden, too
    shell_word    what is built into a command

Messages quote the beginning of long texts, as `shortened` cuts them.
"""

from __future__ import annotations

import logging
import re
import shlex

_INVISIBLE = (
    "\x00-\x1f\x7f-\x9f"  # the control characters C0, DEL and C1, which steer a terminal
    # characters without width or ink
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"
    # zero width, line ends, bidirectional marks
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff"  # tags, which spell whole sentences that nobody sees
    # halves of surrogate pairs, with which Python represents bytes that are not UTF-8
    "\ud800-\udfff"
)
"""Ranges of a character class for `re`: characters that cannot be seen, or that act on others."""
_UNSAFE = re.compile(f"[{_INVISIBLE}]")
"""Characters that are escaped in a text of one line."""
_UNSAFE_IN_LINES = re.compile(f"(?![\n\t])[{_INVISIBLE}]")
"""Characters that are escaped in a text of several lines: all except line ends and tabs."""
_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#|!~&])")
"""Characters with a meaning in Markdown."""

HIDDEN = "…"
"""Text that replaces a password or token."""
_PASSWORD = re.compile(r"//[^\s/:@]*:(?![0-9]+(?:[^\w@]|$))\S*@")
"""`//user:password@`, but not `//host:80/x@y`, in which a port follows the colon.

It extends to the last @ of the word, since a password may contain an @.
"""
_USER = re.compile(r"(?i)(?<!abfs:)(?<!abfss:)(?<!wasb:)(?<!wasbs:)(?<=:)//[^\s/?#]*@")
"""`//token@`, but not `abfs://container@account`, which is an address of Azure."""
_SECRET_NAMES = (
    r"sig|[\w.%-]*signature|[\w.%-]*token|[\w.%-]*secret[\w.%-]*|[\w.%-]*passw(?:or)?d|pwd|[\w.%-]*credentials?"
    r"|(?:[\w.%-]*[_-])?key|(?:api|account|access|shared)key|[\w.%-]*accesskeyid|googleaccessid"
    r"|authorization|auth|jwt|code"
)
"""Names of parameters of a URL whose values give access."""
_SECRET_PARAMETER = re.compile(rf"(?i)([?&;#](?:{_SECRET_NAMES})=)[^\s&;#'\"<>`,)\]}}]+")
"""A parameter of a URL that gives access, such as `&X-Amz-Signature=…` or `?sig=…`."""
_BEARER = re.compile(r"(?i)\b(authorization['\"]?[:=] *['\"]?(?:\w+ +)?|bearer +)[\w.~+/=-]{8,}")
"""The token in a header such as `Authorization: Bearer …`."""
_BEARER_HINTS = ("earer", "uthorization", "BEARER", "AUTHORIZATION")
"""Parts of the names before such a token, without the first letter, which may be a capital."""


def without_secrets(text: object) -> str:
    """Return a text in which the passwords, tokens and signatures of all URLs are replaced by "…".

    Digests, other parameters and the rest of each address are kept. Regular expressions are slow,
    and most texts contain no secret. So each step first looks for a short text that is a part of
    all its matches, such as "@".
    """
    without_passwords = _without_passwords(str(text))
    without_parameters = without_secret_parameters(without_passwords)
    return _without_bearer_tokens(without_parameters)


def _without_passwords(text: str) -> str:
    """Return a text in which what precedes the host of a URL is replaced by "…".

    For example, https://user:password@host and https://token@host become https://…@host.
    """
    if "@" not in text:
        return text
    text_without_passwords = _PASSWORD.sub(f"//{HIDDEN}@", text)
    return _USER.sub(f"//{HIDDEN}@", text_without_passwords)


def _without_bearer_tokens(text: str) -> str:
    """Return a text in which the token of a header `Authorization: Bearer …` is replaced by "…"."""
    if not any(hint in text for hint in _BEARER_HINTS):
        return text
    return _BEARER.sub(rf"\g<1>{HIDDEN}", text)  # the group 1 is all that precedes the token


class Multiline(str):
    """A text of several lines that nanoset composed, in which `visible` keeps line ends and tabs.

    Names and excerpts that are inserted into it must be made `visible` before, or their own line
    ends would be kept, too.
    """

    __slots__ = ()


def without_secret_parameters(text: str) -> str:
    """Return a text in which secret parameters of URLs, such as `?sig=`, are replaced by "…"."""
    if "=" not in text:
        return text
    return _SECRET_PARAMETER.sub(rf"\g<1>{HIDDEN}", text)


def escaped(text: object) -> str:
    """Return a text on one line in which every character can be seen.

    Characters that steer a terminal, end a line, change the direction of writing or have no width
    are escaped as in Python: `\\x1b`, `\\n`, `\\u202e`. A `Multiline` text keeps its lines.
    """
    result = str(text)
    if result.isascii() and result.isprintable():
        return result
    unsafe = _UNSAFE_IN_LINES if isinstance(text, Multiline) else _UNSAFE
    return unsafe.sub(_python_escape, result)


def visible(text: object) -> str:
    """Return a text on one line, without secrets, in which every character can be seen.

    It is escaped as by `escaped`. A `Multiline` text keeps its lines.
    """
    without = without_secrets(text)
    return escaped(Multiline(without) if isinstance(text, Multiline) else without)


def visible_json(text: str) -> str:
    """Return JSON text with invisible characters as `\\u…`, which does not change its values."""
    return _UNSAFE_IN_LINES.sub(_json_escape, text)


def markdown_text(text: object) -> str:
    """Return a text escaped for Markdown, so that it is shown as it is.

    It contains no link, table, HTML or emphasis, and it is `visible`.
    """
    return _MARKUP.sub(r"\\\1", visible(text))


def shortened(text: str, n_characters: int = 500) -> str:
    """Return a text that is cut after some characters, with "…" in place of the rest.

        "a long story", 6     "a long…"
        "a story", 7          "a story"

    Args:
        text: The text. A shorter one is returned as it is.
        n_characters: How many of its characters are kept; by default as many as are useful in a
            message.
    """
    if len(text) <= n_characters:
        return text
    return f"{text[:n_characters]}…"


def shell_word(text: object) -> str:
    """Return a text as one word of a command line for a POSIX shell, in quotes if necessary.

    Text with control characters is written as `$'…'`, which bash, zsh and ksh understand, so that
    the command stays on one line.
    """
    word = str(text)
    if _UNSAFE.search(word) is None:
        return shlex.quote(word)
    quoted = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_UNSAFE.sub(_shell_escape, quoted)}'"


def shell_line(*words: object) -> str:
    """Return words as a command line for a POSIX shell, each in quotes if necessary."""
    return " ".join(shell_word(word) for word in words)


class _SafeRecords(logging.Filter):
    """Makes the messages of a logger safe before any handler sees them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the message by its safe form, and let the record pass.

        A message that is a `Multiline` text keeps its lines; such a message has no arguments.
        """
        # `getMessage` would return a plain string, whose line ends are escaped.
        is_multiline = isinstance(record.msg, Multiline)
        record.msg = visible(record.msg if is_multiline else record.getMessage())
        record.args = None
        return True


def safe_logger(name: str) -> logging.Logger:
    """Return a logger whose messages contain neither secrets nor control characters.

    Args:
        name: Name of the logger, as of `logging.getLogger`.
    """
    logger = logging.getLogger(name)
    # A logger is shared by its name, and needs the filter only once.
    if not any(isinstance(existing, _SafeRecords) for existing in logger.filters):
        logger.addFilter(_SafeRecords())
    return logger


def _python_escape(match: re.Match[str]) -> str:
    """Return an unsafe character as Python's escape for it."""
    return match.group().encode("unicode_escape").decode("ascii")


def _json_escape(match: re.Match[str]) -> str:
    """Return an unsafe character as JSON's escape, `\\u` and four hex digits per UTF-16 unit."""
    octets = match.group().encode("utf-16-be", "surrogatepass")
    units = [octets[start : start + 2] for start in range(0, len(octets), 2)]  # of two bytes
    return "".join(f"\\u{unit.hex()}" for unit in units)


def _shell_escape(match: re.Match[str]) -> str:
    """Return an unsafe character as octal escapes of its bytes."""
    character = match.group()
    # Python represents byte 0x80 to 0xff of a file name that is not UTF-8 by these characters.
    is_undecodable_byte = "\udc80" <= character <= "\udcff"
    error_handler = "surrogateescape" if is_undecodable_byte else "surrogatepass"
    octets = character.encode("utf-8", error_handler)
    return "".join(f"\\{octet:03o}" for octet in octets)
