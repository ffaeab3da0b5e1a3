"""Read rejects.jsonl, the list of the lines that a shard rejected.

An entry says which line of which file it was, and why it was rejected, such as `missing_key`. The
list also has the faults at which files could not be read any further.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nanoset_core.errors import FormatError
from nanoset_core.records.json_records import load
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.text.rejects import Reject
from nanoset_core.untrusted import shortened


def read_rejects(path: Path, numbers: LineNumbers) -> Iterator[Reject]:
    """Yield the lines of input that were rejected, from the list in which they were recorded.

    The list is a file with a JSON object a line. It has lines that are no documents, and faults,
    which are places at which a file could not be read any further:

        {"file": "a.jsonl", "line": 7, "reason": "invalid_json", …}

    Args:
        path: Path of the list of rejects.
        numbers: Converts line numbers. Large files are read in pieces, and the list counts lines
            from the start of their piece; the result counts them from the start of the file.

    Raises:
        FormatError: The file is missing, or is not such a list. Either way, the error says which
            folder to delete, so that the next build makes the list again.
    """
    remedy = f"delete {path.parent}; the next build makes it again"
    try:
        with open_regular(path) as lines:
            for line in lines:
                reject = load(Reject, line, path)
                yield numbers.of_reject(reject)  # the same, with the number of the line in its file
    except FormatError as error:
        raise error.at(path, remedy) from error  # the same error, with this remedy
    except FileNotFoundError as error:
        raise _missing_list_error(path, error, remedy) from error


def _missing_list_error(path: Path, error: FileNotFoundError, remedy: str) -> FormatError:
    """Return the error for a list of rejects that was deleted.

    Args:
        path: Path of the list.
        error: The error with which it could not be opened.
        remedy: What the user should do.
    """
    return FormatError(
        Reject.json_form.problem,  # the message for a file that is no list of rejects, either
        where=path,
        found=shortened(repr(error)),
        expected="one JSON object a line, as nanoset writes them",
        remedy=remedy,
    )
