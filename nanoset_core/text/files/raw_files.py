"""Open files of raw text, on a file system or in a bucket, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from nanoset_core.errors import InputError, MissingError, NanosetError, SourceChangedError
from nanoset_core.storage.copies.worker_folders import worker_folder
from nanoset_core.storage.location import Location
from nanoset_core.storage.reading.input_files import Probe, open_input, probing

READ_BYTES = 1 << 20
"""Bytes that are read at once."""


@contextmanager
def open_raw(path: Location, *, begin: int = 0, end: int | None = None) -> Iterator[BinaryIO]:
    """Open a file with text of the user for reading, on a disk or in a bucket such as S3.

    A caller that needs only a range says so, and then seeks to it. Of an object in a bucket, only
    this range is downloaded; a file on a disk is opened as usual. For the bytes 1,000 to 1,999:

        with open_raw(path, begin=1000, end=2000) as file:
            file.seek(1000)
            data = file.read(1000)

    Args:
        path: The file.
        begin: First byte that the caller is going to read.
        end: Byte after the last one that the caller is going to read; None for the end of the file.

    Yields:
        The open file, positioned at byte 0.

    Raises:
        MissingError: The file does not exist.
        InputError: The file cannot be opened, or reading it fails within the block.
        FormatError: The path is that of a pipe or a device.
    """
    with _explained_errors(path), open_input(path, begin=begin, end=end) as file:
        yield file


def blocks_of(file: BinaryIO, begin: int, end: int, block_bytes: int) -> Iterator[bytes]:
    """Yield a range of an open file in blocks.

    For example, the bytes 0 to 2,500 in blocks of 1,000 bytes: 0 to 1,000, 1,000 to 2,000, and
    2,000 to 2,500.

    Args:
        file: The file, which can seek.
        begin: Position of the first byte.
        end: Position after the last byte.
        block_bytes: Most bytes of a block.

    Yields:
        The blocks in order; fewer bytes altogether if the file is shorter.
    """
    file.seek(begin)
    while begin < end:
        block = file.read(min(block_bytes, end - begin))
        if not block:
            return
        begin += len(block)
        yield block


@contextmanager
def probe_raw(path: Location) -> Iterator[Probe]:
    """Open a file with text of the user for a few small reads in several places.

    A large file is cut into pieces where lines start, for example. To find these places, a few KiB
    near each cut are read, and not the whole file: of an object in a bucket, only these are
    downloaded.

    Args:
        path: The file, on a disk or in a bucket.

    Yields:
        The file's size and times, and a function that reads a range of its bytes.

    Raises:
        MissingError: The file does not exist.
        InputError: The file cannot be opened, or reading it fails within the block.
        FormatError: The path is that of a pipe or a device.
        SourceChangedError: The object is replaced within the block, so that its reads do not fit
            together.
    """
    with _explained_errors(path), probing(path) as probe:
        yield probe


@contextmanager
def _explained_errors(path: Location) -> Iterator[None]:
    """Replace errors of the system, while a file is read, by errors that tell the user what to do.

        with _explained_errors(path):
            data = file.read()        raises OSError: [Errno 5] Input/output error

    becomes an error with the message "a file of the corpus cannot be read", the path, and the
    advice to fix the disk or to remove the file.

    Args:
        path: The file that is read in the block, for the message.

    Raises:
        MissingError: The file does not exist.
        InputError: The file cannot be read, or there is not enough memory for it.
    """
    try:
        yield
    except NanosetError:
        raise  # says what to do already; some are subclasses of OSError
    except MemoryError as error:
        raise too_large(path) from error
    except FileNotFoundError as error:
        remedy = "build again: the inventory will be updated"
        is_worker_of_cluster = worker_folder() is not None
        if is_worker_of_cluster:
            # The machine of the build has just listed the file, so this one probably lacks a mount.
            remedy = (
                "if the file exists on the machine of the build, give the machine of this worker "
                f"the same files under the same path, or end the worker; otherwise {remedy}"
            )
        raise MissingError("a file of the corpus is missing", where=path, remedy=remedy) from error
    except OSError as error:
        raise InputError(
            "a file of the corpus cannot be read",
            where=path,
            found=f"{error.strerror} (errno {error.errno})",
            expected="a file that this user may read, on a healthy disk",
            remedy="fix that, or remove the file; then build again",
        ) from error


def source_changed(path: Location, found: str, expected: str) -> SourceChangedError:
    """Return the error for a file that was changed after its inventory was made.

    A build first makes an inventory, which lists the files of a corpus with their sizes and
    digests, and then reads the files. Text that was written in between must not be mixed with older
    text.

    Args:
        path: The file.
        found: What it is now, such as `12 bytes`.
        expected: What it was when the inventory was made, such as `10 bytes`.
    """
    return SourceChangedError(
        "the file is not as the inventory found it",
        where=path,
        found=found,
        expected=expected,
        remedy="run `nanoset build` once nothing writes to it; if that changes nothing, run "
        "`nanoset build --force`, which reads all files again",
    )


def too_large(path: Location | str, found: str | None = None) -> InputError:
    """Return the error for a file that needs more memory than there is.

    Some units must be in memory as a whole: a line of JSON lines, or a page of a Parquet file. The
    file is not damaged, and a machine with more memory could read it. So the message names settings
    and machines, and does not call the file faulty.

    Args:
        path: The file.
        found: How much memory was needed, or what failed, such as "a page of 3 GB"; None if that is
            not known.
    """
    return InputError(
        "a file of the corpus needs more memory than is available",
        where=path,
        found=found,
        expected=(
            "memory for its longest line or text, "
            "and for the largest page, batch or window that it is stored in"
        ),
        remedy=(
            "lower documents.max_line_mib, give each worker more memory (fewer workers), "
            "or remove the file"
        ),
    )
