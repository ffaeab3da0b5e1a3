"""What is computed from tokenizers is stored for later processes.

A damaged file costs time, and changes no result.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from helpers.golden_tokenizers import FILES, GOLDEN_JSON, golden_file
from nanoset_core.tokenizers import cache, files, tokenizer
from nanoset_core.tokenizers.cache import (
    CacheEntry,
    cache_folder,
    environment,
    from_array,
    to_array,
)
from nanoset_core.tokenizers.files import TokenizerFile, define
from nanoset_core.tokenizers.tokenizer import TokenizerFacts

VALUE = {"a": [1, None], "b": "é"}
ARRAYS = {"numbers": np.arange(1000), "value": to_array(VALUE)}


# Entries


@pytest.fixture
def folder(tmp_path):
    """The folder of a cache, which does not exist yet."""
    return tmp_path / "new" / "folder"


@pytest.fixture
def entry(folder):
    """An entry of the cache, which is not stored yet."""
    return CacheEntry("kind", "identity", folder)


@pytest.fixture
def stored_file(entry, folder):
    """The file of the entry, after it was stored; it is the only file of the folder."""
    entry.save(ARRAYS)
    (path,) = folder.iterdir()
    return path


def assert_has_arrays(entry):
    """Check that an entry has the arrays that were stored."""
    arrays = entry.load()
    assert arrays.keys() == ARRAYS.keys()
    np.testing.assert_array_equal(arrays["numbers"], ARRAYS["numbers"])
    assert from_array(arrays["value"]) == VALUE


@pytest.mark.usefixtures("stored_file")
def test_an_entry_has_the_arrays_that_were_saved(entry):
    assert_has_arrays(entry)


@pytest.mark.usefixtures("stored_file")
def test_a_later_process_has_the_arrays_that_were_saved(folder):
    assert_has_arrays(CacheEntry("kind", "identity", folder))


def test_an_entry_that_was_not_saved_has_no_arrays(tmp_path):
    assert CacheEntry("kind", "identity", tmp_path / "nothing").load() is None


@pytest.mark.parametrize(
    ("kind", "identity"),
    [
        pytest.param("kind", "other", id="other identity"),
        pytest.param("other", "identity", id="other kind"),
    ],
)
def test_an_entry_with_another_key_has_no_arrays(folder, stored_file, kind, identity):
    other_entry = CacheEntry(kind, identity, folder)
    assert other_entry.load() is None

    # Nor if it is stored under the name of the other entry.
    shutil.copyfile(stored_file, other_entry._path)
    assert other_entry.load() is None


@pytest.mark.usefixtures("stored_file")
def test_an_entry_of_another_environment_has_no_arrays(folder, monkeypatch):
    monkeypatch.setattr(cache, "environment", lambda: ("other code",))

    assert CacheEntry("kind", "identity", folder).load() is None


def test_the_environment_depends_on_the_machine_and_the_libraries(monkeypatch):
    code, unicode_version, *machine_and_libraries = environment()
    monkeypatch.setattr(cache, "installed_version", lambda package: "0.0.1")
    monkeypatch.setattr(cache.platform, "machine", lambda: "other")

    # The function without its cache.
    other_code, other_unicode_version, *other_machine_and_libraries = environment.__wrapped__()

    assert other_code == code
    assert other_unicode_version == unicode_version
    assert len(other_machine_and_libraries) == 5
    for value, other_value in zip(machine_and_libraries, other_machine_and_libraries, strict=True):
        assert other_value != value


# Damaged entries, and entries that cannot be stored


def test_a_cut_entry_is_deleted(entry, stored_file):
    content = stored_file.read_bytes()
    steps = range(1000, len(content), len(content) // 9)

    for size in [0, 1, 100, *steps, len(content) - 1]:
        stored_file.write_bytes(content[:size])
        assert entry.load() is None
        assert not stored_file.exists()


def test_an_entry_with_a_flipped_bit_has_the_right_arrays_or_none(entry, stored_file):
    content = stored_file.read_bytes()
    generator = random.Random(1)

    for _ in range(25):
        damaged_content = bytearray(content)
        position = generator.randrange(len(content))
        damaged_content[position] ^= 1 << generator.randrange(8)
        stored_file.write_bytes(damaged_content)

        arrays = entry.load()

        # Some bits of the file do not matter.
        if arrays is not None:
            np.testing.assert_array_equal(arrays["numbers"], ARRAYS["numbers"])


@pytest.mark.parametrize(
    "error_number",
    [errno.ENOSPC, errno.EACCES, errno.EROFS],
    ids=["full", "forbidden", "read-only"],
)
def test_a_disk_that_cannot_be_written_is_no_error(entry, folder, monkeypatch, error_number):
    def fail(*args, **kwargs):
        raise OSError(error_number, os.strerror(error_number))

    monkeypatch.setattr(cache.np, "savez", fail)

    entry.save(ARRAYS)

    assert entry.load() is None
    assert list(folder.iterdir()) == []


def test_without_a_folder_nothing_is_stored():
    entry = CacheEntry("kind", "identity", None)

    entry.save(ARRAYS)

    assert entry.load() is None
    entry.drop("for the test")


def test_a_folder_that_cannot_be_created_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    entry = CacheEntry("kind", "identity", tmp_path / "file" / "folder")

    entry.save(ARRAYS)

    assert entry.load() is None
    entry.drop("for the test")


# The size of the cache


def test_an_entry_is_not_replaced_by_a_smaller_one(entry, stored_file):
    size = stored_file.stat().st_size

    entry.save({"numbers": np.zeros(3)})

    assert stored_file.stat().st_size == size


def test_the_oldest_entries_are_deleted_if_the_folder_is_too_large(
    entry, stored_file, folder, monkeypatch
):
    monkeypatch.setattr(cache, "FOLDER_BYTES", 4 * stored_file.stat().st_size)
    os.utime(stored_file, (0, 0))
    entries = [entry]

    # Store twelve more entries, one second after the other.
    for second in range(1, 13):
        new_entry = CacheEntry("kind", f"{second}", folder)
        new_entry.save(ARRAYS)
        os.utime(new_entry._path, (second, second))
        entries.append(new_entry)

    assert len(list(folder.iterdir())) == 4
    is_stored = [entry.load() is not None for entry in entries]
    assert is_stored == [False] * 9 + [True] * 4


def test_a_file_that_another_process_removes_meanwhile_is_no_error(
    entry, folder, stored_file, monkeypatch, caplog
):
    vanished = folder / "vanished.npz"
    glob = Path.glob

    def list_with_vanished(path, pattern):
        return [*glob(path, pattern), vanished]

    monkeypatch.setattr(Path, "glob", list_with_vanished)
    caplog.set_level("INFO", cache.logger.name)

    CacheEntry("kind", "new", folder).save(ARRAYS)

    assert caplog.text == ""


# The folder of the cache


def test_the_cache_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert cache_folder() == tmp_path / "nanoset" / "tokenizers"


def test_the_cache_is_in_the_home_folder_if_there_is_no_other_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder() == tmp_path / ".cache" / "nanoset" / "tokenizers"


@pytest.fixture
def default_folder(tmp_path, monkeypatch):
    """The default folder of the cache, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nanoset" / "tokenizers"


# Facts of a tokenizer.json


class LibraryFacts(NamedTuple):
    """What the tokenizers library says about a tokenizer."""

    facts: TokenizerFacts
    special_tokens: tuple[str, ...]
    added_tokens: tuple[tuple[int, ...], tuple[int, ...]]
    """Ids that `encode` adds before and after the tokens of a text."""


def facts_in_new_process(path):
    """Return all facts of a tokenizer, as if no one had asked for them in this process."""
    tokenizer._library_facts.cache_clear()
    return LibraryFacts(
        facts=tokenizer.tokenizer_facts(path),
        special_tokens=tokenizer.special_tokens(path),
        added_tokens=tokenizer.added_tokens(path),
    )


@pytest.fixture
def loaded_files(default_folder, monkeypatch):
    """The tokenizers that the library has loaded, in order."""
    paths = []
    load = tokenizer.shared_tokenizer

    def load_and_note(path):
        paths.append(path)
        return load(path)

    monkeypatch.setattr(tokenizer, "shared_tokenizer", load_and_note)
    return paths


@pytest.fixture
def tokenizer_json(tmp_path):
    """The path of a tokenizer that puts <|endoftext|> before each text."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    golden_tokenizer = Tokenizer.from_file(str(GOLDEN_JSON))
    golden_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    path = tmp_path / "tokenizer.json"
    golden_tokenizer.save(str(path))
    return path


def test_the_library_loads_a_tokenizer_once_for_all_facts(tokenizer_json, loaded_files):
    answers = facts_in_new_process(tokenizer_json)

    assert answers.facts.template == ("<|endoftext|>",)
    assert answers.special_tokens == ("<|endoftext|>", "<|padding|>")
    assert answers.added_tokens == ((0,), ())
    assert loaded_files == [tokenizer_json]


def test_a_later_process_has_the_facts_without_the_library(tokenizer_json, loaded_files):
    expected = facts_in_new_process(tokenizer_json)
    loaded_files.clear()

    assert facts_in_new_process(tokenizer_json) == expected
    assert loaded_files == []


def test_the_library_loads_a_tokenizer_again_if_the_stored_facts_are_damaged(
    tokenizer_json, loaded_files, default_folder
):
    expected = facts_in_new_process(tokenizer_json)
    for path in default_folder.iterdir():
        path.write_bytes(path.read_bytes()[:-30])

    loaded_files.clear()
    assert facts_in_new_process(tokenizer_json) == expected
    assert loaded_files == [tokenizer_json]

    # The facts were stored again.
    loaded_files.clear()
    assert facts_in_new_process(tokenizer_json) == expected
    assert loaded_files == []


@pytest.mark.usefixtures("loaded_files")
def test_another_tokenizer_has_facts_of_its_own(tokenizer_json, tmp_path):
    facts_in_new_process(tokenizer_json)
    content = json.loads(tokenizer_json.read_bytes())
    content["added_tokens"][0]["content"] = "<|other|>"
    other_path = tmp_path / "other.json"
    other_path.write_text(json.dumps(content))

    assert "<|other|>" in facts_in_new_process(other_path).special_tokens


# Files of other kinds, which are converted to a tokenizer.json

SOURCES = {
    "ranks": golden_file(
        "ranks.tiktoken", pattern="o200k", special_tokens=("<|endoftext|>", "<|im_end|>")
    ),
    "megatron": golden_file("megatron.json", pattern="v1", num_special_tokens=20, vocab_size=430),
    "tekken": golden_file("tekken.json"),
    "vocabulary": golden_file("vocab.json", merges=FILES / "merges.txt"),
    "model": golden_file("bpe.model"),
}


@pytest.fixture
def converted_files(monkeypatch, default_folder):
    """The tokenizers whose files were converted, in order. Small ones are stored, too."""
    converted = []

    def noting(read):
        def read_and_note(source):
            converted.append(source)
            return read(source)

        return read_and_note

    readers = {kind: noting(read) for kind, read in files._READERS.items()}
    monkeypatch.setattr(files, "_READERS", readers)
    monkeypatch.setattr(files, "_MIN_CACHED_BYTES", 0)
    return converted


def define_in_new_process(source):
    """Define a tokenizer as if this had not been done in this process."""
    files._define.cache_clear()
    return define(source)


@pytest.mark.parametrize("name", SOURCES)
def test_a_later_process_does_not_convert_the_files_again(converted_files, name):
    expected = define_in_new_process(SOURCES[name])
    assert len(converted_files) == 1
    converted_files.clear()

    definition = define_in_new_process(SOURCES[name])

    assert converted_files == []
    assert definition.fingerprint == expected.fingerprint
    assert list(definition.special_tokens.items()) == list(expected.special_tokens.items())
    assert definition.converted.json == expected.converted.json
    assert definition.converted.vocab_size == expected.converted.vocab_size
    assert definition.converted.max_id == expected.converted.max_id
    assert definition.converted.eod == expected.converted.eod
    assert definition.converted.notice == expected.converted.notice


def test_files_are_converted_again_with_other_settings(converted_files):
    define_in_new_process(SOURCES["ranks"])
    converted_files.clear()
    other_settings = golden_file("ranks.tiktoken", pattern="llama3")

    define_in_new_process(other_settings)

    assert converted_files == [other_settings]


def test_other_files_are_converted_with_the_same_settings(converted_files, tmp_path):
    define_in_new_process(golden_file("ranks.tiktoken", pattern="llama3"))
    converted_files.clear()
    lines = (FILES / "ranks.tiktoken").read_bytes().splitlines(keepends=True)
    cut_path = tmp_path / "cut.tiktoken"
    cut_path.write_bytes(b"".join(lines[:-3]))

    definition = define_in_new_process(TokenizerFile(cut_path, pattern="llama3"))

    assert len(converted_files) == 1
    assert "holds 417 ranks" in definition.notices[0]


def test_files_are_converted_again_if_the_stored_tokenizer_is_damaged(
    converted_files, default_folder
):
    expected = define_in_new_process(SOURCES["tekken"])
    (path,) = default_folder.glob("*.definition.npz")
    path.write_bytes(path.read_bytes()[:-9])
    converted_files.clear()

    definition = define_in_new_process(SOURCES["tekken"])

    assert converted_files == [SOURCES["tekken"]]
    assert definition.converted.json == expected.converted.json


def test_small_files_are_converted_each_time(converted_files, default_folder, monkeypatch):
    monkeypatch.setattr(files, "_MIN_CACHED_BYTES", 1 << 20)

    define_in_new_process(SOURCES["tekken"])
    define_in_new_process(SOURCES["tekken"])

    assert converted_files == [SOURCES["tekken"]] * 2
    assert not list(default_folder.glob("*.definition.npz"))
