"""Tokenizers from every kind of file, against the tokens that the kind's own library gave."""

import base64
import json
import re
import shutil
import sys
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.engines import make_engine, patterns
from nanoset_core.tokenizers.files import TokenizerFile, define, tokenizer_path
from nanoset_core.tokenizers.files.split_patterns import PATTERNS, NamedPattern
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters
from nanoset_core.tokenizers.tokenizer import special_tokens, token_id, tokenizer_facts

FILES = GOLDEN_FILES / "tokenization" / "files"
EXPECTED = json.loads((FILES / "expected.json").read_bytes())
TEXTS = json.loads((FILES / "texts.json").read_bytes())
RANKS = len((FILES / "ranks.tiktoken").read_bytes().splitlines())
NAMES = ("<|endoftext|>", "<|im_end|>")


def source(name, **settings):
    return TokenizerFile(FILES / name, **settings)


SOURCES = {
    "vocab.json": source("vocab.json"),
    **{
        f"ranks.tiktoken {name}": source("ranks.tiktoken", pattern=name, special_tokens=NAMES)
        for name in ("gpt2", "cl100k", "qwen2", "o200k")
    },
    **{
        f"megatron.json {name}": source(
            "megatron.json", pattern=name, num_special_tokens=20, vocab_size=RANKS + 10
        )
        for name in ("v1", "v2")
    },
    "tekken.json": FILES / "tekken.json",
    **{name: FILES / name for name in ("bpe.model", "unigram.model")},
    **{
        f"{name} legacy": source(name, special_tokens=("<s>", "<mask>", "<unk>"), legacy=True)
        for name in ("bpe.model", "unigram.model")
    },
}


NUMPY = ("vocab.json", "ranks.tiktoken cl100k", "tekken.json", "bpe.model")


@pytest.mark.parametrize(("engine", "names"), [("tokenizers", EXPECTED), ("numpy", NUMPY)])
def test_engines_give_the_tokens_of_the_kinds_own_library(engine, names, tmp_path):
    for name in names:
        if ".model" in name:
            pytest.importorskip("sentencepiece")
        made = make_engine(SOURCES[name], engine, cache=tmp_path)
        assert engine == "tokenizers" or made.name == "numpy"
        assert ids_of(made) == EXPECTED[name], name


def ids_of(engine):
    encoded = engine.encode(TEXTS)
    return [part.tolist() for part in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])]


def test_unigrams_are_for_the_package(tmp_path):
    pytest.importorskip("sentencepiece")
    engine = make_engine(FILES / "unigram.model", cache=tmp_path)
    assert engine.name == "sentencepiece"
    assert "not for the numpy engine" in engine.reason


def test_two_tokenizers_of_the_same_bytes_have_two_identities():
    one, other = (
        source("megatron.json", num_special_tokens=n, vocab_size=RANKS + n) for n in (20, 30)
    )
    assert define(one).fingerprint != define(other).fingerprint


def test_named_patterns_are_those_that_the_numpy_engine_knows():
    known = {pattern.regex[0] for pattern in patterns.SPLIT_PATTERNS.values()}
    assert {name for name, pattern in PATTERNS.items() if pattern.regex not in known} == {"v1"}


@pytest.mark.parametrize(
    ("name", "size", "greatest", "eod", "ident"),
    [
        ("vocab.json", RANKS + 1, RANKS, "<|endoftext|>", RANKS),
        ("ranks.tiktoken cl100k", RANKS + 2, RANKS + 1, "<|endoftext|>", RANKS),
        ("megatron.json v2", RANKS + 10, RANKS + 9, "</s>", 2),
        ("tekken.json", RANKS + 10, RANKS + 9, "</s>", 2),
        ("bpe.model", 560, 559, "</s>", 2),
        # <mask> is no piece, and <unk> is not found again
        ("bpe.model legacy", 562, 561, "</s>", 2),
    ],
)
def test_facts(name, size, greatest, eod, ident):
    tokenizer = SOURCES[name]
    facts = tokenizer_facts(tokenizer)
    assert (facts.vocab_size, facts.max_id) == (size, greatest)
    assert end_token(tokenizer, None) == eod
    assert token_id(tokenizer, eod, "eod") == ident
    assert eod in special_tokens(tokenizer)


def test_a_pattern_of_published_ranks_brings_their_special_tokens(tmp_path):
    words = [base64.b64encode(number.to_bytes(3, "big")) for number in range(128000 - 256)]
    lines = [base64.b64encode(bytes([byte])) for byte in range(256)] + words
    file = tmp_path / "tokenizer.model"  # as Llama-3's is called
    file.write_bytes(b"".join(b"%b %d\n" % (word, rank) for rank, word in enumerate(lines)))
    llama3 = TokenizerFile(file, pattern="llama3")
    assert tokenizer_facts(llama3).vocab_size == 128256
    assert token_id(llama3, "<|eot_id|>", "eod") == 128009
    assert end_token(llama3, None) == "<|end_of_text|>"


def test_fingerprints_follow_what_reaches_the_tokens_and_nothing_else(tmp_path):
    named, again = (define(source("ranks.tiktoken", pattern=name)) for name in ("llama3", "cl100k"))
    assert named.fingerprint == again.fingerprint  # the same regular expression
    spelled = source("ranks.tiktoken", pattern=PATTERNS["cl100k"].regex)
    assert define(spelled).fingerprint == named.fingerprint
    others = [
        SOURCES["ranks.tiktoken cl100k"],
        source("ranks.tiktoken", pattern="gpt2"),
        FILES / "tekken.json",
    ]
    assert len({define(other).fingerprint for other in others} | {named.fingerprint}) == 4
    copy = Path(shutil.copyfile(FILES / "ranks.tiktoken", tmp_path / "other.name"))
    assert define(TokenizerFile(copy, pattern="llama3")).fingerprint == named.fingerprint
    assert (
        define(FILES / "bpe.model").fingerprint
        != define(source("bpe.model", legacy=True)).fingerprint
    )


def test_what_is_not_named_in_a_folder_is_found(tmp_path):
    for name in ("vocab.json", "merges.txt", "tekken.json"):
        shutil.copyfile(FILES / name, tmp_path / name)
    assert tokenizer_path(tmp_path).name == "tekken.json"
    (tmp_path / "tekken.json").unlink()
    assert tokenizer_path(tmp_path).name == "vocab.json"
    assert define(tokenizer_path(tmp_path)).fingerprint == define(FILES / "vocab.json").fingerprint


def test_a_folder_without_one_of_these_names_tells_what_it_holds(tmp_path):
    for name in ("a.tiktoken", "b.tiktoken", "tokenizer.model.v1", "gpt2-vocab.json", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(MissingError) as caught:
        tokenizer_path(tmp_path)
    assert caught.value.found == (
        f"{tmp_path} is a folder with a.tiktoken, b.tiktoken, gpt2-vocab.json, tokenizer.model.v1"
    )
    assert "tekken.json" in caught.value.expected
    assert "name the file" in caught.value.remedy


def test_bytes_that_utf_8_never_has_need_no_token(tmp_path):
    vocabulary = json.loads((FILES / "vocab.json").read_bytes())
    never = byte_characters()[0xC0:0xC2] + byte_characters()[0xF5:]
    left = {token: ident for token, ident in vocabulary.items() if token not in never}
    assert len(left) == len(vocabulary) - 13
    (tmp_path / "vocab.json").write_text(json.dumps(left))
    fewer = TokenizerFile(tmp_path / "vocab.json", merges=FILES / "merges.txt")
    whole, encoded = (
        make_engine(file, "tokenizers").encode(TEXTS) for file in (SOURCES["vocab.json"], fewer)
    )
    assert encoded.ids.tolist() == whole.ids.tolist()


def test_a_special_token_that_the_normal_form_takes_apart_is_none():
    """Qwen's own code brings text into its form, and looks for special tokens then."""
    pytest.importorskip("tiktoken")
    text = "a <|endoftext|>\u0338 b <|endoftext|>"
    file = SOURCES["ranks.tiktoken qwen2"]
    expected = _both("qwen2")[1].encode(unicodedata.normalize("NFC", text), allowed_special="all")
    assert expected.count(RANKS) == 1
    for engine in ("tokenizers", "auto"):
        assert make_engine(file, engine).encode([text]).ids.tolist() == expected


def test_decoding_gives_the_text_again():
    for name, tokenizer in SOURCES.items():
        if name.startswith(("ranks", "tekken", "vocab")) and "qwen2" not in name:
            from nanoset_core.tokenizers.engines.tokenizers_library import load_tokenizer

            loaded = load_tokenizer(tokenizer)
            assert [
                loaded.decode(ids, skip_special_tokens=False) for ids in EXPECTED[name]
            ] == TEXTS


# -------------------------------------------------------------------------------------------------
# bad input


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 493443\n"


def changed(tmp_path, name, change):
    file = tmp_path / name
    file.write_bytes(change((FILES / name).read_bytes()))
    return file


def lines_changed(change):
    return lambda content: b"\n".join(change(content.split(b"\n")))


def entries_changed(change):
    def made(content):
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return made


def config_changed(**changes):
    return entries_changed(lambda value: value["config"].update(changes))


@pytest.mark.parametrize(
    ("name", "change", "settings", "where", "what"),
    [
        ("bpe.model", lambda _: LFS_POINTER, {}, "", "Git LFS"),
        ("ranks.tiktoken", lambda _: LFS_POINTER, {}, "", "Git LFS"),
        ("ranks.tiktoken", lambda content: content[:-5], {}, f":{RANKS}", "no token and its rank"),
        (
            "ranks.tiktoken",
            lines_changed(lambda x: [*x[:300], b"!!! 300", *x[301:]]),
            {},
            ":301",
            "no token and its rank",
        ),
        ("ranks.tiktoken", lines_changed(lambda x: [*x[:300], *x[301:]]), {}, "", "gap"),
        ("ranks.tiktoken", lines_changed(lambda x: [*x[:9], *x[10:]]), {}, "", "byte has no rank"),
        (
            "ranks.tiktoken",
            lines_changed(lambda x: [*x[:300], x[299], *x[300:]]),
            {},
            ":301",
            "no token and",
        ),
        ("megatron.json", lambda content: content[:-300], {}, "", "read as JSON"),
        ("megatron.json", entries_changed(lambda x: x.pop(300)), {}, "", "entry 300"),
        (
            "megatron.json",
            entries_changed(lambda x: x.pop()),
            {"vocab_size": RANKS + 1000},
            "",
            "fewer tokens",
        ),
        ("megatron.json", entries_changed(lambda x: x[0].pop("rank")), {}, "", "entry 0"),
        ("tekken.json", entries_changed(lambda x: x.pop("vocab")), {}, "", "no tekken.json"),
        ("tekken.json", config_changed(version="v11"), {}, "", "no tekken.json"),
        ("tekken.json", config_changed(pattern=7), {}, "", "no tekken.json"),
        ("tekken.json", config_changed(default_vocab_size=1e9), {}, "", "no tekken.json"),
        ("tekken.json", entries_changed(lambda x: x.update(vocab=None)), {}, "", "no tekken.json"),
        ("tekken.json", config_changed(default_vocab_size=RANKS + 31), {}, "", "fewer tokens"),
        ("vocab.json", lambda content: content[:-9], {}, "", "cannot be read"),
        ("vocab.json", entries_changed(lambda x: x.update(a=5)), {}, "", "cannot be read"),
        ("vocab.json", entries_changed(lambda x: x.pop("a")), {}, "", "cannot be read"),
        ("merges.txt", lines_changed(lambda x: [*x[:5], b"one", *x[5:]]), {}, ":6", "no pair"),
        ("merges.txt", lines_changed(lambda x: [*x[:5], b"qq zz", *x[5:]]), {}, ":6", "no pair"),
        ("bpe.model", lambda content: content[: len(content) // 2], {}, "", "cut or damaged"),
        ("bpe.model", lambda content: b"\n\x05hello" + content, {}, "", "no SentencePiece model"),
        ("bpe.model", lambda content: bytes(64), {}, "", "cut or damaged"),
    ],
)
def test_bad_content(tmp_path, name, change, settings, where, what):
    bad = changed(tmp_path, name, change)
    file = bad
    if name == "merges.txt":
        file = Path(shutil.copyfile(FILES / "vocab.json", tmp_path / "vocab.json"))
    elif name == "vocab.json":
        shutil.copyfile(FILES / "merges.txt", tmp_path / "merges.txt")
    if name == "ranks.tiktoken":
        settings = {"pattern": "cl100k"}
    elif name == "megatron.json" and not settings:
        settings = {"vocab_size": RANKS + 1000}
    with pytest.raises(FormatError, match=what) as caught:
        define(TokenizerFile(file, **settings))
    assert caught.value.where.startswith(str(bad))
    assert where in caught.value.where.removeprefix(str(bad))
    assert caught.value.found
    assert caught.value.expected
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "settings", "what"),
    [
        ("ranks.tiktoken", {}, "how text is split"),
        ("ranks.tiktoken", {"pattern": "cl200k"}, "no such split pattern"),
        ("ranks.tiktoken", {"pattern": "llama-3.1"}, "no such split pattern"),
        ("ranks.tiktoken", {"pattern": "v2"}, "no such split pattern"),
        ("ranks.tiktoken", {"pattern": "(a"}, "not a regular expression"),
        ("ranks.tiktoken", {"pattern": r"\p{N}{1,3}+|."}, "differently"),
        ("ranks.tiktoken", {"pattern": "gpt2", "special_tokens": ("a", "a")}, "named twice"),
        (
            "ranks.tiktoken",
            {"pattern": "gpt2", "legacy": True},
            "does not apply to a file of tiktoken ranks",
        ),
        ("megatron.json", {"pattern": "gpt2"}, "TikTokenizer takes"),
        ("megatron.json", {"special_tokens": ("<unk>",)}, "TikTokenizer refuses"),
        ("bpe.model", {"special_tokens": ("<mask>",)}, "holds its special tokens itself"),
        ("bpe.model", {"pattern": "gpt2"}, "does not apply to a SentencePiece model"),
        ("vocab.json", {"vocab_size": 9}, "does not apply to a vocab.json"),
    ],
)
def test_bad_settings(name, settings, what):
    with pytest.raises(ConfigError, match=what) as caught:
        define(source(name, **settings))
    assert caught.value.where == str(FILES / name)
    assert caught.value.remedy


def test_merges_that_are_not_there(tmp_path):
    file = Path(shutil.copyfile(FILES / "vocab.json", tmp_path / "gpt2-vocab.json"))
    with pytest.raises(MissingError, match=r"merges:.*--merge-file") as caught:
        define(file)
    assert caught.value.where == str(tmp_path / "merges.txt")
    assert define(TokenizerFile(file, merges=FILES / "merges.txt")).kind == "vocab.json"


def test_who_names_the_special_tokens_of_ranks_is_told():
    ranks = source("ranks.tiktoken", pattern="gpt2")
    for look_up in (
        lambda: end_token(ranks, None),
        lambda: token_id(ranks, "<|endoftext|>", "--eod"),
    ):
        with pytest.raises(ConfigError) as caught:
            look_up()
        assert "--tokenizer-special-tokens" in caught.value.remedy
    with pytest.raises(ConfigError) as caught:
        token_id(FILES / "tekken.json", "<|endoftext|>", "--eod")
    assert "--tokenizer-special-tokens" not in caught.value.remedy


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("o200k", "holds 420 ranks .* o200k has 199,998: the file is cut, or"),
        ("gpt2", "holds 420 ranks .* gpt2 has 50,256: the file is cut, or"),
        ("tekken", "holds 420 ranks .* does not say"),
        (r"\p{L}+|.", "holds 420 ranks .* does not say"),
        ("small", "holds 420 ranks .* small has 419: it is"),
        ("whole", None),
    ],
)
def test_the_ranks_of_a_file_that_may_be_cut_are_counted(monkeypatch, pattern, told):
    monkeypatch.setitem(PATTERNS, "small", NamedPattern(PATTERNS["gpt2"].regex, None, 419))
    monkeypatch.setitem(PATTERNS, "whole", NamedPattern(PATTERNS["gpt2"].regex, None, 420))
    notices = define(source("ranks.tiktoken", pattern=pattern)).notices
    assert len(notices) == (told is not None)
    for notice in notices:
        assert re.search(told, notice)
        assert notice.startswith(str(FILES / "ranks.tiktoken"))


def test_a_special_token_that_is_an_ordinary_one():
    with pytest.raises(FormatError, match="text of an ordinary one"):
        define(source("ranks.tiktoken", pattern="gpt2", special_tokens=("he",)))


def test_a_model_that_the_package_does_not_load(tmp_path):
    pytest.importorskip("sentencepiece")
    file = tmp_path / "one.model"
    one_piece = b"\n\x03" + b"\n\x01a"  # and none for unknown text
    settings = b"\x12\x02\x18\x02" + b"\x1a\x02\x18\x01"  # a BPE; with a dummy prefix
    file.write_bytes(one_piece + settings)
    assert define(file).converted.vocab_size == 1
    with pytest.raises(FormatError, match="sentencepiece package can load") as caught:
        make_engine(file, cache=tmp_path)
    assert caught.value.where == str(file)


def test_facts_of_a_model_need_no_package_and_its_tokens_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert tokenizer_facts(FILES / "bpe.model").vocab_size == 560
    with pytest.raises(ConfigError, match="package is not installed") as caught:
        make_engine(FILES / "bpe.model", cache=tmp_path)
    assert "nanoset-platform[sentencepiece]" in caught.value.remedy


CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from("aeh 'sT\n\t1½中é\u0301ſ/!")


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.text(CHARACTERS), max_size=8))
def test_ranks_give_what_tiktoken_gives(texts):
    pytest.importorskip("tiktoken")
    for name in ("gpt2", "o200k", "llama3"):
        engine, encoding = _both(name)
        ids = [ident for text in texts for ident in encoding.encode(text, allowed_special="all")]
        assert engine.encode(texts).ids.tolist() == ids


@cache
def _both(name):
    """(our reference, tiktoken's encoding)."""
    import tiktoken

    lines = (line.split() for line in (FILES / "ranks.tiktoken").read_bytes().splitlines())
    ranks = {base64.b64decode(word): int(rank) for word, rank in lines}
    special = {token: RANKS + number for number, token in enumerate(NAMES)}
    encoding = tiktoken.Encoding(
        name, pat_str=PATTERNS[name].regex, mergeable_ranks=ranks, special_tokens=special
    )
    return make_engine(
        source("ranks.tiktoken", pattern=name, special_tokens=NAMES), "tokenizers"
    ), encoding
