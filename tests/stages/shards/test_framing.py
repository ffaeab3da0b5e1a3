"""What each preset's tool puts around a document, against a loop over documents."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError
from nanoset_core.stages.shards.framing import (
    Framing,
    frame,
    make_framing,
    pair_name,
    special_tokens_notices,
)
from nanoset_core.tokenizers.engines import Encoded, ReferenceEngine
from nanoset_core.tokenizers.engines.tokenizers_library import load_tokenizer
from nanoset_core.tokenizers.tokenizer import added_tokens


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
    assert framed.lengths[framed.sequence_counts > 0].tolist() == [
        len(sequence) for sequence in sequences
    ]
    assert framed.sequence_counts[framed.is_written].tolist() == counts
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


def llama_like(tmp_path, tokenizer_file):
    from tokenizers.processors import TemplateProcessing

    return save(
        tmp_path,
        tokenizer_file,
        TemplateProcessing(single="<|pad|> $A", special_tokens=[("<|pad|>", 1)]),
    )


def test_special_tokens_are_added_where_that_is_said_as_encode_adds_them(tmp_path, tokenizer_file):
    from tokenizers import Tokenizer

    file, texts = llama_like(tmp_path, tokenizer_file), ["one two", "", " 3 4"]
    framing = make_framing("megatron", file, eod=0, special_tokens="add")
    framed = frame(ReferenceEngine(file).encode(texts), framing)
    whole = [
        encoding.ids
        for encoding in Tokenizer.from_file(str(file)).encode_batch(texts, add_special_tokens=True)
    ]
    # A document without text has the template's tokens, so that Megatron-LM ends it as all others.
    assert framed.ids.tolist() == [ident for ids in whole for ident in [*ids, 0]]
    assert framed.sequence_counts.tolist() == [1, 1, 1]


def test_what_is_said_of_special_tokens_and_what_is_not(tmp_path, tokenizer_file):
    file = llama_like(tmp_path, tokenizer_file)
    assert make_framing("megatron", file, eod=0, special_tokens="none") == make_framing(
        "megatron", file, eod=0
    )
    assert make_framing("nemo", file, special_tokens="add") == Framing((1,), (), "sequence")
    assert make_framing("nanotron", file, special_tokens="none") == Framing((), (), "sequence")
    assert make_framing("megatron", tokenizer_file, special_tokens="add") == Framing(
        (), (), "no_sequence"
    )


def test_trainers_that_differ_are_named_where_nobody_has_chosen(tmp_path, tokenizer_file):
    file = llama_like(tmp_path, tokenizer_file)
    (notice,) = special_tokens_notices("megatron", file, None)
    assert "'<|pad|>'" in notice
    assert "0.14 and from 0.17" in notice
    assert special_tokens_notices("megatron", tokenizer_file, None) == []
    assert special_tokens_notices("nanotron", file, None) == []
    assert special_tokens_notices("megatron", file, "none") == []


def test_adding_special_tokens_that_do_not_exist_is_noted(tokenizer_file):
    for preset in ("megatron", "nanotron"):
        (notice,) = special_tokens_notices(preset, tokenizer_file, "add", bos="<|pad|>")
        assert "adds nothing" in notice


@pytest.mark.parametrize(
    ("preset", "special_tokens"), [("megatron", "add"), ("nemo", "add"), ("nanotron", None)]
)
def test_a_token_that_the_template_and_a_setting_add_is_noted_for_either_end(
    tmp_path, tokenizer_file, preset, special_tokens
):
    from tokenizers.processors import TemplateProcessing

    both = TemplateProcessing(
        single="<|pad|> $A <|endoftext|>", special_tokens=[("<|pad|>", 1), ("<|endoftext|>", 0)]
    )
    file = save(tmp_path, tokenizer_file, both)
    first, last = special_tokens_notices(
        preset, file, special_tokens, bos="<|pad|>", eod="<|endoftext|>"
    )
    assert "begins with '<|pad|>' twice" in first
    assert "ends with '<|endoftext|>' twice" in last
    # The same tokens at the other end of a document are not there twice.
    assert (
        special_tokens_notices(preset, file, special_tokens, bos="<|endoftext|>", eod="<|pad|>")
        == []
    )
    assert (
        special_tokens_notices("megatron", file, "none", bos="<|pad|>", eod="<|endoftext|>") == []
    )


def test_a_begin_token_of_the_template_is_no_second_end_token(tmp_path, tokenizer_file):
    file = llama_like(tmp_path, tokenizer_file)
    assert special_tokens_notices("megatron", file, "add", eod="<|pad|>") == []


def test_special_tokens_that_depend_on_the_text_are_refused(tmp_path, tokenizer_file, monkeypatch):
    class Odd:
        def __init__(self, file) -> None:
            self.loaded = load_tokenizer(file)

        def __getattr__(self, name):
            return getattr(self.loaded, name)

        def encode(self, text, add_special_tokens):
            ids = [*([len(text)] if add_special_tokens else []), *map(ord, text)]
            return SimpleNamespace(ids=ids, tokens=ids, special_tokens_mask=[0] * len(ids))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("nanoset_core.tokenizers.tokenizer.shared_tokenizer", Odd)
    with pytest.raises(ConfigError, match="depend on the text"):
        added_tokens(Path(shutil.copy(tokenizer_file, tmp_path)))


@pytest.mark.parametrize(
    ("preset", "name"),
    [("megatron", "x_text_document"), ("nemo", "x_text_document"), ("nanotron", "x_text")],
)
def test_names(preset, name):
    assert pair_name(preset, "x", "text") == name
