"""The error family of nanoset: every error says what, where, what was found, what was expected and
what to do.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from nanoset_core.untrusted import Multiline, visible, without_secrets


class NanosetError(Exception):
    """Base of every error that nanoset raises on purpose.

    Each part may hold names and excerpts of foreign files, and addresses: characters that would
    steer a terminal are escaped in the message, and passwords and signatures are hidden in the
    attributes, too.
    """

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: str | None = None,
    ) -> None:
        self.what = _without_secrets(what)
        self.where = None if where is None else without_secrets(where)
        self.found = None if found is None else _without_secrets(found)
        self.expected = None if expected is None else _without_secrets(expected)
        self.remedy = None if remedy is None else _without_secrets(remedy)

        shown_what = visible(self.what)
        parts = [f"{visible(self.where)}: {shown_what}" if self.where else shown_what]
        if self.found is not None:
            parts.append(f"found: {visible(self.found)}")
        if self.expected is not None:
            parts.append(f"expected: {visible(self.expected)}")
        if self.remedy is not None:
            parts.append(f"remedy: {visible(self.remedy)}")
        super().__init__("\n  ".join(parts))

    def __str__(self) -> str:
        return str(self.args[0])

    def at(self, where: object, remedy: str | None = None) -> Self:
        """Return this error at another place, and with another remedy where one is given."""
        found = {"found": self.found, "expected": self.expected, "remedy": remedy or self.remedy}
        return type(self)(self.what, where=where, **found)

    def with_places(self, folder: str, url: str) -> Self:
        """Return this error with paths below a folder as the addresses that they stand for."""
        details = {
            "where": self.where,
            "found": self.found,
            "expected": self.expected,
            "remedy": self.remedy,
        }
        replaced = {name: text and _replaced(text, folder, url) for name, text in details.items()}
        return type(self)(self.what, **replaced)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments must survive the trip back from a worker process.
        details = {
            "where": self.where,
            "found": self.found,
            "expected": self.expected,
            "remedy": self.remedy,
        }
        return _rebuild, (type(self), self.what, details)


def one_of(names: Iterable[str], nothing: str) -> str:
    """Return what was expected of a name: one of these, or in words that there is none."""
    listed = ", ".join(names)
    return f"one of {listed}" if listed else nothing


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one probably stands for, whatever its case; None if
    none is close.
    """
    name_by_folded = {other.casefold(): other for other in known if other != name}
    close = difflib.get_close_matches(name.casefold(), name_by_folded, n=1)
    return name_by_folded[close[0]] if close else None


def remedy_for_name(name: str, known: Iterable[str], remedy: str) -> str:
    """Return the remedy for a name that is not known: the name that was probably meant, and what
    else to do.
    """
    meant = closest_name(name, known)
    return remedy if meant is None else f"did you mean {meant!r}? Otherwise {remedy}"


def one_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    if not isinstance(error, NanosetError):
        return visible(joined_lines(error))
    found = f" ({error.found})" if error.found else ""
    what = "; ".join(line.strip() for line in error.what.splitlines())
    return visible(f"{what}{found}: {error.where}" if error.where else what + found)


def joined_lines(text: object) -> str:
    """Return what another program or a library says in several lines as one line."""
    return " ".join(str(text).split())


def _replaced(text: str, old: str, new: str) -> str:
    replaced = text.replace(old, new)
    return Multiline(replaced) if isinstance(text, Multiline) else replaced


def _without_secrets(text: object) -> str:
    """Return a text without secrets, which stays a text of several lines if it is one."""
    return (
        type(text)(without_secrets(text)) if isinstance(text, Multiline) else without_secrets(text)
    )


def _rebuild(kind: type[NanosetError], what: str, details: dict[str, str | None]) -> NanosetError:
    return kind(what, **details)


class ConfigError(NanosetError, ValueError):
    """nanoset.yaml, or an argument, asks for something that cannot be."""


_MOST_LISTED = 100
"""Mistakes of a file that one error lists."""


def combined(errors: Sequence[ConfigError], where: object) -> ConfigError:
    """Return the only error, or one that lists all errors of a file."""
    if len(errors) == 1:
        return errors[0]
    listed = "\n".join(textwrap.indent(str(error), "  ") for error in errors[:_MOST_LISTED])
    if len(errors) > _MOST_LISTED:
        listed += f"\n  … and {len(errors) - _MOST_LISTED:,} more"
    return ConfigError(
        Multiline(f"{len(errors)} mistakes:\n{listed}"), where=where, remedy="correct each of them"
    )


def raised(check: Callable[..., object], *arguments: object) -> list[ConfigError]:
    """Return the ConfigError that a check raises, if it raises one."""
    try:
        check(*arguments)
    except ConfigError as error:
        return [error]
    return []


class FormerNameWarning(FutureWarning):
    """A key of nanoset.yaml is written by its former name, which still works."""


class FormatError(NanosetError, ValueError):
    """A file is not in the format that its name or place promises."""


class InputError(NanosetError, ValueError):
    """Raw text that cannot be read, or too much of it rejected."""


class SourceChangedError(InputError):
    """A source file changed between the inventory and the read."""


class MissingError(NanosetError, FileNotFoundError):
    """An input that should be there is not."""


class StaleError(NanosetError, RuntimeError):
    """An output no longer belongs to the inputs that it names."""


class SampleIndexError(NanosetError, IndexError):
    """A sample, sequence or document index past the end."""


class StorageError(NanosetError, OSError):
    """The file system does not take what should be written: it is full, or a quota is used up."""
