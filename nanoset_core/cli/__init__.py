"""The `nanoset` command: options, tables, and one file for each subcommand."""

from nanoset_core.cli.entry import main, nanoset

__all__ = ["main", "nanoset"]
