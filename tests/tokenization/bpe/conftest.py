"""Small tokenizers of every kind that the numpy engine knows, trained on the spot, and text that is hard on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from nanoset_core.tokenization.bpe.probe_cache import TokenizerProbe, probe_tokenizer
from nanoset_core.tokenization.bpe.reference import ReferenceEngine
from nanoset_core.tokenization.bpe.rules import SPLIT_PATTERNS

PROSE = """The quick brown fox can't jump over the lazy dog's 12 fences; they've tried 345 times, haven't they?
    def frobnicate(self, value=None):\n        return self.table[value] != "x" or 3.14159\n\n
Приветствую вас, дорогие друзья! Как дела? Это проверка. 1917 год. Ça va très bien, merci — l'été, déjà vu.
日本語のテキストです。これは試験です。東京都は大きい。中文文本，需要处理的句子。한국어 문장도 있습니다.
हिन्दी में पाठ। สวัสดีชาวโลก ทดสอบ. Ελληνικά γράμματα. עברית. العربية ١٢٣. 🎉🎊 ½ ² ==== ---- ******** ......
I'll say he'd've gone; WE'RE DONE'S. http://example.org/a_b?c=d&e=%20f \t\t tabs\r\nand returns\u00a0nbsp\u3000wide
"""
SPECIAL = "<|endoftext|>"
_LLAMA3, _QWEN2 = (next(p for p, rule in SPLIT_PATTERNS.items() if rule.digits == digits) for digits in (3, 1))


def _trained(pre_tokenizer=None, *, text=PROSE, alphabet=True, **model):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[SPECIAL], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def _split_by(pattern: str):
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    return Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


def _with_nfc(tokenizer):
    from tokenizers.normalizers import NFC

    tokenizer.normalizer = NFC()
    return tokenizer


def _neox():
    from tokenizers import AddedToken

    tokenizer = _with_nfc(_trained())
    tokenizer.add_tokens([AddedToken(" " * size, normalized=True) for size in range(24, 1, -1)])
    tokenizer.add_tokens([AddedToken("[MASK]", normalized=False), AddedToken("[KEEP]", normalized=True)])
    return tokenizer


def _no_alphabet():
    """Bytes that were not in the training text have no token, and vanish."""
    return _trained(text="".join(c for c in PROSE if c.isascii() and c not in "qQ&"), alphabet=False)


def _llama3():
    tokenizer = _trained(_split_by(_LLAMA3), ignore_merges=True)
    tokenizer.add_special_tokens([f"<|reserved_{number}|>" for number in range(20)])
    return tokenizer


def _qwen2():
    return _with_nfc(_trained(_split_by(_QWEN2)))


KINDS = {"gpt2": _trained, "neox": _neox, "no_alphabet": _no_alphabet, "llama3": _llama3, "qwen2": _qwen2}


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    files = {}
    for kind, make in KINDS.items():
        files[kind] = folder / f"{kind}.json"
        make().save(str(files[kind]))
    return files


@pytest.fixture(scope="session")
def known(tokenizer_files) -> dict[str, tuple[TokenizerProbe, ReferenceEngine]]:
    """Rules and classes of each tokenizer, and the reference."""
    found = {}
    for kind, path in tokenizer_files.items():
        reference = ReferenceEngine(path)
        found[kind] = probe_tokenizer(path, reference), reference
    return found


@pytest.fixture(params=sorted(KINDS))
def kind(request) -> str:
    return request.param


_CORE = list(" \n\r\t'sSrRvVlLeEtTdDmM12!.-aé世ſ\u3000\u00a0\u0301١२🎉\u2028Ж½\u0085\u1680\x1c\ufeff\u200b。，す")
_WORDS = [
    " the",
    "'s",
    "'ll",
    "'RE",
    "hello",
    " 2024",
    " 123456",
    "Привет",
    "日本語",
    "हिन्दी",
    "\n\n",
    "\r\n",
    " \n  ",
    "e\u0301",
]
_WORDS += [
    "\u212b",
    "가",
    "각",
    "!!!\n\n",
    "a b c d",
    "x. y",
    "{\n    \t",
    "=====" * 20,
    SPECIAL,
    "<|reserved_3|>",
    "<|end",
    "\0",
]


def characters() -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(_CORE), st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="session")
def hard_texts() -> st.SearchStrategy[str]:
    """Texts of a few pieces: characters of every class, long runs, words, and what goes to the reference."""
    runs = st.builds(str.__mul__, characters(), st.sampled_from([2, 3, 4, 8, 9, 16, 17, 24, 25, 26, 31, 49, 65, 249]))
    piece = st.one_of(characters(), characters(), st.sampled_from(_WORDS), runs)
    return st.lists(piece, max_size=12).map("".join)
