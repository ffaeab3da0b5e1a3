"""The gigatoken engine: the reference's tokens, or the reference itself."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.tokenization.bpe import make_engine

INSTALLED = importlib.util.find_spec("gigatoken") is not None


@pytest.mark.skipif(INSTALLED, reason="gigatoken is installed")
def test_without_the_extra_it_says_what_to_install(tokenizer_file):
    with pytest.raises(ConfigError, match=r"nanoset-platform\[fast\]"):
        make_engine(tokenizer_file, "gigatoken")


@pytest.fixture(scope="module")
def engines(tokenizer_file):
    pytest.importorskip("gigatoken", reason="gigatoken (the extra `fast`) is not installed")
    return make_engine(tokenizer_file, "gigatoken"), make_engine(tokenizer_file, "tokenizers")


@given(texts=st.lists(st.text(max_size=60), max_size=8))
def test_same_tokens(engines, texts):
    fast, reference = engines
    ours, theirs = fast.encode(texts), reference.encode(texts)
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    assert ours.ids.dtype == ours.lengths.dtype == np.int32


def test_it_is_in_use_and_refuses_what_is_no_text(engines):
    assert engines[0].name == "gigatoken"
    with pytest.raises(InputError):
        engines[0].encode(["good", "bad \ud800"])
