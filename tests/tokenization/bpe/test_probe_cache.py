"""What is kept between starts, and that it is checked before it is believed."""

from __future__ import annotations

import numpy as np
import pytest

from nanoset_core.tokenization.bpe import make_engine, probe_cache
from nanoset_core.tokenization.bpe.probe_cache import load_cached, save_cached
from nanoset_core.tokenization.cache import cache_folder


def assert_same(first, second):
    for name in ("data", "lengths", "ids", "byte_tokens", "merges"):
        ours, theirs = getattr(first.rules.vocabulary, name), getattr(second.rules.vocabulary, name)
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(first.classes, second.classes)
    for name in ("split", "form", "space_runs", "added_tokens", "whole_words", "forbidden_bytes"):
        assert getattr(first.rules, name) == getattr(second.rules, name)


def test_what_is_kept_comes_back(known, kind, tokenizer_files, tmp_path):
    folder = tmp_path / "new" / "folder"
    assert load_cached(tokenizer_files[kind], folder) is None
    save_cached(known[kind][0], tokenizer_files[kind], folder)
    assert_same(load_cached(tokenizer_files[kind], folder), known[kind][0])
    assert [path.suffix for path in folder.iterdir()] == [".npz"]  # and no temporary file


@pytest.mark.parametrize("size", [0, 10, 1000, -1])
def test_damage_is_noticed(known, tokenizer_files, tmp_path, size):
    save_cached(known["gpt2"][0], tokenizer_files["gpt2"], tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    if size < 0:
        content[len(content) // 2] ^= 0xFF
    path.write_bytes(content if size < 0 else content[:size])
    assert load_cached(tokenizer_files["gpt2"], tmp_path) is None


def test_another_tokenizer_or_library_has_another_file(known, tokenizer_files, tmp_path, monkeypatch):
    save_cached(known["gpt2"][0], tokenizer_files["gpt2"], tmp_path)
    assert load_cached(tokenizer_files["neox"], tmp_path) is None
    monkeypatch.setattr(probe_cache, "version", lambda _package: "0.0.1")
    assert load_cached(tokenizer_files["gpt2"], tmp_path) is None


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(known, tokenizer_files, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    save_cached(known["gpt2"][0], tokenizer_files["gpt2"], blocked / "folder")
    assert load_cached(tokenizer_files["gpt2"], blocked / "folder") is None
    assert make_engine(tokenizer_files["gpt2"], cache=blocked / "folder").name == "numpy"


def test_no_folder_at_all(known, tokenizer_files):
    save_cached(known["gpt2"][0], tokenizer_files["gpt2"], None)
    assert load_cached(tokenizer_files["gpt2"], None) is None


def test_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "nanoset" / "tokenizers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "nanoset" / "tokenizers"
