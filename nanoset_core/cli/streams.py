"""Streams that a command writes its results, notices and progress to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class UnfailingFile(FileIO):
    """A file descriptor that drops what cannot be written.

    With it, a full log disk does not end a build.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes, and return their number even if they could not be written.

        Args:
            data: Bytes, or another object with a buffer.

        Returns:
            The number of bytes that were written, or that were dropped.
        """
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class StandardOutput(FileIO):
    """A file descriptor that drops what nobody reads any more.

    In `nanoset build | head -1`, the program `head` ends after the first line. With this file as
    its standard output, the command finishes its work nevertheless, and keeps its exit code. Other
    errors, such as a full disk, are raised as usual, but only once.
    """

    has_failed = False
    """Whether an error was raised. Python writes the same text again when it ends."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes, and return their number even if they were dropped.

        Args:
            data: Bytes, or another object with a buffer.

        Returns:
            The number of bytes that were written, or that were dropped.

        Raises:
            OSError: The bytes cannot be written, for example because the disk is full.
        """
        try:
            if not self.has_failed:
                return super().write(data)
        except BrokenPipeError:
            pass  # nobody reads the bytes, so they are dropped
        except OSError as error:
            self.has_failed = True
            error.filename = "standard output"  # so that the message says what was not written
            raise
        return memoryview(data).nbytes


def with_file(stream: TextIOWrapper, file: FileIO) -> TextIOWrapper:
    """Return a stream with the properties of another one, which writes to another file object.

    Args:
        stream: Such as standard output, whose buffer is written before.
        file: The file.
    """
    stream.flush()
    # A text stream consists of three layers: file, buffer, and encoding.
    buffer = BufferedWriter(file)
    return TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


@contextmanager
def stderr_duplicate() -> Iterator[TextIO]:
    """Yield a second handle of standard error, which still leads there if the first is redirected.

    Dagster redirects standard error to a file while it executes a step of a build. A progress bar
    that is printed to this handle stays visible.

    Yields:
        A stream whose writes never fail.
    """
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # there is nothing to duplicate, as under a test runner
        yield sys.stderr
        return
    # A text stream consists of three layers: file, buffer, and encoding.
    file = UnfailingFile(descriptor, "w")
    buffer = BufferedWriter(file)
    encoding = sys.stderr.encoding or "utf-8"
    with TextIOWrapper(
        buffer, encoding=encoding, errors="backslashreplace", line_buffering=True
    ) as stream:
        yield stream
