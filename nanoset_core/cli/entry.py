"""The `nanoset` command: its subcommands, standard streams and exit codes."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from io import BufferedWriter, StringIO, TextIOWrapper

import click

from nanoset_core.cli import commands
from nanoset_core.cli.echo import echo
from nanoset_core.cli.former_names import printing_former_names
from nanoset_core.cli.streams import UnfailingFile
from nanoset_core.errors import ConfigError, NanosetError, closest_name
from nanoset_core.execution.interruption import (
    INTERRUPTED,
    drop_further_signals,
    interruptible,
    received_signal,
)
from nanoset_core.storage.os_errors import refusal
from nanoset_core.untrusted import Multiline, visible, without_secrets

_SHOWN_CHARACTERS = 200
"""Of a text that cannot be encoded."""
PLUGINS = "nanoset.commands"


class _Commands(click.Group):
    """The modules of nanoset_core.cli.commands, and the entry points of installed packages;
    imported when used.
    """

    def list_commands(self, context: click.Context) -> list[str]:
        own = {module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__)}
        return sorted(own | {entry.name for entry in entry_points(group=PLUGINS)})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        module = name.replace("-", "_")
        if any(file.name == module for file in pkgutil.iter_modules(commands.__path__)):
            own: click.Command = importlib.import_module(f"{commands.__name__}.{module}").command
            return own
        return next((entry.load() for entry in entry_points(group=PLUGINS, name=name)), None)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with; name the one that a misspelt one probably
        stands for.
        """
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            meant = closest_name(args[0], self.list_commands(context))
            # newer versions of click may say it
            if meant is None or "Did you mean" in error.format_message():
                raise
            raise click.UsageError(
                f"{error.format_message()} Did you mean {meant!r}?", context
            ) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nanoset-platform", prog_name="nanoset")
def nanoset() -> None:
    """From raw text to training data: tokenized, indexed, blended and shuffled."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; every error is shown as text, without a traceback, and in the exit code."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed by the caller: no other file may get its number
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(null, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    if type(sys.stderr) is TextIOWrapper and sys.stderr.fileno() == 2:
        sys.stderr.flush()
        notices = BufferedWriter(UnfailingFile(2, "w", closefd=False))
        sys.stderr = TextIOWrapper(notices, encoding=sys.stderr.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the locale has no letters for
    # with Dagster loaded, the collection at the end of Python takes a second
    atexit.register(gc.freeze)
    with interruptible():
        if code := _exit_code(arguments):
            gc.collect()  # generators that an error left hanging end their worker processes
    sys.exit(code)


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        code = _run(arguments)
        # some handler may have left with 0
        return code if received_signal() is None else _say_interrupted()
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        echo(Multiline(shown.getvalue()), nl=False, err=True)  # it repeats what was given
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _say_interrupted()
    except Exception as error:  # noqa: BLE001 - the last handler
        # what fails then, fails since its workers got the same signal
        if received_signal() is not None:
            return _say_interrupted()
        echo("error: ", fg="red", bold=True, err=True, nl=False)
        echo(message(error), err=True)
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with printing_former_names():
            code = nanoset.main(args=arguments, prog_name="nanoset", standalone_mode=False)
    except SystemExit as left:
        code = left.code
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has ended
            return 1
        error.filename = "standard output"
        raise
    return code if isinstance(code, int) else 0


def message(error: BaseException) -> Multiline:
    """Return what went wrong and what to do; of an unexpected error with the path of a file with
    the traceback.
    """
    known = (
        error
        if isinstance(error, NanosetError)
        else refusal(error, "what was being read or written")
    )
    if (
        known is None
        and isinstance(error, UnicodeEncodeError)
        and visible(error.object) != error.object
    ):
        known = ConfigError(
            "a text that was given is not UTF-8",
            found=ascii(error.object[:_SHOWN_CHARACTERS]),
            expected="UTF-8 in arguments and in names of files",
            remedy="write it in UTF-8",
        )
    if known is not None:
        return Multiline(known)
    trace = without_secrets("".join(traceback.format_exception(error)))
    report = Multiline(f"this:\n{trace}")
    with suppress(OSError):
        with tempfile.NamedTemporaryFile(
            "w", prefix="nanoset-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            log.write(trace)
        report = Multiline(f"it with {log.name}")
    remedy = Multiline(
        f"run again: what is finished is kept; where it comes again, report {report}"
    )
    return Multiline(
        NanosetError("an internal error of nanoset", found=trace.splitlines()[-1], remedy=remedy)
    )


def _say_interrupted() -> int:
    """Print that a signal ended the command, and how to go on; return the exit code."""
    drop_further_signals()
    number = received_signal() or signal.SIGINT
    said = (
        INTERRUPTED
        if number == signal.SIGINT
        else INTERRUPTED.replace("interrupted", f"ended by {number.name}", 1)
    )
    echo(Multiline(said), err=True)
    return 128 + number
