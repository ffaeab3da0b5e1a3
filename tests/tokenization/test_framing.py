"""What each preset's tool puts around a document, against a loop over documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe import Encoded
from nanoset_core.tokenization.framing import Framing, added_tokens, frame, make_framing, pair_name


def slowly(documents, framing):
    """One document at a time: → (sequences, sequences per written document)."""
    sequences, counts = [], []
    for tokens in documents:
        if tokens or framing.empty == "sequence":
            sequences.append([*framing.before, *tokens, *framing.after])
            counts.append(1)
        elif framing.empty == "no_sequence":
            counts.append(0)
    return sequences, counts


@given(
    documents=st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=12),
    before=st.lists(st.integers(100, 103), max_size=3),
    after=st.lists(st.integers(104, 107), max_size=3),
    empty=st.sampled_from(["no_sequence", "sequence", "skip"]),
)
def test_as_one_document_at_a_time(documents, before, after, empty):
    framing = Framing(tuple(before), tuple(after), empty)
    flat = np.array([token for tokens in documents for token in tokens], np.int32)
    encoded = Encoded(flat, np.array([len(tokens) for tokens in documents], np.int32))
    framed = frame(encoded, framing)
    sequences, counts = slowly(documents, framing)
    assert framed.ids.tolist() == [token for sequence in sequences for token in sequence]
    assert framed.lengths[framed.sequences > 0].tolist() == [len(sequence) for sequence in sequences]
    assert framed.sequences[framed.kept].tolist() == counts
    assert (framed.ids.dtype, framed.lengths.dtype) == (np.int32, np.int32)


def save(tmp_path, tokenizer_file, post_processor):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.post_processor = post_processor
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_nanotron_adds_what_the_tokenizer_adds(tmp_path, tokenizer_file):
    from tokenizers.processors import TemplateProcessing

    template = TemplateProcessing(
        single="<|pad|> $A <|endoftext|>", special_tokens=[("<|pad|>", 1), ("<|endoftext|>", 0)]
    )
    file = save(tmp_path, tokenizer_file, template)
    assert added_tokens(file) == ((1,), (0,))
    assert make_framing("nanotron", file, eod=0) == Framing((1,), (0, 0), "sequence")
    assert make_framing("megatron", file, eod=0, bos=1) == Framing((1,), (0,), "no_sequence")
    assert make_framing("nemo", file) == Framing((), (), "skip")


def test_a_plain_tokenizer_adds_nothing(tokenizer_file):
    assert added_tokens(tokenizer_file) == ((), ())


def test_special_tokens_that_depend_on_the_text_are_refused(tmp_path, tokenizer_file, monkeypatch):
    class Odd:
        def encode(self, text, add_special_tokens):
            ids = [ord(character) for character in text]
            return type("E", (), {"ids": [len(text), *ids] if add_special_tokens else ids})

    monkeypatch.setattr("nanoset_core.tokenization.bpe.reference.shared_tokenizer", lambda file: Odd())
    with pytest.raises(ConfigError, match="depend on the text"):
        added_tokens(tokenizer_file)


@pytest.mark.parametrize(
    ("preset", "name"), [("megatron", "x_text_document"), ("nemo", "x_text_document"), ("nanotron", "x_text")]
)
def test_names(preset, name):
    assert pair_name(preset, "x", "text") == name
