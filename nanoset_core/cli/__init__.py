"""The `nanoset` command: options, tables, and one file for each subcommand."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nanoset_core.execution.interruption import exit_on_sigint

if TYPE_CHECKING:
    from nanoset_core.cli.entry import nanoset

__all__ = ["main", "nanoset"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program `nanoset`, as `nanoset_core.cli.entry.main` does, and end this process.

    That module takes a moment to import. Ctrl-C during the import ends the program without a
    traceback.

    Args:
        arguments: What follows `nanoset` on the command line, such as ["status", "--json"]; None to
            take it from this process.

    Raises:
        SystemExit: Always, with the exit code.
    """
    # Importing creates many objects that stay. Looking for garbage among them after every 700 new
    # ones, as Python does, takes 5 % of the time of a short command.
    gc.set_threshold(10_000)
    with exit_on_sigint():
        from nanoset_core.cli.entry import main as run

        run(arguments)


def __getattr__(name: str) -> Any:
    """Return the group of commands, `nanoset`, which is imported when it is first used."""
    if name != "nanoset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nanoset_core.cli.entry import nanoset

    return nanoset
