"""`nanoset pack`: the former name of `nanoset pbin`."""

from __future__ import annotations

from typing import Any

import click

from nanoset_core.cli.commands.pbin import PbinGroup
from nanoset_core.cli.commands.pbin import command as pbin
from nanoset_core.cli.former_names import warn_of_former_name


class _FormerGroup(PbinGroup):
    """The commands of `nanoset pbin`, with a warning."""

    def invoke(self, context: click.Context) -> Any:
        """Print a warning with the new name, and run the command that the arguments name."""
        warn_of_former_name("`nanoset pack` is the former name of `nanoset pbin`")
        return super().invoke(context)


command = _FormerGroup(
    "pack",
    commands=pbin.commands,
    help="Deprecated: the former name of `nanoset pbin`.",
    hidden=True,
)
