"""Small tokenizers of every kind that the numpy engine knows, trained on a short text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.tokenizers.engines import patterns

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

PROSE = """The quick brown fox can't jump over the lazy dog's 12 fences; they've tried 345 times, haven't they?
    def frobnicate(self, value=None):\n        return self.table[value] != "x" or 3.14159\n\n
Приветствую вас, дорогие друзья! Как дела? Это проверка. 1917 год. Ça va très bien, merci — l'été, déjà vu.
日本語のテキストです。これは試験です。東京都は大きい。中文文本，需要处理的句子。한국어 문장도 있습니다.
हिन्दी में पाठ। สวัสดีชาวโลก ทดสอบ. Ελληνικά γράμματα. עברית. العربية ١٢٣. 🎉🎊 ½ ² ==== ---- ******** ......
I'll say he'd've gone; WE'RE DONE'S. http://example.org/a_b?c=d&e=%20f \t\t tabs\r\nand returns\u00a0nbsp\u3000wide
"""
SPECIAL = "<|endoftext|>"
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
"""How SentencePiece writes the tokens of single bytes."""
SPACES_TO_SIGNS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
SPLIT_AT_SPACES = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


# Kinds whose tokens are of bytes


def train_byte_level(
    pre_tokenizer: PreTokenizer | None = None,
    *,
    text: str = PROSE,
    has_all_bytes: bool = True,
    ignore_merges: bool = False,
) -> Tokenizer:
    """Train byte-level BPE on a text.

    Args:
        pre_tokenizer: Splits the text; like GPT-2 if None.
        text: The text to train on.
        has_all_bytes: Whether every byte has a token, or only those of the text.
        ignore_merges: Whether a word of the vocabulary is one token, whatever the merges say.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    if pre_tokenizer is None:
        pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    initial_alphabet = []
    if has_all_bytes:
        initial_alphabet = pre_tokenizers.ByteLevel.alphabet()

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[SPECIAL],
        initial_alphabet=initial_alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def split_by(
    pattern: patterns.SplitPattern, behavior: str = "isolated", *, invert: bool = False
) -> PreTokenizer:
    """Return a pre-tokenizer that splits text by a pattern."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    splits = [Split(Regex(regex), behavior, invert) for regex in pattern.regex]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def add_nfc(tokenizer: Tokenizer) -> Tokenizer:
    """Let a tokenizer bring text into the normal form NFC, and return it."""
    from tokenizers.normalizers import NFC

    tokenizer.normalizer = NFC()
    return tokenizer


def train_neox() -> Tokenizer:
    """Train a tokenizer with added tokens of 2 to 24 spaces, as GPT-NeoX has them."""
    from tokenizers import AddedToken

    tokenizer = add_nfc(train_byte_level())
    tokenizer.add_tokens([AddedToken(" " * size, normalized=True) for size in range(24, 1, -1)])
    tokenizer.add_tokens(
        [AddedToken("[MASK]", normalized=False), AddedToken("[KEEP]", normalized=True)]
    )
    return tokenizer


def train_without_alphabet() -> Tokenizer:
    """Train a tokenizer that drops the bytes that were not in its training text."""
    characters = [character for character in PROSE if character.isascii()]
    text = "".join(character for character in characters if character not in "qQ&")
    return train_byte_level(text=text, has_all_bytes=False)


def train_llama3() -> Tokenizer:
    """Train a tokenizer like Llama 3's, with many special tokens that begin in the same way."""
    tokenizer = train_byte_level(split_by(patterns.LLAMA3), ignore_merges=True)
    tokenizer.add_special_tokens([f"<|reserved_{number}|>" for number in range(20)])
    return tokenizer


def train_qwen2() -> Tokenizer:
    """Train a tokenizer like Qwen2's."""
    return add_nfc(train_byte_level(split_by(patterns.QWEN2)))


def train_cl100k() -> Tokenizer:
    """Train a tokenizer as it is converted from tiktoken, with splits that keep what matches."""
    return train_byte_level(split_by(patterns.LLAMA3, "removed", invert=True))


def train_digits() -> Tokenizer:
    """Train a tokenizer with a piece for each digit, and with the normal form NFKC."""
    from tokenizers import AddedToken
    from tokenizers.normalizers import NFKC
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer = train_byte_level(pre_tokenizer)
    tokenizer.normalizer = NFKC()
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


def train_qwen35() -> Tokenizer:
    """Train a tokenizer like Qwen3.5's."""
    return add_nfc(train_byte_level(split_by(patterns.QWEN35)))


def train_o200k() -> Tokenizer:
    """Train a tokenizer that splits like o200k of tiktoken."""
    return train_byte_level(split_by(patterns.O200K), ignore_merges=True)


def train_tekken() -> Tokenizer:
    """Train a tokenizer that splits like Mistral's Tekken."""
    return train_byte_level(split_by(patterns.TEKKEN))


def train_deepseek() -> Tokenizer:
    """Train a tokenizer like DeepSeek's, with a sequence of no normalizers."""
    from tokenizers.normalizers import Sequence

    tokenizer = train_byte_level(split_by(patterns.DEEPSEEK))
    tokenizer.normalizer = Sequence([])
    return tokenizer


def train_kimi() -> Tokenizer:
    """Train a tokenizer that splits like Kimi's."""
    return train_byte_level(split_by(patterns.KIMI))


def train_seed() -> Tokenizer:
    """Train a tokenizer that splits like Seed's."""
    return train_byte_level(split_by(patterns.SEED))


# Kinds whose tokens are of characters


def train_over_characters(
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    added_tokens: list[str] | None = None,
) -> Tokenizer:
    """Train BPE over characters with a token for every byte, like a converted SentencePiece model.

    Args:
        normalizer: The entry of the `tokenizer.json`.
        pre_tokenizer: The entry of the `tokenizer.json`.
        added_tokens: Texts of tokens that are added after the special ones.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

    # Train with pieces that end at spaces and newlines, so that no merge crosses these.
    trained = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split(Regex(r"[\n\t\r]+|[。，]"), "isolated")
    words = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.pre_tokenizer = pre_tokenizers.Sequence([lines, words])
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", *BYTE_TOKENS], show_progress=False
    )
    text = PROSE * 2 + "<b>\t\tin</b> \n\n\n   (x)); 中文 中文"
    trained.train_from_iterator([text], trainer)
    trained.pre_tokenizer = pre_tokenizers.Sequence([])

    # Encode with other pieces.
    content = json.loads(trained.to_str())
    content["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    content["normalizer"] = normalizer
    content["pre_tokenizer"] = pre_tokenizer
    content["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([SPECIAL, "<s>", "</s>"])
    if added_tokens is not None:
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added_tokens])
    return tokenizer


def train_llama2() -> Tokenizer:
    """Train a tokenizer like Llama 2's, whose normalizer puts a ▁ before each text."""
    prepend = {"type": "Prepend", "prepend": "▁"}
    normalizer = {"type": "Sequence", "normalizers": [prepend, SPACES_TO_SIGNS]}
    return train_over_characters(normalizer, None)


def train_gemma() -> Tokenizer:
    """Train a tokenizer with added tokens of newlines, tabs, ▁ and HTML tags, as Gemma has them."""
    newlines = ["\n" * size for size in range(1, 5)]
    tabs = ["\t" * size for size in range(1, 5)]
    added_tokens = [*newlines, *tabs, "▁▁", "▁▁▁", "<b>", "</b>", "[MASK]"]
    return train_over_characters(SPACES_TO_SIGNS, SPLIT_AT_SPACES, added_tokens)


def train_metaspace() -> Tokenizer:
    """Train a tokenizer that puts a ▁ before the first word, and does not split text."""
    pre_tokenizer = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "first",
        "split": False,
    }
    return train_over_characters(None, pre_tokenizer)


def train_metaspace_split() -> Tokenizer:
    """Train a tokenizer that puts a ▁ before each piece of text, and splits text before each ▁."""
    pre_tokenizer = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    }
    return train_over_characters(None, pre_tokenizer)


BYTE_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": train_byte_level,
    "neox": train_neox,
    "no_alphabet": train_without_alphabet,
    "llama3": train_llama3,
    "qwen2": train_qwen2,
    "cl100k": train_cl100k,
    "digits": train_digits,
    "qwen35": train_qwen35,
    "o200k": train_o200k,
    "tekken": train_tekken,
    "deepseek": train_deepseek,
    "kimi": train_kimi,
    "seed": train_seed,
}
"""Kinds whose tokens are of bytes: name → a function that trains one."""
CHARACTER_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "llama2": train_llama2,
    "gemma": train_gemma,
    "metaspace": train_metaspace,
    "metaspace_split": train_metaspace_split,
}
"""Kinds whose tokens are of characters: name → a function that trains one."""


def write_small_tokenizers(folder: Path) -> dict[str, Path]:
    """Train a tokenizer of each kind, and write it to a folder; return kind → its file."""
    path_by_kind: dict[str, Path] = {}
    for kind, train in {**BYTE_KINDS, **CHARACTER_KINDS}.items():
        path_by_kind[kind] = folder / f"{kind}.json"
        train().save(str(path_by_kind[kind]))
    return path_by_kind
