"""Name a tokenizer in Megatron-LM's arguments, by the kind of its file.

For example, a SentencePiece model becomes `--tokenizer-type GPTSentencePieceTokenizer` and
`--tokenizer-model /data/llama.model`. Some kinds cannot be named by arguments alone; then a note
tells the user what else Megatron-LM needs.

Sources:
    Megatron-LM core_v0.16.1 `megatron/core/tokenizers/text/utils/build_tokenizer.py`,
    `training/arguments.py`, `megatron/core/tokenizers/text/libraries/megatron_hf_tokenizer.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nanoset_core.tokenizers.files import Definition
from nanoset_core.tokenizers.files.source import TokenizerFile
from nanoset_core.tokenizers.files.tokenizer_json import ConvertedTokenizer

_NAMED_BY_ARGUMENTS = ("vocab.json", "tiktoken JSON", "SentencePiece")
"""Kinds of files that Megatron-LM's arguments can name."""
_IGNORED_MERGES_NOTE = (
    "With --tokenizer-type GPT2BPETokenizer, megatron-core 0.15 to 0.17 use the merges of "
    "gpt2 from the Hugging Face Hub instead of --merge-file. If your merges differ, add "
    "--legacy-tokenizer (0.15 and 0.16)."
)
"""Some versions ignore one of the two files of GPT-2's tokenizer."""


def tokenizer_arguments(definition: Definition) -> tuple[str, ...]:
    """Return the arguments with which Megatron-LM loads a tokenizer.

    They depend on the format of its file:

        vocab.json       --tokenizer-type GPT2BPETokenizer --vocab-file … --merge-file …
        tiktoken JSON    --tokenizer-type TikTokenizer --tokenizer-model … …
        SentencePiece    --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model … …
        others           none: the user has to name the tokenizer

    Args:
        definition: The tokenizer: its file, and the format of that.

    Returns:
        Options, each with its values, such as ("--tokenizer-type GPT2BPETokenizer", …). Empty if
        the user has to name the tokenizer, also because a path contains a space: the shell would
        divide the argument there.
    """
    if _contains_spaces(definition):  # the shell would split these arguments
        return ()
    if definition.kind == "vocab.json":
        return _gpt2_arguments(definition.source)
    if definition.kind == "tiktoken JSON" and definition.converted is not None:
        return _tiktoken_arguments(definition.source, definition.converted)
    if definition.kind == "SentencePiece":
        return _sentencepiece_arguments(definition.source)
    return ()


def _gpt2_arguments(source: TokenizerFile) -> tuple[str, ...]:
    """Return the arguments for GPT-2's vocabulary and merges, in two files."""
    return (
        "--tokenizer-type GPT2BPETokenizer",
        f"--vocab-file {source.path.absolute()}",
        f"--merge-file {source.merges_file.absolute()}",
    )


def _tiktoken_arguments(source: TokenizerFile, converted: ConvertedTokenizer) -> tuple[str, ...]:
    """Return the arguments with which Megatron-LM loads a list of tokens for tiktoken.

        --tokenizer-type TikTokenizer
        --tokenizer-model /data/tokens.json
        --tiktoken-pattern v2                     how text is divided into words; not in the list
        --tiktoken-num-special-tokens 1000        also not in the list
        --vocab-size 131072

    Args:
        source: The file, with settings of nanoset.yaml that describe it.
        converted: The same tokenizer as a tokenizer.json, which has all of its special tokens.

    Returns:
        Options, each with its values.
    """
    # The list itself does not contain the pattern that splits text into words, nor the number of
    # special tokens.
    lines = [
        "--tokenizer-type TikTokenizer",
        f"--tokenizer-model {source.path.absolute()}",
        f"--tiktoken-pattern {source.pattern or 'v2'}",
        f"--tiktoken-num-special-tokens {len(converted.special_tokens)}",
    ]
    if source.special_tokens is not None:
        lines.append(f"--tiktoken-special-tokens {' '.join(source.special_tokens)}")
    lines.append(f"--vocab-size {converted.vocab_size}")
    return tuple(lines)


def _sentencepiece_arguments(source: TokenizerFile) -> tuple[str, ...]:
    """Return the arguments with which Megatron-LM loads a SentencePiece model.

    Args:
        source: The .model file, with the settings of nanoset.yaml that describe it.

    Returns:
        Options, each with its values.
    """
    # This type has a newer name, too. But with that, versions up to 0.14 add other tokens.
    lines = [
        "--tokenizer-type GPTSentencePieceTokenizer",
        f"--tokenizer-model {source.path.absolute()}",  # /data/tokenizer.model
    ]
    if source.legacy:
        lines += _legacy_arguments(source.special_tokens or ())
    return tuple(lines)


def _legacy_arguments(special_tokens: Sequence[str]) -> list[str]:
    """Return the arguments for the legacy mode, in which text is split at some tokens first.

    Args:
        special_tokens: These tokens. The option that lists them needs at least one value.
    """
    lines = ["--tokenizer-sentencepiece-legacy"]
    if special_tokens:
        lines.append(f"--tokenizer-special-tokens {' '.join(special_tokens)}")
    return lines


def tokenizer_note(
    definition: Definition, eod: str | None = None, pad: str | None = None
) -> str | None:
    """Return a note for the user if Megatron-LM does not read a tokenizer without further help.

    Args:
        definition: The tokenizer. Its `kind` is the format of its file.
        eod: Its end-of-document token.
        pad: Its padding token, if the data contains it.

    Returns:
        The note; None if Megatron-LM reads the tokenizer.
    """
    kind = definition.kind
    if kind == "tokenizer.json":
        return _second_file_note(eod, pad)  # a second file is needed

    if kind in ("tiktoken", "tekken.json") and definition.converted is not None:
        # Megatron-LM has no such tokenizer. The note says how to train without.
        return _unknown_format_note(definition.source.name, kind, definition.converted.vocab_size)

    # The other kinds are loaded by arguments with paths. These cannot contain a space.
    if kind in _NAMED_BY_ARGUMENTS and _contains_spaces(definition):
        return (
            "The arguments do not name the tokenizer, since its path or a special token contains "
            "a space."
        )
    if kind == "vocab.json":
        return _IGNORED_MERGES_NOTE  # some versions ignore a second file, merges.txt
    return None


def _second_file_note(eod: str | None, pad: str | None) -> str:
    """Return a note on the second file that Megatron-LM reads with a tokenizer.json."""
    keys = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eod}
    if pad is not None:
        keys["pad_token"] = pad
    config = json.dumps(keys, ensure_ascii=False)
    return (
        "Megatron-LM's HuggingFaceTokenizer reads a folder (--tokenizer-model FOLDER) with "
        "tokenizer.json and tokenizer_config.json. Without the latter it has no EOD token. With "
        "core 0.15 and 0.16, some tokenizers need further files, such as vocab.json and "
        "merges.txt, or tokenizer.model: copy all that you have. If you have no "
        f"tokenizer_config.json, create it with this content: {config}"
    )


def _unknown_format_note(file_name: str, kind: str, vocab_size: int) -> str:
    """Return a note on a format that no tokenizer of Megatron-LM reads."""
    return (
        f"Megatron-LM has no tokenizer for {file_name} ({kind}). You can train "
        f"with its NullTokenizer: --tokenizer-type NullTokenizer --vocab-size {vocab_size}. Its "
        "EOD token differs from yours, so options that look for EOD tokens do not work."
    )


def _contains_spaces(definition: Definition) -> bool:
    """Return whether a path or a special token contains a space."""
    source = definition.source
    names = [
        str(source.path.absolute()),
        str(source.merges_file.absolute()),
        *(source.special_tokens or ()),
    ]
    return any(character.isspace() for character in "".join(names))
