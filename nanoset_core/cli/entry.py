"""The `nanoset` command. Every subcommand is a thin call; those that need Dagster come from nanoset_assets."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

import click

from nanoset_core.cli import commands
from nanoset_core.errors import NanosetError

PLUGINS = "nanoset.commands"


class _Commands(click.Group):
    """The files of nanoset_core.cli.commands, and what installed packages add; each is imported when used."""

    def list_commands(self, context: click.Context) -> list[str]:
        own = {module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__)}
        return sorted(own | {entry.name for entry in entry_points(group=PLUGINS)})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        module = name.replace("-", "_")
        found: click.Command | None
        if any(file.name == module for file in pkgutil.iter_modules(commands.__path__)):
            found = importlib.import_module(f"{commands.__name__}.{module}").command
        else:
            found = next((entry.load() for entry in entry_points(group=PLUGINS, name=name)), None)
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nanoset-platform", prog_name="nanoset")
def nanoset() -> None:
    """From raw text to training data: tokenized, indexed, blended and shuffled."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors of ours are shown as text, without a traceback."""
    try:
        nanoset.main(args=arguments, prog_name="nanoset")
    except NanosetError as error:
        click.secho("error: ", fg="red", bold=True, err=True, nl=False)
        click.echo(str(error), err=True)
        sys.exit(1)
