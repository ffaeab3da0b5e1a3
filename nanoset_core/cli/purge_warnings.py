"""Warn of purges that were interrupted: the same lines in all commands that examine outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanoset_core.cli.echo import echo

if TYPE_CHECKING:
    from nanoset_core.project.project import Project


def print_interrupted_purges(project: Project, *, err: bool = False) -> None:
    """Print a warning for each purge that was interrupted, in full each time until it is finished.

    Other warnings are only counted once the user has seen them. But as long as a purge is not
    finished, documents are stored that somebody has demanded to be erased.

    Args:
        project: The project.
        err: Whether to print to standard error, because the command prints JSON.
    """
    from nanoset_core.project.purge.interrupted import interrupted_purges

    for purge in interrupted_purges(project.outputs):
        echo(f"warning: {purge}", fg="yellow", bold=True, err=err)
