"""What subcommands share: options made from the fields of settings, and flags that take several values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import click

from nanoset_core.config import CONFIG_FILE
from nanoset_core.serialization.settings import MISSING, Setting, alternatives, bare, range_of, setting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PATH = click.Path(path_type=Path)

CONFIG_OPTION = click.option(
    "--config",
    "-c",
    type=FILE,
    default=Path(CONFIG_FILE),
    show_default=True,
    envvar="NANOSET_CONFIG",
    help="The project's nanoset.yaml.",
)
OVERWRITE_OPTION = click.option(
    "--overwrite", is_flag=True, help="Replace an output of other input or settings; else that is an error."
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def option_for(
    section: type[DataclassInstance], name: str, *flags: str, **given: Any
) -> Callable[[Decorated], Decorated]:
    """An option that takes its type, range, choices, default and help from the field of a settings dataclass.

    Args:
        section: the dataclass, such as `NanosetSpec`.
        name: its field, and the parameter of the command.
        flags: how it is called; default `--name`, with dashes.
        given: arguments of `click.option` that do not come from the field; `param` renames the parameter.
    """
    found = setting(section, name)
    parameter = given.pop("param", name)
    return click.option(*(flags or (f"--{name.replace('_', '-')}",)), parameter, **_of_field(found) | given)


def _of_field(found: Setting) -> dict[str, Any]:
    """Arguments of `click.option`."""
    kind: dict[str, Any] = {"help": found.help}
    if found.default is MISSING:
        kind["required"] = True
    elif found.default is not None:
        kind |= {"default": found.default, "show_default": True}
    if found.choices:
        return kind | {"type": click.Choice(found.choices)}
    first = alternatives(found.hint)[0]
    hint, between = bare(first), range_of(first)
    if hint is bool:
        return {"help": found.help, "is_flag": True, "default": found.default}
    if get_origin(hint) is tuple:
        return kind | {"multiple": True, "type": get_args(hint)[0]}
    if between is not None:
        low, high = hint(between.low), None if between.high is None else hint(between.high)
        return kind | {"type": (click.IntRange if hint is int else click.FloatRange)(low, high)}
    return kind | {"type": PATH if hint is Path else hint}


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
        "--tokenizer-special-tokens",
        "--tiktoken-special-tokens",
    )

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        flag: str | None = None
        options = {name for parameter in self.params for name in parameter.opts if name.startswith("-")}
        for argument in args:
            if argument.startswith("--") or argument in options:
                flag = argument if argument in self.many else None
                if flag is None:
                    spread.append(argument)
            elif flag is not None:
                spread += [flag, argument]
            else:
                spread.append(argument)
        return super().parse_args(context, spread)
