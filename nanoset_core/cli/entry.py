"""The `nanoset` command: its subcommands, standard streams and exit codes.

Each subcommand is a module, which is imported only if the user calls it: `nanoset status` imports
`nanoset_core.cli.commands.status`. Errors are printed as text that says what to do. The exit code
is 0 for success, 1 for an error, 2 for wrong usage, and 128 + n if signal n ended the command.
"""

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
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from io import StringIO, TextIOWrapper
from typing import Any

import click

from nanoset_core.cli import commands
from nanoset_core.cli.echo import echo, print_error
from nanoset_core.cli.former_names import printing_former_names
from nanoset_core.cli.streams import StandardOutput, UnfailingFile, with_file
from nanoset_core.errors import ConfigError, MissingError, NanosetError, StorageError, closest_name
from nanoset_core.execution.interruption import (
    INTERRUPTED,
    drop_further_signals,
    interruptible,
    received_signal,
    signals_held,
)
from nanoset_core.storage.os_errors import explained_error
from nanoset_core.untrusted import Multiline, visible, without_secrets

_STDOUT = 1
_STDERR = 2
"""The file descriptors of standard output and standard error."""
_SHOWN_CHARACTERS = 200
"""Characters that are shown of a text that cannot be encoded."""
PLUGINS = "nanoset.commands"
"""Group of entry points by which other packages add commands, such as `nanoset build`."""


class _Commands(click.Group):
    """The commands `nanoset status`, `nanoset build` and so on, each imported when it is used.

    Importing all of them would take seconds, even if the user only wants one. There are two kinds:

        nanoset import-parquet    the variable `command` of cli/commands/import_parquet.py
        nanoset build             a command of another package (a plugin)
    """

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of all commands, sorted, for --help and for shell completion.

        Args:
            context: The context of the group of commands, which is not used.

        Returns:
            Names such as "import-parquet", of this package and of plugins.
        """
        names = {entry.name for entry in entry_points(group=PLUGINS)}
        for module in _command_modules():
            names.add(module.replace("_", "-"))
        return sorted(names)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import and return the command with a name. click calls this when the user runs the
        command.

        Args:
            context: click's state of the program, which is not used.
            name: The name that the user wrote, such as "import-parquet".

        Returns:
            The command: of this package, or else of another one. None if there is none with this
            name.
        """
        module_name = name.replace("-", "_")
        if module_name in _command_modules():
            module = importlib.import_module(f"{commands.__name__}.{module_name}")
            command: click.Command = module.command
            return command
        for entry in entry_points(group=PLUGINS, name=name):
            plugin: click.Command = entry.load()
            return plugin
        return None

    def invoke(self, context: click.Context) -> Any:
        """Run the command that the user named. click calls this.

        Args:
            context: click's state of the program.

        Raises:
            StorageError: A pipe or connection of the command is broken.
        """
        try:
            return super().invoke(context)
        except BrokenPipeError as error:
            # click would take this for a closed standard output, and end without a message. But
            # standard output ignores that its reader has ended, so it is another pipe, such as the
            # one of a worker process.
            raise StorageError(
                "a pipe or a connection is broken",
                found=str(error),
                remedy="run again: what is finished is kept",
            ) from error

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the user named. click calls this before it runs the command.

        If there is none, the error suggests one that is spelt similarly: `nanoset statsu` ends with
        "No such command 'statsu'. Did you mean 'status'?"

        Args:
            context: click's state of the program.
            args: The arguments after `nanoset`, such as ["status", "--json"].

        Returns:
            (name of the command, the command, its arguments).

        Raises:
            UsageError: There is no such command.
        """
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            suggestion = closest_name(args[0], self.list_commands(context))
            # Newer versions of click may suggest one themselves.
            if suggestion is None or "Did you mean" in error.format_message():
                raise
            raise click.UsageError(
                f"{error.format_message()} Did you mean {suggestion!r}?", context
            ) from error


def _command_modules() -> set[str]:
    """Return the names of the modules in `nanoset_core.cli.commands`."""
    return {module.name for module in pkgutil.iter_modules(commands.__path__)}


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nanoset-platform", prog_name="nanoset")
def nanoset() -> None:
    """Turn raw text into training data: tokenized, indexed, blended and shuffled."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program `nanoset`, print an error as text if it fails, and end this process.

    The exit code says what happened, as scripts expect it:

        0      success
        1      an error
        2      wrong usage, such as an option that does not exist
        130    Ctrl-C, which is signal 2; 128 + n after signal n

    Args:
        arguments: What follows `nanoset` on the command line, such as ["status", "--json"]; None
            to take it from this process, as usual.

    Raises:
        SystemExit: Always, with the exit code.
    """
    _make_printing_safe()
    _skip_final_garbage_collection()

    # From here on, Ctrl-C raises KeyboardInterrupt. It waits until `_exit_code` can handle it,
    # which then calls `release_signals`.
    with signals_held() as release_signals, interruptible():
        code = _exit_code(arguments, release_signals)
        if code != 0:
            _end_worker_processes()
    sys.exit(code)


def _skip_final_garbage_collection() -> None:
    """Prevent that Python looks for garbage at the end of the program, which takes a second."""
    atexit.register(gc.freeze)


def _end_worker_processes() -> None:
    """End worker processes that are still running after an error.

    They belong to unfinished generators. Collecting these as garbage ends the processes.
    """
    gc.collect()


def _make_printing_safe() -> None:
    """Make sure that printing does not end the program.

    For example, an output may be closed, or the disk with the log may be full.
    """
    _open_missing_streams()
    _ignore_end_of_reader()
    _make_stderr_unfailing()
    _escape_unknown_letters()


def _open_missing_streams() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that the caller has closed.

    A shell closes standard output by `nanoset status >&-`, for example. Then its number, 1, is
    free. The next file that the program opens would get this number, so that all printed text would
    end up in that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _ignore_end_of_reader() -> None:
    """Make standard output drop what is printed after the program that reads it has ended.

    In `nanoset purge x7 --yes | head -1`, the program `head` ends after the first line. The purge
    should not stop in the middle of its work because of that.
    """
    # A test runner may have replaced the stream by another object, which is left as it is.
    if type(sys.stdout) is TextIOWrapper and sys.stdout.fileno() == _STDOUT:
        sys.stdout = with_file(sys.stdout, StandardOutput(_STDOUT, "w", closefd=False))


def _make_stderr_unfailing() -> None:
    """Make standard error drop what cannot be written, instead of raising an error.

    It often goes to a log file. If the disk of the log is full, a build that has run for hours
    should continue.
    """
    # A test runner may have replaced the stream by another object, which is left as it is.
    if type(sys.stderr) is TextIOWrapper and sys.stderr.fileno() == _STDERR:
        sys.stderr = with_file(sys.stderr, UnfailingFile(_STDERR, "w", closefd=False))


def _escape_unknown_letters() -> None:
    r"""Print an escape such as "\xe9" for a letter that the terminal cannot show, such as "é".

    Otherwise Python would raise an error when such a letter is printed.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _exit_code(arguments: Sequence[str] | None, release_signals: Callable[[], None]) -> int:
    """Run a command of `nanoset`, print the error if it fails, and return the exit code.

        0          success
        1          an error, which is printed
        2          wrong usage, such as an unknown option
        128 + n    it was ended by signal n: 130 for Ctrl-C, which is signal 2

    After Ctrl-C, Python raises KeyboardInterrupt. But other code may catch that, or raise another
    error in its place. So whenever a command ends, also ask `received_signal` whether a signal
    came, and if so, report that instead.

    Args:
        arguments: What follows `nanoset` on the command line; None to take it from this process.
        release_signals: Signals have been held back while the program started, when nothing could
            handle them. Calling this function lets them arrive.
    """
    try:
        release_signals()  # from now on, a signal raises KeyboardInterrupt
        code = _run(arguments)
        drop_further_signals()  # from now on, a signal is too late to interrupt the command

        # The command has ended normally. But a library may have caught KeyboardInterrupt.
        was_interrupted = received_signal() is not None
        if was_interrupted:
            return _report_interruption()
        return code
    except (KeyboardInterrupt, click.Abort):
        return _report_interruption()
    except click.ClickException as error:  # wrong usage
        text = StringIO()
        error.show(text)
        echo(Multiline(text.getvalue()), nl=False, err=True)  # it quotes arguments of the user
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last handler
        # Ctrl-C also ends worker processes. Then the error that a worker has ended may come first,
        # before KeyboardInterrupt.
        was_interrupted = received_signal() is not None
        if was_interrupted:
            return _report_interruption()
        print_error(message(error))
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command of `nanoset`, and make sure that all it printed is written.

    Args:
        arguments: What follows `nanoset` on the command line; None to take it from this process.

    Returns:
        The exit code: usually 0.

    Raises:
        OSError: The output cannot be written, for example because the disk is full.
    """
    try:
        with printing_former_names():
            code = nanoset.main(args=arguments, prog_name="nanoset", standalone_mode=False)
    except SystemExit as exit_request:
        code = exit_request.code

    # Python itself would do this when it ends, but would not report an error properly.
    sys.stdout.flush()

    # A command that succeeds returns None. If it called `sys.exit(3)`, the code is 3.
    if isinstance(code, int):
        return code
    return 0


def message(error: BaseException) -> Multiline:
    """Return what an error means and what to do, as text for the user.

    Errors that this package expects, such as a missing file, explain themselves. Any other error is
    a mistake of this package. Then its traceback is written to a file, which the message names, so
    that the user can report it:

        an internal error of nanoset
          found: KeyError: 'web'
          remedy: run again: what is finished is kept; if the error occurs again, report it with
            /tmp/nanoset-x1.log

    Args:
        error: The error that ended a command.

    Returns:
        Several lines; `Multiline` marks text whose line ends are printed, and not escaped.
    """
    shown_error = _known_error(error)
    if shown_error is None:
        trace = without_secrets("".join(traceback.format_exception(error)))
        shown_error = NanosetError(
            "an internal error of nanoset",
            found=trace.splitlines()[-1],
            remedy=Multiline(f"{_first_remedy(error)}; {_report_remedy(trace)}"),
        )
    return Multiline(str(shown_error))


def _first_remedy(error: BaseException) -> str:
    """Return what the user should try first after an unexpected error.

    Args:
        error: The error that ended a command.
    """
    if isinstance(error, ImportError):
        # A file of a package is missing, or does not fit the others. The next call would fail, too.
        return "install nanoset again, and look whether `pip check` finds a problem"
    return "run again: what is finished is kept"


def _report_remedy(trace: str) -> str:
    """Write the traceback of an unexpected error to a file, and say how the user can report it.

    For example: "if the error occurs again, report it with /tmp/nanoset-x1.log".

    Args:
        trace: The traceback. If no file can be written, the result contains it.
    """
    remedy = "if the error occurs again, report"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="nanoset-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            log.write(trace)
    except OSError:
        return f"{remedy} this:\n{trace}"
    return f"{remedy} it with {log.name}"


def _known_error(error: BaseException) -> BaseException | None:
    """Return an error that explains itself to users, or None if the error was not expected.

    - An error of this package says what is wrong and what to do. It is returned as it is.
    - An error of the operating system, such as "No space left on device", is replaced by one of
      this package.
    - A name of a file that is not UTF-8 causes an error when it is printed. This one is replaced,
      too.
    - Any other error is a mistake of this package: None.

    Args:
        error: The error that ended a command.
    """
    if isinstance(error, NanosetError):
        return error

    # Python's own error for this names no path.
    if isinstance(error, FileNotFoundError) and not _has_current_folder():
        return MissingError(
            "the current folder does not exist any more",
            remedy="change to a folder that exists, and run again",
        )

    # An error of the operating system, such as a full disk, becomes one that says what to do.
    storage_error = explained_error(error)
    if storage_error is not None:
        return storage_error
    if isinstance(error, UnicodeEncodeError):
        return _error_of_undecoded_bytes(error.object)
    return None


def _has_current_folder() -> bool:
    """Return whether the current folder exists. Somebody may have deleted it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _error_of_undecoded_bytes(text: str) -> ConfigError | None:
    r"""Return the error for an argument or a name of a file that is not encoded in UTF-8.

    Such a name may come from an old system: "é" in Latin-1 is the single byte E9. Python reads this
    byte as "\udce9", a character that stands for a byte and cannot be written in any encoding.

    Args:
        text: A text that could not be encoded, and may be such a name.

    Returns:
        The error; None if the text has no such characters.
    """
    text_with_escapes = visible(text)  # replaces such characters
    if text_with_escapes == text:
        return None
    return ConfigError(
        "a text that was given is not UTF-8",
        found=ascii(text[:_SHOWN_CHARACTERS]),
        expected="UTF-8 in arguments and in names of files",
        remedy="write it in UTF-8",
    )


def _report_interruption() -> int:
    """Print that the command was interrupted and how to continue it, and return the exit code.

    Returns:
        128 plus the number of the signal, as shells do: 130 after Ctrl-C, which is signal 2
        (SIGINT), and 143 after `kill`, which sends signal 15 (SIGTERM).
    """
    drop_further_signals()  # a second Ctrl-C must not cut off the message
    number = received_signal() or signal.SIGINT
    text = INTERRUPTED  # it begins with "interrupted"
    if number != signal.SIGINT:
        text = text.replace("interrupted", f"ended by {number.name}", 1)
    echo(Multiline(text), err=True)
    return 128 + number
