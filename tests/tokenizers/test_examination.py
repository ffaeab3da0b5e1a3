"""A tokenizer is examined for faults that would give no tokens, random ones or too few.

Faults that make tokens useless are errors. The others are notices, which the commands print.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from helpers.golden_tokenizers import (
    FILES,
    GOLDEN_JSON,
    NO_FLAGS,
    copy_golden_file,
    write_golden_json,
)
from helpers.locations import GOLDEN_FILES
from helpers.sample_project import EOD
from nanoset_core.errors import FormatError
from nanoset_core.tokenizers import files
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.files import TokenizerFile, define
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts

TEXT = "the weather in the north was as cold as the water <Speaker> of the other rivers"
LOWERCASE = {"type": "Lowercase"}
REMOVING_ACCENTS = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}
DIGITS_TO_ZERO = {"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": "0"}


def with_settings(tmp_path, **settings):
    """Write the golden `tokenizer.json` with other settings; return its path."""
    return write_golden_json(tmp_path, lambda tokenizer: tokenizer.update(settings))


def with_model_settings(tmp_path, **settings):
    """Write the golden `tokenizer.json` with other settings of its model; return its path."""
    return write_golden_json(tmp_path, lambda tokenizer: tokenizer["model"].update(settings))


def added_token(content, number=396, **flags):
    """Return an entry of `added_tokens`, which is searched for in normalised text."""
    return {**NO_FLAGS, "normalized": True, "id": number, "content": content, **flags}


def tokenize(folder, tokenizer):
    """Run `nanoset tokenize` on one text, and return the result of the command."""
    input_path = folder / "text.jsonl"
    input_path.write_text(json.dumps({"text": TEXT}) + "\n")
    arguments = ["tokenize", "--input", input_path, "--output-prefix", folder / "out"]
    arguments += ["--workers", 1, "--engine", "tokenizers", "--tokenizer", tokenizer]
    return invoke_nanoset(arguments)


def sha256_of(path):
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Sound tokenizers


@pytest.mark.parametrize(
    "folder", ["tokenization", "outputs", "modalities/tokenizer", "webdataset/tokenizer"]
)
def test_a_sound_tokenizer_has_no_notices_and_the_digest_of_its_file(folder):
    path = GOLDEN_FILES / folder / "tokenizer.json"

    definition = define(path)

    assert definition.notices == ()
    assert definition.fingerprint == sha256_of(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"[]", b'{"model": []}', b'{"model": {"vocab": {"a": "b"}}}'],
    ids=["empty", "no json", "a list", "a list as the model", "an id that is no number"],
)
def test_a_file_that_is_no_tokenizer_is_left_to_the_library(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)

    with pytest.raises(FormatError, match="not a tokenizer"):
        make_engine(path, "tokenizers")


def test_the_examination_of_a_large_file_is_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_MIN_CACHED_BYTES", 0)
    path = with_model_settings(tmp_path, dropout=0.1)
    expected = define(path)

    # As a new process would do it, without another examination.
    files._define.cache_clear()
    monkeypatch.setattr(files, "examine", None)
    definition = define(path)

    assert definition == expected


# Random tokens


@pytest.fixture(scope="module")
def tokens_without_dropout():
    """The tokens of twenty texts by a tokenizer without dropout."""
    return make_engine(GOLDEN_JSON, "tokenizers").encode([TEXT] * 20).ids.tolist()


@pytest.mark.usefixtures("few_canaries")
@pytest.mark.parametrize("dropout", [0.1, 0.5, 1, 1e-6])
@pytest.mark.parametrize("engine", ["tokenizers", "numpy", "auto"])
def test_dropout_is_switched_off_for_every_engine(
    tmp_path, tokens_without_dropout, dropout, engine
):
    path = with_model_settings(tmp_path, dropout=dropout)

    encoded = make_engine(path, engine, cache=tmp_path).encode([TEXT] * 20)

    assert encoded.ids.tolist() == tokens_without_dropout


def test_dropout_is_noticed(tmp_path):
    path = with_model_settings(tmp_path, dropout=0.1)

    (notice,) = define(path).notices

    assert notice.startswith(f"{path} has BPE dropout (0.1)")


def test_a_tokenizer_with_dropout_has_another_fingerprint_than_one_without(tmp_path):
    """Tokens that were made with dropout, by an earlier version, are not current."""
    with_dropout = define(with_model_settings(tmp_path, dropout=0.1)).fingerprint
    without_dropout = define(with_model_settings(tmp_path, dropout=None)).fingerprint

    assert with_dropout != without_dropout


def test_the_facts_of_a_tokenizer_with_dropout_have_the_fingerprint_of_its_definition(tmp_path):
    path = with_model_settings(tmp_path, dropout=0.1)

    assert tokenizer_facts(path).fingerprint == define(path).fingerprint


@pytest.mark.parametrize("dropout", [None, 0.0, 0], ids=["none", "float", "integer"])
def test_dropout_that_is_off_changes_nothing(tmp_path, dropout):
    path = with_model_settings(tmp_path, dropout=dropout)

    definition = define(path)

    assert definition.notices == ()
    assert definition.fingerprint == sha256_of(path)
    assert definition.json() == path.read_bytes()


def test_unigram_sampling_is_noticed(tmp_path):
    model = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [["<unk>", 0.0], ["a", -1.0]],
        "alpha": 0.1,
        "nbest_size": 4,
    }
    path = with_settings(tmp_path, model=model, added_tokens=[])

    (notice,) = define(path).notices

    assert "alpha 0.1, nbest_size 4" in notice


@pytest.mark.parametrize(
    ("normalizer", "contents"),
    [
        pytest.param(LOWERCASE, ["<Speaker>", "<speaker>"], id="two, lower case"),
        pytest.param(LOWERCASE, ["<other>", "<SPEAKER>", "<Speaker>"], id="two of three"),
        pytest.param({"type": "NFKC"}, ["ﬁn", "fin"], id="NFKC"),
        pytest.param({"type": "NFC"}, ["e\u0301", "\u00e9"], id="NFC"),
        pytest.param(REMOVING_ACCENTS, ["é", "è"], id="accents"),
        pytest.param(DIGITS_TO_ZERO, ["<v1>", "<v2>"], id="digits"),
    ],
)
def test_added_tokens_with_the_same_normal_form_are_an_error(tmp_path, normalizer, contents):
    """The library chooses one of them at random."""
    tokens = [added_token(content, 396 + index) for index, content in enumerate(contents)]
    path = with_settings(tmp_path, normalizer=normalizer, added_tokens=tokens)

    with pytest.raises(FormatError, match="chosen at random") as caught:
        define(path)

    assert caught.value.where == str(path)
    assert repr(contents[-1]) in caught.value.found
    assert "normalized" in caught.value.remedy


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(
            [added_token("<Speaker>", normalized=False), added_token("<speaker>", 397)],
            id="one is not normalised",
        ),
        pytest.param(
            [
                added_token("<Speaker>", normalized=False),
                added_token("<speaker>", 397, normalized=False),
            ],
            id="none is normalised",
        ),
        pytest.param(
            [added_token("<speaker>"), added_token("<speakers>", 397)],
            id="different normal forms",
        ),
        pytest.param([added_token("<speaker>"), added_token("<speaker>")], id="one token twice"),
    ],
)
def test_added_tokens_that_the_library_can_tell_apart_are_accepted(tmp_path, tokens):
    path = with_settings(tmp_path, normalizer=LOWERCASE, added_tokens=tokens)

    assert define(path).notices == ()
    encodings = set()
    for _ in range(8):
        encoded = make_engine(path, "tokenizers").encode([TEXT])
        encodings.add(tuple(encoded.ids.tolist()))
    assert len(encodings) == 1


def test_the_command_prints_notices(tmp_path):
    result = tokenize(tmp_path, with_model_settings(tmp_path, dropout=0.1))

    assert result.exit_code == 0
    assert "notice: " in result.output
    assert "dropout" in result.output


def test_the_command_fails_on_an_error_of_the_examination(tmp_path):
    tokens = [added_token("<Speaker>"), added_token("<SPEAKER>", 397)]
    path = with_settings(tmp_path, normalizer=LOWERCASE, added_tokens=tokens)

    result = tokenize(tmp_path, path)

    assert "chosen at random" in str(result.exception)


# Missing merges

MERGES = (FILES / "merges.txt").read_bytes().splitlines(keepends=True)
"""Lines of the golden merges."""


@pytest.fixture
def vocab_json(tmp_path):
    """A copy of the golden vocab.json, with its merges.txt next to it."""
    copy_golden_file("merges.txt", tmp_path)
    return copy_golden_file("vocab.json", tmp_path)


def test_complete_merges_are_not_noticed(vocab_json):
    assert define(vocab_json).notices == ()


@pytest.mark.parametrize("n_missing", [1, 2, 50])
def test_merges_that_were_cut_between_lines_are_noticed(vocab_json, n_missing):
    merges_path = vocab_json.with_name("merges.txt")
    merges_path.write_bytes(b"".join(MERGES[:-n_missing]))

    (notice,) = define(vocab_json).notices

    assert f"{n_missing} of " in notice
    assert "come from no merge" in notice


def test_words_that_were_added_to_a_vocabulary_by_hand_need_no_merge(vocab_json):
    vocabulary = json.loads(vocab_json.read_bytes())
    for word in ("<pad>", "<s>", "[MASK]", "madeupword0000"):
        vocabulary[word] = len(vocabulary)
    vocab_json.write_text(json.dumps(vocabulary))

    assert define(vocab_json).notices == ()


def test_a_tokenizer_json_without_many_of_its_merges_is_noticed(tmp_path):
    def keep_seventy_merges(tokenizer):
        del tokenizer["model"]["merges"][70:]

    path = write_golden_json(tmp_path, keep_seventy_merges)

    (notice,) = define(path).notices

    assert "seems to lack merges: 68 of 396 tokens" in notice


def test_a_tokenizer_json_without_few_of_its_merges_is_not_noticed(tmp_path):
    """A few tokens without a merge may have been added on purpose."""

    def remove_three_merges(tokenizer):
        del tokenizer["model"]["merges"][-3:]

    path = write_golden_json(tmp_path, remove_three_merges)

    assert define(path).notices == ()


def test_a_sentencepiece_model_that_was_cut_between_pieces_is_an_error(tmp_path):
    content = (FILES / "bpe.model").read_bytes()
    # Each piece is a field: a byte 0x0A, its length, its content. Keep 300 of them.
    stop = 0
    for _ in range(300):
        stop += 2 + content[stop + 1]
    path = tmp_path / "cut.model"
    path.write_bytes(content[:stop])

    with pytest.raises(FormatError, match="cut or damaged") as caught:
        define(path)

    assert "300 pieces" in caught.value.found


# No tokens


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"type": "BPE", "vocab": {}, "merges": []}, id="BPE"),
        pytest.param({"vocab": {}, "merges": []}, id="no type"),
        pytest.param({"type": "Unigram", "vocab": [], "unk_id": None}, id="unigram"),
        pytest.param({"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"}, id="word level"),
    ],
)
@pytest.mark.parametrize(
    "added_tokens",
    [
        pytest.param([], id="no added tokens"),
        pytest.param([added_token("<|endoftext|>", 0)], id="an added token"),
    ],
)
def test_an_empty_vocabulary_is_an_error(tmp_path, model, added_tokens):
    path = with_settings(tmp_path, model=model, added_tokens=added_tokens)

    with pytest.raises(FormatError, match="vocabulary is empty"):
        define(path)

    result = tokenize(tmp_path, path)
    assert "vocabulary is empty" in str(result.exception)


def test_characters_without_a_token_are_noticed(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    path = with_settings(tmp_path, model=model, added_tokens=[], pre_tokenizer=None)

    (notice,) = define(path).notices

    assert "has tokens for 2 characters, and neither an unk_token nor all bytes" in notice


def test_bytes_without_a_token_are_noticed(tmp_path):
    def remove_two_bytes(tokenizer):
        vocabulary = tokenizer["model"]["vocab"]
        for byte in (0x01, 0x02):
            del vocabulary[byte_characters()[byte]]

    path = write_golden_json(tmp_path, remove_two_bytes)

    (notice,) = define(path).notices

    assert "no token for 2 bytes, the first 0x01" in notice


def test_a_vocabulary_with_an_unknown_token_needs_no_other_tokens(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0, "[UNK]": 1}, "merges": [], "unk_token": "[UNK]"}
    path = with_settings(tmp_path, model=model, added_tokens=[], pre_tokenizer=None)

    assert define(path).notices == ()


def test_tokens_with_the_same_id_are_noticed(tmp_path):
    def add_token(tokenizer):
        tokenizer["model"]["vocab"]["<one>"] = 5

    path = write_golden_json(tmp_path, add_token)

    (notice,) = define(path).notices

    assert "several tokens of one id" in notice


# Ids of added tokens


@pytest.mark.parametrize(
    ("number", "library_number"),
    [(60_000, 396), (5, 396), (397, 396)],
    ids=["with a gap", "of another token", "one too large"],
)
def test_an_added_token_with_another_id_than_its_file_gives_it_is_noticed(
    tmp_path, number, library_number
):
    def change(tokenizer):
        tokenizer["added_tokens"].append(added_token("<zz>", number, normalized=False))

    path = write_golden_json(tmp_path, change)

    (notice,) = define(path).notices

    assert token_id(path, "<zz>", "--eod") == library_number
    expected = f"'<zz>' the id {number:,}, but the tokenizers library gives it {library_number:,}"
    assert expected in notice


def test_an_added_token_that_the_vocabulary_has_under_another_id_is_noticed(tmp_path):
    def change(tokenizer):
        (first_token, *_) = tokenizer["added_tokens"]
        first_token["id"] = 7

    path = write_golden_json(tmp_path, change)

    (notice,) = define(path).notices

    assert f"{EOD!r} the id 7, but the tokenizers library gives it 0" in notice


def test_added_tokens_without_gaps_after_the_vocabulary_are_not_noticed(tmp_path):
    def change(tokenizer):
        for number in (396, 397):
            tokenizer["added_tokens"].append(added_token(f"<{number}>", number, normalized=False))

    path = write_golden_json(tmp_path, change)

    assert define(path).notices == ()


@pytest.mark.parametrize("number", [397, 501])
def test_a_token_added_to_a_vocabulary_with_gaps_is_noticed_if_the_library_differs(
    tmp_path, number
):
    """Versions of the library differ: the token after 396 others, or after the greatest id."""

    def change(tokenizer):
        tokenizer["model"]["vocab"]["<high>"] = 500
        tokenizer["added_tokens"] += [
            added_token("<high>", 500, normalized=False),
            added_token("<next>", number, normalized=False),
        ]

    path = write_golden_json(tmp_path, change)

    notices = define(path).notices

    is_kept = token_id(path, "<next>", "--eod") == number
    assert len(notices) == (0 if is_kept else 1)


def test_an_added_token_of_a_unigram_model_with_another_id_is_noticed(tmp_path):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}
    path = with_settings(tmp_path, model=model, added_tokens=[added_token("<zz>", 9)])

    (notice,) = define(path).notices

    assert "'<zz>' the id 9, but the tokenizers library gives it 2" in notice


# Folders


@pytest.fixture
def folder_with_merges(tmp_path):
    """A folder with the golden merges, which a vocab.json needs."""
    copy_golden_file("merges.txt", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("original", "name"),
    [
        pytest.param(GOLDEN_JSON, "tokenizer.json", id="tokenizer.json"),
        pytest.param(FILES / "tekken.json", "tekken.json", id="tekken.json"),
        pytest.param(FILES / "bpe.model", "tokenizer.model", id="tokenizer.model"),
        pytest.param(FILES / "vocab.json", "vocab.json", id="vocab.json"),
    ],
)
def test_a_folder_stands_for_the_tokenizer_in_it(folder_with_merges, original, name):
    path = folder_with_merges / name
    path.write_bytes(original.read_bytes())

    definition = define(TokenizerFile(folder_with_merges))

    assert definition == define(TokenizerFile(path))
    assert define(folder_with_merges).source.name == name


def test_a_folder_with_settings_stands_for_the_ranks_in_it(folder_with_merges):
    path = copy_golden_file("ranks.tiktoken", folder_with_merges, "own.tiktoken")

    definition = define(TokenizerFile(folder_with_merges, pattern="gpt2"))

    assert definition == define(TokenizerFile(path, pattern="gpt2"))


@pytest.fixture
def folder_and_file(tmp_path):
    """A folder with a tokenizer.json, and the path of this file."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(GOLDEN_JSON.read_bytes())
    return tmp_path, path


def test_facts_of_a_folder_are_those_of_its_tokenizer(folder_and_file):
    folder, path = folder_and_file

    assert tokenizer_facts(folder).vocab_size == tokenizer_facts(path).vocab_size


def test_an_engine_of_a_folder_gives_the_tokens_of_its_tokenizer(folder_and_file):
    folder, path = folder_and_file

    encoded = make_engine(folder, "tokenizers").encode([TEXT])

    expected = make_engine(path, "tokenizers").encode([TEXT])
    assert np.array_equal(encoded.ids, expected.ids)
