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
    signals_held,
)
from nanoset_core.storage.os_errors import explained_error
from nanoset_core.untrusted import Multiline, visible, without_secrets

_STDERR = 2
"""The file descriptor of standard error."""
_SHOWN_CHARACTERS = 200
"""Characters that are shown of a text that cannot be encoded."""
PLUGINS = "nanoset.commands"
"""Group of entry points by which other packages add commands, such as `nanoset build`."""


class _Commands(click.Group):
    """The commands of this package and of plugins, each imported when it is used.

    A command of this package is a module of `nanoset_core.cli.commands` with the same name.
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
        """Import and return the command with a name: of this package, or else of a plugin.

        Args:
            context: The context in which the command will run.
            name: The name that the user wrote, such as "import-parquet".

        Returns:
            The command; None if there is none with this name.
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

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; this is called by click.

        Args:
            context: The context of the group of commands.
            args: The arguments, which begin with the name of a command.

        Returns:
            (name of the command, the command, its arguments).

        Raises:
            UsageError: There is no such command; the error suggests one that is spelt similarly.
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
    """Run the command, and exit: errors are printed as text, and are visible in the exit code.

    Args:
        arguments: The arguments of the command line; None for those of this process.

    Raises:
        SystemExit: Always, with the exit code.
    """
    _open_missing_streams()
    _make_stderr_unfailing()
    _escape_unknown_letters()
    # With Dagster loaded, the garbage collection at the end of Python would take a second. Exempt
    # all objects from it.
    atexit.register(gc.freeze)

    # In this block, signals such as Ctrl-C raise KeyboardInterrupt. They are held back until
    # `_exit_code` is in the `try` that handles it, and calls `release_signals`.
    with signals_held() as release_signals, interruptible():
        code = _exit_code(arguments, release_signals)
        if code:
            gc.collect()  # an error may have left generators open: this ends their worker processes
    sys.exit(code)


def _open_missing_streams() -> None:
    """Open /dev/null for standard streams that the caller closed.

    Otherwise the next file that is opened would get the number of the stream, and would contain
    what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _make_stderr_unfailing() -> None:
    """Drop what cannot be written to standard error: a full log disk must not end the command."""
    # A test runner may have replaced the stream. That is not a file, and is left as it is.
    is_file = type(sys.stderr) is TextIOWrapper and sys.stderr.fileno() == _STDERR
    if not is_file:
        return
    sys.stderr.flush()
    unfailing_file = UnfailingFile(_STDERR, "w", closefd=False)
    sys.stderr = TextIOWrapper(
        BufferedWriter(unfailing_file), encoding=sys.stderr.encoding, line_buffering=True
    )


def _escape_unknown_letters() -> None:
    """Print "\\xe9" instead of "é" if the encoding of the terminal does not have this letter."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _exit_code(arguments: Sequence[str] | None, release_signals: Callable[[], None]) -> int:
    """Run the command; print an error if it fails, and return the exit code.

    Args:
        arguments: The arguments of the command line; None for those of this process.
        release_signals: Lets signals arrive that were held back until they can be handled here.

    Returns:
        0 for success, 1 for an error, 2 for wrong usage, and 128 + n after signal n.
    """
    try:
        release_signals()  # from now on, a signal raises KeyboardInterrupt
        code = _run(arguments)
        # A library may have caught this exception, so that the command ended normally.
        was_interrupted = received_signal() is not None
        return _report_interruption() if was_interrupted else code
    except (KeyboardInterrupt, click.Abort):
        return _report_interruption()
    except click.ClickException as error:  # wrong usage
        text = StringIO()
        error.show(text)
        echo(Multiline(text.getvalue()), nl=False, err=True)  # it quotes arguments of the user
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last handler
        # Ctrl-C also ends worker processes. Their error may be raised before KeyboardInterrupt.
        was_interrupted = received_signal() is not None
        if was_interrupted:
            return _report_interruption()
        echo("error: ", fg="red", bold=True, err=True, nl=False)
        echo(message(error), err=True)
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command, and return its exit code.

    Args:
        arguments: The arguments of the command line; None for those of this process.

    Returns:
        The code with which the command ended; 1 if the reader of its output has ended before.

    Raises:
        OSError: The output cannot be written, for example because the disk is full.
    """
    try:
        with printing_former_names():
            code = nanoset.main(args=arguments, prog_name="nanoset", standalone_mode=False)
    except SystemExit as exit_request:
        code = exit_request.code

    is_output_read = _flush_output()  # no longer if it was piped to `head`, which has ended
    if not is_output_read:
        return 1
    # A command that succeeds returns nothing. A number is that of `sys.exit`, or of `--help`.
    return code if isinstance(code, int) else 0


def _flush_output() -> bool:
    """Write what was printed but is still in a buffer, while an error can be reported.

    Returns:
        False if the reader of standard output has ended, as `head` does.

    Raises:
        OSError: The output cannot be written, for example because the disk is full.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes again when it ends: let that write to nowhere, or it would fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return False
        error.filename = "standard output"  # so that the message says what could not be written
        raise
    return True


def message(error: BaseException) -> Multiline:
    """Return what an error means and what to do, as text for the user.

    The traceback of an unexpected error is written to a file, which the message names.

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
            remedy=Multiline(_report_remedy(trace)),
        )
    return Multiline(str(shown_error))


def _report_remedy(trace: str) -> str:
    """Write a traceback to a file, and return how the user can report it.

    Args:
        trace: The traceback. If no file can be written, it is part of the result.

    Returns:
        What the user should do, with the name of the file.
    """
    remedy = "run again: what is finished is kept; if the error occurs again, report"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="nanoset-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            log.write(trace)
    except OSError:
        return f"{remedy} this:\n{trace}"
    return f"{remedy} it with {log.name}"


def _known_error(error: BaseException) -> BaseException | None:
    """Return an error that explains itself to users, or None if this one is unexpected.

    Args:
        error: The error that ended a command. Errors of this project explain themselves; an error
            of the operating system is replaced by one that does.
    """
    if isinstance(error, NanosetError):
        return error

    # An error of the operating system, such as a full disk, becomes one that says what to do.
    storage_error = explained_error(error, where="what was being read or written")
    if storage_error is not None:
        return storage_error
    if isinstance(error, UnicodeEncodeError):
        return _error_of_undecoded_bytes(error.object)
    return None


def _error_of_undecoded_bytes(text: str) -> ConfigError | None:
    """Return the error for an argument or name of a file that is not UTF-8.

    Python turns each byte that is not UTF-8 into a character that no encoding can write.

    Args:
        text: A text that could not be encoded.

    Returns:
        The error; None if the text has no such characters.
    """
    has_undecoded_bytes = visible(text) != text  # `visible` escapes these characters
    if not has_undecoded_bytes:
        return None
    return ConfigError(
        "a text that was given is not UTF-8",
        found=ascii(text[:_SHOWN_CHARACTERS]),
        expected="UTF-8 in arguments and in names of files",
        remedy="write it in UTF-8",
    )


def _report_interruption() -> int:
    """Print that a signal ended the command, and how to continue; return the exit code."""
    drop_further_signals()
    number = received_signal() or signal.SIGINT
    text = INTERRUPTED
    if number != signal.SIGINT:
        text = text.replace("interrupted", f"ended by {number.name}", 1)
    echo(Multiline(text), err=True)
    return 128 + number
