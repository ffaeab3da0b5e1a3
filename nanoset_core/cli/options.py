"""Options that subcommands share: made from fields of settings, those of a tokenizer, and flags of
several values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from nanoset_core.cli.echo import echo
from nanoset_core.errors import ConfigError
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.settings import MISSING, alternatives, bare, range_of, setting
from nanoset_core.storage.location import is_remote, remote_location

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerPath

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class LocationType(click.Path):
    """A local path, or, where allowed, a location in a bucket (s3://bucket/path)."""

    def __init__(self, *, anywhere: bool = False, **given: Any) -> None:
        """anywhere: whether it may be in a bucket; given: arguments of `click.Path`."""
        super().__init__(path_type=Path, **given)
        self._anywhere = anywhere

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty.", param, ctx)
        if not isinstance(value, str) or not is_remote(value):
            return super().convert(value, param, ctx)
        if not self._anywhere:
            self.fail(f"{value!r} is in a bucket; a local path is expected.", param, ctx)
        return remote_location(value, where=param.opts[-1] if param is not None else "the path")


class NumberRange(click.FloatRange):
    """A finite number within bounds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
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


def _own_or_above(context: click.Context, parameter: click.Parameter, value: Path) -> Path:
    """Return the nanoset.yaml of this folder, or, as git does, that of the nearest folder above,
    and say so.
    """
    if os.path.isdir(value):
        return value / CONFIG_FILE
    is_default = context.get_parameter_source(parameter.name or "") is ParameterSource.DEFAULT
    is_needed = context.params.get("prefix") is None  # verify PREFIX reads none
    if not is_default or not is_needed or os.path.exists(value):
        return value
    above = (folder / value for folder in Path.cwd().parents)
    if (found := next(filter(os.path.isfile, above), None)) is not None:
        echo(f"project {found}", err=True)
    return found or value


TOKENIZER_TYPES = {
    "HuggingFaceTokenizer": ("tokenizer.json", "vocab.json"),
    "GPT2BPETokenizer": ("vocab.json",),
    "SentencePieceTokenizer": ("SentencePiece",),
    "GPTSentencePieceTokenizer": ("SentencePiece",),
    "Llama2Tokenizer": ("SentencePiece",),
    "TikTokenizer": ("tiktoken JSON",),
}
"""Megatron-LM's --tokenizer-type → the kinds of files that it takes."""
_TOKENIZER_HELP = (
    "A tokenizer.json, SentencePiece .model, tekken.json, .tiktoken, vocab.json or Megatron-LM's tiktoken JSON, "
    "or the folder that holds one"
)
_VOCABULARY = ("vocab.json",)
_NAMED = ("tokenizer", "tokenizer_type", "vocab_file")
_SAID = (
    "merges",
    "pattern",
    "special_tokens_of_tokenizer",
    "num_special_tokens",
    "legacy",
    "vocab_size",
)
"""Parameters that name a tokenizer, and those that say more of one."""


def option(names: str, help: str, **given: Any) -> Callable[[Decorated], Decorated]:
    """Return an option: its flags and perhaps the name of its parameter, its help, arguments of
    `click.option`.
    """
    return click.option(*names.split(), help=help, **given)


def flag(names: str, help: str, **given: Any) -> Callable[[Decorated], Decorated]:
    """Return an option without a value; arguments as for `option`."""
    return option(names, help, is_flag=True, **given)


CONFIG_OPTION = option(
    "--config -c",
    "The project's nanoset.yaml, or its folder; default: that of this folder, or of the nearest above.",
    **{
        "type": PATH,
        "default": Path(CONFIG_FILE),
        "show_default": True,
        "envvar": "NANOSET_CONFIG",
    },
    callback=_own_or_above,
)


def _ids_in(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> Sequence[str]:
    from nanoset_core.stages.views.ids import listed_ids

    return () if value is None else list[str](listed_ids(value.parent, [value.name]).to_pylist())


IDS_FILE_OPTION = option(
    "--ids-file",
    "A file of further ids, one a line, as views take them.",
    type=FILE,
    callback=_ids_in,
)
OVERWRITE_OPTION = flag(
    "--overwrite", "Replace an existing output that was made from other input or settings."
)
JSON_OPTION = flag("--json as_json", "Print JSON.")


def options_for(section: type[DataclassInstance], *names: str) -> Callable[[Decorated], Decorated]:
    """Return the options of several fields of a settings dataclass, each as `option_for` makes it."""
    return _all(*(option_for(section, name) for name in names))


def _all(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def option_for(
    section: type[DataclassInstance], name: str, *flags: str, **given: Any
) -> Callable[[Decorated], Decorated]:
    """Return an option that takes its type, range, choices, default and help from the field of a
    settings dataclass.

    Args:
        section: the dataclass, such as `NanosetSpec`.
        name: its field, and the parameter of the command.
        flags: how it is called; default `--name`, with dashes.
        given: arguments of `click.option` that do not come from the field; `param` renames the
            parameter.
    """
    found = setting(section, name)
    first = alternatives(found.hint)[0]
    hint, between = bare(first), range_of(first)
    kind: dict[str, Any] = {"help": found.help, "type": hint}
    if found.default is MISSING:
        kind["required"] = True
    elif found.default is not None:
        kind |= {"default": found.default, "show_default": hint is not bool}
    if hint is bool:
        kind["is_flag"] = True
    elif get_origin(hint) is Literal:
        kind["type"] = click.Choice(get_args(hint))
    elif between is not None:
        high = None if between.high is None else hint(between.high)
        kind["type"] = (click.IntRange if hint is int else NumberRange)(hint(between.low), high)
    parameter = given.pop("param", name)
    return click.option(*(flags or (f"--{name.replace('_', '-')}",)), parameter, **kind | given)


def build_of(context: click.Context, config: Path) -> Callable[[], None]:
    """Return what runs `nanoset build` on a project; ClickException where it, which needs Dagster,
    is not installed.
    """
    from nanoset_core.cli import nanoset

    if (build := nanoset.get_command(context, "build")) is None:
        raise click.ClickException(
            "`nanoset build` is not installed: install nanoset-platform whole"
        )
    return partial(context.invoke, build, config=config)


def tokenizer_options(
    use: str = "", *, own_vocab_size: bool = False
) -> Callable[[Decorated], Decorated]:
    """Return options that name a tokenizer as Megatron-LM's flags do; the command gets one
    parameter, `tokenizer`.

    Args:
        use: what the command takes it for, as the help says behind a semicolon.
        own_vocab_size: the command has an option --vocab-size itself, which is the tokenizer's too
            where files of its kind leave that open.
    """
    # most commands need none of the engines behind it
    from nanoset_core.stages.shards.settings import TokenizerSpec

    special = "--tokenizer-special-tokens --tiktoken-special-tokens special_tokens_of_tokenizer"
    checked = "Not needed: files say what they are. Where given, it is checked."
    options = [
        option(
            "--tokenizer --tokenizer-model --pretrained-model-name-or-path tokenizer",
            f"{_TOKENIZER_HELP}{'; ' if use else ''}{use}.",
            type=ANY_PATH,
        ),
        option("--tokenizer-type", checked, type=click.Choice(list(TOKENIZER_TYPES))),
        option("--vocab-file", "A vocab.json, in place of --tokenizer.", type=ANY_PATH),
        option(
            "--merge-file merges", "Its merges; default: the merges.txt beside it.", type=ANY_PATH
        ),
        option_for(TokenizerSpec, "pattern", "--tiktoken-pattern"),
        option(
            special,
            "Special tokens that the file does not hold; several after one option.",
            multiple=True,
        ),
        option_for(TokenizerSpec, "num_special_tokens", "--tiktoken-num-special-tokens"),
        *([] if own_vocab_size else [option_for(TokenizerSpec, "vocab_size")]),
        option_for(TokenizerSpec, "legacy", "--tokenizer-sentencepiece-legacy"),
    ]

    def decorate(command: Decorated) -> Decorated:
        @wraps(command)
        def wrapped(**given: Any) -> Any:
            kept = {"vocab_size": given["vocab_size"]} if own_vocab_size else {}
            named, said = ({name: given.pop(name) for name in names} for names in (_NAMED, _SAID))
            return command(
                tokenizer=_chosen(said, is_shared=own_vocab_size, **named), **kept, **given
            )

        return _all(*options)(wrapped)  # type: ignore[return-value]

    return decorate


def text_options(
    use: str = "", *scratch: str, own_vocab_size: bool = False
) -> Callable[[Decorated], Decorated]:
    """Return the options of commands that read text: those of `tokenizer_options`, its EOD token,
    limits, --overwrite.

    Args:
        use: see `tokenizer_options`, as own_vocab_size.
        scratch: what --scratch is called besides.
    """
    from nanoset_core.stages.shards.settings import DocumentsSpec

    eod = "The token that ends documents; default: the tokenizer's; of a tokenizer.json that of tokenizer_config.json"
    scratch_names = " ".join(("--scratch", *scratch, "scratch"))
    return _all(
        tokenizer_options(use, own_vocab_size=own_vocab_size),
        option("--eod", f"{eod} beside it."),
        options_for(DocumentsSpec, "on_reject", "max_rejected_fraction", "max_unreadable_fraction"),
        option(
            scratch_names, "Folder for temporary files; default: beside the output.", type=FOLDER
        ),
        OVERWRITE_OPTION,
    )


def _chosen(
    said: dict[str, Any],
    *,
    tokenizer: Location | None,
    tokenizer_type: str | None,
    vocab_file: Location | None,
    is_shared: bool,
) -> TokenizerPath | None:
    """Return the tokenizer that the options name; a plain path where it has no settings."""
    from nanoset_core.cli.terminal import print_notices
    from nanoset_core.tokenizers.files import TokenizerFile, define, tokenizer_path
    from nanoset_core.tokenizers.files.kinds import kind_of
    from nanoset_core.tokenizers.files.source import tokenizer_here

    if tokenizer is not None and vocab_file is not None:
        found, remedy = f"{tokenizer} and {vocab_file}", "leave one of them out"
        raise ConfigError(
            "two tokenizers are named",
            where="--tokenizer, --vocab-file",
            found=found,
            remedy=remedy,
        )
    here, merges = (
        place if place is None or isinstance(place, Path) else tokenizer_here(place)
        for place in (vocab_file or tokenizer, said.pop("merges"))
    )
    path, size = None if here is None else tokenizer_path(here), said.pop("vocab_size")
    said["special_tokens"] = said.pop("special_tokens_of_tokenizer") or None
    source = TokenizerFile(path or Path(), merges, **said, vocab_size=None if is_shared else size)
    if path is None:
        if source.settings or tokenizer_type is not None:
            raise click.UsageError(
                "Missing option '--tokenizer': something is said of a tokenizer that is not named."
            )
        return None
    kind = kind_of(source)
    asked = {
        "--tokenizer-type": TOKENIZER_TYPES.get(tokenizer_type or ""),
        "--vocab-file": vocab_file and _VOCABULARY,
    }
    for flag, kinds in asked.items():
        if kinds and kind not in kinds:
            what, found, expected = (
                "the tokenizer's file is none of this type",
                f"{source}: {kind}",
                " or ".join(kinds),
            )
            fitting = "".join(
                f", or --tokenizer-type {name}"
                for name, of in TOKENIZER_TYPES.items()
                if kind in of
            )
            remedy = f"leave {flag} out: --tokenizer alone takes every kind of file{fitting}"
            raise ConfigError(what, where=flag, found=found, expected=expected, remedy=remedy)
    if is_shared and kind == "tiktoken JSON":
        source = replace(source, vocab_size=size)
    print_notices(define(source).notices)
    return source if source.settings else path


class ManyValued(click.Command):
    """A command that takes several values after one flag, as Megatron-LM's tools do: --input a b c."""

    many = (
        *(
            "--input",
            "--json-keys",
            "--json-key",
            "--data-path",
            "--train-data-path",
            "--valid-data-path",
        ),
        *("--test-data-path", "--tokenizer-special-tokens", "--tiktoken-special-tokens"),
    )

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        flag: str | None = None
        options = {
            name for parameter in self.params for name in parameter.opts if name.startswith("-")
        }
        for argument in args:
            if argument.startswith("--") or argument in options:
                flag = argument if argument in self.many else None
                spread += [] if flag else [argument]
            else:
                spread += [flag, argument] if flag else [argument]
        return super().parse_args(context, spread)
