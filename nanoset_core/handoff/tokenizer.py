"""Make Megatron-LM's arguments for a tokenizer, by the kind of its file.

Sources: Megatron-LM core_v0.16.1 `megatron/core/tokenizers/text/utils/build_tokenizer.py`, `training/arguments.py`,
`megatron/core/tokenizers/text/libraries/megatron_hf_tokenizer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nanoset_core.tokenization.files import Definition


def tokenizer_arguments(definition: Definition) -> tuple[str, ...]:
    """Return lines of arguments; none for a tokenizer.json, which the user names, or where a name holds a space."""
    make = _ARGUMENTS.get(definition.kind)
    return () if make is None or _holds_spaces(definition) else make(definition)


def tokenizer_note(definition: Definition) -> str | None:
    """Return a note for the user where Megatron-LM has no tokenizer for such a file, or reads it differently."""
    if definition.kind in _ARGUMENTS and _holds_spaces(definition):
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


def _gpt2(definition: Definition) -> tuple[str, ...]:
    source = definition.source
    return (
        "--tokenizer-type GPT2BPETokenizer",
        f"--vocab-file {source.path.absolute()}",
        f"--merge-file {source.merges_file.absolute()}",
    )


def _tiktoken(definition: Definition) -> tuple[str, ...]:
    source, content = definition.source, definition.content
    assert content is not None
    count = len(content.special_tokens)
    named = [] if source.special_tokens is None else [f"--tiktoken-special-tokens {' '.join(source.special_tokens)}"]
    return (
        "--tokenizer-type TikTokenizer",
        f"--tokenizer-model {source.path.absolute()}",
        f"--tiktoken-pattern {source.pattern or 'v2'}",
        f"--tiktoken-num-special-tokens {count}",
        *named,
        f"--vocab-size {content.vocab_size}",
    )


def _sentencepiece(definition: Definition) -> tuple[str, ...]:
    source = definition.source
    # The older of its names means the same in all versions: the newer one has other tokens up to 0.14.
    lines = ["--tokenizer-type GPTSentencePieceTokenizer", f"--tokenizer-model {source.path.absolute()}"]
    if source.legacy:
        lines.append("--tokenizer-sentencepiece-legacy")
        if source.special_tokens:
            lines.append(f"--tokenizer-special-tokens {' '.join(source.special_tokens)}")
    return tuple(lines)


_ARGUMENTS: Mapping[str, Callable[[Definition], tuple[str, ...]]] = {
    "vocab.json": _gpt2,
    "tiktoken JSON": _tiktoken,
    "SentencePiece": _sentencepiece,
}
