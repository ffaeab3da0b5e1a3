"""The engine for text that another one leaves over."""

from __future__ import annotations

import pytest

from nanoset_core.tokenization.bpe import growing, make_engine
from nanoset_core.tokenization.bpe.growing import GrowingEngine
from nanoset_core.tokenization.bpe.reference import ReferenceEngine
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError

TEXTS = [f"e\u0301 word {number} and \u07f3\u07fd more" for number in range(20)] + [""]


@pytest.mark.parametrize("is_there", [True, False])
def test_it_is_made_once_there_is_much_text(tokenizer_files, tmp_path, monkeypatch, is_there):
    monkeypatch.setattr(growing, "FEW_CHARACTERS", 60)
    made = []

    def make():
        made.append(1)
        if not is_there:
            raise NotRecognisedError("not known")
        return make_engine(tokenizer_files["gpt2"], "numpy", cache=tmp_path)

    reference = ReferenceEngine(tokenizer_files["gpt2"])
    engine = GrowingEngine(reference, make)
    assert engine.encode(TEXTS[:1]).ids.tolist() == reference.encode(TEXTS[:1]).ids.tolist()
    assert (engine.name, engine.version, made) == ("tokenizers", reference.version, [])
    assert not engine.helper
    for _ in range(3):
        found, wanted = engine.encode(TEXTS), reference.encode(TEXTS)
        assert found.ids.tolist() == wanted.ids.tolist()
        assert found.lengths.tolist() == wanted.lengths.tolist()
    assert (engine.name, made) == ("numpy" if is_there else "tokenizers", [1])
    assert engine.helper.partition(" ")[0] == ("numpy" if is_there else "")
