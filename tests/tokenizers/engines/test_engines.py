"""`make_engine` returns the fastest engine that gives the tokens of the tokenizer's own library."""

from __future__ import annotations

import dataclasses
import json
import logging
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.comparing_engines import assert_same_tokens
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.execution.progress import progress_reported_to
from nanoset_core.tokenizers.engines import make_engine, rules
from nanoset_core.tokenizers.engines.engine import Encoded, slices
from nanoset_core.tokenizers.engines.reference import ReferenceEngine


@pytest.fixture
def unsupported_tokenizer(tokenizer_files, tmp_path):
    """The path of a tokenizer with a normalizer that the numpy engine does not support."""
    text = tokenizer_files["gpt2"].read_text()
    path = tmp_path / "unsupported.json"
    path.write_text(text.replace('"normalizer": null', '"normalizer": {"type": "Lowercase"}'))
    return path


def write_tokenizer(tmp_path, model):
    """Write a `tokenizer.json` that has nothing but a model; return its path."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    return path


def write_bpe(tmp_path, vocabulary, merges, **options):
    """Write the `tokenizer.json` of a small BPE, whose tokens are numbered; return its path."""
    ids = {token: number for number, token in enumerate(vocabulary)}
    return write_tokenizer(tmp_path, {"type": "BPE", "vocab": ids, "merges": merges, **options})


# The choice of an engine


SUPPORTED = {
    "neox": "split pattern",
    "llama3": "split pattern",
    "deepseek": "split pattern",
    "gemma": "SentencePiece's spaces and characters",
}
"""Tokenizers that the numpy engine supports → what it recognises in their files."""


@pytest.fixture(scope="module")
def proofs(tmp_path_factory):
    """A folder in which the comparisons of engines are stored, so that each is made once."""
    return tmp_path_factory.mktemp("proofs")


@pytest.mark.usefixtures("without_compiled_engine")
@pytest.mark.parametrize("requested_engine", ["auto", "numpy"])
@pytest.mark.parametrize("kind", SUPPORTED)
def test_the_numpy_engine_is_used_for_tokenizers_that_it_supports(
    tokenizer_files, kind, requested_engine, proofs, caplog
):
    with caplog.at_level(logging.INFO):
        engine = make_engine(tokenizer_files[kind], requested_engine, cache=proofs)

    assert engine.name == "numpy"
    reason = "recognised, same tokens as the tokenizers library on test texts"
    assert f"{SUPPORTED[kind]} {reason}" in engine.reason
    assert "numpy engine" in caplog.text


@pytest.mark.usefixtures("without_compiled_engine")
@pytest.mark.parametrize("kind", SUPPORTED)
def test_the_numpy_engine_has_the_tokens_of_the_library(tokenizer_files, kind, proofs):
    path = tokenizer_files[kind]
    engine = make_engine(path, "numpy", cache=proofs)

    reference = make_engine(str(path), "tokenizers", cache=proofs)

    texts = ["Some text, it's  12345.\n\n\n\n\n\n", "", "x<|endoftext|>y"]
    assert_same_tokens(engine, reference, texts)


@pytest.mark.usefixtures("without_compiled_engine", "few_canaries")
@pytest.mark.parametrize("kind", SUPPORTED)
def test_the_numpy_engine_is_compared_with_the_library_only_once(tokenizer_files, kind, tmp_path):
    reports = []

    with progress_reported_to(reports.append):
        make_engine(tokenizer_files[kind], "auto", cache=tmp_path)
        make_engine(tokenizer_files[kind], "numpy", cache=tmp_path)

    report_texts = [report.text for report in reports]
    assert report_texts == ["proving the numpy engine for this tokenizer (once)"]


@pytest.mark.parametrize("kind", ["neox", "llama3", "deepseek", "gemma"])
def test_the_tokenizers_library_is_used_if_it_is_requested(tokenizer_files, kind, tmp_path):
    engine = make_engine(str(tokenizer_files[kind]), "tokenizers", cache=tmp_path)

    assert engine.name == "tokenizers"
    assert engine.reason == "requested"


def test_the_tokenizers_library_is_used_if_no_other_engine_supports_the_tokenizer(
    unsupported_tokenizer, tmp_path
):
    engine = make_engine(unsupported_tokenizer, cache=tmp_path)

    assert engine.name == "tokenizers"
    assert "Lowercase" in engine.reason


def test_a_requested_engine_that_does_not_support_the_tokenizer_is_an_error(
    unsupported_tokenizer, tmp_path
):
    with pytest.raises(ConfigError, match="does not support") as caught:
        make_engine(unsupported_tokenizer, "numpy", cache=tmp_path)

    assert "Lowercase" in caught.value.found


def test_an_engine_that_does_not_support_the_tokenizer_is_not_compared(
    unsupported_tokenizer, tmp_path
):
    reports = []

    with progress_reported_to(reports.append), pytest.raises(ConfigError):
        make_engine(unsupported_tokenizer, "numpy", cache=tmp_path)

    assert reports == []


@pytest.mark.usefixtures("without_compiled_engine")
def test_an_engine_that_fails_the_canaries_is_replaced_with_a_warning(
    tokenizer_files, tmp_path, monkeypatch, caplog
):
    read_rules = rules.read_rules

    def read_wrong_rules(tokenizer):
        right_rules = read_rules(tokenizer)
        classes = right_rules.classes.copy()
        classes[ord("x")] = 3  # x is a letter, and not a symbol
        return dataclasses.replace(right_rules, classes=classes)

    monkeypatch.setattr(rules, "read_rules", read_wrong_rules)

    engine = make_engine(tokenizer_files["gpt2"], cache=tmp_path)

    assert engine.name == "tokenizers"
    assert "test texts" in engine.reason
    assert "used instead" in caplog.text
    # The wrong rules are not stored for later processes.
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_engine_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="engine"):
        make_engine(tmp_path / "tokenizer.json", "fastest")


# Files that cannot be used


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(MissingError, match="there is no tokenizer"):
        make_engine(tmp_path / "tokenizer.json")


def test_a_file_that_is_no_json_is_an_error(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "1.0"')

    with pytest.raises(FormatError, match="remedy"):
        make_engine(path)


def test_a_merge_at_which_the_rust_panics_is_an_error(tmp_path):
    """A panic of the library is a BaseException, which `except Exception` does not catch."""
    path = write_bpe(tmp_path, ["a", "b"], [["a", "b"]])  # without a token "ab"

    with pytest.raises(FormatError, match="not a tokenizer"):
        make_engine(path)


@pytest.mark.parametrize(
    "merge",
    [pytest.param(["x", "é"], id="a pair"), pytest.param("x é", id="a string")],
)
def test_a_merge_at_which_the_library_would_end_the_process_is_an_error(tmp_path, merge):
    """The library takes the prefix off the right token, in the middle of a character."""
    path = write_bpe(tmp_path, ["x", "é", "xé"], [merge], continuing_subword_prefix="#")

    with pytest.raises(FormatError, match="continuing_subword_prefix"):
        make_engine(path)


# Files whose settings do not matter


def test_a_prefix_is_accepted_if_the_merges_have_it(tmp_path):
    path = write_bpe(tmp_path, ["x", "##é", "xé"], [["x", "##é"]], continuing_subword_prefix="##")

    engine = make_engine(path, "tokenizers")

    assert engine.encode(["xé"]).ids.tolist() == [2]


def test_a_prefix_is_accepted_in_a_model_without_merges(tmp_path):
    model = {
        "type": "WordPiece",
        "unk_token": "u",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 9,
        "vocab": {"u": 0, "a": 1},
    }
    path = write_tokenizer(tmp_path, model)

    engine = make_engine(path)

    assert engine.encode(["a"]).ids.tolist() == [1]


@pytest.mark.usefixtures("few_canaries")
@pytest.mark.parametrize("name", ["tokenizers", "numpy"])
def test_truncation_and_padding_of_the_file_are_ignored(tokenizer_files, tmp_path, name):
    expected = ReferenceEngine(tokenizer_files["gpt2"])
    tokenizer = ReferenceEngine(tokenizer_files["gpt2"]).tokenizer
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))

    engine = make_engine(path, name, cache=tmp_path)

    assert_same_tokens(engine, expected, ["one two three four five six", ""])


# Batches


@given(documents=st.lists(st.lists(st.integers(0, 9), max_size=4)))
def test_a_batch_returns_the_ids_of_each_document(documents):
    ids = np.array(list(chain.from_iterable(documents)), np.int32)
    lengths = np.array([len(document) for document in documents], np.int32)

    lists = Encoded(ids, lengths).lists()

    assert [document_ids.tolist() for document_ids in lists] == documents


@given(texts=st.lists(st.text(max_size=5)), limit=st.integers(1, 12))
def test_slices_have_every_document_once_and_in_order(texts, limit):
    covered = []
    for start, stop in slices(texts, limit):
        covered += range(start, stop)

    assert covered == list(range(len(texts)))


@given(texts=st.lists(st.text(max_size=5)), limit=st.integers(1, 12))
def test_slices_end_with_the_document_that_reaches_the_limit(texts, limit):
    for start, stop in slices(texts, limit):
        size_before_last = sum(map(len, texts[start : stop - 1]))
        assert size_before_last < limit
