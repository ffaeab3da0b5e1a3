"""The gate in front of a compiled engine: the reference's tokens, or the reference itself."""

from __future__ import annotations

import json
from unicodedata import normalize

import numpy as np
import pytest

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.tokenization import bpe
from nanoset_core.tokenization.bpe import compiled, gate, make_engine
from nanoset_core.tokenization.bpe.gate import Gate, GatedEngine, form_outside, static_gate
from nanoset_core.tokenization.bpe.proof import all_canaries
from nanoset_core.tokenization.bpe.reference import Encoded, NotRecognisedError, ReferenceEngine


def is_trusted(form):
    return True


class Lengths:
    """Gives each text one token: a number of its own for this engine, and the text's length."""

    name, version, reason = "gigatoken", "9.9", "for the test"

    def __init__(self, number: int, normalise=None) -> None:
        self.number, self.normalise = number, normalise

    def encode(self, texts):
        self.texts = list(texts)
        ids = [self.number + len(text) for text in texts]
        return Encoded(np.array(ids, np.int32), np.ones(len(texts), np.int32))


def test_text_that_a_normal_form_may_change_is_for_the_fallback():
    nfc = static_gate({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, PREPEND]}}, is_trusted)
    engine = GatedEngine(Lengths(0), nfc, Lengths(1000))
    stable = ["", "plain", "déjà vu", "Привет", "日本語のテキスト 한국어", "“—” 🎉\ufe0f"]
    others = ["e\u0301", "\u2de8\U00011d45", "\U00010f50\u1715", "\u212b", "\u1100\u1161", "か\u3099", "가\u11a7"]
    others += ["\u037e", "\U000323af", "\u0378", "\U0001e2ae\u20eb"]
    assert engine.encode(stable).ids.tolist() == [len(text) for text in stable]
    mixed = [text for pair in zip(stable, others, strict=False) for text in pair] + others
    assert engine.encode(mixed).ids.tolist() == [len(text) + 1000 * (text in others) for text in mixed]
    assert engine.encode([]).ids.tolist() == []
    assert all(normalize("NFC", text) == text for text in stable)
    with pytest.raises(InputError, match="document 1"):
        engine.encode(["é", "\ud800"])


@pytest.mark.parametrize("trusts_python", [True, False])
def test_text_is_normalised_for_an_engine_that_knows_no_normal_form(trusts_python):
    asked = []

    def normalise(text):
        asked.append(text)
        return normalize("NFC", text).replace("\u0378", "").replace("\u1dce", "\u0378")

    tokens = [{"content": content, "normalized": False} for content in ("<|raw|>", "é<x>")]
    found = static_gate({"normalizer": {"type": "NFC"}, "added_tokens": tokens}, lambda form: trusts_python)
    found = Gate(found.kinds, ("<left>",), found.form, found.raw_tokens, found.trusts_python)
    fast, reference = Lengths(0), Lengths(1000, normalise)
    engine = GatedEngine(fast, Gate.from_arrays(found.to_arrays()), reference)
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


NFC, PREPEND = {"type": "NFC"}, {"type": "Prepend", "prepend": "▁"}


@pytest.mark.parametrize(
    ("normalizer", "token", "form"),
    [
        (NFC, "é<x>", "NFC"),
        ({"type": "Sequence", "normalizers": [NFC]}, "", "NFC"),
        ({"type": "NFKC"}, "é", "NFKC"),
        (NFC, "e\u0301", None),
        (None, "", None),
        ({"type": "Sequence", "normalizers": []}, "", None),
        ({"type": "Sequence", "normalizers": [NFC, PREPEND]}, "", None),
        ({"type": "NFD"}, "", None),
    ],
)
def test_the_form_that_text_is_brought_to_beforehand(normalizer, token, form):
    tokens = [{"content": token}, {"content": "e\u0301", "normalized": False}]
    assert form_outside({"normalizer": normalizer, "added_tokens": tokens}) == form


@pytest.mark.parametrize("is_there", [True, False])
def test_a_faster_fallback_is_made_once_there_is_much_text(tokenizer_files, tmp_path, monkeypatch, is_there):
    monkeypatch.setattr(gate, "FALLBACK_CHARACTERS", 60)
    texts = [f"e\u0301 word {number} and \u07f3\u07fd more" for number in range(20)] + [""]
    made = []

    def make():
        made.append(1)
        if not is_there:
            raise NotRecognisedError("not known")
        return make_engine(tokenizer_files["gpt2"], "numpy", cache=tmp_path)

    reference = ReferenceEngine(tokenizer_files["gpt2"])
    found = Gate(np.ones(0x110000, np.uint8) * 2)
    engine = GatedEngine(Lengths(0), found, reference, make)
    assert engine.encode(texts[:1]).ids.tolist() == reference.encode(texts[:1]).ids.tolist()
    assert (engine.helper, made) == ("", [])
    for _ in range(3):
        ours, wanted = engine.encode(texts[:-1]), reference.encode(texts[:-1])
        assert ours.ids.tolist() == wanted.ids.tolist()
        assert ours.lengths.tolist() == wanted.lengths.tolist()
    assert (engine.helper.partition(" ")[0], made) == ("numpy" if is_there else "", [1])


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
        monkeypatch.setattr(gate, "all_canaries", lambda parsed: [canary])
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
    assert make_engine(path, cache=tmp_path, without={("gigatoken", bpe.gigatoken.version())}).name == "numpy"


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


def test_a_proof_is_remembered_for_just_this(tokenizer_files, changed_tokenizer, double, tmp_path):
    double()

    def compared(path=tokenizer_files["gpt2"]) -> bool:
        Double.encoded = 0
        assert make_engine(path, cache=tmp_path).name == "gigatoken"
        return Double.encoded > 0

    assert compared()
    assert not compared()
    assert compared(changed_tokenizer("gpt2", lambda parsed: parsed["model"].update(fuse_unk=True)))
    for path in tmp_path.glob("*.gigatoken.npz"):
        path.write_bytes(path.read_bytes()[:-9])
    assert compared()
    assert not compared()


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ({"<keep>": True, "<|end|>": False}, ()),
        ({">x": True, "<|end|>": False}, ("<|end|>",)),
        ({"a<|end": True, "<|end|>": False}, ("<|end|>",)),
        ({"! x": True, "  ": True}, ("! x",)),
        ({"  ": True, " ": False}, None),
    ],
)
def test_added_tokens_that_it_may_look_for_in_another_order(tokens, found):
    parsed = {"added_tokens": [{"content": token, "normalized": is_so} for token, is_so in tokens.items()]}
    if found is None:
        with pytest.raises(NotRecognisedError, match="overlap"):
            static_gate(parsed, is_trusted)
    else:
        assert static_gate(parsed, is_trusted).tokens == found


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
@pytest.mark.parametrize(("other", "found"), [("  ", ("<x>",)), ("a\n", ("<x>",)), ("a b", ())])
def test_a_token_may_take_the_white_space_of_another(flag, other, found):
    tokens = [{"content": "<x>", "normalized": False, flag: True}, {"content": other, "normalized": True}]
    assert static_gate({"added_tokens": tokens}, is_trusted).tokens == found


@pytest.mark.parametrize("kind", ["Lowercase", "Strip"])
def test_normalizers_that_it_was_not_compared_with(changed_tokenizer, double, tmp_path, kind):
    double()
    path = changed_tokenizer(
        "gpt2", lambda parsed: parsed.update(normalizer={"type": kind, "strip_left": True, "strip_right": True})
    )
    with pytest.raises(ConfigError, match="cannot be checked") as error:
        make_engine(path, "gigatoken", cache=tmp_path)
    assert kind in str(error.value.found)


def test_what_holds_for_all_tokenizers_is_found_out_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        compiled, "trusts_python", lambda normalise, form: bool(asked.append((form, normalise("e\u0301"))))
    )
    for form in ("NFC", "NFKC", "NFC"):
        assert not compiled.form_trusts_python(form, tmp_path)
    assert asked == [("NFC", "é"), ("NFKC", "é")]
