"""Fast engines with tokenizers from other files than a tokenizer.json."""

import json
from pathlib import Path

import numpy as np
import pytest

from nanoset_core.tokenization.bpe import make_engine
from nanoset_core.tokenization.files import TokenizerFile, define

FILES = Path(__file__).parents[2] / "golden" / "tokenization" / "files"
EXPECTED = json.loads((FILES / "expected.json").read_bytes())
TEXTS = json.loads((FILES / "texts.json").read_bytes())
RANKS = len((FILES / "ranks.tiktoken").read_bytes().splitlines())


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        ("vocab.json", FILES / "vocab.json"),
        (
            "ranks.tiktoken cl100k",
            TokenizerFile(FILES / "ranks.tiktoken", pattern="cl100k", special_tokens=("<|endoftext|>", "<|im_end|>")),
        ),
        ("tekken.json", FILES / "tekken.json"),
        ("bpe.model", FILES / "bpe.model"),
    ],
)
def test_the_numpy_engine_gives_the_tokens_of_the_kinds_own_library(name, tokenizer, tmp_path):
    if name.endswith(".model"):
        pytest.importorskip("sentencepiece")
    engine = make_engine(tokenizer, "numpy", cache=tmp_path)
    encoded = engine.encode(TEXTS)
    assert engine.name == "numpy"
    assert [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])] == EXPECTED[name]


def test_unigrams_are_for_the_package(tmp_path):
    pytest.importorskip("sentencepiece")
    engine = make_engine(FILES / "unigram.model", cache=tmp_path)
    assert engine.name == "sentencepiece"
    assert "not for the numpy engine" in engine.reason


def test_two_tokenizers_of_the_same_bytes_have_two_identities():
    one, other = (
        TokenizerFile(FILES / "megatron.json", num_special_tokens=count, vocab_size=RANKS + count) for count in (20, 30)
    )
    assert define(one).identity != define(other).identity
