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
    """Yield a second handle of standard error, which stays on the terminal.

    While Dagster (which runs the steps of a build) executes a step, it redirects standard output
    and standard error to log files. A progress bar that is printed to a handle from before is still
    visible.

    Yields:
        A stream whose writes never fail. It is standard error itself if that has no file
        descriptor, as under a test runner.
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
