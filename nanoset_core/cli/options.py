"""What subcommands share: common options, and flags that take several values."""

from __future__ import annotations

from pathlib import Path

import click

from nanoset_core.config.project import CONFIG_FILE

CONFIG_OPTION = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path(CONFIG_FILE),
    show_default=True,
    envvar="NANOSET_CONFIG",
    help="The project's nanoset.yaml.",
)


class ManyValued(click.Command):
    """Takes several values after one flag, as the peers' tools do: --input a b c."""

    many = (
        "--input",
        "--json-keys",
        "--json-key",
        "--data-path",
        "--train-data-path",
        "--valid-data-path",
        "--test-data-path",
    )

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        flag: str | None = None
        for argument in args:
            if argument.startswith("--"):
                flag = argument if argument in self.many else None
                if flag is None:
                    spread.append(argument)
            elif flag is not None:
                spread += [flag, argument]
            else:
                spread.append(argument)
        return super().parse_args(context, spread)
