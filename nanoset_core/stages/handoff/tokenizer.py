"""Megatron-LM's arguments for a tokenizer, by the kind of its file.

Sources: Megatron-LM core_v0.16.1 `megatron/core/tokenizers/text/utils/build_tokenizer.py`,
    `training/arguments.py`,
`megatron/core/tokenizers/text/libraries/megatron_hf_tokenizer.py`.
"""

from __future__ import annotations

import json

from nanoset_core.tokenizers.files import Definition

_NAMED_BY_ARGUMENTS = ("vocab.json", "tiktoken JSON", "SentencePiece")
"""Kinds of files that Megatron-LM's arguments can name."""


def tokenizer_arguments(definition: Definition) -> tuple[str, ...]:
    """Return lines of arguments that name a tokenizer.

    There are none for a tokenizer.json, which Megatron-LM takes as a folder that the user names,
    and none if a path or a special token contains a space, at which the shell would cut it.
    """
    if _contains_spaces(definition):
        return ()
    source = definition.source
    path = source.path.absolute()
    special_tokens = " ".join(source.special_tokens or ())
    if definition.kind == "vocab.json":
        return (
            "--tokenizer-type GPT2BPETokenizer",
            f"--vocab-file {path}",
            f"--merge-file {source.merges_file.absolute()}",
        )
    if definition.kind == "tiktoken JSON" and definition.converted is not None:
        lines = [
            "--tokenizer-type TikTokenizer",
            f"--tokenizer-model {path}",
            f"--tiktoken-pattern {source.pattern or 'v2'}",
            f"--tiktoken-num-special-tokens {len(definition.converted.special_tokens)}",
        ]
        if source.special_tokens is not None:
            lines.append(f"--tiktoken-special-tokens {special_tokens}")
        lines.append(f"--vocab-size {definition.converted.vocab_size}")
        return tuple(lines)
    if definition.kind == "SentencePiece":
        # The older of two names, which means the same in all versions: the newer one has other
        # tokens up to 0.14.
        lines = ["--tokenizer-type GPTSentencePieceTokenizer", f"--tokenizer-model {path}"]
        if source.legacy:
            lines.append("--tokenizer-sentencepiece-legacy")
        if source.legacy and special_tokens:
            lines.append(f"--tokenizer-special-tokens {special_tokens}")
        return tuple(lines)
    return ()


def tokenizer_note(definition: Definition, eod: str | None = None) -> str | None:
    """Return a note if Megatron-LM has no tokenizer for such a file, or reads it differently; None
    otherwise.

    Args:
        definition: The tokenizer.
        eod: Its end-of-document token.
    """
    kind = definition.kind
    if kind == "tokenizer.json":
        config = json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eod}, ensure_ascii=False
        )
        return (
            "Megatron-LM's HuggingFaceTokenizer takes a folder (--tokenizer-model FOLDER) of tokenizer.json and "
            "tokenizer_config.json; with the first alone it knows no EOD. Where there is no second, write it: "
            f"{config}"
        )
    if kind in _NAMED_BY_ARGUMENTS and _contains_spaces(definition):
        return (
            "No arguments name the tokenizer: there is a space in its path, or in a special token."
        )
    if kind == "vocab.json":
        return (
            "With --tokenizer-type GPT2BPETokenizer megatron-core 0.15 to 0.17 take the merges of gpt2 from the "
            "Hugging Face Hub in place of --merge-file. If yours are others, add --legacy-tokenizer (0.15 and 0.16)."
        )
    if kind in ("tiktoken", "tekken.json") and definition.converted is not None:
        return (
            f"Megatron-LM has no tokenizer for {definition.source.name} ({kind}). Its NullTokenizer trains on "
            f"tokens that are there: --tokenizer-type NullTokenizer --vocab-size {definition.converted.vocab_size}; but "
            "its EOD is another one, so that options which look for EOD do not find yours."
        )
    return None


def _contains_spaces(definition: Definition) -> bool:
    """Return whether a path or a special token contains a space."""
    source = definition.source
    names = [
        str(source.path.absolute()),
        str(source.merges_file.absolute()),
        *(source.special_tokens or ()),
    ]
    return any(character.isspace() for character in "".join(names))
