"""Make Megatron-LM's arguments for a tokenizer, by the kind of its file.

Sources: Megatron-LM core_v0.16.1 `megatron/core/tokenizers/text/utils/build_tokenizer.py`, `training/arguments.py`,
`megatron/core/tokenizers/text/libraries/megatron_hf_tokenizer.py`.
"""

from __future__ import annotations

import json

from nanoset_core.tokenizers.files import Definition

_NAMED = ("vocab.json", "tiktoken JSON", "SentencePiece")
"""Kinds of files that Megatron-LM's arguments can name."""


def tokenizer_arguments(definition: Definition) -> tuple[str, ...]:
    """Return lines of arguments; none for a tokenizer.json, which the user names, or where a name holds a space."""
    source, content, path = definition.source, definition.content, definition.source.path.absolute()
    kind = "" if _holds_spaces(definition) else definition.kind
    special = " ".join(source.special_tokens or ())
    if kind == "vocab.json":
        merges = source.merges_file.absolute()
        return "--tokenizer-type GPT2BPETokenizer", f"--vocab-file {path}", f"--merge-file {merges}"
    if kind == "tiktoken JSON" and content is not None:
        return (
            "--tokenizer-type TikTokenizer",
            f"--tokenizer-model {path}",
            f"--tiktoken-pattern {source.pattern or 'v2'}",
            f"--tiktoken-num-special-tokens {len(content.special_tokens)}",
            *([] if source.special_tokens is None else [f"--tiktoken-special-tokens {special}"]),
            f"--vocab-size {content.vocab_size}",
        )
    if kind != "SentencePiece":
        return ()
    lines = ["--tokenizer-sentencepiece-legacy"] if source.legacy else []
    lines += [f"--tokenizer-special-tokens {special}"] if source.legacy and special else []
    # The older of its names means the same in all versions: the newer one has other tokens up to 0.14.
    return "--tokenizer-type GPTSentencePieceTokenizer", f"--tokenizer-model {path}", *lines


def tokenizer_note(definition: Definition, eod: str | None = None) -> str | None:
    """Return a note for the user where Megatron-LM has no tokenizer for such a file, or reads it differently.

    Args:
        definition: of the tokenizer.
        eod: its end-of-document token.
    """
    if definition.kind == "tokenizer.json":
        config = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eod}, ensure_ascii=False)
        return (
            "Megatron-LM's HuggingFaceTokenizer takes a folder (--tokenizer-model FOLDER) of tokenizer.json and "
            "tokenizer_config.json; with the first alone it knows no EOD. Where there is no second, write it: "
            f"{config}"
        )
    if definition.kind in _NAMED and _holds_spaces(definition):
        return "No arguments name the tokenizer: there is a space in its path, or in a special token."
    if definition.kind == "vocab.json":
        return (
            "With --tokenizer-type GPT2BPETokenizer megatron-core 0.15 to 0.17 take the merges of gpt2 from the "
            "Hugging Face Hub in place of --merge-file. If yours are others, add --legacy-tokenizer (0.15 and 0.16)."
        )
    if definition.kind not in ("tiktoken", "tekken.json") or definition.content is None:
        return None
    return (
        f"Megatron-LM has no tokenizer for {definition.source.name} ({definition.kind}). Its NullTokenizer trains on "
        f"tokens that are there: --tokenizer-type NullTokenizer --vocab-size {definition.content.vocab_size}; but its "
        "EOD is another one, so that options which look for EOD do not find yours."
    )


def _holds_spaces(definition: Definition) -> bool:
    source = definition.source
    names = [source.path.absolute(), source.merges_file.absolute(), *(source.special_tokens or ())]
    return any(character.isspace() for name in names for character in str(name))
