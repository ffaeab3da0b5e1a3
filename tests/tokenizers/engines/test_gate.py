"""The gate in front of a compiled engine: the reference's tokens, or the reference itself."""

from __future__ import annotations

import json
from unicodedata import normalize

import numpy as np
import pytest

from helpers.pretoken_words import marked_texts
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.tokenizers import engines as bpe
from nanoset_core.tokenizers.audit import Audit
from nanoset_core.tokenizers.cache import installed_version, to_array
from nanoset_core.tokenizers.engines import gate, make_engine
from nanoset_core.tokenizers.engines.engine import Encoded, NotRecognisedError
from nanoset_core.tokenizers.engines.gate import GatedEngine, make_gate
from nanoset_core.tokenizers.engines.proof import all_canaries
from nanoset_core.tokenizers.engines.reference import ReferenceEngine


class Lengths:
    """Gives each text one token: a number of its own for this engine, and the text's length."""

    name, version, reason = "gigatoken", "9.9", "for the test"

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self, texts):
        ids = [
            self.number + len(text if isinstance(text, str) else text.decode()) for text in texts
        ]
        return Encoded(np.array(ids, np.int32), np.ones(len(texts), np.int32))


def test_text_that_a_normal_form_may_change_is_for_the_fallback():
    prepend = {"type": "Prepend", "prepend": "▁"}
    nfc = make_gate({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, prepend]}})
    engine = GatedEngine(Lengths(0), nfc, Lengths(1000))
    stable = ["", "plain", "déjà vu", "Привет", "日本語のテキスト 한국어", "“—” 🎉\ufe0f", "é\0é"]
    of_unicode_3_2 = [
        "e\u0301",
        "\u212b",
        "\u1100\u1161",
        "か\u3099",
        "가\u11a7",
        "\u037e",
        "\0e\u0301",
    ]
    others = [
        "\u2de8\U00011d45",
        "\U00010f50\u1715",
        "\U000323af",
        "\u0378",
        "\U0001e2ae\u20eb",
        "\0\u07f3\u07fd",
    ]
    others += ["e\u1dc4", "\U00011131\U00011127", "\U000105d2"]
    for texts in (stable, of_unicode_3_2):
        assert engine.encode(texts).ids.tolist() == [len(text) for text in texts]
    mixed = [text for pair in zip(stable, others, strict=False) for text in pair] + others
    assert engine.encode(mixed).ids.tolist() == [
        len(text) + 1000 * (text in others) for text in mixed
    ]
    assert engine.encode([]).ids.tolist() == []
    assert all(normalize("NFC", text) == text for text in stable)
    with pytest.raises(InputError, match="document 1"):
        engine.encode(["é", "\ud800"])


def test_libraries_agree_on_the_normal_form_of_unicode_3_2(tokenizer_files):
    reference = ReferenceEngine(tokenizer_files["neox"])
    texts = [
        *marked_texts(20_000, 1),
        "\u0b47\u0300\u0b3e",
        "\u1100\u0300\u1161\u0323",
        "\uf951",
        "\U0002f868",
    ]
    assert not gate.doubtful_points("NFC")[[*map(ord, set("".join(texts)))]].any()
    assert [reference.normalise(text) for text in texts] == [
        normalize("NFC", text) for text in texts
    ]


def test_text_with_an_added_token_is_for_the_fallback():
    tokens = [{"content": token} for token in ("<keep>", "e\u0301<x>", "  ", " <s>", "")]
    gate = make_gate({"normalizer": {"type": "NFC"}, "added_tokens": tokens})
    texts = ["a <keep> b", "<keep", "é<x>", "x<s>  y", "x <s>", "é", "", "<kéep>"]
    lengths = [len(text) + 1000 * (text in ("a <keep> b", "é<x>", "x <s>")) for text in texts]
    assert GatedEngine(Lengths(0), gate, Lengths(1000)).encode(texts).ids.tolist() == lengths
    assert GatedEngine(Lengths(0), gate, Lengths(1000)).encode(["<keep", "é"]).ids.tolist() == [
        5,
        1,
    ]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_faster_fallback_is_made_once_there_is_much_text(
    tokenizer_files, tmp_path, monkeypatch, is_there
):
    monkeypatch.setattr(gate, "FALLBACK_CHARACTERS", 60)
    texts = [f"e\u0301 word {number} and \u07f3\u07fd more" for number in range(20)] + [""]
    made = []

    def make():
        made.append(1)
        if not is_there:
            raise NotRecognisedError("not known")
        return make_engine(tokenizer_files["gpt2"], "numpy", cache=tmp_path)

    reference = ReferenceEngine(tokenizer_files["gpt2"])
    everything = {"doubtful": np.ones(0x110000, bool), "tokens": to_array([])}
    engine = GatedEngine(Lengths(0), everything, reference, make)
    for already in ([], [1]):  # a shard, and the next one
        Audit(engine, 0, "shard")
        assert engine.encode(texts[:1]).ids.tolist() == reference.encode(texts[:1]).ids.tolist()
        assert (engine.helper, made) == ("", already)
        for _ in range(3):
            ours, wanted = engine.encode(texts[:-1]), reference.encode(texts[:-1])
            assert ours.ids.tolist() == wanted.ids.tolist()
            assert ours.lengths.tolist() == wanted.lengths.tolist()
        assert (engine.helper.partition(" ")[0], made) == ("numpy" if is_there else "", [1])


class Double(ReferenceEngine):
    """Stands in for the library: the reference, with other tokens for texts of which `is_wrong` is
    True.
    """

    name = package = "gigatoken"
    version, is_wrong = "9.9", staticmethod(lambda text: False)
    encoded = 0

    def __init__(self, path) -> None:
        super().__init__(path)
        self.version = "9.9"

    def encode(self, texts):
        Double.encoded += len(texts)
        texts = [text.decode() for text in texts]
        encoded = super().encode(texts)
        wrong = np.repeat([bool(self.is_wrong(text)) for text in texts], encoded.lengths)
        return Encoded(np.where(wrong, 7, encoded.ids).astype(np.int32), encoded.lengths)


@pytest.fixture
def double(monkeypatch):
    """A function that puts the stand-in into the library's place.

    is_wrong: text → whether its tokens are wrong; canary: the one text that it is compared on.
    """

    def install(is_wrong=lambda text: False, canary="it's"):
        monkeypatch.setattr(bpe, "all_canaries", lambda parsed: [canary])
        monkeypatch.setattr(bpe, "GigatokenEngine", Double)
        monkeypatch.setattr(bpe, "is_installed", lambda: True)
        monkeypatch.setattr(Double, "is_wrong", staticmethod(is_wrong))

    return install


@pytest.mark.parametrize("kind", ["neox", "llama3", "llama2", "strange"])
def test_auto_takes_it_where_it_is_installed_and_proven(
    tokenizer_files, changed_tokenizer, double, tmp_path, kind
):
    double()
    path = tokenizer_files.get(kind) or changed_tokenizer(
        "gpt2", lambda parsed: parsed["model"].update(dropout=0.0)
    )
    assert make_engine(path, cache=tmp_path).name == "gigatoken"
    assert make_engine(path, "gigatoken", cache=tmp_path).name == "gigatoken"
    assert (
        make_engine(
            path, cache=tmp_path, without=[f"gigatoken {installed_version('gigatoken')}"]
        ).name
        == "numpy"
    )


FAULTS = {
    "one class of characters": lambda text: "½" in text,
    "a pair of classes": lambda text: "中'" in text,
    "one combining mark": lambda text: "\u0345" in text,
    "a character of a late version of Unicode": lambda text: "\U00016d6b" in text,
    "a character that is not assigned, where marks are sorted": lambda text: "\u0345\u0378" in text,
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
    assert (first.name, "test texts" in caplog.text) == ("numpy", True)
    Double.encoded = 0
    assert make_engine(tokenizer_files["gpt2"], cache=tmp_path).name == "numpy"
    assert Double.encoded == 0
    assert make_engine(tokenizer_files["gpt2"], "gigatoken", cache=tmp_path).name == "tokenizers"


PanicException = type("PanicException", (BaseException,), {})


@pytest.mark.parametrize(
    "failure", [RuntimeError("out of range"), PanicException("as a panic of Rust arrives")]
)
def test_an_engine_that_fails_is_not_taken(tokenizer_files, double, tmp_path, failure):
    def fail(text):
        raise failure

    double(fail)
    assert make_engine(tokenizer_files["gpt2"], cache=tmp_path).name == "numpy"


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


@pytest.mark.parametrize("kind", ["Lowercase", "Strip"])
def test_normalizers_that_it_was_not_compared_with(changed_tokenizer, double, tmp_path, kind):
    double()
    path = changed_tokenizer(
        "gpt2",
        lambda parsed: parsed.update(
            normalizer={"type": kind, "strip_left": True, "strip_right": True}
        ),
    )
    with pytest.raises(ConfigError, match="cannot be checked") as error:
        make_engine(path, "gigatoken", cache=tmp_path)
    assert kind in str(error.value.found)
