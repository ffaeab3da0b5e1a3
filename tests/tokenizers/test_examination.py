"""Tokenizers that would give no tokens, other tokens in each run, or fewer than their files
promise.
"""

import json
import shutil

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import FormatError
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.files import TokenizerFile, define
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

GOLDEN = GOLDEN_FILES / "tokenization"
FILES = GOLDEN / "files"
TEXT = "the weather in the north was as cold as the water <Speaker> of the other rivers"


def changed(tmp_path, change, name="tokenizer.json"):
    """Write the golden tokenizer.json after a change; return its path."""
    tokenizer = json.loads((GOLDEN / "tokenizer.json").read_bytes())
    change(tokenizer)
    file = tmp_path / name
    file.write_text(json.dumps(tokenizer))
    return file


def with_model(tmp_path, **settings):
    return changed(tmp_path, lambda tokenizer: tokenizer["model"].update(settings))


def added(content, **flags):
    blank = {
        "id": 396,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": True,
        "special": False,
    }
    return {**blank, "content": content, **flags}


def tokenize(folder, tokenizer, *options):
    (folder / "text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    arguments = [
        "tokenize",
        "--input",
        folder / "text.jsonl",
        "--output-prefix",
        folder / "out",
        "--workers",
        1,
    ]
    arguments += ["--tokenizer", tokenizer, *options]
    return invoke_nanoset(arguments)


# ------------------------------------------------------------------------------------------------
# random results


@pytest.mark.parametrize("dropout", [0.1, 0.5, 1, 1e-6])
@pytest.mark.parametrize("engine", ["tokenizers", "numpy", "auto"])
def test_dropout_is_switched_off_for_every_engine(tmp_path, dropout, engine):
    plain = make_engine(GOLDEN / "tokenizer.json", "tokenizers").encode([TEXT] * 20)
    encoded = make_engine(with_model(tmp_path, dropout=dropout), engine, cache=tmp_path).encode(
        [TEXT] * 20
    )
    assert encoded.ids.tolist() == plain.ids.tolist()


def test_dropout_is_named_by_a_notice(tmp_path):
    file = with_model(tmp_path, dropout=0.1)
    (notice,) = define(file).notices
    assert notice.startswith(f"{file} has BPE dropout (0.1)")


def test_tokens_that_were_made_with_dropout_are_not_current(tmp_path):
    file = with_model(tmp_path, dropout=0.1)
    one, other = (define(with_model(tmp_path, dropout=value)).fingerprint for value in (0.1, None))
    assert one != other
    assert tokenizer_facts(file).fingerprint == define(file).fingerprint


@pytest.mark.parametrize("dropout", [None, 0.0, 0])
def test_dropout_that_is_off_needs_no_notice_and_no_other_digest(tmp_path, dropout):
    import hashlib

    file = with_model(tmp_path, dropout=dropout)
    definition = define(file)
    assert definition.notices == ()
    assert definition.fingerprint == hashlib.sha256(file.read_bytes()).hexdigest()
    assert definition.json() == file.read_bytes()


def test_unigram_sampling_is_named_by_a_notice(tmp_path):
    model = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [["<unk>", 0.0], ["a", -1.0]],
        "alpha": 0.1,
        "nbest_size": 4,
    }
    file = changed(tmp_path, lambda tokenizer: tokenizer.update(model=model, added_tokens=[]))
    (notice,) = define(file).notices
    assert "alpha 0.1, nbest_size 4" in notice


LOWERCASE = {"type": "Lowercase"}


@pytest.mark.parametrize(
    ("normalizer", "contents"),
    [
        (LOWERCASE, ("<Speaker>", "<speaker>")),
        (LOWERCASE, ("<other>", "<SPEAKER>", "<Speaker>")),
        ({"type": "NFKC"}, ("ﬁn", "fin")),
        ({"type": "NFC"}, ("e\u0301", "\u00e9")),
        (
            {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]},
            ("é", "è"),
        ),
        ({"type": "Replace", "pattern": {"Regex": "[0-9]"}, "content": "0"}, ("<v1>", "<v2>")),
    ],
)
def test_added_tokens_of_one_normal_form_are_refused(tmp_path, normalizer, contents):
    tokens = [added(content, id=396 + number) for number, content in enumerate(contents)]
    file = changed(
        tmp_path, lambda tokenizer: tokenizer.update(normalizer=normalizer, added_tokens=tokens)
    )
    with pytest.raises(FormatError, match="chosen at random") as caught:
        define(file)
    assert caught.value.where == str(file)
    assert repr(contents[-1]) in caught.value.found
    assert "normalized" in caught.value.remedy


@pytest.mark.parametrize(
    "tokens",
    [
        [added("<Speaker>", normalized=False), added("<speaker>", id=397)],
        [added("<Speaker>", normalized=False), added("<speaker>", id=397, normalized=False)],
        [added("<speaker>"), added("<speakers>", id=397)],
        [added("<speaker>"), added("<speaker>")],
    ],
)
def test_added_tokens_that_the_library_tells_apart_are_taken(tmp_path, tokens):
    file = changed(
        tmp_path, lambda tokenizer: tokenizer.update(normalizer=LOWERCASE, added_tokens=tokens)
    )
    assert define(file).notices == ()
    encodings = {
        tuple(make_engine(file, "tokenizers").encode([TEXT]).ids.tolist()) for _ in range(8)
    }
    assert len(encodings) == 1


def test_the_command_says_and_refuses_the_same(tmp_path):
    random = tokenize(tmp_path, with_model(tmp_path, dropout=0.1))
    assert random.exit_code == 0
    assert "notice: " in random.output
    assert "dropout" in random.output
    tokens = [added("<Speaker>"), added("<SPEAKER>", id=397)]
    ambiguous = changed(
        tmp_path, lambda tokenizer: tokenizer.update(normalizer=LOWERCASE, added_tokens=tokens)
    )
    assert "chosen at random" in str(tokenize(tmp_path, ambiguous).exception)


# ------------------------------------------------------------------------------------------------
# too few merges


def cut_merges(tmp_path, lines):
    """Copy the golden vocab.json, and the first lines of its merges."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(FILES / name, tmp_path / name)
    merges = (FILES / "merges.txt").read_bytes().splitlines(keepends=True)
    (tmp_path / "merges.txt").write_bytes(b"".join(merges[:lines]))
    return tmp_path / "vocab.json", len(merges)


def test_merges_that_are_whole_need_no_notice(tmp_path):
    file, _ = cut_merges(tmp_path, None)
    assert define(file).notices == ()


@pytest.mark.parametrize("missing", [1, 2, 50])
def test_merges_that_were_cut_at_the_end_of_a_line_are_noticed(tmp_path, missing):
    _, lines = cut_merges(tmp_path, None)
    file, _ = cut_merges(tmp_path, lines - missing)
    (notice,) = define(file).notices
    assert f"{missing} of " in notice
    assert "come from no merge" in notice


def test_words_that_were_added_to_a_vocabulary_by_hand_need_no_merge(tmp_path):
    file, _ = cut_merges(tmp_path, None)
    vocabulary = json.loads(file.read_bytes())
    for name in ("<pad>", "<s>", "[MASK]", "madeupword0000"):
        vocabulary[name] = len(vocabulary)
    file.write_text(json.dumps(vocabulary))
    assert define(file).notices == ()


def test_a_tokenizer_json_that_evidently_lacks_merges_is_noticed(tmp_path):
    file = changed(
        tmp_path,
        lambda tokenizer: tokenizer["model"].update(merges=tokenizer["model"]["merges"][:70]),
    )
    (notice,) = define(file).notices
    assert "seems to lack merges: 68 of 396 tokens" in notice


def test_a_few_tokens_without_a_merge_are_no_evidence_in_a_tokenizer_json(tmp_path):
    file = changed(
        tmp_path,
        lambda tokenizer: tokenizer["model"].update(merges=tokenizer["model"]["merges"][:-3]),
    )
    assert define(file).notices == ()


def test_a_sentencepiece_model_that_was_cut_between_pieces_is_refused(tmp_path):
    content = (FILES / "bpe.model").read_bytes()
    file = tmp_path / "cut.model"
    # Each piece is a field: a byte 0x0A, its length, its content. Keep 300 of them.
    stop = 0
    for _ in range(300):
        stop += 2 + content[stop + 1]
    file.write_bytes(content[:stop])
    with pytest.raises(FormatError, match="cut or damaged") as caught:
        define(file)
    assert "300 pieces" in caught.value.found


# ------------------------------------------------------------------------------------------------
# no tokens at all


@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "vocab": {}, "merges": []},
        {"vocab": {}, "merges": []},
        {"type": "Unigram", "vocab": [], "unk_id": None},
        {"type": "WordLevel", "vocab": {}, "unk_token": "[UNK]"},
    ],
)
@pytest.mark.parametrize("added_tokens", [[], [added("<|endoftext|>", id=0)]])
def test_an_empty_vocabulary_is_refused(tmp_path, model, added_tokens):
    file = changed(
        tmp_path, lambda tokenizer: tokenizer.update(model=model, added_tokens=added_tokens)
    )
    with pytest.raises(FormatError, match="vocabulary is empty"):
        define(file)
    assert "vocabulary is empty" in str(tokenize(tmp_path, file).exception)


def test_characters_that_would_vanish_are_noticed(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    file = changed(
        tmp_path,
        lambda tokenizer: tokenizer.update(model=model, added_tokens=[], pre_tokenizer=None),
    )
    (notice,) = define(file).notices
    assert "has tokens for 2 characters, and neither an unk_token nor all bytes" in notice


def test_bytes_that_would_vanish_are_noticed(tmp_path):
    def remove(tokenizer):
        vocabulary = tokenizer["model"]["vocab"]
        for byte in (0x01, 0x02):
            del vocabulary[byte_characters()[byte]]

    (notice,) = define(changed(tmp_path, remove)).notices
    assert "no token for 2 bytes, the first 0x01" in notice


def test_an_unk_token_stands_for_what_has_no_token(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0, "[UNK]": 1}, "merges": [], "unk_token": "[UNK]"}
    file = changed(
        tmp_path,
        lambda tokenizer: tokenizer.update(model=model, added_tokens=[], pre_tokenizer=None),
    )
    assert define(file).notices == ()


def test_tokens_of_one_id_are_noticed(tmp_path):
    file = changed(tmp_path, lambda tokenizer: tokenizer["model"]["vocab"].update({"<one>": 5}))
    (notice,) = define(file).notices
    assert "several tokens of one id" in notice


# ------------------------------------------------------------------------------------------------
# what stays


@pytest.mark.parametrize(
    "folder", ["tokenization", "outputs", "modalities/tokenizer", "webdataset/tokenizer"]
)
def test_sound_tokenizers_have_no_notices_and_the_digest_of_their_file(folder):
    import hashlib

    file = GOLDEN.parent / folder / "tokenizer.json"
    definition = define(file)
    assert definition.notices == ()
    assert definition.fingerprint == hashlib.sha256(file.read_bytes()).hexdigest()


def test_what_is_no_tokenizer_is_left_to_the_library(tmp_path):
    file = tmp_path / "tokenizer.json"
    for content in (b"", b"nonsense", b"[]", b'{"model": []}', b'{"model": {"vocab": {"a": "b"}}}'):
        file.write_bytes(content)
        with pytest.raises(FormatError, match="not a tokenizer"):
            make_engine(file, "tokenizers")


def test_an_examination_is_remembered_for_large_files(tmp_path, monkeypatch):
    from nanoset_core.tokenizers import files

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_MIN_CACHED_BYTES", 0)
    file = with_model(tmp_path, dropout=0.1)
    first = define(file)
    files._define.cache_clear()
    monkeypatch.setattr(files, "examine", None)  # it is not called again
    assert define(file) == first


# ------------------------------------------------------------------------------------------------
# folders


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tekken.json", "tokenizer.model", "vocab.json", "own.tiktoken"]
)
def test_a_folder_stands_for_the_tokenizer_in_it(tmp_path, name):
    originals = {"tokenizer.json": GOLDEN / name, "tokenizer.model": FILES / "bpe.model"}
    original = originals.get(name, FILES / name.replace("own", "ranks"))
    shutil.copyfile(original, tmp_path / name)
    shutil.copyfile(FILES / "merges.txt", tmp_path / "merges.txt")
    settings = {"pattern": "gpt2"} if name.endswith("tiktoken") else {}
    assert define(TokenizerFile(tmp_path, **settings)) == define(
        TokenizerFile(tmp_path / name, **settings)
    )
    if not settings:
        assert define(tmp_path).source.name == name


def test_facts_and_engines_take_a_folder(tmp_path):
    shutil.copyfile(GOLDEN / "tokenizer.json", tmp_path / "tokenizer.json")
    assert (
        tokenizer_facts(tmp_path).vocab_size
        == tokenizer_facts(tmp_path / "tokenizer.json").vocab_size
    )
    one, other = (
        make_engine(path, "tokenizers").encode([TEXT])
        for path in (tmp_path, tmp_path / "tokenizer.json")
    )
    assert np.array_equal(one.ids, other.ids)
