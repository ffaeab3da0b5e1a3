"""The gigatoken engine: the reference's tokens, or the reference itself."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.tokenization import bpe
from nanoset_core.tokenization.bpe import gigatoken, make_engine, proofs
from nanoset_core.tokenization.bpe.canaries import all_canaries
from nanoset_core.tokenization.bpe.gigatoken import ambiguous_tokens, form_apart
from nanoset_core.tokenization.bpe.inert import InertTextEngine, Normalising, doubtful_points
from nanoset_core.tokenization.bpe.reference import Encoded, ReferenceEngine
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError

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


class Lengths:
    """Gives each text one token: a number of its own for this engine, and the text's length."""

    name, version, reason = "gigatoken", "9.9", "for the test"

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self, texts):
        ids = [self.number + len(text) for text in texts]
        return Encoded(np.array(ids, np.int32), np.ones(len(texts), np.int32))


def test_text_that_a_normal_form_may_change_is_for_the_reference():
    engine = InertTextEngine(Lengths(0), Lengths(1000))
    inert = ["", "plain", "déjà vu", "Привет", "日本語のテキスト 한국어", "“—” 🎉\ufe0f"]
    others = ["e\u0301", "\u2de8\U00011d45", "\U00010f50\u1715", "\u212b", "\u1100\u1161", "か\u3099", "가\u11a7"]
    others += ["\u037e", "\U000323af", "\u0378", "\U0001e2ae\u20eb"]
    assert engine.encode(inert).ids.tolist() == [len(text) for text in inert]
    mixed = [text for pair in zip(inert, others, strict=False) for text in pair] + others
    expected = [len(text) + 1000 * (text in others) for text in mixed]
    assert engine.encode(mixed).ids.tolist() == expected
    assert engine.encode([]).ids.tolist() == []
    assert all(normalize("NFC", text) == text for text in inert)
    with pytest.raises(InputError, match="document 1"):
        engine.encode(["é", "\ud800"])


class Texts(Lengths):
    """Notes what it is given."""

    def encode(self, texts):
        self.texts = list(texts)
        return super().encode(texts)


@pytest.mark.parametrize("trusts_python", [True, False])
def test_text_is_normalised_for_an_engine_that_knows_no_normal_form(trusts_python):
    asked = []

    def normalise(text):
        asked.append(text)
        return normalize("NFC", text).replace("\u0378", "").replace("\u1dce", "\u0378")

    normalising = Normalising("NFC", doubtful_points("NFC"), normalise, trusts_python, ["<|raw|>", "é<x>"])
    fast, reference = Texts(0), Texts(1000)
    engine = InertTextEngine(fast, reference, doubtful_points(None), ["<left>"], normalising)
    engine.encode(["plain", "déjà", "e\u0301\nplain\nक\u094d\r\n\nA\u030a", "e\u0301 <x>", ""])
    assert fast.texts == ["plain", "déjà", "é\nplain\nक\u094d\r\n\nÅ", "é <x>", ""]
    assert asked == ["e\u0301", *([] if trusts_python else ["क\u094d\r"]), "A\u030a", "e\u0301 <x>"]
    left = ["\u0378", "e\u0301 <|raw|>", "e\u0301<x>", "e\u0301<left>", "a\u1dce\u0301"]
    assert engine.encode(["a", *left, "b"]).ids.tolist() == [1, *(1000 + len(text) for text in left), 1]
    assert (fast.texts, reference.texts) == (["a", "b"], left)
    engine.encode(["é\n" * 3 + "\ne\u0301", "plain\n", "\n", "\nx\nक\u094d e\u0301\n", "déjà\nÅ\n\n"])
    assert fast.texts == ["é\n" * 3 + "\né", "plain\n", "\n", "\nx\nक\u094d é\n", "déjà\nÅ\n\n"]
    with pytest.raises(InputError, match="document 1"):
        engine.encode(["é", "\ud800"])


NFC = {"type": "NFC"}


@pytest.mark.parametrize(
    ("normalizer", "token", "form"),
    [
        (NFC, "é<x>", "NFC"),
        ({"type": "Sequence", "normalizers": [NFC]}, "", "NFC"),
        ({"type": "NFKC"}, "é", "NFKC"),
        (NFC, "e\u0301", None),
        (None, "", None),
        ({"type": "Sequence", "normalizers": []}, "", None),
        ({"type": "Sequence", "normalizers": [NFC, {"type": "Prepend", "prepend": "▁"}]}, "", None),
        ({"type": "NFD"}, "", None),
    ],
)
def test_the_form_that_text_is_brought_to_beforehand(normalizer, token, form):
    tokens = [{"content": token}, {"content": "e\u0301", "normalized": False}]
    assert form_apart({"normalizer": normalizer, "added_tokens": tokens}) == form


class Double(ReferenceEngine):
    """Stands in for the library: the reference, with other tokens for texts of which `is_wrong` is True."""

    name, version, is_wrong = "gigatoken", "9.9", staticmethod(lambda text: False)
    encoded = 0

    def __init__(self, path, *, normalises=True) -> None:
        super().__init__(path)
        self.version = "9.9"

    def encode(self, texts):
        Double.encoded += len(texts)
        encoded = super().encode(texts)
        wrong = np.repeat([bool(self.is_wrong(text)) for text in texts], encoded.lengths)
        return Encoded(np.where(wrong, 7, encoded.ids).astype(np.int32), encoded.lengths)


@pytest.fixture
def double(monkeypatch):
    """A function that puts the stand-in into the library's place.

    is_wrong: text → whether its tokens are wrong; canary: the one text that it is compared on, beside added tokens.
    """

    def install(is_wrong=lambda text: False, canary="it's"):
        monkeypatch.setattr(bpe.gigatoken, "all_canaries", lambda parsed: [canary])
        monkeypatch.setattr(bpe, "GigatokenEngine", Double)
        monkeypatch.setattr(bpe.gigatoken, "is_installed", lambda: True)
        monkeypatch.setattr(Double, "is_wrong", staticmethod(is_wrong))

    return install


@pytest.mark.parametrize("kind", ["neox", "llama3", "llama2", "strange"])
def test_auto_takes_it_where_it_is_installed_and_proven(tokenizer_files, changed_tokenizer, double, tmp_path, kind):
    double()
    path = tokenizer_files.get(kind) or changed_tokenizer("gpt2", lambda parsed: parsed["model"].update(dropout=0.0))
    assert make_engine(path, cache=tmp_path).name == "gigatoken"
    assert make_engine(path, "gigatoken", cache=tmp_path).name == "gigatoken"


FAULTS = {
    "one class of characters": lambda text: "½" in text,
    "a pair of classes": lambda text: "中'" in text,
    "one combining mark": lambda text: "\u0345" in text,
    "a character of a late version of Unicode": lambda text: "\U00016d6b" in text,
    "a plane": lambda text: max(text, default="") > "\U000f0000",
    "long words": lambda text: "a" * 300 in text,
    "a contraction": lambda text: text == "I'll",
    "an added token within a word": lambda text: "x<|endoftext|>y" in text,
    "an added token at the end": lambda text: text.endswith(("é<|endoftext|>", "中<|endoftext|>")),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_canary_holds_what_engines_may_get_wrong(tokenizer_files, fault):
    assert any(map(fault, all_canaries(json.loads(tokenizer_files["gpt2"].read_bytes()))))


def test_a_wrong_engine_is_found_out_once(tokenizer_files, double, tmp_path, caplog):
    double(lambda text: text.startswith("Some"), canary="Some text.")
    first = make_engine(tokenizer_files["gpt2"], cache=tmp_path)
    assert (first.name, "canary texts" in caplog.text) == ("numpy", True)
    Double.encoded = 0
    assert make_engine(tokenizer_files["gpt2"], cache=tmp_path).name == "numpy"
    assert Double.encoded == 0
    assert make_engine(tokenizer_files["gpt2"], "gigatoken", cache=tmp_path).name == "tokenizers"


PanicException = type("PanicException", (BaseException,), {})


@pytest.mark.parametrize("failure", [RuntimeError("out of range"), PanicException("as a panic of Rust arrives")])
def test_an_engine_that_fails_is_not_taken(tokenizer_files, double, tmp_path, failure):
    def fail(text):
        raise failure

    double(fail)
    assert make_engine(tokenizer_files["gpt2"], cache=tmp_path).name == "numpy"


def test_added_tokens_that_it_gets_wrong_are_for_the_reference(changed_tokenizer, double, tmp_path):
    double(lambda text: "x<keep>" in text)
    path = changed_tokenizer("llama3", content="<keep>")
    texts = ["plain", "ax<keep>b", "<keep>"]
    expected = make_engine(path, "tokenizers").encode(texts)
    for _ in range(2):  # the second time by the proof that is remembered
        engine = make_engine(path, cache=tmp_path)
        assert engine.name == "gigatoken"
        np.testing.assert_array_equal(engine.encode(texts).ids, expected.ids)


def test_a_proof_is_remembered_for_just_this(tokenizer_files, changed_tokenizer, double, tmp_path, monkeypatch):
    double()
    make_engine(tokenizer_files["gpt2"], cache=tmp_path)

    def compared(path=tokenizer_files["gpt2"]) -> bool:
        Double.encoded = 0
        assert make_engine(path, cache=tmp_path).name == "gigatoken"
        return Double.encoded > 0

    assert not compared()
    assert compared(changed_tokenizer("gpt2", lambda parsed: parsed["model"].update(fuse_unk=True)))
    (proof,) = [path for path in tmp_path.glob("*-gigatoken.json") if b"left_points" in path.read_bytes()][:1]
    for damaged in (
        proof.read_bytes()[:100],
        b"",
        b"[]",
        proof.read_bytes().replace(b'"left_points":[', b'"left_points":[7,8,'),
    ):
        for path in tmp_path.glob("*-gigatoken.json"):
            path.write_bytes(damaged)
        assert compared()
        assert not compared()
    monkeypatch.setattr(proofs, "_surroundings", lambda: ("other code",))
    assert compared()


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ({"<keep>": True, "<|end|>": False}, []),
        ({">x": True, "<|end|>": False}, ["<|end|>"]),
        ({"a<|end": True, "<|end|>": False}, ["<|end|>"]),
        ({"! x": True, "  ": True}, ["! x"]),
        ({"  ": True, " ": False}, None),
    ],
)
def test_added_tokens_that_it_may_look_for_in_another_order(tokens, found):
    parsed = {"added_tokens": [{"content": token, "normalized": is_so} for token, is_so in tokens.items()]}
    if found is None:
        with pytest.raises(NotRecognisedError, match="overlap"):
            ambiguous_tokens(parsed)
    else:
        assert ambiguous_tokens(parsed) == found


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
@pytest.mark.parametrize(("other", "found"), [("  ", ["<x>"]), ("a\n", ["<x>"]), ("a b", [])])
def test_a_token_may_take_the_white_space_of_another(flag, other, found):
    tokens = [{"content": "<x>", "normalized": False, flag: True}, {"content": other, "normalized": True}]
    assert ambiguous_tokens({"added_tokens": tokens}) == found


@pytest.mark.parametrize("content", ["ſ", "<|endoftext|>x"])
def test_a_token_that_takes_white_space_which_is_another_token(changed_tokenizer, tmp_path, content):
    pytest.importorskip("gigatoken", reason="gigatoken (the extra `fast`) is not installed")
    path = changed_tokenizer("neox", content=content, lstrip=True, rstrip=True, special=True)
    texts = [f"x  {content}\n {content}{content}y", f"a    {content}    b"]
    engine = make_engine(path, "gigatoken", cache=tmp_path)
    expected = make_engine(path, "tokenizers").encode(texts)
    np.testing.assert_array_equal(engine.encode(texts).ids, expected.ids)


@pytest.mark.parametrize("kind", ["Lowercase", "Strip"])
def test_normalizers_that_it_was_not_compared_with(changed_tokenizer, double, tmp_path, kind):
    double()
    path = changed_tokenizer(
        "gpt2", lambda parsed: parsed.update(normalizer={"type": kind, "strip_left": True, "strip_right": True})
    )
    with pytest.raises(ConfigError, match="cannot be checked") as error:
        make_engine(path, "gigatoken", cache=tmp_path)
    assert kind in str(error.value.found)


def test_a_tokenizer_that_it_cannot_load(tokenizer_files, tmp_path, monkeypatch):
    def load(path):
        raise RuntimeError("no token for byte 0x51")

    monkeypatch.setitem(sys.modules, "gigatoken", SimpleNamespace(Tokenizer=load))
    with pytest.raises(ConfigError, match="cannot be checked") as error:
        make_engine(tokenizer_files["no_alphabet"], "gigatoken", cache=tmp_path)
    assert "byte 0x51" in str(error.value.found)
    assert make_engine(tokenizer_files["no_alphabet"], cache=tmp_path).name == "numpy"


def test_it_is_loaded_again_once_it_has_grown(tokenizer_files, monkeypatch):
    loaded = []

    class Library:
        def __init__(self, path) -> None:
            loaded.append(path)
            self.backend = SimpleNamespace(encode=lambda text: np.arange(len(text), dtype=np.uint32))

    sizes = iter([300 << 20, 400 << 20, 600 << 20, 500 << 20, 600 << 20])
    monkeypatch.setitem(sys.modules, "gigatoken", SimpleNamespace(Tokenizer=Library))
    monkeypatch.setattr(gigatoken, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(gigatoken, "_WEIGHED_EVERY", 10)
    engine = gigatoken.GigatokenEngine(tokenizer_files["gpt2"])
    counts = []
    for _ in range(6):
        encoded = engine.encode(["four", "", "words"])
        assert (encoded.ids.tolist(), encoded.lengths.tolist()) == ([*range(4), *range(5)], [4, 0, 5])
        counts.append(len(loaded))
    assert counts == [1, 1, 1, 2, 2, 2]


def test_what_holds_for_all_tokenizers_is_found_out_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(proofs, "trusts_python", lambda normalise, form: asked.append((form, normalise("e\u0301"))))
    for form in ("NFC", "NFKC", "NFC"):
        proofs.trusts_python_with.cache_clear()
        proofs.trusts_python_with(form, tmp_path)
    assert asked == [("NFC", "é"), ("NFKC", "é")]
    proofs.trusts_python_with.cache_clear()
