"""Options that several commands share, and options made from the settings of nanoset.yaml.

A setting of nanoset.yaml is a field of a dataclass with a type, a range, a default and a docstring.
`option_for(NanosetSpec, "seed")` makes the option `--seed` of it, with the same range, default and
help. So a command and nanoset.yaml cannot differ.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from nanoset_core.cli.echo import echo
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.settings import MISSING, Setting, alternatives, bare, range_of, setting
from nanoset_core.storage.location import is_remote, remote_location

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class LocationType(click.Path):
    """A local path, or a location in a bucket (s3://bucket/path) if that is allowed."""

    def __init__(self, *, anywhere: bool = False, **arguments: Any) -> None:
        """Create a parameter type.

        Args:
            anywhere: Whether the location may be in a bucket.
            arguments: Further arguments of `click.Path`.
        """
        super().__init__(path_type=Path, **arguments)
        self._anywhere = anywhere

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path or location that a user gave; fail if it is not allowed.

        Args:
            value: The text that the user gave.
            param: The option or argument, for errors.
            ctx: The command, for errors.

        Returns:
            A `Path`, or the location of an object in a bucket.

        Raises:
            BadParameter: The text is empty, or names a bucket where only local paths are allowed.
            ConfigError: The location in a bucket is not valid.
        """
        if value == "":
            self.fail("the path is empty.", param, ctx)
        if not isinstance(value, str) or not is_remote(value):
            return super().convert(value, param, ctx)
        if not self._anywhere:
            self.fail(f"{value!r} is in a bucket; a local path is expected.", param, ctx)
        flag_name = "the path" if param is None else param.opts[-1]
        return remote_location(value, where=flag_name)


class NumberRange(click.FloatRange):
    """A finite number within bounds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number that a user gave; fail if it is not finite or out of bounds.

        Args:
            value: The text that the user gave, such as "0.5".
            param: The option or argument, for errors.
            ctx: The command, for errors.

        Returns:
            The number.

        Raises:
            BadParameter: The text is not a number, or the number is not allowed.
        """
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return float(number)


# Types of options and arguments. Those with ANY_ may be in a bucket, too.
FILE = LocationType(dir_okay=False)
FOLDER = LocationType(file_okay=False)
PATH = LocationType()
ANY_FILE = LocationType(dir_okay=False, anywhere=True)
ANY_FOLDER = LocationType(file_okay=False, anywhere=True)
ANY_PATH = LocationType(anywhere=True)


def option(names: str, help: str, **arguments: Any) -> Callable[[Decorated], Decorated]:
    """Return an option of a command.

    Args:
        names: The flags, separated by spaces; perhaps with the name of the command's parameter, as
            in "--config -c" or "--json as_json".
        help: What the option means, for --help.
        arguments: Further arguments of `click.option`.

    Returns:
        A decorator for the function of the command.
    """
    return click.option(*names.split(), help=help, **arguments)


def flag(names: str, help: str, **arguments: Any) -> Callable[[Decorated], Decorated]:
    """Return an option without a value: it is True if the user gives it.

    Args:
        names: The flags, separated by spaces; perhaps with the name of the command's parameter.
        help: What the option means, for --help.
        arguments: Further arguments of `click.option`.

    Returns:
        A decorator for the function of the command.
    """
    return option(names, help, is_flag=True, **arguments)


def combined(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Return one decorator that adds several options to a command.

    Args:
        options: Decorators, each of which adds an option.

    Returns:
        A decorator for the function of the command. --help lists the options in the order given.
    """

    def decorate(command: Decorated) -> Decorated:
        """Add the options to a command; the last one first, since each is added at the front."""
        for add_option in reversed(options):
            command = add_option(command)
        return command

    return decorate


def _find_config(context: click.Context, parameter: click.Parameter, value: Path) -> Path:
    """Return the path of the project's nanoset.yaml, which need not exist.

    --config names the file or its folder. By default, the file is looked for in the current folder
    and then, as git does, in the folders above.

    Args:
        context: Knows the other parameters of the command.
        parameter: The option --config.
        value: The value of the option; by default the name of the file, in the current folder.

    Returns:
        The path as the user wrote it, or that of a file in a folder above.
    """
    if os.path.isdir(value):
        return value / CONFIG_FILE
    source = context.get_parameter_source(parameter.name or "")
    is_given = source is not ParameterSource.DEFAULT
    if is_given or os.path.exists(value):
        return value

    # `nanoset verify PREFIX` checks files that belong to no project. Its argument is `prefix`.
    has_no_project = context.params.get("prefix") is not None
    if has_no_project:
        return value
    return _config_above(value)


def _config_above(file_name: Path) -> Path:
    """Return the path of the nanoset.yaml in the nearest folder above the current one.

    The path is printed, since a user may not expect it.

    Args:
        file_name: Name of the file, which is returned if no folder above contains it.
    """
    for folder in Path.cwd().parents:
        file = folder / file_name
        if os.path.isfile(file):
            echo(f"project {file}", err=True)
            return file
    return file_name


CONFIG_OPTION = option(
    "--config -c",
    "The project's nanoset.yaml, or its folder; default: the one in this folder, or in the nearest "
    "folder above.",
    type=PATH,
    default=Path(CONFIG_FILE),
    show_default=True,
    envvar="NANOSET_CONFIG",
    callback=_find_config,
)


def _read_ids(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> Sequence[str]:
    """Return the ids in the file that --ids-file names; this is the callback of the option.

    Args:
        context: The command that is being parsed.
        parameter: The option.
        value: The file; None if the option was not given.

    Returns:
        The ids in the order of the file; none without a file.
    """
    from nanoset_core.stages.views.ids import listed_ids

    if value is None:
        return ()
    ids: list[str] = listed_ids(value.parent, [value.name]).to_pylist()
    return ids


IDS_FILE_OPTION = option(
    "--ids-file",
    "A file with further ids, one on each line, as views read them.",
    type=FILE,
    callback=_read_ids,
)
OVERWRITE_OPTION = flag(
    "--overwrite", "Replace an existing output that was made from other input or settings."
)
JSON_OPTION = flag("--json as_json", "Print JSON.")


def options_for(section: type[DataclassInstance], *names: str) -> Callable[[Decorated], Decorated]:
    """Return options that are described by fields of a settings dataclass; see `option_for`.

    Args:
        section: The dataclass, such as `NanosetSpec`.
        names: The fields, which give type, range, choices, default and help of their options.

    Returns:
        A decorator for the function of the command.
    """
    options = [option_for(section, name) for name in names]
    return combined(*options)


def option_for(
    section: type[DataclassInstance],
    name: str,
    *flags: str,
    param: str | None = None,
    **arguments: Any,
) -> Callable[[Decorated], Decorated]:
    """Return an option that is described by a field of a settings dataclass.

    The type, range, choices, default and help are those of the field: `seed: int = 0` gives an
    option `--seed` that takes an integer.

    Args:
        section: The dataclass, such as `NanosetSpec`.
        name: The field, such as `seed`.
        flags: What the option is called; default: `--` and the field's name, with dashes.
        param: The command's parameter; default: the field's name.
        arguments: Arguments of `click.option`; they override those from the field.

    Returns:
        A decorator for the function of the command.
    """
    if not flags:
        flags = (f"--{name.replace('_', '-')}",)
    arguments_from_field = _arguments_of_option(setting(section, name))
    return click.option(*flags, param or name, **(arguments_from_field | arguments))


def _arguments_of_option(field: Setting) -> dict[str, Any]:
    """Return the arguments of `click.option` for an option that sets a field of a dataclass.

    Args:
        field: The field, with its type, default and help.

    Returns:
        Keyword arguments, such as {"help": "…", "type": IntRange(0, 9), "default": 4}.
    """
    # If the field has the type `int | None`, for example, the option takes an int.
    type_of_option = alternatives(field.hint)[0]
    arguments: dict[str, Any] = {"help": field.help, "type": _parameter_type(type_of_option)}

    # Without a default, the option is required. Click knows the default None without being told.
    if field.default is MISSING:
        arguments["required"] = True
    elif field.default is not None:
        arguments["default"] = field.default
        arguments["show_default"] = not isinstance(field.default, bool)

    # An option for a bool is a flag, without a value. (`bare` removes annotations from a type.)
    if bare(type_of_option) is bool:
        arguments["is_flag"] = True
    return arguments


def _parameter_type(hint: Any) -> Any:
    """Return the click type that accepts the values of a setting with this type hint.

    Args:
        hint: A type, a `Literal` of choices, or a type that is annotated with a range, such as
            `Annotated[int, Range(1, 100)]`.

    Returns:
        A type of click, or a plain type such as int or str.
    """
    value_type = bare(hint)  # without the range
    if get_origin(value_type) is Literal:
        return click.Choice(get_args(value_type))
    bounds = range_of(hint)
    if bounds is None or value_type is bool:
        return value_type
    low = value_type(bounds.low)
    high = None if bounds.high is None else value_type(bounds.high)
    if value_type is int:
        return click.IntRange(low, high)
    return NumberRange(low, high)


def build_of(context: click.Context, config: Path) -> Callable[[], None]:
    """Return a function that runs `nanoset build` on a project.

    Args:
        context: The command that calls the function.
        config: The project's nanoset.yaml.

    Returns:
        A function without parameters.

    Raises:
        ClickException: `nanoset build` is not installed, since it needs Dagster.
    """
    from nanoset_core.cli import nanoset

    build = nanoset.get_command(context, "build")
    if build is None:
        raise click.ClickException(
            "`nanoset build` is not installed: install all of nanoset-platform"
        )
    # click calls the command as if it were given on the command line, with its other defaults.
    return partial(context.invoke, build, config=config)


class ManyValued(click.Command):
    """A command that takes several values after one flag, as Megatron-LM's tools do.

    `--input a b c` is read as `--input a --input b --input c`.
    """

    many_valued = (
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
        """Let some flags take several values, and parse the arguments as click does.

        Args:
            context: The context of the command.
            args: The arguments that the user gave.

        Returns:
            The arguments that are left after parsing, as click's method returns them.
        """
        return super().parse_args(context, list(self._with_repeated_flags(args)))

    def _with_repeated_flags(self, args: Sequence[str]) -> Iterator[str]:
        """Yield arguments with each flag that takes several values before each of its values.

        Click takes only one value after a flag. So `--input a b` becomes `--input a --input b`. A
        flag without any value is left out.

        Args:
            args: The arguments that the user gave.

        Yields:
            The arguments as click understands them.
        """
        known_flags = self._known_flags()
        repeated_flag: str | None = None  # the last flag, if it takes several values
        for argument in args:
            # An argument that starts with `-` may be a negative number instead of a flag.
            is_flag = argument.startswith("--") or argument in known_flags
            if is_flag and argument in self.many_valued:
                repeated_flag = argument
                continue
            if is_flag:
                repeated_flag = None
            elif repeated_flag is not None:
                yield repeated_flag
            yield argument

    def _known_flags(self) -> set[str]:
        """Return the flags of the command, such as `--output` and `-o`."""
        names: set[str] = set()
        for parameter in self.params:
            names.update(parameter.opts)
        # An argument of the command has a name without dashes.
        return {name for name in names if name.startswith("-")}
