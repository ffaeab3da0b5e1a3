"""Opening files of raw text, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nanoset_core.errors import InputError, MissingError, NanosetError


@contextmanager
def open_raw(path: Path) -> Iterator[BinaryIO]:
    """Open a file of an inventory for reading.

    Raises:
        MissingError: it is gone.
        InputError: it cannot be opened, or reading it fails within the block.
    """
    try:
        with path.open("rb") as file:
            yield file
    except NanosetError:
        raise
    except FileNotFoundError as error:
        raise MissingError(
            "a file of the corpus is gone", where=path, remedy="build again: the inventory is taken anew"
        ) from error
    except OSError as error:
        raise InputError(
            "a file of the corpus cannot be read",
            where=path,
            found=f"{error.strerror} (errno {error.errno})",
            expected="a file that this user may read, on a healthy disk",
            remedy="mend that, or remove the file; then build again",
        ) from error
