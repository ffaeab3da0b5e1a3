"""The gigatoken engine gives the tokens of the reference, if the library is installed."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.comparing_engines import assert_same_tokens, texts_with_marks
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.tokenizers.engines import gigatoken, make_engine

IS_INSTALLED = importlib.util.find_spec("gigatoken") is not None
MIB = 1 << 20
needs_gigatoken = pytest.mark.skipif(
    not IS_INSTALLED, reason="gigatoken (the extra `fast`) is not installed"
)


def replace_library(monkeypatch, load_tokenizer):
    """Put a module in the place of the library, whose tokenizers a function loads."""
    library = SimpleNamespace(Tokenizer=SimpleNamespace(from_json=load_tokenizer))
    monkeypatch.setitem(sys.modules, "gigatoken", library)


@pytest.mark.skipif(IS_INSTALLED, reason="gigatoken is installed")
def test_the_error_says_what_to_install_if_the_library_is_missing(tokenizer_file):
    with pytest.raises(ConfigError, match=r"nanoset-platform\[fast\]"):
        make_engine(tokenizer_file, "gigatoken")


# The installed library


@pytest.fixture(scope="module")
def engine(tokenizer_file):
    """The gigatoken engine."""
    return make_engine(tokenizer_file, "gigatoken")


@pytest.fixture(scope="module")
def reference(tokenizer_file):
    """The tokenizers library."""
    return make_engine(tokenizer_file, "tokenizers")


@needs_gigatoken
def test_the_engine_is_used_on_request(engine):
    assert engine.name == "gigatoken"


@needs_gigatoken
@given(texts=st.lists(st.text(max_size=60), max_size=8))
def test_random_texts_have_the_tokens_of_the_reference(engine, reference, texts):
    assert_same_tokens(engine, reference, texts)


@needs_gigatoken
def test_texts_that_normal_forms_change_have_the_tokens_of_the_reference(tokenizer_files, tmp_path):
    engine = make_engine(tokenizer_files["neox"], "gigatoken", cache=tmp_path)
    reference = make_engine(tokenizer_files["neox"], "tokenizers", cache=tmp_path)

    assert_same_tokens(engine, reference, texts_with_marks(20_000, seed=2))


@needs_gigatoken
@pytest.mark.parametrize("content", ["ſ", "<|endoftext|>x"])
def test_an_added_token_may_take_white_space_that_is_another_added_token(
    write_tokenizer_with, tmp_path, content
):
    path = write_tokenizer_with("neox", content, lstrip=True, rstrip=True, special=True)
    engine = make_engine(path, "gigatoken", cache=tmp_path)
    reference = make_engine(path, "tokenizers")
    texts = [f"x  {content}\n {content}{content}y", f"a    {content}    b"]

    assert_same_tokens(engine, reference, texts)


@needs_gigatoken
def test_a_surrogate_is_an_error(engine):
    with pytest.raises(InputError):
        engine.encode(["good", "bad \ud800"])


# A tokenizer that the library cannot load


@pytest.fixture
def failing_library(monkeypatch):
    """Put a library that loads no tokenizer in the place of gigatoken."""

    def fail(content):
        raise RuntimeError("no token for byte 0x51")

    replace_library(monkeypatch, fail)


@pytest.mark.usefixtures("failing_library")
def test_an_engine_that_cannot_load_the_tokenizer_is_an_error_if_it_is_requested(
    tokenizer_files, tmp_path
):
    with pytest.raises(ConfigError, match="does not support") as caught:
        make_engine(tokenizer_files["no_alphabet"], "gigatoken", cache=tmp_path)

    assert "byte 0x51" in str(caught.value.found)


@pytest.mark.usefixtures("failing_library", "few_canaries")
def test_the_numpy_engine_replaces_an_engine_that_cannot_load_the_tokenizer(
    tokenizer_files, tmp_path
):
    engine = make_engine(tokenizer_files["no_alphabet"], cache=tmp_path)

    assert engine.name == "numpy"


# The memory that the library takes


def test_the_tokenizer_is_loaded_again_when_the_process_has_grown(tokenizer_files, monkeypatch):
    """Some versions of the library keep all words that they ever saw."""
    load_count = 0

    def load_tokenizer(content):
        nonlocal load_count
        load_count += 1
        return SimpleNamespace(backend=SimpleNamespace(encode=number_bytes))

    def number_bytes(text):
        return np.arange(len(text), dtype=np.uint32)

    # The size of the process at the start, after two calls, after four calls (it has grown by more
    # than 192 MiB), after the tokenizer was loaded again, and after six calls.
    sizes = iter([300 * MIB, 400 * MIB, 600 * MIB, 500 * MIB, 600 * MIB])
    replace_library(monkeypatch, load_tokenizer)
    monkeypatch.setattr(gigatoken, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(gigatoken, "_CHECK_INTERVAL", 10)  # bytes: each second call
    engine = gigatoken.GigatokenEngine(tokenizer_files["gpt2"])

    load_counts = []
    for _ in range(6):
        encoded = engine.encode([b"four", b"", b"words"])
        load_counts.append(load_count)
        assert encoded.ids.tolist() == [*range(4), *range(5)]
        assert encoded.lengths.tolist() == [4, 0, 5]

    assert load_counts == [1, 1, 1, 2, 2, 2]
