"""Options by which commands take a tokenizer, with the names of the flags of Megatron-LM.

A user may name a tokenizer by `--tokenizer FOLDER`, or as with Megatron-LM's tools, for example by
`--tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt`. The decorator
`tokenizer_options` adds these options to a command, which then gets one parameter `tokenizer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.options import (
    ANY_PATH,
    FOLDER,
    OVERWRITE_OPTION,
    Decorated,
    many_valued_option,
    option,
    option_for,
    options_for,
    several_options,
)
from nanoset_core.errors import ConfigError

if TYPE_CHECKING:
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenizers.files import TokenizerFile, TokenizerPath

TOKENIZER_TYPES = {
    "HuggingFaceTokenizer": ("tokenizer.json", "vocab.json"),
    "GPT2BPETokenizer": ("vocab.json",),
    "SentencePieceTokenizer": ("SentencePiece",),
    "GPTSentencePieceTokenizer": ("SentencePiece",),
    "Llama2Tokenizer": ("SentencePiece",),
    "TikTokenizer": ("tiktoken JSON",),
}
"""Megatron-LM's --tokenizer-type → the kinds of files that it takes."""
_VOCAB_FILE_KINDS = ("vocab.json",)
"""The kinds of files that --vocab-file takes."""
_TOKENIZER_HELP = (
    "A tokenizer.json, SentencePiece .model, tekken.json, .tiktoken, vocab.json or Megatron-LM's "
    "tiktoken JSON, or the folder that contains one"
)


def tokenizer_options(
    use: str = "", *, has_vocab_size_option: bool = False
) -> Callable[[Decorated], Decorated]:
    """Return a decorator that lets the users of a command name a tokenizer.

    It adds some ten options to the command, since some tokenizers have two files, or files that do
    not say everything. The function of the command gets one parameter, `tokenizer`, for all:

        what the user writes                          the parameter `tokenizer`
        (nothing about a tokenizer)                   None
        --tokenizer gpt2                              Path("gpt2/vocab.json")
        --vocab-file vocab.json --merge-file m.txt    TokenizerFile("vocab.json", merges="m.txt")

    The class of the command must be `ManyValued`, since several special tokens may follow one flag.

    Args:
        use: What the command needs the tokenizer for, such as "to show text instead of ids". This
            is printed at the end of the help for --tokenizer.
        has_vocab_size_option: Whether the command itself has an option --vocab-size. If not, the
            decorator adds one, for tokenizers whose file does not say how many tokens they have.
    """
    options = _options_that_name_files(use)
    options += _options_that_describe(has_vocab_size_option=has_vocab_size_option)
    add_options = several_options(*options)  # one decorator that adds all of them

    def decorate(command: Decorated) -> Decorated:
        """Add the options to a command that has a parameter `tokenizer`."""

        @wraps(command)
        def call_with_tokenizer(**values: Any) -> Any:
            """Call the command with one parameter `tokenizer` in place of all these options."""
            parameters = _with_one_tokenizer(values, has_vocab_size_option)
            return command(**parameters)

        return add_options(call_with_tokenizer)  # type: ignore[return-value]

    return decorate


def _options_that_name_files(use: str) -> list[Callable[[Any], Any]]:
    """Return the options with which a user names the files of a tokenizer, and their type.

    They have the names that users of Megatron-LM, a training program, know. Either of these lines
    names the tokenizer of GPT-2, which consists of two files:

        --tokenizer gpt2                                                  (the files' folder)
        --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt

    Args:
        use: What the command needs the tokenizer for, such as "to show text instead of ids"; ""
            to say nothing about it in the help.

    Returns:
        Decorators for the function of a command. Each adds one option, whose value the function
        gets as a parameter: `tokenizer`, `tokenizer_type`, `vocab_file` or `merges`.
    """
    help_of_tokenizer = _TOKENIZER_HELP
    if use:
        help_of_tokenizer += f"; {use}"
    help_of_tokenizer += "."

    # The first argument of `option` has all names of the option. A last word without "--" is the
    # name of the parameter.
    return [
        option(
            "--tokenizer --tokenizer-model --pretrained-model-name-or-path tokenizer",
            help_of_tokenizer,
            type=ANY_PATH,
        ),
        option(
            "--tokenizer-type",
            "Not needed, since files say what they are. If given, it is checked.",
            type=click.Choice(list(TOKENIZER_TYPES)),
        ),
        option("--vocab-file", "A vocab.json, in place of --tokenizer.", type=ANY_PATH),
        option(
            "--merge-file merges",
            "The merges of the vocab.json; default: the merges.txt next to it.",
            type=ANY_PATH,
        ),
    ]


def _options_that_describe(*, has_vocab_size_option: bool) -> list[Callable[[Any], Any]]:
    """Return the options with which a user adds what the file of a tokenizer does not say.

    For example, a .tiktoken file lists the tokens, but neither how text is split into words nor
    which special tokens there are:

        --tokenizer my.tiktoken --tiktoken-pattern o200k --tiktoken-special-tokens "<s>" "</s>"

    Args:
        has_vocab_size_option: Whether the command itself has an option --vocab-size. Then this
            option is left out here.

    Returns:
        Decorators for the function of a command, each of which adds one option.
    """
    from nanoset_core.stages.shards.settings import TokenizerSpec

    # Most of these are also settings of nanoset.yaml, from which they get their types and help.
    options = [
        option_for(TokenizerSpec, "pattern", "--tiktoken-pattern"),
        many_valued_option(
            "--tokenizer-special-tokens --tiktoken-special-tokens special_tokens_of_tokenizer",
            "Special tokens that the file does not contain; several after one option.",
        ),
        option_for(TokenizerSpec, "num_special_tokens", "--tiktoken-num-special-tokens"),
    ]
    if not has_vocab_size_option:
        options.append(option_for(TokenizerSpec, "vocab_size"))
    options.append(option_for(TokenizerSpec, "legacy", "--tokenizer-sentencepiece-legacy"))
    return options


def _with_one_tokenizer(values: dict[str, Any], has_vocab_size_option: bool) -> dict[str, Any]:
    """Replace the values of all options about the tokenizer by one parameter, `tokenizer`.

    For example, a user writes `--tokenizer gpt2 --output a`:

        values    {"tokenizer": Path("gpt2"), "vocab_file": None, "merges": None, …, "output": "a"}
        result    {"tokenizer": Path("gpt2/vocab.json"), "output": "a"}

    Args:
        values: Name of each parameter that click has read from the command line → its value.
        has_vocab_size_option: Whether --vocab-size is an option of the command itself. If so, its
            value is also in the result.
    """
    # Take out the values of these options. `_TokenizerFlags` has a field for each.
    flag_names = [field.name for field in fields(_TokenizerFlags)]
    parameters = dict(values)
    flag_values = {name: parameters.pop(name) for name in flag_names}
    flags = _TokenizerFlags(**flag_values)

    parameters["tokenizer"] = _tokenizer_of(flags, has_vocab_size_option=has_vocab_size_option)
    if has_vocab_size_option:
        parameters["vocab_size"] = flags.vocab_size
    return parameters


def text_options(
    use: str = "", *scratch_flags: str, has_vocab_size_option: bool = False
) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds the options of all commands that turn text into tokens.

    These are --tokenizer and its relatives, --eod, --on-reject, --max-rejected-fraction,
    --max-unreadable-fraction, --scratch and --overwrite.

    Args:
        use: What the command needs the tokenizer for; printed at the end of the help.
        scratch_flags: Further names of the option --scratch, such as "--tmp-dir".
        has_vocab_size_option: Whether the command itself defines an option --vocab-size.
    """
    from nanoset_core.stages.shards.settings import DocumentsSpec

    parameter = "scratch"
    scratch_names = " ".join(["--scratch", *scratch_flags, parameter])
    return several_options(
        tokenizer_options(use, has_vocab_size_option=has_vocab_size_option),
        option(
            "--eod",
            "The token that ends documents; default: the one that the tokenizer's files name, such "
            "as the tokenizer_config.json next to a tokenizer.json.",
        ),
        # These are also settings of nanoset.yaml, from which they get their types and help.
        options_for(DocumentsSpec, "on_reject", "max_rejected_fraction", "max_unreadable_fraction"),
        option(
            scratch_names,
            "Folder for temporary files; default: the output's folder.",
            type=FOLDER,
        ),
        OVERWRITE_OPTION,
    )


@dataclass(frozen=True, slots=True)
class _TokenizerFlags:
    """The values of the options that name and describe a tokenizer, by the command's parameters.

    A value is None, empty or False if the option was not given.
    """

    tokenizer: Location | None
    """The tokenizer's file or folder."""
    tokenizer_type: str | None
    """A key of TOKENIZER_TYPES, which the file must fit."""
    vocab_file: Location | None
    """A vocab.json, in place of `tokenizer`."""
    merges: Location | None
    """The merges of the vocab.json."""
    pattern: str | None
    """How the text is split before the merges of a tiktoken vocabulary."""
    special_tokens_of_tokenizer: tuple[str, ...]
    """Special tokens that the file does not contain."""
    num_special_tokens: int | None
    """How many ids Megatron-LM's tiktoken JSON reserves for special tokens."""
    vocab_size: int | None
    """How many ids Megatron-LM's tiktoken JSON has in all."""
    legacy: bool
    """Whether text is split at special tokens before a SentencePiece model tokenizes it."""


def _tokenizer_of(flags: _TokenizerFlags, *, has_vocab_size_option: bool) -> TokenizerPath | None:
    """Find the tokenizer that the user of a command has named, check it, and print notices on it.

    Three cases:

        options of the user                      result
        no tokenizer is named                    None
        --tokenizer gpt2                         the path of its file: Path("gpt2/vocab.json")
        --tokenizer gpt2 --merge-file m.txt      that path, with settings, as a `TokenizerFile`

    The option --vocab-size can have two meanings. For most commands it describes the tokenizer. For
    some it describes what the command writes (`has_vocab_size_option`): then it does not count as a
    setting of the tokenizer, unless its file needs it.

    Args:
        flags: The values of all options about tokenizers.
        has_vocab_size_option: Whether --vocab-size describes what the command writes.

    Raises:
        ConfigError: Two tokenizers are named, or an option contradicts the tokenizer's file.
        UsageError: Options describe a tokenizer, but none is named.
    """
    from nanoset_core.cli.terminal import print_notices
    from nanoset_core.tokenizers.files import define
    from nanoset_core.tokenizers.files.kinds import kind_of

    path = _tokenizer_named_by(flags)
    if path is None:
        _check_none_is_described(flags, has_vocab_size_option=has_vocab_size_option)
        return None

    # The value of --vocab-size, if that is a setting of the tokenizer.
    vocab_size = None if has_vocab_size_option else flags.vocab_size
    tokenizer_file = _file_with_settings(path, flags, vocab_size)
    kind = kind_of(tokenizer_file)  # such as "vocab.json"
    _check_kind_by_options(tokenizer_file, kind, flags)

    # A file of this kind does not say how many tokens the tokenizer has. So --vocab-size is always
    # a setting of the tokenizer here, whatever else it means.
    if kind == "tiktoken JSON":
        tokenizer_file = replace(tokenizer_file, vocab_size=flags.vocab_size)
    print_notices(define(tokenizer_file).notices)

    has_settings = bool(tokenizer_file.settings)
    return tokenizer_file if has_settings else path


def _check_none_is_described(flags: _TokenizerFlags, *, has_vocab_size_option: bool) -> None:
    """Check that a user who names no tokenizer does not describe one either.

    For example, `--merge-file merges.txt` alone is a mistake: these are the merges of a tokenizer,
    but the user forgot to say of which one.

    Args:
        flags: The values of all options about tokenizers.
        has_vocab_size_option: Whether --vocab-size describes what the command writes. Then it may
            be given without a tokenizer.

    Raises:
        UsageError: An option describes a tokenizer.
    """
    describing_values = [
        flags.tokenizer_type,
        flags.merges,
        flags.pattern,
        flags.special_tokens_of_tokenizer or None,  # () if there are none
        flags.num_special_tokens,
        flags.legacy or None,  # False if the option is not given
    ]
    if not has_vocab_size_option:
        describing_values.append(flags.vocab_size)
    if any(value is not None for value in describing_values):
        raise click.UsageError(
            "Missing option '--tokenizer': other options describe a tokenizer, and none is named."
        )


def _check_kind_by_options(
    tokenizer_file: TokenizerFile, kind: str, flags: _TokenizerFlags
) -> None:
    """Check that a tokenizer's file is of the kind that --tokenizer-type and --vocab-file expect.

    For example, after `--tokenizer-type GPT2BPETokenizer` the file has to be a vocab.json, and so
    has the one after `--vocab-file`.

    Args:
        tokenizer_file: The tokenizer's file.
        kind: The kind of the file according to its content, such as "vocab.json".
        flags: The values of all options about tokenizers.

    Raises:
        ConfigError: The file is of another kind.
    """
    if flags.tokenizer_type is not None:
        expected_kinds = TOKENIZER_TYPES[flags.tokenizer_type]
        _check_kind(tokenizer_file, kind, "--tokenizer-type", expected_kinds)
    if flags.vocab_file is not None:
        _check_kind(tokenizer_file, kind, "--vocab-file", _VOCAB_FILE_KINDS)


def _file_with_settings(
    path: Path, flags: _TokenizerFlags, vocab_size: int | None
) -> TokenizerFile:
    """Return a tokenizer's file together with all that the user says about the tokenizer.

    Args:
        path: The tokenizer's file, on this machine.
        flags: The values of all options about tokenizers. A file that they name is downloaded if it
            is in a bucket.
        vocab_size: How many tokens the tokenizer has, if the user says so.
    """
    from nanoset_core.tokenizers.files import TokenizerFile

    # Without this option, a file has the special tokens that are usual for its kind.
    special_tokens = None
    if flags.special_tokens_of_tokenizer:
        special_tokens = flags.special_tokens_of_tokenizer  # such as ("<s>", "</s>")

    return TokenizerFile(
        path,
        merges=_local_copy(flags.merges),
        pattern=flags.pattern,
        special_tokens=special_tokens,
        num_special_tokens=flags.num_special_tokens,
        vocab_size=vocab_size,
        legacy=flags.legacy,
    )


def _tokenizer_named_by(flags: _TokenizerFlags) -> Path | None:
    """Return the local path of the tokenizer's file that the user names, or None without one.

        --tokenizer gpt2                  Path("gpt2/vocab.json"): the file in this folder
        --vocab-file gpt2/vocab.json      the same
        --tokenizer s3://bucket/t.model   the path of a copy that is downloaded here

    Args:
        flags: The values of all options about tokenizers.

    Raises:
        ConfigError: Both options are given, so they name two tokenizers.
    """
    from nanoset_core.tokenizers.files import tokenizer_path

    if flags.tokenizer is not None and flags.vocab_file is not None:
        raise ConfigError(
            "two tokenizers are named",
            where="--tokenizer, --vocab-file",
            found=f"{flags.tokenizer} and {flags.vocab_file}",
            remedy="leave one of them out",
        )
    local_path = _local_copy(flags.vocab_file or flags.tokenizer)
    if local_path is None:
        return None
    return tokenizer_path(local_path)  # the file, if the path is that of a folder


def _local_copy(location: Location | None) -> Path | None:
    """Return the local path of a file or folder; one in a bucket is downloaded first.

    Args:
        location: Such as Path("gpt2"), or an s3://bucket/gpt2. None stays None: the user did not
            give this option.
    """
    from nanoset_core.storage.places import is_here
    from nanoset_core.tokenizers.files.source import tokenizer_here

    if location is None or is_here(location):
        return location
    return tokenizer_here(location)


def _check_kind(
    tokenizer_file: TokenizerFile, kind: str, flag_name: str, expected_kinds: tuple[str, ...]
) -> None:
    """Check that a tokenizer's file is of a kind that an option allows.

    For example, for `--tokenizer-type GPT2BPETokenizer` and a file that is a SentencePiece model,
    the error says that a vocab.json is expected, and its remedy is:

        leave --tokenizer-type out: --tokenizer alone takes every kind of file, or
        --tokenizer-type SentencePieceTokenizer, or --tokenizer-type GPTSentencePieceTokenizer, …

    Args:
        tokenizer_file: The tokenizer's file.
        kind: The kind of the file according to its content, such as "SentencePiece".
        flag_name: The option, such as "--tokenizer-type".
        expected_kinds: The kinds that the option allows, such as ("vocab.json",).

    Raises:
        ConfigError: The file is of another kind.
    """
    if kind in expected_kinds:
        return

    # Name each --tokenizer-type that the file fits.
    remedy = f"leave {flag_name} out: --tokenizer alone takes every kind of file"
    for type_name, kinds in TOKENIZER_TYPES.items():
        if kind in kinds:
            remedy += f", or --tokenizer-type {type_name}"
    raise ConfigError(
        "the tokenizer's file is not of this type",
        where=flag_name,
        found=f"{tokenizer_file}: {kind}",
        expected=" or ".join(expected_kinds),
        remedy=remedy,
    )
