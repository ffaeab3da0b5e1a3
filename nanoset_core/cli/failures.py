"""Messages of commands that fail."""

from __future__ import annotations

import signal
import tempfile
import traceback

import click

from nanoset_core.errors import NanosetError
from nanoset_core.execution.interruption import INTERRUPTED, received_signal
from nanoset_core.storage.os_errors import refusal


def message(error: BaseException) -> str:
    """Return what went wrong and what to do; of an unexpected error with the path of a file with the traceback."""
    if isinstance(error, NanosetError):
        return str(error)
    return str(refusal(error, "what was being read or written") or _unexpected(error))


def say(error: BaseException) -> None:
    """Print `message` to stderr."""
    click.secho("error: ", fg="red", bold=True, err=True, nl=False)
    click.echo(message(error), err=True)


def say_interrupted() -> int:
    """Print that a signal ended the command, and how to go on; return the exit code."""
    number = received_signal() or signal.SIGINT
    said = INTERRUPTED if number == signal.SIGINT else INTERRUPTED.replace("interrupted", f"ended by {number.name}", 1)
    click.echo(said, err=True)
    return 128 + number


def _unexpected(error: BaseException) -> NanosetError:
    trace = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="nanoset-", suffix=".log", delete=False, encoding="utf-8") as log:
            log.write(trace)
        remedy = f"run again: what is finished is kept; where it comes again, report it with {log.name}"
    except OSError:
        remedy = f"run again: what is finished is kept; where it comes again, report this:\n{trace}"
    found = "".join(traceback.format_exception_only(error)).strip()
    return NanosetError("an internal error of nanoset", found=found, remedy=remedy)
