"""The `nanoset` command. Every subcommand is a thin call; those that need Dagster come from nanoset_assets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click

from nanoset_core.errors import NanosetError

PLUGINS = "nanoset.commands"


class _Commands(click.Group):
    """Subcommands of this module, and those that installed packages add; the latter are imported when used."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *(entry.name for entry in entry_points(group=PLUGINS))})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if (command := super().get_command(context, name)) is not None:
            return command
        for entry in entry_points(group=PLUGINS, name=name):
            return entry.load()
        return None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nanoset-platform", prog_name="nanoset")
def nanoset() -> None:
    """From raw text to training data: tokenized, indexed, blended and shuffled."""


@nanoset.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("demo"))
@click.option("--megabytes", default=24.0, show_default=True, help="About how much text to take.")
@click.pass_context
def demo(context: click.Context, folder: Path, megabytes: float) -> None:
    """Write an example project of real text into FOLDER (default: demo) and build it."""
    from nanoset_core.config import CONFIG_FILE
    from nanoset_core.demo.writing import write_demo

    if not write_demo(folder, megabytes=megabytes, say=lambda line: click.echo(f"{line} …", err=True)):
        click.echo(f"{folder / CONFIG_FILE} is there already: building what is missing or stale", err=True)
    build = nanoset.get_command(context, "build")
    if build is None:
        raise click.ClickException("`nanoset build` is not installed: install nanoset-platform whole")
    context.invoke(build, config=folder / CONFIG_FILE)


@nanoset.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def init(folder: Path) -> None:
    """Write a nanoset.yaml to start from into FOLDER, naming the corpora that its raw folder holds."""
    from nanoset_core.starting import write_config

    path = write_config(folder)
    click.echo(f"wrote {path}: read it, name your tokenizer, then run `nanoset build`")


@nanoset.command()
@click.argument("prefix", type=click.Path(path_type=Path))
@click.option("--tokenizer", type=click.Path(path_type=Path, dir_okay=False), help="A tokenizer.json to decode with.")
@click.option("--sequences", default=3, show_default=True, help="How many sequences to show.")
def inspect(prefix: Path, tokenizer: Path | None, sequences: int) -> None:
    """Show what the indexed dataset at PREFIX (.bin/.idx) holds, and its first sequences."""
    from nanoset_core.inspection.summary import describe_dataset

    for line in describe_dataset(prefix, tokenizer, sequences):
        click.echo(line)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors of ours are shown as text, without a traceback."""
    try:
        nanoset.main(args=arguments, prog_name="nanoset")
    except NanosetError as error:
        click.secho("error: ", fg="red", bold=True, err=True, nl=False)
        click.echo(str(error), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
