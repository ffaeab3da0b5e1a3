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
    combined,
    option,
    option_for,
    options_for,
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
    "tiktoken JSON, or the folder that holds one"
)


def tokenizer_options(
    use: str = "", *, has_vocab_size_option: bool = False
) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds options to a command, which name and describe a tokenizer.

    The command gets their values as one parameter, `tokenizer`: None if no tokenizer is named.

    Args:
        use: What the command needs the tokenizer for, such as "to count tokens"; printed at the end
            of the help.
        has_vocab_size_option: Whether the command itself defines an option --vocab-size. Its value
            also describes the tokenizer, if the tokenizer's file does not state the size.

    Returns:
        A decorator for the function of the command.
    """
    add_options = _flag_options(use, has_vocab_size_option=has_vocab_size_option)

    def decorate(command: Decorated) -> Decorated:
        """Add the options to a command that has a parameter `tokenizer`."""

        @wraps(command)
        def with_tokenizer(**values: Any) -> Any:
            """Call the command with one parameter `tokenizer` in place of all these options."""
            return command(**_with_one_tokenizer(values, has_vocab_size_option))

        return add_options(with_tokenizer)  # type: ignore[return-value]

    return decorate


def _with_one_tokenizer(values: dict[str, Any], has_vocab_size_option: bool) -> dict[str, Any]:
    """Replace the values of all options about the tokenizer by one parameter, `tokenizer`.

    For example, {"tokenizer": "gpt2", "merges": None, …, "output": "a"}, with an entry for each of
    these options and for one other, becomes {"tokenizer": Path("gpt2/vocab.json"), "output": "a"}.

    Args:
        values: Name of each parameter that click has read from the command line → its value.
        has_vocab_size_option: Whether --vocab-size is an option of the command itself. If so, it
            stays a parameter.
    """
    # The fields of _TokenizerFlags have the names of the parameters.
    flag_names = [field.name for field in fields(_TokenizerFlags)]
    flags = _TokenizerFlags(**{name: values[name] for name in flag_names})

    parameters = {name: value for name, value in values.items() if name not in flag_names}
    parameters["tokenizer"] = _tokenizer_of(flags, has_vocab_size_option=has_vocab_size_option)
    if has_vocab_size_option:
        parameters["vocab_size"] = flags.vocab_size
    return parameters


def _flag_options(use: str, *, has_vocab_size_option: bool) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds all options which name and describe a tokenizer to a command.

    Their values are the fields of `_TokenizerFlags`.

    Args:
        use: What the command needs the tokenizer for, such as "to count tokens", or an empty text.
        has_vocab_size_option: Whether to leave out --vocab-size, because the command defines it.
    """
    # Imported here, since this import is slow, and most commands have no such options.
    from nanoset_core.stages.shards.settings import TokenizerSpec

    vocab_size_options = []
    if not has_vocab_size_option:
        vocab_size_options.append(option_for(TokenizerSpec, "vocab_size"))
    special_tokens_option = option(
        # Two flags, and the name of the parameter.
        "--tokenizer-special-tokens --tiktoken-special-tokens special_tokens_of_tokenizer",
        "Special tokens that the file does not hold; several after one option.",
        multiple=True,
    )
    return combined(
        *_file_options(use),
        option_for(TokenizerSpec, "pattern", "--tiktoken-pattern"),
        special_tokens_option,
        option_for(TokenizerSpec, "num_special_tokens", "--tiktoken-num-special-tokens"),
        *vocab_size_options,
        option_for(TokenizerSpec, "legacy", "--tokenizer-sentencepiece-legacy"),
    )


def _file_options(use: str) -> list[Callable[[Any], Any]]:
    """Return the options that name the files of a tokenizer, and their type.

    Args:
        use: What the command needs the tokenizer for, or an empty text.

    Returns:
        Decorators, each of which adds an option to a command.
    """
    help_text = f"{_TOKENIZER_HELP}; {use}." if use else f"{_TOKENIZER_HELP}."

    # The first argument of `option` lists the flags. A word without "--" at its end is the name of
    # the command's parameter, if that is not the name of a flag.
    return [
        option(
            "--tokenizer --tokenizer-model --pretrained-model-name-or-path tokenizer",
            help_text,
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


def text_options(
    use: str = "", *scratch_flags: str, has_vocab_size_option: bool = False
) -> Callable[[Decorated], Decorated]:
    """Return the options of commands that read text.

    They are about the tokenizer, rejected text, temporary files and overwriting.

    Args:
        use: What the command needs the tokenizer for; printed at the end of the help.
        scratch_flags: Further names of the option --scratch, such as "--tmp-dir".
        has_vocab_size_option: Whether the command itself defines an option --vocab-size.

    Returns:
        A decorator for the function of the command.
    """
    from nanoset_core.stages.shards.settings import DocumentsSpec

    # The flags of the option, and at the end the name of the command's parameter.
    scratch_names = " ".join(["--scratch", *scratch_flags, "scratch"])
    return combined(
        tokenizer_options(use, has_vocab_size_option=has_vocab_size_option),
        option(
            "--eod",
            "The token that ends documents; default: the one that the tokenizer's files name, such "
            "as the tokenizer_config.json next to a tokenizer.json.",
        ),
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
    """Return the tokenizer that options name, and print notices about it.

    Args:
        flags: The values of the options.
        has_vocab_size_option: Whether --vocab-size is an option of the command itself.

    Returns:
        The path of its file; or a `TokenizerFile`, which is a path with settings, if other options
        describe it. None if no tokenizer is named.

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

    source = _described_file(path, flags, has_vocab_size_option=has_vocab_size_option)
    kind = kind_of(source)
    _check_kind_by_options(source, kind, flags)

    # A command's own --vocab-size is about its output. It also describes the tokenizer if the
    # tokenizer's file does not state its size, which is only so for this kind of file.
    if has_vocab_size_option and kind == "tiktoken JSON":
        source = replace(source, vocab_size=flags.vocab_size)
    print_notices(define(source).notices)

    is_described = bool(source.settings)
    return source if is_described else path


def _check_none_is_described(flags: _TokenizerFlags, *, has_vocab_size_option: bool) -> None:
    """Check that no option describes a tokenizer, for a user who names none.

    Args:
        flags: The values of the options.
        has_vocab_size_option: Whether --vocab-size is an option of the command itself.

    Raises:
        UsageError: An option describes one.
    """
    # `settings` are the options that were given. They do not depend on the file.
    any_file = _described_file(Path(), flags, has_vocab_size_option=has_vocab_size_option)
    if any_file.settings or flags.tokenizer_type is not None:
        raise click.UsageError(
            "Missing option '--tokenizer': other options describe a tokenizer, and none is named."
        )


def _check_kind_by_options(source: TokenizerFile, kind: str, flags: _TokenizerFlags) -> None:
    """Check that a tokenizer's file is of the kind that --tokenizer-type and --vocab-file expect.

    Args:
        source: The tokenizer's file.
        kind: The kind of the file, such as `vocab.json`.
        flags: The values of the options.

    Raises:
        ConfigError: The file is of another kind.
    """
    if flags.tokenizer_type is not None:
        _check_kind(source, kind, "--tokenizer-type", TOKENIZER_TYPES[flags.tokenizer_type])
    if flags.vocab_file is not None:
        _check_kind(source, kind, "--vocab-file", _VOCAB_FILE_KINDS)


def _described_file(
    path: Path, flags: _TokenizerFlags, *, has_vocab_size_option: bool
) -> TokenizerFile:
    """Return the file of a tokenizer with the settings that options such as --merge-file give it.

    Args:
        path: The file.
        flags: The values of the options.
        has_vocab_size_option: Whether the command itself has an option --vocab-size, which may be
            the size of another vocabulary than the tokenizer's. Then its value is left out.

    Returns:
        The file; its `settings` are those that options gave.
    """
    from nanoset_core.tokenizers.files import TokenizerFile

    return TokenizerFile(
        path,
        merges=_local_copy(flags.merges),  # downloaded, if it is in a bucket
        pattern=flags.pattern,
        special_tokens=flags.special_tokens_of_tokenizer or None,
        num_special_tokens=flags.num_special_tokens,
        vocab_size=None if has_vocab_size_option else flags.vocab_size,
        legacy=flags.legacy,
    )


def _tokenizer_named_by(flags: _TokenizerFlags) -> Path | None:
    """Return the local path of the tokenizer that --tokenizer or --vocab-file names, or None.

    Args:
        flags: The values of the options.

    Returns:
        The tokenizer's file, even if the option names its folder.

    Raises:
        ConfigError: Two tokenizers are named.
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
    """Return the local path of a file or folder; one in a bucket is downloaded first."""
    from nanoset_core.storage.places import is_here
    from nanoset_core.tokenizers.files.source import tokenizer_here

    if location is None or is_here(location):
        return location
    return tokenizer_here(location)


def _check_kind(
    source: TokenizerFile, kind: str, flag_name: str, expected_kinds: tuple[str, ...]
) -> None:
    """Check that a tokenizer's file is of a kind that an option allows.

    Args:
        source: The tokenizer's file.
        kind: The kind of the file, such as `vocab.json`.
        flag_name: The option, for the error.
        expected_kinds: The kinds that the option allows.

    Raises:
        ConfigError: The file is of another kind.
    """
    if kind in expected_kinds:
        return

    # Name the --tokenizer-type that the file fits.
    remedy = f"leave {flag_name} out: --tokenizer alone takes every kind of file"
    for type_name, kinds in TOKENIZER_TYPES.items():
        if kind in kinds:
            remedy += f", or --tokenizer-type {type_name}"
    raise ConfigError(
        "the tokenizer's file is not of this type",
        where=flag_name,
        found=f"{source}: {kind}",
        expected=" or ".join(expected_kinds),
        remedy=remedy,
    )
