"""Streams that a command writes notices and progress to."""

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


@contextmanager
def stderr_duplicate() -> Iterator[TextIO]:
    """Yield standard error on a duplicate of its file descriptor.

    Dagster redirects the descriptors 1 and 2 to log files during a step. A progress bar on a
    duplicate that was made earlier stays on the terminal.

    Yields:
        A stream whose writes never fail; standard error itself if it has no file descriptor.
    """
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # it has no descriptor, as under a test runner
        yield sys.stderr
        return
    file = BufferedWriter(UnfailingFile(descriptor, "w"))
    encoding = sys.stderr.encoding or "utf-8"
    with TextIOWrapper(
        file, encoding=encoding, errors="backslashreplace", line_buffering=True
    ) as stream:
        yield stream
