"""Megatron-LM's arguments for a tokenizer follow from its file, or a note says what is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.handoffs import handoff_notes, handoff_of, megatron_arguments, nanoset_config
from helpers.locations import GOLDEN_FILES
from nanoset_core.stages.handoff.tokenizer import tokenizer_arguments, tokenizer_note
from nanoset_core.tokenizers.files import TokenizerFile, define

FILES = GOLDEN_FILES / "tokenization" / "files"
TOKENIZER_JSON = GOLDEN_FILES / "tokenization" / "tokenizer.json"


class NamedTokenizer(NamedTuple):
    """A tokenizer, and Megatron-LM's arguments that name it."""

    tokenizer: Path | TokenizerFile
    arguments: list[str]
    """Without the folder of files."""


NAMED_TOKENIZERS = {
    "GPT-2": NamedTokenizer(
        FILES / "vocab.json",
        [
            "--tokenizer-type GPT2BPETokenizer",
            "--vocab-file vocab.json",
            "--merge-file merges.txt",
        ],
    ),
    "tiktoken": NamedTokenizer(
        TokenizerFile(FILES / "megatron.json", pattern="v1", num_special_tokens=20, vocab_size=430),
        [
            "--tokenizer-type TikTokenizer",
            "--tokenizer-model megatron.json",
            "--tiktoken-pattern v1",
            "--tiktoken-num-special-tokens 20",
            "--vocab-size 430",
        ],
    ),
    "SentencePiece": NamedTokenizer(
        TokenizerFile(FILES / "bpe.model", special_tokens=("<s>", "<mask>"), legacy=True),
        [
            "--tokenizer-type GPTSentencePieceTokenizer",
            "--tokenizer-model bpe.model",
            "--tokenizer-sentencepiece-legacy",
            "--tokenizer-special-tokens <s> <mask>",
        ],
    ),
    "Mistral": NamedTokenizer(FILES / "tekken.json", []),
    "tokenizer.json": NamedTokenizer(TOKENIZER_JSON, []),
}


def without_folder(arguments: tuple[str, ...]) -> list[str]:
    """Return arguments without the folder of the tokenizers' files."""
    return [argument.replace(f"{FILES}/", "") for argument in arguments]


@pytest.mark.parametrize("case", NAMED_TOKENIZERS.values(), ids=NAMED_TOKENIZERS.keys())
def test_megatron_gets_arguments_for_each_kind_of_file_that_it_reads(case):
    arguments = tokenizer_arguments(define(case.tokenizer))

    assert without_folder(arguments) == case.arguments


@pytest.mark.parametrize("case", NAMED_TOKENIZERS.values(), ids=NAMED_TOKENIZERS.keys())
def test_arguments_for_a_tokenizer_are_written_as_they_are(case):
    handoff = handoff_of(nanoset_config(), tokenizer=tuple(case.arguments))

    written = []
    for line in megatron_arguments(handoff):
        if any(word in line for word in ("token", "vocab", "merge")):
            written.append(line)
    assert written == case.arguments


def test_a_tokenizer_json_has_a_note_with_the_file_that_names_its_end_token():
    note = tokenizer_note(define(TOKENIZER_JSON), "</s>")

    assert json.loads(note[note.index("{") :])["eos_token"] == "</s>"


def test_the_note_on_a_tokenizer_json_names_the_files_that_some_versions_need():
    note = tokenizer_note(define(TOKENIZER_JSON), "</s>")

    assert "such as vocab.json and merges.txt" in note


def test_the_file_that_names_the_end_token_names_the_padding_token_of_packs():
    note = tokenizer_note(define(TOKENIZER_JSON), "</s>", "<pad>")

    assert json.loads(note[note.index("{") :])["pad_token"] == "<pad>"


def test_a_note_names_the_padding_token_that_megatron_must_know():
    handoff = handoff_of(nanoset_config(), padding_token="<pad>")

    [note] = [note for note in handoff_notes(handoff) if "loss" in note]
    assert "the padding token `<pad>`" in note


def test_a_note_names_the_end_token_that_megatron_must_know_for_masks():
    handoff = handoff_of(nanoset_config(), settings={"eod_mask_loss": True}, end_token="</s>")

    [note] = [note for note in handoff_notes(handoff) if "`</s>`" in note]
    assert "With --eod-mask-loss, Megatron-LM looks for this token" in note


@pytest.mark.parametrize("settings", [{}, {"create_attention_mask": True}])
def test_the_end_token_has_no_note_without_masks_that_look_for_it(settings):
    handoff = handoff_of(nanoset_config(), settings=settings, end_token="</s>")

    assert not any("`</s>`" in note for note in handoff_notes(handoff))


def test_a_tokenizer_that_megatron_cannot_read_has_a_note_on_the_null_tokenizer():
    note = tokenizer_note(define(FILES / "tekken.json"))

    assert "NullTokenizer --vocab-size 430" in note


def test_the_note_on_a_tokenizer_is_a_note_of_the_handoff():
    handoff = handoff_of(nanoset_config(), tokenizer_note="A note on the tokenizer.")

    assert "A note on the tokenizer." in handoff_notes(handoff)


def test_a_sentencepiece_model_needs_no_note():
    assert tokenizer_note(define(FILES / "bpe.model")) is None


def test_gpt2_has_a_note_on_versions_that_ignore_its_merges():
    assert "--legacy-tokenizer" in tokenizer_note(define(FILES / "vocab.json"))


def test_a_tokenizer_whose_path_has_a_space_has_a_note_instead_of_arguments(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    tokenizer = define(shutil.copyfile(FILES / "bpe.model", folder / "bpe.model"))

    assert tokenizer_arguments(tokenizer) == ()
    assert "space" in tokenizer_note(tokenizer)
