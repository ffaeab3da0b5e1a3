"""What is kept of tokenizers between processes: computed once, and a damaged file costs time only."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil

import numpy as np
import pytest

from helpers.locations import GOLDEN_FILES
from nanoset_core.tokenizers import cache, files, tokenizer
from nanoset_core.tokenizers.cache import (
    CacheEntry,
    cache_folder,
    environment,
    from_array,
    to_array,
)
from nanoset_core.tokenizers.files import TokenizerFile, define

GOLDEN = GOLDEN_FILES / "tokenization"
FILES = GOLDEN / "files"
ARRAYS = {"numbers": np.arange(1000), "value": to_array({"a": [1, None], "b": "é"})}


@pytest.fixture
def kept(tmp_path):
    return CacheEntry("kind", "identity", tmp_path / "new" / "folder")


@pytest.fixture
def file(kept, tmp_path):
    kept.save(ARRAYS)
    (path,) = (tmp_path / "new" / "folder").iterdir()  # and no temporary file
    return path


def test_what_is_kept_comes_back(kept, file, tmp_path):
    for again in (kept, CacheEntry("kind", "identity", file.parent)):
        found = again.load()
        np.testing.assert_array_equal(found["numbers"], ARRAYS["numbers"])
        assert from_array(found["value"]) == {"a": [1, None], "b": "é"}
        assert found.keys() == ARRAYS.keys()
    assert CacheEntry("kind", "identity", tmp_path / "nothing").load() is None


def test_what_is_kept_is_of_its_key(file, monkeypatch):
    for other in (
        CacheEntry("kind", "other", file.parent),
        CacheEntry("other", "identity", file.parent),
    ):
        assert other.load() is None
        shutil.copyfile(file, other._path)
        assert other.load() is None
    monkeypatch.setattr(cache, "environment", lambda: ("other code",))
    assert CacheEntry("kind", "identity", file.parent).load() is None


def test_the_key_holds_code_libraries_and_machine(monkeypatch):
    before = environment()
    monkeypatch.setattr(cache, "installed_version", lambda package: "0.0.1")
    monkeypatch.setattr(cache.platform, "machine", lambda: "other")
    after = environment.__wrapped__()
    assert [one == other for one, other in zip(before, after, strict=True)] == [
        True,
        True,
        *[False] * 5,
    ]


def test_damage_is_noticed_and_removed(kept, file):
    whole = file.read_bytes()
    for size in [0, 1, 100, *range(1000, len(whole), len(whole) // 9), len(whole) - 1]:
        file.write_bytes(whole[:size])
        assert kept.load() is None
        assert not file.exists()
    dice = random.Random(1)
    for _ in range(25):
        place = dice.randrange(len(whole))
        file.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << dice.randrange(8)]) + whole[place + 1 :]
        )
        found = kept.load()
        assert found is None or (found["numbers"] == ARRAYS["numbers"]).all()


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_takes_nothing(kept, monkeypatch, tmp_path, fault):
    def fail(*given, **named):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(cache.np, "savez", fail)
    kept.save(ARRAYS)
    assert kept.load() is None
    assert not list((tmp_path / "new" / "folder").iterdir())


def test_no_folder_and_one_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (None, tmp_path / "file" / "folder"):
        kept = CacheEntry("kind", "identity", folder)
        kept.save(ARRAYS)
        assert kept.load() is None
        kept.drop("for the test")


def test_a_larger_entry_stays_and_the_oldest_go(kept, file, monkeypatch):
    size = file.stat().st_size
    kept.save({"numbers": np.zeros(3)})
    assert file.stat().st_size == size
    monkeypatch.setattr(cache, "FOLDER_BYTES", 4 * size)
    for number in range(12):
        CacheEntry("kind", f"{number}", file.parent).save(ARRAYS)
        for path in file.parent.iterdir():
            if path.stat().st_mtime > 1000:
                os.utime(path, (number, number))
    assert len(list(file.parent.iterdir())) == 4
    assert [
        CacheEntry("kind", f"{number}", file.parent).load() is None for number in range(6, 12)
    ] == [True] * 2 + [False] * 4


def test_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "nanoset" / "tokenizers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "nanoset" / "tokenizers"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nanoset" / "tokenizers"


@pytest.fixture
def answers(tmp_path, folder, monkeypatch):
    """A function that asks for all facts of a tokenizer as a new process would; and how often the
    library loaded it.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    made = Tokenizer.from_file(str(GOLDEN / "tokenizer.json"))
    made.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    loads, load = [], tokenizer.shared_tokenizer
    monkeypatch.setattr(
        tokenizer, "shared_tokenizer", lambda file: loads.append(file) or load(file)
    )

    def ask(file=path):
        tokenizer._library_facts.cache_clear()
        loads.clear()
        facts = tokenizer.tokenizer_facts(file)
        found = facts, tokenizer.special_tokens(file), tokenizer.added_tokens(file)
        return found, len(loads)

    return ask


def test_the_library_is_asked_once(answers, folder, tmp_path):
    first, asked = answers()
    assert asked == 1
    assert first[0].template == ("<|endoftext|>",)
    assert first[1:] == (("<|endoftext|>", "<|padding|>"), ((0,), ()))
    assert answers() == (first, 0)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    assert answers() == (first, 1)
    assert answers() == (first, 0)
    value = json.loads((tmp_path / "tokenizer.json").read_bytes())
    value["added_tokens"][0]["content"] = "<|other|>"
    (tmp_path / "other.json").write_text(json.dumps(value))
    assert "<|other|>" in answers(tmp_path / "other.json")[0][1]


SOURCES = {
    "ranks": TokenizerFile(
        FILES / "ranks.tiktoken", pattern="o200k", special_tokens=("<|endoftext|>", "<|im_end|>")
    ),
    "megatron": TokenizerFile(
        FILES / "megatron.json", pattern="v1", num_special_tokens=20, vocab_size=430
    ),
    "tekken": TokenizerFile(FILES / "tekken.json"),
    "vocabulary": TokenizerFile(FILES / "vocab.json", merges=FILES / "merges.txt"),
    "model": TokenizerFile(FILES / "bpe.model"),
}


@pytest.fixture
def read(monkeypatch, folder):
    """A function that defines a tokenizer as a new process would, and says whether its files were
    converted anew.
    """
    monkeypatch.setattr(files, "_MIN_CACHED_BYTES", 0)
    calls = []
    readers = {
        kind: lambda source, reader=reader: calls.append(source) or reader(source)
        for kind, reader in files._READERS.items()
    }
    monkeypatch.setattr(files, "_READERS", readers)

    def define_anew(source):
        files._define.cache_clear()
        calls.clear()
        return define(source), bool(calls)

    return define_anew


@pytest.mark.parametrize("name", SOURCES)
def test_files_of_other_kinds_are_converted_once(read, name):
    first, was_made = read(SOURCES[name])
    again, was_made_again = read(SOURCES[name])
    assert (was_made, was_made_again) == (True, False)
    assert again.fingerprint == first.fingerprint
    assert again.converted.json == first.converted.json
    assert list(again.special_tokens.items()) == list(first.special_tokens.items())
    for fact in ("vocab_size", "max_id", "eod", "notice"):
        assert getattr(again.converted, fact) == getattr(first.converted, fact)


def test_other_settings_and_bytes_are_not_taken_for_these(read, tmp_path):
    read(SOURCES["ranks"])
    assert read(TokenizerFile(FILES / "ranks.tiktoken", pattern="llama3"))[1]
    cut = tmp_path / "cut.tiktoken"
    cut.write_bytes(
        b"".join((FILES / "ranks.tiktoken").read_bytes().splitlines(keepends=True)[:-3])
    )
    found, was_made = read(TokenizerFile(cut, pattern="llama3"))
    assert was_made
    assert "holds 417 ranks" in found.notices[0]


def test_a_damaged_or_missing_entry_is_made_again(read, folder, monkeypatch):
    first, _ = read(SOURCES["tekken"])
    (path,) = folder.glob("*.definition.npz")
    path.write_bytes(path.read_bytes()[:-9])
    again, was_made = read(SOURCES["tekken"])
    assert was_made
    assert again.converted.json == first.converted.json
    path.unlink()
    monkeypatch.setattr(files, "_MIN_CACHED_BYTES", 1 << 20)
    assert [read(SOURCES["tekken"])[1] for _ in range(2)] == [True, True]
    assert not list(folder.glob("*.definition.npz"))
