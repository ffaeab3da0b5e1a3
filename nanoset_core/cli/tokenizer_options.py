"""Options that name a tokenizer and its settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nanoset_core.cli.options import ANY_PATH, option_for
from nanoset_core.config.tokenization import TokenizerSpec
from nanoset_core.errors import ConfigError

if TYPE_CHECKING:
    from nanoset_core.storage.location import Location
    from nanoset_core.tokenization.files import TokenizerPath

Command = TypeVar("Command", bound=Callable[..., Any])

TOKENIZER_TYPES = {
    "HuggingFaceTokenizer": ("tokenizer.json", "vocab.json"),
    "GPT2BPETokenizer": ("vocab.json",),
    "SentencePieceTokenizer": ("SentencePiece",),
    "GPTSentencePieceTokenizer": ("SentencePiece",),
    "Llama2Tokenizer": ("SentencePiece",),
    "TikTokenizer": ("tiktoken JSON",),
}
"""Megatron-LM's --tokenizer-type → the kinds of files that it takes."""

EOD_HELP = "default: that of the file; of a tokenizer.json that of tokenizer_config.json beside it."
_TOKENIZER_HELP = (
    "A tokenizer.json, SentencePiece .model, tekken.json, .tiktoken, vocab.json or Megatron-LM's tiktoken JSON, "
    "or the folder that holds one"
)


def tokenizer_options(use: str = "", *, own_vocab_size: bool = False) -> Callable[[Command], Command]:
    """Return options that name a tokenizer as Megatron-LM's flags do; the command gets one parameter, `tokenizer`.

    Args:
        use: what the command takes it for, as the help says behind a semicolon.
        own_vocab_size: the command has an option --vocab-size itself, which is the tokenizer's too where files of its
            kind leave that open.
    """
    options = [
        click.option(
            *("--tokenizer", "--tokenizer-model", "--pretrained-model-name-or-path", "tokenizer"),
            type=ANY_PATH,
            help=f"{_TOKENIZER_HELP}{'; ' if use else ''}{use}.",
        ),
        click.option(
            "--tokenizer-type", type=click.Choice(list(TOKENIZER_TYPES)), help="Checked: files say what they are."
        ),
        click.option("--vocab-file", type=ANY_PATH, help="A vocab.json, in place of --tokenizer."),
        click.option("--merge-file", "merges", type=ANY_PATH, help="Its merges; default: the merges.txt beside it."),
        option_for(TokenizerSpec, "pattern", "--tiktoken-pattern"),
        click.option(
            *("--tokenizer-special-tokens", "--tiktoken-special-tokens", "special_tokens_of_tokenizer"),
            multiple=True,
            help="Special tokens that the file does not hold; several may follow.",
        ),
        option_for(TokenizerSpec, "num_special_tokens", "--tiktoken-num-special-tokens"),
        *([] if own_vocab_size else [option_for(TokenizerSpec, "vocab_size")]),
        option_for(TokenizerSpec, "legacy", "--tokenizer-sentencepiece-legacy"),
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(**given: Any) -> Any:
            kept = {"vocab_size": given["vocab_size"]} if own_vocab_size else {}
            named = {name: given.pop(name) for name in _NAMES}
            return command(tokenizer=_chosen(**named, is_shared=own_vocab_size), **kept, **given)

        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[return-value]

    return decorate


_NAMES = (
    *("tokenizer", "tokenizer_type", "vocab_file", "merges", "pattern", "special_tokens_of_tokenizer"),
    *("num_special_tokens", "legacy", "vocab_size"),
)


def _chosen(
    *,
    tokenizer: Location | None,
    tokenizer_type: str | None,
    vocab_file: Location | None,
    merges: Location | None,
    special_tokens_of_tokenizer: tuple[str, ...],
    vocab_size: int | None,
    is_shared: bool,
    **settings: Any,
) -> TokenizerPath | None:
    """Return the tokenizer that the options name; a plain path where it has no settings."""
    from nanoset_core.tokenization.files import TokenizerFile, tokenizer_path
    from nanoset_core.tokenization.files.source import kind_of

    if tokenizer is not None and vocab_file is not None:
        found, remedy = f"{tokenizer} and {vocab_file}", "leave one of them out"
        raise ConfigError("two tokenizers are named", where="--tokenizer, --vocab-file", found=found, remedy=remedy)
    given = _local(vocab_file or tokenizer)
    path = None if given is None else tokenizer_path(given)
    settings["special_tokens"] = special_tokens_of_tokenizer or None
    source = TokenizerFile(path or Path(), _local(merges), **settings, vocab_size=None if is_shared else vocab_size)
    if path is None:
        if source.settings or tokenizer_type is not None:
            raise click.UsageError("Missing option '--tokenizer': something is said of a tokenizer that is not named.")
        return None
    kind = kind_of(source)
    if vocab_file is not None and kind != "vocab.json":
        raise ConfigError(
            "this file is no vocab.json",
            where="--vocab-file",
            found=f"{vocab_file}: {kind}",
            expected="the vocab.json that belongs to a merges.txt",
            remedy="name it with --tokenizer, which takes every kind of file",
        )
    if tokenizer_type is not None and kind not in TOKENIZER_TYPES[tokenizer_type]:
        fitting = " or ".join(name for name, kinds in TOKENIZER_TYPES.items() if kind in kinds)
        raise ConfigError(
            "the tokenizer's file is none of this type",
            where=f"--tokenizer-type {tokenizer_type}",
            found=f"{source}: {kind}",
            expected=" or ".join(TOKENIZER_TYPES[tokenizer_type]),
            remedy=f"leave --tokenizer-type out{f', or name {fitting}' if fitting else ''}",
        )
    if is_shared and vocab_size is not None and kind == "tiktoken JSON":
        source = replace(source, vocab_size=vocab_size)
    return source if source.settings else path


def _local(location: Location | None) -> Path | None:
    """Return the local path of a file; of one in a bucket that of a copy."""
    from nanoset_core.tokenization.files.source import tokenizer_here

    return location if location is None or isinstance(location, Path) else tokenizer_here(location)
