"""Small tokenizers of every kind that the numpy engine knows, trained on a short text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanoset_core.tokenizers.engines import patterns

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PROSE = """The quick brown fox can't jump over the lazy dog's 12 fences; they've tried 345 times, haven't they?
    def frobnicate(self, value=None):\n        return self.table[value] != "x" or 3.14159\n\n
Приветствую вас, дорогие друзья! Как дела? Это проверка. 1917 год. Ça va très bien, merci — l'été, déjà vu.
日本語のテキストです。これは試験です。東京都は大きい。中文文本，需要处理的句子。한국어 문장도 있습니다.
हिन्दी में पाठ। สวัสดีชาวโลก ทดสอบ. Ελληνικά γράμματα. עברית. العربية ١٢٣. 🎉🎊 ½ ² ==== ---- ******** ......
I'll say he'd've gone; WE'RE DONE'S. http://example.org/a_b?c=d&e=%20f \t\t tabs\r\nand returns\u00a0nbsp\u3000wide
"""
SPECIAL = "<|endoftext|>"


def _trained(pre_tokenizer=None, *, text=PROSE, alphabet=True, **model):
    """Train byte-level BPE on a text; the keywords are settings of its model."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[SPECIAL], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def _split_by(pattern: patterns.SplitPattern, behavior="isolated", invert=False):
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    splits = [Split(Regex(regex), behavior, invert) for regex in pattern.regex]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def _with_nfc(tokenizer):
    from tokenizers.normalizers import NFC

    tokenizer.normalizer = NFC()
    return tokenizer


def _neox():
    from tokenizers import AddedToken

    tokenizer = _with_nfc(_trained())
    tokenizer.add_tokens([AddedToken(" " * size, normalized=True) for size in range(24, 1, -1)])
    tokenizer.add_tokens(
        [AddedToken("[MASK]", normalized=False), AddedToken("[KEEP]", normalized=True)]
    )
    return tokenizer


def _no_alphabet():
    """Bytes that were not in the training text have no token, and vanish."""
    return _trained(
        text="".join(c for c in PROSE if c.isascii() and c not in "qQ&"), alphabet=False
    )


def _llama3():
    tokenizer = _trained(_split_by(patterns.LLAMA3), ignore_merges=True)
    tokenizer.add_special_tokens([f"<|reserved_{number}|>" for number in range(20)])
    return tokenizer


def _digits():
    from tokenizers import AddedToken
    from tokenizers.normalizers import NFKC
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer = _trained(
        Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    )
    tokenizer.normalizer = NFKC()
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


def _deepseek():
    from tokenizers.normalizers import Sequence

    tokenizer = _trained(_split_by(patterns.DEEPSEEK))
    tokenizer.normalizer = Sequence([])
    return tokenizer


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _characters(normalizer, pre_tokenizer=None, added=()):
    """BPE over characters with a token for every byte, as converted from a SentencePiece model."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split(Regex(r"[\n\t\r]+|[。，]"), "isolated")
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [lines, pre_tokenizers.Metaspace(prepend_scheme="never")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", *BYTES], show_progress=False
    )
    trained.train_from_iterator([PROSE * 2 + "<b>\t\tin</b> \n\n\n   (x)); 中文 中文"], trainer)
    trained.pre_tokenizer = pre_tokenizers.Sequence([])
    parsed = json.loads(trained.to_str())
    parsed["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    parsed |= {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "added_tokens": []}
    tokenizer = Tokenizer.from_str(json.dumps(parsed))
    tokenizer.add_special_tokens([SPECIAL, "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    return tokenizer


TO_SIGNS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
SPLIT_AT_SPACES = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


def _llama2():
    return _characters(
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, TO_SIGNS]}
    )


def _gemma():
    runs = [character * size for character in "\n\t" for size in range(1, 5)]
    return _characters(TO_SIGNS, SPLIT_AT_SPACES, [*runs, "▁▁", "▁▁▁", "<b>", "</b>", "[MASK]"])


def _metaspace(scheme, split):
    return _characters(
        None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    )


CHARACTER_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "llama2": _llama2,
    "gemma": _gemma,
    "metaspace": partial(_metaspace, "first", split=False),
    "metaspace_split": partial(_metaspace, "always", split=True),
}
"""Kinds whose tokens are of characters: name → a function that trains one."""
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _trained,
    "neox": _neox,
    "no_alphabet": _no_alphabet,
    "llama3": _llama3,
    "qwen2": lambda: _with_nfc(_trained(_split_by(patterns.QWEN2))),
    # As converted from tiktoken: what matches is kept.
    "cl100k": lambda: _trained(_split_by(patterns.LLAMA3, "removed", invert=True)),
    "digits": _digits,
    "qwen35": lambda: _with_nfc(_trained(_split_by(patterns.QWEN35))),
    "o200k": lambda: _trained(_split_by(patterns.O200K), ignore_merges=True),
    "tekken": lambda: _trained(_split_by(patterns.TEKKEN)),
    "deepseek": _deepseek,
    "kimi": lambda: _trained(_split_by(patterns.KIMI)),
    "seed": lambda: _trained(_split_by(patterns.SEED)),
}
"""Kinds whose tokens are of bytes: name → a function that trains one."""


def write_small_tokenizers(folder: Path) -> dict[str, Path]:
    """Train a tokenizer of each kind, and write it to a folder; return kind → its file."""
    files: dict[str, Path] = {}
    for kind, make in {**KINDS, **CHARACTER_KINDS}.items():
        files[kind] = folder / f"{kind}.json"
        make().save(str(files[kind]))
    return files
