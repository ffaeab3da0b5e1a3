"""A compiled engine encodes only the text on which it agrees with the reference for certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest

from helpers.comparing_engines import texts_with_marks
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.tokenizers import engines
from nanoset_core.tokenizers.audit import Audit
from nanoset_core.tokenizers.cache import installed_version, to_array
from nanoset_core.tokenizers.engines import gate, make_engine
from nanoset_core.tokenizers.engines.engine import Encoded, NotRecognisedError
from nanoset_core.tokenizers.engines.gate import GatedEngine, make_gate
from nanoset_core.tokenizers.engines.reference import ReferenceEngine

COMPILED = 0
"""Added to the tokens of the compiled engine."""
FALLBACK = 1000
"""Added to the tokens of the fallback."""


class LengthEngine:
    """Encodes each text as one token: a number of the engine plus the characters of the text."""

    name = "gigatoken"
    version = "9.9"
    reason = "for the test"

    def __init__(self, number: int) -> None:
        self._number = number

    def encode(self, texts: Sequence[str | bytes]) -> Encoded:
        """Encode texts, or texts in UTF-8, as compiled engines get them."""
        ids = []
        for text in texts:
            characters = text.decode() if isinstance(text, bytes) else text
            ids.append(self._number + len(characters))
        return Encoded(np.array(ids, np.int32), np.ones(len(texts), np.int32))


def find_refused(engine: GatedEngine, texts: Sequence[str]) -> list[str]:
    """Return the texts that the fallback encodes, after checking the order of all tokens.

    Args:
        engine: Combines a LengthEngine with the number COMPILED and one with FALLBACK.
        texts: The texts, of less than FALLBACK characters each.
    """
    ids = engine.encode(texts).ids.tolist()

    refused = []
    for text, token in zip(texts, ids, strict=True):
        assert token % FALLBACK == len(text)
        if token >= FALLBACK:
            refused.append(text)
    return refused


def gated_engine(tokenizer: dict) -> GatedEngine:
    """Return the gated engine of a parsed `tokenizer.json`."""
    return GatedEngine(LengthEngine(COMPILED), make_gate(tokenizer), LengthEngine(FALLBACK))


# Characters that versions of Unicode may treat differently

UNCHANGED_BY_NFC = [
    "",
    "plain",
    "déjà vu",
    "Привет",
    "日本語のテキスト 한국어",
    "“—” 🎉\ufe0f",
    "é\0é",
]
CHANGED_BY_NFC = [
    "e\u0301",
    "\u212b",
    "\u1100\u1161",
    "か\u3099",
    "가\u11a7",
    "\u037e",
    "\0e\u0301",
]
"""Texts whose characters are all in Unicode 3.2, which every library knows."""
WITH_DOUBTFUL_CHARACTERS = [
    "\u2de8\U00011d45",
    "\U00010f50\u1715",
    "\U000323af",
    "\u0378",
    "\U0001e2ae\u20eb",
    "\0\u07f3\u07fd",
    "e\u1dc4",
    "\U00011131\U00011127",
    "\U000105d2",
]
"""Unassigned characters, and characters later than Unicode 3.2 that a normal form may change."""


@pytest.fixture(scope="module")
def nfc_engine():
    """The gated engine of a tokenizer that brings text into the normal form NFC."""
    prepend = {"type": "Prepend", "prepend": "▁"}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "NFC"}, prepend]}
    return gated_engine({"normalizer": normalizer})


def test_text_that_no_normal_form_changes_is_for_the_compiled_engine(nfc_engine):
    for text in UNCHANGED_BY_NFC:
        assert normalize("NFC", text) == text

    assert find_refused(nfc_engine, UNCHANGED_BY_NFC) == []


def test_text_that_every_version_of_unicode_changes_alike_is_for_the_compiled_engine(nfc_engine):
    assert find_refused(nfc_engine, CHANGED_BY_NFC) == []


def test_text_that_versions_of_unicode_may_normalise_differently_is_for_the_fallback(nfc_engine):
    assert find_refused(nfc_engine, WITH_DOUBTFUL_CHARACTERS) == WITH_DOUBTFUL_CHARACTERS


def test_doubtful_text_is_found_among_other_text(nfc_engine):
    """All texts of a batch are searched at once."""
    n_others = len(UNCHANGED_BY_NFC)
    doubtful_texts = WITH_DOUBTFUL_CHARACTERS[:n_others]
    alternating_texts = []
    for text, doubtful_text in zip(UNCHANGED_BY_NFC, doubtful_texts, strict=True):
        alternating_texts += [text, doubtful_text]

    refused = find_refused(nfc_engine, alternating_texts + WITH_DOUBTFUL_CHARACTERS)

    assert refused == doubtful_texts + WITH_DOUBTFUL_CHARACTERS


def test_no_texts_have_no_tokens(nfc_engine):
    assert nfc_engine.encode([]).ids.tolist() == []


def test_a_surrogate_is_an_error_that_names_the_document(nfc_engine):
    with pytest.raises(InputError, match="document 1"):
        nfc_engine.encode(["é", "\ud800"])


def test_libraries_agree_on_the_normal_form_of_unicode_3_2(tokenizer_files):
    """Python has another version of Unicode than the tokenizers library."""
    reference = ReferenceEngine(tokenizer_files["neox"])
    texts = [
        *texts_with_marks(20_000, seed=1),
        "\u0b47\u0300\u0b3e",
        "\u1100\u0300\u1161\u0323",
        # Their decompositions were corrected after Unicode 3.2.
        "\uf951",
        "\U0002f868",
    ]
    points = [ord(character) for character in set("".join(texts))]

    assert not gate.doubtful_points("NFC")[points].any()
    assert [reference.normalise(text) for text in texts] == [
        normalize("NFC", text) for text in texts
    ]


# Added tokens


@pytest.fixture(scope="module")
def engine_with_added_tokens():
    """The gated engine of a tokenizer with several added tokens, and the normal form NFC."""
    contents = ["<keep>", "e\u0301<x>", "  ", " <s>", ""]
    added_tokens = [{"content": content} for content in contents]
    return gated_engine({"normalizer": {"type": "NFC"}, "added_tokens": added_tokens})


def test_text_with_an_added_token_in_any_form_is_for_the_fallback(engine_with_added_tokens):
    texts = ["a <keep> b", "<keep", "é<x>", "x<s>  y", "x <s>", "é", "", "<kéep>"]

    assert find_refused(engine_with_added_tokens, texts) == ["a <keep> b", "é<x>", "x <s>"]


def test_text_without_an_added_token_is_for_the_compiled_engine(engine_with_added_tokens):
    assert find_refused(engine_with_added_tokens, ["<keep", "é"]) == []


# The faster fallback


class FallbackFactory:
    """Makes the faster fallback of a gated engine, or refuses to, and counts the calls."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self.n_calls = 0

    def __call__(self):
        self.n_calls += 1
        return self._make()


def assert_replaces_the_reference(tokenizer_files, factory, helper):
    """Check for two shards that a faster fallback is made once, as soon as there is much text.

    Args:
        tokenizer_files: Kind → `tokenizer.json`.
        factory: Makes the faster fallback.
        helper: Name of the engine that encodes text after that; empty for the reference.
    """
    reference = ReferenceEngine(tokenizer_files["gpt2"])
    # A gate that no text passes.
    closed_gate = {"doubtful": np.ones(0x110000, bool), "tokens": to_array([])}
    engine = GatedEngine(LengthEngine(COMPILED), closed_gate, reference, factory)
    texts = [f"e\u0301 word {number} and \u07f3\u07fd more" for number in range(20)]

    for n_calls_before in (0, 1):
        # The start of a shard: there was little text.
        Audit(engine, 0, "shard")
        first = engine.encode(texts[:1])
        assert first.ids.tolist() == reference.encode(texts[:1]).ids.tolist()
        assert engine.helper == ""
        assert factory.n_calls == n_calls_before

        # Much text.
        expected = reference.encode(texts)
        for _ in range(3):
            encoded = engine.encode(texts)
            assert encoded.ids.tolist() == expected.ids.tolist()
            assert encoded.lengths.tolist() == expected.lengths.tolist()
        name, _, _ = engine.helper.partition(" ")
        assert name == helper
        assert factory.n_calls == 1


@pytest.mark.usefixtures("few_canaries")
def test_a_faster_fallback_is_made_once_there_is_much_text(tokenizer_files, tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "FALLBACK_CHARACTERS", 60)
    factory = FallbackFactory(lambda: make_engine(tokenizer_files["gpt2"], "numpy", cache=tmp_path))

    assert_replaces_the_reference(tokenizer_files, factory, helper="numpy")


def test_the_reference_stays_the_fallback_if_no_faster_engine_supports_the_tokenizer(
    tokenizer_files, monkeypatch
):
    def refuse():
        raise NotRecognisedError("not known")

    monkeypatch.setattr(gate, "FALLBACK_CHARACTERS", 60)

    assert_replaces_the_reference(tokenizer_files, FallbackFactory(refuse), helper="")


# The comparison of a compiled engine with the reference


class CompiledDouble(ReferenceEngine):
    """A compiled engine for tests: the reference, but with wrong tokens for some texts."""

    name = "gigatoken"
    package = "gigatoken"

    def __init__(
        self, path: Path, is_wrong: Callable[[str], bool], encoded_texts: list[str]
    ) -> None:
        """Load the tokenizer.

        Args:
            path: The tokenizer's file.
            is_wrong: Text → whether its tokens are wrong.
            encoded_texts: All texts that the engine encodes are appended to it.
        """
        super().__init__(path)
        self.version = "9.9"
        self._is_wrong = is_wrong
        self._encoded_texts = encoded_texts

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Encode texts in UTF-8; all tokens of a wrong text are 7."""
        decoded_texts = [text.decode() for text in texts]
        self._encoded_texts += decoded_texts
        encoded = super().encode(decoded_texts)
        is_text_wrong = np.array([self._is_wrong(text) for text in decoded_texts], bool)
        is_token_wrong = np.repeat(is_text_wrong, encoded.lengths)
        ids = np.where(is_token_wrong, 7, encoded.ids)
        return Encoded(ids.astype(np.int32), encoded.lengths)


@pytest.fixture
def install_double(monkeypatch):
    """Return a function that puts a CompiledDouble in the place of the compiled library."""

    def install(is_wrong=lambda text: False, canary="it's"):
        """Install the double, and return a list to which it appends all texts that it encodes.

        Args:
            is_wrong: Text → whether its tokens are wrong.
            canary: The only text on which engines are compared.
        """
        encoded_texts = []

        class InstalledDouble(CompiledDouble):
            def __init__(self, path: Path) -> None:
                super().__init__(path, is_wrong, encoded_texts)

        monkeypatch.setattr(engines, "all_canaries", lambda tokenizer: [canary])
        monkeypatch.setattr(engines, "GigatokenEngine", InstalledDouble)
        monkeypatch.setattr(engines, "is_installed", lambda: True)
        return encoded_texts

    return install


@pytest.fixture
def gpt2(tokenizer_files):
    """The `tokenizer.json` of a tokenizer like GPT-2's."""
    return tokenizer_files["gpt2"]


@pytest.fixture(params=["neox", "llama3", "llama2", "gpt2 without dropout"])
def tokenizer_path(request, tokenizer_files, write_changed_tokenizer):
    """The `tokenizer.json` of a tokenizer of several kinds."""
    if request.param == "gpt2 without dropout":
        return write_changed_tokenizer("gpt2", lambda content: content["model"].update(dropout=0.0))
    return tokenizer_files[request.param]


def test_a_compiled_engine_is_used_if_it_is_installed_and_gives_the_right_tokens(
    tokenizer_path, install_double, tmp_path
):
    install_double()

    automatic = make_engine(tokenizer_path, cache=tmp_path)
    requested = make_engine(tokenizer_path, "gigatoken", cache=tmp_path)

    assert automatic.name == "gigatoken"
    assert requested.name == "gigatoken"


def test_the_numpy_engine_replaces_a_compiled_engine_that_is_not_trusted(
    tokenizer_path, install_double, tmp_path
):
    install_double()
    distrusted = f"gigatoken {installed_version('gigatoken')}"

    engine = make_engine(tokenizer_path, cache=tmp_path, without=[distrusted])

    assert engine.name == "numpy"


def is_wrong_at_the_start(text):
    """Return whether the tokens of a text are wrong: if it starts with a certain word."""
    return text.startswith("Some")


def test_the_numpy_engine_replaces_a_compiled_engine_with_wrong_tokens(
    gpt2, install_double, tmp_path, caplog
):
    install_double(is_wrong_at_the_start, canary="Some text.")

    engine = make_engine(gpt2, cache=tmp_path)

    assert engine.name == "numpy"
    assert "test texts" in caplog.text


def test_a_compiled_engine_with_wrong_tokens_is_compared_only_once(gpt2, install_double, tmp_path):
    encoded_texts = install_double(is_wrong_at_the_start, canary="Some text.")
    make_engine(gpt2, cache=tmp_path)
    encoded_texts.clear()

    engine = make_engine(gpt2, cache=tmp_path)

    assert engine.name == "numpy"
    assert encoded_texts == []


def test_the_reference_replaces_a_requested_engine_with_wrong_tokens(
    gpt2, install_double, tmp_path
):
    install_double(is_wrong_at_the_start, canary="Some text.")
    make_engine(gpt2, cache=tmp_path)

    engine = make_engine(gpt2, "gigatoken", cache=tmp_path)

    assert engine.name == "tokenizers"


class PanicException(BaseException):
    """A panic of a library in Rust, as it reaches Python."""


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(RuntimeError("out of range"), id="error"),
        pytest.param(PanicException("out of range"), id="panic"),
    ],
)
def test_the_numpy_engine_replaces_a_compiled_engine_that_fails(
    gpt2, install_double, tmp_path, failure
):
    def fail(text):
        raise failure

    install_double(is_wrong=fail)

    engine = make_engine(gpt2, cache=tmp_path)

    assert engine.name == "numpy"


def test_a_compiled_engine_is_compared_once_for_each_tokenizer(
    gpt2, write_changed_tokenizer, install_double, tmp_path
):
    def fuse_unknown(content):
        content["model"]["fuse_unk"] = True

    other_tokenizer = write_changed_tokenizer("gpt2", fuse_unknown)
    encoded_texts = install_double()

    assert make_engine(gpt2, cache=tmp_path).name == "gigatoken"
    assert encoded_texts != []

    # The same tokenizer again.
    encoded_texts.clear()
    assert make_engine(gpt2, cache=tmp_path).name == "gigatoken"
    assert encoded_texts == []

    # Another tokenizer.
    assert make_engine(other_tokenizer, cache=tmp_path).name == "gigatoken"
    assert encoded_texts != []


def test_a_compiled_engine_is_compared_again_if_the_stored_result_is_damaged(
    gpt2, install_double, tmp_path
):
    encoded_texts = install_double()
    make_engine(gpt2, cache=tmp_path)
    (stored_result,) = tmp_path.glob("*.gigatoken.npz")
    stored_result.write_bytes(stored_result.read_bytes()[:-9])

    encoded_texts.clear()
    assert make_engine(gpt2, cache=tmp_path).name == "gigatoken"
    assert encoded_texts != []

    # The result was stored again.
    encoded_texts.clear()
    assert make_engine(gpt2, cache=tmp_path).name == "gigatoken"
    assert encoded_texts == []


@pytest.mark.parametrize("normalizer", ["Lowercase", "Strip"])
def test_a_compiled_engine_is_not_used_with_normalizers_on_which_it_was_not_compared(
    write_changed_tokenizer, install_double, tmp_path, normalizer
):
    def set_normalizer(content):
        content["normalizer"] = {"type": normalizer, "strip_left": True, "strip_right": True}

    install_double()
    path = write_changed_tokenizer("gpt2", set_normalizer)

    with pytest.raises(ConfigError, match="does not support") as caught:
        make_engine(path, "gigatoken", cache=tmp_path)

    assert normalizer in str(caught.value.found)
