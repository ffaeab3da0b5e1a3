"""Options that subcommands share: made from the fields of settings, and flags that take several values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click

from nanoset_core.config import CONFIG_FILE
from nanoset_core.serialization.settings import MISSING, alternatives, bare, range_of, setting
from nanoset_core.storage.location import is_remote, remote_location

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class LocationType(click.Path):
    """A local path, or, where allowed, a location in a bucket (s3://bucket/path)."""

    def __init__(self, *, anywhere: bool = False, **given: Any) -> None:
        """anywhere: whether it may be in a bucket; given: arguments of `click.Path`."""
        super().__init__(path_type=Path, **given)
        self._anywhere = anywhere

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or not is_remote(value):
            return super().convert(value, param, ctx)
        if not self._anywhere:
            self.fail(f"{value!r} is in a bucket; a local path is expected.", param, ctx)
        return remote_location(value, where=param.opts[-1] if param is not None else "the path")


class NumberRange(click.FloatRange):
    """A finite number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return float(number)


FILE = LocationType(dir_okay=False)
FOLDER = LocationType(file_okay=False)
PATH = LocationType()
ANY_FILE = LocationType(dir_okay=False, anywhere=True)
ANY_FOLDER = LocationType(file_okay=False, anywhere=True)
ANY_PATH = LocationType(anywhere=True)

CONFIG_OPTION = click.option(
    *("--config", "-c"), type=FILE, default=Path(CONFIG_FILE), show_default=True, envvar="NANOSET_CONFIG",
    help="The project's nanoset.yaml.",
)  # fmt: skip
OVERWRITE_OPTION = click.option(
    "--overwrite", is_flag=True, help="Replace an output of other input or settings; else that is an error."
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def options_for(section: type[DataclassInstance], *names: str) -> Callable[[Decorated], Decorated]:
    """Return the options of several fields of a settings dataclass, each as `option_for` makes it."""
    return lambda command: reduce(lambda made, name: option_for(section, name)(made), reversed(names), command)


def option_for(
    section: type[DataclassInstance], name: str, *flags: str, **given: Any
) -> Callable[[Decorated], Decorated]:
    """Return an option that takes its type, range, choices, default and help from the field of a settings dataclass.

    Args:
        section: the dataclass, such as `NanosetSpec`.
        name: its field, and the parameter of the command.
        flags: how it is called; default `--name`, with dashes.
        given: arguments of `click.option` that do not come from the field; `param` renames the parameter.
    """
    found = setting(section, name)
    first = alternatives(found.hint)[0]
    hint, between = bare(first), range_of(first)
    kind: dict[str, Any] = {"help": found.help}
    if found.default is MISSING:
        kind["required"] = True
    elif found.default is not None:
        kind |= {"default": found.default, "show_default": hint is not bool}
    if hint is bool:
        kind["is_flag"] = True
    elif get_origin(hint) is Literal:
        kind["type"] = click.Choice(get_args(hint))
    elif get_origin(hint) is tuple:
        kind |= {"multiple": True, "type": get_args(hint)[0]}
    elif between is not None:
        high = None if between.high is None else hint(between.high)
        kind["type"] = (click.IntRange if hint is int else NumberRange)(hint(between.low), high)
    else:
        kind["type"] = PATH if hint is Path else hint
    parameter = given.pop("param", name)
    return click.option(*(flags or (f"--{name.replace('_', '-')}",)), parameter, **kind | given)


class ManyValued(click.Command):
    """A command that takes several values after one flag, as Megatron-LM's tools do: --input a b c."""

    many = (
        *("--input", "--json-keys", "--json-key", "--data-path", "--train-data-path", "--valid-data-path"),
        *("--test-data-path", "--tokenizer-special-tokens", "--tiktoken-special-tokens"),
    )

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        flag: str | None = None
        options = {name for parameter in self.params for name in parameter.opts if name.startswith("-")}
        for argument in args:
            if argument.startswith("--") or argument in options:
                flag = argument if argument in self.many else None
                spread += [] if flag else [argument]
            else:
                spread += [flag, argument] if flag else [argument]
        return super().parse_args(context, spread)
