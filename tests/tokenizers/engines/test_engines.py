"""Identical ids, always: the numpy engine against the reference, and the choice between them."""

from __future__ import annotations

import dataclasses
import json
import logging
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from helpers.pretoken_words import assert_same
from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.execution.progress import progress_reported_to
from nanoset_core.tokenizers import engines as bpe
from nanoset_core.tokenizers.engines import make_engine, numpy_engine, units
from nanoset_core.tokenizers.engines.engine import slices
from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
from nanoset_core.tokenizers.engines.proof import all_canaries, differing
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.engines.rules import read_rules

SPECIAL = "<|endoftext|>"
CHARACTER_KINDS = ["gemma", "llama2", "metaspace", "metaspace_split"]


@pytest.fixture
def pair(known, kind):
    return NumpyEngine(*known[kind]), known[kind][1]


@pytest.fixture
def small_steps(monkeypatch):
    """Everything that happens to long text happens to short text."""
    monkeypatch.setattr(numpy_engine, "UNIT_BYTES", 60)
    monkeypatch.setattr(numpy_engine, "BATCH_BYTES", 300)
    monkeypatch.setattr(units, "_FALLBACK_BYTES", 12)
    monkeypatch.setattr(numpy_engine, "_FEW_WORDS_PER_BYTE", 0)


def assert_same_for_any_text(known, kinds, hard_texts):
    """The texts are made once for all kinds: that takes longer than encoding them."""
    pairs = {
        kind: (NumpyEngine(*known[kind]), known[kind][1]) for kind in [*kinds, *CHARACTER_KINDS]
    }

    @settings(max_examples=80, deadline=None)
    @given(st.lists(hard_texts, max_size=5))
    def check(texts):
        for kind, pair in pairs.items():
            note(kind)
            assert_same(*pair, texts)

    check()


def test_any_text(known, kinds, hard_texts):
    assert_same_for_any_text(known, kinds, hard_texts)


@pytest.mark.usefixtures("small_steps")
def test_any_text_in_small_steps(known, kinds, hard_texts):
    assert_same_for_any_text(known, kinds, hard_texts)


LONG = {
    "one line": "lorem ipsum dolor sit amet " * 1_300,
    "one word": "x" * 33_000,
    "words of every length": " ".join("abcdefghij"[size % 10] * size for size in range(1, 600)),
    "random letters": "".join(chr(97 + number * number % 26) for number in range(3_000)),
    "rulers": "\n".join(character * size for character in "=-*_#~." for size in range(1, 140, 3)),
    "ideographs without a space": "".join(
        chr(0x4E00 + number * 7919 % 20_000) for number in range(25_000)
    ),
    "spaces": " " * 25_000 + "x" + "▁" * 500,
    "newlines": "\n" * 3_000 + " \n" * 2_000 + "\t\r\n" * 2_000 + "\t" * 50 + "a\t\t\tb" * 9,
    "digits": "1234567890" * 1_500 + "١٢٣٤" * 500,
    "every code point": "".join(
        map(chr, chain(range(1, 0xD800), range(0xE000, 0x20000), range(0x20000, 0x30000, 16)))
    ),
    "code points between letters": "a".join(map(chr, range(1, 0x3000))),
    "code points between spaces": " ".join(map(chr, range(1, 0x3000))),
    "marks": "".join("e" + chr(mark) for mark in range(0x300, 0x370)) * 20,
    "added tokens everywhere": "some text <|endoftext|> more <b> x\n" * 600,
    "zero bytes": "some text \0 more words\n" * 800,
}


LONG_KINDS = [
    "neox",
    "no_alphabet",
    "qwen2",
    "digits",
    "o200k",
    "deepseek",
    "gemma",
    "metaspace_split",
]


@pytest.mark.parametrize("kind", LONG_KINDS)
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_long_text(pair, text, monkeypatch):
    monkeypatch.setattr(numpy_engine, "UNIT_BYTES", 1 << 14)
    monkeypatch.setattr(units, "UNIT_BYTES", 1 << 14)
    assert_same(*pair, [text, "short", text[: len(text) // 2]])


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["", ""],
        ["", "a", "", "", "b", ""],
        [" "],
        ["\n"],
        [" \n\t "],
        ["<|endoftext|>"],
        ["\0"],
        ["a"] * 1000,
    ],
)
def test_empty_and_small(pair, texts):
    assert_same(*pair, texts)


def test_added_tokens_that_appear_or_vanish_in_normal_form(known):
    engine = NumpyEngine(*known["neox"])
    for text in (
        "[MASK]",
        "[MAS\u212a]",
        "[KEEP]",
        "[\u212aEEP]",
        "<|endoftext|>\u0338",
        "[KEEP]\u0338",
    ):
        assert_same(engine, known["neox"][1], [f"a {text} b"])


@pytest.mark.parametrize(
    ("kind", "token", "text"),
    [
        ("digits", {"content": "国,"}, "あ" * 700 + "国，" + "x" * 5),
        ("qwen2", {"content": "; x"}, "é" * 1200 + "\u037e x" + "y" * 30),
        ("qwen2", {"content": ";", "rstrip": True}, "é" * 1200 + "\u037e   x" + "y" * 30),
    ],
)
def test_added_tokens_that_lie_across_a_cut_in_normal_form(
    changed_tokenizer, tmp_path, kind, token, text
):
    path = changed_tokenizer(kind, **token, normalized=True)
    engine = make_engine(path, "numpy", cache=tmp_path)
    assert engine.name == "numpy"
    reference = make_engine(path, "tokenizers")
    engine.encode(["the sample"])
    assert_same(
        engine,
        reference,
        [text, text + "<|endoftext|>", text.replace("，", ",").replace("\u037e", ";")],
    )


def test_documents_do_not_touch(pair):
    """A document's tokens are those it has alone."""
    engine, _ = pair
    texts = [
        "it",
        "'s",
        " x",
        "  ",
        "y",
        "1",
        "2345",
        "\n",
        "\n",
        "!",
        "\n\n",
        "a ",
        " b",
        "<|end",
        "oftext|>",
    ]
    alone = [engine.encode([text]).ids.tolist() for text in texts]
    together = engine.encode(texts)
    ends = np.cumsum(together.lengths)
    assert [ids.tolist() for ids in np.split(together.ids, ends[:-1])] == alone


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("bad", ["\ud800", "ok \udfff", "a" * 100 + "\ud83d\ude00"])
def test_what_is_not_text(pair, bad):
    for engine in pair:
        with pytest.raises(InputError, match="document 40, character") as error:
            engine.encode(["x " * 200] * 40 + [bad, "good"])
        assert error.value.expected


@pytest.fixture
def canaries(tokenizer_files, kind):
    return all_canaries(json.loads(tokenizer_files[kind].read_bytes()))


def test_the_canary_knows_every_class(known, kind, canaries):
    """That it passes is make_engine's condition."""
    classes = known[kind][0].classes
    assert {int(classes[ord(c)]) for c in "".join(canaries)} == set(np.unique(classes).tolist())


@pytest.mark.parametrize("kind", ["gpt2", "digits", "o200k", "deepseek"])
def test_the_canary_notices_one_wrong_character(known, kind, canaries):
    knowledge, reference = known[kind]
    for point in (0x41, 0x31, 0x2028, 0xAA, 0x1FFFF):
        classes = knowledge.classes.copy()
        classes[point] = classes[point] % 3 + 1
        engine = NumpyEngine(dataclasses.replace(knowledge, classes=classes), reference)
        assert not engine.splits_as(reference, canaries), hex(point)


@pytest.mark.parametrize("kind", ["qwen2"])
def test_the_canary_notices_a_library_of_newer_unicode(pair, known, kind, canaries, monkeypatch):
    engine, reference = pair
    assert not differing(engine, reference, canaries)
    encode = ReferenceEngine.encode
    newer = [("\u0378", "x"), ("\u0345\u0c50", "\u0c50\u0345")]
    for before, after in newer:
        other = ReferenceEngine.__new__(ReferenceEngine)
        other.__dict__ |= reference.__dict__
        other.encode = lambda texts, pair=(before, after): encode(
            reference, [text.replace(*pair) for text in texts]
        )
        assert differing(engine, other, canaries)


@pytest.mark.parametrize("kind", ["gpt2", *CHARACTER_KINDS])
def test_the_canary_passes_and_notices_one_wrong_merge(pair, known, kind, canaries):
    knowledge, reference = known[kind]
    assert not differing(*pair, canaries)
    merges = knowledge.vocabulary.merges.copy()
    merges[[3, 200], 2] = merges[[200, 3], 2]
    vocabulary = dataclasses.replace(knowledge.vocabulary, merges=merges)
    wrong = dataclasses.replace(knowledge, vocabulary=vocabulary)
    assert differing(NumpyEngine(wrong, reference), reference, canaries)
    longest = max((max(runs) for runs in knowledge.runs.values()), default=0)
    assert any("\t" * (longest + 1) in text for text in canaries)


def test_a_small_vocabulary_with_parts_of_characters(tmp_path):
    """Words that tables are seeded with may end inside a character."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=267, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(
        ["あいうえおかきくけこ"[:n] + "🎉🎊"[n % 2] for n in range(11)] * 50, trainer
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    engine = make_engine(tmp_path / "tokenizer.json", "numpy", cache=tmp_path)
    reference = make_engine(tmp_path / "tokenizer.json", "tokenizers")
    words = read_rules(json.loads((tmp_path / "tokenizer.json").read_bytes())).vocabulary
    assert max(words.lengths) > 8
    assert_same(engine, reference, ["あいう🎉", "い え", "あいうえおかきく🎊け"])


@pytest.mark.usefixtures("without_compiled")
@pytest.mark.parametrize("kind", ["neox", "llama3", "deepseek", "gemma"])
def test_make_engine_takes_numpy_where_it_can(tokenizer_files, kind, tmp_path, caplog):
    described, told = (
        "SentencePiece's spaces and characters" if kind in CHARACTER_KINDS else "split pattern",
        [],
    )
    with caplog.at_level(logging.INFO), progress_reported_to(told.append):
        for choice in ("auto", "numpy"):
            engine = make_engine(tokenizer_files[kind], choice, cache=tmp_path)
            assert engine.name == "numpy"
            assert (
                f"{described} recognised, same tokens as the tokenizers library on test texts"
                in engine.reason
            )
    assert "numpy engine" in caplog.text
    assert [report.text for report in told] == [
        "proving the numpy engine for this tokenizer (once)"
    ]
    reference = make_engine(str(tokenizer_files[kind]), "tokenizers", cache=tmp_path)
    assert (reference.name, reference.reason) == ("tokenizers", "requested")
    assert_same(engine, reference, ["Some text, it's  12345.\n\n\n\n\n\n", "", "x<|endoftext|>y"])


@pytest.fixture
def strange(tokenizer_files, tmp_path):
    """A tokenizer that the numpy engine does not know."""
    path = tmp_path / "strange.json"
    text = tokenizer_files["gpt2"].read_text()
    path.write_text(text.replace('"normalizer": null', '"normalizer": {"type": "Lowercase"}'))
    return path


def test_make_engine_takes_the_reference_where_it_must(strange, tmp_path):
    engine = make_engine(strange, cache=tmp_path)
    assert engine.name == "tokenizers"
    assert "Lowercase" in engine.reason
    with pytest.raises(ConfigError, match="cannot be checked") as error:
        make_engine(strange, "numpy", cache=tmp_path)
    assert "Lowercase" in error.value.found


@pytest.mark.usefixtures("without_compiled")
def test_a_failed_canary_falls_back_loudly_and_is_not_kept(
    tokenizer_files, tmp_path, monkeypatch, caplog
):
    read_rules = bpe.read_rules

    def wrong(*given):
        known = read_rules(*given)
        classes = known.classes.copy()
        classes[ord("x")] = 3
        return dataclasses.replace(known, classes=classes)

    monkeypatch.setattr(bpe, "read_rules", wrong)
    engine = make_engine(tokenizer_files["gpt2"], cache=tmp_path)
    assert engine.name == "tokenizers"
    assert "test texts" in engine.reason
    assert "used instead" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match="engine"):
        make_engine(tmp_path / "tokenizer.json", "fastest")
    with pytest.raises(MissingError, match="there is no tokenizer"):
        make_engine(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(FormatError, match="remedy"):
        make_engine(tmp_path / "tokenizer.json")


def test_truncation_and_padding_of_the_file_are_ignored(tokenizer_files, tmp_path):
    tokenizer = ReferenceEngine(tokenizer_files["gpt2"]).tokenizer
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    expected = ReferenceEngine(tokenizer_files["gpt2"])
    for kind in ("tokenizers", "numpy"):
        assert_same(
            make_engine(path, kind, cache=tmp_path), expected, ["one two three four five six", ""]
        )


@given(st.lists(st.text(max_size=5)), st.integers(1, 12))
def test_slices_cover_all_documents(texts, limit):
    found = list(slices(texts, limit))
    assert [index for begin, end in found for index in range(begin, end)] == list(range(len(texts)))
    for begin, end in found:
        assert sum(map(len, texts[begin : end - 1])) < limit


def test_a_vocabulary_of_bytes_without_merges(changed_tokenizer, tmp_path):
    def strip(parsed):
        vocabulary = parsed["model"]["vocab"]
        parsed["model"] |= {
            "merges": [],
            "vocab": {word: token for word, token in vocabulary.items() if len(word) == 1},
        }

    path = changed_tokenizer("gpt2", strip)
    engine = make_engine(path, "numpy", cache=tmp_path)
    assert engine.name == "numpy"
    assert_same(engine, make_engine(path, "tokenizers"), ["it's 12 bytes", "é世🎉"])


def of_model(tmp_path, vocabulary, merges, **options):
    """The file of a small BPE."""
    model = {
        "type": "BPE",
        "vocab": dict(zip(vocabulary, range(9), strict=False)),
        "merges": merges,
        **options,
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    return path


def test_a_merge_at_which_the_library_panics(tmp_path):
    """Its panics are no Exceptions."""
    with pytest.raises(FormatError, match="not a tokenizer"):
        make_engine(of_model(tmp_path, ["a", "b"], [["a", "b"]]))


@pytest.mark.parametrize("merge", [["x", "é"], "x é"])
def test_a_merge_at_which_the_library_ends_the_process(tmp_path, merge):
    path = of_model(tmp_path, ["x", "é", "xé"], [merge], continuing_subword_prefix="#")
    with pytest.raises(FormatError, match="continuing_subword_prefix"):
        make_engine(path)


def test_a_prefix_that_the_merges_have(tmp_path):
    path = of_model(tmp_path, ["x", "##é", "xé"], [["x", "##é"]], continuing_subword_prefix="##")
    assert make_engine(path, "tokenizers").encode(["xé"]).ids.tolist() == [2]


def test_a_model_with_such_a_prefix_and_without_merges(tmp_path):
    model = {
        "type": "WordPiece",
        "unk_token": "u",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 9,
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps(
            {"version": "1.0", "added_tokens": [], "model": {**model, "vocab": {"u": 0, "a": 1}}}
        )
    )
    assert make_engine(path).encode(["a"]).ids.tolist() == [1]
