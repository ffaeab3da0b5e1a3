"""The special tokens that each preset's tool puts around documents, and its empty documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

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

# The special tokens of the sample tokenizer, and their ids.
END = "<|endoftext|>"
END_ID = 0
PAD = "<|pad|>"
PAD_ID = 1


class SequencesOfDocuments(NamedTuple):
    """Documents that were framed one at a time."""

    sequences: Sequence[Sequence[int]]
    counts: Sequence[int]
    """Sequences of each document that is written."""


def frame_one_at_a_time(
    documents: Sequence[Sequence[int]], framing: Framing
) -> SequencesOfDocuments:
    """Frame documents by a plain loop."""
    sequences = []
    counts = []
    for tokens in documents:
        if tokens or framing.empty == "sequence":
            sequences.append([*framing.before, *tokens, *framing.after])
            counts.append(1)
        elif framing.empty == "no_sequence":
            counts.append(0)
    return SequencesOfDocuments(sequences, counts)


def save_with_template(folder: Path, tokenizer_file: Path, template: str) -> Path:
    """Save a tokenizer whose own `encode` puts special tokens around a text; return its path.

    Args:
        folder: Where to save it.
        tokenizer_file: A tokenizer without a template.
        template: The special tokens, and $A for the text.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    ids = {END: END_ID, PAD: PAD_ID}
    special_tokens = [(token, ids[token]) for token in template.split() if token in ids]
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special_tokens)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def begin_adding_tokenizer(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """A tokenizer that puts a token before each text, as Llama's does."""
    folder = tmp_path_factory.mktemp("begin-adding")
    return save_with_template(folder, tokenizer_file, f"{PAD} $A")


@pytest.fixture(scope="module")
def both_adding_tokenizer(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """A tokenizer that puts a token before each text, and another one after it."""
    folder = tmp_path_factory.mktemp("both-adding")
    return save_with_template(folder, tokenizer_file, f"{PAD} $A {END}")


# Batches of documents


@given(
    documents=st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=12),
    before=st.lists(st.integers(100, 103), max_size=3),
    after=st.lists(st.integers(104, 107), max_size=3),
    empty=st.sampled_from(["no_sequence", "sequence", "skip"]),
)
def test_a_batch_is_framed_as_one_document_at_a_time(documents, before, after, empty):
    framing = Framing(tuple(before), tuple(after), empty)
    ids = np.array(list(chain.from_iterable(documents)), np.int32)
    lengths = np.array([len(tokens) for tokens in documents], np.int32)

    framed = frame(Encoded(ids, lengths), framing)

    expected = frame_one_at_a_time(documents, framing)
    expected_lengths = [len(sequence) for sequence in expected.sequences]
    has_sequence = framed.sequence_counts > 0
    assert framed.ids.tolist() == list(chain.from_iterable(expected.sequences))
    assert framed.lengths[has_sequence].tolist() == expected_lengths
    assert framed.sequence_counts[framed.is_written].tolist() == expected.counts
    assert framed.ids.dtype == np.int32
    assert framed.lengths.dtype == np.int32


def test_special_tokens_are_added_as_by_encode_of_the_tokenizer(begin_adding_tokenizer):
    from tokenizers import Tokenizer

    texts = ["one two", "", " 3 4"]
    framing = make_framing("megatron", begin_adding_tokenizer, eod=END_ID, special_tokens="add")

    framed = frame(ReferenceEngine(begin_adding_tokenizer).encode(texts), framing)

    # A document without text has the template's tokens, so that Megatron-LM ends it as all others.
    tokenizer = Tokenizer.from_file(str(begin_adding_tokenizer))
    expected_ids = []
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=True):
        expected_ids += [*encoding.ids, END_ID]
    assert framed.ids.tolist() == expected_ids
    assert framed.sequence_counts.tolist() == [1, 1, 1]


# Which tokens are added


def test_the_tokens_that_a_tokenizer_adds_are_detected(both_adding_tokenizer):
    assert added_tokens(both_adding_tokenizer) == ((PAD_ID,), (END_ID,))


def test_nanotron_adds_the_tokens_of_the_template_and_then_the_end_token(both_adding_tokenizer):
    framing = make_framing("nanotron", both_adding_tokenizer, eod=END_ID)

    assert framing == Framing((PAD_ID,), (END_ID, END_ID), "sequence")


def test_megatron_adds_only_the_tokens_of_the_settings(both_adding_tokenizer):
    framing = make_framing("megatron", both_adding_tokenizer, eod=END_ID, bos=PAD_ID)

    assert framing == Framing((PAD_ID,), (END_ID,), "no_sequence")


def test_nemo_adds_no_token_and_leaves_out_empty_documents(both_adding_tokenizer):
    assert make_framing("nemo", both_adding_tokenizer) == Framing((), (), "skip")


def test_megatron_adds_no_special_tokens_by_default(begin_adding_tokenizer):
    by_default = make_framing("megatron", begin_adding_tokenizer, eod=END_ID)
    by_choice = make_framing("megatron", begin_adding_tokenizer, eod=END_ID, special_tokens="none")

    assert by_choice == by_default


def test_nemo_adds_special_tokens_if_the_user_chooses_to(begin_adding_tokenizer):
    framing = make_framing("nemo", begin_adding_tokenizer, special_tokens="add")

    assert framing == Framing((PAD_ID,), (), "sequence")


def test_nanotron_adds_no_special_tokens_if_the_user_chooses_not_to(begin_adding_tokenizer):
    framing = make_framing("nanotron", begin_adding_tokenizer, special_tokens="none")

    assert framing == Framing((), (), "sequence")


def test_a_tokenizer_without_a_template_adds_nothing(tokenizer_file):
    framing = make_framing("megatron", tokenizer_file, special_tokens="add")

    assert framing == Framing((), (), "no_sequence")


class LengthAddingTokenizer:
    """A tokenizer that adds a token which depends on the text: its length."""

    def __init__(self, file: Path) -> None:
        self.tokenizer = load_tokenizer(file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        """Encode a text as the code points of its characters."""
        ids = [ord(character) for character in text]
        if add_special_tokens:
            ids.insert(0, len(text))
        return SimpleNamespace(ids=ids, tokens=ids, special_tokens_mask=[0] * len(ids))


def test_special_tokens_that_depend_on_the_text_are_refused(tmp_path, tokenizer_file, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("nanoset_core.tokenizers.tokenizer.shared_tokenizer", LengthAddingTokenizer)
    file = Path(shutil.copy(tokenizer_file, tmp_path))

    with pytest.raises(ConfigError, match="depend on the text"):
        added_tokens(file)


# Notices about special tokens


def test_a_notice_names_the_versions_of_megatron_that_add_special_tokens(begin_adding_tokenizer):
    (notice,) = special_tokens_notices("megatron", begin_adding_tokenizer, None)

    assert repr(PAD) in notice
    assert "0.14 and from 0.17" in notice


def test_a_tokenizer_without_a_template_needs_no_notice(tokenizer_file):
    assert special_tokens_notices("megatron", tokenizer_file, None) == []


def test_nanotron_needs_no_notice_since_all_versions_add_special_tokens(begin_adding_tokenizer):
    assert special_tokens_notices("nanotron", begin_adding_tokenizer, None) == []


def test_a_user_who_chose_to_add_no_special_tokens_needs_no_notice(begin_adding_tokenizer):
    assert special_tokens_notices("megatron", begin_adding_tokenizer, "none") == []


@pytest.mark.parametrize("preset", ["megatron", "nanotron"])
def test_a_notice_says_that_a_tokenizer_without_a_template_adds_nothing(preset, tokenizer_file):
    (notice,) = special_tokens_notices(preset, tokenizer_file, "add", bos=PAD)

    assert "adds nothing" in notice


@pytest.mark.parametrize(
    ("tokens", "position"),
    [({"bos": "a"}, "documents begin"), ({"eod": "a"}, "documents end")],
    ids=["at the start", "at the end"],
)
def test_a_notice_says_that_an_ordinary_token_begins_or_ends_documents(
    tokenizer_file, tokens, position
):
    (notice,) = special_tokens_notices("megatron", tokenizer_file, "none", **tokens)

    assert notice.startswith(f"{position} with 'a' (id ")
    assert "an ordinary token" in notice


def test_a_token_to_which_no_text_is_encoded_needs_no_notice(tmp_path, tokenizer_file):
    tokenizer = json.loads(tokenizer_file.read_bytes())
    tokenizer["added_tokens"] = []  # END is in the vocabulary, and no merge makes it
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer))
    assert load_tokenizer(path).token_to_id(END) == END_ID

    assert special_tokens_notices("megatron", path, "none", eod=END) == []


def test_special_tokens_that_begin_and_end_documents_need_no_notice(tokenizer_file):
    assert special_tokens_notices("megatron", tokenizer_file, "none", bos=PAD, eod=END) == []


presets_that_add_special_tokens = pytest.mark.parametrize(
    ("preset", "special_tokens"),
    [
        pytest.param("megatron", "add", id="megatron, chosen"),
        pytest.param("nemo", "add", id="nemo, chosen"),
        pytest.param("nanotron", None, id="nanotron, by default"),
    ],
)


@presets_that_add_special_tokens
def test_a_token_that_the_template_and_a_setting_add_is_reported(
    both_adding_tokenizer, preset, special_tokens
):
    first_notice, second_notice = special_tokens_notices(
        preset, both_adding_tokenizer, special_tokens, bos=PAD, eod=END
    )

    assert f"begins with '{PAD}' twice" in first_notice
    assert f"ends with '{END}' twice" in second_notice


@presets_that_add_special_tokens
def test_a_token_that_is_added_at_different_ends_is_not_reported(
    both_adding_tokenizer, preset, special_tokens
):
    notices = special_tokens_notices(
        preset, both_adding_tokenizer, special_tokens, bos=END, eod=PAD
    )

    assert notices == []


def test_a_template_that_is_not_used_repeats_no_token(both_adding_tokenizer):
    notices = special_tokens_notices("megatron", both_adding_tokenizer, "none", bos=PAD, eod=END)

    assert notices == []


def test_the_same_token_as_begin_of_the_template_and_end_of_the_settings_is_not_reported(
    begin_adding_tokenizer,
):
    assert special_tokens_notices("megatron", begin_adding_tokenizer, "add", eod=PAD) == []


# Names of files


@pytest.mark.parametrize(
    ("preset", "name"),
    [("megatron", "x_text_document"), ("nemo", "x_text_document"), ("nanotron", "x_text")],
)
def test_the_files_are_named_as_by_the_tool_of_the_preset(preset, name):
    assert pair_name(preset, "x", "text") == name
