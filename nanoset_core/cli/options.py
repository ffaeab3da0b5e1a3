"""Options that several commands share, and options made from the settings of nanoset.yaml.

A setting of nanoset.yaml is a field of a dataclass with a type, a range, a default and a docstring.
`option_for(NanosetSpec, "seed")` makes the option `--seed` of it, with the same range, default and
help. So a command and nanoset.yaml cannot differ.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from nanoset_core.cli.echo import echo
from nanoset_core.errors import MissingError
from nanoset_core.records.parsing import CONFIG_FILE, CONFIG_VARIABLE, config_file
from nanoset_core.records.settings import MISSING, Setting, alternatives, bare, range_of, setting
from nanoset_core.storage.location import is_remote, remote_location

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class LocationType(click.Path):
    """The type of an option whose value is a local path, or the address of an object in a bucket.

    For example, "web.jsonl" becomes a `Path`. "s3://bucket/web.jsonl" becomes a location that has
    the same methods, if the option allows it; otherwise it is an error.
    """

    def __init__(self, *, anywhere: bool = False, **arguments: Any) -> None:
        """Create a parameter type.

        Args:
            anywhere: Whether the location may be in a bucket.
            arguments: Further arguments of `click.Path`.
        """
        super().__init__(path_type=Path, **arguments)
        self._anywhere = anywhere

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the text that a user gave for an option to a path; click calls this.

            "web.jsonl"                a `Path`
            "s3://bucket/web.jsonl"    a location in a bucket, if the option allows it
            ""                         an error

        Args:
            value: The text. click may also pass a default, which is a `Path` already.
            param: The option or argument, for errors.
            ctx: The command, for errors.

        Raises:
            BadParameter: The path is empty, or is in a bucket where only local paths are allowed.
            ConfigError: The address in a bucket is not valid.
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
        """Convert the text that a user gave for an option to a number; click calls this.

        Args:
            value: The text that the user gave, such as "0.5".
            param: The option or argument, for errors.
            ctx: The command, for errors.

        Raises:
            BadParameter: The text is not a number, or the number is not allowed. Python takes "nan"
                and "inf" for numbers, but no option allows them.
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
    """Return a decorator that adds an option to a command, as `click.option` does, in a short form.

        @option("--config -c", "The project's nanoset.yaml.")     gives the parameter `config`
        @option("--json as_json", "Print JSON.", is_flag=True)    gives the parameter `as_json`

    Args:
        names: The names of the option, separated by spaces. A last word without dashes is the name
            of the parameter that the command gets.
        help: What the option means, for --help.
        arguments: Further arguments of `click.option`.
    """
    return click.option(*names.split(), help=help, **arguments)


def flag(names: str, help: str, **arguments: Any) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds an option without a value: it is True if the user gives it.

    Args:
        names: Such as "--yes", or "--json as_json" if the command's parameter has another name.
        help: What the option means, for --help.
        arguments: Further arguments of `click.option`.
    """
    return option(names, help, is_flag=True, **arguments)


def several_options(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Return one decorator that adds several options to a command.

        both = several_options(option("--seed", "…"), option("--output", "…"))

    After this, `@both` in front of a command is the same as the two decorators in this order.

    Args:
        options: Decorators, each of which adds an option. --help lists the options in this order.
    """

    def decorate(command: Decorated) -> Decorated:
        """Add the options to a command; the last one first, since each is added at the front."""
        for add_option in reversed(options):
            command = add_option(command)
        return command

    return decorate


def find_config(context: click.Context, parameter: click.Parameter, value: Path) -> Path:
    """Return the path of the project's settings file, nanoset.yaml.

        --config p/other.yaml    p/other.yaml
        --config p               p/nanoset.yaml, if p is a folder
        (not given)              nanoset.yaml in this folder, or else in the nearest folder above

    The last case is how git finds its repository. The file need not exist.

    Args:
        context: click's state of the command, with the values of its other parameters.
        parameter: The option --config.
        value: The value of the option; by default "nanoset.yaml".
    """
    file = config_file(value)
    source = context.get_parameter_source(parameter.name or "")
    is_given = source is not ParameterSource.DEFAULT
    if is_given or os.path.exists(file):
        return file  # what the user named, or the file in this folder
    return _config_above(file)


def _config_above(file_name: Path) -> Path:
    """Return the path of the nanoset.yaml in the nearest folder above the current one.

    The path is printed, since the user may not expect it: "project /home/ada/web/nanoset.yaml".

    Args:
        file_name: Name of the file. It is returned if no folder above contains such a file, so that
            the error about a missing file names the current folder.
    """
    for folder in Path.cwd().parents:
        file = folder / file_name
        if os.path.isfile(file):
            echo(f"project {file}", err=True)
            return file
    return file_name


def config_option(
    find: Callable[[click.Context, click.Parameter, Path], Path],
) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds the option --config to a command.

    Args:
        find: Called by click with the value of the option; returns the path of the settings file.
            This is `find_config` for most commands.
    """
    return option(
        "--config -c",
        "The project's nanoset.yaml, or its folder; default: the one in this folder, or in the "
        "nearest folder above.",
        type=PATH,
        default=Path(CONFIG_FILE),
        show_default=True,
        envvar=CONFIG_VARIABLE,
        callback=find,
    )


CONFIG_OPTION = config_option(find_config)


def _read_ids(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> Sequence[str]:
    """Read the ids of documents from the file that --ids-file names.

    Args:
        context: click's state of the command.
        parameter: The option.
        value: The file, which has one id on each line; None if the option was not given.

    Returns:
        The ids in the order of the file, such as ["x7", "x9"]; empty if the option was not given.

    Raises:
        BadParameter: The value is "-", by which other programs mean standard input.
        MissingError: There is no such file.
    """
    from nanoset_core.stages.views.ids import listed_ids

    if value is None:
        return ()
    if str(value) == "-" and not value.exists():
        raise click.BadParameter(
            "'-' is no file. To read standard input, give /dev/stdin.", context, parameter
        )
    try:
        ids: list[str] = listed_ids(value.parent, [value.name]).to_pylist()
    except FileNotFoundError as error:
        raise MissingError(
            "no such file", where=value, remedy="name a file that exists (--ids-file)"
        ) from error
    return ids


IDS_FILE_OPTION = option(
    "--ids-file",
    "A file with further ids, one on each line, as views read them.",
    type=FILE,
    callback=_read_ids,
)


def requested_ids(
    context: click.Context, ids: Iterable[str], ids_of_file: Iterable[str]
) -> list[str]:
    """Return the ids of documents that the user gave, as arguments and by --ids-file, each once.

    A job that erases documents every night may pass a file without ids on most days. Then nothing
    has to be done, which is printed, and no error.

    Args:
        context: click's state of the command.
        ids: The arguments of the command.
        ids_of_file: The ids in the file that --ids-file names.

    Returns:
        The ids without empty ones; no ids if the file lists none.

    Raises:
        UsageError: There are neither ids nor a file.
    """
    # A shell variable without a value gives an empty id, which no document has.
    all_ids = [identity for identity in dict.fromkeys([*ids, *ids_of_file]) if identity]
    if all_ids:
        return all_ids

    has_file = context.get_parameter_source("ids_file") is ParameterSource.COMMANDLINE
    if not has_file:
        raise click.UsageError("Missing argument 'IDS...'.", context)
    echo("the file of --ids-file lists no ids, so there is nothing to do")
    return []


OVERWRITE_OPTION = flag(
    "--overwrite", "Replace an existing output that was made from other input or settings."
)
JSON_OPTION = flag("--json as_json", "Print JSON.")


def options_for(section: type[DataclassInstance], *names: str) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds options to a command, each made from a field.

    For example, `options_for(NanosetSpec, "seed", "split")` adds --seed and --split. `option_for`
    explains how an option follows from a field.

    Args:
        section: The dataclass, which describes a section of the settings file nanoset.yaml.
        names: The fields.
    """
    options = [option_for(section, name) for name in names]
    return several_options(*options)


def option_for(
    section: type[DataclassInstance],
    name: str,
    *flags: str,
    param: str | None = None,
    **arguments: Any,
) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds an option to a command, made from a dataclass's field.

    Many settings can be given in the file nanoset.yaml, and to a command. The field describes the
    setting, so that both accept the same values. For example, this field becomes the option --seed,
    an integer from 0 to 9:

        seed: Annotated[int, Range(0, 9)] = 4

    Args:
        section: The dataclass, which describes a section of nanoset.yaml, such as `NanosetSpec`.
        name: The field, such as "seed".
        flags: Names of the option; by default one that is made from the field's, such as "--seed".
        param: Name of the command's parameter; by default that of the field.
        arguments: Arguments of `click.option`; they override those that follow from the field.
    """
    if not flags:
        flags = (f"--{name.replace('_', '-')}",)
    field = setting(section, name)
    # For example, {"help": "…", "type": IntRange(0, 9), "default": 4}.
    all_arguments = {**_arguments_of_option(field), **arguments}
    return click.option(*flags, param or name, **all_arguments)


def _arguments_of_option(field: Setting) -> dict[str, Any]:
    """Convert the description of a setting to the arguments with which click makes an option.

        seed: Annotated[int, Range(0, 9)] = 4     {"type": IntRange(0, 9), "default": 4, …}
        name: str                                 {"type": str, "required": True, …}
        legacy: bool = False                      {"is_flag": True, "default": False, …}
        limit: int | None = None                  {"type": int, …}: click passes None if not given

    Args:
        field: The setting: a field of a dataclass, with its type, default and help.
    """
    type_of_option = alternatives(field.hint)[0]  # int, if the field has the type `int | None`
    arguments: dict[str, Any] = {"help": field.help, "type": _parameter_type(type_of_option)}
    arguments |= _arguments_of_default(field.default)
    type_without_annotations = bare(type_of_option)
    if type_without_annotations is bool:
        arguments["is_flag"] = True
    return arguments


def _arguments_of_default(default: Any) -> dict[str, Any]:
    """Return the arguments of an option that follow from the default of a setting.

        7           {"default": 7, "show_default": True}
        False       {"default": False, "show_default": False}: --help need not show it
        None        {}: the default of click
        MISSING     {"required": True}: there is no default

    Args:
        default: The default, or `MISSING`.
    """
    if default is MISSING:
        return {"required": True}
    if default is None:
        return {}
    return {"default": default, "show_default": not isinstance(default, bool)}


def _parameter_type(hint: Any) -> Any:
    """Convert the type of a setting to a type of click, which checks what a user gives.

        Literal["gzip", "zstd"]         click.Choice(["gzip", "zstd"])
        Annotated[int, Range(1, 9)]     click.IntRange(1, 9)
        str                             str

    Args:
        hint: The type of the setting.
    """
    value_type = bare(hint)  # without the range
    if get_origin(value_type) is Literal:
        return click.Choice(get_args(value_type))

    bounds = range_of(hint)
    if bounds is None or value_type is bool:
        return value_type  # there is no range
    low = value_type(bounds.low)  # as an int or a float
    high = None if bounds.high is None else value_type(bounds.high)
    if value_type is int:
        return click.IntRange(low, high)
    return NumberRange(low, high)


def build_of(context: click.Context, config: Path) -> Callable[[], None]:
    """Return a function that runs `nanoset build` on a project.

    Args:
        context: click's state of the command that wants to build.
        config: The project's settings file, nanoset.yaml.

    Returns:
        A function without parameters.

    Raises:
        ClickException: `nanoset build` is not installed, since it needs the library Dagster.
    """
    from nanoset_core.cli import nanoset

    build = nanoset.get_command(context, "build")
    if build is None:
        raise click.ClickException(
            "`nanoset build` is not installed: install all of nanoset-platform"
        )
    # click calls the command as if it were given on the command line, with its other defaults.
    return partial(context.invoke, build, config=config)


class ManyValuedOption(click.Option):
    """An option that takes several values after one flag; see `many_valued_option`."""


def many_valued_option(names: str, help: str, **arguments: Any) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds an option with several values to a command.

    Megatron-LM's tools have such options: all words up to the next flag are values, as in
    `--input a b c`. The command must be a `ManyValued`.

    Args:
        names: The names of the option, and of the command's parameter: see `option`.
        help: What the option means, for --help.
        arguments: Further arguments of `click.option`.
    """
    return option(names, help, cls=ManyValuedOption, multiple=True, **arguments)


class ManyValued(click.Command):
    """A command that takes several values after one flag, as Megatron-LM's tools do.

    click, the library for commands, takes one value after a flag. So these are the same here, but
    only the second one is understood by click:

        --input a b c
        --input a --input b --input c

    This is so for the options of the command that `many_valued_option` has made.
    """

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Repeat some flags before each of their values, and let click parse the result.

        Args:
            context: click's state of the command.
            args: The arguments that the user gave, such as ["--input", "a", "b"].

        Returns:
            The arguments that are left after parsing, as click's method returns them.

        Raises:
            UsageError: An argument is missing, such as PREFIX, or anything else is wrong.
        """
        try:
            return super().parse_args(context, list(self._with_repeated_flags(args)))
        except click.MissingParameter as error:
            flags_given = self._many_valued_flags().intersection(args)
            if not flags_given or not isinstance(error.param, click.Argument):
                raise
            # The user may have written `inspect --tokenizer-special-tokens "<s>" PREFIX`.
            argument = error.param.get_error_hint(context)  # in quotes
            raise click.UsageError(
                f"Missing argument {argument}: all words that follow {min(flags_given)} are "
                f"values of this option. Write {argument} before it, or after the word `--`.",
                context,
            ) from error

    def _with_repeated_flags(self, args: Sequence[str]) -> Iterator[str]:
        """Yield the arguments of a command, with some flags repeated before each of their values.

        For example, --input takes several values, and --seed only one:

            --input a b           --seed 7      what the user wrote
            --input a --input b   --seed 7      what click understands

        Such a flag is left out if no value follows.

        Args:
            args: The arguments that the user gave.
        """
        known_flags = self._known_flags()
        many_valued_flags = self._many_valued_flags()
        repeated_flag: str | None = None  # the last flag, if it takes several values
        for position, argument in enumerate(args):
            if argument == "--":  # the words after it are no flags, even if they look like flags
                yield from args[position:]
                return
            if argument in many_valued_flags:
                repeated_flag = argument
                continue
            if _is_flag(argument, known_flags):
                repeated_flag = None
            elif repeated_flag is not None:
                yield repeated_flag
            yield argument

    def _many_valued_flags(self) -> set[str]:
        """Return the flags of this command that several values may follow, such as `--input`."""
        flags: set[str] = set()
        for parameter in self.params:
            if isinstance(parameter, ManyValuedOption):
                flags.update(parameter.opts)
        return flags

    def _known_flags(self) -> set[str]:
        """Return the flags of the command, such as `--output` and `-o`."""
        names: set[str] = set()
        for parameter in self.params:
            names.update(parameter.opts)
        # An argument of the command has a name without dashes.
        return {name for name in names if name.startswith("-")}


def _is_flag(word: str, known_flags: Collection[str]) -> bool:
    """Return whether a word of a command line is a flag, such as `--seed` or `-o`.

    A word that starts with one dash may be a negative number. So it is only a flag if the command
    has such a flag.

    Args:
        word: The word. It does not come after the word `--`.
        known_flags: The flags of the command.
    """
    return word.startswith("--") or word in known_flags
