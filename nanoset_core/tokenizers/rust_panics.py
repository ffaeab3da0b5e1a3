"""Treat a panic of a library written in Rust as an ordinary error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LibraryPanicError(RuntimeError):
    """A library written in Rust panicked."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise an ordinary error if a library written in Rust panics in the block.

    Rust's panics are raised as an exception that is no `Exception`, so that most code would not
    catch it, and the process would end.

    Raises:
        LibraryPanicError: The library panicked. All other exceptions are raised unchanged.
    """
    try:
        yield
    except BaseException as error:
        # Each library has an exception class of its own for this, which cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise LibraryPanicError(str(error)) from error
