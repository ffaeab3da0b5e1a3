"""The errors of nanoset: each says what is wrong, where, what was found and what to do.

Printed, an error looks like this:

    nanoset.yaml:12: nanosets.web.seed: this value has the wrong type
      found: 'x' (str)
      expected: a whole number
      remedy: write a whole number, without quotes

Every class is derived from `NanosetError`, and from a built-in exception if one fits, so that
callers can catch either.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Self, TypeVar

from nanoset_core.untrusted import Multiline, visible, without_secrets


class NanosetError(Exception):
    """Base of every error that nanoset raises on purpose.

    The parts of an error may quote names, addresses and excerpts of files that strangers wrote. So
    control characters are escaped in the message, which may be printed to a terminal, and passwords
    and signatures are hidden both in the message and in the attributes.
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
        """Compose the message.

        Args:
            what: What is wrong.
            where: File, key or address, converted by `str`.
            found: What was found instead of what was expected.
            expected: What was expected.
            remedy: What the user can do.
        """
        self.what = _hide_secrets(what)
        self.where = None if where is None else without_secrets(where)
        self.found = None if found is None else _hide_secrets(found)
        self.expected = None if expected is None else _hide_secrets(expected)
        self.remedy = None if remedy is None else _hide_secrets(remedy)

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
        """Return the same error with another place.

        Args:
            where: The place.
            remedy: A remedy that replaces that of this error, or None to keep it.
        """
        return type(self)(
            self.what,
            where=where,
            found=self.found,
            expected=self.expected,
            remedy=remedy or self.remedy,
        )

    def with_places(self, folder: str, url: str) -> Self:
        """Return the same error with addresses in place of local paths.

        It is for errors about local copies of files in a bucket, whose paths mean nothing to users.

        Args:
            folder: Path of the folder that contains the copies.
            url: Address that corresponds to the folder.
        """
        details = {}
        for name, text in self._details().items():
            details[name] = _replace(text, folder, url) if text else text
        return type(self)(self.what, **details)

    def _details(self) -> dict[str, str | None]:
        """Return the keyword arguments that the error was made from."""
        return {
            "where": self.where,
            "found": self.found,
            "expected": self.expected,
            "remedy": self.remedy,
        }

    def __reduce__(self) -> tuple[object, ...]:
        # By default, exceptions are unpickled without their keyword arguments, which would be lost
        # on the way back from a worker process.
        return _rebuild, (type(self), self.what, self._details())


def one_of(names: Iterable[str], nothing: str) -> str:
    """Return what was expected of a name: "one of a, b", or another text if there are no names."""
    listed = ", ".join(names)
    return f"one of {listed}" if listed else nothing


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one probably stands for, or None if none is close.

    Upper and lower case are not distinguished.
    """
    name_by_folded = {other.casefold(): other for other in known if other != name}
    close = difflib.get_close_matches(name.casefold(), name_by_folded, n=1)
    return name_by_folded[close[0]] if close else None


def remedy_for_name(name: str, known: Iterable[str], remedy: str) -> str:
    """Return the remedy for an unknown name, which suggests the name that was probably meant.

    Args:
        name: The unknown name.
        known: The names that exist.
        remedy: What to do otherwise.
    """
    meant = closest_name(name, known)
    return remedy if meant is None else f"did you mean {meant!r}? Otherwise {remedy}"


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, without what was expected and the remedy."""
    if not isinstance(error, NanosetError):
        return visible(joined_lines(error))

    text = "; ".join(line.strip() for line in error.what.splitlines())
    if error.found:
        text += f" ({error.found})"
    if error.where:
        text += f": {error.where}"
    return visible(text)


def one_line_with_remedy(error: NanosetError) -> str:
    """Return an error's message on one line, with what was expected and the remedy.

    a file cannot be read to its end (1 file …): /raw/web/a.jsonl.gz; expected whole files (…);
    remedy: fetch or write it again, or accept what could be read of it: …
    """
    text = one_line(error)
    if error.expected:
        text += f"; expected {joined_lines(error.expected)}"
    if error.remedy:
        text += f"; remedy: {joined_lines(error.remedy)}"
    return visible(text)


def joined_lines(text: object) -> str:
    """Return a text of several lines, such as a message of another program, on one line."""
    return " ".join(str(text).split())


def _replace(text: str, old: str, new: str) -> str:
    """Return a text with one part replaced; a `Multiline` text stays one."""
    replaced = text.replace(old, new)
    return Multiline(replaced) if isinstance(text, Multiline) else replaced


def _hide_secrets(text: object) -> str:
    """Return a text without secrets; a `Multiline` text stays one."""
    hidden = without_secrets(text)
    return type(text)(hidden) if isinstance(text, Multiline) else hidden


def _rebuild(kind: type[NanosetError], what: str, details: dict[str, str | None]) -> NanosetError:
    """Return an error from what `NanosetError.__reduce__` pickled."""
    return kind(what, **details)


class ConfigError(NanosetError, ValueError):
    """A setting of nanoset.yaml, or an argument, is not valid."""


AnyError = TypeVar("AnyError", bound=NanosetError)
_MAX_LISTED = 100
"""One error lists at most this many mistakes of a file; the others are counted."""


def combined(errors: Sequence[AnyError], where: object) -> AnyError:
    """Return one error that lists all errors of a file; a single error is returned unchanged.

    Args:
        errors: At least one error.
        where: The file, or the folder.

    Returns:
        An error of the class of the first one.
    """
    if len(errors) == 1:
        return errors[0]
    listed = "\n".join(textwrap.indent(str(error), "  ") for error in errors[:_MAX_LISTED])
    if len(errors) > _MAX_LISTED:
        listed += f"\n  … and {len(errors) - _MAX_LISTED:,} more"
    return type(errors[0])(
        Multiline(f"{len(errors)} mistakes:\n{listed}"), where=where, remedy="correct each of them"
    )


def raised(check: Callable[..., object], *arguments: object) -> list[ConfigError]:
    """Return the ConfigError that a check raises as a list; the list is empty if it raises none.

    Args:
        check: The check.
        arguments: What it is called with.
    """
    try:
        check(*arguments)
    except ConfigError as error:
        return [error]
    return []


class FormerNameWarning(FutureWarning):
    """nanoset.yaml uses the former name of a key, which still works."""


class FormatError(NanosetError, ValueError):
    """A file is not in the format that its name or place promises."""


class InputError(NanosetError, ValueError):
    """Raw text cannot be read, or too many of its documents were rejected."""


class SourceChangedError(InputError):
    """A source file changed between the inventory and the read."""


class MissingError(NanosetError, FileNotFoundError):
    """A file, an output or another input does not exist."""


class NoSamplesError(MissingError):
    """A split of a nanoset has no samples, for example because its share of the data is 0."""


class StaleError(NanosetError, RuntimeError):
    """An output does not belong to the current version of the inputs that it names."""


class ForbiddenError(NanosetError, RuntimeError):
    """The settings of nanoset.yaml forbid making an output from what it would contain."""


class SampleIndexError(NanosetError, IndexError):
    """The index of a sample, sequence or document is out of range."""


class StorageError(NanosetError, OSError):
    """A file system or store refuses to write or read, for example because it is full."""
