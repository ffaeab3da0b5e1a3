"""What large files of tokenizers were made into is kept, and a damaged file costs time only."""

import os
from pathlib import Path

import pytest

from nanoset_core.tokenization.files import TokenizerFile, converted, define, definition
from nanoset_core.tokenization.files.split_patterns import PATTERNS

FILES = Path(__file__).parents[1] / "golden" / "tokenization" / "files"
SOURCES = {
    "ranks": TokenizerFile(FILES / "ranks.tiktoken", pattern="o200k", special_tokens=("<|endoftext|>", "<|im_end|>")),
    "megatron": TokenizerFile(FILES / "megatron.json", pattern="v1", num_special_tokens=20, vocab_size=430),
    "tekken": TokenizerFile(FILES / "tekken.json"),
    "vocabulary": TokenizerFile(FILES / "vocab.json", merges=FILES / "merges.txt"),
    "model": TokenizerFile(FILES / "bpe.model"),
}


@pytest.fixture
def read(monkeypatch, tmp_path):
    """A function that defines a tokenizer as a new process would, and says whether its files were converted anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(converted, "_LEAST_BYTES", 0)
    calls = []

    def counted(reader):
        return lambda source: calls.append(source) or reader(source)

    readers = {kind: counted(reader) for kind, reader in definition._READERS.items()}
    monkeypatch.setattr(definition, "_READERS", readers)

    def define_anew(source):
        definition._define.cache_clear()
        calls.clear()
        return define(source), bool(calls)

    return define_anew


@pytest.mark.parametrize("name", SOURCES)
def test_the_second_process_finds_what_the_first_made(read, name):
    first, was_made = read(SOURCES[name])
    again, was_made_again = read(SOURCES[name])
    assert (was_made, was_made_again) == (True, False)
    assert (again.fingerprint, again.identity) == (first.fingerprint, first.identity)
    assert again.content.json == first.content.json
    assert list(again.special_tokens.items()) == list(first.special_tokens.items())
    for fact in ("vocab_size", "max_id", "eod", "notice"):
        assert getattr(again.content, fact) == getattr(first.content, fact)


def test_other_settings_and_bytes_are_not_taken_for_these(read, tmp_path):
    read(SOURCES["ranks"])
    assert read(TokenizerFile(FILES / "ranks.tiktoken", pattern="llama3"))[1]
    cut = tmp_path / "cut.tiktoken"
    cut.write_bytes(b"".join((FILES / "ranks.tiktoken").read_bytes().splitlines(keepends=True)[:-3]))
    found, was_made = read(TokenizerFile(cut, pattern="llama3"))
    assert was_made
    assert "holds 417 ranks" in found.notice


@pytest.mark.parametrize("damage", [b"", b"\n\n", b"{}", "cut", "changed"])
def test_a_damaged_file_is_made_again(read, tmp_path, damage):
    first, _ = read(SOURCES["tekken"])
    (path,) = (tmp_path / "nanoset" / "tokenizers").iterdir()
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-9], "changed": whole.replace(b'"BPE"', b'"BPF"')}.get(damage, damage))
    again, was_made = read(SOURCES["tekken"])
    assert was_made
    assert again.content.json == first.content.json
    assert path.read_bytes() == whole


def test_where_nothing_can_be_kept_it_is_made_each_time(read, tmp_path):
    (tmp_path / "nanoset").write_text("a file in place of the folder")
    assert [read(SOURCES["tekken"])[1] for _ in range(2)] == [True, True]


def test_so_many_are_kept(read, tmp_path):
    for number, pattern in enumerate([*(name for name in PATTERNS if name not in ("v1", "v2")), r"\p{L}+|."]):
        read(TokenizerFile(FILES / "ranks.tiktoken", pattern=pattern))
        for path in (tmp_path / "nanoset" / "tokenizers").iterdir():
            if path.stat().st_mtime > 1000:
                os.utime(path, (number, number))
    assert len(list((tmp_path / "nanoset" / "tokenizers").iterdir())) == 8
    assert not read(TokenizerFile(FILES / "ranks.tiktoken", pattern=r"\p{L}+|."))[1]
    assert read(TokenizerFile(FILES / "ranks.tiktoken", pattern="gpt2"))[1]


def test_small_ones_are_not_worth_keeping(read, monkeypatch, tmp_path):
    monkeypatch.setattr(converted, "_LEAST_BYTES", 1 << 20)
    read(SOURCES["tekken"])
    assert not (tmp_path / "nanoset").exists()
